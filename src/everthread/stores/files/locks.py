"""The write lock of a store: first between the threads of this process, then between processes."""

from __future__ import annotations

import fcntl
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from everthread.errors import StoreBusyError, StoreUnavailableError
from everthread.stores.files.disk import write_at
from everthread.stores.files.layout import FORMAT_FILE, LOCK_TEXT

if TYPE_CHECKING:
    from types import FrameType


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
