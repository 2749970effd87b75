"""The write-ahead log as a file: making sure that what can be read there is on the disk, too.

SQLite syncs the log at each commit. Two cases need more than that. A process that was killed may have
written a commit without having synced it: the next process can read it, and might tell somebody that it is
there. And a sync may fail: kernels then drop what they couldn't write, still show it, and report success
the next time, so that a power cut takes the commit and every one behind it in the log.

And a log that has its full length from the start is quicker to sync: while a file grows, each sync writes its
new length, too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import StorageWriteError, StoreUnavailableError

if TYPE_CHECKING:
    import apsw

#: SQLite hands at most 128 KiB to one write.
_PIECE_BYTES = 1 << 16
#: A log is in use once it has this fraction of its full length.
_IN_USE = 32


def failed_to_sync(error: apsw.Error) -> bool:
    """Whether an engine's error says that a sync failed."""
    import apsw

    return bool(getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC)


def sync_log(path: str) -> None:
    """Sync the log of a store, if it has one."""
    try:
        handle = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailableError(
            f"can't open {path}-wal: {error.strerror}; look at the disk and try again"
        ) from error
    try:
        # A sync costs as much as a commit: not for a log that SQLite has just made.
        if os.fstat(handle).st_size:
            os.fsync(handle)
    except OSError as error:
        raise StorageWriteError(
            f"the log of {path} can't be synced ({error.strerror}); look at the disk, then open it again"
        ) from error
    finally:
        os.close(handle)


def rewrite_log(path: str, vfs: str | None) -> None:
    """Write the log once more, byte for byte, and sync it: what was dropped is on its way again.

    The caller keeps writers away. Readers may go on: no byte changes. Raises what the engine raises.
    """
    import apsw

    if not os.path.exists(path + "-wal"):
        return
    file = apsw.VFSFile(vfs or "", path + "-wal", [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0])
    try:
        size = file.xFileSize()
        for start in range(0, size, _PIECE_BYTES):
            file.xWrite(file.xRead(min(_PIECE_BYTES, size - start), start), start)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()


def grow_log(path: str, vfs: str | None, size: int) -> None:
    """Fill the log with zeros up to ``size``, once it is in use; SQLite takes them for its end.

    Not while it is short: who opens a store for one commit after the other has a new log each time, and would
    wait for all these zeros whenever it is closed again. The caller keeps writers away. It needn't succeed:
    SQLite makes the log longer itself where it must.
    """
    import apsw

    with suppress(OSError):
        if not size // _IN_USE < os.stat(path + "-wal").st_size < size:
            return
    with suppress(apsw.Error):
        file = apsw.VFSFile(vfs or "", path + "-wal", [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0])
        try:
            for start in range(file.xFileSize(), size, _PIECE_BYTES):
                file.xWrite(bytes(min(_PIECE_BYTES, size - start)), start)
        finally:
            file.xClose()
