"""The bytes of a database's file, read while it may be open in this process.

On POSIX systems locks belong to a process, and closing any descriptor of a file frees all of them: also those
of SQLite. Another process that closes the database would then believe that it is the last one, and delete the
log that this one goes on writing to. SQLite's own way to open a file keeps count, and lets go of a descriptor
only when nothing is locked any more. Its ``-shm`` file isn't counted so: nobody but SQLite may open that.
"""

from __future__ import annotations

import errno
import os

import apsw

from everthread.stores.urls import real_path

_FLAGS = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY


class RawFile:
    """One file, read only. Raises ``OSError`` as opening and reading a file does."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # SQLite follows no links at this place.
            self._file = apsw.VFSFile("", os.path.abspath(real_path(path)), [_FLAGS, 0])
        except apsw.Error as error:
            raise _failed(error, path) from error

    def size(self) -> int:
        return self._file.xFileSize()

    def read(self, count: int, offset: int) -> bytes:
        """So many bytes; fewer where the file ends."""
        # SQLite doesn't tell how much there was, and fills the rest with zeros.
        count = min(count, self.size() - offset)
        if count <= 0:
            return b""
        try:
            return self._file.xRead(count, offset)
        except apsw.Error as error:
            raise _failed(error, self._path) from error

    def close(self) -> None:
        self._file.xClose()


def _failed(error: apsw.Error, path: str) -> OSError:
    if not os.path.lexists(path):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.access(path, os.R_OK):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return OSError(errno.EIO, str(error), path)
