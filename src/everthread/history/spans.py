"""Sets of whole numbers as ranges: which versions stay, which positions of a log are in use."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

#: Both ends belong to it.
Span = tuple[int, int]


class Spans:
    """Ranges that don't touch each other, in order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for first, last in spans:
            self.add(first, last)

    def add(self, first: int, last: int) -> None:
        """Add all numbers from ``first`` to ``last``; none if that lies below."""
        if last < first:
            return
        spans = self._spans
        start = bisect.bisect_left(spans, first - 1, key=lambda span: span[1])
        stop = bisect.bisect_right(spans, last + 1, key=lambda span: span[0])
        if start < stop:
            first, last = min(first, spans[start][0]), max(last, spans[stop - 1][1])
        spans[start:stop] = [(first, last)]

    def __contains__(self, number: int) -> bool:
        at = bisect.bisect_left(self._spans, number, key=lambda span: span[1])
        return at < len(self._spans) and self._spans[at][0] <= number

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        """How many numbers there are."""
        return sum(last - first + 1 for first, last in self._spans)

    def covers(self, first: int, last: int) -> bool:
        """Whether all of these numbers are in it."""
        at = bisect.bisect_left(self._spans, first, key=lambda span: span[1])
        return at < len(self._spans) and self._spans[at][0] <= first and last <= self._spans[at][1]

    def split(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """``first`` … ``last`` cut into ranges that are wholly in it, or wholly not."""
        at = bisect.bisect_left(self._spans, first, key=lambda span: span[1])
        while first <= last:
            start, stop = self._spans[at] if at < len(self._spans) else (last + 1, last)
            if first < start:
                yield first, min(start - 1, last), False
                first = start
            if first <= last:
                yield first, min(stop, last), True
                first = stop + 1
            at += 1
