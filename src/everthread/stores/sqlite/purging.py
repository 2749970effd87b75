"""Removal of the bytes that deleted and replaced values left in the files of a SQLite store.

Deleting rows leaves their bytes in free pages, in the slack of pages in use and in the write-ahead log. A
purge removes all of them: it overwrites deleted content with zeros, rewrites every page (VACUUM), and empties
the log with a checkpoint, which has to wait for readers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from everthread.stores.interface import Progress
from everthread.stores.sqlite.connection import Connections

READER_KEEPS_LOG = (
    "a reader inside a transaction keeps the write-ahead log, which still holds earlier content; purge again "
    "when the reader is done"
)
#: One attempt to empty the log delays writers for no longer than this.
_EMPTY_LOG_MS = 50
_PAUSE_S = 0.02
#: VACUUM reports its progress after this many steps of SQLite's machine; a page takes about so many.
_STEPS, _STEPS_PER_PAGE = 20_000, 25


def rewrite(connections: Connections, timeout_s: float, progress: Progress | None = None) -> bool:
    """Rewrite all pages and empty the log. Return False if a reader kept the log for ``timeout_s``."""
    until = time.monotonic() + timeout_s
    with connections as db, overwriting(db), _reporting(db, progress):
        db.execute("VACUUM")
    while not empty_log(connections):
        if time.monotonic() >= until:
            return False
        if progress is not None:
            progress("waiting for readers", 0.0)
        time.sleep(_PAUSE_S)
    return True


def empty_log(connections: Connections) -> bool:
    """Move the content of the log into the database. Return False if a reader still needs the log."""
    with connections as db:
        db.set_busy_timeout(_EMPTY_LOG_MS)
        try:
            ((busy, _, _),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except apsw.BusyError:
            return False
        finally:
            connections.set_busy_handler(db)
    return not busy


@contextmanager
def overwriting(db: apsw.Connection) -> Iterator[None]:
    """Make SQLite overwrite deleted content with zeros."""
    db.execute("PRAGMA secure_delete = ON").fetchall()
    try:
        yield
    finally:
        db.execute("PRAGMA secure_delete = OFF").fetchall()


@contextmanager
def _reporting(db: apsw.Connection, progress: Progress | None) -> Iterator[None]:
    """Report the progress of VACUUM, estimated from the steps it has made."""
    if progress is None:
        yield
        return
    pages: Any = db.pragma("page_count")
    calls = 0

    def report() -> bool:
        nonlocal calls
        calls += 1
        progress("rewriting the database", min(calls * _STEPS / (pages * _STEPS_PER_PAGE), 0.99))
        return False

    db.set_progress_handler(report, _STEPS)
    try:
        yield
    finally:
        db.set_progress_handler(None, _STEPS)
    progress("rewriting the database", 1.0)
