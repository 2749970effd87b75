"""Working states from payloads that may be damaged, cut or hostile: what is wrong, and what is sound."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

from everthread.arguments import check_name, counted, format_path
from everthread.codec.scalars import DUMPERS
from everthread.codec.schema import (
    CURRENT_SCHEMA_VERSION,
    INTENTION,
    OTHER_NAMES,
    VERSION_FIELD,
    migrate,
    time_text,
)
from everthread.codec.types import shape_of
from everthread.codec.values import lower
from everthread.errors import (
    EverthreadError,
    InvalidNameError,
    SchemaVersionError,
    StateCorruptedError,
    StateNotFoundError,
)
from everthread.threads.document import TrackedDict, TrackedList
from everthread.values import Erased, Opaque, Personal, Tagged
from everthread.working.config import Config
from everthread.working.document import new_item_id
from everthread.working.home import PREFIX, is_named, new_name
from everthread.working.items import (
    APPLIED_FIELD,
    CONTEXT,
    IDENTITY,
    INTENTIONS,
    KINDS,
    Kind,
    Priority,
    TodoStatus,
    read_time,
)
from everthread.working.migrations import Migration, migrated
from everthread.working.reads import StateReads

if TYPE_CHECKING:
    from everthread.working.aio.state import AsyncWorkingState
    from everthread.working.sync.state import WorkingState

# ── values: what of them can be stored ──────────────────────────────────────────────────────────────


#: Nothing of the value could be kept.
LOST: Final = object()
_BASES: Final = (str, int, float, dict, list, bytes, tuple, set, frozenset)
_EXACT: Final = frozenset(_BASES)

#: Of one value, and of all of a payload, in bytes as they are stored, roughly: so that it fits one commit.
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
PAYLOAD_BYTES_MAX: Final = 48 * 1024 * 1024
_NODE_BYTES: Final = 2
#: Of one value, in values within it.
NODES_MAX: Final = 500_000
#: Of a part that occurs again: a few objects could otherwise stand for more values than any disk holds.
_REPEAT_NODES_MAX: Final = 1_000
#: Levels inside one value; some of the document's 100 are above it.
_DEPTH_MAX: Final = 90
#: An integer of 4,300 digits, the most that is stored, has fewer bits.
_INT_BITS_MAX: Final = 14_284
#: Losses that are told one by one; the others are counted.
REPORTED_MAX: Final = 1_000

Path = tuple[Any, ...]


class Loss(msgspec.Struct, frozen=True):
    """Something that couldn't be kept: where it was, and why not."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class ValueFilter:
    """Copies values, leaving out what can't be stored.

    Runs no code of the values' own classes but that of registered ones, and ends on values that contain
    themselves.
    """

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self.lost_count = 0
        self.warnings: list[str] = []
        self._left = PAYLOAD_BYTES_MAX
        self._bytes = self._nodes = 0
        #: The containers that the present one is in.
        self._above: set[int] = set()
        #: Containers seen, by identity and the levels left below them, what was kept, and what that took.
        self._seen: dict[tuple[int, int], tuple[Any, Any, int, int]] = {}

    def lose(self, path: Path, reason: str) -> Any:
        """Note a loss; gives LOST."""
        self.lost_count += 1
        if len(self.losses) < REPORTED_MAX:
            self.losses.append(Loss(where(path), reason))
        return LOST

    def warn(self, path: Path, reason: str) -> None:
        if len(self.warnings) < REPORTED_MAX:
            self.warnings.append(f"{where(path)}: {reason}")

    def keep(self, value: Any, path: Path) -> Any:
        """A copy of what is sound in ``value``, or LOST."""
        try:
            return self._keep(value, path, _DEPTH_MAX)
        finally:
            self._left -= self._bytes
            self._bytes = self._nodes = 0
            self._above.clear()

    def _keep(self, value: Any, path: Path, depth: int) -> Any:
        if value is None or value is True or value is False:
            return self._room(value, 0, path)
        base = _base(type(value))
        if base is str:
            return self._text(str.__str__(value), path)
        if base is int:
            number = int.__int__(value)
            if number.bit_length() > _INT_BITS_MAX:
                return self.lose(path, "an integer of more than 4,300 digits")
            return self._room(number, number.bit_length() // 8, path)
        if base is float:
            return self._room(float.__float__(value), 7, path)
        if base is bytes:
            return self._room(bytes(memoryview(value)), len(memoryview(value)), path)
        if base is None:
            return self._other(value, path)
        return self._container(base, value, path, depth)

    def _container(self, base: Any, value: Any, path: Path, depth: int) -> Any:
        """A dict, list, tuple or set; each is gone through once, in how many places it may be."""
        if id(value) in self._above:
            return self.lose(path, "contains itself")
        if not depth:
            return self.lose(path, f"nested deeper than {_DEPTH_MAX} levels")
        seen = self._seen.get((id(value), depth))
        if seen is not None:
            _, kept, size, nodes = seen
            if nodes > _REPEAT_NODES_MAX or self._nodes + nodes > NODES_MAX:
                return self.lose(path, "the same large part once more")
            if kept is not LOST:
                kept = self._room(kept, size, path)
                self._nodes += nodes
            return kept
        before = self._bytes, self._nodes
        self._above.add(id(value))
        try:
            walk = self._dict if base is dict else self._sequence
            kept = self._room(walk(base, value, path, depth - 1), 0, path)
        finally:
            self._above.discard(id(value))
        self._seen[id(value), depth] = (value, kept, self._bytes - before[0], self._nodes - before[1])
        return kept

    def key(self, key: Any, path: Path) -> Any:
        """A key of a mapping as it can be stored, or LOST."""
        kind = type(key)
        if key is None or kind is bool or kind is bytes or (kind is int and key.bit_length() < 64):
            return key
        if kind is float and key == key:
            return key
        if _base(kind) is str:
            return self._text(str.__str__(key), path)
        return self.lose(path, f"has a {kind_of(key)} as a key")

    def entries(self, mapping: Any) -> list[tuple[Any, Any]]:
        """The entries of a dict or of an instance of a subclass, past whatever that overrides."""
        return list(dict.items(mapping))

    def _dict(self, base: Any, value: Any, path: Path, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, item in dict.items(value):
            at = self.key(key, path)
            if at is not LOST:
                kept = self._keep(item, (*path, at), depth)
                if kept is not LOST:
                    found[at] = kept
        return found

    def _sequence(self, base: Any, value: Any, path: Path, depth: int) -> Any:
        items = []
        for place, item in enumerate(base.__iter__(value)):
            kept = self._keep(item, (*path, place), depth)
            if kept is not LOST:
                items.append(kept)
        try:
            return base(items)
        except TypeError:
            return self.lose(path, "its elements can't be elements of a set")

    def _text(self, text: str, path: Path) -> Any:
        if text.isascii():
            return self._room(text, len(text), path)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return self.lose(path, "text that isn't valid Unicode")
        return self._room(text, size, path)

    def _room(self, value: Any, size: int, path: Path) -> Any:
        """``value`` if there is room for that many more bytes, else LOST."""
        size += _NODE_BYTES
        if self._bytes + size > VALUE_BYTES_MAX or self._nodes >= NODES_MAX:
            return self.lose(path, "beyond what one value may hold")
        if self._bytes + size > self._left:
            return self.lose(path, "beyond what a state may hold")
        self._bytes += size
        self._nodes += 1
        return value

    def _other(self, value: Any, path: Path) -> Any:
        """A value of another type: as it is, if the codec has a place for it."""
        kind = type(value)
        try:
            if kind is Personal:
                # One that was read from a store was stored there; another one will have to be.
                fits = value.sealed is not None or lower(value.value) is not LOST
            elif kind is TrackedDict or kind is TrackedList:
                return self._keep(value.plain(), path, _DEPTH_MAX)
            else:
                fits = kind is Erased or kind is Opaque or kind in DUMPERS or shape_of(kind) is not None
            if fits:
                lowered = None if kind is Personal else lower(value)
                return self._room(value, len(lowered.data) if type(lowered) is Tagged else 0, path)
        except EverthreadError as error:
            return self.lose(path, str(error).partition(": ")[2] or str(error))
        except Exception:
            # What a registered class does is its own affair; here it only means that the value is lost.
            return self.lose(path, f"a {kind_of(value)} that can't be read")
        return self.lose(path, f"a {kind_of(value)} can't be stored")


def is_a(value: Any, base: type) -> bool:
    """Whether a value's class derives from ``base``. Unlike isinstance() it asks nobody: values may lie."""
    kind = type(value)
    return kind is base or any(each is base for each in type.__dict__["__mro__"].__get__(kind))


def _base(kind: Any) -> Any:
    """The built-in type that ``kind`` is or derives from, unless it is registered as a type of its own."""
    # A class of another metaclass may have a say in being hashed or compared; these may not.
    if type(kind) is type:
        if kind in _EXACT:
            return kind
        if shape_of(kind) is not None:
            return None
    line = type.__dict__["__mro__"].__get__(kind)
    for base in _BASES:
        if any(each is base for each in line):
            return base
    return bytes if any(each is bytearray for each in line) else None


def kind_of(value: Any) -> str:
    """The name of a value's class, without asking the value or its class."""
    return str(type.__dict__["__name__"].__get__(type(value)))[:80]


def where(path: Path) -> str:
    return format_path(path)


_STATUSES: Final = frozenset(each.value for each in TodoStatus)
_PRIORITIES: Final = frozenset(each.value for each in Priority)
#: Fields with few possible values, and which one is taken where it is none of them.
_CHOICES: Final = MappingProxyType({"status": (_STATUSES, "pending"), "priority": (_PRIORITIES, "medium")})
_TIMES: Final = ("created_at", "updated_at")
_CONTEXT_FIELDS: Final = frozenset({"id", "key", "value", "metadata", "verify", *_TIMES, "verified_at"})


class Repaired(msgspec.Struct, frozen=True):
    """What was sound, as a document holds it; and what was found on the way."""

    collections: dict[str, dict[str, dict[str, Any]]]
    other: dict[Any, Any]
    values: ValueFilter
    source_id: str | None
    #: How many of a program's own migrations have been applied; ``None`` if the payload doesn't say.
    applied: int | None = None


def repair(payload: Any, ids: Callable[[], str]) -> Repaired:
    """Keep every part of a payload that is sound. Raises nothing, whatever the payload is."""
    return _Repairer(ids).run(payload)


class _Repairer:
    def __init__(self, ids: Callable[[], str]) -> None:
        self._ids = ids
        self._filter = ValueFilter()
        #: The context items of a list, by identity: each is an item, whatever else is in it.
        self._listed: set[int] = set()

    def run(self, payload: Any) -> Repaired:
        fields = self._mapping(payload)
        version = self._version(fields)
        single = fields.get(INTENTION)
        if INTENTIONS.key not in fields and (is_a(single, str) or is_a(single, dict)):
            fields[INTENTIONS.key] = [fields.pop(INTENTION)]
        collections = {
            key: self._collection(kind, fields.get(key, LOST), version) for key, kind in KINDS.items()
        }
        other: dict[Any, Any] = {}
        for key, value in fields.items():
            if key not in KINDS and key not in IDENTITY:
                kept = self._guarded((key,), self._filter.keep, value, (key,))
                if kept is not LOST:
                    other[key] = kept
        source = fields.get("id")
        return Repaired(
            collections,
            other,
            self._filter,
            source if type(source) is str else None,
            self._applied(fields.get(APPLIED_FIELD)),
        )

    def _applied(self, found: Any) -> int | None:
        if found is None or (type(found) is int and found >= 0):
            return found
        self._filter.lose((APPLIED_FIELD,), "is no number, so that no migration counts as applied")
        return None

    def _guarded(self, path: Path, fn: Callable[..., Any], *args: Any) -> Any:
        """What ``fn`` gives, or LOST if it fails in a way that nobody thought of."""
        try:
            return fn(*args)
        except RecursionError:
            return self._filter.lose(path, "nested deeper than the rest of Python's stack allows")
        except Exception as error:
            return self._filter.lose(path, f"can't be read ({kind_of(error)})")

    # ── the payload as a whole ───────────────────────────────────────────────────────────────

    def _mapping(self, payload: Any) -> dict[Any, Any]:
        """The payload's fields, under keys that can be stored."""
        plain = self._guarded((), self._plain, payload)
        found: dict[Any, Any] = {}
        if plain is LOST:
            return found
        for key, value in self._filter.entries(plain):
            at = self._filter.key(key, ())
            if at is not LOST:
                found[at] = value
        return found

    def _plain(self, payload: Any) -> Any:
        kind = type(payload)
        if kind is str or kind is bytes or kind is bytearray:
            payload = json.loads(payload)
        elif kind is TrackedDict:
            payload = payload.plain()
        elif kind is MappingProxyType:
            payload = dict(payload)
        if is_a(payload, dict):
            return payload
        return self._filter.lose((), f"a saved state is a dict, not a {kind_of(payload)}")

    def _version(self, fields: dict[Any, Any]) -> int:
        found = fields.get(VERSION_FIELD, LOST)
        path = (VERSION_FIELD,)
        if found is LOST:
            if fields:
                self._filter.warn(path, "is missing, so that it is taken as a state of version 0")
            return 0
        if type(found) is not int or found < 0:
            self._filter.lose(path, "is no version, so that the state is taken as one of version 0")
            return 0
        if found > CURRENT_SCHEMA_VERSION:
            shown = found if found < 10**9 else "a huge one"
            self._filter.lose(path, f"{shown} is newer than {CURRENT_SCHEMA_VERSION}, the newest known here")
        return found

    # ── collections ──────────────────────────────────────────────────────────────────────────

    def _collection(self, kind: Kind[Any], items: Any, version: int) -> dict[str, dict[str, Any]]:
        path: Path = (kind.key,)
        if items is LOST:
            if version:
                self._filter.warn(path, "is missing")
            return {}
        entries = self._guarded(path, self._entries, kind, items)
        found: dict[str, dict[str, Any]] = {}
        if entries is LOST:
            return found
        for place, item in entries:
            self._guarded((kind.key, place), self._take, kind, place, item, version, found)
        return found

    def _entries(self, kind: Kind[Any], items: Any) -> Any:
        if is_a(items, dict):
            keyed = [
                (self._filter.key(key, (kind.key,)), value) for key, value in self._filter.entries(items)
            ]
            return [entry for entry in keyed if entry[0] is not LOST]
        if is_a(items, list):
            listed = list(enumerate(list.__iter__(items)))
            return listed if kind.key != CONTEXT else self._keyed(listed)
        wanted = "a dict" if kind.key == CONTEXT else "a list"
        return self._filter.lose((kind.key,), f"is a {kind_of(items)}, not {wanted}")

    def _keyed(self, listed: list[tuple[int, Any]]) -> list[tuple[Any, Any]]:
        """Context items that are a list, each with its key in it. Of several with one key the last stands."""
        found: dict[Any, Any] = {}
        for place, item in listed:
            path = (CONTEXT, place)
            key = dict.get(item, "key", LOST) if is_a(item, dict) else LOST
            if not is_a(key, str) or not any(name == "value" for name, _ in self._filter.entries(item)):
                self._filter.lose(path, "is no context item: a key and a value")
                continue
            at = self._filter.key(key, path)
            if at in found:
                self._filter.warn(path, f"stands in the place of an earlier item with the key {at!r}")
            if at is not LOST:
                found[at] = item
                self._listed.add(id(item))
        return list(found.items())

    def _take(
        self, kind: Kind[Any], place: Any, item: Any, version: int, found: dict[str, dict[str, Any]]
    ) -> None:
        """Add one item to those found, or note why not."""
        path = (kind.key, place)
        fields = self._fields(kind, item, path, version)
        if fields is LOST or self._without_text(kind, fields, path):
            return
        kept: dict[str, Any] = {}
        for name, value in fields.items():
            sound = self._field(kind, name, value, (*path, name))
            if sound is not LOST:
                kept[name] = sound
        if kind.text not in kept:
            # Only now found to hold nothing that can be stored; that was noted there.
            return
        id = self._id(kind, place, kept, found, path)
        if id is not LOST:
            kept.pop("key" if kind.key == CONTEXT else "id", None)
            found[id] = kept

    def _fields(self, kind: Kind[Any], item: Any, path: Path, version: int) -> Any:
        """An item's fields by name; texts and values without any fields are of version 0."""
        if is_a(item, dict):
            names = [name for name, _ in self._filter.entries(item)]
            if kind.key != CONTEXT or id(item) in self._listed or _is_context_item(names):
                return self._translated(kind, self._named(item, path))
        elif kind.key != CONTEXT and not is_a(item, str):
            return self._filter.lose(path, f"is a {kind_of(item)}, not {kind.one}")
        if version:
            self._filter.warn(path, f"is {kind.one} in the form of version 0")
        return {kind.text: item}

    def _named(self, item: Any, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in self._filter.entries(item):
            at = self._filter.key(name, path)
            if type(at) is str:
                fields[at] = value
            elif at is not LOST:
                self._filter.lose(path, f"has a field whose name is a {kind_of(name)}")
        return fields

    def _translated(self, kind: Kind[Any], fields: dict[str, Any]) -> dict[str, Any]:
        """The fields under the names that they have here."""
        for other, name in OTHER_NAMES.get(kind.key, {}).items():
            if other in fields and name not in fields:
                value = fields.pop(other)
                fields[name] = time_text(value) if name in _TIMES else value
        return fields

    def _without_text(self, kind: Kind[Any], fields: dict[Any, Any], path: Path) -> bool:
        text = fields.get(kind.text, LOST)
        if kind.key == CONTEXT or any(is_a(text, each) for each in (Personal, Erased, Opaque)):
            return False
        if is_a(text, str) and str.strip(text):
            return False
        reason = "nothing" if text is LOST else f"a {kind_of(text)}" if type(text) is not str else "no text"
        self._filter.lose(path, f"has {reason} as its {kind.text}")
        return True

    def _field(self, kind: Kind[Any], name: str, value: Any, path: Path) -> Any:
        if name in _TIMES or name in kind.times:
            return self._time(value, path)
        if name in _CHOICES and kind.key == "todos":
            choices, default = _CHOICES[name]
            if type(value) is str and value.lower() in choices:
                return value.lower()
            self._filter.lose(path, f"is none of {', '.join(sorted(choices))}; taken as {default}")
            return default
        mapping = name in ("metadata", "verify") and kind.key == CONTEXT
        if mapping and value is not None and not is_a(value, dict):
            return self._filter.lose(path, f"is a {kind_of(value)}, not a dict")
        return self._filter.keep(value, path)

    def _time(self, value: Any, path: Path) -> Any:
        if value is None:
            return LOST if path[-1] in _TIMES else None
        if is_a(value, str) or is_a(value, dt.datetime):
            try:
                moment = read_time(str.__str__(value) if is_a(value, str) else value)
                assert moment is not None
                return value if type(value) is str else moment.isoformat(timespec="microseconds")
            except (ValueError, OverflowError):
                pass
        return self._filter.lose(path, "is no time in ISO 8601")

    def _id(
        self, kind: Kind[Any], place: Any, kept: dict[str, Any], found: dict[str, Any], path: Path
    ) -> Any:
        """What the item is called; items that could be had twice or have no legal id get a new one."""
        if kind.key == CONTEXT:
            try:
                return check_name(place, "key")
            except InvalidNameError as error:
                return self._filter.lose(path, str(error))
        id = kept.get("id", place if type(place) is str else None)
        try:
            check_name(id, "id")
        except InvalidNameError:
            id = None
        if id is None or id in found:
            self._filter.warn(path, "gets a new id: it has none that is its own")
            id = self._ids()
            while id in found:
                id = self._ids()
        return id


def _is_context_item(names: list[Any]) -> bool:
    """Whether a dict with these keys is a context item rather than a value; as :func:`migrate` sees it."""
    plain = {name for name in names if type(name) is str}
    return "value" in plain and (
        (len(plain) == len(names) and plain - OTHER_NAMES[CONTEXT].keys() <= _CONTEXT_FIELDS)
        or bool(plain & {*_TIMES})
    )


# ── for callers ───


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a payload is a working state, and what is wrong with it. True if it is valid.

    ``errors``: parts that are lost or altered when the state is recovered. ``warnings``: what is tolerated
    and complete.
    """

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.errors

    def __bool__(self) -> bool:
        return self.valid


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery kept and what not. ``lost`` tells of the first thousand losses, ``lost_count`` of all.

    ``source_id`` is the id that the payload says it is of; the recovered state has one of its own.
    """

    lost: tuple[Loss, ...] = ()
    lost_count: int = 0
    warnings: tuple[str, ...] = ()
    kept: Mapping[str, int] = MappingProxyType({})
    source_id: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing was lost."""
        return not self.lost_count

    def __str__(self) -> str:
        named = ((name.replace("_", " "), count) for name, count in self.kept.items() if count)
        kept = ", ".join(counted(count, name.removesuffix("s"), name) for name, count in named)
        lines = [f"kept {kept or 'nothing'}; {counted(self.lost_count, 'loss', 'losses')}"]
        lines += [f"  lost {loss}" for loss in self.lost]
        return "\n".join(lines)


Made = TypeVar("Made", bound="WorkingState | AsyncWorkingState")


class SelfHealer:
    """Looks at payloads that may be damaged, cut or hostile: :meth:`validate` and :meth:`recover` raise for
    none of them."""

    @staticmethod
    def validate(payload: Any) -> Validation:
        """What is wrong with a snapshot, a document, or a payload of an older version. Changes nothing."""
        values = _repaired(payload).values
        errors = [str(loss) for loss in values.losses]
        if values.lost_count > REPORTED_MAX:
            errors.append(f"and {values.lost_count - REPORTED_MAX:,} more")
        return Validation(errors=tuple(errors), warnings=tuple(values.warnings))

    @staticmethod
    def migrate(
        payload: dict[str, Any],
        target_version: int = CURRENT_SCHEMA_VERSION,
        *,
        migrations: Sequence[Migration] = (),
    ) -> dict[str, Any]:
        """A copy of a saved state in the shape of ``target_version``, then after ``migrations`` of your own.

        As :func:`everthread.codec.migrate`, and raises what that raises.
        """
        found = migrate(payload, target_version)
        return migrated(found, migrations) if migrations else found

    @overload
    @staticmethod
    def recover(payload: Any, config: Config | None = None, *, store: Any = None) -> WorkingState: ...
    @overload
    @staticmethod
    def recover(
        payload: Any, config: Config | None = None, *, store: Any = None, kind: type[Made]
    ) -> Made: ...
    @staticmethod
    def recover(
        payload: Any, config: Config | None = None, *, store: Any = None, kind: type[Any] | None = None
    ) -> Any:
        """A new, unsaved state with every part of ``payload`` that is sound.

        ``state.recovery``, a :class:`RecoveryReport`, says what was lost. The payload is left as it is, and
        nothing is written until the state is saved, under an id of its own. ``config`` and ``store`` say
        where that will be. ``kind=AsyncWorkingState`` makes one for async callers.
        """
        if kind is None:
            from everthread.working.sync.state import WorkingState

            kind = WorkingState
        state = kind(config, store=store)
        state.recovery = _fill(state, _repaired(payload))
        return state


def _repaired(payload: Any, ids: Callable[[], str] = new_item_id) -> Repaired:
    if is_a(payload, StateReads):
        try:
            payload = payload.snapshot()
        except EverthreadError as error:
            values = ValueFilter()
            values.lose((), f"the state can't be read: {error}")
            return Repaired({}, {}, values, None)
    return repair(payload, ids)


def _fill(state: Any, repaired: Repaired) -> RecoveryReport:
    values = repaired.values
    edits: list[tuple[Any, Any, Any]] = [(None, key, value) for key, value in repaired.other.items()]
    for name, items in repaired.collections.items():
        edits += [(name, id, fields) for id, fields in items.items()]
    kept: dict[str, int] = {}
    root = state._backing.root()
    for name, id, value in edits:
        try:
            if name is None:
                root[id] = value
            else:
                root.setdefault(name, {})[id] = value
        except EverthreadError as error:
            values.lose((id,) if name is None else (name, id), str(error))
            continue
        label = "other" if name is None else name
        kept[label] = kept.get(label, 0) + 1
    if kept:
        root[VERSION_FIELD] = CURRENT_SCHEMA_VERSION
        # A state that doesn't say so has been through none of them.
        if repaired.applied is not None or state._config.migrations:
            root[APPLIED_FIELD] = repaired.applied or 0
        state._touched = True
        try:
            state._migrate()
        except EverthreadError as error:
            values.lose((), str(error))
    return RecoveryReport(
        lost=tuple(values.losses),
        lost_count=values.lost_count,
        warnings=tuple(values.warnings),
        kept=MappingProxyType(kept),
        source_id=repaired.source_id,
    )


# ── a state in a file ───────────────────────────────────────────────────────────────────────────────


class SavedFile(msgspec.Struct, frozen=True):
    """A working state as somebody else wrote it into a file, and the id that it has there."""

    path: str
    payload: Any
    id: str

    @property
    def name(self) -> str:
        """The name of the thread for it."""
        return PREFIX + self.id

    def belonging(self, config: Config) -> Config:
        """The config, with the session that the state says it belongs to unless it names one."""
        session = self.payload.get("session_id") if type(self.payload) is dict else None
        if config.session_id is not None or session is None:
            return config
        try:
            return replace(config, session_id=check_name(session, "session id"))
        except InvalidNameError:
            return config


def read_file(path: str) -> SavedFile:
    """The state in a file. Raises :class:`StateNotFoundError` or :class:`StateCorruptedError`."""
    try:
        with open(path, encoding="utf-8", errors="surrogatepass") as file:
            payload = json.load(file)
    except OSError as error:
        raise StateNotFoundError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StateCorruptedError(f"{path} isn't JSON: {error}", where=path) from error
    said = payload.get("id") if type(payload) is dict else None
    for id in (said, os.path.splitext(os.path.basename(path))[0]):
        if isinstance(id, str) and not is_named(PREFIX + id):
            return SavedFile(path, payload, id)
    return SavedFile(path, payload, new_name().removeprefix(PREFIX))


def fill_whole(state: Any, saved: SavedFile) -> None:
    """Put the contents of a file into a state. Raises unless all of it can be put there."""
    version = saved.payload.get(VERSION_FIELD) if type(saved.payload) is dict else None
    if type(version) is int and version > CURRENT_SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{saved.path} has schema version {version}, and {CURRENT_SCHEMA_VERSION} is the newest known "
            "here; upgrade Everthread to open it",
            found=version,
            supported=CURRENT_SCHEMA_VERSION,
        )
    report = _fill(state, _repaired(saved.payload))
    if not report.complete:
        raise StateCorruptedError(
            f"{saved.path} can't be read whole: "
            + "; ".join(str(loss) for loss in report.lost[:5])
            + ("; …" if report.lost_count > 5 else "")
            + ". SelfHealer.recover() makes a state of what is sound in it",
            where=saved.path,
        )
    state._touched = True
