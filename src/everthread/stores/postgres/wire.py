"""Statements as they go over the wire: parameters and answers in PostgreSQL's binary formats.

A statement says of each parameter what it is, so that its bytes are made without looking at the value, and
has a name made from its text, so that whoever finds a prepared statement of that name finds the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

_int2 = struct.Struct(">h").pack
_int8 = struct.Struct(">q").pack
_float8 = struct.Struct(">d").pack
_read_int2 = struct.Struct(">h").unpack
_read_int4 = struct.Struct(">i").unpack
_read_int8 = struct.Struct(">q").unpack
_read_float8 = struct.Struct(">d").unpack
_array_head = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack
_NULL = _length(-1)
_SHORT_MAX = 256

BOOL, BYTEA, INT8, INT2, INT4, TEXT, FLOAT8, JSONB = 16, 17, 20, 21, 23, 25, 701, 3802
BYTEA_ARRAY, INT8_ARRAY, INT2_ARRAY, TEXT_ARRAY = 1001, 1016, 1005, 1009


def name_bytes(name: str) -> bytes:
    """A name as it is stored: its UTF-8 bytes. Their order is that of code points."""
    # What no name can hold (a lone surrogate) may still be asked for, and isn't found.
    return name.encode("utf-8", "surrogatepass")


def short_name(name: str) -> bytes:
    """A name that is only ever compared: a long one by its digest, so that it fits into an index."""
    data = name_bytes(name)
    # No UTF-8 has this byte: it can't be taken for a name.
    return data if len(data) <= _SHORT_MAX else b"\xff" + sha256(data).digest()


def space_bytes(space: str) -> bytes:
    """The same for a space: what stands behind the namespace stays, so that its tenant is recognised."""
    namespace, mark, kind = space.partition("\0")
    return short_name(namespace) + (mark + kind).encode()


def _bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _json(value: bytes) -> bytes:
    return b"\1" + value


def _same(value: bytes) -> bytes:
    return value


def _array(element: int, encode: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], bytes]:
    def write(values: Sequence[Any]) -> bytes:
        if not values:
            return struct.pack(">iiI", 0, 0, element)
        parts = [_array_head(1, 1, element, len(values), 1)]
        for value in values:
            if value is None:
                parts.append(_NULL)
            else:
                data = encode(value)
                parts += (_length(len(data)), data)
        return b"".join(parts)

    return write


#: By the letter that stands for it in a signature: the type's number, and how a value becomes bytes.
_KINDS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "q": (INT8, _int8),
    "h": (INT2, _int2),
    "f": (FLOAT8, _float8),
    "b": (BYTEA, _same),
    "n": (BYTEA, name_bytes),
    "s": (BYTEA, space_bytes),
    "k": (BYTEA, short_name),
    "t": (TEXT, str.encode),
    "?": (BOOL, _bool),
    "j": (JSONB, _json),
    "B": (BYTEA_ARRAY, _array(BYTEA, _same)),
    "N": (BYTEA_ARRAY, _array(BYTEA, name_bytes)),
    "S": (BYTEA_ARRAY, _array(BYTEA, short_name)),
    "Q": (INT8_ARRAY, _array(INT8, _int8)),
    "H": (INT2_ARRAY, _array(INT2, _int2)),
    "T": (TEXT_ARRAY, _array(TEXT, str.encode)),
}

_READ: dict[int, Callable[[bytes], Any]] = {
    BOOL: lambda data: data == b"\1",
    BYTEA: _same,
    INT8: lambda data: _read_int8(data)[0],
    INT2: lambda data: _read_int2(data)[0],
    INT4: lambda data: _read_int4(data)[0],
    FLOAT8: lambda data: _read_float8(data)[0],
    JSONB: lambda data: data[1:],
}


class Statement:
    """A constant text and what its parameters are: a letter each."""

    __slots__ = ("encoders", "formats", "name", "sql", "types")

    def __init__(self, signature: str, sql: str) -> None:
        self.sql = sql.encode()
        self.name = b"everthread_" + sha256(self.sql + signature.encode()).hexdigest()[:20].encode()
        self.types = [_KINDS[letter][0] for letter in signature]
        self.encoders = [_KINDS[letter][1] for letter in signature]
        self.formats = [1] * len(signature)

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        return [
            None if value is None else encode(value)
            for encode, value in zip(self.encoders, values, strict=True)
        ]

    def within(self, schema: str) -> Statement:
        """The same on the tables of another schema, whose name has been checked and quoted."""
        moved = Statement.__new__(Statement)
        moved.sql = in_schema(self.sql.decode(), schema).encode()
        moved.name = b"everthread_" + sha256(moved.sql).hexdigest()[:20].encode()
        moved.types, moved.encoders, moved.formats = self.types, self.encoders, self.formats
        return moved


def in_schema(text: str, schema: str) -> str:
    """SQL that is written for the schema ``everthread``, for another one."""
    return text.replace("everthread.", f"{schema}.").replace(" everthread ", f" {schema} ")


def read_rows(result: Any) -> list[tuple[Any, ...]]:
    """The rows of an answer, all of which came in binary format."""
    columns = range(result.nfields)
    readers = [_READ.get(result.ftype(column), _text) for column in columns]
    value = result.get_value
    rows = []
    for row in range(result.ntuples):
        found = []
        for column in columns:
            data = value(row, column)
            found.append(None if data is None else readers[column](data))
        rows.append(tuple(found))
    return rows


def _text(data: bytes) -> str:
    return data.decode()
