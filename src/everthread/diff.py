"""What differs between two working states, and bringing the difference into a third."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from everthread.arguments import counted
from everthread.errors import InvalidValueError, MergeConflictError
from everthread.history.merge import ABSENT, Conflict
from everthread.threads.document import TrackedDict
from everthread.working.comparing import (
    LABELS,
    OTHER,
    Contents,
    Fields,
    ItemChange,
    Print,
    StateDiff,
    compare,
    contents_of,
    fingerprint,
    payload_of,
    text_print,
    whole_print,
)
from everthread.working.layout import CONTEXT, IDENTITY, KINDS
from everthread.working.state import WorkingState

__all__ = ["ItemChange", "StateDiff", "StateDiffer"]

State = TypeVar("State", WorkingState, dict[str, Any])

_STRICT: Final = "strict"


class StateDiffer:
    """Compares working states, given as :class:`WorkingState` or as the plain dict of ``snapshot()``.

    Items are the same if they have the same id, or else if they are equal in content.
    """

    @staticmethod
    def diff(old: WorkingState | Mapping[str, Any], new: WorkingState | Mapping[str, Any]) -> StateDiff:
        """What changed from ``old`` to ``new``. Neither is changed."""
        return compare(_contents(old), _contents(new))

    @staticmethod
    def merge(state: State, diff: StateDiff, *, resolve: str | None = None) -> State:
        """Make the changes of ``diff`` in ``state``, as far as they aren't there already.

        A :class:`WorkingState` is changed in place, unsaved, and returned; of a plain dict, a changed copy is
        returned. Where ``state`` has been changed in another way at the same place, ``resolve`` says what
        stands: ``"ours"`` that of the state, ``"theirs"`` that of the diff; without it
        :class:`MergeConflictError` lists these places and nothing is changed.
        """
        if resolve not in (None, "ours", "theirs"):
            raise InvalidValueError('resolve is "ours" or "theirs"', path="resolve")
        return _apply(state, diff, resolve)

    @staticmethod
    def patch(state: State, diff: StateDiff) -> State:
        """Make exactly the changes of ``diff`` in ``state``, as :meth:`merge` does.

        Raises :class:`MergeConflictError`, and changes nothing, unless every item that the diff removes or
        changes is there as the diff knows it, and none that it adds.
        """
        return _apply(state, diff, _STRICT)


def _contents(state: WorkingState | Mapping[str, Any]) -> Contents:
    if isinstance(state, WorkingState):
        return contents_of(state.snapshot())
    if isinstance(state, TrackedDict):
        return contents_of(state.plain())
    return contents_of(dict(state) if isinstance(state, Mapping) else state)


def _apply(state: State, diff: StateDiff, resolve: str | None) -> State:
    if not isinstance(diff, StateDiff):
        raise InvalidValueError(f"this takes what StateDiffer.diff() gives, not a {type(diff).__name__}")
    contents = _contents(state)
    conflicts: list[Conflict] = []
    touched: dict[tuple[str, Any], Fields | None] = {}
    for key in LABELS:
        target = _Target(key, contents[key], resolve, touched)
        for item, left in zip(diff.removed.get(key, ()), diff.left.get(key, ()), strict=True):
            target.remove(item, left)
        for change in diff.changed.get(key, ()):
            target.change(change)
        for item, twins in zip(diff.added.get(key, ()), diff.twins.get(key, ()), strict=True):
            target.add(item, twins)
        conflicts += target.conflicts
    if conflicts:
        dont = "doesn't" if len(conflicts) == 1 else "don't"
        raise MergeConflictError(
            f"{counted(len(conflicts), 'change')} of the diff {dont} fit this state: "
            + ", ".join(conflict.where for conflict in conflicts[:5])
            + '; nothing was changed. merge(state, diff, resolve="ours") or "theirs" settles them',
            conflicts=conflicts,
        )
    if isinstance(state, WorkingState):
        if touched:
            state._shelves.apply([_edit(key, id, fields) for (key, id), fields in touched.items()])
            state._changed()
        return state
    identity = {name: value for name, value in state.items() if name in IDENTITY}
    return payload_of(contents, identity)


def _edit(key: str, id: Any, fields: Fields | None) -> tuple[str | None, Any, Any]:
    """Collection (None: the document itself), id, and the new value or ABSENT, as a document has them."""
    if key == OTHER:
        return None, id, ABSENT if fields is None else fields["value"]
    name = "key" if key == CONTEXT else "id"
    return key, id, ABSENT if fields is None else {n: v for n, v in fields.items() if n != name}


class _Target:
    """One collection of the state that a diff is brought into."""

    def __init__(
        self,
        key: str,
        items: dict[Any, Fields],
        resolve: str | None,
        touched: dict[tuple[str, Any], Fields | None],
    ) -> None:
        self._key = key
        self._items = items
        self._resolve = resolve
        self._touched = touched
        #: Items by what they say, made when first needed; may name some that are gone since.
        self._indexes: dict[Print, dict[Any, list[Any]]] = {}
        #: Items that stand for one of the diff already, and can't stand for another.
        self._taken: set[Any] = set()
        self.conflicts: list[Conflict] = []

    def remove(self, item: Fields, left: int) -> None:
        place = self._find(item, text_print, left)
        if place is None:
            if self._resolve == _STRICT:
                self._conflict(item, item, ABSENT, ABSENT)
        elif self._resolve == "theirs" or self._same(self._items[place], item):
            del self._items[place]
            self._touched[self._key, place] = None
        elif self._resolve != "ours":
            self._conflict(item, item, self._items[place], ABSENT)

    def add(self, item: Fields, twins: int = 0) -> None:
        if self._resolve == _STRICT:
            # Equal ones may well be there; this very one may not.
            twins = len(self._items)
        place = self._find(item, whole_print, twins)
        if place is None:
            self._put(item.get("key", item.get("id", (len(self._items), "new"))), item)
        elif self._resolve == _STRICT:
            self._conflict(item, ABSENT, self._items[place], item)
        elif not self._same(self._items[place], item):
            if self._resolve == "theirs":
                self._put(place, item)
            elif self._resolve is None:
                self._conflict(item, ABSENT, self._items[place], item)

    def change(self, change: ItemChange) -> None:
        place = self._find(change.old, whole_print, change.twins)
        for item in (change.new, change.old) if place is None else ():
            place = self._find(item, text_print) if place is None else place
        if place is not None:
            self._change_fields(place, change)
        elif self._resolve == "theirs":
            self.add(change.new)
        elif self._resolve != "ours":
            self._conflict(change.old, change.old, ABSENT, change.new)

    def _change_fields(self, place: Any, change: ItemChange) -> None:
        present = dict(self._items[place])
        for name, (was, becomes) in change.fields.items():
            now = present.get(name)
            if self._equal(name, now, becomes) and self._resolve != _STRICT:
                continue
            if self._equal(name, now, was) or self._resolve == "theirs":
                present[name] = becomes
            elif self._resolve != "ours":
                self.conflicts.append(Conflict((self._key, place, name), was, now, becomes))
        if fingerprint(present) != fingerprint(self._items[place]):
            if "updated_at" in change.new:
                present["updated_at"] = change.new["updated_at"]
            self._put(place, {name: value for name, value in present.items() if value is not None})

    def _put(self, place: Any, item: Fields) -> None:
        self._items[place] = self._touched[self._key, place] = item
        self._taken.add(place)
        for print_of, index in self._indexes.items():
            index.setdefault(print_of(self._key, item), []).append(place)

    def _find(self, item: Fields, print_of: Print, others: int = 0) -> Any:
        """Where this item is: by its id, else by a fingerprint that ``others`` have anyway."""
        place = item.get("key", item.get("id"))
        if place not in self._items:
            alike = self._alike(item, print_of)
            # The one that is equal in everything, if there is one, else the newest.
            place = (
                max(alike, key=lambda p: self._same(self._items[p], item)) if len(alike) > others else None
            )
        if place is not None:
            self._taken.add(place)
        return place

    def _alike(self, item: Fields, print_of: Print) -> list[Any]:
        """The places of items with the same fingerprint that stand for no other yet."""
        if self._key not in KINDS or self._key == CONTEXT:
            return []
        wanted = print_of(self._key, item)
        return [
            place
            for place in reversed(self._index(print_of).get(wanted, ()))
            if place in self._items
            and place not in self._taken
            and print_of(self._key, self._items[place]) == wanted
        ]

    def _index(self, print_of: Print) -> dict[Any, list[Any]]:
        index = self._indexes.get(print_of)
        if index is None:
            index = self._indexes[print_of] = {}
            for place, fields in self._items.items():
                index.setdefault(print_of(self._key, fields), []).append(place)
        return index

    def _same(self, a: Fields, b: Fields) -> bool:
        return bool(whole_print(self._key, a) == whole_print(self._key, b))

    def _equal(self, name: str, a: Any, b: Any) -> bool:
        return self._same({name: a}, {name: b})

    def _conflict(self, item: Fields, base: Any, ours: Any, theirs: Any) -> None:
        self.conflicts.append(Conflict((self._key, item.get("key", item.get("id"))), base, ours, theirs))
