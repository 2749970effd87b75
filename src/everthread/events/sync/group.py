# Generated from src/everthread/events/aio/group.py by tools/twin.py: change that, then run: make twin
"""Groups of consumers: workers that share the events of a stream among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.events.event import Event, seq_of
from everthread.events.saved import cell_name, pack_group, read_group
from everthread.stores.contract import Cell, StaleCell

if TYPE_CHECKING:
    from everthread.events.sync.stream import EventStream

#: More than so many events that nobody has acknowledged aren't handed out: the workers have enough to do.
PENDING_MAX = 1_000


class Delivery(NamedTuple):
    """An event that was handed out and isn't acknowledged: to whom, when by the store's clock, how often."""

    seq: int
    worker: str
    at_us: int
    times: int


class ConsumerGroup:
    """A name under which several workers share a stream: each event goes to one of them.

    What a worker doesn't acknowledge within ``redeliver_after`` seconds goes to whoever polls next, so that
    each event is done at least once, whoever dies. Everything is kept in the store: workers may come and go,
    in any process on any host.
    """

    def __init__(self, stream: EventStream, name: str, redeliver_after: float) -> None:
        self.name = check_name(name, "group name")
        if not isinstance(redeliver_after, int | float) or not 0 < redeliver_after < 10**9:
            raise InvalidValueError(
                "redeliver_after is a number of seconds, more than none", path="redeliver_after"
            )
        self._stream = stream
        self.core = stream.core
        self._cell = cell_name("group", stream.name, name)
        self._patience_us = int(redeliver_after * 1_000_000)

    def poll(self, worker: str, limit: int = 10) -> list[Event]:
        """Events for this worker, at most ``limit``, oldest first: what others left undone for too long, then
        new ones. They are this worker's until it acknowledges them, or takes too long.

        Raises :class:`EventsTrimmedError` if some of them were trimmed: ``seek()`` goes past them.
        """
        worker = check_name(worker, "worker")
        if not isinstance(limit, int) or limit < 1:
            raise InvalidValueError("limit must be a number, 1 at least", path="limit")
        while True:
            cell, position, pending = self._read()
            now_us = cell.read_us if cell is not None else self.core.runtime.now_us()
            overdue = [each for each in pending if now_us - each.at_us >= self._patience_us][:limit]
            room = min(limit - len(overdue), PENDING_MAX - len(pending))
            again = {each.seq: each for each in overdue}
            events = [event for seq in again for event in self._page(seq - 1, 1) if event.seq == seq]
            fresh = self._page(position, room) if room > 0 else []
            if not overdue and not fresh:
                return []
            kept = [each for each in pending if each.seq not in again]
            kept += [Delivery(e.seq, worker, now_us, again[e.seq].times + 1) for e in events]
            kept += [Delivery(event.seq, worker, now_us, 1) for event in fresh]
            try:
                self._write(cell, fresh[-1].seq if fresh else position, sorted(kept))
            except StaleCell:
                # Another worker was quicker: what is left for this one has to be looked up anew.
                continue
            return [*events, *fresh]

    def ack(self, *events: Event | int) -> int:
        """These are done; durable when it returns. How many of them weren't acknowledged before."""
        done = {seq_of(event, "event") for event in events}
        while True:
            cell, position, pending = self._read()
            kept = [each for each in pending if each.seq not in done]
            if len(kept) == len(pending):
                return 0
            try:
                self._write(cell, position, kept)
            except StaleCell:
                continue
            return len(pending) - len(kept)

    def seek(self, after: Event | int) -> None:
        """Go on after this event, also backwards, for all workers; what was handed out of those up to it
        counts as acknowledged, and of later ones as not handed out."""
        seq = seq_of(after, "after")
        while True:
            cell, _, _ = self._read()
            try:
                self._write(cell, seq, [])
                return
            except StaleCell:
                continue

    def pending(self) -> list[Delivery]:
        """What was handed out and isn't acknowledged, oldest first."""
        return (self._read())[2]

    def position(self) -> int:
        """The seq of the last event that was handed out; 0 before the first."""
        return (self._read())[1]

    def _page(self, after: int, limit: int) -> list[Event]:
        return list(self._stream.replay(after=after, limit=limit))

    def _read(self) -> tuple[Cell | None, int, list[Delivery]]:
        core = self.core
        cell = core.backend.cell(core.space, self._cell, core.runtime.now_us())
        if cell is None:
            return None, 0, []
        where = f"the group {self.name!r} of {self._stream.name!r}"
        position, pending = read_group(cell.value, where)
        return cell, position, [Delivery(*each) for each in pending]

    def _write(self, cell: Cell | None, position: int, pending: list[Delivery]) -> None:
        core = self.core
        value = pack_group(position, [list(each) for each in pending])
        revision = 0 if cell is None else cell.revision
        core.backend.swap(core.space, self._cell, revision, value, core.runtime.now_us())

    def __repr__(self) -> str:
        return f"<group {self.name!r} of {self._stream.name!r}>"
