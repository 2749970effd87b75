"""Where a backup that is one file stands: whole and on disk, or not at all, and never in place of another."""

from __future__ import annotations

import os

from everthread.errors import StoreUnavailableError, UsageError


def folder_for(path: str) -> str:
    """The folder of a backup that is to be made. Raises unless it is there, and the file isn't."""
    if not path or "\0" in path or os.path.lexists(path):
        raise UsageError(f"name a file that doesn't exist yet, not {path!r}; nothing is overwritten")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StoreUnavailableError(f"the folder {folder} doesn't exist; create it, or choose another place")
    return folder


def require_file(path: str) -> None:
    """Raises unless there is a file to be read."""
    if not path or "\0" in path or not os.path.isfile(path):
        raise StoreUnavailableError(f"there is no backup at {path!r}")


def put_in_place(partial: str, path: str, folder: str) -> None:
    """Give a finished file its name, and have the disk know that. The caller removes ``partial``."""
    try:
        # Unlike a rename this never replaces a file that was made meanwhile.
        os.link(partial, path)
    except FileExistsError:
        raise UsageError(f"{path} was made by somebody else meanwhile; nothing is overwritten") from None
    try:
        sync(folder)
    except OSError:
        os.unlink(path)
        raise


def sync(path: str) -> None:
    """Have the disk hold a file, or which files a folder has."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
