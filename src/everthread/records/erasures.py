"""The erasure ledger: the keys that were destroyed or are about to be, and how far each erasure has come.

A key in the ledger is never removed from it, and its phase never goes back. Every write that seals a value
guards that none of its keys is in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.checked import CheckedStore
from everthread.records.keys import Put, end_of_prefix, only
from everthread.records.tables import COUNTER, ERASED
from everthread.stores.contract import FINISHED, ErasedKey, merged_erasure
from everthread.stores.interface import Batch, Guard, Key, Refused, Span

_UNFINISHED = b"unfinished/"

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(ErasedKey).decode


def put_erasure(entry: ErasedKey) -> tuple[list[Put], list[Span]]:
    """Return the puts and deletes that store an entry, and list it while it isn't finished."""
    listed = _UNFINISHED + entry.key_id
    puts: list[Put] = [(_key(entry), _encode(entry))]
    if entry.phase < FINISHED:
        return [*puts, ((COUNTER.number, 0, listed), b"")], []
    return puts, [only(COUNTER, 0, listed)]


class Erasures:
    """Reads and extends the ledger."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    async def note(self, entries: Sequence[ErasedKey]) -> None:
        """Merge entries into the ledger, all at once and durably. May be repeated."""
        while not await self._try_note(entries):
            """Another process changed one of them meanwhile."""

    async def _try_note(self, entries: Sequence[ErasedKey]) -> bool:
        known = dict(zip(map(_key, entries), await self._store.get(*map(_key, entries)), strict=True))
        guards = [Guard(key, content) for key, content in known.items()]
        merged = {key: None if content is None else _read(content) for key, content in known.items()}
        for entry in entries:
            merged[_key(entry)] = merged_erasure(merged[_key(entry)], entry)
        puts: list[Put] = []
        deletes: list[Span] = []
        for each in merged.values():
            assert each is not None
            entry_puts, entry_deletes = put_erasure(each)
            puts += entry_puts
            deletes += entry_deletes
        return not isinstance(await self._store.write_one(Batch(guards, puts, deletes)), Refused)

    async def all(self) -> list[ErasedKey]:
        """Return the whole ledger by key id."""
        found = await self._store.page_all(ERASED.number, 0, b"", end_of_prefix(b""))
        return [_read(content) for _, content in found]

    async def unfinished(self) -> list[ErasedKey]:
        """Return the entries that aren't finished, by key id, reading no others."""
        found = await self._store.page_all(COUNTER.number, 0, _UNFINISHED, end_of_prefix(_UNFINISHED))
        keys = [(ERASED.number, 0, at[len(_UNFINISHED) :]) for at, _ in found]
        contents = await self._store.get(*keys)
        return [_read(content) for content in contents if content is not None]

    async def among(self, key_ids: Iterable[bytes]) -> set[bytes]:
        """Return those of these keys that are in the ledger."""
        wanted = list(key_ids)
        found = await self._store.get(*((ERASED.number, 0, key_id) for key_id in wanted))
        return {key_id for key_id, content in zip(wanted, found, strict=True) if content is not None}


def _key(entry: ErasedKey) -> Key:
    return ERASED.number, 0, entry.key_id


def _read(content: bytes) -> ErasedKey:
    try:
        return _decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError("an erasure can't be decoded", where="erased") from error
