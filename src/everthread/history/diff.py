"""What changed between two documents: the ops that lead from one to the other, and a report to read.

Works on lowered trees (see ``codec.values``); only the report holds callers' values.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from everthread.arguments import KEY_CHARS_MAX, format_path
from everthread.codec.values import lift as lift_value
from everthread.codec.values import lower as lower_value
from everthread.codec.values import same
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.history import ops
from everthread.values import Tagged

Path = tuple[Any, ...]

#: More top-level keys than this are counted in a summary, not named.
_NAMED_MAX = 5
_MINUS = "\N{MINUS SIGN}"
_CONTAINERS = (dict, list)


def copy_tree(node: Any) -> Any:
    """A copy of a lowered tree that shares no container with it."""
    # Loops rather than comprehensions: these would take two frames a level, and trees may be deep.
    if type(node) is dict:
        copied = {}
        for key, value in node.items():
            copied[key] = copy_tree(value) if type(value) in _CONTAINERS else value
        return copied
    if type(node) is list:
        items = []
        for value in node:
            items.append(copy_tree(value) if type(value) in _CONTAINERS else value)  # noqa: PERF401
        return items
    return node


def item_key(item: Any) -> tuple[type, Any] | None:
    """What identifies a list item across edits: its ``"id"``, or ``None`` if it has none to rely on.

    The type is part of it, for 1 and True are two ids.
    """
    if type(item) is not dict or "id" not in item:
        return None
    return id_key(item["id"])


def id_key(id: Any) -> tuple[type, Any] | None:
    """The id as a key that compares by type and value, or ``None`` if it can't serve as one."""
    return (type(id), id) if type(id) in (str, int, bytes, Tagged) else None


def diff_documents(old: Any, new: Any, path: Path = ()) -> list[ops.Op]:
    """The ops that turn ``old`` into ``new``, both standing at ``path``.

    The cost is linear in the size of the two, times the depth at worst. Values in the ops are shared
    with ``new``: copy them, or give up ``new``, before applying the ops to a document that lives on.
    """
    return _Walk(old, new, path).ops


class _Walk:
    """One comparison, collecting ops and report in one pass.

    A list's own edits come before those inside its items, and from the front. So whatever an op passes
    on its way stands already where the new document has it, and ops can use the new document's places.
    Only what was removed has no place there.
    """

    __slots__ = ("_pending", "added", "changed", "ops", "removed")

    def __init__(self, old: Any, new: Any, path: Path = ()) -> None:
        self.ops: list[ops.Op] = []
        self.added: list[tuple[Path, Any]] = []
        self.removed: list[tuple[Path, Any]] = []
        self.changed: list[tuple[Path, Any, Any]] = []
        #: Pairs still to compare, each with its path in the old and in the new document. A stack of its
        #: own, since trees may be deeper than what is left of Python's.
        self._pending: list[tuple[Any, Any, Path, Path]] = [(old, new, path, path)]
        while self._pending:
            self._compare(*self._pending.pop())

    def _compare(self, old: Any, new: Any, was: Path, path: Path) -> None:
        if type(old) is dict and type(new) is dict:
            inside = self._dicts(old, new, was, path)
        # No op splices the root.
        elif type(old) is list and type(new) is list and path:
            inside = self._lists(old, new, was, path)
        elif same(old, new):
            return
        else:
            self.ops.append((ops.SET, path, new))
            self.changed.append((path, old, new))
            return
        self._pending.extend(reversed(inside))

    def _dicts(
        self, old: dict[Any, Any], new: dict[Any, Any], was: Path, path: Path
    ) -> list[tuple[Any, Any, Path, Path]]:
        inside = []
        gone = _gone(old, new)
        # Deleted first: a new key may equal a deleted one of another type (1 and True), and would
        # otherwise take over its spelling.
        for key in gone:
            self.ops.append((ops.DELETE, (*path, key)))
            self.removed.append(((*was, key), old[key]))
        for key, value in new.items():
            if key not in old or key in gone:
                self.ops.append((ops.SET, (*path, key), value))
                self.added.append(((*path, key), value))
            elif old[key] is not value:
                inside.append((old[key], value, (*was, key), (*path, key)))
        return inside

    def _lists(
        self, old: list[Any], new: list[Any], was: Path, path: Path
    ) -> list[tuple[Any, Any, Path, Path]]:
        shorter = min(len(old), len(new))
        start = 0
        while start < shorter and _equal(old[start], new[start]):
            start += 1
        tail = 0
        while tail < shorter - start and _equal(old[-1 - tail], new[-1 - tail]):
            tail += 1
        old_stop, new_stop = len(old) - tail, len(new) - tail
        inside = []
        old_at = new_at = start
        for i, j in [*_aligned(old, new, start, old_stop, new_stop), (old_stop, new_stop)]:
            if i > old_at or j > new_at:
                self._splice(old, new, (old_at, i), (new_at, j), was, path)
            if i < old_stop:
                inside.append((old[i], new[j], (*was, i), (*path, j)))
            old_at, new_at = i + 1, j + 1
        return inside

    def _splice(
        self,
        old: list[Any],
        new: list[Any],
        out: tuple[int, int],
        into: tuple[int, int],
        was: Path,
        path: Path,
    ) -> None:
        """Replace the items in the range ``out`` of the old list by those in ``into`` of the new one."""
        self.ops.append((ops.SPLICE, path, into[0], out[1] - out[0], new[slice(*into)]))
        if out == into and not any(item_key(item) for item in old[slice(*out)] + new[slice(*into)]):
            # The same places with other values in them, and nothing says that these are other items.
            self.changed.extend(((*path, i), old[i], new[i]) for i in range(*into))
            return
        self.removed.extend(((*was, i), old[i]) for i in range(*out))
        self.added.extend(((*path, j), new[j]) for j in range(*into))


