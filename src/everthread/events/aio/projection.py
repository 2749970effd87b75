"""Projections: what the events of a stream lead to, saved, so that only new events are read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from everthread.arguments import check_function, check_name
from everthread.codec.values import lower
from everthread.errors import InvalidStateError, InvalidValueError, SealError, StateCorruptedError
from everthread.events.aio.trim import trimming
from everthread.events.event import Event
from everthread.events.saved import cell_name, pack_snapshot, read_snapshot
from everthread.stores.contract import Cell, StaleCell
from everthread.threads.sealing import SealedRow
from everthread.threads.twins import ASYNC, refuse_coroutine

if TYPE_CHECKING:
    from everthread.events.aio.stream import AsyncEventStream

Projector = Callable[[Any, Event], Any]

#: A long catch-up saves where it is this often, so that it needn't begin again if it is cut short.
_SAVE_EVENTS = 20_000
_CELLS = 1000


async def advance(projector: Projector, state: Any, event: Event) -> Any:
    """The state after an event. Raises :class:`InvalidValueError` if the projector returns nothing."""
    state = projector(state, event)
    if ASYNC:
        if isawaitable(state):
            state = await state
    else:
        refuse_coroutine(state, "the projector", "give a plain function, or use an async store")
    if state is None:
        raise InvalidValueError(
            f"the projector returned None for event {event.seq} ({event.type}); let it return the state"
        )
    return state


class AsyncProjection:
    """A state and the event up to which it has come. Not for two threads at once.

    What is saved is derived: if it is lost or damaged it is made again, and of several processes that bring
    one projection up to date at once it doesn't matter whose is kept.
    """

    def __init__(
        self, stream: AsyncEventStream, name: str, fn: Projector, version: int, initial: Any
    ) -> None:
        self.name = check_name(name, "projection name")
        check_function(fn, "fn")
        if type(version) is not int or version < 0:
            raise InvalidValueError("version must be a number that isn't negative", path="version")
        self.version = version
        #: The seq of the last event in it, and of the first.
        self.position = 0
        self._first = 0
        self._stream = stream
        self.core = stream.core
        self._fn = fn
        self._initial = {} if initial is None else initial
        self._cell = cell_name("projection", stream.name, name, str(version))
        self._revision = 0
        self._state: Any = None
        self._sound = False

    @property
    def state(self) -> Any:
        """What the events up to ``position`` lead to. Don't change it."""
        if not self._sound:
            raise InvalidStateError("the projector raised half way: refresh() goes on from what was saved")
        return self._state

    async def refresh(self) -> Any:
        """Read the events that came since then, save, and return the state."""
        if not self._sound:
            await self._load()
        if self._first and await self._stream._first_seq() != self._first:
            _, known = await trimming(self._stream)
            if not known.origin or self._first < known.origin:
                # The stream was deleted meanwhile, and has perhaps begun again.
                self._begin()
        # Until it is done: what a projector leaves that raises may be half of a change.
        self._sound = False
        unsaved = 0
        async for event in self._stream.replay(after=self.position):
            self._state = await advance(self._fn, self._state, event)
            self.position = event.seq
            self._first = self._first or event.seq
            unsaved += 1
            if unsaved == _SAVE_EVENTS:
                await self._save()
                unsaved = 0
        self._sound = True
        if unsaved:
            await self._save()
        return self._state

    async def _load(self) -> None:
        """Take up what was saved, or begin."""
        core = self.core
        cell = await core.backend.cell(core.space, self._cell, core.runtime.now_us())
        self._revision = cell.revision if cell is not None else 0
        saved = self._saved(cell)
        if saved is not None:
            self._first, self.position, self._state = saved
        else:
            if cell is not None and (await trimming(self._stream))[1].origin:
                where = f"the projection {self.name!r} of {self._stream.name!r}"
                raise StateCorruptedError(
                    f"{where} is damaged, and events that it was made of were trimmed; "
                    "a higher version begins with the first that is kept",
                    where=where,
                )
            self._begin()

    def _begin(self) -> None:
        self._first, self.position, self._state = 0, 0, copy.deepcopy(self._initial)

    def _saved(self, cell: Cell | None) -> tuple[int, int, Any] | None:
        if cell is None:
            return None
        where = f"the projection {self.name!r} of {self._stream.name!r}"
        try:
            return read_snapshot(cell.value, where, lambda tagged: self.core.vault.open(tagged, {}))
        except StateCorruptedError:
            # It is derived from the events: nothing is lost by making it again, unless these were trimmed.
            return None

    async def _save(self) -> None:
        core = self.core
        try:
            data = pack_snapshot(self._first, self.position, self._lowered(), core.limits)
        except SealError:
            # Somebody was erased while the events were read: not kept. The next one reads Erased instead.
            return
        if not self._revision:
            await self._remove_older()
        while True:
            try:
                # Losing it loses only work, so it needn't wait for the disk.
                self._revision = await core.backend.swap(
                    core.space, self._cell, self._revision, data, core.runtime.now_us(), durable=False
                )
                return
            except StaleCell as stale:
                self._revision = stale.actual.revision if stale.actual is not None else 0
                found = self._saved(stale.actual)
                if found is not None and found[:2] >= (self._first, self.position):
                    return

    def _lowered(self) -> Any:
        core = self.core
        pending: dict[bytes, SealedRow] = {}
        lowered = lower(
            self._state,
            limits=core.limits,
            seal=lambda personal: core.vault.seal(personal, pending),
            root="state",
        )
        if any(row[2] for row in pending.values()):
            raise InvalidValueError(
                "a projection may hold personal values of its events, not new ones", path="state"
            )
        return lowered

    async def _remove_older(self) -> None:
        """Lower versions only: while old and new code run side by side neither undoes the other's work."""
        core = self.core
        prefix = cell_name("projection", self._stream.name, self.name) + "/"
        for name, cell in await core.backend.cells(core.space, prefix, None, _CELLS):
            if int(name.rpartition(":")[2]) < self.version:
                with suppress(StaleCell):
                    await core.backend.swap(core.space, name, cell.revision, None, core.runtime.now_us())

    def __repr__(self) -> str:
        return f"<projection {self.name!r} of {self._stream.name!r} at event {self.position}>"
