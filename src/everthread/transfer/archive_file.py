"""An archive as a file: written beside its name and put there whole, read record by record."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from hashlib import sha256
from typing import BinaryIO, Self

from everthread.codec.archive import (
    MAGIC,
    RECORD_BYTES_MAX,
    EndEntry,
    Entry,
    Header,
    read_entry,
    write_entry,
)
from everthread.errors import (
    NotFoundError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
    UsageError,
)
from everthread.stores.sqlite.files import RawFile

#: What an archive is called until it is complete.
PARTIAL = ".partial"


class ArchiveWriter:
    """Writes for the owner alone. The file has its name only when it is whole and durable."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._partial = path + PARTIAL
        self._digest = sha256()
        self._count = 0
        self.bytes = 0
        if os.path.lexists(path):
            raise UsageError(f"{path} is there already; an archive never overwrites anything")
        self._file = self._open()
        self._write(MAGIC)

    def _open(self) -> BinaryIO:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(self._partial, flags, 0o600), "wb", buffering=1024 * 1024)
        except FileNotFoundError as error:
            folder = os.path.dirname(os.path.abspath(self._path))
            raise StoreUnavailableError(
                f"the folder {folder} doesn't exist; create it, or choose another place"
            ) from error
        except OSError as error:
            raise StoreUnavailableError(f"can't write {self._partial}: {error.strerror}") from error
        try:
            # What an export that was killed left behind is nobody's; one that runs holds the lock.
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file.fileno(), 0)
        except OSError as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise StoreBusyError(f"somebody else is writing {self._path} right now") from None
            raise StoreUnavailableError(f"can't write {self._partial}: {error.strerror}") from error
        return file

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._digest.update(data)
        self.bytes += len(data)

    def add(self, entry: Entry) -> None:
        self._write(write_entry(self._count, entry))
        self._count += 1

    def finish(self) -> None:
        """Say that this is all, make it durable, and give the file its name."""
        self.add(EndEntry(self._count, self._digest.digest()))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            # Unlike a rename, this never replaces what somebody put there meanwhile.
            os.link(self._partial, self._path)
            os.unlink(self._partial)
            folder = os.open(os.path.dirname(os.path.abspath(self._path)), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageWriteError:
        return StorageWriteError(f"writing {self._path} failed ({error.strerror}); no archive was made")

    def abandon(self) -> None:
        """Remove what was written, unless it was finished."""
        if not self._file.closed:
            with suppress(OSError):
                os.unlink(self._partial)
            with suppress(OSError):
                self._file.close()


def _check_kind(path: str) -> None:
    """Raise :class:`UsageError` for a file that is no archive. One that is a SQLite store, and open in this
    process, would lose its locks if somebody else opened and closed it."""
    if os.path.isfile(path):
        with closing(RawFile(path)) as file:
            if file.read(len(MAGIC), 0) != MAGIC:
                raise _no_archive(path)


def _no_archive(path: str) -> UsageError:
    return UsageError(f"{path} isn't an Everthread archive; store.restore() reads backups")


class ArchiveReader:
    """Reads an archive from the beginning; every record is checked, the end against all before it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._digest = sha256(MAGIC)
        self._count = 0
        self._ended = False
        #: Where the last record begins, and its number; and where the next one does.
        self.place = (0, 0)
        self._next_at = len(MAGIC)
        try:
            _check_kind(path)
            self._file = open(path, "rb", buffering=1024 * 1024)  # noqa: SIM115 - closed by close()
        except FileNotFoundError:
            raise NotFoundError(f"there is no archive at {path}") from None
        except OSError as error:
            raise StoreUnavailableError(f"can't read {path}: {error.strerror}") from error
        try:
            if self._read(len(MAGIC)) != MAGIC:
                raise _no_archive(path)
            header = self.next()
            if not isinstance(header, Header):
                raise StateCorruptedError(f"{path} doesn't begin with a header", where=path)
        except BaseException:
            self.close()
            raise
        self.header = header

    def _read(self, length: int) -> bytes:
        try:
            return self._file.read(length)
        except OSError as error:
            raise StoreUnavailableError(f"reading {self._path} failed: {error.strerror}") from error

    def next(self) -> Entry | None:
        """The next entry; ``None`` after the last. Raises :class:`StateCorruptedError` on damage."""
        if self._ended:
            return None
        prefix = self._read(4)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 4 or not 0 < length <= RECORD_BYTES_MAX:
            raise self._damaged("it ends too early" if len(prefix) < 4 else "a record has no sensible length")
        data = self._read(length)
        if len(data) < length:
            raise self._damaged("it ends too early")
        entry = read_entry(data, self._count)
        self.place, self._next_at = (self._next_at, self._count), self._next_at + 4 + length
        if isinstance(entry, EndEntry):
            if (entry.count, entry.digest) != (self._count, self._digest.digest()):
                raise self._damaged("its end doesn't fit what comes before")
            if self._read(1):
                raise self._damaged("something follows its end")
            self._ended = True
            return None
        self._digest.update(prefix + data)
        self._count += 1
        return entry

    def look_back(self, place: tuple[int, int]) -> Entry:
        """A record that was read before, again."""
        at, number = place
        try:
            self._file.seek(at)
            entry = read_entry(self._read(int.from_bytes(self._read(4), "little")), number)
            self._file.seek(self._next_at)
        except OSError as error:
            raise StoreUnavailableError(f"reading {self._path} failed: {error.strerror}") from error
        return entry

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self.next()) is not None:
            yield entry

    def _damaged(self, why: str) -> StateCorruptedError:
        return StateCorruptedError(f"{self._path} is damaged: {why}. Nothing was changed", where=self._path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
