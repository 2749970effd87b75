"""Metadata as an index compares it: one short value for each name."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from everthread.codec.values import decode, encode

#: Metadata values up to this many bytes are indexed as they are, longer ones by their hash.
_VALUE_BYTES_MAX = 64


def index_values(metadata: Mapping[object, object]) -> dict[str, bytes]:
    """Return what the index holds of lowered metadata, by name."""
    return {name: index_value(value) for name, value in metadata.items() if isinstance(name, str)}


def encoded_index_values(metadata: bytes | None) -> dict[str, bytes]:
    """As :func:`index_values`, of a version's encoded metadata."""
    return {} if metadata is None else index_values(decode(metadata))


def index_value(lowered: object) -> bytes:
    """Return what the index compares instead of a value. The order of keys doesn't count."""
    encoded = encode(_sorted(lowered))
    if len(encoded) <= _VALUE_BYTES_MAX:
        return encoded
    return b"\xc1" + sha256(encoded).digest()


def _sorted(node: object) -> object:
    if type(node) is dict:
        return {key: _sorted(value) for key, value in sorted(node.items(), key=lambda item: encode(item[0]))}
    return [_sorted(value) for value in node] if type(node) is list else node
