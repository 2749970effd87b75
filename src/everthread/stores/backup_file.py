"""Backup files: written whole and synced, or not at all; never over another file; and which kind of store
one belongs to."""

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


ARCHIVE = "an archive"
FILES = "files"
#: How the files begin, and what they are.
_BEGINNINGS = {
    b"SQLite format 3\0": "SQLite",
    b"everthread archive\n": ARCHIVE,
}
#: What kind of store a URL of this scheme names.
KINDS = {"sqlite": "SQLite", "file": FILES}


def another_kind(url: str, path: str) -> str | None:
    """What is at ``path``, if that is known to be for something else than the store at ``url``."""
    found, wanted = kind_of(path), KINDS.get(url.partition(":")[0])
    return None if wanted is None or found == wanted else found


def wrong_kind_message(url: str, path: str) -> str | None:
    """The same in words, with what to do."""
    found = another_kind(url, path)
    if found is None:
        return None
    if found == ARCHIVE:
        return f"{path} is an archive, not a backup: store.import_from() brings it in. Nothing was changed"
    return (
        f"{path} is a backup of a store of another kind ({found}), and goes back into one of that kind only: "
        "restore it there, then copy_to() brings everything here. Nothing was changed"
    )


def kind_of(path: str) -> str | None:
    """What is at ``path``, by how it begins; ``None`` if that isn't known."""
    if os.path.isdir(path):
        return FILES if os.path.exists(os.path.join(path, "everthread.json")) else None
    try:
        with open(path, "rb") as file:
            first = file.read(max(map(len, _BEGINNINGS)))
    except OSError:
        return None
    return next((kind for begin, kind in _BEGINNINGS.items() if first.startswith(begin)), None)
