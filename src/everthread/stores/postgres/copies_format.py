"""The file that a backup is: frames of rows, table by table, and at the end a digest of all of it.

everthread-postgres 1 ⏎
frame …     stored length (8), plain length (8), CRC-32 of what is stored (4), zstd of MessagePack
                [table, rows]
frame       the same with ["", [[SHA-256 of everything before, number of frames]]]
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, BinaryIO

import msgspec

from everthread.errors import NotAStoreError, SchemaVersionError, StateCorruptedError, StoreUnavailableError

MAGIC = b"everthread-postgres "
VERSION = 1
_HEAD = struct.Struct(">QQI")
#: Rows go into one frame up to so many bytes.
FRAME_BYTES = 4 << 20
_PLAIN_MAX = 1 << 31

Rows = list[tuple[Any, ...]]


class Writer:
    """Writes frames into an open file."""

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        self._zstd = zstandard.ZstdCompressor(level=3)
        self._digest = sha256()
        self._frames = 0
        self._put(MAGIC + b"%d\n" % VERSION)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def add(self, table: str, rows: Rows) -> None:
        """Rows of a table, in as many frames as they need."""
        batch: Rows = []
        size = 0
        for row in rows:
            batch.append(row)
            size += sum(len(value) for value in row if type(value) is bytes) + 64
            if size >= FRAME_BYTES:
                self._frame(table, batch)
                batch, size = [], 0
        if batch:
            self._frame(table, batch)

    def _frame(self, table: str, rows: Any) -> None:
        plain = msgspec.msgpack.encode([table, rows])
        stored = self._zstd.compress(plain)
        self._put(_HEAD.pack(len(stored), len(plain), zlib.crc32(stored)) + stored)
        self._frames += 1

    def finish(self) -> None:
        self._frame("", [[self._digest.digest(), self._frames]])
        self._file.flush()
        os.fsync(self._file.fileno())


def read_frames(path: str) -> Iterator[tuple[str, list[Any]]]:
    """(table, rows) of every frame. Raises at the latest after the last one if anything isn't as it was."""
    import zstandard

    unzip = zstandard.ZstdDecompressor()
    digest, frames = sha256(), 0
    try:
        with open(path, "rb") as file:
            first = file.readline(64)
            _check_head(first, path)
            digest.update(first)
            while True:
                table, rows, raw = _next(file, unzip, path)
                if not table:
                    if rows != [[digest.digest(), frames]] or file.read(1):
                        raise _damaged(path)
                    return
                digest.update(raw)
                frames += 1
                yield table, rows
    except OSError as error:
        raise StoreUnavailableError(
            f"the backup {path} can't be read ({error.strerror}); nothing was changed"
        ) from error


def _next(file: BinaryIO, unzip: Any, path: str) -> tuple[str, list[Any], bytes]:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise _damaged(path)
    length, plain, crc = _HEAD.unpack(head)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if length > left or plain > _PLAIN_MAX:
        raise _damaged(path)
    stored = file.read(length)
    if zlib.crc32(stored) != crc:
        raise _damaged(path)
    import zstandard

    try:
        data = unzip.decompress(stored, max_output_size=plain)
        table, rows = msgspec.msgpack.decode(data, type=tuple[str, list[Any]])
    except (zstandard.ZstdError, msgspec.DecodeError, ValueError) as error:
        raise _damaged(path) from error
    return table, rows, head + stored


def _check_head(first: bytes, path: str) -> None:
    if not first.startswith(MAGIC) or not first.endswith(b"\n"):
        raise NotAStoreError(f"{path} isn't a backup of a PostgreSQL store; nothing was changed")
    version = first[len(MAGIC) : -1]
    if not version.isdigit() or int(version) > VERSION:
        raise SchemaVersionError(f"{path} was written by a newer release; upgrade everthread")


def _damaged(path: str) -> StateCorruptedError:
    return StateCorruptedError(f"the backup {path} is damaged; nothing was changed", where=path)
