"""Connections to one SQLite file: opening, sharing between threads, and giving up broken ones."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import apsw

from everthread.errors import EverthreadError, StoreBusyError, StoreClosedError, StoreUnavailableError
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.errors import failed_to_sync, translated
from everthread.stores.sqlite.files import (
    FileIdentity,
    identity_of,
    prepare_file,
    rewrite_log,
    sync_log,
)
from everthread.stores.sqlite.write_lock import RESERVED_S, WAIT_S, WriteLock, back_off
from everthread.stores.urls import real_path

if TYPE_CHECKING:
    from types import FrameType, TracebackType

#: Longest wait of optional work, such as updating the index of metadata.
_OPTIONAL_WAIT_S = 0.1

#: How long a fork waits for a write of another thread.
_FORK_WAIT_S = 2.0

#: Connections that are never closed: closing failed, or fork(2) copied them into this process.
_ABANDONED: list[Any] = []
#: Files that were in use when this process was made by fork(2).
_INHERITED: set[tuple[int, int] | None] = set()


class Settings:
    """How a file is opened."""

    def __init__(
        self,
        path: str,
        *,
        durability: str = "full",
        vfs: str | None = None,
        busy_timeout_ms: int = 10_000,
        wal_autocheckpoint: int = 1000,
    ) -> None:
        #: The name as it was given, and the file itself, beside which SQLite keeps the log.
        self.given, self.path = path, real_path(path)
        self.durability = durability
        self.vfs = vfs
        self.busy_timeout_ms = busy_timeout_ms
        self.wal_autocheckpoint = wal_autocheckpoint


def connect(settings: Settings, layout: schema.Schema = schema.LINES) -> apsw.Connection:
    """A connection to our file, which is created or migrated if need be.

    A file that isn't ours, or is newer than this code, is left untouched.
    """
    path = settings.path
    if _INHERITED and identity_of(path) in _INHERITED:
        raise StoreUnavailableError(
            f"{path} was in use when this process was forked, so that SQLite can't be used on it here; fork "
            "when nobody uses it, or start processes by multiprocessing's 'spawn' or 'forkserver'"
        )
    prepare_file(path, real=settings.vfs is None)
    try:
        connection = apsw.Connection(path, vfs=settings.vfs)
    except apsw.Error as error:
        raise StoreUnavailableError(f"can't open {path}: {error}; look at the disk, try again") from error
    try:
        if connection.readonly("main"):
            # SQLite's last resort if it can't write, on a full disk for one: it would never write again.
            raise StoreUnavailableError(f"can't open {path} for writing; look at the disk, try again")
        connection.set_busy_timeout(settings.busy_timeout_ms)
        if schema.identify(connection, path, layout) < layout.version:
            _set_up(connection, settings, layout)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        synchronous(connection, settings.durability)
        connection.wal_autocheckpoint(settings.wal_autocheckpoint)
        # Plans that don't depend on bound values are made once. Otherwise SQLite, built with statistics,
        # makes a new one whenever other values are bound, which costs more than running it.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except apsw.Error as error:
        close(connection)
        raise translated(error, path) from error
    except EverthreadError:
        close(connection)
        raise
    return connection


def _set_up(connection: apsw.Connection, settings: Settings, layout: schema.Schema) -> None:
    """Make a new file a store, or bring an older one up to date, one process at a time."""
    lock = WriteLock(settings.path)
    if not lock.acquire(settings.busy_timeout_ms / 1000):
        raise StoreBusyError(
            f"another process kept {settings.path} locked for {settings.busy_timeout_ms / 1000:g} s; try "
            "again later"
        )
    try:
        # WAL first: it can't be set inside the transaction that makes the tables.
        _set_wal(connection, settings.busy_timeout_ms / 1000)
        schema.migrate(connection, layout.migrations, layout.first)
    finally:
        lock.close()


def _set_wal(connection: apsw.Connection, patience_s: float) -> None:
    """SQLite doesn't wait here by itself, for one that takes back what a killed process had begun."""
    deadline = time.monotonic() + patience_s
    for tries in count():
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
        back_off(tries)


