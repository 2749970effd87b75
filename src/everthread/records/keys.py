"""The bytes of names and numbers inside keys, and the ranges that queries and deletes name."""

from __future__ import annotations

from everthread.stores.interface import NAME_MAX, Key, Span, Table

#: Greater than every number of a numbered table with 32 bits.
SEQ_END = 1 << 32

Put = tuple[Key, bytes]


def encode_name(name: str) -> bytes:
    """Return a name as bytes whose order is the order of its code points."""
    return name.encode("utf-8", "surrogatepass")


def decode_name(at: bytes) -> str:
    return at.decode("utf-8", "surrogatepass")


def encode_number(number: int) -> bytes:
    """Return a number as 8 bytes whose order is its own."""
    return number.to_bytes(8, "big")


def decode_number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the smallest bytes that are greater than everything that starts with ``prefix``."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return b"\xff" * (NAME_MAX + 1)
    return stem[:-1] + bytes([stem[-1] + 1])


def start_after(prefix: str, after: str | None) -> bytes:
    """Return where a listing of the names with this prefix continues after the name ``after``."""
    first = encode_name(prefix)
    return first if after is None else max(first, encode_name(after) + b"\0")


def only(table: Table, owner: int, at: bytes | int) -> Span:
    """Return the span of one key."""
    return Span(table.number, owner, at, at + 1 if isinstance(at, int) else at + b"\0")
