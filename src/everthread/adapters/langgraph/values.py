"""Values of a graph as Everthread keeps them: plain data as it is, messages as dictionaries, anything else as
LangGraph's own serializer makes it.

With LangGraph's own serializer everything that is plain stays readable and is compared part by part. With any
other one, such as ``EncryptedSerializer``, every value and all metadata go through it, whole: what it hides
stays hidden.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from everthread.adapters.langgraph.messages import (
    Mould,
    as_is,
    as_item,
    cast,
    is_item,
    is_message,
    mould,
    take_apart,
)
from everthread.codec.types import register
from everthread.errors import InvalidStateError
from everthread.model.values import Corrupt, Erased, Opaque, Personal

#: From so many items on the cyclic collector is kept still while they are made.
_LARGE: Final = 256
#: Deeper values go to the serializer as a whole: the codec's own bound lies higher.
_DEPTH_MAX: Final = 48

_KEPT: Final = frozenset({type(None), bool, int, bytes, Personal, Erased, Opaque, Corrupt})


class Serialized(msgspec.Struct, frozen=True):
    """What a serializer of LangGraph made of a value: its type and its bytes."""

    kind: str
    data: bytes


class StoredMessage(msgspec.Struct, frozen=True):
    """A message amid other values. As an item of a log it is a plain dictionary instead."""

    fields: dict[str, Any]


register(
    Serialized,
    tag="langgraph.serialized",
    to_data=lambda value: [value.kind, value.data],
    from_data=lambda data: Serialized(data[0], data[1]),
)
register(
    StoredMessage,
    tag="langchain.message",
    to_data=lambda value: value.fields,
    from_data=StoredMessage,
)


class Values:
    """Packs values for the store and unpacks them again."""

    def __init__(self, serde: Any) -> None:
        self._serde = serde
        #: Whether plain data may be stored as such. A subclass may do something else with them.
        self.readable = type(serde) is JsonPlusSerializer
        #: Whether a personal value was met: such ones must not be remembered, somebody may erase them.
        self.personal = False

    def pack(self, value: Any) -> Any:
        """A value as it is stored in a document."""
        return self._pack(value, 0) if self.readable else self._serialize(value)

    def unpack(self, stored: Any) -> Any:
        """The value that :meth:`pack` was given."""
        kind = type(stored)
        if kind is str or stored is None or kind is int or kind is float or kind is bool:
            return stored
        if kind is dict:
            return {key: self.unpack(value) for key, value in stored.items()}
        if kind is list:
            return [self.unpack(value) for value in stored]
        if kind is tuple:
            return tuple([self.unpack(value) for value in stored])
        if kind is Serialized:
            return self._serde.loads_typed((stored.kind, stored.data))
        if kind is StoredMessage:
            return cast((self._mould(stored.fields),), self.unpack)[0]
        if kind is Personal:
            self.personal = True
        return stored

    def pack_item(self, item: Any) -> Any:
        """An item of a list as it is stored in a log."""
        if not self.readable:
            return self._serialize(item)
        if is_message(item):
            return as_item(item, self.pack)
        if is_item(item):
            # Looks like one of our messages and isn't.
            return self._serialize(item)
        return self._pack(item, 0)

    def unpack_items(self, stored: list[Any]) -> list[Any]:
        """The items that :meth:`pack_item` was given."""
        return self.cast(self.moulds(stored))

    def moulds(self, stored: Iterable[Any]) -> list[Mould]:
        """What any number of copies of stored items can be made from, quickly. They share nothing with it."""
        return [self._mould(item["message"]) if is_item(item) else as_is(item) for item in stored]

    def cast(self, moulds: list[Mould]) -> list[Any]:
        """One new object from each of them: the items that :meth:`pack_item` was given."""
        # Making many objects sets off the cyclic collector again and again, for nothing.
        quiet = len(moulds) >= _LARGE and gc.isenabled()
        if quiet:
            gc.disable()
        try:
            return cast(moulds, self.unpack)
        finally:
            if quiet:
                gc.enable()

    def pack_fields(self, fields: dict[str, Any]) -> Any:
        """Metadata, or what a checkpoint says of itself: a dictionary with text keys."""
        if self.readable and all(type(name) is str and _is_text(name) for name in fields):
            return {name: self._pack(value, 1) for name, value in fields.items()}
        return self._serialize(fields)

    def unpack_fields(self, stored: Any) -> dict[str, Any]:
        return dict(self.unpack(stored)) if stored is not None else {}

    def _pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() or _is_text(value) else self._serialize(value)
        if kind in _KEPT:
            if kind is Personal:
                self.personal = True
            return value
        if kind is float:
            return value if math.isfinite(value) else self._serialize(value)
        if depth < _DEPTH_MAX:
            if kind is list:
                return [self._pack(item, depth + 1) for item in value]
            if kind is dict and all(type(key) is str and _is_text(key) for key in value):
                return {key: self._pack(item, depth + 1) for key, item in value.items()}
            if kind is tuple:
                return tuple([self._pack(item, depth + 1) for item in value])
            if is_message(value):
                return StoredMessage(take_apart(value, lambda part: self._pack(part, depth + 1)))
        return self._serialize(value)

    def _serialize(self, value: Any) -> Serialized:
        kind, data = self._serde.dumps_typed(value)
        return Serialized(kind, bytes(data))

    def _mould(self, fields: dict[str, Any]) -> Mould:
        found = mould(fields)
        if found is None:
            raise InvalidStateError(
                f"the store holds a message of the type {fields['type']!r}, which this version doesn't know: "
                "upgrade everthread"
            )
        return found


def _is_text(value: str) -> bool:
    """Whether it is valid Unicode; the codec refuses lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
