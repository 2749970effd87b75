"""Sealed values and the erasure ledger in this process's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everthread.stores.contract import KeyErased, SealedRow
from everthread.stores.erasures import FINISHED, ErasedKey, merged, split_keys


class MemorySealed:
    """Not for two threads at once: whoever calls has the store's lock."""

    def __init__(self) -> None:
        #: Value id to (key ids, sealed bytes).
        self._rows: dict[bytes, tuple[bytes, bytes]] = {}
        self._by_key: dict[bytes, set[bytes]] = {}
        self._ledger: dict[bytes, ErasedKey] = {}

    def check(self, rows: Iterable[SealedRow]) -> None:
        """Raise :class:`KeyErased` unless all of these may be added."""
        if self._ledger:
            used = {key_id for _, keys, _ in rows for key_id in split_keys(keys)}
            if gone := used & self._ledger.keys():
                raise KeyErased(frozenset(gone))

    def add(self, rows: Iterable[SealedRow]) -> None:
        for value_id, keys, data in rows:
            if data and value_id not in self._rows:
                self._rows[value_id] = (keys, data)
                for key_id in split_keys(keys):
                    self._by_key.setdefault(key_id, set()).add(value_id)

    def get(self, value_ids: Iterable[bytes]) -> dict[bytes, bytes]:
        return {value_id: self._rows[value_id][1] for value_id in value_ids if value_id in self._rows}

    def take(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        return len(self._rows), sum(len(data) for _, data in self._rows.values())

    def under(self, key_ids: Sequence[bytes]) -> list[bytes]:
        """The ids of values that need one of these keys, in order."""
        return sorted({value_id for key_id in key_ids for value_id in self._by_key.get(key_id, ())})

    def page(self, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
        found = [value_id for value_id in self.under(key_ids) if value_id > after][:limit]
        return [(value_id, *self._rows[value_id]) for value_id in found]

    def drop(self, key_ids: Sequence[bytes]) -> int:
        found = self.under(key_ids)
        for value_id in found:
            keys, _ = self._rows.pop(value_id)
            for key_id in split_keys(keys):
                self._by_key[key_id].discard(value_id)
        return len(found)

    def note(self, keys: Sequence[ErasedKey]) -> None:
        for entry in keys:
            self._ledger[entry.key_id] = merged(self._ledger.get(entry.key_id), entry)

    def ledger(self, unfinished: bool) -> list[ErasedKey]:
        found = [entry for _, entry in sorted(self._ledger.items())]
        return [entry for entry in found if entry.phase < FINISHED] if unfinished else found

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        return set(key_ids) & self._ledger.keys()

    def clear(self) -> None:
        self._rows.clear()
        self._by_key.clear()
