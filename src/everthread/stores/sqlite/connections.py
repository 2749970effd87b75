"""Connections to one SQLite file: opening, sharing, and giving up on a broken one."""

from __future__ import annotations

import sys
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from everthread import process
from everthread.errors import StoreBusyError, StoreClosedError
from everthread.stores.sqlite import forking
from everthread.stores.sqlite.connecting import ABANDONED, Settings, close, connect, synchronous
from everthread.stores.sqlite.failing import translated
from everthread.stores.sqlite.migrating import rollback
from everthread.stores.sqlite.presence import LogGoneError, Presence
from everthread.stores.sqlite.turns import Turn
from everthread.stores.sqlite.wal import failed_to_sync, grow_log, rewrite_log, sync_log

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    import apsw

#: How long a fork naps while it waits for readers.
_FORK_PAUSE_S = 0.001
#: A page in the log, with what stands before it.
_FRAME_BYTES = 4096 + 24


class Connections:
    """One writer, taken in turn, and as many readers as are used at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._mutex: Any = threading.RLock()
        #: Held while a reader is handed out: a fork keeps it until all of them are back.
        self._door: Any = threading.RLock()
        #: The readers that are in use, and by which thread.
        self._out: dict[apsw.Connection, int] = {}
        self._turn = Turn(settings.path, settings.busy_timeout_ms)
        #: Threads that can do without the writer and don't wait for it for long.
        self.hurried = self._turn.hurried
        #: The frame of the block that has the writer.
        self._holder: FrameType | None = None
        #: Whether the writer is lent out for reading.
        self._lent = False
        #: Whether a sync failed: then what the log holds may be readable and yet never reach the disk.
        self._suspect = False
        self._writer: apsw.Connection | None = None
        self._idle: list[apsw.Connection] = []
        self._generation = process.generation
        self._closed = False
        forking.enter(self)
        with self._mutex:
            self._writer = self._connect_writer()
            self._presence = Presence(settings.given, settings.path)
        # Nothing that can be read is in a log without content.
        if settings.durability == "full" and self._presence.log_bytes != 0:
            sync_log(settings.path)

    # ── the writer ───────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> apsw.Connection:
        """Take the writer: first from the other threads of this process, then from other processes."""
        if self._closed or self._generation != process.generation:
            self._check()
        if not self._mutex.acquire(False):
            self._wait()
        if self._holder is not None:
            self._reenter()
        try:
            self._holder = sys._getframe(1)
            # It may have been closed while this thread waited.
            if self._closed:
                self._check()
            self._presence.check()
            writer = self._writer
            if writer is None:
                writer = self._writer = self._connect_writer()
                self._presence.note_log()
            if self._turn.mark[0] and self._turn.crowded():
                self._turn.take()
            if self._suspect:
                self._secure(writer)
        except BaseException as error:
            if isinstance(error, LogGoneError):
                self._give_up()
            # Also if an interrupt came between taking it and noting that.
            self._let_go()
            raise
        return writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._turn.held:
            holder = self._holder
            # In this order: wherever an interrupt comes, whoever enters next sees what is left over.
            self._mutex.release()
            if self._holder is holder:
                self._holder = None
            return
        try:
            if error is not None:
                self._recover(error)
        finally:
            self._let_go()

    def reserve(self) -> bool:
        """Keep others from writing until this one has, or for some milliseconds; ``False`` if alone."""
        self._check()
        if not self._mutex.acquire(False):
            return False
        try:
            # Not in the middle of a write of this thread, in a signal handler for one.
            if self._holder is None and self._turn.mark[0] and self._turn.crowded():
                self._turn.reserve()
            return self._turn.reserved
        finally:
            self._mutex.release()

    def release(self) -> None:
        """Let others write, should nothing have been written since :meth:`reserve`."""
        if self._turn.reserved and self._mutex.acquire(False):
            if self._holder is None:
                self._turn.give()
            self._mutex.release()

    def _connect_writer(self) -> apsw.Connection:
        writer = connect(self.settings)
        self.wait_in_turn(writer)
        return writer

    def wait_in_turn(self, writer: apsw.Connection) -> None:
        """Let the writer stand in line where it finds others at work."""
        writer.set_busy_handler(self._turn.wait)

    def _reenter(self) -> None:
        """This thread holds the writer already: in a signal handler or finaliser, or since an interrupt."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame is self._holder:
                self._mutex.release()
                raise StoreBusyError("this thread is in the middle of a write; commit after it")
            frame = frame.f_back
        # Left over: an interrupt came before the block could begin, or while it ended, when the lock was
        # still held (twice, now) or given back. Or another thread is just leaving.
        self._holder = None
        self._mutex.release()
        if not self._mutex._is_owned():
            self._wait()
        if self._writer is not None:
            rollback(self._writer)
            synchronous(self._writer, self.settings.durability)

    def _wait(self) -> None:
        if not self._mutex.acquire(timeout=self._turn.patience_ms / 1000):
            raise StoreBusyError("another thread of this process kept the store for the whole waiting time")

    def _let_go(self) -> None:
        # Only what this thread holds: the lock file is shared with the other threads.
        if self._mutex._is_owned():
            holder = self._holder
            try:
                if self._turn.held:
                    self._turn.give()
            finally:
                self._mutex.release()
                if self._holder is holder:
                    self._holder = None

    def _recover(self, error: BaseException) -> None:
        """After a failure: the writer is clean, or given up. Raises the typed error for an engine's one."""
        import apsw

        harmless = apsw.BusyError, apsw.ConstraintError
        if isinstance(error, apsw.Error) and not isinstance(error, harmless):
            # After a failed write or sync the kernel may have dropped pages that SQLite believes
            # written: nothing read through this handle can be trusted any more.
            self._give_up()
            self._suspect = self._suspect or failed_to_sync(error)
        elif self._writer is not None:
            try:
                rollback(self._writer)
                # A fold that was cut short may have left the weaker level behind.
                synchronous(self._writer, self.settings.durability)
            except apsw.Error:
                self._give_up()
        if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
            raise translated(error, self.settings.path) from error

    def _secure(self, writer: apsw.Connection) -> None:
        """After a failed sync: make sure that what can be read is on the disk, before anybody reads it."""
        import apsw

        try:
            # Nobody else writes meanwhile.
            writer.execute("BEGIN IMMEDIATE")
            rewrite_log(self.settings.path, self.settings.vfs)
            writer.execute("ROLLBACK")
        except apsw.Error as error:
            self._give_up()
            raise translated(error, self.settings.path) from error
        self._suspect = False

    def lengthen_log(self) -> None:
        """Give the log the length that it has when it is copied into the file, if syncs are waited for. For
        who is in a transaction that writes."""
        settings = self.settings
        if settings.durability == "full":
            grow_log(settings.path, settings.vfs, settings.wal_autocheckpoint * _FRAME_BYTES)

    def _give_up(self) -> None:
        broken, self._writer = self._writer, None
        idle, self._idle = self._idle, []
        self._presence.forget_log()
        for connection in (broken, *idle):
            if connection is not None:
                close(connection)

    # ── readers ──────────────────────────────────────────────────────────────────────────────

    def reader(self, *, apart: bool = False) -> apsw.Connection:
        """A connection for reading; hand it back with :meth:`done`, or :meth:`spoilt` after an error.

        It is the writer itself if nobody has it, because that needn't read again what it has just
        written; ``apart`` asks for another one, for whatever takes long or needs a transaction.
        """
        self._check()
        try:
            self._presence.check()
        except LogGoneError:
            with self:
                """Lets go of it."""
        if self._suspect:
            with self:
                """Makes sure of what there is to read."""
        if not apart and self._mutex.acquire(blocking=False):
            if self._holder is None and not self._lent and self._writer is not None:
                self._lent = True
                return self._writer
            self._mutex.release()
        with self._door:
            connection = self._idle.pop() if self._idle else connect(self.settings)
            self._out[connection] = threading.get_ident()
        return connection

    def done(self, connection: apsw.Connection) -> None:
        if connection is self._writer:
            self._lent = False
            if self._turn.held and not self._turn.reserved:
                self._turn.give()
            self._mutex.release()
            return
        if self._closed:
            close(connection)
        else:
            self._idle.append(connection)
        self._out.pop(connection, None)

    def spoilt(self, connection: apsw.Connection) -> None:
        """Not used again: a query cut short would hold its old snapshot open for the next reader."""
        if connection is self._writer:
            self._writer = None
            self._presence.forget_log()
            self._lent = False
            self._turn.give()
            self._mutex.release()
        close(connection)
        self._out.pop(connection, None)

    # ── life ─────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")
        if self._generation != process.generation:
            # This is a child made by fork(2): if there are connections, they belong to the parent.
            self.renew()

    def close(self) -> None:
        if self._closed:
            return
        self._check()
        with self._mutex:
            self._closed = True
            connections = [c for c in (*self._idle, self._writer) if c is not None]
            self._idle, self._writer = [], None
            for connection in connections:
                close(connection)
            self._presence.close()
            self._turn.close()
        forking.leave(self)

    # ── around a fork ────────────────────────────────────────────────────────────────────────

    @property
    def file(self) -> str:
        return self.settings.path

    def hold(self, until_s: float) -> bool:
        if self._generation != process.generation:
            self.renew()
        # A thread that forks in the middle of using them can't wait for itself.
        if self._mutex._is_owned() or self._door._is_owned():
            return False
        if threading.get_ident() in list(self._out.values()):
            return False
        if not self._mutex.acquire(timeout=max(until_s - monotonic(), 0.0)):
            return False
        if self._door.acquire(timeout=max(until_s - monotonic(), 0.0)):
            return True
        self._mutex.release()
        return False

    def shut(self, until_s: float) -> bool:
        while self._out:
            if monotonic() >= until_s:
                return False
            sleep(_FORK_PAUSE_S)
        abandoned = len(ABANDONED)
        self._give_up()
        # Else a child that outlives this process would keep the turn that this one had when it was killed.
        self._turn.close()
        return len(ABANDONED) == abandoned

    def free(self) -> None:
        self._door.release()
        self._mutex.release()

    def renew(self) -> None:
        if self._writer is not None or self._idle or self._out:
            ABANDONED.append((self._writer, self._idle, list(self._out)))
        self._writer, self._idle, self._out = None, [], {}
        # Another thread of the parent may have held it at that moment and doesn't exist here.
        self._mutex, self._door = threading.RLock(), threading.RLock()
        self._holder = None
        self._lent = False
        self._presence.forget_log()
        self._turn.close()
        self._generation = process.generation
