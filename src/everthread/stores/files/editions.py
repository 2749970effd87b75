"""Which edition of a thread's journal the folder holds: pruning is what makes a new one.

Journals only grow, except when versions are pruned: then segments are replaced, and places in them that
others remember mean nothing any more. The size of ``prunes.index`` counts: a byte before the first segment is
replaced, a byte when all is done. So a size that is even names an edition, and one that is odd says that
somebody is at it, or was interrupted: then only what the journal itself says is to be believed, and whoever
has the turn next tidies up.
"""

from __future__ import annotations

import os

from everthread.stores.files.disk import Disk, write_at

#: The ending keeps it out of git, as all that is derived.
FILE = "prunes.index"


def edition_of(folder: str) -> int:
    """The edition that the folder holds; odd while it is being changed."""
    try:
        return os.stat(os.path.join(folder, FILE)).st_size
    except FileNotFoundError:
        return 0


def begin(folder: str, disk: Disk) -> int:
    """From now on the folder changes; the edition that it will hold afterwards. Durable."""
    size = edition_of(folder)
    if size % 2 == 0:
        _grow(folder, size, disk)
        disk.sync_folder(folder)
        size += 1
    return size + 1


def end(folder: str, edition: int) -> None:
    """The change is done. If that is lost, somebody tidies up for nothing."""
    _grow(folder, edition - 1, Disk(durable=False))


def _grow(folder: str, size: int, disk: Disk) -> None:
    file = os.open(os.path.join(folder, FILE), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_at(file, b".", size)
        disk.sync(file)
    finally:
        os.close(file)
