"""Idle threads in an archive: what goes there, what stands in its place, and how reading brings it back.

A parcel holds rows and chunks exactly as the store had them. Sealed values aren't among them: they stay in
the store, so that erasing a person doesn't have to reach the archive.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Protocol, runtime_checkable

import msgspec

from everthread.codec import records
from everthread.errors import (
    InvalidValueError,
    SchemaVersionError,
    StateCorruptedError,
    StorageWriteError,
    StoreBusyError,
    StoreUnavailableError,
    UnsupportedError,
)
from everthread.history.packs import Chunk
from everthread.stores.contract import COLD, Prune, Row
from everthread.stores.files.disk import Disk, read_file
from everthread.stores.urls import unquoted

FORMAT = 1
#: Keys are made here, of these characters alone: a folder, a bucket and a table can all take them.
KEY = re.compile(r"[0-9a-f-]{1,200}")
_ENDING = ".cold"
_TRIES = 20


class ColdBackend:
    """The store contract on a backend and an archive. What isn't told here is the backend's own."""

    def __init__(self, backend: Any, archive: Archive) -> None:
        self._backend = backend
        self.archive = archive

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._backend, name)
        if callable(member):
            # Found without this detour from now on; what isn't a verb may change.
            self.__dict__[name] = member
        return member

    @property
    def capabilities(self) -> Any:
        return self._backend.capabilities

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        for _ in range(_TRIES):
            rows: list[Row] = self._backend.replay(line, seq, floor)
            # Its keyframe is enough for who only reads on from there.
            if not any(row.kind == COLD and (row.keyframe is None or row.seq > seq) for row in rows):
                return rows
            self.thaw(line)
        raise _restless(line)

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        for _ in range(_TRIES):
            rows: list[Row] = self._backend.scan(line, seq, limit)
            if not any(row.kind == COLD for row in rows):
                return rows
            self.thaw(line)
        raise _restless(line)

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows: list[tuple[Row, bytes | None]] = self._backend.tail(line)
        # Everything in it was folded, keys and all, before it went.
        return [entry for entry in rows if entry[0].kind != COLD]

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        for _ in range(_TRIES):
            chunks: list[Chunk] = self._backend.chunks(line, log, start, stop)
            if not any(chunk.pruned for chunk in chunks):
                return chunks
            # Those of what is away still have their fingerprints; of what was pruned nothing is left.
            away = any(chunk.pruned and chunk.fingerprints for chunk in chunks)
            if not self.thaw(line) and not away:
                return chunks
        raise _restless(line)

    def thaw(self, line: int) -> bool:
        """Bring a line back, whole; whether it was away. The parcel stays where it is: an older backup of the
        store may still need it."""
        for attempt in range(_TRIES):
            found = self._backend.line(line)
            row = None if found is None else self._stand_in(line, found.parent_seq)
            if found is None or row is None:
                return attempt > 0
            label = read_label(row)
            parcel = self._fetch(label, found.uid)
            prune = Prune(old=(row,), rows=parcel.rows, chunks=parcel.chunks)
            if self._backend.prune(found, prune):
                return True
            # Somebody else has brought it back, or moved it away again.
        raise StateCorruptedError(f"line {line} can't be brought back from the cold archive")

    def _stand_in(self, line: int, parent_seq: int) -> Row | None:
        rows: list[Row] = self._backend.scan(line, parent_seq + 1, 1)
        return rows[0] if rows and rows[0].kind == COLD else None

    def _fetch(self, label: Any, uid: bytes) -> Parcel:
        data = get_parcel(self.archive, label.key)
        return unwrap(data, label, uid)


def _restless(line: int) -> StoreBusyError:
    return StoreBusyError(f"line {line} goes to the cold archive whenever it has come back; try again later")


def no_cold() -> UnsupportedError:
    """Why a store isn't opened with an archive."""
    return UnsupportedError(
        "this kind of store keeps all of its threads where they are: open it without cold=…, or use SQLite "
        "or PostgreSQL"
    )


