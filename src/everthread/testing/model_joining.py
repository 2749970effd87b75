"""The rules for bringing two sides together, told as plainly as possible. Part of the model."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[Any, ...]


class _Mark(enum.Enum):
    NOTHING = enum.auto()


#: Where a side has no value. A member of an enumeration, which stays itself when copied.
NOTHING: Any = _Mark.NOTHING


def same(a: Any, b: Any) -> bool:
    """Equality of plain data that tells 1, 1.0 and True apart and ignores the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def join_documents(
    base: Any, ours: Any, theirs: Any, conflicts: list[Path], increments: Mapping[Path, Any], path: Path = ()
) -> Any:
    """Three-way merge of plain data without lists of identified items; ours where it adds to ``conflicts``.

    ``increments`` maps paths to what ours added there: that much is added to theirs.
    """
    inside = any(len(place) > len(path) and place[: len(path)] == path for place in increments)
    if same(theirs, base):
        return copy.deepcopy(ours)
    if path in increments and all(type(side) in (int, float) for side in (base, ours, theirs)):
        return theirs + increments[path]
    if not inside and same(ours, base):
        return copy.deepcopy(theirs)
    if not inside and same(ours, theirs):
        return copy.deepcopy(ours)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        before = base if isinstance(base, dict) else {}
        joined = {}
        for key in {**before, **theirs, **ours}:
            was, us, them = (side.get(key, NOTHING) for side in (before, ours, theirs))
            value = join_documents(was, us, them, conflicts, increments, (*path, key))
            if value is not NOTHING:
                joined[key] = value
        return joined
    lists = all(isinstance(side, list) for side in (base, ours, theirs))
    if lists and begins(ours, base) and begins(theirs, base):
        return copy.deepcopy(theirs + ours[len(base) :])
    conflicts.append(path)
    return copy.deepcopy(ours)


def begins(items: list[Any], prefix: list[Any]) -> bool:
    """Whether ``prefix`` is how ``items`` begins."""
    return same(items[: len(prefix)], prefix)


def copied(logs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """A copy whose lists can be changed; the items are the same objects."""
    return {name: list(items) for name, items in logs.items()}


def rebase_log(
    base: list[Any], ours: list[Any], theirs: list[Any], name: str, conflicts: list[Path]
) -> list[Any]:
    """Theirs, then what we appended, unless one side truncated what the other went on from."""
    if _identical(theirs, base):
        return list(ours)
    if _identical(ours, base):
        return list(theirs)
    appended = _identical(ours[: len(base)], base)
    if appended and (not base or any(item is base[-1] for item in theirs)):
        return join_tails(theirs, ours[len(base) :], lambda item_id: conflicts.append((name, item_id)))
    conflicts.append((name,))
    return list(ours)


def merge_logs(
    base: list[Any], ours: list[Any], theirs: list[Any], name: str, conflicts: list[Path]
) -> list[Any]:
    """Base, what they appended, what we appended. Where one side did anything else, only that side counts."""
    if begins(ours, base) and begins(theirs, base):
        tails = theirs[len(base) :], ours[len(base) :]
        joined = base + join_tails(*tails, lambda item_id: conflicts.append((name, item_id)))
    elif same(ours, base):
        joined = theirs
    elif same(theirs, base) or same(ours, theirs):
        joined = ours
    else:
        conflicts.append((name,))
        joined = ours
    return _keeping(ours, joined)


def _identical(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def _keeping(ours: list[Any], joined: list[Any]) -> list[Any]:
    """The joined list with our own items where it begins or ends as our log does: those stay."""
    shorter = min(len(ours), len(joined))
    head = 0
    while head < shorter and same(ours[head], joined[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(ours[-1 - tail], joined[-1 - tail]):
        tail += 1
    return [*ours[:head], *joined[head : len(joined) - tail], *ours[len(ours) - tail :]]


def join_tails(theirs: list[Any], ours: list[Any], conflict: Callable[[Any], None]) -> list[Any]:
    """What both appended, theirs first, each id once; ``conflict`` is told an id whose contents differ."""
    joined = list(theirs)
    for item in ours:
        item_id = item.get("id") if isinstance(item, dict) else None
        twin = None if item_id is None else find(joined, item_id)
        if twin is None:
            joined.append(item)
        elif not same(joined[twin], item):
            conflict(item_id)
    return joined


def find(items: list[Any], item_id: Any) -> int | None:
    """Where the item with this id stands."""
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("id") == item_id:
            return index
    return None
