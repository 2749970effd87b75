"""Personal values and the erasure ledger."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores.byte_scan import search
from everthread.stores.contract import (
    ErasedKey,
    KeyErased,
    Progress,
    Purged,
    Residues,
    SealedRow,
    erasure_after_restore,
    merged_erasure,
    split_keys,
)
from everthread.stores.sqlite.connection import Connections, Reading, Settings
from everthread.stores.sqlite.files import RawFile
from everthread.stores.sqlite.purging import READER_KEEPS_LOG, overwriting, rewrite
from everthread.stores.sqlite.schema import SQL
from everthread.stores.text_index import TextIndex

#: The length of the id of a value, and of a key.
ID_BYTES = 16


class ErasureVerbs:
    """The contract's verbs for personal values and erasures."""

    _settings: Settings
    _connections: Connections
    _texts: TextIndex

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        found = {}
        with Reading(self._connections) as db:
            for value_id in value_ids:
                row = read(db, value_id)
                if row is not None:
                    if type(row[1]) is not bytes:
                        raise StateCorruptedError("a personal value is damaged", where=value_id.hex())
                    found[value_id] = row[1]
        return found

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            note(db, keys)
            db.execute("COMMIT")

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        with Reading(self._connections) as db:
            return read_ledger(db, unfinished=unfinished)

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        with Reading(self._connections) as db:
            return erased_among(db, key_ids)

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        with Reading(self._connections, together=True) as db:
            return page_under(db, key_ids, after, limit)

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        with self._connections as db, overwriting(db):
            db.execute("BEGIN IMMEDIATE")
            removed = remove_under(db, key_ids)
            db.execute("COMMIT")
        return removed

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        self._texts.drop()
        if rewrite(self._connections, timeout_s, progress):
            return Purged(done=("database rewritten", "write-ahead log emptied"))
        return Purged(done=("database rewritten",), waiting=(READER_KEEPS_LOG,))

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        # Not in the -shm file: it holds numbers of pages and sums, and nobody but SQLite may open it.
        paths = [
            self._settings.path + ending for ending in ("", "-wal", "-journal", "-search", "-search-wal")
        ]
        return search([path for path in paths if os.path.exists(path)], needles, progress, RawFile)


# ── personal values ──


def erased_among(db: apsw.Connection, key_ids: Iterable[bytes]) -> set[bytes]:
    """Which of these keys stand in the ledger."""
    return {key_id for key_id in set(key_ids) if db.execute(SQL["is_erased"], (key_id,)).fetchall()}


def refusal(db: apsw.Connection, rows: Sequence[SealedRow]) -> KeyErased | None:
    """Why these can't be added, if so."""
    if len(rows) == 1 and len(rows[0][1]) == ID_BYTES:
        # Nearly always: one value, of one person.
        keys = rows[0][1]
        erased = db.execute(SQL["is_erased"], (keys,)).fetchone() is not None
        return KeyErased(frozenset({keys})) if erased else None
    gone = erased_among(db, (key_id for _, keys, _ in rows for key_id in split_keys(keys))) if rows else ()
    return KeyErased(frozenset(gone)) if gone else None


def read(db: apsw.Connection, value_id: bytes) -> tuple[Any, Any] | None:
    """The keys and the sealed bytes of a value."""
    found: tuple[Any, Any] | None = db.execute(SQL["sealed"], (value_id,)).fetchone()
    return found


def add_sealed(db: apsw.Connection, rows: Sequence[SealedRow]) -> None:
    db.executemany(SQL["add_sealed"], (_columns(row) for row in rows if row[2]))


def add_single(db: apsw.Connection, row: SealedRow) -> bool:
    """Add a value of one person. False if it wasn't: its key was erased, it is here already, or it belongs to
    several."""
    if len(row[1]) != ID_BYTES or not row[2]:
        return False
    db.execute(SQL["add_unless_erased"], _columns(row))
    return db.changes() == 1


def _columns(row: SealedRow) -> tuple[bytes, bytes, int, bytes]:
    value_id, keys, data = row
    return value_id, keys, keys_sum(value_id, keys), data


def keys_sum(value_id: bytes, keys: bytes) -> int:
    """A checksum of whose value it is. That of the value itself stands in each reference to it."""
    return zlib.crc32(value_id + keys)


def page_under(
    db: apsw.Connection, key_ids: Sequence[bytes] | None, after: bytes, limit: int
) -> list[SealedRow]:
    rows = ((value_id, read(db, value_id)) for value_id in _needing(db, key_ids, after, limit))
    return [(value_id, *row) for value_id, row in rows if row is not None]


def remove_under(db: apsw.Connection, key_ids: Sequence[bytes]) -> int:
    found = _needing(db, key_ids, b"", None)
    db.executemany(SQL["remove_sealed"], ((value_id,) for value_id in found))
    return len(found)


def _needing(
    db: apsw.Connection, key_ids: Sequence[bytes] | None, after: bytes, limit: int | None
) -> list[bytes]:
    """The values that need one of these keys, in order; all of them without any that are named."""
    every, wanted = key_ids is None, frozenset(key_ids or ())
    if not every and not wanted:
        return []
    cursor: Any = db.execute(SQL["sealed_keys"], (after,))
    try:
        needed = (
            value
            for value, keys in cursor
            if every or keys in wanted or not wanted.isdisjoint(split_keys(keys))
        )
        found = list(islice(needed, limit))
    except TypeError:
        raise StateCorruptedError(
            "whose a personal value is can't be read; see what store.verify() says", where="sealed"
        ) from None
    cursor.close(True)
    return found


# ── the ledger ──


def read_ledger(db: apsw.Connection, *, unfinished: bool = False) -> list[ErasedKey]:
    statement = SQL["unfinished_erasures"] if unfinished else SQL["erasures"]
    return [to_erased(columns) for columns in db.execute(statement).fetchall()]


def note(db: apsw.Connection, keys: Iterable[ErasedKey]) -> None:
    for entry in keys:
        known = [to_erased(columns) for columns in db.execute(SQL["erasure"], (entry.key_id,)).fetchall()]
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
    db.execute(SQL["put_erasure"], (*columns, _sum(columns)))


def to_erased(columns: Any) -> ErasedKey:
    """An entry from its columns. Raises :class:`StateCorruptedError` if they don't fit their sum."""
    *rest, sum_ = columns
    try:
        fits = _sum(tuple(rest)) == sum_
    except (AttributeError, TypeError, ValueError, OverflowError):
        # On a damaged page any column may come with any type.
        fits = False
    if not fits:
        raise StateCorruptedError(
            "the erasure ledger is damaged; see what store.verify() says", where="erasure ledger"
        )
    key_id, erasure, phase, noted_us, text = rest
    return ErasedKey(key_id=key_id, erasure=erasure, phase=phase, noted_us=noted_us, note=text)


def _sum(columns: tuple[Any, ...]) -> int:
    key_id, erasure, phase, noted_us, text = columns
    return zlib.crc32(key_id + erasure + phase.to_bytes(8, "big") + noted_us.to_bytes(8, "big") + text)


# ── checks ──


def damaged(db: apsw.Connection) -> Iterator[str]:
    """What is wrong with these tables. The sealed bytes themselves are covered by their references."""
    for columns in db.execute(SQL["erasures"]):
        try:
            to_erased(columns)
        except StateCorruptedError:
            yield "an entry of the erasure ledger fails its checksum"
    for value, keys, sum_ in db.execute(SQL["sealed_sums"]):
        if not keys or len(keys) % ID_BYTES or sum_ != keys_sum(value, keys):
            yield f"whose the personal value {value.hex()} is can't be told: it fails its checksum"
