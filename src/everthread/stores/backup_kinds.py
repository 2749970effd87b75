"""What a file or folder that is to be restored really is."""

from __future__ import annotations

import os

ARCHIVE = "an archive"
FILES = "files"
#: How the files begin, and what they are.
_BEGINNINGS = {
    b"SQLite format 3\0": "SQLite",
    b"everthread-postgres ": "PostgreSQL",
    b"everthread valkey backup ": "Valkey",
    b"everthread archive\n": ARCHIVE,
}
#: What kind of store a URL of this scheme names.
KINDS = {"sqlite": "SQLite", "file": FILES, "postgresql": "PostgreSQL", "postgres": "PostgreSQL"}
KINDS |= dict.fromkeys(("valkey", "valkeys", "redis", "rediss"), "Valkey")


def another_kind(url: str, path: str) -> str | None:
    """What is at ``path``, if that is known to be for something else than the store at ``url``."""
    found, wanted = kind_of(path), KINDS.get(url.partition(":")[0])
    return None if wanted is None or found == wanted else found


def told(url: str, path: str) -> str | None:
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
