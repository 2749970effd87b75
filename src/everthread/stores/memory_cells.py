"""Cells and streams of events in this process's memory."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import msgspec

from everthread import process
from everthread.errors import LimitError, StoreClosedError
from everthread.stores.contract import EVENT_SEQ_MAX, Cell, NewEvent, SealedRow, StaleCell, StoredEvent
from everthread.stores.memory_sealed import MemorySealed


class _Stream:
    """The events of one stream; the one at index ``i`` has the seq ``dropped + 1 + i``."""

    def __init__(self) -> None:
        self.dropped = 0
        self.events: list[StoredEvent] = []
        #: The latest time up to each event, which only grows, and how far a time has lain below it.
        self.peaks: list[int] = []
        self.late_us = 0

    @property
    def last(self) -> int:
        return self.dropped + len(self.events)

    def add(self, event: NewEvent) -> None:
        peak = max(self.peaks[-1], event.at_us) if self.peaks else event.at_us
        self.late_us = max(self.late_us, peak - event.at_us)
        self.peaks.append(peak)
        self.events.append(StoredEvent(self.last + 1, event.at_us, event.type, event.agent, event.body))

    def drop(self) -> None:
        self.dropped = self.last
        self.events, self.peaks, self.late_us = [], [], 0

    def between(self, after: int, since_us: int | None, until_us: int | None) -> range:
        """The indices of what may lie between these times: nothing outside does."""
        start, stop = max(0, after - self.dropped), len(self.events)
        if since_us is not None:
            start = max(start, bisect.bisect_left(self.peaks, since_us))
        if until_us is not None:
            stop = bisect.bisect_right(self.peaks, until_us + self.late_us)
        return range(start, stop)


class MemoryCells:
    """The half of the memory store that isn't about lines, and what both halves share."""

    def __init__(self) -> None:
        self._lock = process.fork_rlock(steady=True)
        self._closed = False
        self._sealed = MemorySealed()
        self._cells: dict[tuple[str, str], Cell] = {}
        #: No removed cell had a higher revision: new ones begin above it.
        self._revision_floor = 0
        self._streams: dict[tuple[str, str], _Stream] = {}

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        with self._lock:
            self._check()
            found = self._cells.get((space, name))
            return None if found is None else msgspec.structs.replace(found, read_us=now_us)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        with self._lock:
            found = self.cell(space, name, now_us)
            if (0 if found is None else found.revision) != expected:
                raise StaleCell(found)
            if value is None:
                self._cells.pop((space, name), None)
                self._revision_floor = max(self._revision_floor, expected)
                return 0
            revision = expected + 1 if found is not None else self._revision_floor + 1
            self._cells[space, name] = Cell(value, revision, now_us, now_us)
            return revision

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        with self._lock:
            self._check()
            names = _listed(self._cells, space, prefix, after)[:limit]
            return [
                (name, msgspec.structs.replace(self._cells[space, name], read_us=now_us)) for name in names
            ]

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        with self._lock:
            self._check()
            self._sealed.check(sealed)
            found = self._streams.setdefault((space, stream), _Stream())
            first = found.last + 1
            if found.last + len(events) > EVENT_SEQ_MAX:
                raise LimitError(f"the stream {stream!r} is full; go on in another one")
            for event in events:
                found.add(event)
            self._sealed.add(sealed)
            return first

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            kept: list[StoredEvent] = []
            if found is None:
                return kept
            for index in found.between(after, since_us, until_us):
                if len(kept) >= limit:
                    break
                event = found.events[index]
                if (
                    (type is None or event.type == type)
                    and (agent is None or event.agent == agent)
                    and (since_us is None or event.at_us >= since_us)
                    and (until_us is None or event.at_us <= until_us)
                ):
                    kept.append(event)
            return kept

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        with self._lock:
            self._check()
            filled = {key: stream for key, stream in self._streams.items() if stream.events}
            names = _listed(filled, space, prefix, after)[:limit]
            return [(name, filled[space, name].last) for name in names]

    def drop_stream(self, space: str, stream: str) -> bool:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            if found is None or not found.events:
                return False
            found.drop()
            return True

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            if found is None:
                return 0
            rewritten = 0
            for index, event in enumerate(found.events):
                if event.seq in bodies:
                    found.events[index] = msgspec.structs.replace(event, body=bodies[event.seq])
                    rewritten += 1
            return rewritten


def _listed(
    table: dict[tuple[str, str], Cell] | dict[tuple[str, str], _Stream],
    space: str,
    prefix: str,
    after: str | None,
) -> list[str]:
    """The names of a space that have the prefix and come after ``after``, in code point order."""
    return sorted(
        name
        for owner, name in table
        if owner == space and name.startswith(prefix) and (after is None or name > after)
    )
