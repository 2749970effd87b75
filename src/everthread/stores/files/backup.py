"""Backup and restore of a whole store."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from everthread.errors import NotAStoreError, StateCorruptedError, StoreUnavailableError, UsageError
from everthread.stores.contract import PutCell
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.cells_and_events import CELLS, Cells
from everthread.stores.files.content import Content, check_content
from everthread.stores.files.disk import TEMPORARY, Disk, read_at, read_file, write_at
from everthread.stores.files.layout import (
    FORMAT_FILE,
    is_content_name,
    next_content,
    read_format,
    write_format,
)
from everthread.stores.files.sealed import ErasureLedger, SealedValues
from everthread.stores.files.views import VIEW

_BLOCK = 1 << 20


class Size(NamedTuple):
    """The size of a file, and its inode: pruning replaces files."""

    bytes: int
    inode: int


#: Files below a content folder, each with the size to copy or with the bytes themselves.
Listed = list[tuple[str, Size | bytes]]


def check_target(path: str) -> str:
    """The absolute path for a backup. Raises unless nothing is there yet."""
    if not path or "\0" in path or os.path.lexists(path):
        raise UsageError(f"name a folder that doesn't exist yet, not {path!r}; nothing is overwritten")
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreUnavailableError(f"the folder {folder} doesn't exist; create it, or choose another place")
    return path


def list_content(content: str) -> Listed:
    """The files of a content as they are now. The caller holds the lock.

    What only grows, or never changes, is copied later, as far as it went now; cells, which are replaced, are
    read at once. Views are left out: whoever opens the copy makes them again.
    """
    found: Listed = []
    cells = os.path.join(content, CELLS)
    for folder, _, names in os.walk(content):
        for name in names:
            path = os.path.join(folder, name)
            if not name.startswith((TEMPORARY, VIEW)):
                found.append((os.path.relpath(path, content), _what(path, whole=folder.startswith(cells))))
    return sorted(found, key=lambda each: each[0])


def _what(path: str, *, whole: bool) -> Size | bytes:
    if whole:
        return read_file(path)
    found = os.stat(path)
    return Size(found.st_size, found.st_ino)


def write_backup(root: str, content: str, listed: Listed, path: str, disk: Disk) -> None:
    """A complete copy at ``path``: there whole and on disk, or not at all.

    Raises :class:`FileNotFoundError` if something was removed since it was listed.
    """
    partial = f"{path}.partial-{os.urandom(8).hex()}"
    try:
        os.mkdir(partial, 0o700)
        name = os.path.basename(content)
        copy_content(content, listed, os.path.join(partial, name), disk)
        for extra in (".gitignore", ".gitattributes"):
            with suppress(FileNotFoundError):
                _copy_file(os.path.join(root, extra), os.path.join(partial, extra), None, disk)
        write_format(partial, name, disk)
        try:
            # Replaces an empty folder at most.
            os.rename(partial, path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise UsageError(f"{path} was made by somebody else meanwhile; nothing is overwritten") from error
        disk.sync_folder(os.path.dirname(path))
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def copy_content(content: str, listed: Listed, target: str, disk: Disk) -> None:
    """Copy files up to their listed sizes. Raises :class:`FileNotFoundError`."""
    disk.make_folder(target)
    folders = {target}
    for name, what in listed:
        path = os.path.join(target, name)
        folder = os.path.dirname(path)
        if folder not in folders:
            disk.make_folder(folder)
            folders.add(folder)
        if isinstance(what, bytes):
            disk.write_new(path, what)
        else:
            _copy_file(os.path.join(content, name), path, what, disk)
    for folder in folders:
        disk.sync_folder(folder)


def _copy_file(source: str, target: str, size: Size | None, disk: Disk) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if size is not None and os.fstat(reading).st_ino != size.inode:
            raise FileNotFoundError(errno.ENOENT, "it was replaced meanwhile", source)
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            left = os.fstat(reading).st_size if size is None else size.bytes
            offset = 0
            while left and (data := read_at(reading, offset, min(left, _BLOCK))):
                write_at(writing, data, offset)
                offset += len(data)
                left -= len(data)
            disk.sync(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


# ── bringing one back ────────────────────────────────────────────────────────────────────────────


def open_backup(path: str) -> str:
    """The content folder of a backup, after a first check. Changes nothing."""
    if not path or "\0" in path or not os.path.isdir(path):
        raise StoreUnavailableError(f"there is no backup at {path!r}")
    if not os.path.exists(os.path.join(path, FORMAT_FILE)):
        raise NotAStoreError(f"{path} isn't a backup of an Everthread file store; nothing was changed")
    try:
        return os.path.join(path, read_format(path).content)
    except OSError as error:
        raise StoreUnavailableError(
            f"the backup {path} can't be read ({error.strerror}); nothing was changed"
        ) from error


def bring_in(root: str, content: str, backup: str, disk: Disk, cells: Sequence[PutCell] = ()) -> str:
    """Copy a backup beside the present content, with ``cells``, ready to replace it; the new folder.

    The caller holds the lock. What an interrupted attempt left there is removed.
    """
    target = os.path.join(root, next_content(os.path.basename(content)))
    shutil.rmtree(target, ignore_errors=True)
    disk.make_folder(target)
    copy_content(backup, list_content(backup), target, disk)
    copy = Content(target, disk)
    try:
        problems = check_content(copy, views=False)
    finally:
        copy.close()
    if problems:
        shutil.rmtree(target, ignore_errors=True)
        raise StateCorruptedError(f"the backup is damaged ({problems[0]}); nothing was changed", where=backup)
    old, new = Catalog(content, disk), Catalog(target, disk)
    try:
        old.refresh()
        new.refresh()
        # Handles made before must never find another thread under their line's id.
        if old.ids > new.ids:
            new.reserve(old.ids)
    finally:
        old.close()
        new.close()
    _keep_erased(content, target, disk)
    registers = Cells(target, disk)
    registers.raise_all(Cells(content, disk).highest())
    for cell in cells:
        registers.put(cell)
    return target


def _keep_erased(content: str, target: str, disk: Disk) -> None:
    """Erase again in the copy whoever was erased since the backup was made."""
    present, restored = ErasureLedger(content, disk), ErasureLedger(target, disk)
    try:
        if keys := restored.carry_over(present):
            SealedValues(target, disk).drop(keys)
    finally:
        present.close()
        restored.close()


def has_others(root: str, content: str) -> bool:
    """Whether there are content folders that were replaced, or whose restore was interrupted."""
    return any(is_content_name(name) and os.path.join(root, name) != content for name in os.listdir(root))


def remove_others(root: str, content: str) -> None:
    """Remove these. The caller holds the lock."""
    for name in os.listdir(root):
        path = os.path.join(root, name)
        if is_content_name(name) and path != content:
            shutil.rmtree(path, ignore_errors=True)
