"""The shape of a saved working state, and how older shapes become the present one.

Migrations only add: a field they don't know is kept as it is, so that data written by other versions and by
other programs come through whole.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from everthread.errors import InvalidValueError, LimitError, SchemaVersionError, UsageError

CURRENT_SCHEMA_VERSION: Final = 1

VERSION_FIELD: Final = "schema_version"

# The lists of a state, each with the field that holds the text of its items.
_LISTS: Final = {"todos": "content", "open_loops": "description", "intentions": "text", "constraints": "text"}
_TODO_DEFAULTS: Final = {"status": "pending", "priority": "medium"}
_CONTEXT_FIELDS: Final = frozenset(
    {"id", "key", "value", "metadata", "verify", "created_at", "updated_at", "verified_at"}
)
_CHOICES: Final = {
    "status": frozenset({"pending", "in_progress", "completed", "cancelled"}),
    "priority": frozenset({"low", "medium", "high", "critical"}),
}

#: By collection: names that other programs give to fields, and what these are called here.
OTHER_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "todos": {"timestamp": "created_at"},
    "context": {"timestamp": "created_at"},
    "open_loops": {"timestamp": "created_at"},
    "intentions": {"intention": "text", "timestamp": "created_at"},
    "constraints": {"timestamp": "created_at"},
}
#: A single intention, where other programs keep no list of them.
INTENTION: Final = "intention"


def migrate(payload: dict[str, Any], target_version: int = CURRENT_SCHEMA_VERSION) -> dict[str, Any]:
    """Return a copy of a saved state in the shape of ``target_version``; ``payload`` is left as it is.

    A payload without ``schema_version`` is of version 0. One that has the shape already comes back as an
    equal copy. What other programs write in the same place is understood as well: ``intention`` and
    ``timestamp`` for ``text`` and ``created_at``, one ``intention`` instead of a list, context items as a
    list, statuses and priorities in upper case.

    Raises :class:`SchemaVersionError` if the payload or the target is newer than this code,
    :class:`InvalidValueError` if the payload is no dict or a version no version, and :class:`UsageError` if
    the target is older than the payload: migrations only go forward.
    """
    if not isinstance(payload, dict):
        raise InvalidValueError(f"a saved state is a dict, not {type(payload).__name__}")
    found = _version(payload.get(VERSION_FIELD, 0), VERSION_FIELD)
    target = _version(target_version, "target_version")
    for version in (found, target):
        if version > CURRENT_SCHEMA_VERSION:
            raise SchemaVersionError(
                f"schema version {version} is newer than {CURRENT_SCHEMA_VERSION}, the newest known here; "
                "upgrade Everthread to read it",
                found=version,
                supported=CURRENT_SCHEMA_VERSION,
            )
    if target < found:
        raise UsageError(f"the state has schema version {found} already; it can't go back to {target}")
    try:
        state: dict[str, Any] = _copy(payload)
    except RecursionError:
        raise LimitError("the saved state is nested too deep, or contains itself") from None
    if target:
        _translate(state)
    for version in range(found, target):
        _MIGRATIONS[version](state)
        state[VERSION_FIELD] = version + 1
    return state


def _version(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        shown = "a negative one" if type(value) is int else f"a {type(value).__name__}"
        raise InvalidValueError(f"{name} must be a whole number from 0 on, not {shown}", path=name)
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _translate(state: dict[str, Any]) -> None:
    """Fields under the names of other programs get those that they have here. Nothing is overwritten."""
    if "intentions" not in state and isinstance(state.get(INTENTION), str | dict):
        state["intentions"] = [state.pop(INTENTION)]
    for collection, names in OTHER_NAMES.items():
        items: Any = state.get(collection)
        is_listed = isinstance(items, list)
        for item in items if is_listed else items.values() if isinstance(items, dict) else ():
            # A dictionary in the context may be a bare value of version 0, which is kept as it is.
            if isinstance(item, dict) and (collection != "context" or _is_item(item, is_listed)):
                _rename(item, names)
                if collection == "todos":
                    _lower(item)
    context = state.get("context")
    if isinstance(context, list) and context and all(_is_keyed(item) for item in context):
        state["context"] = {
            item["key"]: {name: value for name, value in item.items() if name != "key"} for item in context
        }


def _is_item(value: dict[str, Any], is_listed: bool) -> bool:
    """Whether something in the context is an item of it."""
    return "value" in value and (is_listed or _CONTEXT_FIELDS.issuperset(value.keys() - {"timestamp"}))


def _is_keyed(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("key"), str) and "value" in item


def _rename(item: dict[str, Any], names: Mapping[str, str]) -> None:
    for other, name in names.items():
        if other in item and name not in item:
            value = item.pop(other)
            item[name] = time_text(value) if name == "created_at" else value


def _lower(todo: dict[str, Any]) -> None:
    for name, choices in _CHOICES.items():
        value = todo.get(name)
        if isinstance(value, str) and value not in choices and value.lower() in choices:
            todo[name] = value.lower()


def time_text(value: Any) -> Any:
    """A time in seconds since 1970 as text in ISO 8601; anything else as it is."""
    if type(value) in (int, float) and math.isfinite(value):
        try:
            return dt.datetime.fromtimestamp(value, dt.UTC).isoformat(timespec="microseconds")
        except (ValueError, OverflowError, OSError):
            pass
    return value


def _from_0_to_1(state: dict[str, Any]) -> None:
    """Version 0 had no version, might lack collections, and kept bare texts and bare context values."""
    for name, text_field in _LISTS.items():
        items = state.setdefault(name, [])
        # Anything but a list is left for validation to report: guessing could lose it.
        if isinstance(items, list):
            items[:] = [{text_field: item} if isinstance(item, str) else item for item in items]
    for todo in state["todos"] if isinstance(state["todos"], list) else ():
        if isinstance(todo, dict):
            for field, default in _TODO_DEFAULTS.items():
                todo.setdefault(field, default)
    context = state.setdefault("context", {})
    if context == []:
        state["context"] = {}
    if isinstance(context, dict):
        state["context"] = {key: _context_item(value) for key, value in context.items()}


def _context_item(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and "value" in value and _CONTEXT_FIELDS.issuperset(value):
        return value
    return {"value": value}


#: Position n holds the step from version n to n + 1. Append only: stored states of every version exist.
_MIGRATIONS: Final[tuple[Callable[[dict[str, Any]], None], ...]] = (_from_0_to_1,)