# ── archives ────────────────────────────────────────────────────────────────────────────────────────────


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


def put_parcel(archive: Archive, key: str, data: bytes) -> None:
    """Keep data; raises :class:`StorageWriteError` if the archive can't."""
    try:
        archive.put(key, data)
    except Exception as error:
        raise StorageWriteError(
            f"the cold archive didn't take {key}: {error}; nothing was changed"
        ) from error


def get_parcel(archive: Archive, key: str) -> bytes | None:
    """What is kept; raises :class:`StoreUnavailableError` if the archive can't say."""
    try:
        return archive.get(key)
    except Exception as error:
        raise StoreUnavailableError(
            f"the cold archive can't be read: {error}; a thread that lies there waits for it"
        ) from error


# ── parcels ─────────────────────────────────────────────────────────────────────────────────────────────


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """The versions of a line from the first to one below its newest, and the items in its chunks."""

    format: int
    uid: bytes
    rows: tuple[Row, ...]
    chunks: tuple[Chunk, ...]


class Label(msgspec.Struct, frozen=True, array_like=True):
    """Where a parcel is, and how to know it: the body of the row that stands in its place."""

    format: int
    key: str
    digest: bytes
    size: int


def wrap(uid: bytes, rows: tuple[Row, ...], chunks: tuple[Chunk, ...], unique: bytes) -> tuple[bytes, Label]:
    """A parcel as bytes, and its label.

    Its key is one that nothing was ever kept under: two who move the same line are not in each other's way,
    and a parcel that nobody needs is never needed again, so that it may be removed at any time.
    """
    data = msgspec.msgpack.encode(Parcel(FORMAT, uid, rows, chunks))
    digest = sha256(data).digest()
    key = f"{uid.hex()}-{rows[-1].seq}-{digest[:12].hex()}-{unique.hex()}"
    return data, Label(FORMAT, key, digest, len(data))


def uid_of(key: str) -> bytes:
    """The line whose parcel has this key; nobody's if it isn't one of ours."""
    try:
        return bytes.fromhex(key.partition("-")[0])
    except ValueError:
        return b""


def stand_in(rows: tuple[Row, ...], label: Label, keyframe: bytes | None) -> Row:
    """The row that takes the place of the rows of a parcel."""
    body = records.compress(msgspec.msgpack.encode(label))
    return Row(rows[-1].seq, rows[0].first, COLD, rows[-1].hash, body, None, keyframe)


def read_label(row: Row) -> Label:
    """The label that a row holds. Raises :class:`StateCorruptedError`, :class:`SchemaVersionError`."""
    what = "a row of the cold tier"
    label: Label = _decoded(records.expand(row.body, what), Label, what)
    return label


def unwrap(data: bytes | None, label: Label, uid: bytes) -> Parcel:
    """The parcel, checked. Raises :class:`StateCorruptedError` if it is gone or isn't what it was."""
    if data is None:
        raise StateCorruptedError(
            f"the cold archive has no {label.key}: open the store with the archive that it was cooled into",
            where=label.key,
        )
    if sha256(data).digest() != label.digest:
        raise StateCorruptedError(f"{label.key} in the cold archive is damaged", where=label.key)
    parcel: Parcel = _decoded(data, Parcel, label.key)
    if parcel.uid != uid:
        raise StateCorruptedError(f"{label.key} in the cold archive is of another thread", where=label.key)
    return parcel


def _decoded(data: bytes, kind: Any, what: str) -> Any:
    try:
        # The format first: what is newer may look different.
        found = msgspec.msgpack.decode(data)[0]
        if type(found) is int and found > FORMAT:
            raise SchemaVersionError(
                f"{what} has format {found}, this Everthread reads up to {FORMAT}: upgrade it",
                found=found,
                supported=FORMAT,
            )
        return msgspec.convert(msgspec.msgpack.decode(data), kind)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, TypeError, IndexError) as error:
        raise StateCorruptedError(f"{what} can't be read", where=what) from error
