"""Where the items of a log are.

Items get *physical* positions that only grow: truncating or rewinding never frees one. What the log
looks like at a version is a piece table over those positions, so that a truncation cuts it, a
replacement splices it, and every item ever written keeps its address.
"""

from __future__ import annotations

from typing import Any

import msgspec

from everthread.errors import StateCorruptedError


class LogState(msgspec.Struct, frozen=True):
    """A log at one version: ``count`` physical positions used so far, ``pieces`` of them in order."""

    count: int = 0
    pieces: tuple[tuple[int, int], ...] = ()
    length: int = 0

    def splice(self, at: int, remove: int, insert: int) -> LogState:
        """``remove`` items from ``at`` on give way to ``insert`` new ones, which take fresh positions."""
        count, pieces, length = self.count, self.pieces, self.length
        if not (0 <= at <= at + remove <= length and insert >= 0):
            raise StateCorruptedError(f"a recorded log change at {at} doesn't fit a log of {length} items")
        if remove == 0 and at == length:
            if insert == 0:
                return self
            if pieces and pieces[-1][1] == count:
                pieces = (*pieces[:-1], (pieces[-1][0], count + insert))
            else:
                pieces = (*pieces, (count, count + insert))
            return LogState(count + insert, pieces, length + insert)
        middle = ((count, count + insert),) if insert else ()
        joined = _join(self.ranges(0, at), middle, self.ranges(at + remove, length))
        return LogState(count + insert, joined, length - remove + insert)

    def appended(self) -> LogState:
        """One more item at the end."""
        count, pieces = self.count, self.pieces
        if pieces and pieces[-1][1] == count:
            pieces = (*pieces[:-1], (pieces[-1][0], count + 1))
        else:
            pieces = (*pieces, (count, count + 1))
        return LogState(count + 1, pieces, self.length + 1)

    def ranges(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """The physical ranges of the logical slice ``[start, stop)``, in order."""
        # Walked from the end: tails are what callers read, and mostly they are in one piece.
        upper = self.length
        if self.pieces and start < stop <= upper:
            first, last = self.pieces[-1]
            edge = last - upper
            if start + edge >= first:
                return ((start + edge, stop + edge),)
        found = []
        for first, last in reversed(self.pieces):
            lower = upper - (last - first)
            if lower < stop and upper > start:
                found.append((first + max(start - lower, 0), last - max(upper - stop, 0)))
            if lower <= start:
                break
            upper = lower
        found.reverse()
        return tuple(found)

    def index_of(self, position: int) -> int | None:
        """The logical index of a physical position, or ``None`` if this version doesn't hold it."""
        upper = self.length
        for first, last in reversed(self.pieces):
            lower = upper - (last - first)
            if first <= position < last:
                return lower + position - first
            upper = lower
        return None

    def pack(self) -> list[Any]:
        """The form a keyframe stores."""
        return [self.count, [edge for piece in self.pieces for edge in piece]]

    @classmethod
    def unpack(cls, data: list[Any]) -> LogState:
        """The inverse of :meth:`pack`; raises :class:`StateCorruptedError` on anything else."""
        try:
            count, edges = data
            pieces = tuple(zip(edges[::2], edges[1::2], strict=True))
            if type(count) is not int or set(map(type, edges)) - {int}:
                raise ValueError(count)
            if not all(0 <= a < b <= count for a, b in pieces):
                raise ValueError(pieces)
        except (ValueError, TypeError) as error:
            raise StateCorruptedError("a keyframe holds a log that makes no sense") from error
        return cls(count, pieces, sum(b - a for a, b in pieces))


EMPTY_LOG = LogState()


def _join(*parts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for part in parts:
        for first, last in part:
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], last)
            else:
                joined.append((first, last))
    return tuple(joined)


def common_prefix(a: LogState, b: LogState) -> int:
    """How many items two states of the same log share at their beginning, by position alone."""
    shared = 0
    left, right = list(a.pieces), list(b.pieces)
    left.reverse()
    right.reverse()
    while left and right:
        (la, lb), (ra, rb) = left.pop(), right.pop()
        if la != ra:
            break
        n = min(lb - la, rb - ra)
        shared += n
        if lb - la != rb - ra:
            break
    return shared
