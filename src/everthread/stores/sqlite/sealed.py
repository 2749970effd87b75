"""Sealed values, the keys that they need, and the erasure ledger: tables and statements.

A value that is all that a version brings along stands *beside* it, in the version's own row, until that is
folded; the id of the value begins with the id of that row, which is how it is found. All others stand
*apart*, in a table of their own, and so do those whose row is gone: triggers of the schema see to that. No
value stands in both places.

Which values need somebody's key stands beside each value and nowhere else: an index of it would be one more
page to write in each save, and is asked for only by who reads the whole store anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores.contract import (
    ErasedKey,
    KeyErased,
    NewRow,
    SealedRow,
    erasure_after_restore,
    merged_erasure,
    split_keys,
)
from everthread.stores.sqlite.schema import SEQ_BITS

#: Appends a version as schema.APPEND does, with a sealed value ?8 beside it that needs the key ?9, unless
#: that stands in the ledger.
APPEND_BESIDE = """
    INSERT OR IGNORE INTO record (id, kind, first, hash, key, body, sum, sealed)
    VALUES (?1, ?2, ?1 & 0xffffffff, CASE WHEN ?6 = coalesce(
        (SELECT hash FROM record WHERE id BETWEEN (?1 >> 32) << 32 AND ?1 | 0xffffffff
            ORDER BY id DESC LIMIT 1),
        (SELECT start_hash FROM line WHERE id = ?1 >> 32)
    ) AND NOT EXISTS (SELECT 1 FROM erased WHERE erased.key = ?9) THEN ?3 END, ?4, ?5, ?7, ?8)
"""
#: ?5 is the row beside which it may stand already.
ADD_SEALED = """
    INSERT OR IGNORE INTO sealed_apart (value, keys, data, sum)
    SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM record WHERE id = ?5 AND substr(sealed, 1, 16) = ?1)
"""
#: The same for a value of one person, unless that person's key stands in the ledger.
ADD_UNLESS_ERASED = """
    INSERT OR IGNORE INTO sealed_apart (value, keys, data, sum)
    SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM erased WHERE key = ?2)
        AND NOT EXISTS (SELECT 1 FROM record WHERE id = ?5 AND substr(sealed, 1, 16) = ?1)
"""
#: In one statement: a fold between two of them could bring it from the one place to the other.
WHOLE = """
    SELECT substr(sealed, 17, 16), substr(sealed, 43) FROM record WHERE id = ?2 AND substr(sealed, 1, 16) = ?1
    UNION ALL
    SELECT keys, data FROM sealed_apart WHERE value = ?1
"""
#: Without the sum: that stands behind the value itself, which needn't be read for this.
APART = "SELECT value, keys FROM sealed_apart WHERE value > ?1 ORDER BY value"
#: In the order of their ids, too, as these begin with the row's.
BESIDE = """
    SELECT substr(sealed, 1, 16), substr(sealed, 17, 16) FROM record
    WHERE id >= ?2 AND typeof(sealed) = 'blob' AND substr(sealed, 1, 16) > ?1 ORDER BY id
"""
SUMS = "SELECT value, keys, sum FROM sealed"
ASTRAY = """
    SELECT substr(sealed, 1, 16) FROM record WHERE typeof(sealed) = 'blob'
        AND hex(substr(sealed, 1, 8)) <> printf('%016X', id)
