"""A keyring's records in the cells of a store of its own: SQLite, PostgreSQL or Valkey.

The records are cut into pieces, one cell each. A piece never changes: its name says to which *generation* of
the keyring it belongs, and at which offset it begins. The cell ``head`` names the generation in use and how
many bytes of it count, so one compare-and-set of it makes a change visible to everybody, all at once. Whoever
finds that the head has moved on starts again from what is there (:class:`Outdated`). There is no lock that a
dead process could leave behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from everthread.errors import (
    EverthreadError,
    KeyringError,
    MissingDependencyError,
    NotFoundError,
    SchemaVersionError,
    StoreBusyError,
)
from everthread.keyring.file import FileLock, check_file, make_directory
from everthread.records.opening import open_backend
from everthread.stores.contract import Backend, Cell, Residues, StaleCell
from everthread.stores.urls import KEYRING_VARIABLE, Existing, kind_of

#: No namespace has such a name, and nothing that is exported, copied, followed or searched is in it.
SPACE = "\0keyring"
HEAD = "head"
#: Records are put together up to this size: a cell for each would leave many behind after a destruction.
_PIECE_BYTES = 48_000
_PAGE = 50
#: How long a destruction waits for readers of the store, whose snapshots keep old bytes on the disk.
_PURGE_S = 5.0
_SIZE_BYTES = 8
_REVISION_DIGITS = 16


class Outdated(Exception):  # noqa: N818 - no caller ever sees it
    """Somebody else has changed the keyring since it was read: nothing of this attempt counts."""


class StoreMedium:
    """The records in cells: see :class:`Medium`.

    ``path`` is the database file, where there is one. Then the master key may be a file beside it, which is
    replaced together with the records: that needs a lock, and all users are on one machine anyway.
    """

    #: Looking takes a round trip: a key that was looked up just now seals without; the commit looks again.
    trust_s = 0.002

    def __init__(
        self,
        url: str,
        path: Path | None = None,
        lock_timeout_ms: int = 10_000,
        backend: Backend | None = None,
    ) -> None:
        self._backend = backend
        self._url = url
        self.kind = kind_of(url)
        self._path = path
        self._lock = None if path is None else FileLock(path.with_name(path.name + ".lock"), lock_timeout_ms)
        self.where = str(path) if path is not None else url if backend is not None else _without_secrets(url)
        #: The head as it was when records were last read, or written.
        self._generation, self._size, self._revision = "", 0, 0

    def look(self) -> tuple[object, int] | None:
        backend = self._open()
        if backend is None:
            return None
        with self._translated():
            head = _read_head(backend.cell(SPACE, HEAD, _now_us()))
        return None if head is None else head[:2]

    def held(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        return nullcontext() if self._lock is None else self._lock.held(exclusive=exclusive)

    def read(self, offset: int) -> bytes:
        """The records from ``offset`` on: also those behind what the head counts, which a process wrote that
        has died since, or hasn't come to the head yet."""
        if self._path is not None:
            check_file(self._path)
        backend = self._opened()
        with self._translated():
            head = _read_head(backend.cell(SPACE, HEAD, _now_us()))
            if head is None:
                raise Outdated
            self._generation, self._size, self._revision = head
            prefix = f"{self._generation}/"
            after, pieces, end = _name(self._generation, offset - 1) if offset else None, [], offset
            while page := backend.cells(SPACE, prefix, after, _PAGE):
                for name, cell in page:
                    if name != _name(self._generation, end):
                        # A generation that was replaced is being removed.
                        raise Outdated
                    pieces.append(cell.value)
                    end += len(cell.value)
                after = page[-1][0]
        if end < self._size:
            raise Outdated
        return b"".join(pieces)

    def append(self, records: bytes, end: int) -> None:
        self._put(self._generation, _pieces(records.splitlines(keepends=True)), end)
        self._move_head(self._generation, end + len(records))

    def replace(self, records: Sequence[bytes]) -> None:
        # The revision says on which head it is built: with another one it can never come into use.
        generation = f"{self._revision:0{_REVISION_DIGITS}x}{os.urandom(8).hex()}"
        self._put(generation, _pieces(records), 0)
        self._move_head(generation, sum(map(len, records)))

    def _put(self, generation: str, pieces: Iterator[bytes], end: int) -> None:
        backend = self._opened()
        with self._translated():
            for piece in pieces:
                # Without a sync of its own: the head follows, with one that covers everything before it.
                backend.swap(SPACE, _name(generation, end), 0, piece, _now_us(), False)
                end += len(piece)

    def _move_head(self, generation: str, size: int) -> None:
        value = generation.encode() + size.to_bytes(_SIZE_BYTES, "big")
        with self._translated():
            revision = self._opened().swap(SPACE, HEAD, self._revision, value, _now_us())
        self._generation, self._size, self._revision = generation, size, revision

    def wipe(self) -> None:
        """Remove all generations that were built on an older head, and their bytes."""
        if self._removed_old():
            with self._translated():
                self._opened().purge(_PURGE_S)

    def _removed_old(self) -> bool:
        backend, removed, after = self._opened(), False, None
        with self._translated():
            while page := backend.cells(SPACE, "", after, _PAGE):
                for name, cell in page:
                    generation, is_piece, _ = name.partition("/")
                    # One that is built on this head, or on a newer one, may still come into use.
                    if is_piece and generation != self._generation and _base(generation) < self._revision:
                        self._remove(backend, name, cell)
                        removed = True
                after = page[-1][0]
        return removed

    def _remove(self, backend: Backend, name: str, cell: Cell) -> None:
        try:
            backend.swap(SPACE, name, cell.revision, None, _now_us(), False)
        except StaleCell:
            """Another process removes the same."""

    def make_durable(self, end: int) -> None:
        if end > self._size:
            self._move_head(self._generation, end)

    def create(self) -> None:
        if self._path is not None:
            make_directory(self._path.parent)
        self._open(create=True)

    def identity(self) -> str | None:
        backend = self._open()
        if backend is None:
            return None
        with self._translated():
            return backend.identity()

    def residues(self, needles: Sequence[bytes]) -> Residues:
        """Looks for parts of the needles: a store may cut a value where a page ends."""
        backend = self._open()
        if backend is None:
            return Residues()
        parts = [part for needle in needles for part in _parts(needle)]
        self.wipe()
        with self._translated():
            found = backend.residues(parts)
            if found.hits:
                # Somebody was reading when the keys were destroyed, so the store kept the old bytes.
                backend.purge(_PURGE_S)
                found = backend.residues(parts)
        return found

    def forget(self) -> None:
        self._generation, self._size, self._revision = "", 0, 0

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    # Nothing is lost by dropping a keyring that was not closed, so it may happen without a warning.
    def __del__(self) -> None:
        self.close()

    def _opened(self) -> Backend:
        backend = self._open(create=True)
        assert backend is not None
        return backend

    def _open(self, *, create: bool = False) -> Backend | None:
        """The store; ``None`` if it isn't there and shall not be created."""
        if self._backend is not None:
            return self._backend
        if self._path is not None and not create and not self._path.exists():
            return None
        remote = self._path is None and not create
        try:
            with self._translated():
                backend = open_backend(Existing(self._url) if remote else self._url, "full")
        except NotFoundError:
            return None
        if self.kind == "valkey":
            _check_durable(backend, self.where)
        self._backend = backend
        return backend

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the store as those of a keyring."""
        try:
            yield
        except StaleCell as error:
            raise Outdated from error
        except (StoreBusyError, SchemaVersionError, NotFoundError, MissingDependencyError, KeyringError):
            raise
        except EverthreadError as error:
            raise KeyringError(
                f"the keyring {self.where} can't be used: {error}; put that right and try again, or name "
                "another "
                f"keyring: keyring=…, ${KEYRING_VARIABLE}"
            ) from error


def _check_durable(backend: Any, where: str) -> None:
    """Raise :class:`KeyringError` unless a Valkey server is known to lose nothing that it acknowledges."""
    if not backend.keeping.ok:
        backend.close()
        raise KeyringError(
            f"the keyring {where} needs a server with appendonly yes, appendfsync always and "
            f"maxmemory-policy noeviction, so that no key is ever lost: set it up so, or name another place. "
            f"This one: {backend.keeping}"
        )


def _read_head(cell: Cell | None) -> tuple[str, int, int] | None:
    """Generation, size and revision."""
    if cell is None:
        return None
    generation, size = cell.value[:-_SIZE_BYTES], cell.value[-_SIZE_BYTES:]
    return generation.decode("ascii"), int.from_bytes(size, "big"), cell.revision


def _base(generation: str) -> int:
    """The revision of the head on which a generation is built."""
    return int(generation[:_REVISION_DIGITS], 16)


def _name(generation: str, offset: int) -> str:
    return f"{generation}/{offset:012x}"


def _pieces(records: Sequence[bytes]) -> Iterator[bytes]:
    """The records, whole, put together up to a size."""
    piece = b""
    for record in records:
        if piece and len(piece) + len(record) > _PIECE_BYTES:
            yield piece
            piece = b""
        piece += record
    if piece:
        yield piece


def _parts(needle: bytes) -> Iterator[bytes]:
    """A byte string in parts of 32 bytes or more; shorter ones could be found by chance."""
    count = max(len(needle) // 32, 1)
    cuts = [len(needle) * number // count for number in range(count + 1)]
    return (needle[start:stop] for start, stop in pairwise(cuts))


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _now_us() -> int:
    return time_ns() // 1000
