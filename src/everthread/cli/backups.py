"""What a file or folder that is to be restored really is, in the words of who types commands."""

from __future__ import annotations

from everthread.cli.words import typed
from everthread.errors import UsageError
from everthread.stores.backup_kinds import ARCHIVE, FILES, another_kind

_URLS = {
    "SQLite": "sqlite:///new.db",
    FILES: "file:///new/folder",
    "PostgreSQL": "postgresql://…",
    "Valkey": "valkey://…",
}


def refuse_other_kind(url: str, path: str) -> None:
    """Raises :class:`UsageError` if what is at ``path`` is known to be for something else than the store at
    ``url``; what isn't recognised is for the store to judge."""
    found = another_kind(url, path)
    if found is None:
        return
    if found == ARCHIVE:
        raise UsageError(f"{path} is an archive, not a backup: everthread import {typed(path)} brings it in")
    raise UsageError(
        f"{path} is a backup of a store of another kind ({found}), and goes back into one of that kind only: "
        f"everthread restore {typed(path)} --store {_URLS[found]}, then everthread copy brings it here"
    )
