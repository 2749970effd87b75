"""Access to the content of a store: one writer at a time, retries when others change files, typed errors."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from everthread import process
from everthread.errors import (
    EverthreadError,
    StateCorruptedError,
    StoreBusyError,
    StoreClosedError,
    StoreUnavailableError,
)
from everthread.stores.contract import (
    KeyErased,
    KeyKnown,
    NameTaken,
    SourceGone,
    StaleCell,
    StaleWrite,
    VersionGone,
)
from everthread.stores.files.backup import has_others, remove_others
from everthread.stores.files.content import Content
from everthread.stores.files.disk import Disk, translated, write_at
from everthread.stores.files.layout import (
    FORMAT_FILE,
    LOCK_FILE,
    LOCK_TEXT,
    prepare_root,
    read_format,
    set_up,
)
from everthread.stores.files.pack_files import DerivedDamage
from everthread.stores.files.record_file import Replaced

if TYPE_CHECKING:
    from types import FrameType

T = TypeVar("T")

#: How often a call is tried when other processes change files at that very moment.
TRIES = 5
#: How many chores a reader does at a time, if the lock is free.
_CHORES = 64

_SIGNALS = (StaleWrite, StaleCell, KeyErased, KeyKnown, NameTaken, SourceGone, VersionGone)


class _Moved(Exception):  # noqa: N818 - a signal inside this module
    """Journals were rewritten while they were read."""


class Access:
    """An open folder. Its content is reached through :meth:`read` and :meth:`write` only."""

    def __init__(self, path: str, *, durable: bool, busy_timeout_ms: int) -> None:
        self.root = path
        self._write_lock = WriteLock(os.path.join(path, LOCK_FILE), busy_timeout_ms)
        self.disk = Disk(durable=durable)
        #: Guards what this process keeps in memory.
        self._lock = threading.RLock()
        self._content: Content | None = None
        #: The file that names the content. It stays open, so that no other file gets its inode number.
        self._format_path = os.path.join(path, FORMAT_FILE)
        self._format = -1
        self._format_inode = (0, 0)
        self._closed = False
        self._generation = process.generation
        try:
            self._begin()
        except OSError as error:
            self._write_lock.close()
            raise translated(error, path, writing=False) from error
        except BaseException:
            self._write_lock.close()
            raise

    def _begin(self) -> None:
        if not prepare_root(self.root, self.disk):
            with self._write_lock:
                if not prepare_root(self.root, self.disk):
                    set_up(self.root, self.disk)
        content = self._resolve()
        if has_others(self.root, content.folder) and self._write_lock.try_acquire():
            # Left by a restore that was interrupted.
            try:
                remove_others(self.root, self._resolve().folder)
            finally:
                self._write_lock.release()

    def _resolve(self) -> Content:
        """The content that the store has now: a restored backup brings another one."""
        if self._content is not None and self._is_current():
            return self._content
        self.start_over()
        self._format = os.open(self._format_path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._format)
        self._format_inode = found.st_dev, found.st_ino
        self._content = Content(os.path.join(self.root, read_format(self.root).content), self.disk)
        return self._content

    def _is_current(self) -> bool:
        """Whether the file that names the content is the one that was read.

        A restored backup replaces it, and no commit may go into a folder that was moved or removed.
        """
        try:
            found = os.stat(self._format_path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._format_inode

    def check_open(self) -> None:
        # A child shares the open lock file with its parent, and so the lock itself.
        process.check_not_forked(self._generation)
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    def read(self, work: Callable[[Content], T]) -> T:
        """Do something that changes nothing."""
        self.check_open()
        try:
            result, chores = self._read(work)
        except _Moved:
            # Others prune faster than this reads, or were interrupted: hold the lock while reading.
            with self._write_lock:
                result, chores = self._read(work, alone=True)
        if chores:
            self._chores()
        return result

    def _read(self, work: Callable[[Content], T], *, alone: bool = False) -> tuple[T, bool]:
        """The result, and whether there are chores to do. ``alone``: the caller holds the lock."""
        moved = 0
        for last in range(TRIES):
            with self._lock:
                self.check_open()
                try:
                    content = self._resolve()
                    content.catalog.refresh()
                    content.visited.clear()
                    result = work(content)
                    if alone or not content.moved:
                        return result, content.has_chores
                    moved += 1
                except (FileNotFoundError, Replaced) as error:
                    # Deleted or replaced at this very moment, or missing.
                    if last == TRIES - 1:
                        raise self._missing(error) from error
                    self.start_over()
                except StateCorruptedError:
                    # If the journal was rewritten meanwhile, this read at the wrong offset.
                    if alone or not content.moved:
                        raise
                    moved += 1
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    raise translated(error, self.root, writing=False) from error
        raise _Moved if moved else self._unsteady()

    def write(self, work: Callable[[Content], T], *, refresh: bool = True) -> T:
        """Do something that changes the store, while holding its lock.

        Appends go without ``refresh``: the journal itself says whether a row may be appended.
        """
        self.check_open()
        with self._write_lock, self._lock:
            # Another thread may have closed the store while this one waited.
            self.check_open()
            for last in range(TRIES):
                try:
                    content = self._resolve()
                    content.visited.clear()
                    if refresh:
                        content.catalog.refresh()
                    result = work(content)
                    if content.has_chores:
                        content.chore()
                    return result
                except (FileNotFoundError, Replaced) as error:
                    if last == TRIES - 1:
                        raise self._missing(error) from error
                    self.start_over()
                except DerivedDamage as damage:
                    content.distrust(damage.folder)
                except OSError as error:
                    # After a failed write or sync nothing that is kept in memory can be relied on.
                    self.start_over()
                    raise translated(error, self.root, writing=True) from error
                except (EverthreadError, *_SIGNALS):
                    raise
                except BaseException:
                    self.start_over()
                    raise
        raise self._unsteady()

    def _unsteady(self) -> StateCorruptedError:
        return StateCorruptedError(f"{self.root} can't be read: it changes all the time", where=self.root)

    def start_over(self) -> None:
        """Forget everything that was read."""
        content, self._content = self._content, None
        file, self._format = self._format, -1
        if file >= 0:
            os.close(file)
        if content is not None:
            content.close()

    def _chores(self) -> None:
        """Write views that are due, make folds again: now, if nobody else is writing."""
        with suppress(EverthreadError):
            if self._write_lock.try_acquire():
                try:
                    for _ in range(_CHORES):
                        with self._lock:
                            if self._closed or not self._resolve().chore():
                                break
                except (OSError, Replaced, DerivedDamage):
                    with self._lock:
                        self.start_over()
                finally:
                    self._write_lock.release()

    # ── end of life ──────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Release everything. Calling it again does nothing."""
        if self._generation != process.generation:
            # What is due, and the lock, are the parent's.
            self._closed = True
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            content = self._content
        if content is not None:
            self._flush(content)
        self.start_over()
        self._write_lock.close()

    def _flush(self, content: Content) -> None:
        """Write the views that are due, if the lock is free: otherwise the next process to open does it."""
        with suppress(OSError, EverthreadError, Replaced, DerivedDamage):
            if self._write_lock.try_acquire():
                try:
                    content.catalog.refresh()
                    content.views.flush(all_=True)
                finally:
                    self._write_lock.release()

    def _missing(self, error: Exception) -> EverthreadError:
        """The error for a file that should be there."""
        if not os.path.lexists(os.path.join(self.root, FORMAT_FILE)):
            return StoreUnavailableError(
                f"{self.root} was moved or removed while it was open; nothing was written. Put it back, from "
                "a backup if need be, then open the store again"
            )
        where = str(getattr(error, "filename", None) or error)
        return StateCorruptedError(f"{where} is missing; see what store.verify() says", where=where)


