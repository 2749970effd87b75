"""Taking turns at writing to one SQLite file."""

from __future__ import annotations

import fcntl
import os
import random
import time

from everthread.errors import StoreBusyError, StoreUnavailableError


class Turn:
    """The lock file beside a store: whoever holds it may write.

    It only makes the waiting fair, SQLite's own locks keep the data safe: with SQLite's busy timeout
    alone one of eight processes starves.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        self._file = -1

    def take(self) -> None:
        """Wait for the turn. Raises :class:`StoreBusyError` after the waiting time."""
        if self._file < 0:
            path = self._path + "-lock"
            try:
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise StoreUnavailableError(
                    f"can't create {path}: {error.strerror}; make that possible, then try again"
                ) from error
        if self._taken():
            return
        deadline = time.monotonic() + self._timeout_ms / 1000
        while time.monotonic() < deadline:
            # flock can't wait with a time-out; short random naps keep the turn-taking even.
            time.sleep(random.uniform(0.00005, 0.0004))  # noqa: S311 - no secret
            if self._taken():
                return
        raise StoreBusyError(
            f"another process kept {self._path} locked for {self._timeout_ms / 1000:g} s; try again later"
        )

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise StoreUnavailableError(
                f"can't lock {self._path}-lock: {error.strerror}; keep the store on a file system with locks"
            ) from error
        return True

    def give(self) -> None:
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
