"""Personal values on their way into a store: those that something written there refers to, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from everthread.codec.seal import SealedRef, references
from everthread.stores.contract import Backend, SealedRow, split_keys
from everthread.transfer.taking import REMEMBERED


class Origin(Protocol):
    """Where the values come from."""

    def again(self, wanted: Mapping[bytes, SealedRef]) -> list[SealedRow]:
        """Values that came before; those that are gone are simply missing."""


class Incoming:
    """A value comes once, before what refers to it first. If that is left out, or is here already, the value
    isn't written; what refers to it later gets it from where it came from. So none is kept for that."""

    def __init__(self, backend: Backend, origin: Origin | None) -> None:
        """A dry look has no ``origin``: it takes nothing."""
        self._backend = backend
        self._origin = origin
        self._came: dict[bytes, SealedRow] = {}
        #: Ids of values that were written with the line or stream that is being put in: it may refer to them
        #: again and again, and holds them as long as it lives.
        self._written: dict[bytes, None] = {}
        self.count = 0

    def add(self, rows: Iterable[SealedRow]) -> None:
        """These came, for the entry that is next."""
        if self._origin is not None:
            self._came.update((row[0], row) for row in rows)

    def next(self) -> None:
        """The entry that they came for is done with."""
        self._came.clear()

    def forget(self) -> None:
        """Another line or stream is next. This one may be deleted from now on, with its values."""
        self._written.clear()

    def needed(self, parts: Iterable[bytes]) -> tuple[SealedRow, ...]:
        """What has to be written along with these parts: all that they refer to and that isn't here, but for
        values of people who were erased here."""
        found = {} if self._origin is None else references(parts)
        found = {value_id: ref for value_id, ref in found.items() if value_id not in self._written}
        if not found or self._origin is None:
            return ()
        rows = {value_id: self._came[value_id] for value_id in found if value_id in self._came}
        dead = self._backend.erased({key for ref in found.values() for key in ref.key_ids})
        missing = {
            value_id: ref
            for value_id, ref in found.items()
            if value_id not in rows and dead.isdisjoint(ref.key_ids)
        }
        if missing:
            here = self._backend.sealed(missing)
            missing = {value_id: ref for value_id, ref in missing.items() if value_id not in here}
        if missing:
            rows.update((row[0], row) for row in self._origin.again(missing))
        sealed = tuple(row for row in rows.values() if dead.isdisjoint(split_keys(row[1])))
        for value_id, *_ in sealed:
            if len(self._written) >= REMEMBERED:
                self._written.pop(next(iter(self._written)))
            self._written[value_id] = None
        self.count += len(sealed)
        return sealed
