"""Where a keyring keeps its records by default: the file ``keys.jsonl`` in a directory of its own.

Also what that needs of the disk: checked modes, writes that are durable when they return, a lock.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from everthread.errors import KeyringError, StoreBusyError
from everthread.stores.byte_scan import search
from everthread.stores.contract import Residues
from everthread.stores.urls import file_identity

_LOCK_POLL_S = 0.002


class FileMedium:
    """The records in a file. The lock file beside it keeps processes apart: see :class:`Medium`."""

    kind = "file"
    #: Looking at a file costs next to nothing, so every use of a key looks.
    trust_s = 0.0

    def __init__(self, directory: Path, lock_timeout_ms: int) -> None:
        self._directory = directory
        self._path = directory / "keys.jsonl"
        #: The same as text: it is looked at before every use.
        self.where = str(self._path)
        self._lock = FileLock(directory / "lock", lock_timeout_ms)
        #: Held open, so that its inode number can't come to stand for another file meanwhile.
        self._fd = -1
        #: The file that was replaced, until its bytes have been overwritten.
        self._old_fd = -1

    def look(self) -> tuple[object, int] | None:
        try:
            found = os.stat(self.where)
        except FileNotFoundError:
            return None
        return (found.st_dev, found.st_ino), found.st_size

    def held(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return self._lock.held(exclusive=exclusive)

    def read(self, offset: int) -> bytes:
        check_directory(self._directory)
        check_file(self._path)
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return read_from(self._fd, offset)

    def append(self, records: bytes, end: int) -> None:
        append_at(self._path, records, end)

    def replace(self, records: Sequence[bytes]) -> None:
        check_directory(self._directory)
        self._close_old()
        with suppress(FileNotFoundError):
            self._old_fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        if self._old_fd < 0:
            sync_parents(self._directory)
        replace_file(self._path, b"".join(records))

    def wipe(self) -> None:
        if self._old_fd >= 0:
            overwrite(self._old_fd)
            self._close_old()

    def _close_old(self) -> None:
        fd, self._old_fd = self._old_fd, -1
        if fd >= 0:
            os.close(fd)

    def make_durable(self, end: int) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            sync_directory(self._directory)

    def create(self) -> None:
        make_directory(self._directory)

    def identity(self) -> str | None:
        try:
            return file_identity(str(self._directory))
        except FileNotFoundError:
            return None

    def residues(self, needles: Sequence[bytes]) -> Residues:
        from everthread.stores.sqlite.files import RawFile

        names = sorted(os.listdir(self._directory)) if self._directory.is_dir() else []
        # A SQLite store in the same folder doesn't lose its locks by this.
        paths = [str(self._directory / name) for name in names if not name.endswith("-shm")]
        return search([path for path in paths if os.path.isfile(path)], needles, opened=RawFile)

    # Bound here: at the end of the interpreter the module may be gone before the last keyring.
    def forget(self, close_fd: Callable[[int], None] = os.close) -> None:
        for fd in (self._fd, self._old_fd):
            if fd >= 0:
                close_fd(fd)
        self._fd = self._old_fd = -1

    def close(self) -> None:
        self.forget()

    # Nothing is lost by dropping a keyring that was not closed, so it may happen without a warning.
    def __del__(self) -> None:
        self.forget()


class FileLock:
    """A lock between processes, on a file of its own. Threads of one process need a mutex besides."""

    def __init__(self, path: Path, timeout_ms: int) -> None:
        self.path = path
        self._timeout_ms = timeout_ms
        self._fd: int | None = None

    @contextmanager
    def held(self, *, exclusive: bool = False) -> Iterator[None]:
        """Hold the lock; within a holder this does nothing. Raises :class:`StoreBusyError` in the end."""
        if self._fd is not None:
            yield
            return
        fd = self._open(exclusive)
        if fd is None:
            yield
            return
        try:
            self._wait(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            self._fd = fd
            try:
                yield
            finally:
                self._fd = None
                # Closing alone would not free it while a forked child still has the descriptor.
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)

    def _open(self, exclusive: bool) -> int | None:
        flags = os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY
        try:
            return os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if exclusive:
                raise
            # The keyring was copied without its lock file, and nobody has written to it since.
            return None

    def _wait(self, fd: int, how: int) -> None:
        give_up_s = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise StoreBusyError(
                        f"another process has kept {self.path} locked for {self._timeout_ms:,} ms"
                    ) from None
            time.sleep(_LOCK_POLL_S)


def check_directory(path: Path) -> None:
    """Raise :class:`KeyringError` if others may replace the files in ``path``."""
    _check_mode(path, stat.S_IWGRP | stat.S_IWOTH, "can be written by others", "700")


def check_file(path: Path) -> None:
    """Raise :class:`KeyringError` if others may read or write ``path``."""
    _check_mode(path, stat.S_IRWXG | stat.S_IRWXO, "is open to others", "600")


def make_directory(path: Path) -> None:
    """Make ``path`` and its missing parents, for the owner alone."""
    if not path.is_dir():
        make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)


def sync_parents(path: Path) -> None:
    """Make durable that ``path`` exists, whoever made the directories on the way to it."""
    for parent in path.parents:
        # A directory that this user can't list wasn't made by this user either.
        with suppress(PermissionError):
            sync_directory(parent)


def sync_directory(path: Path) -> None:
    """Make durable which files the directory holds."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, data: bytes) -> None:
    """Write a whole file. A crash before this returns may leave any part of it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # The file may be left over from before, with another mode.
        os.fchmod(fd, 0o600)
        write_at(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``: after a crash either content is there, whole."""
    temporary = path.with_name(path.name + ".tmp")
    write_file(temporary, data)
    os.rename(temporary, path)
    sync_directory(path.parent)


def append_at(path: Path, data: bytes, end: int) -> None:
    """Put ``data`` at ``end``, cutting off what stood there. If writing fails the file ends at ``end``."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size > end:
            os.ftruncate(fd, end)
        try:
            write_at(fd, data, end)
            os.fsync(fd)
        except OSError:
            # Otherwise another process could read what never reached the disk, and rely on it.
            with suppress(OSError):
                os.ftruncate(fd, end)
            raise
    finally:
        os.close(fd)


def overwrite(fd: int) -> None:
    """Write zeros over a file that is about to go or gone, so that its blocks don't keep what it said.

    A best effort, which never raises: solid-state disks and copy-on-write file systems write elsewhere.
    """
    with suppress(OSError):
        write_at(fd, bytes(os.fstat(fd).st_size), 0)
        os.fsync(fd)


def read_from(fd: int, offset: int) -> bytes:
    """What stands in the file from ``offset`` to its end."""
    chunks = []
    while chunk := os.pread(fd, 1 << 20, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _check_mode(path: Path, forbidden: int, problem: str, mode: str) -> None:
    if path.stat().st_mode & forbidden:
        raise KeyringError(f"{path} {problem}; close it with: chmod {mode} {shlex.quote(str(path))}")
