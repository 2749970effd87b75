"""Personal values that records speak of: whether each is there, and is what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from everthread.codec.seal import check_sealed, references
from everthread.errors import EverthreadError
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.colours import ASYNC
from everthread.threads.reports import What

Note = Callable[[int, int, object, What], None]

#: Whether what is sealed under keys could be opened: they are at hand, and nobody whose they are was erased.
CanOpen = Callable[[tuple[bytes, ...]], bool]


class SealedValues:
    """Looks for the values. One that is absent was erased, or is under a key that isn't at hand: nobody can
    tell, then. If all its keys are, it was lost."""

    def __init__(self, backend: AsyncBackend, can_open: CanOpen, note: Note) -> None:
        self._backend = backend
        self._can_open = can_open
        self._note = note

    async def look(self, first: int, last: int, parts: Iterable[bytes]) -> None:
        """Note what is wrong with the values that are referred to in ``parts`` of these versions."""
        found = references(parts)
        if not found:
            return
        stored = await self._backend.sealed(found)
        for value_id, reference in found.items():
            data = stored.get(value_id)
            if data is not None:
                try:
                    check_sealed(data, reference)
                except EverthreadError as error:
                    self._note(first, last, error, "items")
            elif await self._lost(reference.key_ids):
                problem = f"the sealed bytes of a personal value are gone ({value_id.hex()})"
                self._note(first, last, problem, "items")

    async def _lost(self, key_ids: tuple[bytes, ...]) -> bool:
        if ASYNC:
            # A keyring is a file, or behind a network.
            return bool(await self._backend.aside(self._can_open, key_ids))
        return self._can_open(key_ids)
