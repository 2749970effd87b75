"""Consumers: reading on where one left off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.events.aio.trim import trimming
from everthread.events.event import Event, seq_of
from everthread.events.saved import cell_name, pack_position, read_position
from everthread.stores.contract import Cell, StaleCell

if TYPE_CHECKING:
    from everthread.events.aio.stream import AsyncEventStream


class AsyncConsumer:
    """A name under which a position in a stream is kept, durably.

    ``poll()`` gives the events after the position until ``commit()`` moves it on: whoever dies in between
    gets them again, so each is delivered at least once. Several workers under one name get the same events.
    """

    def __init__(self, stream: AsyncEventStream, name: str) -> None:
        self.name = check_name(name, "consumer name")
        self._stream = stream
        self.core = stream.core
        self._cell = cell_name("consumer", stream.name, name)
        #: The highest seq that was handed out here.
        self._delivered = 0

    async def poll(self, limit: int = 100) -> list[Event]:
        """The next events, at most ``limit``; the same ones again until one of them is committed.

        Raises :class:`EventsTrimmedError` if events after the position were trimmed: ``seek()`` goes past
        them.
        """
        after = await self.position()
        events = [event async for event in self._stream.replay(after=after, limit=limit)]
        if events:
            self._delivered = max(self._delivered, events[-1].seq)
        return events

    async def commit(self, event: Event | int) -> None:
        """This event and all before it are done; durable when it returns. Never moves back.

        Raises :class:`InvalidValueError` for a seq that the stream hasn't come to.
        """
        seq = await self._known(event, "event")
        while True:
            cell = await self._read()
            if seq <= self._position(cell):
                return
            try:
                await self._write(cell, seq)
                return
            except StaleCell:
                # Another worker under this name moved it: see where it is now.
                continue

    ack = commit

    async def seek(self, after: Event | int) -> None:
        """Go on after this event, also backwards; ``seek(0)`` delivers everything again."""
        seq = await self._known(after, "after")
        while True:
            try:
                await self._write(await self._read(), seq)
                return
            except StaleCell:
                continue

    async def position(self) -> int:
        """The seq of the last event that was committed; 0 before the first."""
        return self._position(await self._read())

    async def _known(self, event: Event | int, what: str) -> int:
        seq = seq_of(event, what)
        if (
            seq > self._delivered
            and seq > await self._stream._last_seq()
            and seq > (await trimming(self._stream))[1].up_to
        ):
            raise InvalidValueError(
                f"the stream {self._stream.name!r} has no event {seq} yet; give one that poll() gave",
                path=what,
            )
        return seq

    async def _read(self) -> Cell | None:
        core = self.core
        return await core.backend.cell(core.space, self._cell, core.runtime.now_us())

    def _position(self, cell: Cell | None) -> int:
        where = f"the position of the consumer {self.name!r} of {self._stream.name!r} (seek() sets it anew)"
        return 0 if cell is None else read_position(cell.value, where)

    async def _write(self, cell: Cell | None, seq: int) -> None:
        core = self.core
        revision = 0 if cell is None else cell.revision
        await core.backend.swap(core.space, self._cell, revision, pack_position(seq), core.runtime.now_us())

    def __repr__(self) -> str:
        return f"<consumer {self.name!r} of {self._stream.name!r}>"
