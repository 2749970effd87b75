"""The files of a SQLite store: the database itself, its write-ahead log, and reading their bytes safely."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress

import apsw

from everthread.arguments import LOOK_ONLY
from everthread.errors import StateCorruptedError, StorageWriteError, StoreUnavailableError
from everthread.stores.urls import real_path

_creating = threading.Lock()
#: An empty write-ahead log is this long.
_LOG_HEADER_BYTES = 32
#: SQLite writes at most 128 KiB at once.
_BLOCK_BYTES = 1 << 16


# ── making and checking the file ──


def create_private(path: str | os.PathLike[str]) -> None:
    """Make an empty file for its owner alone. Raises ``FileExistsError`` if there is one.

    One at a time: a thread that finds the file opens it at once, and closing our descriptor would then free
    the locks that SQLite holds on it.
    """
    with _creating:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def prepare_file(path: str, *, real: bool = True) -> None:
    """Make the file, for its owner alone, unless it is there; with ``real`` false it is only a stand-in.

    Raises :class:`StoreUnavailableError` for what can't hold a store, before anything is made beside it.
    """
    # Wait for a thread that is making it: see create_private().
    with _creating, suppress(OSError):
        found = os.stat(path)
        if found.st_size and stat.S_ISREG(found.st_mode):
            _check_access(path)
            return
        if real and not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            # SQLite would open it, and everything written to it would be lost.
            raise StoreUnavailableError(
                f"{path} isn't a file but {_kind(found.st_mode)}, which keeps nothing; name a file"
            )
    if real:
        _check_log(path)
    if os.path.isdir(path):
        raise StoreUnavailableError(f"{path} is a folder; name a file in it, such as {path}/agent.db")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise StoreUnavailableError(f"the folder {folder} doesn't exist; create it, or choose another place")
    try:
        # Private from the first byte; SQLite gives the files beside it the same mode.
        create_private(path)
    except FileExistsError:
        _check_access(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"can't create {path}: {error.strerror}; make that possible, or choose another place"
        ) from error


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_it, name in kinds if is_it(mode)), "a device")


def _check_access(path: str) -> None:
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailableError(f"{path} can't be read and written by this user; {LOOK_ONLY}") from None


def _check_log(path: str) -> None:
    """Raise :class:`StateCorruptedError` if the file is empty or gone and its write-ahead log isn't.

    SQLite would delete such a log, with the commits that only it holds. No kill leaves this behind: a new
    file has its first page, synced, before there is a log.
    """
    # The log first: another process may be making both right now.
    log_bytes, size = _size(f"{path}-wal"), _size(path)
    if size or log_bytes <= _LOG_HEADER_BYTES:
        return
    empty = os.path.exists(path)
    raise StateCorruptedError(
        f"{path} is {'empty' if empty else 'gone'}, and {path}-wal beside it holds commits; nothing was "
        "touched. Put back the file that belongs to it. If that is lost, everthread.salvage() brings what "
        f"the log holds into a new store{'' if empty else ', once there is an empty file in its place'}. If "
        f"none of it is needed, move {path}-wal aside",
        where=path,
    )


def _size(path: str) -> int:
    """How many bytes a file has: 0 if it isn't there, -1 if that can't be found out."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return -1


class FileIdentity:
    """Which file and which log were opened, compared with what is there when a connection is opened or fails.

    A file that is moved or replaced stays open, and commits go into something that nobody finds any more.
    A log disappears only if SQLite's locks were freed: code in this process has opened and closed the file.
    """

    def __init__(self, given: str, path: str) -> None:
        # The name as it was given: it may be a link that leads elsewhere one day.
        self._path = os.path.abspath(given)
        self._log_path = f"{os.path.abspath(path)}-wal"
        self._file = identity_of(path)
        self._log: tuple[int, int] | None = None
        self.note_log()

    def note_log(self) -> None:
        """A writer has been connected: this is its log."""
        # A file system of another kind (a VFS) may keep them where there are no files.
        self._log = identity_of(self._log_path) if self._file else None

    def forget_log(self) -> None:
        """There is no writer any more: the log may disappear with the last connection."""
        self._log = None

    def check(self) -> None:
        """Raise :class:`StoreUnavailableError` if the file or its log isn't the one that was opened."""
        if self._file and identity_of(self._path) != self._file:
            raise StoreUnavailableError(
                f"{self._path} was moved, removed or replaced while it was open. Put it back, with the -wal "
                "file beside it, from a backup if need be, then open the store again"
            )
        if self._log is not None and identity_of(self._log_path) != self._log:
            raise StoreUnavailableError(
                f"{self._log_path} was removed or replaced while it was open, so that the newest commits may "
                "be lost. Nothing but Everthread may open and close the files of a store in a process that "
                "has it open (nor may Python's sqlite3): that frees locks. Open the store again; "
                "store.verify() says what is there"
            )


def identity_of(path: str) -> tuple[int, int] | None:
    """Which file this is, whatever it is called: device and inode."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


# ── the write-ahead log ──
#
# SQLite syncs the log at each commit. Two cases need more. A process that was killed may have written a
# commit without syncing it; the next process can read it, and might tell somebody that it is there. And a
# sync may fail: kernels then drop what they couldn't write, still show it, and report success the next time,
# so that a power cut takes the commit and every one after it.


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
    """Write the log once more, byte for byte, and sync it, so that what the kernel dropped is written again.

    The caller keeps writers away. Readers may go on: no byte changes. Raises what the engine raises.
    """
    if not os.path.exists(path + "-wal"):
        return
    file = apsw.VFSFile(vfs or "", path + "-wal", [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0])
    try:
        size = file.xFileSize()
        for start in range(0, size, _BLOCK_BYTES):
            file.xWrite(file.xRead(min(_BLOCK_BYTES, size - start), start), start)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()


# ── reading bytes of a file that may be open ──


class RawFile:
    """One file, read only, through SQLite's own file layer. Raises ``OSError`` as opening a file does.

    On POSIX systems locks belong to a process, and closing any descriptor of a file frees all of them, those
    of SQLite too: another process would then take itself for the last one and delete the log that this one
    goes on writing to. SQLite's file layer keeps count, and closes a descriptor only when nothing is locked.
    The ``-shm`` file isn't counted so: nobody but SQLite may open it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY
        try:
            # SQLite follows no links here.
            self._file = apsw.VFSFile("", os.path.abspath(real_path(path)), [flags, 0])
        except apsw.Error as error:
            raise _os_error(error, path) from error

    def size(self) -> int:
        return self._file.xFileSize()

    def read(self, count: int, offset: int) -> bytes:
        """That many bytes; fewer where the file ends."""
        # SQLite fills up with zeros behind the end, and doesn't say so.
        count = min(count, self.size() - offset)
        if count <= 0:
            return b""
        try:
            return self._file.xRead(count, offset)
        except apsw.Error as error:
            raise _os_error(error, self._path) from error

    def close(self) -> None:
        self._file.xClose()


def _os_error(error: apsw.Error, path: str) -> OSError:
    if not os.path.lexists(path):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not os.access(path, os.R_OK):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return OSError(errno.EIO, str(error), path)
