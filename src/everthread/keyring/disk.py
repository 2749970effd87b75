"""What a file keyring needs of the disk: checked modes, writes that are durable when they return, a lock."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everthread.errors import KeyringError, StoreBusyError

_LOCK_POLL_S = 0.002


class FileLock:
    """A lock between processes, on a file of its own. Threads of one process take turns by other means."""

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

    def forget_after_fork(self) -> None:
        """In a child: what another thread of the parent holds is not ours."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, exclusive: bool) -> int | None:
        flags = os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY
        try:
            return os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if exclusive:
                raise
            # A copy that was made without it, and that nobody has written to since.
            return None

    def _wait(self, fd: int, how: int) -> None:
        give_up = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= give_up:
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
        # What this user can't list, it can't have made either.
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
            # Otherwise another process could read, and rely on, what the disk never got.
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