def close(connection: apsw.Connection) -> None:
    """Close a connection, whatever the disk says to it: all that was acknowledged is safe already."""
    try:
        connection.close(True)
    except apsw.Error:
        _ABANDONED.append(connection)


def synchronous(connection: apsw.Connection, durability: str) -> None:
    """``full`` survives a power cut, ``process`` only the death of the process."""
    if durability == "full":
        connection.execute("PRAGMA synchronous = FULL")
    else:
        connection.execute("PRAGMA synchronous = NORMAL")


class Connections:
    """One writer, used by one thread at a time, and as many readers as are used at once.

    Entered as a context manager it hands out the writer. An engine's error inside the block gives the writer
    up and comes out as an error of ours.
    """

    def __init__(self, settings: Settings, layout: schema.Schema = schema.LINES) -> None:
        self.settings, self._layout = settings, layout
        self._pid = os.getpid()
        self._mutex: Any = threading.RLock()
        self._lock = WriteLock(settings.path)
        self._wait_s = settings.busy_timeout_ms / 1000
        #: Threads whose writes are optional: they don't wait for long.
        self._optional: set[int] = set()
        #: The frame of the block that has the writer.
        self._holder: FrameType | None = None
        #: Whether the writer is lent out for reading.
        self._lent = False
        #: Whether a sync failed: then what the log holds may be readable and yet never reach the disk.
        self._suspect = False
        self._idle: list[apsw.Connection] = []
        #: An entry for each reader that is in use.
        self._out: list[int] = []
        self._closed = False
        self._identity: FileIdentity | None = None
        self._writer: apsw.Connection | None = self._connect_writer()
        if settings.durability == "full":
            sync_log(settings.path)
        _OPEN.add(self)

    # ── the writer ──

    def __enter__(self) -> apsw.Connection:
        """Take the writer: first from the other threads of this process, then from other processes."""
        self._check()
        if not self._mutex.acquire(False):
            self._wait()
        if self._holder is not None:
            self._reenter()
        try:
            self._holder = sys._getframe(1)
            # It may have been closed while this thread waited.
            self._check()
            writer = self._writer
            if writer is None:
                writer = self._writer = self._connect_writer()
            if not self._lock.held:
                self._lock.acquire(min(WAIT_S, self._patience_s()))
            if self._suspect:
                self._secure(writer)
        except BaseException:
            # Also if an interrupt came between taking the mutex and noting that.
            self._let_go()
            raise
        return writer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self._recover(error)
        finally:
            self._let_go()

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Within the block this thread raises :class:`StoreBusyError` soon instead of waiting for others."""
        me = threading.get_ident()
        self._optional.add(me)
        try:
            yield
        finally:
            self._optional.discard(me)

    def reserve(self) -> bool:
        """Keep other processes from writing until this one has; ``False`` if that isn't possible now."""
        self._check()
        if not self._mutex.acquire(False):
            return False
        try:
            # Not in the middle of a write of this very thread, in a signal handler for one.
            if self._holder is not None or not self._lock.reserve():
                return False
        finally:
            self._mutex.release()
        # What follows may take long, and must not keep others from writing for as long.
        overdue = threading.Timer(RESERVED_S, self.release)
        overdue.daemon = True
        overdue.start()
        return True

    def release(self) -> None:
        """Let others write, if nothing was written since :meth:`reserve`."""
        if self._lock.reserved and self._mutex.acquire(False):
            if self._holder is None:
                self._lock.release()
            self._mutex.release()

    def set_busy_handler(self, writer: apsw.Connection) -> None:
        """Let the writer wait where it finds another one at work."""
        started = 0.0

        def wait(tries: int) -> bool:
            nonlocal started
            if not tries:
                started = time.monotonic()
            back_off(tries)
            return time.monotonic() - started < self._patience_s()

        writer.set_busy_handler(wait)

    def _connect_writer(self) -> apsw.Connection:
        writer = self._connect()
        self.set_busy_handler(writer)
        if self._identity is None:
            self._identity = FileIdentity(self.settings.given, self.settings.path)
        self._identity.note_log()
        return writer

    def _connect(self) -> apsw.Connection:
        if self._identity is not None:
            self._identity.check()
        return connect(self.settings, self._layout)

    def _patience_s(self) -> float:
        return _OPTIONAL_WAIT_S if threading.get_ident() in self._optional else self._wait_s

    def _wait(self) -> None:
        if not self._mutex.acquire(timeout=self._patience_s()):
            raise StoreBusyError("another thread of this process kept the store for the whole waiting time")

    def _reenter(self) -> None:
        """This thread has the writer already: in a signal handler or finaliser, or since an interrupt."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame is self._holder:
                self._mutex.release()
                raise StoreBusyError("this thread is in the middle of a write; commit after it")
            frame = frame.f_back
        # Left over: an interrupt came before the block could begin, or while it ended, when the mutex was
        # still held (twice, now) or given back. Or another thread is just leaving.
        self._holder = None
        self._mutex.release()
        if not self._mutex._is_owned():
            self._wait()
        if self._writer is not None:
            schema.rollback(self._writer)
            synchronous(self._writer, self.settings.durability)

    def _let_go(self) -> None:
        # Only what this thread holds: the other threads share the lock file.
        if self._mutex._is_owned():
            holder = self._holder
            try:
                self._lock.release()
            finally:
                # In this order: wherever an interrupt comes, the next one to enter sees what is left over.
                self._mutex.release()
                if self._holder is holder:
                    self._holder = None

    def _recover(self, error: BaseException) -> None:
        """After a failure: the writer is clean, or given up. Raises the typed error for an engine's one."""
        harmless = apsw.BusyError, apsw.ConstraintError
        failure: EverthreadError | None = None
        if isinstance(error, apsw.Error) and not isinstance(error, apsw.ConstraintError):
            failure = self.explained(error)
        if isinstance(error, apsw.Error) and not isinstance(error, harmless):
            # After a failed write or sync the kernel may have dropped pages that SQLite believes written:
            # nothing read through this connection can be trusted any more.
            self._suspect = self._suspect or failed_to_sync(error)
            self._give_up()
        elif self._writer is not None:
            try:
                schema.rollback(self._writer)
                # A compaction that was cut short may have left the weaker level behind.
                synchronous(self._writer, self.settings.durability)
            except apsw.Error:
                self._give_up()
        if failure is not None:
            raise failure from error

    def explained(self, error: apsw.Error | UnicodeDecodeError) -> EverthreadError:
        """What an engine's error means; perhaps that the file isn't there any more.

        Asked before connections are closed: the last one takes the log along.
        """
        if not isinstance(error, apsw.BusyError) and self._identity is not None:
            try:
                self._identity.check()
            except StoreUnavailableError as gone:
                return gone
        return translated(error, self.settings.path)

    def _secure(self, writer: apsw.Connection) -> None:
        """After a failed sync: make sure that what can be read is on the disk, before anybody reads it."""
        try:
            # Nobody else writes meanwhile.
            writer.execute("BEGIN IMMEDIATE")
            rewrite_log(self.settings.path, self.settings.vfs)
            writer.execute("ROLLBACK")
        except apsw.Error as error:
            self._give_up()
            raise translated(error, self.settings.path) from error
        self._suspect = False

    def _give_up(self) -> None:
        broken, self._writer = self._writer, None
        idle, self._idle = self._idle, []
        if self._identity is not None:
            self._identity.forget_log()
        for connection in (broken, *idle):
            if connection is not None:
                close(connection)

    # ── readers ──

    def reader(self, *, apart: bool = False) -> apsw.Connection:
        """A connection for reading; give it back with :meth:`done`, or :meth:`spoilt` after an error.

        It is the writer itself if nobody has it, which needn't read again what it has just written. ``apart``
        asks for another one, for whatever takes long or needs a transaction.
        """
        self._check()
        if self._suspect:
            with self:
                """Makes sure of what there is to read."""
        if not apart and self._mutex.acquire(blocking=False):
            if self._holder is None and not self._lent and self._writer is not None:
                self._lent = True
                return self._writer
            self._mutex.release()
        # Noted before: a fork must know of it.
        self._out.append(0)
        try:
            return self._idle.pop() if self._idle else self._connect()
        except BaseException:
            self._out.pop()
            raise

    def done(self, connection: apsw.Connection) -> None:
        if connection is self._writer:
            self._lent = False
            self._mutex.release()
            return
        if self._closed:
            close(connection)
        else:
            self._idle.append(connection)
        self._out.pop()

    def spoilt(self, connection: apsw.Connection) -> None:
        """Not used again: a query cut short would hold its old snapshot open for the next reader."""
        if connection is self._writer:
            self._writer = None
            if self._identity is not None:
                self._identity.forget_log()
            self._lent = False
            self._lock.release()
            self._mutex.release()
        else:
            self._out.pop()
        close(connection)

    # ── life ──

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")
        if self._pid != os.getpid():
            raise StoreUnavailableError(
                f"{self.settings.path} was opened before this process was forked, and SQLite can't be used "
                "across fork(2); open the store again in the child"
            )

    def close(self) -> None:
        if self._closed:
            return
        if self._pid != os.getpid():
            # The connections belong to the parent.
            self._closed = True
            return
        with self._mutex:
            self._closed = True
            connections = [c for c in (*self._idle, self._writer) if c is not None]
            self._idle, self._writer = [], None
            for connection in connections:
                close(connection)
            self._lock.close()
        _OPEN.discard(self)

    def pause(self) -> bool:
        """Before a fork: close all connections, and keep this store from opening new ones; whether nobody
        was using one. They are opened again when they are needed."""
        if self._mutex._is_owned() or not self._mutex.acquire(timeout=_FORK_WAIT_S):
            return False
        if self._out:
            self._mutex.release()
            return False
        self._give_up()
        self._lock.close()
        return True

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._mutex.release()


