"""The state of an object: the dictionary that ``state_dict()`` gives, its stored form, and its migrations.

Both forms mark the state of an object by its ``"__class__"``. A dictionary of the caller's that has such a
key of its own is wrapped when it is stored, so that it comes back as what it was.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, MutableSequence
from typing import Any, Final, TypeVar, overload

from everthread.arguments import check_name
from everthread.errors import InvalidStateError, InvalidValueError, SchemaVersionError, StateCorruptedError

VERSION: Final = "__version__"
CLASS: Final = "__class__"
FIRST_VERSION: Final = "1.0"

#: What a caller's dictionary is wrapped in: an object without a class, with the dictionary in this field.
_WRAPPED: Final = "dict"

#: Values that can't change and hold nothing: they are shared rather than copied.
ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


class ObjectState(dict[str, Any]):
    """The state of one object: its fields, and ``__version__`` and ``__class__``.

    A dictionary in every respect. Its type alone tells it from a caller's dictionary with the same keys.
    """

    __slots__ = ()


def to_stored(value: Any) -> Any:
    """``value`` in the form that is stored: containers that are plain, and states told from dictionaries."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is ObjectState:
        return {name: to_stored(item) for name, item in value.items()}
    if kind is list or (isinstance(value, MutableSequence) and not isinstance(value, bytearray)):
        return [item if type(item) in ATOMS else to_stored(item) for item in value]
    if kind is dict or isinstance(value, Mapping):
        plain = {key: item if type(item) in ATOMS else to_stored(item) for key, item in value.items()}
        return {CLASS: None, _WRAPPED: plain} if CLASS in plain else plain
    if kind is tuple:
        return tuple(to_stored(item) for item in value)
    return value


def from_stored(value: Any) -> Any:
    """What :func:`to_stored` was given. Raises :class:`StateCorruptedError` for what it can't have made."""
    kind = type(value)
    if kind is list:
        return [item if type(item) in ATOMS else from_stored(item) for item in value]
    if kind is tuple:
        return tuple(from_stored(item) for item in value)
    if kind is not dict:
        return value
    if CLASS not in value:
        return {key: item if type(item) in ATOMS else from_stored(item) for key, item in value.items()}
    if value[CLASS] is None and type(value.get(_WRAPPED)) is dict and len(value) == 2:
        return {key: from_stored(item) for key, item in value[_WRAPPED].items()}
    if type(value[CLASS]) is not str or not all(type(name) is str for name in value):
        raise StateCorruptedError("a checkpoint holds the state of an object that has no class")
    return ObjectState({name: from_stored(item) for name, item in value.items()})


# ── migrations ──────────────────────────────────────────────────────────────────────────────────────


Migration = Callable[[dict[str, Any]], dict[str, Any]]
M = TypeVar("M", bound=Migration)

#: Class name → from_version → what brings such a state a step forward.
_migrations: dict[str, dict[str, Migration]] = {}

_PART = re.compile(r"\d+|[^\d.]+")


@overload
def register_migration(class_name: str | type, from_version: str, fn: M) -> M: ...
@overload
def register_migration(class_name: str | type, from_version: str, fn: None = None) -> Callable[[M], M]: ...
def register_migration(class_name: str | type, from_version: str, fn: Any = None) -> Any:
    """Let ``fn`` bring states of ``class_name`` that were saved at ``from_version`` a step forward.

    ``fn`` gets the state as a dictionary of its own and returns the newer one. It may set ``"__version__"``
    to the version it leads to; otherwise that is the next version with a migration, or the current one.
    It may also set ``"__class__"``, which is how a class is renamed. Without ``fn`` this is a decorator.
    A second registration for the same class and version replaces the first. Returns ``fn``.
    """
    if fn is None:
        return lambda decorated: register_migration(class_name, from_version, decorated)
    if not callable(fn):
        raise InvalidValueError("a migration is a function from a state to a newer one")
    name = class_name.__name__ if isinstance(class_name, type) else check_name(class_name, "class_name")
    _migrations.setdefault(name, {})[str(from_version)] = fn
    return fn


def upgrade(state: Mapping[str, Any], class_name: str, current: str) -> Mapping[str, Any]:
    """``state`` at the version ``current``: itself if it is there already, else a migrated copy.

    A state that doesn't say so is of the class ``class_name`` and of the first version. Raises
    :class:`SchemaVersionError` if the state is newer, or older and no migration leads on, which is also so if
    it is older than every migration: none was written for such a state. Raises
    :class:`InvalidStateError` for a migration that leads nowhere. ``state`` itself is never changed.
    """
    version = _version(state)
    if version == current:
        return state
    moving = ObjectState(copy.deepcopy(dict(state)))
    written_for = _migrations.get(str(moving.get(CLASS, class_name)), ())
    too_old = all(_order(version) < _order(step) for step in written_for)
    while version != current:
        name = str(moving.get(CLASS, class_name))
        if _order(version) >= _order(current):
            raise SchemaVersionError(
                f"this state of {name} has version {version}, the class here is at {current}: "
                "load it with the newer code",
                found=version,
                supported=current,
            )
        steps = sorted(
            (step for step in _migrations.get(name, ()) if _order(version) <= _order(step) < _order(current)),
            key=_order,
        )
        if too_old or not steps:
            raise SchemaVersionError(
                f"no migration leads from version {version} of {name} to {current}; "
                f"add one: register_migration({name!r}, from_version={version!r}, fn=…)",
                found=version,
                supported=current,
            )
        after = steps[1] if len(steps) > 1 else current
        moving = _step(moving, name, version, steps[0], after)
        version = _version(moving)
    return moving


def _step(state: ObjectState, name: str, version: str, source: str, after: str) -> ObjectState:
    """One migration. Versions only ever rise, so that a chain can't go in circles."""
    try:
        moved = _migrations[name][source](state)
    except BaseException as error:
        error.add_note(f"while migrating a state of {name} from version {source}")
        raise
    if not isinstance(moved, Mapping):
        raise InvalidStateError(
            f"the migration of {name} from {source} must return the state, not {type(moved).__name__}"
        )
    newer = ObjectState(moved)
    reached = _version(newer) if VERSION in newer else version
    if reached in (version, source):
        newer[VERSION] = after
    elif _order(reached) <= _order(source):
        raise InvalidStateError(
            f"the migration of {name} from {source} leads back to {reached}; it must lead forward"
        )
    return newer


def _version(state: Mapping[str, Any]) -> str:
    return str(state.get(VERSION, FIRST_VERSION))


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts 1.9 before 1.10. Numbers compare by length, then digit by digit: they may have any size."""
    parts = _PART.findall(version)
    return tuple(
        (1, len(part.lstrip("0")), part.lstrip("0")) if part.isdigit() else (0, 0, part) for part in parts
    )
