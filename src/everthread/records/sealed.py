"""Sealed values: ciphertexts of personal data, kept outside of the versions that refer to them.

Value ids are random, so all namespaces share one owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.checked import CheckedStore, Damaged
from everthread.records.keys import Put, end_of_prefix, only
from everthread.records.tables import ERASED, SEALED, SEALED_BY
from everthread.stores.contract import SealedRow, split_keys
from everthread.stores.interface import At, Batch, Guard, Page, Span

_ID_BYTES = 16
_PAGE = 256

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode


def key_ids(rows: Iterable[SealedRow]) -> list[bytes]:
    """Return the ids of all keys that these values are sealed under."""
    return sorted({key_id for _, joined, _ in rows for key_id in split_keys(joined)})


def guard_sealed(rows: Iterable[SealedRow]) -> list[Guard]:
    """Return guards that none of the keys of these values is in the erasure ledger."""
    return [Guard((ERASED.number, 0, key_id), None) for key_id in key_ids(rows)]


def put_sealed(rows: Iterable[SealedRow]) -> list[Put]:
    """Return the puts of sealed values; those without bytes are stored already."""
    puts: list[Put] = []
    for value_id, joined, data in rows:
        if data:
            puts.append(((SEALED.number, 0, value_id), _encode((joined, data))))
            puts += [((SEALED_BY.number, 0, key_id + value_id), b"") for key_id in split_keys(joined)]
    return puts


class Sealed:
    """Reads sealed values, and deletes those of erased keys."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    async def get(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        """Return the ciphertexts by value id; absent ones are missing."""
        wanted = list(value_ids)
        found = await self._store.get(*((SEALED.number, 0, value_id) for value_id in wanted))
        return {
            value_id: _read(content)[1]
            for value_id, content in zip(wanted, found, strict=True)
            if content is not None
        }

    async def page(self, keys: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        """Return up to ``limit`` values sealed under one of these keys (``None``: all), by value id."""
        if keys is None:
            return await self._walk(after, limit)
        start = after + b"\0" if after else b""
        queries = [
            Page(SEALED_BY.number, 0, key + start, end_of_prefix(key), limit) for key in dict.fromkeys(keys)
        ]
        found = await self._store.read(queries)
        ids = sorted({at[_ID_BYTES:] for page in found for at, _ in page})[:limit]
        contents = await self._store.get(*((SEALED.number, 0, value_id) for value_id in ids))
        return [
            (value_id, *_read(content))
            for value_id, content in zip(ids, contents, strict=True)
            if content is not None
        ]

    async def _walk(self, after: bytes, limit: int) -> list[SealedRow]:
        place: tuple[int, At] | None = (0, after) if after else None
        found = await self._store.walk(SEALED.number, place, limit)
        rows: list[SealedRow] = []
        for _, at, content in found:
            if isinstance(content, Damaged):
                raise StateCorruptedError("a sealed value is damaged", where="sealed")
            assert isinstance(at, bytes)
            rows.append((at, *_read(content)))
        return rows

    async def delete(self, keys: Sequence[bytes]) -> int:
        """Delete all values sealed under one of these keys; return how many there were.

        Nothing is sealed under a key of the erasure ledger, so none is added meanwhile. Repeating it after an
        interruption finishes it.
        """
        count = 0
        while rows := await self.page(keys, b"", _PAGE):
            deletes: list[Span] = []
            for value_id, joined, _ in rows:
                deletes.append(only(SEALED, 0, value_id))
                deletes += [only(SEALED_BY, 0, key_id + value_id) for key_id in split_keys(joined)]
            await self._store.write_one(Batch(deletes=deletes))
            count += len(rows)
        return count


def _read(content: bytes) -> tuple[bytes, bytes]:
    try:
        return _decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError("a sealed value can't be decoded", where="sealed") from error