def _equal(a: Any, b: Any) -> bool:
    return a is b or same(a, b)


def _gone(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, None]:
    """The keys of ``old`` that ``new`` doesn't have, by type and value."""
    if all(type(key) is str for key in old):
        return dict.fromkeys(key for key in old if key not in new)
    spelling = {key: key for key in new}
    return dict.fromkeys(key for key in old if key not in new or not same(key, spelling[key]))


def _aligned(
    old: list[Any], new: list[Any], start: int, old_stop: int, new_stop: int
) -> list[tuple[int, int]]:
    """Index pairs of items that are compared with each other; between them, items come and go."""
    old_keys = _unique_keys(old, start, old_stop)
    new_keys = _unique_keys(new, start, new_stop) if old_keys is not None else None
    if old_keys is not None and new_keys is not None:
        common = [(old_keys[key], j) for key, j in new_keys.items() if key in old_keys]
        return _in_order(common)
    if old_stop != new_stop:
        return []
    # Scalars in a row are better replaced by one splice than one by one.
    return [
        (i, i)
        for i in range(start, old_stop)
        if (type(old[i]) is type(new[i]) and type(old[i]) in _CONTAINERS) or _equal(old[i], new[i])
    ]


def _unique_keys(items: list[Any], start: int, stop: int) -> dict[tuple[type, Any], int] | None:
    """Where each id stands in ``items[start:stop]``, or ``None`` unless every item has its own."""
    places: dict[tuple[type, Any], int] = {}
    for index in range(start, stop):
        key = item_key(items[index])
        if key is None or key in places:
            return None
        places[key] = index
    return places


def _in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of ``pairs``, sorted by their second members, whose first ones ascend as well."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for index, (i, _) in enumerate(pairs):
        length = bisect_left(ends, i)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [i]
        last[length : length + 1] = [index]
    found = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(pairs[index])
        index = before[index]
    found.reverse()
    return found


