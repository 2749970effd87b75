"""The state of an object: the dictionary that ``state_dict()`` gives, and the form in which it is stored.

Both mark the state of an object by its ``"__class__"``. A dictionary of the caller's that has such a key of
its own is wrapped when it is stored, so that it comes back as what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from typing import Any, Final

from everthread.errors import StateCorruptedError

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
