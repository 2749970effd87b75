"""Logs of a branch: compressed chunks of items, and four bytes per item to find repeated ids.

A chunk is kept under its *last* position, so that the chunk that holds a position is the first one from there
on. Every log of a branch has a number of its own, assigned before the first chunk is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.records.checked import DAMAGED, CheckedStore
from everthread.records.keys import (
    SEQ_END,
    Put,
    decode_number,
    encode_name,
    encode_number,
    end_of_prefix,
    only,
)
from everthread.records.numbers import Numbers
from everthread.records.tables import DETAIL, FINGERPRINT, ITEM
from everthread.stores.interface import Batch, Get, Guard, Key, Page, Span

LOG_PREFIX = b"log/"
_PAGE = 256
_CACHED = 16_384

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(tuple[int, bytes]).decode


def is_log(key: Key) -> bool:
    """Return True if a key of DETAIL holds the number of a log."""
    return isinstance(key[2], bytes) and key[2].startswith(LOG_PREFIX)


def put_chunk(log: int, chunk: Chunk) -> list[Put]:
    """Return the puts of a chunk; one without data stands for items that were pruned."""
    count = chunk.count.to_bytes(4, "big")
    return [
        ((ITEM.number, log, chunk.end), _encode((chunk.count, chunk.data))),
        ((FINGERPRINT.number, log, chunk.end), count + chunk.fingerprints),
    ]


def delete_chunk(log: int, chunk: Chunk) -> list[Span]:
    return [only(ITEM, log, chunk.end), only(FINGERPRINT, log, chunk.end)]


class Logs:
    """Reads chunks and fingerprints, and assigns log numbers."""

    def __init__(self, store: CheckedStore, numbers: Numbers) -> None:
        self._store = store
        self._numbers = numbers
        self._known: dict[tuple[int, str], int] = {}

    def forget(self) -> None:
        """Forget what was read, because the whole content has been replaced."""
        self._known.clear()

    async def find(self, branch: int, log: str) -> int:
        """Return the number of a log, 0 if it has no chunks."""
        number = self._known.get((branch, log), 0)
        if not number:
            (value,) = await self._store.get(_log_key(branch, log))
            if value is not None:
                number = self._known[branch, log] = decode_number(value)
                if len(self._known) > _CACHED:
                    self._known.clear()
        return number

    async def make(self, branch: int, log: str) -> int:
        """Return the number of a log; assign one if it has none.

        That is a write of its own: a compaction is derived, and nothing else may depend on what it wrote.
        """
        while not (number := await self.find(branch, log)):
            key = _log_key(branch, log)
            value = encode_number(await self._numbers.next())
            await self._store.write_one(Batch([Guard(key, None)], [(key, value)], durable=False))
        return number

    async def put_all(self, branch: int, chunks: Iterable[Chunk]) -> list[Put]:
        """Return the puts of chunks of any logs."""
        puts: list[Put] = []
        for chunk in chunks:
            puts += put_chunk(await self.make(branch, chunk.log), chunk)
        return puts

    async def chunks(self, branch: int, log: str, start: int, stop: int) -> list[Chunk]:
        """Return the chunks that hold positions of ``[start, stop)``, in order; damaged ones are missing."""
        number = await self.find(branch, log)
        if not number or start >= stop:
            return []
        found: list[Chunk] = []
        first, end = start + 1, min(stop, SEQ_END)
        while first < end:
            # All that end before the last position of the range, then the one that reaches its end.
            page = await self._page(number, log, first, end, _PAGE)
            found += page
            if len(page) < _PAGE:
                break
            first = page[-1].end + 1
        found += await self._page(number, log, max(first, end), SEQ_END, 1)
        return [chunk for chunk in found if chunk.data is not None and chunk.position < stop]

    async def _page(self, number: int, log: str, first: int, end: int, limit: int) -> list[Chunk]:
        query = Page(ITEM.number, number, first, end, limit)
        (items,) = await self._store.read([query], mark=True)
        keys = [(FINGERPRINT.number, number, at) for at, _ in items]
        (fingerprints,) = await self._store.read([Get(keys)], mark=True)
        return [
            _chunk(log, at, item, fingerprint)
            for (at, item), fingerprint in zip(items, fingerprints, strict=True)
            if item is not DAMAGED
        ]

    async def fingerprints(self, branch: int, log: str, start: int) -> list[tuple[int, bytes]]:
        """Return ``(position, fingerprints)`` of every chunk that ends after ``start``, in order.

        Pruned items have zeros; those of a damaged entry are missing.
        """
        number = await self.find(branch, log)
        found: list[tuple[int, bytes]] = []
        first = start + 1
        while number:
            query = Page(FINGERPRINT.number, number, first, SEQ_END, _PAGE)
            (page,) = await self._store.read([query], mark=True)
            for at, content in page:
                if content is not DAMAGED:
                    count = decode_number(content[:4])
                    found.append((at - count, content[4:] or bytes(4 * count)))
            if len(page) < _PAGE:
                break
            first = page[-1][0] + 1
        return found

    async def size(self, branch: int) -> int:
        """Return the bytes of all chunks and fingerprints of a branch."""
        stop = end_of_prefix(LOG_PREFIX)
        numbers = await self._store.page_all(DETAIL.number, branch, LOG_PREFIX, stop)
        size = 0
        for _, value in numbers:
            usage = await self._store.usage(decode_number(value))
            size += usage[ITEM.name][1] + usage[FINGERPRINT.name][1]
        return size

    # ── replacing ──

    async def drop(self, branch: int, log: str, start: int, stop: int) -> tuple[list[Span], list[Chunk]]:
        """Return the deletes of the chunks that lie within these positions, and what takes their place."""
        found = await self.chunks(branch, log, start, min(stop, SEQ_END))
        inside = [chunk for chunk in found if chunk.position >= start and chunk.end <= stop]
        number = await self.find(branch, log)
        deletes = [span for chunk in inside for span in delete_chunk(number, chunk)]
        return deletes, pruned_chunks(log, ((chunk.position, chunk.count) for chunk in inside))

    async def bring_back(self, branch: int, chunks: Sequence[Chunk]) -> tuple[list[Span], list[Chunk]]:
        """Return the deletes of the pruned chunks that these replace, and what is left of those."""
        places = Places(chunks)
        deletes: list[Span] = []
        left: list[Chunk] = []
        for log in sorted({chunk.log for chunk in chunks}):
            number = await self.find(branch, log)
            first = min(chunk.position for chunk in chunks if chunk.log == log)
            last = max(chunk.end for chunk in chunks if chunk.log == log)
            for stub in await self.chunks(branch, log, first, last):
                if stub.pruned and places.within(stub):
                    deletes += delete_chunk(number, stub)
                    left += places.beside(stub)
        return deletes, left


def _log_key(branch: int, log: str) -> Key:
    return DETAIL.number, branch, LOG_PREFIX + encode_name(log)


def _chunk(log: str, end: int, item: bytes, fingerprint: Any) -> Chunk:
    try:
        count, data = _decode(item)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError(f"a chunk of log {log!r} can't be decoded", where="item") from error
    readable = fingerprint is not None and fingerprint is not DAMAGED
    return Chunk(log, end - count, count, fingerprint[4:] if readable else b"", data)
