"""Whether the file of a store is there, and still there while it is open, and its log.

A file that is removed, moved away, or replaced by another, stays open: commits would go on into something
that nobody finds where they look for it, and a moved one lacks the log that is called after its old name. A
log goes only if SQLite's locks are gone: by code in this process that opened and closed the file itself.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from time import monotonic

from everthread import process
from everthread.arguments import LOOK_ONLY
from everthread.errors import StateCorruptedError, StoreUnavailableError
from everthread.stores.witness import witness_of_file

_creating = process.fork_rlock()
#: Looks at a file without opening it, so that closing this frees no lock that SQLite holds on it.
_PATH = getattr(os, "O_PATH", 0)
#: A look counts for so long. Asking the system costs a commit that follows at once more than its own work.
_LOOK_S = 0.005
#: So long is a write-ahead log that holds nothing yet.
_LOG_HEADER_BYTES = 32


class LogGoneError(StoreUnavailableError):
    """The log isn't the one that was opened: connections to it are of no use any more."""


class Presence:
    """One file, and a look at it before each call, unless the last one was a moment ago."""

    def __init__(self, given: str, path: str) -> None:
        # By the name that it was given, which may be a link that leads elsewhere one day.
        self._path = given if given.startswith("/") else os.path.abspath(given)
        self._log_path = f"{path if path.startswith('/') else os.path.abspath(path)}-wal"
        self._file = -1
        self._until = 0.0
        self._known = (0, 0)
        #: The log that the writer has open, if it has one.
        self._log: tuple[int, int] | None = None
        #: How long it was when the writer was connected; -1 if that isn't known.
        self.log_bytes = -1
        if _PATH:
            # A file system of another kind (a VFS) may hold it where there is none.
            with suppress(OSError):
                # Kept open, so that no other file gets its number.
                self._file = os.open(path, _PATH | os.O_CLOEXEC)
                self._known = _identity(os.fstat(self._file))
        self.note_log()
        # This was the first look.
        self._until = monotonic() + _LOOK_S

    def note_log(self) -> None:
        """A writer has been connected."""
        self.forget_log()
        if self._file >= 0:
            with suppress(FileNotFoundError, NotADirectoryError):
                found = os.stat(self._log_path)
                self._log, self.log_bytes = _identity(found), found.st_size

    def forget_log(self) -> None:
        """There is no writer any more: the log may go with the last connection."""
        self._log, self.log_bytes = None, -1

    def check(self) -> None:
        """Raise :class:`StoreUnavailableError` if the file or its log isn't where it was."""
        now = monotonic()
        if now < self._until or self._file < 0:
            return
        self._until = 0.0
        if _there(self._path) != self._known:
            raise StoreUnavailableError(
                f"{self._path} was moved, removed or replaced while it was open; nothing was written. Put it "
                "back, with the -wal file beside it, from a backup if need be, then open the store again"
            )
        if self._log is not None and _there(self._log_path) != self._log:
            raise LogGoneError(
                f"{self._log_path} was removed or replaced while it was open, so that the newest commits may "
                "be lost; nothing was written now. Nothing but Everthread may open and close the files of a "
                "store in a process that has it open (nor may Python's sqlite3): that frees locks. Get new "
                "handles; store.verify() tells what is there"
            )
        self._until = now + _LOOK_S

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _there(path: str) -> tuple[int, int] | None:
    try:
        return _identity(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_log(path: str) -> None:
    """Raise :class:`StateCorruptedError` if the file is empty or gone and its write-ahead log isn't: SQLite
    would take that for a leftover and delete it, with the commits that are only there.

    No kill leaves this behind: a new file has its first page, on the disk, before there is a log.
    """
    # The log first: meanwhile another process may be making both.
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
    """How many bytes a file has: none if it isn't there, -1 if that can't be told."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError:
        return -1


def create_private(path: str | os.PathLike[str]) -> None:
    """Make an empty file for its owner alone. Raises ``FileExistsError`` if there is one.

    One at a time: a thread that finds the file made by another opens it at once, and the locks that it then
    holds would go with the descriptor that the other one closes.
    """
    with _creating:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def prepare_file(path: str, *, real: bool = True) -> None:
    """Make the file, for its owner alone, unless it is there; it may be a stand-in that isn't ``real``.

    Raises :class:`StoreUnavailableError` for what can't hold a store, before anything is made beside it.
    """
    # Behind whoever is making it: see create_private().
    with _creating, suppress(OSError):
        found = os.stat(path)
        if found.st_size and stat.S_ISREG(found.st_mode):
            _check_access(path)
            return
        if real and not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            # SQLite would open it, and what is written to it is gone, or never arrives.
            raise StoreUnavailableError(
                f"{path} isn't a file but {_what(found.st_mode)}, which keeps nothing; name a file"
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
        # What is noted there is about a file that is gone.
        witness_of_file(path).forget()
    except FileExistsError:
        _check_access(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"can't create {path}: {error.strerror}; make that possible, or choose another place"
        ) from error


def _what(mode: int) -> str:
    kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for is_it, name in kinds if is_it(mode)), "a device")


def _check_access(path: str) -> None:
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailableError(f"{path} can't be read and written by this user; {LOOK_ONLY}") from None
