"""Where two sequences differ, found without looking at what they share.

A graph hands in its lists whole, at every step. Whatever the reducer did, the items that it left alone are
the same objects as before: so lists are compared by identity, and only where that differs by content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import eq, is_
from typing import Any, Final, NamedTuple

#: How many characters a piece of a long text has at most.
PIECE: Final = 2048


class Gap(NamedTuple):
    """``old[start:stop]`` gave way to ``new[begin:end]``."""

    start: int
    stop: int
    begin: int
    end: int


def identity_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Where two lists don't hold the same objects, the last gap first."""
    return _gaps(old, new, is_, id)


def value_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Where two lists of hashable values differ, the last gap first."""
    return _gaps(old, new, eq, lambda item: item)


def _gaps(
    old: Sequence[Any], new: Sequence[Any], same: Callable[[Any, Any], bool], key: Callable[[Any], Any]
) -> list[Gap]:
    start = _shared(old, new, same)
    if start == len(old):
        return [Gap(start, start, start, len(new))] if len(new) > start else []
    tail = _shared(old[: start - 1 if start else None : -1], new[: start - 1 if start else None : -1], same)
    stop, end = len(old) - tail, len(new) - tail
    gaps: list[Gap] = []
    at, begin = start, start
    for i, j in [*_kept(old, new, start, stop, end, key), (stop, end)]:
        if i > at or j > begin:
            gaps.append(Gap(at, i, begin, j))
        at, begin = i + 1, j + 1
    gaps.reverse()
    return gaps


def _shared(old: Sequence[Any], new: Sequence[Any], same: Callable[[Any, Any], bool]) -> int:
    """How many items at the beginning are the same."""
    try:
        return list(map(same, old, new)).index(False)
    except ValueError:
        return min(len(old), len(new))


def _kept(
    old: Sequence[Any], new: Sequence[Any], start: int, stop: int, end: int, key: Callable[[Any], Any]
) -> list[tuple[int, int]]:
    """Pairs of places, rising on both sides, that hold the same. What moved backwards counts as new."""
    places = {key(old[i]): i for i in range(stop - 1, start - 1, -1)}
    pairs: list[tuple[int, int]] = []
    last = start - 1
    for j in range(start, end):
        i = places.get(key(new[j]), -1)
        if i > last:
            pairs.append((i, j))
            last = i
    return pairs


def cut_text(text: str, old: Sequence[str] = ()) -> list[str]:
    """A text in pieces, the same as before at the beginning and at the end as far as it is the same there."""
    at = kept = 0
    for piece in old:
        if not text.startswith(piece, at):
            break
        at += len(piece)
        kept += 1
    end, tail = len(text), len(old)
    while tail > kept and end - len(old[tail - 1]) >= at and text.endswith(old[tail - 1], at, end):
        tail -= 1
        end -= len(old[tail])
    middle = [text[i : min(i + PIECE, end)] for i in range(at, end, PIECE)]
    return [*old[:kept], *middle, *old[tail:]]
