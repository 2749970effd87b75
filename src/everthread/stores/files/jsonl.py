"""Lines of JSON that carry their own checksum.

A line is one JSON object, ``"sum"`` its last member: the CRC-32, in hexadecimal, of everything before it. A
line that was torn in the middle of an append, or altered since, doesn't fit its sum.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

_SUM = b',"sum":"'
#: `,"sum":"01234567"}` and the newline.
_SUFFIX = len(_SUM) + 8 + 3
#: Stands before the sum of a line that was acknowledged without waiting for the disk.
_WEAK = b',"durable":false'

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode


def stamp(text: bytes, *, durable: bool = True) -> bytes:
    """The line of a JSON object that isn't empty. ``durable``: it is synced before it is acknowledged."""
    body = text[:-1] if durable else text[:-1] + _WEAK
    return b"".join((body, b',"sum":"%08x"}\n' % zlib.crc32(body)))


def stamped(fields: dict[str, Any], *, durable: bool = True) -> bytes:
    """The line of these fields."""
    return stamp(encode_json(fields), durable=durable)


def intact(line: bytes) -> bool:
    """Whether this is a whole line that fits its sum."""
    at = len(line) - _SUFFIX
    return (
        at > 1
        and line.startswith(_SUM, at)
        and line.endswith(b'"}\n')
        and line[at + 8 : at + 16] == b"%08x" % zlib.crc32(line[:at])
    )


def was_synced(line: bytes) -> bool:
    """Whether an intact line was on disk, and all before it, when it was acknowledged."""
    return not line.startswith(_WEAK, len(line) - _SUFFIX - len(_WEAK))


def fields_of(line: bytes) -> dict[str, Any] | None:
    """The fields of a line, or ``None`` if it isn't intact."""
    if not intact(line):
        return None
    try:
        fields = decode_json(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return fields if type(fields) is dict else None
