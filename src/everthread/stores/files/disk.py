"""What the file store needs of the disk: private files, durable writes, typed errors."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from everthread.arguments import LOOK_ONLY
from everthread.errors import EverthreadError, StorageWriteError, StoreUnavailableError

#: There is no space left.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

#: What the name of a file begins with while it is being written.
TEMPORARY = ".new-"


class Disk:
    """Writes files that only the owner can read; syncs them if ``durable``."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable

    def sync(self, file: int) -> None:
        """Make durable what was written to the file, and how long it is."""
        if self.durable:
            os.fdatasync(file)

    def sync_folder(self, path: str) -> None:
        """Make durable which files the folder holds."""
        if self.durable:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def make_folder(self, path: str) -> None:
        """Make a folder and its missing parents, and make durable that they exist."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_folder(parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.sync_folder(parent)

    def write_new(self, path: str, data: bytes) -> None:
        """Write a whole file over whatever was there. A crash before this returns may leave any part."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            write_at(file, data, 0)
            self.sync(file)
        finally:
            os.close(file)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the content of ``path``: at any moment the old or the new content is there, whole.

        The caller is the only one to write, so that an unfinished file of before can be written over. What
        isn't ``durable`` is seen by everybody at once and may be gone after a power cut.
        """
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, TEMPORARY + name)
        try:
            if durable:
                self.write_new(temporary, data)
            else:
                _UNSYNCED.write_new(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            self.sync_folder(folder)


_UNSYNCED = Disk(durable=False)


def write_at(file: int, data: bytes, offset: int) -> None:
    """All of it, however many writes it takes."""
    written = os.pwrite(file, data, offset)
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], offset + written)


def read_at(file: int, offset: int, length: int) -> bytes:
    """The bytes there; fewer than ``length`` where the file ends before."""
    data = os.pread(file, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    while data := os.pread(file, length - sum(map(len, parts)), offset + sum(map(len, parts))):
        parts.append(data)
    return b"".join(parts)


def read_file(path: str) -> bytes:
    """A whole file. Raises :class:`FileNotFoundError` if it isn't there."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(file, 0, os.fstat(file).st_size)
    finally:
        os.close(file)


def files_in(folder: str, ending: str) -> list[str]:
    """The finished files with this ending, by their names; none if there is no such folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        os.path.join(folder, name)
        for name in sorted(names)
        if name.endswith(ending) and not name.startswith(TEMPORARY)
    ]


def translated(error: OSError, path: str, *, writing: bool) -> EverthreadError:
    """What an error of the operating system means to the caller."""
    where = error.filename if isinstance(error.filename, str) else path
    reason = error.strerror or type(error).__name__
    if error.errno in FULL:
        return StorageWriteError(f"no space left to write {where} ({reason}); free some, then commit again")
    if error.errno in _FORBIDDEN:
        return StoreUnavailableError(f"{where} can't be read and written by this user: {reason}; {LOOK_ONLY}")
    if writing:
        return StorageWriteError(
            f"writing {where} failed ({reason}); its file was given up and will be opened anew. "
            "Commit again: a version that had landed is recognised"
        )
    return StoreUnavailableError(f"reading {where} failed: {reason}; look at the disk and try again")
