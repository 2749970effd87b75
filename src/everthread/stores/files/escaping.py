"""Lowered trees as JSON, and back, without losing a bit.

What JSON has is written as it is. Everything else is an object with one key that begins with a dollar sign:

    {"$bytes": "aGk="}   {"$float": "nan"}   {"$tuple": [1, 2]}   {"$map": [[1, "a"], [2, "b"]]}   …

A dictionary of the caller may have such keys as well: each of them gets one dollar sign more, so that nothing
a caller writes can be taken for a typed value.
"""

from __future__ import annotations

import binascii
import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable
from typing import Any

from everthread.codec.lowering import pack
from everthread.codec.scalars import DUMPERS, LOADERS
from everthread.codec.types import Code
from everthread.codec.values import decode
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.limits import DEFAULT_LIMITS
from everthread.values import Tagged

#: What marks a key. A text without it in quotes needs no unescaping.
MARK = b'"$'

_float_bits = struct.Struct(">d")
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def marked(text: bytes) -> bool:
    """Whether there may be marks in a text."""
    # One byte is found many times faster than two.
    return b"$" in text and MARK in text


def escape(node: Any) -> Any:
    """The JSON form of a lowered tree, for an encoder of plain JSON."""
    kind = type(node)
    if kind is dict:
        if all(type(key) is str for key in node):
            return {f"${key}" if key[:1] == "$" else key: escape(item) for key, item in node.items()}
        return {"$map": [[escape(key), escape(item)] for key, item in node.items()]}
    if kind is list or kind is tuple:
        return [escape(item) for item in node]
    if kind is bytes:
        return {"$bytes": base64_text(node)}
    if kind is float and not math.isfinite(node):
        return {"$float": _float_text(node)}
    if kind is Tagged:
        return _escape_tagged(node)
    return node


def unescape(node: Any) -> Any:
    """The lowered tree that :func:`escape` made this of; :class:`StateCorruptedError` for anything else."""
    kind = type(node)
    if kind is list:
        return [unescape(item) for item in node]
    if kind is not dict:
        return node
    tree = {}
    for key, item in node.items():
        if key[:1] != "$":
            tree[key] = unescape(item)
        elif key[:2] == "$$":
            tree[key[1:]] = unescape(item)
        elif len(node) == 1 and key in _READERS:
            return _special(key, item)
        else:
            raise StateCorruptedError(f"{key!r} stands where no typed value can be")
    return tree


def _special(key: str, item: Any) -> Any:
    try:
        return _READERS[key](item)
    except EverthreadError:
        raise
    except Exception as error:
        raise StateCorruptedError(f"the {key} of a value can't be read") from error


def base64_text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def base64_bytes(text: str) -> bytes:
    """Raises :class:`ValueError` for what isn't base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, TypeError) as error:
        raise ValueError(text) from error


# ── floats and maps ──────────────────────────────────────────────────────────────────────────────


def _float_text(value: float) -> str:
    bits = _float_bits.pack(value)
    for text, known in _FLOATS.items():
        if _float_bits.pack(known) == bits:
            return text
    return bits.hex()


def _read_float(text: str) -> float:
    if text in _FLOATS:
        return _FLOATS[text]
    (value,) = _float_bits.unpack(bytes.fromhex(text))
    return float(value)


def _read_map(pairs: list[list[Any]]) -> dict[Any, Any]:
    tree = {unescape(key): unescape(item) for key, item in pairs}
    if len(tree) != len(pairs):
        raise ValueError("a key stands twice")
    return tree


# ── typed values ─────────────────────────────────────────────────────────────────────────────────


def _escape_tagged(node: Tagged) -> dict[str, Any]:
    """By its name if that gives back the very same bytes; else its content, else its bytes."""
    named = _NAMED.get(node.code)
    if named is not None:
        key, write, read = named
        try:
            item = write(node.data)
            if read(item) == node:
                return {key: item}
        except Exception:  # noqa: S110 - whatever it is, it can't be told by its name
            pass
    try:
        content = decode(node.data)
        if pack(content) == node.data:
            return {"$packed": [node.code, escape(content)]}
    except EverthreadError:
        pass
    return {"$ext": [node.code, base64_text(node.data)]}


def _packed(code: int) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    return (lambda data: escape(decode(data))), (lambda item: Tagged(code, pack(unescape(item))))


def _sequence(code: int) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    def read(item: Any) -> Tagged:
        if type(item) is not list:
            raise TypeError(type(item))
        return Tagged(code, pack(unescape(item)))

    return _packed(code)[0], read


def _iso(code: int, kind: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], Tagged]]:
    def read(text: str) -> Tagged:
        found: Tagged = DUMPERS[kind](kind.fromisoformat(text), DEFAULT_LIMITS)
        return found

    return (lambda data: LOADERS[code](data).isoformat()), read


def _write_integer(data: bytes) -> str:
    return str(int.from_bytes(data, "big", signed=True))


def _read_integer(text: str) -> Tagged:
    value = int(text)
    return Tagged(Code.BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_surrogates(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass").encode("unicode_escape").decode("ascii")


def _read_surrogates(text: str) -> Tagged:
    value = text.encode("ascii").decode("unicode_escape")
    return Tagged(Code.SURROGATE_TEXT, value.encode("utf-8", "surrogatepass"))


def _read_erased(item: Any) -> Tagged:
    if item is not True:
        raise ValueError(item)
    return Tagged(Code.ERASED, b"")


_NAMED: dict[int, tuple[str, Callable[[bytes], Any], Callable[[Any], Tagged]]] = {
    Code.BIGINT: ("$integer", _write_integer, _read_integer),
    Code.TUPLE: ("$tuple", *_sequence(Code.TUPLE)),
    Code.SET: ("$set", *_sequence(Code.SET)),
    Code.FROZENSET: ("$frozenset", *_sequence(Code.FROZENSET)),
    Code.DATETIME: ("$datetime", *_iso(Code.DATETIME, dt.datetime)),
    Code.DATE: ("$date", *_iso(Code.DATE, dt.date)),
    Code.TIME: ("$time", *_iso(Code.TIME, dt.time)),
    Code.TIMEDELTA: ("$timedelta", *_packed(Code.TIMEDELTA)),
    Code.DECIMAL: (
        "$decimal",
        lambda data: data.decode("ascii"),
        lambda text: Tagged(Code.DECIMAL, text.encode("ascii")),
    ),
    Code.UUID: (
        "$uuid",
        lambda data: str(uuid.UUID(bytes=data)),
        lambda text: Tagged(Code.UUID, uuid.UUID(text).bytes),
    ),
    Code.SURROGATE_TEXT: ("$text", _write_surrogates, _read_surrogates),
    Code.OBJECT: ("$object", *_sequence(Code.OBJECT)),
    Code.SEALED: ("$sealed", base64_text, lambda text: Tagged(Code.SEALED, base64_bytes(text))),
    Code.ERASED: ("$erased", lambda data: not data, _read_erased),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": base64_bytes,
    "$float": _read_float,
    "$map": _read_map,
    "$packed": lambda item: Tagged(_code(item[0]), pack(unescape(item[1]))),
    "$ext": lambda item: Tagged(_code(item[0]), base64_bytes(item[1])),
    **{key: read for key, _, read in _NAMED.values()},
}


def _code(value: Any) -> int:
    if type(value) is not int or not -128 <= value <= 127 or value == -1:
        raise ValueError(value)
    return value
