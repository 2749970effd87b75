"""Where idle threads go: a folder, or any object store behind four calls."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from everthread.errors import InvalidValueError, StorageWriteError, StoreUnavailableError, UnsupportedError
from everthread.stores.files.disk import Disk, read_file
from everthread.stores.urls import unquoted

#: Keys are made here, of these characters alone: a folder, a bucket and a table can all take them.
KEY = re.compile(r"[0-9a-f-]{1,200}")
_ENDING = ".cold"


@runtime_checkable
class Archive(Protocol):
    """An object store, as the cold tier needs it. Safe to call from several threads.

    Any exception other than ours is taken as "not available now" and reported as
    :class:`StoreUnavailableError`; nothing is lost by it.
    """

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data``, durably, under a key that may be there already, with the same data."""

    def get(self, key: str) -> bytes | None:
        """What is kept under a key, or ``None``."""

    def delete(self, key: str) -> None:
        """Remove a key; absent is fine."""

    def keys(self) -> Iterator[tuple[str, float]]:
        """All keys, each with when it was put, in seconds since 1970."""


class FolderArchive:
    """An archive in a folder: a file for each key, written beside and renamed, for its owner alone."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._disk = Disk(durable=True)

    def put(self, key: str, data: bytes) -> None:
        self._disk.make_folder(self.path)
        self._disk.replace(self._place(key), data)

    def get(self, key: str) -> bytes | None:
        try:
            return read_file(self._place(key))
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._place(key))
        except FileNotFoundError:
            return
        self._disk.sync_folder(self.path)

    def keys(self) -> Iterator[tuple[str, float]]:
        if not os.path.isdir(self.path):
            return
        with os.scandir(self.path) as entries:
            for entry in entries:
                name, ending = os.path.splitext(entry.name)
                if ending == _ENDING and KEY.fullmatch(name):
                    yield name, entry.stat().st_mtime

    def _place(self, key: str) -> str:
        if not KEY.fullmatch(key):
            raise InvalidValueError(f"{key!r} is no key of an archive")
        return os.path.join(self.path, key + _ENDING)

    def __repr__(self) -> str:
        return f"FolderArchive({self.path!r})"


def open_archive(cold: object) -> Archive:
    """The archive that ``open(cold=…)`` names: a folder (a path or ``file:///`` URL), or an object."""
    if isinstance(cold, str | os.PathLike):
        path = os.fspath(cold)
        if isinstance(path, str) and path and "\0" not in path:
            if path.startswith("file:///"):
                return FolderArchive(unquoted(path[len("file://") :]))
            if "://" not in path:
                return FolderArchive(path)
    elif isinstance(cold, Archive):
        return cold
    raise InvalidValueError(
        "cold is a folder (a path or file:///absolute/folder) or an object with put, get, delete and keys",
        path="cold",
    )


def put(archive: Archive, key: str, data: bytes) -> None:
    """Keep data; raises :class:`StorageWriteError` if the archive can't."""
    try:
        archive.put(key, data)
    except Exception as error:
        raise StorageWriteError(
            f"the cold archive didn't take {key}: {error}; nothing was changed"
        ) from error


def get(archive: Archive, key: str) -> bytes | None:
    """What is kept; raises :class:`StoreUnavailableError` if the archive can't say."""
    try:
        return archive.get(key)
    except Exception as error:
        raise StoreUnavailableError(
            f"the cold archive can't be read: {error}; a thread that lies there waits for it"
        ) from error


def no_cold() -> UnsupportedError:
    """Why a store isn't opened with an archive."""
    return UnsupportedError(
        "this kind of store keeps all of its threads where they are: open it without cold=…, or use SQLite "
        "or PostgreSQL"
    )
