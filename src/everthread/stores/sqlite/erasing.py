"""Erasure on SQLite: the ledger, the sealed values of somebody, and getting their bytes out of the files.

Deleting rows leaves their bytes in free pages, in the slack of pages in use and in the write-ahead log. What
gets all of it out is: zeros over what is deleted, VACUUM, which writes every page anew, and a checkpoint
that empties the log. The last one has to wait for readers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores.contract import ErasedKey, Progress, Purged, Residues, SealedRow
from everthread.stores.sqlite import sealed
from everthread.stores.sqlite.connecting import Settings
from everthread.stores.sqlite.connections import Connections
from everthread.stores.sqlite.reading import Reading
from everthread.stores.text_index import TextIndex

SECURE = "PRAGMA secure_delete = ON"
AS_USUAL = "PRAGMA secure_delete = OFF"
EMPTY_THE_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"

#: One try to empty the log keeps writers waiting for no longer than this; then they have a turn.
_TRY_MS = 50
_PAUSE_S = 0.02
#: VACUUM is asked how far it is after so many steps of SQLite's machine; a page takes about so many.
_STEPS = 20_000
_STEPS_A_PAGE = 25

_WAITING = (
    "a reader inside a transaction keeps the write-ahead log, which still holds what was there before; "
    "it is emptied when the reader is done and the store is purged again"
)


class Erasing:
    """What :class:`SqliteBackend` does about persons."""

    _settings: Settings
    _connections: Connections
    _texts: TextIndex

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        found = {}
        with Reading(self._connections, False, False) as db:
            for value_id in value_ids:
                row = sealed.read(db, value_id)
                if row is not None:
                    if type(row[1]) is not bytes:
                        raise StateCorruptedError("a personal value is damaged", where=value_id.hex())
                    found[value_id] = row[1]
        return found

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            sealed.note(db, keys)
            db.execute("COMMIT")

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        with Reading(self._connections, False, False) as db:
            return sealed.read_ledger(db, unfinished=unfinished)

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        with Reading(self._connections, False, False) as db:
            return sealed.erased_among(db, key_ids)

    def sealed_under(self, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
        with Reading(self._connections, True, True) as db:
            return sealed.page_under(db, key_ids, after, limit)

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        with self._connections as db, _overwriting(db):
            db.execute("BEGIN IMMEDIATE")
            removed = sealed.remove_under(db, key_ids)
            db.execute("COMMIT")
        return removed

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        until = time.monotonic() + timeout_s
        self._texts.drop()
        with self._connections as db, _overwriting(db), _told(db, progress):
            db.execute("VACUUM")
        while self._log_is_kept():
            if time.monotonic() >= until:
                return Purged(done=("database rewritten",), waiting=(_WAITING,))
            if progress is not None:
                progress("waiting for readers", 0.0)
            time.sleep(_PAUSE_S)
        return Purged(done=("database rewritten", "write-ahead log emptied"))

    def _log_is_kept(self) -> bool:
        """Try to empty the log; whether somebody still needs it."""
        with self._connections as db:
            db.set_busy_timeout(_TRY_MS)
            try:
                ((busy, _, _),) = db.execute(EMPTY_THE_LOG).fetchall()
            except apsw.BusyError:
                busy = 1
            finally:
                self._connections.wait_in_turn(db)
        return bool(busy)

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        from everthread.stores.byte_scan import search
        from everthread.stores.sqlite.raw import RawFile

        # Not in the -shm file: it holds numbers of pages and sums, and nobody but SQLite may open it.
        paths = [
            self._settings.path + ending for ending in ("", "-wal", "-journal", "-search", "-search-wal")
        ]
        return search([path for path in paths if os.path.exists(path)], needles, progress, RawFile)


@contextmanager
def _overwriting(db: apsw.Connection) -> Iterator[None]:
    """Let SQLite write zeros over what it deletes."""
    db.execute(SECURE).fetchall()
    try:
        yield
    finally:
        db.execute(AS_USUAL).fetchall()


@contextmanager
def _told(db: apsw.Connection, progress: Progress | None) -> Iterator[None]:
    """Tell how far a VACUUM is, as well as can be guessed from the steps that it has made."""
    if progress is None:
        yield
        return
    pages: Any = db.pragma("page_count")
    calls = 0

    def tell() -> bool:
        nonlocal calls
        calls += 1
        progress("rewriting the database", min(calls * _STEPS / (pages * _STEPS_A_PAGE), 0.99))
        return False

    db.set_progress_handler(tell, _STEPS)
    try:
        yield
    finally:
        db.set_progress_handler(None, _STEPS)
    progress("rewriting the database", 1.0)
