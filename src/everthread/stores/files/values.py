"""Encoded values that a store knows nothing of, as JSON where that gives back their bytes."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.stores.files.escaping import base64_bytes, base64_text, escape, unescape


class Value(Struct, frozen=True, omit_defaults=True):
    """What was given: as a value, as text, or its bytes in base64."""

    json: Any = UNSET
    text: str | None = None
    base64: str | None = None


def write_value(data: bytes) -> Value:
    """A form from which the very same bytes come back."""
    try:
        found = Value(json=escape(decode(data)))
        if read_value(found) == data:
            return found
    except (EverthreadError, RecursionError):
        pass
    if data.isascii() and data.decode("ascii").isprintable():
        return Value(text=data.decode("ascii"))
    return Value(base64=base64_text(data))


def read_value(value: Value) -> bytes:
    """The inverse of :func:`write_value`. Raises :class:`StateCorruptedError`."""
    try:
        if value.json is not UNSET:
            return encode_stored(unescape(value.json))
        if value.text is not None:
            return value.text.encode("ascii")
        return base64_bytes(value.base64 or "")
    except (EverthreadError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateCorruptedError("a value can't be read") from error
