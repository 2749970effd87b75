"""A content as edits of an earlier one, by line: what changed takes up room, what didn't doesn't.

By line, and not by byte, so that redacting a text in the earlier content, which keeps the number of its
lines, redacts it in every content that is made from that one; and so that a text within one line stands as a
whole wherever it stands. No I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Any

from everthread.errors import StateCorruptedError

#: [line, how many lines go, what comes in their place (``None``: nothing)], in order; lines of the earlier
#: content are counted from 0.
Edits = list[list[Any]]

_NEWLINE = b"\n"


def find_edits(old: bytes, new: bytes) -> Edits:
    """Edits that lead from ``old`` to ``new``: few, though not always the fewest."""
    before, after = old.split(_NEWLINE), new.split(_NEWLINE)
    found: Edits = []
    for (first, last), (start, stop) in _differing(before, after):
        if first < last or start < stop:
            comes = _NEWLINE.join(after[start:stop]) if start < stop else None
            found.append([first, last - first, comes])
    return found


def apply_edits(old: bytes, edits: Any, where: str = "") -> bytes:
    """The content that edits make of an earlier one. Raises :class:`StateCorruptedError`."""
    lines = old.split(_NEWLINE)
    try:
        for first, count, comes in reversed(edits):
            if not 0 <= first <= first + count <= len(lines):
                raise ValueError(first)
            lines[first : first + count] = [] if comes is None else comes.split(_NEWLINE)
        return _NEWLINE.join(lines)
    except (TypeError, ValueError, AttributeError) as error:
        raise StateCorruptedError(
            "a stored content doesn't fit the one it was made from", where=where
        ) from error


def size_of(edits: Edits) -> int:
    """About how many bytes edits take up."""
    return sum(16 + len(comes or b"") for _, _, comes in edits)


Span = tuple[int, int]


def _differing(before: list[bytes], after: list[bytes]) -> Iterator[tuple[Span, Span]]:
    """The spans in which two lists of lines differ, in order."""
    first, last, start, stop = _trimmed(before, after, 0, len(before), 0, len(after))
    if first == last or start == stop:
        yield (first, last), (start, stop)
        return
    for here, there in [*_anchors(before, after, (first, last), (start, stop)), (last, stop)]:
        a, b, c, d = _trimmed(before, after, first, here, start, there)
        yield (a, b), (c, d)
        first, start = here, there


def _trimmed(
    before: list[bytes], after: list[bytes], first: int, last: int, start: int, stop: int
) -> tuple[int, int, int, int]:
    """Two spans without the lines that they begin and end with alike."""
    while first < last and start < stop and before[first] == after[start]:
        first, start = first + 1, start + 1
    while first < last and start < stop and before[last - 1] == after[stop - 1]:
        last, stop = last - 1, stop - 1
    return first, last, start, stop


def _anchors(before: list[bytes], after: list[bytes], old: Span, new: Span) -> list[tuple[int, int]]:
    """Lines that occur once on either side, as many as stand in the same order on both."""
    here, there = Counter(before[slice(*old)]), Counter(after[slice(*new)])
    places = {line: at for at, line in enumerate(after[slice(*new)], new[0]) if there[line] == 1}
    pairs = [
        (at, places[line])
        for at, line in enumerate(before[slice(*old)], old[0])
        if here[line] == 1 and line in places
    ]
    # The longest run of pairs that grows on both sides.
    tops: list[int] = []
    piles: list[int] = []
    links: list[int] = []
    for index, (_, place) in enumerate(pairs):
        pile = bisect_left(tops, place)
        links.append(piles[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(place)
            piles.append(index)
        else:
            tops[pile], piles[pile] = place, index
    chosen: list[tuple[int, int]] = []
    index = piles[-1] if piles else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = links[index]
    chosen.reverse()
    return chosen
