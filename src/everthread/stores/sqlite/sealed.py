"""Sealed values, the keys that they need, and the erasure ledger: tables and statements.

Which values need somebody's key stands beside each value and nowhere else: an index of it would be one more
page to write in each save, and is asked for only by who reads the whole store anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores.contract import KeyErased, SealedRow
from everthread.stores.erasures import ErasedKey, brought_back, merged, split_keys

ADD_SEALED = "INSERT OR IGNORE INTO sealed (value, keys, data, sum) VALUES (?1, ?2, ?3, ?4)"
#: The same for a value of one person, unless that person's key stands in the ledger.
ADD_UNLESS_ERASED = """
    INSERT OR IGNORE INTO sealed (value, keys, data, sum)
    SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM erased WHERE key = ?2)
"""
WHOLE = "SELECT value, keys, data FROM sealed WHERE value = ?1"
#: Without the sum: that stands behind the value itself, which needn't be read for this.
KEYS = "SELECT value, keys FROM sealed WHERE value > ?1 ORDER BY value"
SUMS = "SELECT value, keys, sum FROM sealed"
REMOVE = "DELETE FROM sealed WHERE value = ?1"
ERASED = "SELECT 1 FROM erased WHERE key = ?1"
ENTRY = "SELECT key, erasure, phase, noted_us, note, sum FROM erased WHERE key = ?1"
LEDGER = "SELECT key, erasure, phase, noted_us, note, sum FROM erased ORDER BY key"
UNFINISHED = """
    SELECT key, erasure, phase, noted_us, note, sum FROM erased INDEXED BY erased_unfinished
    WHERE phase < 5 ORDER BY key
"""
PUT = """
    INSERT INTO erased (key, erasure, phase, noted_us, note, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT DO UPDATE SET erasure = ?2, phase = ?3, noted_us = ?4, note = ?5, sum = ?6
"""

ID_BYTES = 16


def erased_among(db: apsw.Connection, key_ids: Iterable[bytes]) -> set[bytes]:
    """Which of these keys stand in the ledger."""
    return {key_id for key_id in set(key_ids) if db.execute(ERASED, (key_id,)).fetchall()}


def refusal(db: apsw.Connection, rows: Sequence[SealedRow]) -> KeyErased | None:
    """Why these can't be added, if so."""
    if len(rows) == 1 and len(rows[0][1]) == ID_BYTES:
        # Nearly always: one value, of one person.
        keys = rows[0][1]
        return None if db.execute(ERASED, (keys,)).fetchone() is None else KeyErased(frozenset({keys}))
    gone = erased_among(db, (key_id for _, keys, _ in rows for key_id in split_keys(keys))) if rows else ()
    return KeyErased(frozenset(gone)) if gone else None


def add_sealed(db: apsw.Connection, rows: Sequence[SealedRow]) -> None:
    db.executemany(ADD_SEALED, ((*row, keys_sum(row[0], row[1])) for row in rows if row[2]))


def add_single(db: apsw.Connection, row: SealedRow) -> bool:
    """Add a value of one person. False if it wasn't: its key was erased, it is here already, or it belongs to
    several."""
    if len(row[1]) != ID_BYTES or not row[2]:
        return False
    db.execute(ADD_UNLESS_ERASED, (*row, keys_sum(row[0], row[1])))
    return db.changes() == 1


def keys_sum(value_id: bytes, keys: bytes) -> int:
    """A checksum of whose value it is. That of the value itself stands in each reference to it."""
    return zlib.crc32(value_id + keys)


def page_under(db: apsw.Connection, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
    found = _under(db, key_ids, after, limit)
    rows: list[Any] = [row for value_id in found for row in db.execute(WHOLE, (value_id,)).fetchall()]
    return rows


def remove_under(db: apsw.Connection, key_ids: Sequence[bytes]) -> int:
    found = _under(db, key_ids, b"", None)
    db.executemany(REMOVE, ((value_id,) for value_id in found))
    return len(found)


def _under(db: apsw.Connection, key_ids: Sequence[bytes], after: bytes, limit: int | None) -> list[bytes]:
    """The values that need one of these keys, in order."""
    wanted = frozenset(key_ids)
    if not wanted:
        return []
    cursor = db.execute(KEYS, (after,))
    needed = (value for value, keys in cursor if keys in wanted or not wanted.isdisjoint(split_keys(keys)))
    found: list[Any] = list(islice(needed, limit))
    cursor.close(True)
    return found


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────


def read_ledger(db: apsw.Connection, *, unfinished: bool = False) -> list[ErasedKey]:
    statement = UNFINISHED if unfinished else LEDGER
    return [to_erased(columns) for columns in db.execute(statement).fetchall()]


def note(db: apsw.Connection, keys: Iterable[ErasedKey]) -> None:
    for entry in keys:
        known = [to_erased(columns) for columns in db.execute(ENTRY, (entry.key_id,)).fetchall()]
        _put(db, merged(known[0] if known else None, entry))


def carry_over(present: apsw.Connection, restored: apsw.Connection) -> bool:
    """Merge the ledger of a store into the backup that takes its place; whether something had to go."""
    theirs = {entry.key_id: entry for entry in read_ledger(restored)}
    for entry in read_ledger(present):
        theirs[entry.key_id] = brought_back(entry, theirs.get(entry.key_id))
        _put(restored, theirs[entry.key_id])
    return remove_under(restored, list(theirs)) > 0


def _put(db: apsw.Connection, entry: ErasedKey) -> None:
    columns = (entry.key_id, entry.erasure, entry.phase, entry.noted_us, entry.note)
    db.execute(PUT, (*columns, _sum(columns)))


def to_erased(columns: Any) -> ErasedKey:
    """An entry from its columns. Raises :class:`StateCorruptedError` if they don't fit their sum."""
    *rest, sum_ = columns
    if _sum(tuple(rest)) != sum_:
        raise StateCorruptedError(
            "the erasure ledger is damaged; see what store.verify() says", where="erasure ledger"
        )
    key_id, erasure, phase, noted_us, text = rest
    return ErasedKey(key_id=key_id, erasure=erasure, phase=phase, noted_us=noted_us, note=text)


def _sum(columns: tuple[Any, ...]) -> int:
    key_id, erasure, phase, noted_us, text = columns
    return zlib.crc32(key_id + erasure + phase.to_bytes(8, "big") + noted_us.to_bytes(8, "big") + text)


# ── health ───────────────────────────────────────────────────────────────────────────────────────


def damaged(db: apsw.Connection) -> Iterator[str]:
    """What is wrong with these tables. The sealed bytes themselves are covered by their references."""
    for columns in db.execute(LEDGER):
        try:
            to_erased(columns)
        except StateCorruptedError:
            yield "an entry of the erasure ledger fails its checksum"
    for value, keys, sum_ in db.execute(SUMS):
        if not keys or len(keys) % ID_BYTES or sum_ not in (None, keys_sum(value, keys)):
            yield f"of the sealed value {value.hex()} can't be told whose it is"
