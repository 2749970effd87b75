"""Getting a working state out of whatever a payload is."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import msgspec

from everthread.arguments import check_name
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import InvalidNameError
from everthread.threads.document import TrackedDict
from everthread.values import Erased, Opaque, Personal
from everthread.working.items import Priority, TodoStatus
from everthread.working.layout import CONTEXT, IDENTITY, KINDS, Kind, read_time
from everthread.working.sound import LOST, Path, Sieve, is_a, kind_of

_STATUSES: Final = frozenset(each.value for each in TodoStatus)
_PRIORITIES: Final = frozenset(each.value for each in Priority)
#: Fields with few possible values, and which one is taken where it is none of them.
_CHOICES: Final = MappingProxyType({"status": (_STATUSES, "pending"), "priority": (_PRIORITIES, "medium")})
_TIMES: Final = ("created_at", "updated_at")
_CONTEXT_FIELDS: Final = frozenset({"id", "key", "value", "metadata", "verify", *_TIMES, "verified_at"})


class Healed(msgspec.Struct, frozen=True):
    """What was sound, as a document holds it; and what was found on the way."""

    collections: dict[str, dict[str, dict[str, Any]]]
    other: dict[Any, Any]
    sieve: Sieve
    source_id: str | None


def heal(payload: Any, ids: Callable[[], str]) -> Healed:
    """Keep every part of a payload that is sound. Raises nothing, whatever the payload is."""
    return _Healer(ids).run(payload)


class _Healer:
    def __init__(self, ids: Callable[[], str]) -> None:
        self._ids = ids
        self._sieve = Sieve()

    def run(self, payload: Any) -> Healed:
        fields = self._mapping(payload)
        version = self._version(fields)
        collections = {
            key: self._collection(kind, fields.get(key, LOST), version) for key, kind in KINDS.items()
        }
        other: dict[Any, Any] = {}
        for key, value in fields.items():
            if key not in KINDS and key not in IDENTITY:
                kept = self._guarded((key,), self._sieve.keep, value, (key,))
                if kept is not LOST:
                    other[key] = kept
        source = fields.get("id")
        return Healed(collections, other, self._sieve, source if type(source) is str else None)

    def _guarded(self, path: Path, fn: Callable[..., Any], *args: Any) -> Any:
        """What ``fn`` gives, or LOST if it fails in a way that nobody thought of."""
        try:
            return fn(*args)
        except RecursionError:
            return self._sieve.lose(path, "nested deeper than the rest of Python's stack allows")
        except Exception as error:
            return self._sieve.lose(path, f"can't be read ({kind_of(error)})")

    # ── the payload as a whole ───────────────────────────────────────────────────────────────

    def _mapping(self, payload: Any) -> dict[Any, Any]:
        """The payload's fields, under keys that can be stored."""
        plain = self._guarded((), self._plain, payload)
        found: dict[Any, Any] = {}
        if plain is LOST:
            return found
        for key, value in self._sieve.entries(plain):
            at = self._sieve.key(key, ())
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
        return self._sieve.lose((), f"a saved state is a dict, not a {kind_of(payload)}")

    def _version(self, fields: dict[Any, Any]) -> int:
        found = fields.get(VERSION_FIELD, LOST)
        path = (VERSION_FIELD,)
        if found is LOST:
            if fields:
                self._sieve.warn(path, "is missing, so that it is taken as a state of version 0")
            return 0
        if type(found) is not int or found < 0:
            self._sieve.lose(path, "is no version, so that the state is taken as one of version 0")
            return 0
        if found > CURRENT_SCHEMA_VERSION:
            shown = found if found < 10**9 else "a huge one"
            self._sieve.lose(path, f"{shown} is newer than {CURRENT_SCHEMA_VERSION}, the newest known here")
        return found

    # ── collections ──────────────────────────────────────────────────────────────────────────

    def _collection(self, kind: Kind[Any], items: Any, version: int) -> dict[str, dict[str, Any]]:
        path: Path = (kind.key,)
        if items is LOST:
            if version:
                self._sieve.warn(path, "is missing")
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
            keyed = [(self._sieve.key(key, (kind.key,)), value) for key, value in self._sieve.entries(items)]
            return [entry for entry in keyed if entry[0] is not LOST]
        if is_a(items, list) and kind.key != CONTEXT:
            return list(enumerate(list.__iter__(items)))
        wanted = "a dict" if kind.key == CONTEXT else "a list"
        return self._sieve.lose((kind.key,), f"is a {kind_of(items)}, not {wanted}")

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
            names = [name for name, _ in self._sieve.entries(item)]
            if kind.key != CONTEXT or _is_context_item(names):
                return self._named(item, path)
        elif kind.key != CONTEXT and not is_a(item, str):
            return self._sieve.lose(path, f"is a {kind_of(item)}, not {kind.one}")
        if version:
            self._sieve.warn(path, f"is {kind.one} in the form of version 0")
        return {kind.text: item}

    def _named(self, item: Any, path: Path) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in self._sieve.entries(item):
            at = self._sieve.key(name, path)
            if type(at) is str:
                fields[at] = value
            elif at is not LOST:
                self._sieve.lose(path, f"has a field whose name is a {kind_of(name)}")
        return fields

    def _without_text(self, kind: Kind[Any], fields: dict[Any, Any], path: Path) -> bool:
        text = fields.get(kind.text, LOST)
        if kind.key == CONTEXT or any(is_a(text, each) for each in (Personal, Erased, Opaque)):
            return False
        if is_a(text, str) and str.strip(text):
            return False
        reason = "nothing" if text is LOST else f"a {kind_of(text)}" if type(text) is not str else "no text"
        self._sieve.lose(path, f"has {reason} as its {kind.text}")
        return True

    def _field(self, kind: Kind[Any], name: str, value: Any, path: Path) -> Any:
        if name in _TIMES or name in kind.times:
            return self._time(value, path)
        if name in _CHOICES and kind.key == "todos":
            choices, default = _CHOICES[name]
            if type(value) is str and value in choices:
                return value
            self._sieve.lose(path, f"is none of {', '.join(sorted(choices))}; taken as {default}")
            return default
        mapping = name in ("metadata", "verify") and kind.key == CONTEXT
        if mapping and value is not None and not is_a(value, dict):
            return self._sieve.lose(path, f"is a {kind_of(value)}, not a dict")
        return self._sieve.keep(value, path)

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
        return self._sieve.lose(path, "is no time in ISO 8601")

    def _id(
        self, kind: Kind[Any], place: Any, kept: dict[str, Any], found: dict[str, Any], path: Path
    ) -> Any:
        """What the item is called; items that could be had twice or have no legal id get a new one."""
        if kind.key == CONTEXT:
            try:
                return check_name(place, "key")
            except InvalidNameError as error:
                return self._sieve.lose(path, str(error))
        id = kept.get("id", place if type(place) is str else None)
        try:
            check_name(id, "id")
        except InvalidNameError:
            id = None
        if id is None or id in found:
            self._sieve.warn(path, "gets a new id: it has none that is its own")
            id = self._ids()
            while id in found:
                id = self._ids()
        return id


def _is_context_item(names: list[Any]) -> bool:
    """Whether a dict with these keys is a context item rather than a value; as :func:`migrate` sees it."""
    plain = {name for name in names if type(name) is str}
    return "value" in plain and (
        (len(plain) == len(names) and plain <= _CONTEXT_FIELDS) or bool(plain & {*_TIMES})
    )
