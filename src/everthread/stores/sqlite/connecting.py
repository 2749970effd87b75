"""One connection to a store's file: how it is opened, set up and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everthread.errors import EverthreadError, StoreUnavailableError
from everthread.stores.sqlite import forking, schema
from everthread.stores.sqlite.failing import translated
from everthread.stores.sqlite.migrating import identify, set_up
from everthread.stores.sqlite.presence import prepare_file
from everthread.stores.urls import real_path

if TYPE_CHECKING:
    import apsw

#: Connections of another process, inherited through fork(2). SQLite forbids even closing them here.
ABANDONED: list[Any] = []


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
        #: As it was named, and the file itself, beside which SQLite keeps the log and we whatever we keep.
        self.given, self.path = path, real_path(path)
        self.durability = durability
        self.vfs = vfs
        self.busy_timeout_ms = busy_timeout_ms
        self.wal_autocheckpoint = wal_autocheckpoint


def connect(settings: Settings) -> apsw.Connection:
    """A connection to our file, which is created or migrated if need be.

    A file that isn't ours, or is newer than this code, is left untouched.
    """
    import apsw

    path = settings.path
    forking.check(path)
    prepare_file(path, real=settings.vfs is None)
    try:
        connection = apsw.Connection(path, vfs=settings.vfs)
    except apsw.Error as error:
        raise StoreUnavailableError(f"can't open {path}: {error}; look at the disk, try again") from error
    if connection.readonly("main"):
        # What SQLite does if it can't open it otherwise, on a full disk for one: it would never write again.
        close(connection)
        raise StoreUnavailableError(f"can't open {path} for writing; look at the disk, try again")
    try:
        connection.set_busy_timeout(settings.busy_timeout_ms)
        if identify(connection, path) < schema.SCHEMA_VERSION:
            set_up(connection, path, settings.busy_timeout_ms)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        synchronous(connection, settings.durability)
        connection.wal_autocheckpoint(settings.wal_autocheckpoint)
        # A plan that doesn't depend on the values bound to it is made once; else SQLite, built with
        # statistics, makes it anew whenever other values are bound, which costs more than running it.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except apsw.Error as error:
        close(connection)
        raise translated(error, path) from error
    except EverthreadError:
        close(connection)
        raise
    return connection


def close(connection: apsw.Connection) -> None:
    """Close a connection, whatever the disk says to it: all that was acknowledged is safe already."""
    import apsw

    try:
        connection.close(True)
    except apsw.Error:
        ABANDONED.append(connection)


def synchronous(connection: apsw.Connection, durability: str) -> None:
    """``full`` survives a power cut, ``process`` only the death of the process."""
    if durability == "full":
        connection.execute("PRAGMA synchronous = FULL")
    else:
        connection.execute("PRAGMA synchronous = NORMAL")
