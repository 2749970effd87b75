"""Backups of a whole SQLite store, and bringing one back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from everthread.errors import NotAStoreError, StateCorruptedError, StoreUnavailableError, UsageError
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.cells import highest_revision, raise_revisions
from everthread.stores.sqlite.connections import identify, translated


def write_backup(source: apsw.Connection, path: str) -> None:
    """A complete copy at ``path``, which must not exist: there whole and on disk, or not at all."""
    if not path or "\0" in path or os.path.exists(path):
        raise UsageError(f"name a file that doesn't exist yet, not {path!r}; nothing is overwritten")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StoreUnavailableError(f"the folder {folder} doesn't exist; create it, or choose another place")
    partial = f"{path}.partial-{os.urandom(8).hex()}"
    try:
        _copy(source, partial)
        try:
            # Unlike a rename this never replaces a file that was made meanwhile.
            os.link(partial, path)
        except FileExistsError:
            raise UsageError(f"{path} was made by somebody else meanwhile; nothing is overwritten") from None
        os.unlink(partial)
        _sync(folder)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


@contextmanager
def open_backup(path: str) -> Iterator[apsw.Connection]:
    """A backup, checked before anything is touched."""
    if not path or "\0" in path or not os.path.isfile(path):
        raise StoreUnavailableError(f"there is no backup at {path!r}")
    source = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        try:
            if identify(source, path) == 0:
                raise NotAStoreError(f"{path} isn't a backup of an Everthread store; nothing was changed")
            if source.pragma("integrity_check") != "ok":
                raise StateCorruptedError(f"the backup {path} is damaged; nothing was changed", where=path)
        except apsw.Error as error:
            raise translated(error, path) from error
        yield source
    finally:
        source.close(True)


def replace_all(target: apsw.Connection, source: apsw.Connection) -> None:
    """Replace everything in ``target`` by what ``source`` holds."""
    lines: Any = target.execute(schema.LINES_EVER).fetchall()[0]
    revision = highest_revision(target)
    with target.backup("main", source, "main") as copy:
        # All pages in one step: the transaction is seen whole or not at all.
        copy.step(-1)
    target.execute("BEGIN IMMEDIATE")
    # Handles made before must never find another thread under their line's id, nor another value under a
    # cell's revision.
    target.execute(schema.KEEP_LINES_EVER, lines)
    raise_revisions(target, revision)
    target.execute("COMMIT")


def _copy(source: apsw.Connection, path: str) -> None:
    """Copy a whole database into a new file and make sure that it is on disk."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    target = apsw.Connection(path)
    try:
        with target.backup("main", source, "main") as copy:
            copy.step(-1)
        # A backup is one file: no WAL beside it.
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
    finally:
        target.close(True)
    _sync(path)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
