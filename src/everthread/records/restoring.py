"""What a restored backup must not take back: numbers, revisions of registers, and erasures.

A restore replaces the whole content in one step. This computes the batch that is applied to the backup's
content in that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from everthread.records.checked import CheckedStore, seal_batch
from everthread.records.erasures import Erasures, put_erasure
from everthread.records.keys import Put, decode_number, encode_number, only
from everthread.records.logs import is_log
from everthread.records.namespaces import namespace_key
from everthread.records.numbers import COUNTER_KEY
from everthread.records.registers import decode_register, encode_register, register_key
from everthread.records.sealed import Sealed
from everthread.records.tables import BRANCH, DETAIL, NAMESPACE, REGISTER, SEALED, SEALED_BY, STREAM
from everthread.stores.contract import PutCell, erasure_after_restore, split_keys
from everthread.stores.interface import At, Batch, Key, Query, Span, Store

_PAGE = 500


class Snapshot(Protocol):
    """The content of a store at one moment."""

    async def read(self, queries: Sequence[Query]) -> list[list[Any]]: ...

    async def walk(
        self, table: int, after: tuple[int, At] | None, limit: int
    ) -> list[tuple[int, At, bytes]]: ...


class _Moment:
    """A snapshot as a store that is only read."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.walk = snapshot.walk

    async def read(self, queries: Sequence[Query]) -> tuple[list[list[Any]], int]:
        return await self._snapshot.read(queries), 0


async def carry_over(
    present: Snapshot,
    restored: Snapshot,
    kept: Sequence[PutCell],
    *,
    clock_us: int,
    random_bytes: Callable[[int], bytes],
) -> Batch:
    """Return the batch that turns a backup's content into the content after the restore.

    No number and no revision is given out again that anyone may still hold, the erasure ledger keeps every
    key, values sealed under one of its keys don't come back, and the registers ``kept`` are stored.
    """
    now, then = (CheckedStore(cast("Store", _Moment(each))) for each in (present, restored))
    puts: dict[Key, bytes] = {}
    last = max(
        [decode_number(content or b"") for each in (now, then) for content in await each.get(COUNTER_KEY)]
    )
    # Another process may know these numbers, and write under them.
    for table in (NAMESPACE, STREAM):
        puts |= dict(await _missing(table.number, now, then))
    branches = {at for (_, _, at), _ in await _walk(then, BRANCH.number)}
    for key, content in await _missing(DETAIL.number, now, then):
        if key[1] in branches and is_log(key):
            puts[key] = content
    last = await _put_registers(then, puts, kept, last, clock_us * 1_000, random_bytes)
    puts[COUNTER_KEY] = encode_number(last)
    ledger = {entry.key_id: entry for entry in await Erasures(then).all()}
    for entry in await Erasures(now).all():
        ledger[entry.key_id] = erasure_after_restore(entry, ledger.get(entry.key_id))
    deletes: list[Span] = []
    for entry in ledger.values():
        entry_puts, entry_deletes = put_erasure(entry)
        puts |= dict(entry_puts)
        deletes += entry_deletes
    deletes += await _sealed_under(then, list(ledger))
    return seal_batch(Batch(puts=list(puts.items()), deletes=deletes))


async def _walk(store: CheckedStore, table: int) -> list[tuple[Key, bytes]]:
    """Return all values of a table that can be read."""
    found: list[tuple[Key, bytes]] = []
    after: tuple[int, At] | None = None
    while page := await store.walk(table, after, _PAGE):
        found += [((table, owner, at), content) for owner, at, content in page if isinstance(content, bytes)]
        after = page[-1][:2]
    return found


async def _missing(table: int, now: CheckedStore, then: CheckedStore) -> list[Put]:
    known = {key for key, _ in await _walk(then, table)}
    return [(key, content) for key, content in await _walk(now, table) if key not in known]


async def _put_registers(
    then: CheckedStore,
    puts: dict[Key, bytes],
    kept: Sequence[PutCell],
    last: int,
    revision: int,
    random_bytes: Callable[[int], bytes],
) -> int:
    """Put all registers with a new owner, nonce and revision; return the last number given out."""
    for key, content in await _walk(then, REGISTER.number):
        old = decode_register(content)
        puts[key] = encode_register(old.value, revision, old.written_us, random_bytes(16))
    for register in kept:
        key = namespace_key(register.space)
        number = puts.get(key) or (await then.get(key))[0]
        if number is None:
            last += 1
            number = puts[key] = encode_number(last)
        value = encode_register(register.value, revision, register.written_us, random_bytes(16))
        puts[register_key(decode_number(number), register.name)] = value
    return last


async def _sealed_under(then: CheckedStore, key_ids: Sequence[bytes]) -> list[Span]:
    deletes: list[Span] = []
    after = b""
    while key_ids and (page := await Sealed(then).page(key_ids, after, _PAGE)):
        for value_id, joined, _ in page:
            deletes.append(only(SEALED, 0, value_id))
            deletes += [only(SEALED_BY, 0, key_id + value_id) for key_id in split_keys(joined)]
        after = page[-1][0]
    return deletes
