"""Where the items of a log are.

Items get *physical* positions that only grow: truncating or rewinding never frees one. What the log
looks like at a version is a piece table over those positions, so that a truncation cuts it, a
replacement splices it, and every item ever written keeps its address.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping
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

#: A log whose items documents refer to by their ids: the contents of files. Their order says nothing, so that
#: a merge brings those along that are missing.
CONTENTS = "\0contents"


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


# ── fingerprints of item ids ──


#: Bits of the filter per item, at least: about one search in so many looks through the row for nothing.
_BITS_PER_ITEM = 32
_SMALL = 512
#: Making the filter takes as long as looking through the row so many times: who asks less often does that.
_LOOKS = 16

#: Stands for fingerprints that can't be read.
LOST = b"\xff\xff\xff\xff"


class Prints:
    """Four bytes per item, by position. Grows at its end; finding that one is absent takes no longer then."""

    __slots__ = ("_bits", "_filtered", "_looks", "_mask", "lost", "row")

    def __init__(self, row: bytearray | None = None) -> None:
        self.row = bytearray() if row is None else row
        self._bits = bytearray()
        self._mask = 0
        #: How many bytes of the row the filter covers.
        self._filtered = 0
        #: How often the row was looked through because there was no filter.
        self._looks = 0
        #: Whether some aren't known because they are damaged: LOST stands in their place.
        self.lost = False

    def __len__(self) -> int:
        return len(self.row) // 4

    def covers(self, count: int) -> bool:
        """Whether the first ``count`` are known, none of them lost."""
        return len(self.row) >= 4 * count and not self.lost

    def add(self, prints: bytes) -> None:
        self.row += prints

    def search(self, wanted: bytes, base: int, count: int | None = None) -> Iterator[int]:
        """The positions of a fingerprint among the first ``count`` items, from the end; ``base`` is the
        position of the first."""
        row = self.row
        if len(row) > 4 * _SMALL:
            if self._looks < _LOOKS:
                self._looks += 1
            elif not self._may_hold(wanted):
                return
        at = row.rfind(wanted, 0, None if count is None else 4 * count)
        while at >= 0:
            if at % 4 == 0:
                yield base + at // 4
            at = row.rfind(wanted, 0, at + 3)

    def _may_hold(self, wanted: bytes) -> bool:
        self._cover()
        at = int.from_bytes(wanted, sys.byteorder) & self._mask
        return bool(self._bits[at >> 3] >> (at & 7) & 1)

    def _cover(self) -> None:
        """Bring the filter up to the end of the row; it doubles when it gets crowded."""
        end = len(self.row) - len(self.row) % 4
        if end == self._filtered:
            return
        if end // 4 * _BITS_PER_ITEM > self._mask:
            size = 1 << (end // 2 * _BITS_PER_ITEM).bit_length()
            self._bits, self._mask, self._filtered = bytearray(size // 8), size - 1, 0
        bits, mask = self._bits, self._mask
        added = array("I", bytes(self.row[self._filtered : end]))
        for print_ in added:
            at = print_ & mask
            bits[at >> 3] |= 1 << (at & 7)
        self._filtered = end


def join_prints(known: bytearray, parts: Mapping[int, bytes], first: int) -> bytearray:
    """Fingerprints in a row from position ``first`` on: those that are known, then those of ``parts``, by
    position, as far as they go without a gap."""
    row = bytearray(known)
    for position in sorted(parts):
        at = 4 * (position - first)
        if 0 <= at <= len(row):
            row[at:] = parts[position]
    return row