class LogChange(msgspec.Struct, frozen=True, kw_only=True):
    """How a log changed: counts, and the items themselves as callers know them."""

    added: int = 0
    removed: int = 0
    kept: int = 0
    added_items: tuple[Any, ...] = ()
    removed_items: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Diff:
    """What ``thread.diff(a, b)`` found. True if anything changed.

    ``added`` and ``removed`` map a path to the value there, ``changed`` to the pair of old and new.
    Paths are those of the newer document, for ``removed`` those of the older one. A list item that
    moved counts as removed and added. ``ops`` are the edits of the document, on lowered trees;
    ``logs`` tells of each log. Neither shares anything with the documents compared.
    """

    ops: tuple[ops.Op, ...]
    added: Mapping[str, Any]
    removed: Mapping[str, Any]
    changed: Mapping[str, tuple[Any, Any]]
    logs: Mapping[str, LogChange]
    #: What differs in the working folder, if that was asked for.
    files: Any = None
    _lift: Callable[[Any], Any] = field(default=lift_value, repr=False, compare=False)
    _lower: Callable[[Any], Any] = field(default=lower_value, repr=False, compare=False)

    @classmethod
    def between(
        cls,
        old: Any,
        new: Any,
        logs: Mapping[str, LogChange] | None = None,
        *,
        lift: Callable[[Any], Any] = lift_value,
        lower: Callable[[Any], Any] = lower_value,
    ) -> Diff:
        """Compare two lowered documents. ``logs`` is taken as it is.

        ``lift`` and ``lower`` translate between lowered and callers' values; pass those of a store
        where personal values are to be opened and sealed.
        """
        walk = _Walk(old, new)
        return cls(
            ops=tuple(tuple(copy_tree(part) for part in op) for op in walk.ops),
            added=_by_path((path, lift(value)) for path, value in walk.added),
            removed=_by_path((path, lift(value)) for path, value in walk.removed),
            changed=_by_path((path, (lift(before), lift(after))) for path, before, after in walk.changed),
            logs=MappingProxyType(dict(logs or {})),
            _lift=lift,
            _lower=lower,
        )

    def __bool__(self) -> bool:
        return bool(self.ops or self.files) or any(log.added or log.removed for log in self.logs.values())

    def summary(self, *, but: Callable[[str], bool] = lambda path: False) -> str:
        """One line: how much was added, changed and removed, in which top-level keys and logs.

        Paths for which ``but`` is true aren't counted.
        """
        parts = []
        places = (("+", self.added), ("~", self.changed), (_MINUS, self.removed))
        counts = _counts(*((sign, sum(not but(path) for path in paths)) for sign, paths in places))
        if counts:
            told = [op[1][:1] for op in self.ops if not but(format_path(op[1]))]
            names = list(dict.fromkeys(format_path(top) or "the whole document" for top in told))
            more = len(names) - _NAMED_MAX
            rest = f" and {more} more" if more > 0 else ""
            parts.append(f"{counts} in {', '.join(names[:_NAMED_MAX])}{rest}")
        for name, log in self.logs.items():
            counts = _counts(("+", log.added), (_MINUS, log.removed))
            if counts:
                parts.append(f"{_log_name(name)} {counts}")
        if self.files:
            found = self.files.counts
            signs = (("+", found["added"]), ("~", found["changed"]), (_MINUS, found["removed"]))
            parts.append(f"files {_counts(*signs)}")
        return "; ".join(parts) or "no changes"

    def apply(self, document: dict[str, Any]) -> dict[str, Any]:
        """A new plain dict: ``document`` with the same edits made to it. Logs play no part.

        The document may differ from the one compared, as long as every edited place can be reached.
        Raises :class:`InvalidValueError` with the path of the first edit that doesn't fit.
        """
        tree = self._lower(document)
        if type(tree) is not dict:
            raise InvalidValueError(f"a document is a dict, not {type(document).__name__}")
        try:
            # Safe to hand in as they are: no edit of a diff reaches into a value that another one
            # brought, and what is returned is a copy.
            tree = ops.apply(tree, self.ops)
        except StateCorruptedError as error:
            where = error.where or ""
            raise InvalidValueError(
                f"the diff doesn't fit this document: can't edit {where}", path=where
            ) from error
        result: dict[str, Any] = self._lift(tree)
        return result

    def plain(self) -> dict[str, Any]:
        """Everything as JSON-like data for people to read: values JSON doesn't know become text."""
        return {
            "summary": self.summary(),
            "added": _readable(self.added),
            "removed": _readable(self.removed),
            "changed": {
                path: {"old": _readable(old), "new": _readable(new)}
                for path, (old, new) in self.changed.items()
            },
            "logs": {
                name: {
                    "added": log.added,
                    "removed": log.removed,
                    "kept": log.kept,
                    "added_items": _readable(log.added_items),
                    "removed_items": _readable(log.removed_items),
                }
                for name, log in self.logs.items()
            },
            "files": None if self.files is None else self.files.counts,
        }


def _by_path(entries: Iterable[tuple[Path, Any]]) -> Mapping[str, Any]:
    named: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for path, value in entries:
        where = format_path(path)
        # Very long keys are written shortened, so that two of them may look the same.
        twin = seen[where] = seen.get(where, 0) + 1
        named[where if twin == 1 else f"{where} ({twin})"] = value
    return MappingProxyType(named)


def _log_name(name: str) -> str:
    """A log as it is told of: by its name, which is no path; in quotes if it could be misread."""
    if len(name) <= KEY_CHARS_MAX and re.fullmatch(r"\w+(?:[-./: ]\w+)*", name):
        return name
    return format_path((name,))


def _counts(*counts: tuple[str, int]) -> str:
    return " ".join(f"{sign}{count}" for sign, count in counts if count)


def _readable(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_readable(item) for item in value), key=str)
    return str(value)
