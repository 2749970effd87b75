"""Backups of a whole SQLite store, and bringing one back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from everthread.errors import (
    NotAStoreError,
    StateCorruptedError,
    StorageWriteError,
    StoreUnavailableError,
    UsageError,
)
from everthread.stores import backup_file
from everthread.stores.sqlite.connection import close
from everthread.stores.sqlite.schema import LINES, Schema, identify, migrate
from everthread.stores.sqlite.tables import Layout

_STAMPS_JUMP = 1 << 32


def write_backup(source: apsw.Connection, path: str) -> None:
    """A complete copy at ``path``, which must not exist: there whole and on disk, or not at all."""
    if path.encode("utf-8", "replace").decode() != path:
        raise UsageError(f"SQLite writes files by names in UTF-8 only, and {path!a} isn't; use another")
    folder = backup_file.folder_for(path)
    partial = f"{path}.partial-{os.urandom(8).hex()}"
    try:
        _copy(source, partial)
        backup_file.put_in_place(partial, path, folder)
    except (OSError, apsw.IOError, apsw.FullError, apsw.CantOpenError) as error:
        raise StorageWriteError(
            f"the backup {path} couldn't be written ({error}); the store itself is as it was. "
            "Make room or choose another place, then back up again"
        ) from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(partial + suffix)


@contextmanager
def open_backup(path: str, schema: Schema = LINES) -> Iterator[apsw.Connection]:
    """A private copy of a backup, checked before anything is touched."""
    backup_file.require_file(path)
    copy = apsw.Connection("")
    try:
        try:
            _read_backup(path, copy, schema)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise StateCorruptedError(
                f"the backup {path} is damaged; nothing was changed", where=path
            ) from error
        except apsw.Error as error:
            raise StoreUnavailableError(
                f"the backup {path} can't be read ({error}); nothing was changed"
            ) from error
        yield copy
    finally:
        close(copy)


def _read_backup(path: str, copy: apsw.Connection, schema: Schema) -> None:
    """Check a backup and copy it into ``copy``, where what older releases wrote is brought up to date."""
    source = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        if identify(source, path, schema) == 0:
            raise NotAStoreError(f"{path} isn't a backup of an Everthread store; nothing was changed")
        if source.pragma("integrity_check") != "ok":
            raise StateCorruptedError(f"the backup {path} is damaged; nothing was changed", where=path)
        _copy_pages(copy, source)
        migrate(copy, schema.migrations, schema.first)
    finally:
        close(source)


def replace_all(
    target: apsw.Connection,
    source: apsw.Connection,
    observer: apsw.Connection,
    prepare: Callable[[], bool],
) -> None:
    """Replace everything in ``target`` by what ``source``, a private copy, holds.

    ``prepare`` changes the copy by what the target holds and returns True if it removed something. It is
    called again if another process wrote meanwhile: ``observer``, another connection to the target, notices
    that.
    """
    while True:
        seen = observer.pragma("data_version")
        source.execute("BEGIN IMMEDIATE")
        some_went = prepare()
        source.execute("COMMIT")
        if some_went:
            # Their bytes would come along in free pages.
            source.execute("VACUUM")
        copy = target.backup("main", source, "main")
        try:
            # From the first page on nobody else writes. What was written before it has to be looked at, too.
            copy.step(1)
            if observer.pragma("data_version") == seen:
                copy.step(-1)
                return
        finally:
            copy.finish()


def renew_stamps(target: apsw.Connection, source: apsw.Connection, layout: Layout) -> None:
    """Give all keys of followed tables in ``source`` stamps that neither store ever gave out.

    A reader that continues from any stamp then sees all content again. What only ``target`` ever held becomes
    a tombstone. The numbers jump, because the store that the backup was made of may have given out more
    stamps since, even if ``target`` isn't that store.
    """
    for each in layout.followed:
        stamps: list[Any] = [db.execute(each.sql.highest).fetchone() for db in (target, source)]
        highest = max(stamp or 0 for (stamp,) in stamps)
        source.execute(each.sql.renumber, ((highest // _STAMPS_JUMP + 1) * _STAMPS_JUMP,))
        for owner, at in target.execute(each.sql.every_key):
            if not source.execute(each.sql.get, (owner, at)).fetchall():
                source.execute(each.sql.put, (owner, at, None))


def _copy_pages(target: apsw.Connection, source: apsw.Connection) -> None:
    copy = target.backup("main", source, "main")
    try:
        # All pages in one step: the transaction is seen whole or not at all.
        copy.step(-1)
    finally:
        copy.finish()


def _copy(source: apsw.Connection, path: str) -> None:
    """Copy a whole database into a new file and make sure that it is on disk."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    target = apsw.Connection(path)
    try:
        _copy_pages(target, source)
        # A backup is one file: no WAL beside it.
        try:
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        except (apsw.CorruptError, apsw.NotADBError) as error:
            # Written just now: it is the disk that fails, and not the store that is damaged.
            raise OSError(errno.EIO, f"what was just written can't be read: {error}") from error
    finally:
        close(target)
    backup_file.sync(path)
