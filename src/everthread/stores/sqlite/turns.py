"""Taking turns at writing to one SQLite file."""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from everthread.errors import StoreBusyError, StoreUnavailableError

#: For so long after writers met, all of them take turns; then each goes ahead until they meet again.
_CROWDED_NS = 1_000_000_000
_MARK_BYTES = 8
#: How long a writer pauses at most before it tries again, the first time and later ones. Among eight, looking
#: more often takes more time from who writes than it saves those who wait.
_NAPS_S = (0.0002, 0.0004, 0.0008, 0.0016)


class Turn:
    """The lock file beside a store: while several processes write, whoever holds it may.

    It only makes the waiting fair, SQLite's own locks keep the data safe: with SQLite's busy timeout
    alone one of eight processes starves. A writer that is alone doesn't ask for it, which would cost two
    system calls. Who finds another writer at work says so in a mark that all processes share.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._file = -1
        self._deadline = 0.0
        #: When writers last met, by the clock that all processes share; 0 if they haven't for long.
        self.mark: memoryview | list[int] = [1]
        self.held = False

    def crowded(self) -> bool:
        """Whether writers have met of late; needn't be asked while there is no ``mark``."""
        if self._file < 0:
            self._open()
        if 0 <= time.monotonic_ns() - self.mark[0] < _CROWDED_NS:
            return True
        # Long ago, or before the machine was started.
        self.mark[0] = 0
        return False

    def take(self) -> None:
        """Wait for the turn. Raises :class:`StoreBusyError` after the waiting time."""
        if self._file < 0:
            self._open()
        if not self._wait(time.monotonic() + self._timeout_ms / 1000):
            raise StoreBusyError(
                f"another process kept {self._path} locked for {self._timeout_ms / 1000:g} s; try again later"
            )

    def wait(self, tries: int) -> bool:
        """SQLite has found another writer at work, not for the first time if ``tries``: stand in line.

        Returns whether to try again.
        """
        if self._file < 0:
            self._open()
        now = time.monotonic()
        if not tries:
            self._deadline = now + self._timeout_ms / 1000
        self._note()
        if not self.held:
            return self._wait(self._deadline)
        # Somebody who came before writers met, or takes no turns at all.
        _nap(tries)
        return now < self._deadline

    def _open(self) -> None:
        path = self._path + "-lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.fstat(self._file).st_size < _MARK_BYTES:
                os.ftruncate(self._file, _MARK_BYTES)
            self.mark = memoryview(mmap.mmap(self._file, _MARK_BYTES)).cast("q")
        except OSError as error:
            raise StoreUnavailableError(
                f"can't create {path}: {error.strerror}; make that possible, then try again"
            ) from error

    def _note(self) -> None:
        now = time.monotonic_ns()
        # Not at every nap: each time costs the kernel more than reading it does.
        if not 0 <= now - self.mark[0] < _CROWDED_NS // 4:
            self.mark[0] = now

    def _wait(self, deadline: float) -> bool:
        naps = 0
        while not self._taken():
            self._note()
            if time.monotonic() >= deadline:
                return False
            # flock can't wait with a time-out.
            _nap(naps)
            naps += 1
        return True

    def _taken(self) -> bool:
        # Noted before it is so: should an interrupt come in between, it is given back all the same.
        self.held = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.held = False
        except OSError as error:
            self.held = False
            raise StoreUnavailableError(
                f"can't lock {self._path}-lock: {error.strerror}; keep the store on a file system with locks"
            ) from error
        return self.held

    def give(self) -> None:
        if self.held:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.held = False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.mark = [1]
        self.held = False


def _nap(before: int) -> None:
    """Random, which keeps the turn-taking even; longer after some, when many are waiting, but never long."""
    import random

    longest = _NAPS_S[min(before, len(_NAPS_S) - 1)]
    time.sleep(random.uniform(longest / 8, longest))  # noqa: S311 - no secret