class Reading:
    """A reader for the length of a ``with`` block, in one snapshot if ``together``.

    A snapshot has a connection of its own unless ``apart`` is False.
    """

    __slots__ = ("_apart", "_connection", "_pool", "_together")

    def __init__(self, pool: Connections, *, together: bool = False, apart: bool | None = None) -> None:
        self._pool = pool
        self._together = together
        self._apart = together if apart is None else apart

    def __enter__(self) -> apsw.Connection:
        self._connection = self._pool.reader(apart=self._apart)
        if self._together:
            try:
                self._connection.execute("BEGIN")
            except apsw.Error as error:
                self._give_up(error)
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._together:
            try:
                self._connection.execute("COMMIT")
            except apsw.Error as failure:
                error = failure
        if error is None:
            self._pool.done(self._connection)
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The connection isn't used again; raises the typed error for an engine's one."""
        explained = None
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            explained = self._pool.explained(error)
        self._pool.spoilt(self._connection)
        if explained is not None:
            raise explained from error


# ── fork(2) ──
#
# SQLite notes once for a whole process which locks it holds on a file. A child inherits these notes, but none
# of the locks: it would believe itself safe while its parent, closing what seems to be the last connection,
# deletes the log that the child writes to. So connections are closed before a fork. Stores from before can't
# be used in the child; it opens them again. A file that is in use at that moment can't be opened there.

_OPEN: weakref.WeakSet[Connections] = weakref.WeakSet()
_paused: list[Connections] = []


def _before_fork() -> None:
    _paused.extend(each for each in list(_OPEN) if each.pause())


def _in_parent() -> None:
    while _paused:
        _paused.pop().resume()


def _in_child() -> None:
    for each in list(_OPEN):
        if each not in _paused or each._out:
            _INHERITED.add(identity_of(each.settings.path))
            # SQLite forbids even closing connections that fork(2) has copied: keep them from being collected.
            _ABANDONED.append((each, each._writer, list(each._idle)))
    _paused.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
