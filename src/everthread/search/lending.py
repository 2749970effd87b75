"""What forks share: each text is indexed, and told, once.

A fork holds the items of its source up to where it was forked. They stand in the index under the oldest
thread of the family that holds them; a younger one notes from whom it has *borrowed* which positions. If the
older one is gone, or holds them no longer, the younger one indexes them itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from everthread.history.spans import Spans
from everthread.search.marks import Mark, parted

if TYPE_CHECKING:
    from everthread.stores.contract import Line
    from everthread.threads.sync.core import Core

#: From a position up to another, whose own they are: the thread's that wrote them.
Stretch = tuple[int, int, bytes]


class Owners:
    """Whose own the items of threads are."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lines: dict[int, Line] = {}

    def of(self, line: Line, log: str) -> list[Stretch]:
        """The positions of a log by whose own they are, the last ones first."""
        found: list[Stretch] = []
        stop = sys.maxsize
        while True:
            start = line.counts.get(log, 0) if line.parent else 0
            if start < stop:
                found.append((start, stop, line.uid))
            stop = min(start, stop)
            if not stop:
                return found
            line = self._parent(line)

    def _parent(self, line: Line) -> Line:
        if line.parent not in self._lines:
            self._lines[line.parent] = self._core.reader.parent(line)
        return self._lines[line.parent]


class Lending:
    """Who of a family has which texts in the index. Threads are noted the oldest first."""

    def __init__(self, core: Core) -> None:
        self._owners = Owners(core)
        self._families: dict[int, list[tuple[Line, Mark]]] = {}
        self._lines: dict[bytes, Line] = {}
        self._marks: dict[bytes, Mark] = {}

    def note(self, line: Line, mark: Mark) -> None:
        """The index is up to date with a thread."""
        self._families.setdefault(line.root, []).append((line, mark))
        self._lines[line.uid], self._marks[line.uid] = line, mark

    def stands(self, mark: Mark) -> bool:
        """Whether what a thread has borrowed is still there."""
        return mark.stands(self._marks)

    def lenders(self, uid: bytes) -> Iterable[bytes]:
        """From whom a thread has borrowed."""
        return self._marks[uid].borrowed

    def owner(self, uid: bytes, log: str, position: int) -> bytes:
        """Whose own the item is that a thread has there."""
        return self._owner(self._lines[uid], log, position) if uid in self._lines else uid

    def holders(self, uid: bytes, log: str, position: int) -> Iterator[bytes]:
        """The threads that have the same item there as this one, the oldest first."""
        if uid not in self._lines:
            return
        line = self._lines[uid]
        owner = self._owner(line, log, position)
        for other, mark in self._families[line.root]:
            if mark.holds(log, position) and self._owner(other, log, position) == owner:
                yield other.uid

    def _owner(self, line: Line, log: str, position: int) -> bytes:
        stretches = self._owners.of(line, log)
        return next(owner for start, _, owner in stretches if start <= position)

    def borrow(self, line: Line, log: str, wanted: Spans) -> tuple[dict[bytes, Spans], Spans]:
        """From whom which positions are borrowed, and which are left to be indexed."""
        borrowed: dict[bytes, Spans] = {}
        if not line.parent:
            return borrowed, wanted
        own = line.counts.get(log, 0)
        shared, left = parted(wanted, Spans([(0, own - 1)]))
        rest = Spans((each.start, each.stop - 1) for each in left)
        for other, mark in self._families.get(line.root, ()):
            if not len(shared):
                break
            if log in mark.logs:
                lent, missing = parted(shared, self._lendable(line, other, mark, log))
                if len(lent):
                    borrowed[other.uid] = lent
                    shared = Spans((each.start, each.stop - 1) for each in missing)
        for first, last in shared:
            rest.add(first, last)
        return borrowed, rest

    def _lendable(self, line: Line, other: Line, mark: Mark, log: str) -> Spans:
        """The positions that another thread has in the index, as far as they are the same items."""
        theirs = self._owners.of(other, log)
        same = Spans()
        for start, stop, uid in self._owners.of(line, log):
            for first, last, whose in theirs:
                if uid == whose:
                    same.add(max(start, first), min(stop, last) - 1)
        return parted(Spans(mark.logs[log]), same)[0]
