"""The checksum of every stored value: added here, checked here, and mentioned nowhere above.

A value is stored as its content followed by four bytes: the CRC-32 (little endian) of its key and content.
The key is included so that a value found under another key counts as damaged. An event is appended before
its number is known, so its checksum covers table and owner only. Index entries of events are written by the
store itself and stay empty.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from everthread.errors import StateCorruptedError
from everthread.records.tables import EVENT, EVENT_INDEX, TABLES
from everthread.stores.interface import (
    At,
    Batch,
    Feed,
    Get,
    Info,
    Key,
    Outcome,
    Page,
    Progress,
    Purged,
    Query,
    Refused,
    Residue,
    Store,
)


class Damaged:
    """The marker that takes the place of a value whose checksum doesn't match."""

    def __repr__(self) -> str:
        return "<damaged>"


DAMAGED: Final = Damaged()

_NAMES = {table.number: table.name for table in TABLES}
_EVENT, _EVENT_INDEX = EVENT.number, EVENT_INDEX.number
_owner_bytes = struct.Struct(">BQ").pack
_number_bytes = struct.Struct(">BQQ").pack


def _checksum(key: Key, content: bytes) -> bytes:
    table, owner, at = key
    if table == _EVENT:
        start = zlib.crc32(_owner_bytes(table, owner))
    elif type(at) is int:
        start = zlib.crc32(_number_bytes(table, owner, at))
    else:
        start = zlib.crc32(at, zlib.crc32(_owner_bytes(table, owner)))  # type: ignore[arg-type]
    return zlib.crc32(content, start).to_bytes(4, "little")


def seal(key: Key, content: bytes) -> bytes:
    """Return the bytes that are stored for this content under this key."""
    return content + _checksum(key, content)


def unseal(key: Key, value: bytes) -> bytes | Damaged:
    """Return the content of a stored value, or :data:`DAMAGED` if its checksum doesn't match."""
    if key[0] == _EVENT_INDEX:
        return DAMAGED if value else b""
    content = value[:-4]
    return content if value[-4:] == _checksum(key, content) else DAMAGED


def damage(key: Key) -> StateCorruptedError:
    """Return the error that says which value is damaged."""
    table, owner, at = key
    where = f"{_NAMES[table]} {owner}/{at if isinstance(at, int) else at.hex()}"
    return StateCorruptedError(f"{where} is damaged: its checksum doesn't match", where=where)


class CheckedStore:
    """A store whose values are verified when they are read. All rules read and write through it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def info(self) -> Info:
        return self.store.info

    # ── reading ──

    async def read(self, queries: Sequence[Query], *, mark: bool = False) -> list[list[Any]]:
        """Answer all queries as of one moment.

        A damaged value raises ``StateCorruptedError``; with ``mark`` it is given as :data:`DAMAGED`.
        """
        answers, _ = await self.store.read(queries)
        return [_verified(query, answer, mark) for query, answer in zip(queries, answers, strict=True)]

    async def get_at(self, key: Key) -> tuple[bytes | None, int]:
        """Return the content of a key, and the store's clock in microseconds since 1970."""
        query = Get([key])
        answers, clock_us = await self.store.read([query])
        return _verified(query, answers[0], False)[0], clock_us

    async def get(self, *keys: Key) -> list[bytes | None]:
        """Return the contents of these keys, ``None`` for each absent one."""
        return (await self.read([Get(keys)]))[0] if keys else []

    async def page(
        self, table: int, owner: int, start: At, stop: At, limit: int, *, reverse: bool = False
    ) -> list[tuple[Any, bytes]]:
        """Return up to ``limit`` pairs ``(at, content)`` with ``start <= at < stop``."""
        return (await self.read([Page(table, owner, start, stop, limit, reverse)]))[0]

    async def page_all(self, table: int, owner: int, start: At, stop: At) -> list[tuple[Any, bytes]]:
        """Return all pairs with ``start <= at < stop``; pages are not of one moment."""
        found: list[tuple[Any, bytes]] = []
        while True:
            page = await self.page(table, owner, start, stop, 500)
            found += page
            if len(page) < 500:
                return found
            last = page[-1][0]
            start = last + 1 if isinstance(last, int) else last + b"\0"

    async def walk(
        self, table: int, after: tuple[int, At] | None, limit: int
    ) -> list[tuple[int, At, bytes | Damaged]]:
        """As the store's, with :data:`DAMAGED` for each damaged value."""
        found = await self.store.walk(table, after, limit)
        return [(owner, at, unseal((table, owner, at), value)) for owner, at, value in found]

    async def wait(
        self, keys: Mapping[Key, bytes | None], feeds: Mapping[tuple[int, int], bytes], timeout_s: float
    ) -> bool:
        stored = {key: None if content is None else seal(key, content) for key, content in keys.items()}
        return await self.store.wait(stored, feeds, timeout_s)

    # ── writing ──

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        """As the store's. A guard's prefix is compared with the content, which a value starts with."""
        outcomes = await self.store.write([seal_batch(batch) for batch in batches])
        return [_content(outcome) if isinstance(outcome, Refused) else outcome for outcome in outcomes]

    async def write_one(self, batch: Batch) -> Outcome:
        return (await self.write([batch]))[0]

    # ── the store as a whole ──

    async def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        return await self.store.purge(timeout_s, progress)

    async def find_residue(self, samples: Sequence[bytes], progress: Progress | None = None) -> Residue:
        return await self.store.find_residue(samples, progress)

    async def check(self) -> list[str]:
        return await self.store.check()

    async def usage(self, owner: int | None) -> Mapping[str, tuple[int, int]]:
        return await self.store.usage(owner)

    async def flush(self) -> None:
        await self.store.flush()

    async def close(self) -> None:
        await self.store.close()


def seal_batch(batch: Batch) -> Batch:
    """Return the batch as it is stored: with a checksum in every value."""
    puts = [(key, seal(key, content)) for key, content in batch.puts]
    append = batch.append
    if append is not None:
        key = append.table, append.owner, 0
        append = append._replace(values=[seal(key, content) for content in append.values])
    return batch._replace(puts=puts, append=append)


def _content(refused: Refused) -> Refused:
    """Return the refusal with the content found; ``None`` also if that is damaged, as a reader will find."""
    if refused.value is None:
        return refused
    content = unseal(refused.guard.key, refused.value)
    return refused._replace(value=None if isinstance(content, Damaged) else content)


def _verified(query: Query, answer: list[Any], mark: bool) -> list[Any]:
    if isinstance(query, Get):
        return [
            None if value is None else _verify(key, value, mark)
            for key, value in zip(query.keys, answer, strict=True)
        ]
    table, owner = query.table, query.owner
    if isinstance(query, Feed):
        return [
            (stamp, at, None if value is None else _verify((table, owner, at), value, mark))
            for stamp, at, value in answer
        ]
    return [(at, _verify((table, owner, at), value, mark)) for at, value in answer]


def _verify(key: Key, value: bytes, mark: bool) -> bytes | Damaged:
    content = unseal(key, value)
    if content is DAMAGED and not mark:
        raise damage(key)
    return content