"""
REMOVE_APART = "DELETE FROM sealed_apart WHERE value = ?1"
REMOVE_BESIDE = "UPDATE record SET sealed = NULL WHERE id = ?2 AND substr(sealed, 1, 16) = ?1"
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
ROW_ID_MAX = (1 << 63) - 1
#: So much of a version and its value together fits onto a page, with all that is around them. A value that
#: doesn't costs a page of its own in either place.
BESIDE_BYTES_MAX = 3_072


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


def beside(line: int, row: NewRow) -> bytes | None:
    """The sealed value of a version as it stands in that version's row; ``None`` if it doesn't."""
    if len(row.sealed) != 1 or row.chunks or row.guard or row.source is not None:
        return None
    value_id, keys, data = row.sealed[0]
    if (
        len(keys) != ID_BYTES
        or not data
        or len(row.body) + len(data) > BESIDE_BYTES_MAX
        or not value_id.startswith((line << SEQ_BITS | row.seq).to_bytes(8, "big"))
    ):
        return None
    # As keys_sum(): this is on the way of every save with a personal value.
    ids = value_id + keys
    return ids + b"%010d" % zlib.crc32(ids) + data


def split_beside(sealed: bytes) -> SealedRow:
    """The sealed value that :func:`beside` was made of."""
    return sealed[:ID_BYTES], sealed[ID_BYTES : 2 * ID_BYTES], sealed[2 * ID_BYTES + 10 :]


def place(value_id: bytes) -> int:
    """The id of the row beside which a value stands, should it stand beside one."""
    return int.from_bytes(value_id[:8], "big") & ROW_ID_MAX


def read(db: apsw.Connection, value_id: bytes) -> tuple[Any, Any] | None:
    """The keys and the sealed bytes of a value."""
    found: tuple[Any, Any] | None = db.execute(WHOLE, (value_id, place(value_id))).fetchone()
    return found


def add_sealed(db: apsw.Connection, rows: Sequence[SealedRow]) -> None:
    db.executemany(ADD_SEALED, (_columns(row) for row in rows if row[2]))


def add_single(db: apsw.Connection, row: SealedRow) -> bool:
    """Add a value of one person. False if it wasn't: its key was erased, it is here already, or it belongs to
    several."""
    if len(row[1]) != ID_BYTES or not row[2]:
        return False
    db.execute(ADD_UNLESS_ERASED, _columns(row))
    return db.changes() == 1


def _columns(row: SealedRow) -> tuple[bytes, bytes, bytes, int, int]:
    return (*row, keys_sum(row[0], row[1]), place(row[0]))


def keys_sum(value_id: bytes, keys: bytes) -> int:
    """A checksum of whose value it is. That of the value itself stands in each reference to it."""
    return zlib.crc32(value_id + keys)


def page_under(db: apsw.Connection, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
    rows = ((value_id, read(db, value_id)) for value_id in _under(db, key_ids, after, limit))
    return [(value_id, *row) for value_id, row in rows if row is not None]


def remove_under(db: apsw.Connection, key_ids: Sequence[bytes]) -> int:
    found = _under(db, key_ids, b"", None)
    db.executemany(REMOVE_APART, ((value_id,) for value_id in found))
    db.executemany(REMOVE_BESIDE, ((value_id, place(value_id)) for value_id in found))
    return len(found)


def _under(db: apsw.Connection, key_ids: Sequence[bytes], after: bytes, limit: int | None) -> list[bytes]:
    """The values that need one of these keys, in order. In a transaction: there are two places to look at."""
    wanted = frozenset(key_ids)
    if not wanted:
        return []
    apart, within = db.execute(APART, (after,)), db.execute(BESIDE, (after, place(after)))
    cursor: Iterator[Any] = merge(apart, within)
    needed = (value for value, keys in cursor if keys in wanted or not wanted.isdisjoint(split_keys(keys)))
    found = list(islice(needed, limit))
    apart.close(True)
    within.close(True)
    return found


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────


def read_ledger(db: apsw.Connection, *, unfinished: bool = False) -> list[ErasedKey]:
    statement = UNFINISHED if unfinished else LEDGER
    return [to_erased(columns) for columns in db.execute(statement).fetchall()]


def note(db: apsw.Connection, keys: Iterable[ErasedKey]) -> None:
    for entry in keys:
        known = [to_erased(columns) for columns in db.execute(ENTRY, (entry.key_id,)).fetchall()]
        _put(db, merged_erasure(known[0] if known else None, entry))


def carry_over(present: apsw.Connection, restored: apsw.Connection) -> bool:
    """Merge the ledger of a store into the backup that takes its place; whether something had to go."""
    theirs = {entry.key_id: entry for entry in read_ledger(restored)}
    for entry in read_ledger(present):
        theirs[entry.key_id] = erasure_after_restore(entry, theirs.get(entry.key_id))
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
    for (value,) in db.execute(ASTRAY):
        yield f"the sealed value {value.hex()} stands beside a version that it doesn't belong to"