# ── the lock of writers ──────────────────────────────────────────────────────────────────────────


class WriteLock:
    """The right to write, held for the length of a ``with`` block.

    ``flock`` can't wait with a time-out, so it is polled; short random pauses keep waiting processes even. A
    thread that holds the lock and asks for it again (in a signal handler, say) gets an error.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        # ``RLock`` knows its owner, which typeshed doesn't tell.
        self._mutex: Any = threading.RLock()
        self._file = -1
        #: The frame of the block that holds the lock.
        self._holder: FrameType | None = None

    def __enter__(self) -> None:
        if self._mutex._is_owned():
            self._check_leftover()
        if not self._mutex.acquire(timeout=self._timeout_ms / 1000):
            raise StoreBusyError("another thread of this process kept the store for the whole waiting time")
        try:
            self._holder = sys._getframe(1)
            self._open()
            self._flock()
            while not os.fstat(self._file).st_nlink and self._has_store():
                # Somebody removed the lock file: the one that other processes see counts.
                os.close(self._file)
                self._file = -1
                self._open()
                self._flock()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Whoever gets it must :meth:`release` it."""
        if self._mutex._is_owned() or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._holder = sys._getframe(1)
            self._open()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_nlink:
                return True
            self.release()
        except BlockingIOError:
            self.release()
        except BaseException:
            self.release()
            raise
        return False

    def release(self) -> None:
        try:
            self._holder = None
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            while self._mutex._is_owned():
                self._mutex.release()

    def _check_leftover(self) -> None:
        """This thread holds the lock: it is inside a block, or an interrupt kept it from releasing."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and self._holder is not None:
            if frame is self._holder:
                raise StoreBusyError("this thread is in the middle of a write; commit after it")
            frame = frame.f_back
        self.release()

    def _has_store(self) -> bool:
        return os.path.lexists(os.path.join(os.path.dirname(self._path), FORMAT_FILE))

    def _flock(self) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
            time.sleep(random.uniform(0.00005, 0.0004))  # noqa: S311 - no secret
        raise StoreBusyError(
            f"another process kept {self._path} locked for {self._timeout_ms / 1000:g} s; try again later"
        )

    def _open(self) -> None:
        if self._file >= 0:
            return
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not os.fstat(self._file).st_size:
                write_at(self._file, LOCK_TEXT, 0)
        except OSError as error:
            raise StoreUnavailableError(
                f"can't create {self._path}: {error.strerror}; make that possible, then try again"
            ) from error

    def close(self) -> None:
        """Let go of the file. Waits for whoever of this process holds the lock."""
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
