"""The fingerprints of a log's items in a row, and whether one is among them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping

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
