"""The lock around writes to one SQLite file.

SQLite's own locks keep the data safe. This one makes the waiting fair: with SQLite's busy timeout alone, one
of eight processes starves. It is an advisory lock on the file ``<store>-lock``; when its holder dies, the
kernel frees it.

``update()`` reads first and then writes what follows from that. It *reserves* the lock: nobody else writes in
between, if it doesn't take long.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time

from everthread.arguments import LOOK_ONLY
from everthread.errors import StoreUnavailableError
from everthread.stores.urls import real_path

#: Longest wait for this lock. A writer that waits longer goes on without it: SQLite's own locks decide then.
WAIT_S = 1.0
#: How long a reservation may keep others from writing.
RESERVED_S = 0.025
#: Longest pauses between two tries where SQLite's own lock is taken: the first, the second, … and all others.
_PAUSES_S = (0.0002, 0.0004, 0.0008, 0.0016)


def back_off(tries: int) -> None:
    """Pause before another try, for a random time, so that no waiting process is always the last to try."""
    longest = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
    time.sleep(random.uniform(longest / 8, longest))  # noqa: S311 - no secret


class WriteLock:
    """The lock file of a store, opened when it is first needed. For one thread at a time."""

    def __init__(self, path: str) -> None:
        # The same file for everybody, also for those who open the store by a symbolic link.
        self._path = real_path(path) + "-lock"
        self._file = -1
        self.held = False
        #: Whether it is held for a write that hasn't begun.
        self.reserved = False
        self._guard = threading.Lock()
        #: Set by a thread that waits for the lock, when it has it; ``None`` if there is no such thread.
        self._granted: threading.Event | None = None
        #: Whether somebody still wants what that thread waits for.
        self._wanted = False

    def acquire(self, wait_s: float = WAIT_S) -> bool:
        """Wait for the lock; whether it was free in time."""
        if self._file < 0:
            self._open()
        if self._granted is None and self._try():
            return True
        return wait_s > 0 and self._wait(wait_s)

    def reserve(self) -> bool:
        """Hold the lock for what is read now and written soon; whether it was free in time."""
        self.reserved = self.held or self.acquire()
        return self.reserved

    def release(self) -> None:
        if self.held:
            self.reserved = False
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.held = False

    def close(self) -> None:
        file, self._file = self._file, -1
        self.held = self.reserved = False
        with self._guard:
            self._wanted, self._granted = False, None
        if file >= 0:
            os.close(file)

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(
                f"can't create {self._path}: {error.strerror}; make that possible, then try again, or "
                f"{LOOK_ONLY}"
            ) from error

    def _try(self) -> bool:
        # Noted before the call: if an interrupt comes in between, the lock is still given back.
        self.held = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.held = False
        except OSError as error:
            self.held = False
            raise StoreUnavailableError(
                f"can't lock {self._path}: {error.strerror}; keep the store on a file system with locks"
            ) from error
        return self.held

    def _wait(self, wait_s: float) -> bool:
        """Wait in the kernel, which serves processes in the order of coming. ``flock`` has no time-out: a
        thread blocks in it."""
        with self._guard:
            self._wanted = True
            granted = self._granted
            if granted is None:
                granted = self._granted = threading.Event()
                # A descriptor of its own for the same lock: it may outlive ours.
                waiting = threading.Thread(
                    target=self._block, args=(granted, os.dup(self._file)), daemon=True
                )
                waiting.start()
        try:
            granted.wait(wait_s)
        finally:
            with self._guard:
                self._wanted = False
                self.held = granted.is_set()
                if self.held:
                    self._granted = None
        return self.held

    def _block(self, granted: threading.Event, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with self._guard:
                if self._granted is not granted:
                    # Closed since: the lock goes with the last descriptor, which is this one.
                    return
                if self._wanted:
                    granted.set()
                else:
                    fcntl.flock(file, fcntl.LOCK_UN)
                    self._granted = None
        finally:
            os.close(file)
