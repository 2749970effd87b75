"""Taking turns at writing to one SQLite file."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from typing import TYPE_CHECKING

from everthread.arguments import LOOK_ONLY
from everthread.errors import StoreBusyError, StoreUnavailableError
from everthread.stores.urls import real_path

if TYPE_CHECKING:
    from everthread.stores.sqlite.bells import Bell

#: For so long after writers met, all of them take turns; then each goes ahead until they meet again.
_CROWDED_NS = 1_000_000_000
#: Who waits looks up after so long, should nobody have called: a writer that was killed doesn't. Looking up
#: takes time from who writes: eight writers got 15 % less done when each did so every millisecond.
_LOOK_UP_S = 0.02
#: Who can do without waits for so long at most.
_HURRY_MS = 100
#: Who has reserved the turn may keep others from writing for so long before it writes.
_RESERVED_NS = 10_000_000
#: So many reservations in a row may one writer have while others wait: each change of hands costs more than
#: writing does, for whoever comes next has to wake up and to read what it missed.
_IN_A_ROW = 8
#: The lock file: when writers last met, the bell, until when the turn is reserved.
_MARK, _BELL_AT, _UNTIL, _FILE_BYTES = 0, 8, 2, 24


class Turn:
    """The lock file beside a store: while several processes write, whoever holds it may.

    It only makes the waiting fair, SQLite's own locks keep the data safe: with SQLite's busy timeout
    alone one of eight processes starves. A writer that is alone doesn't ask for it, which would cost two
    system calls. Who finds another writer at work says so in a mark that all processes share.

    Who waits sleeps, and is woken in the order of coming by whoever is done. The turn can be *reserved* by
    who must read first and then write what follows from that: nobody writes in between, if it isn't long.
    """

    def __init__(self, path: str, timeout_ms: int) -> None:
        self._path = path
        self._timeout_ms = timeout_ms
        #: Threads that can do without and don't wait for long.
        self.hurried: set[int] = set()
        self._file = -1
        self._deadline = 0.0
        self._page: mmap.mmap | None = None
        self._bell: Bell | None = None
        #: What the bell showed when it woke somebody; -1 if it didn't.
        self._handed = -1
        #: When writers last met, by the clock that all processes share; 0 if they haven't for long.
        self.mark: memoryview | list[int] = [1]
        self.held = False
        self.reserved = False
        #: Reservations since somebody else was let go first.
        self._row = 0

    @property
    def patience_ms(self) -> int:
        """How long this thread waits."""
        return min(_HURRY_MS, self._timeout_ms) if threading.get_ident() in self.hurried else self._timeout_ms

    def crowded(self) -> bool:
        """Whether writers have met of late; needn't be asked while there is no ``mark``."""
        if self._page is None:
            if self._file < 0 and self._untouched():
                # The page is for who writes again: it costs more than a store that is open for one commit
                # has to spare.
                return False
            self._open()
        if 0 <= time.monotonic_ns() - self.mark[_MARK] < _CROWDED_NS:
            return True
        # Long ago, or before the machine was started.
        self.mark[_MARK] = 0
        return False

    def take(self, *, politely: bool = False) -> None:
        """Wait for the turn. Raises :class:`StoreBusyError` after the waiting time.

        ``politely`` doesn't come before somebody who was woken for it and isn't awake yet.
        """
        if self._page is None:
            self._open()
        if not self._wait(time.monotonic() + self.patience_ms / 1000, politely):
            raise StoreBusyError(
                f"another process kept {self._path} locked for {self.patience_ms / 1000:g} s; try again later"
            )

    def wait(self, tries: int) -> bool:
        """SQLite has found another writer at work, not for the first time if ``tries``: stand in line.

        Returns whether to try again.
        """
        if self._page is None:
            self._open()
        now = time.monotonic()
        if not tries:
            self._deadline = now + self.patience_ms / 1000
        self._note()
        if not self.held and not self._overdue():
            return self._wait(self._deadline)
        # Somebody who came before writers met, or takes no turns at all.
        from everthread.stores.sqlite.bells import nap

        nap(tries)
        return now < self._deadline

    def _untouched(self) -> bool:
        """Open the file; whether it is there and has no mark."""
        try:
            self._open_file()
            return os.pread(self._file, _BELL_AT, 0) == bytes(_BELL_AT)
        except OSError as error:
            raise self._refused(error) from error

    def _open(self) -> None:
        try:
            if self._file < 0:
                self._open_file()
            size = os.fstat(self._file).st_size
            if size < _FILE_BYTES:
                # Written, not just made longer: mapped, a page without room on the disk kills its writer.
                os.pwrite(self._file, bytes(_FILE_BYTES - size), size)
            self._page = mmap.mmap(self._file, _FILE_BYTES)
            self.mark = memoryview(self._page).cast("q")
        except OSError as error:
            raise self._refused(error) from error

    def _open_file(self) -> None:
        # The same for everybody, also who comes by a symbolic link.
        path = real_path(self._path) + "-lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _refused(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"can't create {real_path(self._path)}-lock: {error.strerror}; make that possible, then try "
            f"again, or {LOOK_ONLY}"
        )

    def _note(self) -> None:
        now = time.monotonic_ns()
        # Not at every nap: each time costs the kernel more than reading it does.
        if not 0 <= now - self.mark[_MARK] < _CROWDED_NS // 4:
            self.mark[_MARK] = now

    def reserve(self) -> None:
        """Take the turn for what is read now and written soon. Raises as :meth:`take` does."""
        # There is nothing to do between two turns, so that the other would come too late every time.
        self._row = (self._row + 1) % _IN_A_ROW
        self.take(politely=not self._row)
        if self.held:
            self.mark[_UNTIL] = time.monotonic_ns() + _RESERVED_NS
            self.reserved = True

    def _wait(self, deadline: float, politely: bool = False) -> bool:
        """Wait for the turn, or until nobody needs to have it; whether that came in time."""
        bell = self._hung()
        # Before the first try: who is done rings after having let go.
        looked = bell.look()
        # Until the other has rung.
        politely = politely and looked == self._handed >= 0
        while politely or not self._taken():
            politely = False
            if self._overdue():
                return True
            self._note()
            if time.monotonic() >= deadline:
                return False
            # flock can't wait with a time-out.
            bell.sleep(looked, _LOOK_UP_S)
            looked = bell.look()
        return True

    def _overdue(self) -> bool:
        """Whether the turn is kept by somebody who reserved it and doesn't write: SQLite's locks do, then."""
        until = self.mark[_UNTIL]
        return bool(until) and not 0 <= until - time.monotonic_ns() <= _RESERVED_NS

    def _taken(self) -> bool:
        # Noted before it is so: should an interrupt come in between, it is given back all the same.
        self.held = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.mark[_UNTIL] and not self.reserved:
                # Who reserved it was killed.
                self.mark[_UNTIL] = 0
        except BlockingIOError:
            self.held = False
        except OSError as error:
            self.held = False
            raise StoreUnavailableError(
                f"can't lock {self._path}-lock: {error.strerror}; keep the store on a file system with locks"
            ) from error
        return self.held

    def give(self) -> None:
        if not self.held:
            return
        if self.reserved:
            self.mark[_UNTIL] = 0
            self.reserved = False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self.held = False
        if self.mark[_MARK]:
            # Somebody may be waiting.
            bell = self._hung()
            self._handed = bell.look() if bell.ring() else -1

    def _hung(self) -> Bell:
        """The bell. Not made before it is needed, which it isn't by a writer that is alone."""
        if self._bell is None:
            from everthread.stores.sqlite.bells import Bell

            assert self._page is not None
            self._bell = Bell(self._page, _BELL_AT)
        return self._bell

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.mark, self._page, self._bell, self._handed = [1], None, None, -1
        self.held = self.reserved = False
