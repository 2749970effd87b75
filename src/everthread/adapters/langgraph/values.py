"""Values of a graph as Everthread keeps them: plain data as it is, messages as dictionaries, anything else as
LangGraph's own serializer makes it.

With LangGraph's own serializer everything that is plain stays readable and is compared part by part. With any
other one, such as ``EncryptedSerializer``, every value and all metadata go through it, whole: what it hides
stays hidden. With a subject every value is a personal one of that person, and missing once they are erased.
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
from everthread.values import Corrupt, Erased, Opaque, Personal

#: From so many items on the cyclic collector is kept still while they are made.
_LARGE: Final = 256
#: Deeper values go to the serializer as a whole: the codec's own bound lies higher.
_DEPTH_MAX: Final = 48

#: The only key of a dictionary that stands for a value that was sealed as a whole.
SEALED: Final = "langgraph.sealed"

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


class Kept(msgspec.Struct, frozen=True):
    """A sealed value that is stored again as it is."""

    stored: Any


class Values:
    """Packs values for the store and unpacks them again.

    ``subject``: whose they are. ``keep``: sealed ones aren't opened but handed on as :class:`Kept`.
    """

    def __init__(self, serde: Any, subject: str | None = None, *, keep: bool = False) -> None:
        self._serde = serde
        self._subject = subject
        self._keep = keep
        #: Whether plain data may be encoded as such. A subclass may do something else with them.
        self._plain = type(serde) is JsonPlusSerializer
        #: Whether they are stored like that, so that equal values are equal bytes.
        self.readable = self._plain and subject is None
        #: Whether messages show their ids.
        self.identified = self._plain
        #: Whether a personal value was met: such ones must not be remembered, somebody may erase them.
        self.personal = False

    def pack(self, value: Any) -> Any:
        """A value as it is stored in a document."""
        if type(value) is Kept:
            return value.stored
        packed = self._pack(value, 0) if self._plain else self._serialize(value)
        return packed if self._subject is None else {SEALED: self._seal(packed)}

    def _seal(self, packed: Any) -> Personal:
        assert self._subject is not None
        self.personal = True
        return Personal(self._subject, packed)

    def unpack(self, stored: Any) -> Any:
        """The value that :meth:`pack` was given."""
        kind = type(stored)
        if kind is str or stored is None or kind is int or kind is float or kind is bool:
            return stored
        if kind is dict:
            if len(stored) == 1 and SEALED in stored:
                return self._opened(stored)
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

    def _opened(self, stored: dict[str, Any]) -> Any:
        """What was sealed as a whole; an :class:`Erased` if it was erased."""
        self.personal = True
        held = stored[SEALED]
        if not isinstance(held, Personal):
            return held
        return Kept(stored) if self._keep else self.unpack(held.value)

    def pack_item(self, item: Any) -> Any:
        """An item of a list as it is stored in a log."""
        if type(item) is Kept:
            return item.stored
        if not self._plain:
            return self.pack(item)
        if is_message(item):
            made = as_item(item, self._pack_part)
            if self._subject is not None:
                # Everybody may see that there is a message, and under which id.
                made["message"] = self._seal(made["message"])
            return made
        if is_item(item):
            # Looks like one of our messages and isn't.
            packed = self._serialize(item)
            return packed if self._subject is None else {SEALED: self._seal(packed)}
        return self.pack(item)

    def _pack_part(self, value: Any) -> Any:
        return self._pack(value, 0)

    def unpack_items(self, stored: list[Any]) -> list[Any]:
        """The items that :meth:`pack_item` was given."""
        return self.cast(self.moulds(stored))

    def moulds(self, stored: Iterable[Any]) -> list[Mould]:
        """What any number of copies of stored items can be made from, quickly. They share nothing with it."""
        made: list[Mould] = []
        for item in stored:
            if not is_item(item):
                if not is_erased(item):
                    made.append(as_is(item))
            elif type(item["message"]) is dict:
                made.append(self._mould(item["message"]))
            elif not isinstance(item["message"], Erased):
                made.append(self._sealed_mould(item))
        return made

    def _sealed_mould(self, item: dict[str, Any]) -> Mould:
        self.personal = True
        message = item["message"]
        if self._keep or not isinstance(message, Personal):
            return as_is(Kept(item))
        return self._mould(message.value)

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
        if self._plain and all(type(name) is str and _is_text(name) for name in fields):
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
            if (
                kind is dict
                and SEALED not in value
                and all(type(key) is str and _is_text(key) for key in value)
            ):
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


def is_erased(stored: Any) -> bool:
    """Whether it was sealed here as a whole, and has been erased since."""
    if type(stored) is not dict:
        return False
    held = stored.get(SEALED) if len(stored) == 1 else stored.get("message") if is_item(stored) else None
    return isinstance(held, Erased)


def _is_text(value: str) -> bool:
    """Whether it is valid Unicode; the codec refuses lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
