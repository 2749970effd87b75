"""Comparing two states: field by field for people, edit by edit for the store."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any

from everthread.checkpoints.arrays import is_array
from everthread.checkpoints.states import CLASS, VERSION
from everthread.codec.values import encode_stored
from everthread.history import ops
from everthread.history.diff import diff_documents

Path = tuple[Any, ...]

_bits = struct.Struct("<d").pack


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields that came, went and changed: ``{"added", "removed", "changed": {field: (old, new)}}``."""
    old = {name: value for name, value in old.items() if name not in (VERSION, CLASS)}
    new = {name: value for name, value in new.items() if name not in (VERSION, CLASS)}
    return {
        "added": {name: value for name, value in new.items() if name not in old},
        "removed": {name: value for name, value in old.items() if name not in new},
        "changed": {
            name: (old[name], value)
            for name, value in new.items()
            if name in old and not equal(old[name], value)
        },
    }


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, types included. NaN is the same as itself, True isn't 1."""
    if a is b:
        return True
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(key in b and equal(value, b[key]) for key, value in a.items())
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if type(a) is float:
        return _bits(a) == _bits(b)
    if is_array(a):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return equal(a.tolist(), b.tolist()) if a.dtype.hasobject else bool(a.tobytes() == b.tobytes())
    try:
        return bool(a == b)
    except Exception:
        # Values whose comparison fails count as different.
        return False


def changes(old: Any, new: Any, path: Path = ()) -> list[ops.Op]:
    """The ops that turn the lowered tree ``old`` into ``new``; their paths are those of ``new``.

    As ``diff_documents``, which it leaves the odd cases to, but made for states, which are large and mostly
    grow: what didn't change, and a list that only grew, is told by one comparison of bytes, and an item
    that changed within a list that grew costs its change. Linear in the size of both, nearly.
    """
    if path and type(old) is type(new) and encode_stored(old) == encode_stored(new):
        return []
    if type(old) is dict and type(new) is dict and all(type(key) is str for key in (*old, *new)):
        found: list[ops.Op] = [(ops.DELETE, (*path, key)) for key in old if key not in new]
        for key, value in new.items():
            if key not in old:
                found.append((ops.SET, (*path, key), value))
            else:
                found += changes(old[key], value, (*path, key))
        return found
    if type(old) is list and type(new) is list and path:
        if len(new) > len(old) and encode_stored(old) == encode_stored(new[: len(old)]):
            return [(ops.SPLICE, path, len(old), 0, new[len(old) :])]
        return _list_changes(old, new, path)
    return diff_documents(old, new, path)


def _list_changes(old: list[Any], new: list[Any], path: Path) -> list[ops.Op]:
    """First what comes and goes, from the front, then what changes within items: all at places of ``new``."""
    splices: list[ops.Op] = []
    inside: list[ops.Op] = []
    i = j = 0
    for i_next, j_next in [*_unchanged(old, new), (len(old), len(new))]:
        if i_next - i != j_next - j:
            splices.append((ops.SPLICE, path, j, i_next - i, new[j:j_next]))
        else:
            _pair_changes(old[i:i_next], new[j:j_next], j, path, splices, inside)
        i, j = i_next + 1, j_next + 1
    return splices + inside


def _pair_changes(
    old: list[Any], new: list[Any], at: int, path: Path, splices: list[ops.Op], inside: list[ops.Op]
) -> None:
    """Items in the same places. Neighbours that are replaced whole are replaced together."""
    start = 0
    for offset, (before, after) in enumerate(zip(old, new, strict=True)):
        if type(before) is type(after) and type(before) in (dict, list):
            if offset > start:
                splices.append((ops.SPLICE, path, at + start, offset - start, new[start:offset]))
            inside += changes(before, after, (*path, at + offset))
            start = offset + 1
    if len(new) > start:
        splices.append((ops.SPLICE, path, at + start, len(new) - start, new[start:]))


def _unchanged(old: list[Any], new: list[Any]) -> list[tuple[int, int]]:
    """Places, in both lists and in ascending order, of items that are the same.

    Those at both ends, and between them those that occur once: the longest part of these that is in order.
    """
    a, b = [encode_stored(item) for item in old], [encode_stored(item) for item in new]
    shorter = min(len(a), len(b))
    head = 0
    while head < shorter and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shorter - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    once, places = _once(a, head, len(a) - tail), _once(b, head, len(b) - tail)
    pairs = [(i, places[item]) for item, i in once.items() if item in places]
    ends = [(len(a) - n, len(b) - n) for n in range(tail, 0, -1)]
    return [*((n, n) for n in range(head)), *_ascending(pairs), *ends]


def _once(items: list[bytes], start: int, stop: int) -> dict[bytes, int]:
    """Where the items stand that occur only once between ``start`` and ``stop``."""
    counts = Counter(items[start:stop])
    return {items[at]: at for at in range(start, stop) if counts[items[at]] == 1}


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of ``pairs``, ascending in the first place, that ascends in the second as well."""
    lasts: list[int] = []
    chains: list[tuple[tuple[int, int], Any]] = []
    for pair in pairs:
        length = bisect_left(lasts, pair[1])
        link = (pair, chains[length - 1] if length else None)
        lasts[length : length + 1] = [pair[1]]
        chains[length : length + 1] = [link]
    found = []
    rest: Any = chains[-1] if chains else None
    while rest is not None:
        pair, rest = rest
        found.append(pair)
    return found[::-1]
