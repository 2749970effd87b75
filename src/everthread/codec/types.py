"""The closed table of type codes, and the classes registered to join it.

Codes and layouts are a promise about bytes on disk: a code is never reused, a layout never changes. Reading
goes by code and by registered tag alone; a name found in the data never leads to an import, to a lookup in a
module or to a class that nobody registered in this process.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from everthread.arguments import check_name
from everthread.errors import InvalidValueError
from everthread.values import Corrupt, Erased, Opaque, Personal, Tagged

EXTRA_ATTRIBUTE: Final = "__everthread_extra__"

C = TypeVar("C", bound=type)


class Code(enum.IntEnum):
    """Type codes on disk. "Packed" means: encoded as MessagePack."""

    BIGINT = 1  # two's complement, big-endian, for integers outside -2**63..2**64-1
    TUPLE = 2  # packed array
    SET = 3  # packed array, elements in the order of their encoded bytes
    FROZENSET = 4  # as SET
    DATETIME = 5  # packed [µs since 0001-01-01T00:00 on its own clock, fold, *zone]
    DATE = 6  # packed proleptic Gregorian ordinal
    TIME = 7  # packed [µs since midnight, fold, *zone]
    TIMEDELTA = 8  # packed [days, seconds, µs]
    DECIMAL = 9  # its text, ASCII
    UUID = 10  # 16 bytes
    SURROGATE_TEXT = 11  # UTF-8, lone surrogates encoded as if they were characters
    OBJECT = 20  # packed [tag, data] of a registered class
    SEALED = 30  # reference to a personal value, made and read by whoever holds the keys
    ERASED = 31  # empty: an erased value whose reference isn't known
    CORRUPT = 32  # why a value was lost, UTF-8

    # *zone is empty for a naive value, [offset µs] for a fixed offset, [offset µs, name] for a fixed offset
    # with a name of its own, [offset µs or nil, key, true] for a zone of the time zone database.


class Shape(NamedTuple):
    """How instances of one registered class become data and come back."""

    cls: type
    tag: str
    to_data: Callable[[Any], Any]
    from_data: Callable[[Any], Any]


# Types whose form is settled for ever.
_CLOSED: Final = frozenset(
    {type(None), bool, int, float, str, bytes, bytearray, memoryview, list, dict, tuple, set, frozenset}
    | {dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID}
    | {Tagged, Opaque, Personal, Erased, Corrupt}
)

_by_class: dict[type, Shape] = {}
_by_tag: dict[str, Shape] = {}

shape_of = _by_class.get
shape_for_tag = _by_tag.get


@overload
def register(
    cls: C,
    *,
    tag: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> C: ...


@overload
def register(
    cls: None = None,
    *,
    tag: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> Callable[[C], C]: ...


def register(
    cls: Any = None,
    *,
    tag: str | None = None,
    to_data: Callable[[Any], Any] | None = None,
    from_data: Callable[[Any], Any] | None = None,
) -> Any:
    """Let instances of exactly ``cls`` be stored and come back; usable as a decorator. Returns ``cls``.

    Dataclasses, enums, named tuples, pydantic models, msgspec structs and attrs classes need nothing more.
    For any other class, ``to_data`` turns an instance into data that can be stored and ``from_data`` builds
    an instance from it; both together replace the built-in support as well.

    ``tag`` is written to disk and must stay the same for ever; it is the class's name unless given. A class
    registered under a second tag is written under that one and read under both, which is how to rename.
    A class of the same module and qualified name replaces its earlier self, as after a reload.

    Raises :class:`InvalidValueError` if another class holds the tag or the class needs both functions,
    :class:`InvalidNameError` if the tag isn't a legal name.
    """
    if cls is None:
        return lambda decorated: register(decorated, tag=tag, to_data=to_data, from_data=from_data)
    if not isinstance(cls, type):
        raise InvalidValueError(f"register takes a class, not {type(cls).__name__}")
    if (to_data is None) != (from_data is None):
        raise InvalidValueError(f"to register {cls.__name__}, give both to_data and from_data, or neither")
    if cls in _CLOSED:
        raise InvalidValueError(f"{cls.__name__} has a form of its own and can't be registered")
    name = check_name(cls.__name__ if tag is None else tag, "type tag")
    holder = _by_tag.get(name)
    if holder is not None and _qualified(holder.cls) != _qualified(cls):
        raise InvalidValueError(
            f"the type tag {name!r} belongs to {_qualified(holder.cls)}; "
            f"give {_qualified(cls)} one of its own with register(…, tag=…)"
        )
    if to_data is None or from_data is None:
        to_data, from_data = _built_in(cls)
    shape = Shape(cls, name, to_data, from_data)
    _by_class[cls] = shape
    _by_tag[name] = shape
    return cls


def _qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _built_in(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if issubclass(cls, enum.Flag):
        return _flag(cls)
    if issubclass(cls, enum.Enum):
        return _enum(cls)
    if hasattr(cls, "__dataclass_fields__"):
        # Loaded already by whoever made the class, but slow to load for everyone else.
        import dataclasses

        return _fields(cls, ((f.name, f.name if f.init else None) for f in dataclasses.fields(cls)))
    if hasattr(cls, "model_dump") and hasattr(cls, "model_validate") and hasattr(cls, "model_fields"):
        return _pydantic(cls)
    if issubclass(cls, msgspec.Struct):
        return _fields(cls, ((name, name) for name in cls.__struct_fields__))
    if hasattr(cls, "__attrs_attrs__"):
        return _fields(cls, ((a.name, _attrs_argument(a) if a.init else None) for a in cls.__attrs_attrs__))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _fields(cls, ((name, name) for name in cls._fields))
    raise InvalidValueError(
        f"{_qualified(cls)} is no dataclass, enum, named tuple, pydantic model, msgspec struct or attrs "
        "class; give register() both to_data and from_data"
    )


def _enum(cls: type[enum.Enum]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    # By name: values from auto() shift when a member is added in between.
    return (lambda member: member.name), (lambda name: cls[name])


def _flag(cls: type[enum.Flag]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    # By value: a combination of members has no name.
    def from_data(value: Any) -> enum.Flag:
        if type(value) is not int:
            raise TypeError("a flag is stored as an integer")
        return cls(value)

    return (lambda member: member.value), from_data


def _fields(
    cls: Any, fields: Iterable[tuple[str, str | None]]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """``fields`` pairs each attribute with its constructor argument, ``None`` where it has none."""
    arguments = dict(fields)

    def to_data(value: Any) -> dict[str, Any]:
        data = {name: getattr(value, name) for name in arguments if hasattr(value, name)}
        return _with_extra(value, data)

    def from_data(data: Any) -> Any:
        known: dict[str, Any] = {}
        late: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, item in _named(data):
            if name not in arguments:
                extra[name] = item
            elif (argument := arguments[name]) is None:
                late[name] = item
            else:
                known[argument] = item
        value = cls(**known)
        for name, item in late.items():
            object.__setattr__(value, name, item)
        return _attach_extra(value, extra)

    return to_data, from_data


def _attrs_argument(attribute: Any) -> str:
    return getattr(attribute, "alias", None) or str(attribute.name).lstrip("_")


def _pydantic(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if getattr(cls, "__pydantic_root_model__", False):
        return (lambda value: value.model_dump(round_trip=True)), cls.model_validate
    allows_extra = getattr(cls, "model_config", {}).get("extra") == "allow"

    def to_data(value: Any) -> dict[str, Any]:
        # round_trip leaves out computed fields, which the model would refuse when read.
        return _with_extra(value, value.model_dump(round_trip=True))

    def from_data(data: Any) -> Any:
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, item in _named(data):
            field = cls.model_fields.get(name)
            if field is not None:
                known[_validation_name(field) or name] = item
            elif allows_extra:
                known[name] = item
            else:
                extra[name] = item
        return _attach_extra(cls.model_validate(known), extra)

    return to_data, from_data


def _validation_name(field: Any) -> str | None:
    """The first name under which a pydantic field can be given, where it isn't the field's own."""
    alias = field.validation_alias or field.alias
    for choice in getattr(alias, "choices", (alias,)):
        if isinstance(choice, str):
            return choice
    return None


def _named(data: Any) -> Iterable[tuple[str, Any]]:
    if type(data) is not dict or not all(type(name) is str for name in data):
        raise TypeError("the fields of an object are stored by name")
    return data.items()


def _with_extra(value: Any, data: dict[str, Any]) -> dict[str, Any]:
    extra = getattr(value, EXTRA_ATTRIBUTE, None)
    return {**extra, **data} if extra else data


def _attach_extra(value: Any, extra: dict[str, Any]) -> Any:
    """Keep fields that this version of the class doesn't know, so that storing it again loses nothing.

    Raises where the instance has no room for them; the caller then keeps the whole value as it is stored.
    """
    if extra:
        object.__setattr__(value, EXTRA_ATTRIBUTE, extra)
    return value
