# Generated from src/everthread/threads/aio/item_times.py by tools/twin.py: change that, then run: make twin
"""When the items of a log were written: at the times of the versions that brought them."""

from __future__ import annotations

from everthread.errors import DamageError, VersionNotFoundError
from everthread.threads.sync.thread import Thread


def item_times(thread: Thread, log: str, start: int) -> list[int]:
    """For each item of a log from index ``start`` on, as the head has it, when its version was committed, in
    µs since 1970. Where that version can't be read any more, when the next one was that can."""
    if thread.head is None:
        return []
    past = thread.at(thread.head)
    state = past.log(log)._state
    search = _Search(thread, log, {thread.head.seq: (state.count, thread.head.at_us)})
    positions = [p for first, last in state.ranges(start, state.length) for p in range(first, last)]
    # The newest first: what is learnt of one narrows where the one before it is looked for.
    times = [search.time_of(position) for position in reversed(positions)]
    return times[::-1]


class _Search:
    """Finds versions by how many positions of a log were used up by then, a number that never falls."""

    def __init__(self, thread: Thread, log: str, known: dict[int, tuple[int, int]]) -> None:
        self._thread = thread
        self._log = log
        #: By seq: positions used up, and the time.
        self._known = known

    def time_of(self, position: int) -> int:
        """When the version was committed that first had an item at this position."""
        has = min(seq for seq, (count, _) in self._known.items() if count > position)
        lacks = max(
            (seq for seq, (count, _) in self._known.items() if count <= position and seq < has), default=0
        )
        step = 1
        while has - lacks > 1:
            # Items follow each other closely: from the last one backwards, by steps that grow.
            seq = max(has - step, (lacks + has) // 2)
            if self._count(seq) > position:
                has, step = seq, step * 2
            else:
                lacks = seq
        return self._known[has][1]

    def _count(self, seq: int) -> int:
        """How many positions a version had used up; none if it can't be read."""
        if seq not in self._known:
            try:
                past = self._thread.at(seq)
                self._known[seq] = past.log(self._log)._state.count, past.version.at_us
            except (DamageError, VersionNotFoundError):
                self._known[seq] = 0, 0
        return self._known[seq][0]
