"""Entries: whatever is looked up across the threads of a namespace, written with the commit it follows from.

An entry has a *kind* (open decisions, calls in doubt, session states, pins …), a number that entries of one
kind are ordered by, the name of its thread, and a detail that tells entries of one thread apart. A
reference in the branch's DETAIL lets a deletion find the entries of a thread.
"""

from __future__ import annotations

from typing import NamedTuple

from everthread.records.checked import CheckedStore
from everthread.records.keys import (
    Put,
    decode_name,
    decode_number,
    encode_name,
    encode_number,
    end_of_prefix,
    only,
)
from everthread.records.tables import DETAIL, ENTRY, EXPIRY
from everthread.stores.interface import Key, Span

#: What the reference to an entry starts with in DETAIL.
REFERENCE = b"entry/"


class Entry(NamedTuple):
    """One entry. ``kind`` holds no NUL; all fields but ``value`` are its identity."""

    kind: str
    order: int
    thread: str
    detail: bytes = b""
    value: bytes = b""


def _head(entry: Entry) -> bytes:
    return encode_name(entry.kind) + b"\0" + encode_number(entry.order)


def _at(entry: Entry) -> bytes:
    # A thread's name holds no NUL, so that it ends here.
    return _head(entry) + encode_name(entry.thread) + b"\0" + entry.detail


def _reference(entry: Entry) -> bytes:
    return REFERENCE + _head(entry) + entry.detail


def put_entry(namespace: int, branch: int, entry: Entry) -> list[Put]:
    return [
        ((ENTRY.number, namespace, _at(entry)), entry.value),
        ((DETAIL.number, branch, _reference(entry)), b""),
    ]


def delete_entry(namespace: int, branch: int, entry: Entry) -> list[Span]:
    return [only(ENTRY, namespace, _at(entry)), only(DETAIL, branch, _reference(entry))]


def referenced(namespace: int, thread: str, reference: bytes) -> Span | None:
    """Return the span of the entry that a DETAIL of this thread's branch refers to, if it is a reference."""
    if not reference.startswith(REFERENCE):
        return None
    kind, _, rest = reference[len(REFERENCE) :].partition(b"\0")
    entry = Entry(decode_name(kind), decode_number(rest[:8]), thread, rest[8:])
    return only(ENTRY, namespace, _at(entry))


def entry_thread(at: bytes) -> str:
    """Return the name of the thread that the entry under this key belongs to."""
    _, _, rest = at.partition(b"\0")
    return decode_name(rest[8:].partition(b"\0")[0])


def reference_of(branch: int, at: bytes) -> Key:
    """Return the key of the reference to the entry under this key."""
    kind, _, rest = at.partition(b"\0")
    detail = rest[8:].partition(b"\0")[2]
    return DETAIL.number, branch, REFERENCE + kind + b"\0" + rest[:8] + detail


class Entries:
    """Pages of entries."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    async def page(
        self, namespace: int, kind: str, *, after: Entry | None = None, limit: int, reverse: bool = False
    ) -> list[Entry]:
        """Return up to ``limit`` entries of a kind by order and thread, after the entry ``after``."""
        prefix = encode_name(kind) + b"\0"
        start, stop = prefix, end_of_prefix(prefix)
        if after is not None and reverse:
            stop = _at(after)
        elif after is not None:
            start = _at(after) + b"\0"
        found = await self._store.page(ENTRY.number, namespace, start, stop, limit, reverse=reverse)
        return [_entry(kind, at[len(prefix) :], value) for at, value in found]

    async def expired(self, namespace: int, now_us: int, limit: int) -> list[str]:
        """Return the names of up to ``limit`` threads that have expired, the longest expired first."""
        stop = encode_number(now_us + 1)
        found = await self._store.page(EXPIRY.number, namespace, b"", stop, limit)
        return [decode_name(at[8:]) for at, _ in found]


def _entry(kind: str, at: bytes, value: bytes) -> Entry:
    name, _, detail = at[8:].partition(b"\0")
    return Entry(kind, decode_number(at[:8]), decode_name(name), detail, value)
