"""Writers take turns: first the threads of this process, then processes, by a lock on a file."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from everthread.errors import StoreBusyError, StoreUnavailableError
from everthread.stores.files.disk import write_at
from everthread.stores.files.layout import FORMAT_FILE, LOCK_TEXT

if TYPE_CHECKING:
    from types import FrameType

_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB
_GIVEN = fcntl.LOCK_UN
#: A look at whether the file is still there counts for so long: it costs a save as much as taking the lock.
_LOOK_S = 0.005


class Turn:
    """The right to write, held for the length of a ``with`` block.

    ``flock`` can't wait with a time-out, so it is polled; short random naps keep the turn-taking even. A
    thread that has the turn and asks for it again (in a signal handler, say) is refused.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._mutex: Any = threading.RLock()
        self._file = -1
        #: So long a look at the file counts.
        self._until = 0.0
        #: What tells the marks of one file from those of the next.
        self._base = 0
        #: The frame of the block that has the turn.
        self._holder: FrameType | None = None

    def __enter__(self) -> None:
        mutex = self._mutex
        if mutex._is_owned():
            self._reenter()
        if not mutex.acquire(False) and not mutex.acquire(timeout=self._timeout_ms / 1000):
            raise StoreBusyError("another thread of this process kept the store for the whole waiting time")
        try:
            self._holder = sys._getframe(1)
            if self._file < 0:
                self._open()
            try:
                # As _lock(), without a call more: every save runs this.
                fcntl.flock(self._file, _AT_ONCE)
            except BlockingIOError:
                self._wait()
            now = time.monotonic()
            if now >= self._until:
                while not os.fstat(self._file).st_nlink and self._begin_anew():
                    """Until it is the one that others see."""
                self._until = now + _LOOK_S
        except BaseException:
            self.give()
            raise

    def mark(self) -> int:
        """Another number than before, if something was announced since. The caller has the turn."""
        return self._base + os.lseek(self._file, 0, os.SEEK_END)

    def announce(self) -> None:
        """Tell all who have the store open that files are about to be replaced: the lock gets longer, which
        each of them sees in its turn. Should nothing be replaced after all, they looked in vain."""
        write_at(self._file, b"\n", os.lseek(self._file, 0, os.SEEK_END))

    def at_once(self) -> bool:
        """Take the turn if nobody has it. Whoever gets it must :meth:`give` it."""
        if self._mutex._is_owned() or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._holder = sys._getframe(1)
            if self._file < 0:
                self._open()
            fcntl.flock(self._file, _AT_ONCE)
            if not os.fstat(self._file).st_nlink:
                # Whoever waits for the turn sees to it.
                self.give()
                return False
        except BlockingIOError:
            self.give()
            return False
        except BaseException:
            self.give()
            raise
        return True

    def _begin_anew(self) -> bool:
        """Somebody has removed the file, and whoever comes next makes another one: that one counts. False if
        the store is gone as well, which others tell of."""
        if not self._has_store():
            return False
        os.close(self._file)
        self._file = -1
        self._open()
        self._lock()
        return True

    def _has_store(self) -> bool:
        return os.path.lexists(os.path.join(os.path.dirname(self._path), FORMAT_FILE))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, _AT_ONCE)
        except BlockingIOError:
            self._wait()

    def _reenter(self) -> None:
        """This thread has the turn already: it really does, or an interrupt came before it could give it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and self._holder is not None:
            if frame is self._holder:
                raise StoreBusyError("this thread is in the middle of a write; commit after it")
            frame = frame.f_back
        self.give()

    def give(self, *_: object) -> None:
        """Also the end of a ``with`` block, without a call in between: it is slow to run after a sync."""
        mutex = self._mutex
        try:
            self._holder = None
            if self._file >= 0:
                fcntl.flock(self._file, _GIVEN)
        finally:
            while mutex._is_owned():
                mutex.release()

    __exit__ = give

    def _wait(self) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.00005, 0.0004))  # noqa: S311 - no secret
            try:
                fcntl.flock(self._file, _AT_ONCE)
                return
            except BlockingIOError:
                continue
        raise StoreBusyError(
            f"another process kept {self._path} locked for {self._timeout_ms / 1000:g} s; try again later"
        )

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._base += 1 << 40
            if not os.fstat(self._file).st_size:
                write_at(self._file, LOCK_TEXT, 0)
                if self._has_store():
                    # Somebody has removed it. By then whoever has the old one open looks again.
                    time.sleep(2 * _LOOK_S)
        except OSError as error:
            raise StoreUnavailableError(
                f"can't create {self._path}: {error.strerror}; make that possible, then try again"
            ) from error

    def close(self) -> None:
        """Let go of the file. Waits for whoever of this process has the turn."""
        with self._mutex:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def forget(self) -> None:
        """In a child made by fork(2): the lock is the parent's, and so is whoever held the mutex.

        Closing doesn't unlock: the parent has the file open as well.
        """
        self._mutex = threading.RLock()
        self._holder = None
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1
