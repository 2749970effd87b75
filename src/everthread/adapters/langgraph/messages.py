"""LangChain messages as dictionaries that a person can read and a diff can compare, and back.

In a log they are items as ``everthread.messages`` has them, of the shape ``langchain``, so that a thread can
be read in the shape of any other provider. Only the message classes of ``langchain_core`` itself, and only by
exact type: the table below is closed. They are built from what was taken out of a message that had been
validated, so they aren't validated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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

from everthread.messages.shapes import LANGCHAIN, enclose


class _Shape(NamedTuple):
    cls: type[BaseMessage]
    #: Fields whose default is a plain value, and those whose default is made anew each time.
    plain: dict[str, Any]
    made: dict[str, Callable[[], Any]]
    fields: frozenset[str]


def _shape(cls: type[BaseMessage]) -> _Shape:
    plain, made = {}, {}
    for name, field in cls.model_fields.items():
        if field.default_factory is not None:
            made[name] = field.default_factory
        elif not field.is_required():
            plain[name] = field.default
    return _Shape(cls, plain, made, frozenset(cls.model_fields))  # type: ignore[arg-type]


_CLASSES = (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
_SHAPES = {cls: _shape(cls) for cls in _CLASSES}
_BY_TYPE = {shape.plain["type"]: shape for shape in _SHAPES.values()}


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


def put_together(stored: dict[str, Any], unpack: Callable[[Any], Any]) -> Any:
    """The message that :func:`take_apart` made this of; ``None`` if it is of a type that isn't known."""
    shape = _BY_TYPE.get(stored["type"])
    if shape is None:
        return None
    # Built for every message of a thread whenever it is read: no call that can be spared.
    held = shape.plain.copy()
    extra: dict[str, Any] = {}
    known = shape.fields
    for name, value in stored["data"].items():
        if name in known:
            held[name] = value if type(value) is str else unpack(value)
        else:
            extra[name] = unpack(value)
    for name, make in shape.made.items():
        if name not in held:
            held[name] = make()
    cls = shape.cls
    message = cls.__new__(cls)
    put = object.__setattr__
    put(message, "__dict__", held)
    put(message, "__pydantic_fields_set__", set(known))
    put(message, "__pydantic_extra__", extra)
    put(message, "__pydantic_private__", None)
    return message


def as_item(message: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """A message as an item of a log."""
    return enclose(take_apart(message, pack), LANGCHAIN)


def is_item(stored: Any) -> bool:
    """Whether an item of a log is a message, as :func:`as_item` makes them."""
    return type(stored) is dict and stored.get("shape") == LANGCHAIN and "message" in stored
