"""What SQLite's errors mean to the caller."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from everthread.arguments import LOOK_ONLY
from everthread.errors import (
    EverthreadError,
    NotAStoreError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    import apsw

#: Parts of the definitions of our tables that hardly any other file holds.
_OUR_DEFINITIONS = b"start_hash BLOB NOT NULL", b"PRIMARY KEY (tab, owner, at)"
#: Where the definitions of the tables are: they are made first.
_LOOKED_AT_BYTES = 256 * 1024


def translated(error: apsw.Error | UnicodeDecodeError, path: str) -> EverthreadError:
    """What an engine's error means to the caller. Text that isn't Unicode can only be damage."""
    import apsw

    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusyError(f"other writers kept {path} locked for the whole waiting time; try again later")
    if isinstance(error, apsw.FullError):
        return StorageWriteError(f"no space left to write {path} ({error}); free some, then commit again")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError):
        # SQLite says the same of a page that is damaged and of one that the disk can't read.
        return StateCorruptedError(
            f"{path} is damaged, or its disk fails to read it: {error}; keep a copy. Where it still opens, "
            "store.verify() says more; everthread.salvage() brings all that is sound into a new store",
            where=path,
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return StoreUnavailableError(
            f"{path} can't be opened for writing: {error}; look at the disk and the modes of its files, or "
            f"{LOOK_ONLY}"
        )
    if isinstance(error, apsw.IOError | apsw.NoMemError):
        return StorageWriteError(
            f"writing {path} failed ({error}); its connection was given up and will be opened anew. "
            "Commit again: a version that had landed is recognised"
        )
    return StoreUnavailableError(f"{path}: {type(error).__name__}: {error}")


def failed_to_sync(error: apsw.Error) -> bool:
    """Whether an engine's error says that a sync failed."""
    import apsw

    return bool(getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC)


def unknown(path: str) -> EverthreadError:
    """What is raised of a file that SQLite doesn't know: damage, if it still tells of the tables of ours."""
    from everthread.stores.sqlite.files import RawFile

    try:
        with closing(RawFile(path)) as file:
            beginning = file.read(_LOOKED_AT_BYTES, 0)
        ours = any(definition in beginning for definition in _OUR_DEFINITIONS)
    except OSError:
        ours = False
    if not ours:
        return NotAStoreError(
            f"{path} isn't an Everthread store nor any SQLite database; it was left as it is"
        )
    return StateCorruptedError(
        f"the beginning of {path} is overwritten, so that SQLite doesn't know it any more, but it holds a "
        "store; keep a copy. everthread.salvage() brings all that is sound into a new store",
        where=path,
    )
