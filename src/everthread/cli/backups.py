"""What a file or folder that is to be restored really is, in the words of who types commands; what a backup
leaves beside it, and what restoring one brings back."""

from __future__ import annotations

import copy
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.cli.words import typed
from everthread.errors import (
    EverthreadError,
    NotAStoreError,
    NotFoundError,
    StoreUnavailableError,
    UsageError,
)
from everthread.stores.backup_file import ARCHIVE, FILES, KINDS, another_kind, kind_of
from everthread.stores.urls import unquoted

if TYPE_CHECKING:
    from everthread.redaction.report import Redaction
    from everthread.store import Store

#: What a backup is called until it is whole.
_PARTIAL = re.compile(r".+\.partial-[0-9a-f]{16}")

_URLS = {
    "SQLite": "sqlite:///new.db",
    FILES: "file:///new/folder",
    "PostgreSQL": "postgresql://…",
}


def place_of(url: str) -> str:
    """The file or folder that the URL of such a store names."""
    scheme, _, rest = url.partition("://")
    place = unquoted(rest.partition("?")[0])
    return os.path.realpath(place[1:] if scheme == "sqlite" else place)


def look_at(url: str, path: str) -> None:
    """Raises what keeps ``path`` from being restored into the store at ``url``, as far as a look from outside
    tells: nobody is asked about replacing a store by what can't take its place. What is inside is for the
    store to judge, which changes nothing if it is damaged.
    """
    found = _stat(path)
    _refuse_itself(url, path)
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        # Before it is read: a pipe would be waited for, and a device read without end.
        raise UsageError(f"{path} is neither a file nor a folder, and so no backup")
    refuse_other_kind(url, path)
    wanted = KINDS.get(url.partition(":")[0])
    if wanted is None or kind_of(path) == wanted:
        # Nothing is kept in memory: opening it says so.
        return
    if stat.S_ISDIR(found.st_mode) is not (wanted == FILES):
        given, needed = ("file", "folder") if wanted == FILES else ("folder", "file")
        raise NotAStoreError(f"{path} is a {given}; a backup of a store of this kind is a {needed}")
    raise NotAStoreError(f"{path} isn't a backup of a store: it doesn't begin like one")


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        link = ": it is a link that leads nowhere" if os.path.islink(path) else ""
        raise NotFoundError(f"there is no backup at {path}{link}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreUnavailableError(f"can't look at {path}: {why}") from error


def _is_at(url: str, path: str) -> bool:
    """Whether that is the file or folder of a store, through whichever link it is named."""
    try:
        return url.startswith(("sqlite:", "file:")) and os.path.samefile(place_of(url), path)
    except (OSError, ValueError):
        return False


def is_itself(src: str, dst: str) -> bool:
    """Whether two URLs name the same store, as far as a look from outside tells."""
    return src == dst or (dst.startswith(("sqlite:", "file:")) and _is_at(src, place_of(dst)))


def _refuse_itself(url: str, path: str) -> None:
    if _is_at(url, path):
        raise UsageError(f"{path} is the store itself, {url}: name a backup of it, such as backup makes")


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


def leftovers(path: str) -> list[str]:
    """Parts of backups in the folder of ``path``: left by processes that were killed, or still being written.
    Which of them, nobody can tell from outside: so they are named, and not removed."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        found = sorted(name for name in os.listdir(folder) if _PARTIAL.fullmatch(name))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in found]


def redactions_in(store: Store) -> dict[tuple[str, str], Redaction]:
    """What was redacted in each namespace of a store, by namespace and id; as far as that can be read."""
    from everthread.redaction.redact import recorded
    from everthread.threads.sync.redactions import NAME, redactions_space

    found: dict[tuple[str, str], Redaction] = {}
    with suppress(EverthreadError):
        for line in store.core.backend.every_line():
            space = line.space.partition("\0")[0]
            if line.deleted or (line.space, line.name) != (redactions_space(space), NAME):
                continue
            core = copy.copy(store.core)
            core.space = space
            found.update({(space, each.id): each for each in recorded(core)})
    return found
