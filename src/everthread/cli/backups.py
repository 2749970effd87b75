"""What a file or folder that is to be restored really is."""

from __future__ import annotations

import os

from everthread.cli.words import typed
from everthread.errors import UsageError

_ARCHIVE = "an archive"
#: How the files begin, and what they are.
_BEGINNINGS = {
    b"SQLite format 3\0": "SQLite",
    b"everthread-postgres ": "PostgreSQL",
    b"everthread valkey backup ": "Valkey",
    b"everthread archive\n": _ARCHIVE,
}
_FILES = "files"
_KINDS = {"sqlite": "SQLite", "file": _FILES, "postgresql": "PostgreSQL", "postgres": "PostgreSQL"}
_KINDS |= dict.fromkeys(("valkey", "valkeys", "redis", "rediss"), "Valkey")
_URLS = {
    "SQLite": "sqlite:///new.db",
    _FILES: "file:///new/folder",
    "PostgreSQL": "postgresql://…",
    "Valkey": "valkey://…",
}


def refuse_other_kind(url: str, path: str) -> None:
    """Raises :class:`UsageError` if what is at ``path`` is known to be for something else than the store at
    ``url``; what isn't recognised is for the store to judge."""
    found, wanted = _kind(path), _KINDS.get(url.partition(":")[0])
    if found is None or wanted is None or found == wanted:
        return
    if found == _ARCHIVE:
        raise UsageError(f"{path} is an archive, not a backup: everthread import {typed(path)} brings it in")
    raise UsageError(
        f"{path} is a backup of a store of another kind ({found}), and goes back into one of that kind only: "
        f"everthread restore {typed(path)} --store {_URLS[found]}, then everthread copy brings it here"
    )


def _kind(path: str) -> str | None:
    if os.path.isdir(path):
        return _FILES if os.path.exists(os.path.join(path, "everthread.json")) else None
    try:
        with open(path, "rb") as file:
            first = file.read(max(map(len, _BEGINNINGS)))
    except OSError:
        return None
    return next((kind for begin, kind in _BEGINNINGS.items() if first.startswith(begin)), None)
