"""What differs between two working states, item by item, and bringing that into a third one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from everthread.arguments import counted
from everthread.codec.schema import migrate
from everthread.errors import InvalidValueError, LimitError, MergeConflictError
from everthread.history.merge import ABSENT, Conflict
from everthread.threads.document import TrackedDict
from everthread.values import Erased, Personal
from everthread.working.document import Edit, check_resolve
from everthread.working.home import new_name
from everthread.working.items import COLLECTIONS, CONTEXT, IDENTITY, KINDS
from everthread.working.reads import StateReads

#: What is in a state besides its collections, compared key by key.
OTHER: Final = "other"
LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {**{key: kind.many for key, kind in KINDS.items()}, OTHER: "other fields"}
)
#: Fields that say when something was noted, not what it is.
_BOOKKEEPING: Final = frozenset({"id", "created_at", "updated_at", "verified_at"})

Fields = dict[str, Any]
#: From a collection's name and an item to a hashable that stands for what it says.
Print = Callable[[str, Fields], Any]
#: Collection → id → fields.
Contents = dict[str, dict[Any, Fields]]


class ItemChange(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is in both states and differs. ``fields`` maps a name to the pair of old and new.

    ``old`` and ``new`` are the whole items; their ids may differ where only their text says that they are
    the same one. ``twins``: how many items equal to ``old`` are in both states.
    """

    old: Fields
    new: Fields
    fields: Mapping[str, tuple[Any, Any]]
    twins: int = 0


class StateDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What ``StateDiffer.diff(old, new)`` found, by collection. True if anything differs.

    ``added`` and ``removed`` map the name of a collection to items as a snapshot has them (context items and
    other fields with their ``key``), ``changed`` to :class:`ItemChange`. Times of noting are not compared.
    ``twins`` and ``left`` say of each added and removed item how many are in both states that are equal to it
    or, for a removed one, have its text.
    """

    added: Mapping[str, tuple[Fields, ...]]
    removed: Mapping[str, tuple[Fields, ...]]
    changed: Mapping[str, tuple[ItemChange, ...]]
    twins: Mapping[str, tuple[int, ...]]
    left: Mapping[str, tuple[int, ...]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def summary(self) -> str:
        """One line, such as ``+1 todos, +1 context items``; ``~`` stands for changed, ``-`` for removed."""
        parts = []
        for key, label in LABELS.items():
            for sign, items in (("+", self.added), ("~", self.changed), ("-", self.removed)):
                if key in items:
                    parts.append(f"{sign}{len(items[key])} {label}")
        return ", ".join(parts) or "no changes"

    def __str__(self) -> str:
        return self.summary()


def compare(old: Contents, new: Contents) -> StateDiff:
    """What it takes to get from ``old`` to ``new``."""
    added: dict[str, tuple[Fields, ...]] = {}
    removed: dict[str, tuple[Fields, ...]] = {}
    changed: dict[str, tuple[ItemChange, ...]] = {}
    twins: dict[str, tuple[int, ...]] = {}
    left: dict[str, tuple[int, ...]] = {}
    try:
        for key in LABELS:
            pairs, gone, come = _match(key, old[key], new[key])
            changes, same = _changes(key, pairs)
            if come:
                added[key] = tuple(come)
                twins[key] = tuple(same[whole_print(key, item)] for item in come)
            if gone:
                removed[key] = tuple(gone)
                texts = Counter(text_print(key, now) for _, now in pairs)
                left[key] = tuple(texts[text_print(key, item)] for item in gone)
            if changes:
                changed[key] = changes
    except RecursionError:
        raise LimitError("the states are nested deeper than Python's stack allows") from None
    return StateDiff(
        added=MappingProxyType(added),
        removed=MappingProxyType(removed),
        changed=MappingProxyType(changed),
        twins=MappingProxyType(twins),
        left=MappingProxyType(left),
    )


def _match(
    key: str, old: dict[Any, Fields], new: dict[Any, Fields]
) -> tuple[list[tuple[Fields, Fields]], list[Fields], list[Fields]]:
    """Pairs of the same item, the items that are gone, and those that came.

    The same is what has the same id; of the rest what is equal; of the rest what has the same text.
    """
    pairs = [(old[id], new[id]) for id in old if id in new]
    gone = [fields for id, fields in old.items() if id not in new]
    come = [fields for id, fields in new.items() if id not in old]
    if key in KINDS and key != CONTEXT:
        for print_of in (whole_print, text_print):
            found, gone, come = _by_print(key, gone, come, print_of)
            pairs += found
    return pairs, gone, come


def _by_print(
    key: str, gone: list[Fields], come: list[Fields], print_of: Print
) -> tuple[list[tuple[Fields, Fields]], list[Fields], list[Fields]]:
    waiting: dict[Any, list[Fields]] = {}
    for fields in reversed(come):
        waiting.setdefault(print_of(key, fields), []).append(fields)
    pairs, left = [], []
    for fields in gone:
        twins = waiting.get(print_of(key, fields))
        if twins:
            pairs.append((fields, twins.pop()))
        else:
            left.append(fields)
    taken = {id(now) for _, now in pairs}
    return pairs, left, [fields for fields in come if id(fields) not in taken]


def whole_print(key: str, fields: Fields) -> Any:
    return fingerprint(essence(key, fields))


def text_print(key: str, fields: Fields) -> Any:
    return fingerprint(fields.get(KINDS[key].text if key in KINDS else "value"))


def essence(key: str, fields: Fields) -> Fields:
    """What an item says, without its id and the times of noting. A time of an event counts as that event."""
    times = KINDS[key].times if key in KINDS else ()
    return {
        name: True if name in times else value
        for name, value in fields.items()
        if name not in _BOOKKEEPING and value is not None
    }


def _changes(key: str, pairs: list[tuple[Fields, Fields]]) -> tuple[tuple[ItemChange, ...], Counter[Any]]:
    """The pairs that differ, and of all others how many there are by what they say."""
    differing = []
    same: Counter[Any] = Counter()
    for was, now in pairs:
        fields = _differing_fields(essence(key, was), essence(key, now))
        if fields:
            differing.append((was, now, {name: (was.get(name), now.get(name)) for name in fields}))
        else:
            same[whole_print(key, now)] += 1
    changes = (
        ItemChange(old=was, new=now, fields=MappingProxyType(fields), twins=same[whole_print(key, was)])
        for was, now, fields in differing
    )
    return tuple(changes), same


def _differing_fields(before: Fields, after: Fields) -> list[str]:
    return [
        name
        for name in dict.fromkeys([*before, *after])
        if fingerprint(before.get(name)) != fingerprint(after.get(name))
    ]


def fingerprint(value: Any) -> Any:
    """A hashable that is equal for equal values, by type and content; the order of keys doesn't count."""
    if isinstance(value, Personal | Erased):
        return (Personal, fingerprint(value.value))
    if isinstance(value, Mapping):
        return (dict, frozenset((fingerprint(key), fingerprint(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), tuple(fingerprint(item) for item in value))
    if isinstance(value, set | frozenset):
        return (set, frozenset(fingerprint(item) for item in value))
    if isinstance(value, float):
        return (float, "nan" if math.isnan(value) else value)
    try:
        hash(value)
    except TypeError:
        return (type(value), repr(value))
    return (type(value), value)


# ── from any plain form to contents, and back ────────────────────────────────────────────────


def contents_of(payload: Any) -> Contents:
    """The items in a snapshot or document, each with its id. Payloads of older versions are migrated.

    Raises :class:`InvalidValueError` for what isn't one, :class:`SchemaVersionError` for one that is newer.
    """
    if not isinstance(payload, dict):
        raise InvalidValueError(f"a state is a WorkingState or its snapshot, not {type(payload).__name__}")
    payload = migrate(payload)
    contents: Contents = {key: _collection(key, payload.get(key)) for key in KINDS}
    contents[OTHER] = {
        key: {"key": key, "value": value}
        for key, value in payload.items()
        if key not in KINDS and key not in IDENTITY
    }
    return contents


def _collection(key: str, items: Any) -> dict[Any, Fields]:
    if items is None:
        return {}
    name = "key" if key == CONTEXT else "id"
    if isinstance(items, dict):
        found = {id: {name: id, **_checked(key, fields)} for id, fields in items.items()}
    elif isinstance(items, list):
        found = _listed(key, items)
    else:
        raise InvalidValueError(f"{key} is a {type(items).__name__}; heal the state first", path=key)
    return found


def _listed(key: str, items: Iterable[Any]) -> dict[Any, Fields]:
    found: dict[Any, Fields] = {}
    for place, item in enumerate(items):
        fields = _checked(key, item)
        id = fields.get("id")
        # An item of an older form may have none, and is then known by its content alone.
        found[id if isinstance(id, str) and id not in found else (place,)] = fields
    return found


def _checked(key: str, fields: Any) -> Fields:
    if not isinstance(fields, dict):
        raise InvalidValueError(
            f"{key} holds a {type(fields).__name__} instead of an item; heal the state first", path=key
        )
    return dict(fields)


def payload_of(contents: Contents, identity: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot with these contents; ``identity`` says of which state."""
    payload: dict[str, Any] = dict(identity)
    for key in KINDS:
        items = contents[key]
        if key == CONTEXT:
            payload[key] = {
                id: {n: v for n, v in fields.items() if n != "key"} for id, fields in items.items()
            }
        else:
            payload[key] = list(items.values())
    payload.update({key: fields["value"] for key, fields in contents[OTHER].items()})
    return payload


# ── bringing a difference into a state ───

State = TypeVar("State", bound=StateReads | dict[str, Any])

_STRICT: Final = "strict"


class StateDiffer:
    """Compares working states, given as :class:`WorkingState` or as the plain dict of ``snapshot()``.

    Items are the same if they have the same id, or else if they are equal in content.
    """

    @staticmethod
    def diff(old: StateReads | Mapping[str, Any], new: StateReads | Mapping[str, Any]) -> StateDiff:
        """What changed from ``old`` to ``new``. Neither is changed."""
        return compare(_contents(old), _contents(new))

    @staticmethod
    def merge(state: State, diff: StateDiff, *, resolve: str | None = None) -> State:
        """A copy of ``state`` with the changes of ``diff``, as far as they aren't there already.

        ``state`` is left alone: the copy of a :class:`WorkingState` is a new, unsaved one with an id of its
        own. (``state.apply(diff)`` makes the changes in the state itself.) Where ``state`` has been changed
        in another way at the same place, ``resolve`` says what stands: ``"ours"`` that of the state,
        ``"theirs"`` that of the diff; without it :class:`MergeConflictError` lists these places.
        """
        check_resolve(resolve)
        if not isinstance(state, StateReads):
            changed: State = _changed_copy(state, diff, resolve)
            return changed
        edits = edits_of(state, diff, resolve)
        copied: Any = _copied(state)
        if edits:
            copied._collections.apply(edits)
            copied._touched = True
        copy: State = copied
        return copy

    @staticmethod
    def patch(state: State, diff: StateDiff) -> State:
        """Make exactly the changes of ``diff`` in ``state``.

        A :class:`WorkingState` is changed in place, unsaved, and returned; of a plain dict, a changed copy is
        returned. Raises :class:`MergeConflictError`, and changes nothing, unless every item that the diff
        removes or changes is there as the diff knows it, and none that it adds.
        """
        if not isinstance(state, StateReads):
            changed: State = _changed_copy(state, diff, _STRICT)
            return changed
        edits = edits_of(state, diff, _STRICT)
        if edits:
            patch: Any = state
            patch._patch(edits)
        return state


def _contents(state: StateReads | Mapping[str, Any]) -> Contents:
    if isinstance(state, StateReads):
        return contents_of(state.snapshot())
    if isinstance(state, TrackedDict):
        return contents_of(state.plain())
    return contents_of(dict(state) if isinstance(state, Mapping) else state)


def edits_of(state: StateReads, diff: StateDiff, resolve: str | None) -> list[Edit]:
    """What :meth:`StateDiffer.merge` has to change in a state. Raises :class:`MergeConflictError`."""
    _, touched = _merged(state, diff, resolve)
    return [_edit(key, id, fields) for (key, id), fields in touched.items()]


def edits_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Edit]:
    """What makes one snapshot of a state of another one, item by item and by ids alone."""
    old, new = contents_of(dict(before)), contents_of(dict(after))
    edits: list[Edit] = []
    for key in LABELS:
        edits += [_edit(key, id, None) for id in old[key] if id not in new[key]]
        edits += [
            _edit(key, id, fields)
            for id, fields in new[key].items()
            if id not in old[key] or fingerprint(fields) != fingerprint(old[key][id])
        ]
    return edits


def _changed_copy(state: Any, diff: StateDiff, resolve: str | None) -> Any:
    contents, _ = _merged(state, diff, resolve)
    identity = {name: value for name, value in state.items() if name in IDENTITY}
    return payload_of(contents, identity)


def _copied(state: Any) -> Any:
    """A new, unsaved state with the same contents."""
    copy = state._another(new_name())
    document = {} if state._collections.blank else state._backing.root().plain()
    if state._is_owned:
        document = {key: value for key, value in document.items() if key in COLLECTIONS}
    copy._backing.root().update(document)
    copy._touched = bool(document)
    return copy


def _merged(
    state: Any, diff: StateDiff, resolve: str | None
) -> tuple[Contents, dict[tuple[str, Any], Fields | None]]:
    """The contents of a state with the changes of a diff in it, and what of them was changed."""
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
    return contents, touched


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
