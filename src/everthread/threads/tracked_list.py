"""A list of the document, as its users see it."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import TYPE_CHECKING, Any, Final

from everthread.arguments import format_path
from everthread.history.ops import SET, SPLICE
from everthread.threads.nodes import Node, alike, clone, plain_of
from everthread.values import Tagged

if TYPE_CHECKING:
    from everthread.history.ops import Op

#: Each insertion or removal moves all hunks to its right, so their number must have a bound.
_HUNKS_MAX: Final = 1_000


class Splices:
    """What was done to a list since it was clean, at any time as few hunks as possible.

    A hunk is ``[start, removed, count]``: ``count`` new items stand at ``start`` in place of ``removed``
    old ones. Hunks are sorted and never touch each other. As ``start`` is where the items are *now*,
    applying hunk after hunk from the left turns the clean list into the present one.
    """

    __slots__ = ("hunks",)

    def __init__(self) -> None:
        self.hunks: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.hunks)

    def clear(self) -> None:
        self.hunks.clear()

    def note(self, at: int, removed: int, count: int) -> None:
        """``removed`` items at ``at`` gave way to ``count`` others."""
        hunks = self.hunks
        if hunks and not removed and hunks[-1][0] + hunks[-1][2] == at:
            hunks[-1][2] += count
            return
        low, high = at, at + removed
        first = last = bisect_left(hunks, at, key=_end)
        gone = fresh = 0
        while last < len(hunks) and hunks[last][0] <= at + removed:
            start, hunk_removed, hunk_count = hunks[last]
            low, high = min(low, start), max(high, start + hunk_count)
            gone += hunk_removed
            fresh += hunk_count
            last += 1
        # Whatever lies between the hunks that grow together is old and goes now.
        gone += high - low - fresh
        count_now = high - low - removed + count
        merged = [[low, gone, count_now]] if gone or count_now else []
        hunks[first:last] = merged
        if shift := count - removed:
            for hunk in hunks[first + len(merged) :]:
                hunk[0] += shift
            if len(hunks) > _HUNKS_MAX:
                self._coarsen()

    def _coarsen(self) -> None:
        """Let neighbours grow together, with the old items between them given out and taken in again."""
        pairs = zip(self.hunks[::2], self.hunks[1::2], strict=False)
        rest = self.hunks[-1:] if len(self.hunks) % 2 else []
        self.hunks = [
            [left[0], left[1] + right[0] - _end(left) + right[1], _end(right) - left[0]]
            for left, right in pairs
        ] + rest

    def covers(self, index: int) -> bool:
        """Whether the item now at ``index`` is among the new ones."""
        position = bisect_right(self.hunks, index, key=_start) - 1
        return position >= 0 and index < _end(self.hunks[position])


def _start(hunk: list[int]) -> int:
    return hunk[0]


def _end(hunk: list[int]) -> int:
    return hunk[0] + hunk[2]


class TrackedList(Node, MutableSequence[Any]):
    """A list inside the document. Behaves as a ``list`` does, and knows what changed.

    Assigned values are copied in; what can't be stored raises :class:`InvalidValueError` and changes
    nothing. Single items that are dicts or lists are read as nodes; slices are plain copies, changing
    those doesn't change the document.
    """

    __slots__ = ()

    _raw: list[Any]
    _changes: Splices
    _no_changes = Splices

    # Reading

    def __getitem__(self, index: Any) -> Any:
        value = self._raw[index]
        kind = type(value)
        if kind is dict or kind is list or kind is Tagged:
            if type(index) is slice:
                # A plain list, but of live items: as with plain data, changing one changes the document.
                return [self._visible(at, self._raw[at]) for at in range(*index.indices(len(self._raw)))]
            return self._visible(index if type(index) is int and index >= 0 else self._index(index), value)
        return value

    def __iter__(self) -> Iterator[Any]:
        # By position, so that a list that changes meanwhile is walked as a plain one would be.
        raw, index = self._raw, 0
        while index < len(raw):
            yield self._visible(index, raw[index])
            index += 1

    def __reversed__(self) -> Iterator[Any]:
        raw, index = self._raw, len(self._raw) - 1
        while 0 <= index < len(raw):
            yield self._visible(index, raw[index])
            index -= 1

    def __contains__(self, value: object) -> bool:
        return any(True for _ in self._matches(value, 0, len(self._raw)))

    def count(self, value: Any) -> int:
        return sum(1 for _ in self._matches(value, 0, len(self._raw)))

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        for index in self._matches(value, *slice(start, stop).indices(len(self._raw))[:2]):
            return index
        raise ValueError(f"{value!r} is not in list")

    def _matches(self, value: Any, start: int, stop: int) -> Iterator[int]:
        value, lift = plain_of(value), self._document.lift
        for index in range(start, stop):
            item = self._raw[index]
            if type(item) in (dict, list, Tagged):
                item = lift(item)
            if item is value or item == value:
                yield index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | TrackedList):
            return NotImplemented
        return self is other or (len(self) == len(other) and bool(self.plain() == plain_of(other)))

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, other)

    def _compare(self, how: Callable[[Any, Any], bool], other: Any) -> bool:
        if not isinstance(other, list | TrackedList):
            return NotImplemented  # type: ignore[no-any-return]
        return how(self.plain(), plain_of(other))

    def copy(self) -> list[Any]:
        """A deep copy as plain data, the same as :meth:`plain`."""
        return list(self.plain())

    def __add__(self, other: Any) -> list[Any]:
        if not isinstance(other, list | TrackedList):
            return NotImplemented
        return [*self.plain(), *plain_of(other)]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self.plain()] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: Any) -> list[Any]:
        return list(self.plain() * times)

    __rmul__ = __mul__

    # Changing

    def __setitem__(self, index: Any, value: Any) -> None:
        self._check()
        if isinstance(index, slice):
            self._set_slice(index, value)
            return
        place = self._index(index)
        if not (isinstance(value, Node) and value._raw is self._raw[place]):
            self._replace(place, self._take_in(value, place))

    def __delitem__(self, index: Any) -> None:
        self._check()
        if not isinstance(index, slice):
            self._splice(self._index(index), 1, [])
            return
        places = range(*index.indices(len(self._raw)))
        if not places:
            return
        start, stop = min(places[0], places[-1]), max(places[0], places[-1]) + 1
        if len(places) == stop - start:
            self._splice(start, stop - start, [])
            return
        self._document.cut = True
        for place in places:
            self._release(self._raw[place])
        del self._raw[index]
        self._note(start, stop - start, stop - start - len(places))
        self._document.cut = False

    def insert(self, index: int, value: Any) -> None:
        self._check()
        index = slice(index, None).indices(len(self._raw))[0]
        self._splice(index, 0, [self._take_in(value, index)])

    def append(self, value: Any) -> None:
        if self._locked is not None:
            self._check()
        raw = self._raw
        at = len(raw)
        item = self._take_in(value, at)
        document = self._document
        document.cut = True
        raw.append(item)
        self._changes.note(at, 0, 1)
        if not self._dirty:
            self._mark()
        document.cut = False

    def extend(self, values: Iterable[Any]) -> None:
        """Append all ``values``, or none if one can't be stored."""
        self._check()
        items = self._take_in_all(values, len(self._raw))
        self._splice(len(self._raw), 0, items)

    def __iadd__(self, values: Iterable[Any]) -> TrackedList:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: Any) -> TrackedList:
        self._check()
        at = len(self._raw)
        if operator.index(times) <= 0:
            self._splice(0, at, [])
        else:
            self._splice(at, 0, [clone(item) for _ in range(times - 1) for item in self._raw])
        return self

    def pop(self, index: Any = -1) -> Any:
        """Remove an item and return it, containers as plain data."""
        self._check()
        if not self._raw:
            raise IndexError("pop from empty list")
        index = self._index(index)
        value = self._document.lift(self._raw[index])
        self._splice(index, 1, [])
        return value

    def remove(self, value: Any) -> None:
        self._check()
        self._splice(self.index(value), 1, [])

    def clear(self) -> None:
        self._check()
        self._splice(0, len(self._raw), [])

    def reverse(self) -> None:
        self._check()
        self._reorder(self._raw[::-1])

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        self._check()
        before = list(self._raw)
        visible = list(self)
        ranks = visible if key is None else [key(value) for value in visible]
        order = sorted(range(len(ranks)), key=ranks.__getitem__, reverse=reverse)
        if len(before) != len(self._raw) or any(map(operator.is_not, before, self._raw)):
            raise ValueError("list modified during sort")
        self._reorder([before[index] for index in order])

    def _set_slice(self, index: slice, values: Any) -> None:
        start, stop, step = index.indices(len(self._raw))
        if step == 1:
            self._splice(start, max(stop - start, 0), self._take_in_all(values, start))
            return
        places = range(start, stop, step)
        values = list(values)
        if len(values) != len(places):
            raise ValueError(
                f"attempt to assign sequence of size {len(values)} to extended slice of size {len(places)}"
            )
        items = [self._take_in(value, place) for value, place in zip(values, places, strict=True)]
        for place, item in zip(places, items, strict=True):
            self._replace(place, item)

    def _take_in_all(self, values: Iterable[Any], at: int) -> list[Any]:
        prefix = format_path(self._path(), "state")
        return [self._take_in(value, place, prefix) for place, value in enumerate(list(values), at)]

    def _index(self, index: Any) -> int:
        """``index`` counted from the front. Raises as a list does if there is no such item."""
        place = operator.index(index)
        if place < 0:
            place += len(self._raw)
        if not 0 <= place < len(self._raw):
            raise IndexError("list index out of range")
        return place

    # Tracking

    def _replace(self, place: int, item: Any) -> None:
        """Put a lowered ``item`` in the place of another one."""
        old = self._raw[place]
        if alike(old, item):
            return
        self._document.cut = True
        self._release(old)
        self._raw[place] = item
        if not self._changes.covers(place):
            self._note(place, 1, 1)
        self._document.cut = False

    def _splice(self, at: int, remove: int, items: list[Any]) -> None:
        """Replace ``remove`` items at ``at`` by lowered ``items``."""
        self._document.cut = True
        if self._children:
            for item in self._raw[at : at + remove]:
                self._release(item)
        self._raw[at : at + remove] = items
        self._note(at, remove, len(items))
        self._document.cut = False

    def _reorder(self, raw: list[Any]) -> None:
        """Put the same items in another order; the nodes over them live on."""
        moved = [index for index, item in enumerate(raw) if item is not self._raw[index]]
        if not moved:
            return
        self._document.cut = True
        self._raw[:] = raw
        # Brought up to date here, so that later searches for an index stay short.
        for index, item in enumerate(raw):
            child = self._children.get(id(item))
            if child is not None:
                child._key = index
        count = moved[-1] + 1 - moved[0]
        self._note(moved[0], count, count)
        self._document.cut = False

    def _note(self, at: int, removed: int, count: int) -> None:
        if not removed and not count:
            return
        self._changes.note(at, removed, count)
        if self._changes:
            self._mark()
        else:
            self._settle()

    def _own_ops(self, path: tuple[Any, ...]) -> list[Op]:
        ops: list[Op] = []
        for start, removed, count in self._changes.hunks:
            if removed == count == 1:
                ops.append((SET, (*path, start), self._raw[start]))
            else:
                ops.append((SPLICE, path, start, removed, self._raw[start : start + count]))
        return ops

    def _place(self, child: Node) -> int:
        raw, target, hint = self._raw, child._raw, int(child._key)
        # Outwards from where it was: it can't have moved further than what was inserted or removed.
        for distance in range(len(raw) + hint + 1):
            for index in (hint - distance, hint + distance):
                if 0 <= index < len(raw) and raw[index] is target:
                    child._key = index
                    return index
        raise AssertionError("a node that left the list is still in use")

    def _rewritten(self, place: int) -> bool:
        return self._changes.covers(place)
