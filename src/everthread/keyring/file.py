"""A keyring in a directory of its own: ``master.key``, ``keys.jsonl`` and a lock file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from everthread.codec.seal import RandomBytes
from everthread.keyring.disk import (
    FileLock,
    append_at,
    check_directory,
    check_file,
    make_directory,
    overwrite,
    read_from,
    replace_file,
    sync_directory,
    sync_parents,
)
from everthread.keyring.lines import LineKeyring
from everthread.keyring.master import MasterKeeper, MasterKey
from everthread.stores.byte_scan import search
from everthread.stores.contract import Residues

#: Put behind the lines of a file that is about to be replaced: the beginning of a line, which is none.
_SUPERSEDED = b"{"


class FileKeyring(LineKeyring):
    """Keys of subjects in ``directory``, shared by any number of threads and processes of one machine.

    The master key comes from ``master`` if given, else from the environment variable
    ``EVERTHREAD_MASTER_KEY`` if set, else from the file ``master.key``; a keyring stays with the source it
    was created with. Another process is waited for up to ``lock_timeout_ms``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        master: MasterKey | None = None,
        random_bytes: RandomBytes = os.urandom,
        *,
        lock_timeout_ms: int = 10_000,
    ) -> None:
        self.directory = Path(os.path.abspath(directory))
        medium = _Directory(self.directory, lock_timeout_ms)
        super().__init__(medium, MasterKeeper(self.directory / "master.key", master), random_bytes)

    def __repr__(self) -> str:
        return f"FileKeyring({str(self.directory)!r})"


class _Directory:
    """The lines in the file ``keys.jsonl`` of a directory."""

    def __init__(self, directory: Path, lock_timeout_ms: int) -> None:
        self._directory = directory
        self._path = directory / "keys.jsonl"
        #: The same as text: it is looked at before every use.
        self._text = str(self._path)
        self._lock = FileLock(directory / "lock", lock_timeout_ms)
        self.where = str(self._path)
        #: Held open, so that its inode number can't come to stand for another file meanwhile.
        self._fd = -1
        self._names = self._changed_ns = 0

    def look(self) -> tuple[object, int] | None:
        try:
            found = os.stat(self._text)
        except FileNotFoundError:
            return None
        # Device, inode number and size, by place: by name each costs half as much as asking the system.
        return (found[2], found[1]), found[6]

    def grown(self, size: int) -> bool:
        # Who adds lines makes the file longer, and so does who replaces it, before that. How long it is costs
        # a save a fraction of what all else about it does.
        try:
            return os.lseek(self._fd, 0, os.SEEK_END) != size
        except OSError:
            return True

    def stays(self, generation: object, size: int) -> bool:
        # A file that was replaced has one name less than when it was read, and if somebody gave it another
        # one meanwhile, it was changed since.
        try:
            found = os.fstat(self._fd)
            if found[3] != self._names or found[6] != size:
                return False
            if found.st_ctime_ns != self._changed_ns:
                # Or only its mode was changed: then it is in its place.
                if self.look() != (generation, size):
                    return False
                self._changed_ns = found.st_ctime_ns
        except OSError:
            return False
        return True

    def held(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return self._lock.held(exclusive=exclusive)

    def read(self, offset: int) -> bytes:
        check_directory(self._directory)
        check_file(self._path)
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        self._names, self._changed_ns = found.st_nlink, found.st_ctime_ns
        return read_from(self._fd, offset)

    def append(self, line: bytes, end: int) -> None:
        append_at(self._path, line, end)

    def replace(self, lines: Sequence[bytes]) -> Callable[[], None]:
        check_directory(self._directory)
        try:
            old = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            old = -1
            sync_parents(self._directory)
        try:
            if old >= 0:
                # For whoever has it open: see grown().
                os.pwrite(old, _SUPERSEDED, os.fstat(old).st_size)
            replace_file(self._path, b"".join(lines))
        except BaseException:
            if old >= 0:
                os.close(old)
            raise

        def wipe() -> None:
            if old >= 0:
                try:
                    overwrite(old)
                finally:
                    os.close(old)

        return wipe

    def sync(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            sync_directory(self._directory)

    def create(self) -> None:
        make_directory(self._directory)

    def residues(self, needles: Sequence[bytes]) -> Residues:
        names = sorted(os.listdir(self._directory)) if self._directory.is_dir() else []
        from everthread.stores.sqlite.raw import RawFile

        # Who keeps a SQLite store in the same folder doesn't lose its locks by this.
        paths = [str(self._directory / name) for name in names if not name.endswith("-shm")]
        return search([path for path in paths if os.path.isfile(path)], needles, opened=RawFile)

    # Bound here: at the end of the interpreter the module may be gone before the last keyring.
    def forget(self, *, forked: bool = False, close_fd: Callable[[int], None] = os.close) -> None:
        if forked:
            self._lock.forget_after_fork()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_fd(fd)

    # Nothing is lost by dropping a keyring that was not closed, so it may happen without a warning.
    def __del__(self) -> None:
        self.forget()
