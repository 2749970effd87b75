"""LangChain messages as dictionaries that a person can read and a diff can compare, and back.

In a log they are items as ``everthread.messages`` has them, of the shape ``langchain``, so that a thread can
be read in the shape of any other provider. Only the message classes of ``langchain_core`` itself, and only by
exact type: the table below is closed. They are built from what was taken out of a message that had been
validated, so they aren't validated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

from everthread.messages.shapes import LANGCHAIN, enclose


class _Shape(NamedTuple):
    cls: type[BaseMessage]
    #: Fields whose default is a plain value, and those whose default is made anew each time.
    plain: dict[str, Any]
    made: dict[str, Callable[[], Any]]
    fields: frozenset[str]
    #: All fields in the order of the class, those without a plain default with ``None``.
    blank: dict[str, Any]
    required: tuple[str, ...]


Fresh = tuple[tuple[str, Callable[[], Any]], ...]
#: The class of a message, the fields that all copies share, those that are made anew each time, the names of
#: those that were given, and what has to be unpacked each time. Without a class, just that.
Mould = tuple[type[BaseMessage] | None, dict[str, Any], Fresh, set[str], Any]


def _shape(cls: type[BaseMessage]) -> _Shape:
    plain, made = {}, {}
    for name, field in cls.model_fields.items():
        if field.default_factory is not None:
            made[name] = field.default_factory
        elif not field.is_required():
            plain[name] = field.default
    blank = {name: plain.get(name) for name in cls.model_fields}
    required = tuple(name for name in blank if name not in plain and name not in made)
    return _Shape(cls, plain, made, frozenset(blank), blank, required)  # type: ignore[arg-type]


_CLASSES = (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
_SHAPES: Final[dict[type[BaseMessage], _Shape]] = {cls: _shape(cls) for cls in _CLASSES}
_BY_TYPE = {shape.plain["type"]: shape for shape in _SHAPES.values()}
_FRESH: Final[dict[type[BaseMessage], Fresh]] = {
    cls: tuple(shape.made.items()) for cls, shape in _SHAPES.items()
}
_NONE_GIVEN: Final[set[str]] = set()
#: What a message and its mould take besides what they hold.
_OBJECTS_BYTES: Final = 1_500
_encode: Final = msgspec.msgpack.Encoder().encode

# A model's own way to set these would check and note every one of them.
_new: Final = object.__new__
_put_dict: Final = BaseModel.__dict__["__dict__"].__set__
_put_fields_set: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_put_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_put_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__


def is_message(value: Any) -> bool:
    """Whether it can be taken apart here. One whose type was changed is none of its class any more."""
    shape = _SHAPES.get(type(value))
    return shape is not None and value.__dict__.get("type") == shape.plain["type"]


def take_apart(message: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """The type of a message and those of its fields that differ from their defaults, each packed."""
    shape = _SHAPES[type(message)]
    plain, made = shape.plain, shape.made
    data: dict[str, Any] = {}
    held = message.__dict__
    # In the order of the class: a message that was put together again is stored byte for byte as before.
    for name in shape.cls.model_fields:
        if name not in held:
            continue
        value = held[name]
        if name in plain:
            if not _same(value, plain[name]):
                data[name] = value if type(value) is str and value.isascii() else pack(value)
        elif value or type(value) is not made.get(name):
            data[name] = pack(value)
    if message.__pydantic_extra__:
        data.update({name: pack(value) for name, value in message.__pydantic_extra__.items()})
    return {"type": plain["type"], "data": data}


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def mould(stored: dict[str, Any]) -> Mould | None:
    """What messages like the one that :func:`take_apart` made this of are cast from; ``None`` if it is of a
    type that isn't known."""
    shape = _BY_TYPE.get(stored["type"])
    if shape is None:
        return None
    held = shape.blank.copy()
    fields, made = shape.fields, shape.made
    rest = []
    data = stored["data"]
    for name, value in data.items():
        if type(value) is str and name in fields and name not in made:
            held[name] = value
        else:
            rest.append((name, value))
    for name in shape.required:
        if name not in data:
            del held[name]
    fresh, given = _FRESH[shape.cls], set(data)
    if rest:
        fresh = tuple([each for each in fresh if each[0] not in data])
    return shape.cls, held, fresh, given, rest


def cast(moulds: Iterable[Mould], unpack: Callable[[Any], Any]) -> list[Any]:
    """A new object from each of these, which shares nothing with it that can be changed."""
    # Run for every message of a thread whenever it is read: no call that can be spared.
    made: list[Any] = []
    for cls, shared, fresh, given, rest in moulds:
        if cls is None:
            made.append(unpack(rest))
            continue
        message = _new(cls)
        _put_dict(message, held := shared.copy())
        _put_fields_set(message, given.copy())
        extra: dict[str, Any] = {}
        _put_extra(message, extra)
        _put_private(message, None)
        for name, make in fresh:
            held[name] = make()
        if rest:
            fields = _SHAPES[cls].fields
            for name, value in rest:
                (held if name in fields else extra)[name] = unpack(value)
        made.append(message)
    return made


def weight(moulds: Iterable[Mould]) -> int:
    """About how many bytes of memory these take, together with one object that is cast from each."""
    total = 0
    for _, shared, _, _, rest in moulds:
        total += _OBJECTS_BYTES
        content = shared.get("content")
        if type(content) is str:
            total += len(content)
        if rest:
            try:
                total += 2 * len(_encode(rest))
            except (TypeError, ValueError):
                # Of a type that only the codec knows: small, as a rule.
                continue
    return total


def as_is(stored: Any) -> Mould:
    """The mould of what isn't a message: it is unpacked each time."""
    return None, {}, (), _NONE_GIVEN, stored


def as_item(message: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """A message as an item of a log."""
    return enclose(take_apart(message, pack), LANGCHAIN)


def is_item(stored: Any) -> bool:
    """Whether an item of a log is a message, as :func:`as_item` makes them."""
    return type(stored) is dict and stored.get("shape") == LANGCHAIN and "message" in stored
