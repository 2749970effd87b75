"""The file of a backup: everything of a store, key by key, checked from end to end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any
from zlib import crc32

import msgspec

from everthread.errors import (
    NotAStoreError,
    SchemaVersionError,
    StateCorruptedError,
    StorageWriteError,
    StoreUnavailableError,
)
from everthread.stores.backup_file import folder_for, put_in_place, require_file

_MAGIC = b"everthread valkey backup "
_FORMAT = 1
#: Kinds of entries besides those of the server.
_END = "end"

#: A key without the prefix of its store, its kind, its content.
Entry = tuple[bytes, str, Any]


def write_backup(path: str, entries: Iterable[Entry]) -> None:
    """A file at ``path``, which must not exist: there whole and on disk, or not at all."""
    folder = folder_for(path)
    partial = f"{path}.partial-{os.urandom(8).hex()}"
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.writelines(_frames(entries))
            file.flush()
            os.fsync(file.fileno())
        put_in_place(partial, path, folder)
    except OSError as error:
        raise StorageWriteError(
            f"the backup {path} couldn't be written ({error}); the store itself is as it was. "
            "Make room or choose another place, then back up again"
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(partial)


def _frames(entries: Iterable[Entry]) -> Iterator[bytes]:
    yield _MAGIC + b"%d\n" % _FORMAT
    whole = sha256()
    count = 0
    for entry in entries:
        packed = msgspec.msgpack.encode(entry)
        whole.update(packed)
        count += 1
        yield _frame(packed)
    yield _frame(msgspec.msgpack.encode((b"", _END, [count, whole.digest()])))


def _frame(packed: bytes) -> bytes:
    return len(packed).to_bytes(8, "big") + crc32(packed).to_bytes(4, "big") + packed


def read_backup(path: str) -> list[Entry]:
    """Everything in a backup, checked before anything of it is used."""
    require_file(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise StoreUnavailableError(
            f"the backup {path} can't be read ({error}); nothing was changed"
        ) from error
    first, _, rest = data.partition(b"\n")
    if not first.startswith(_MAGIC):
        raise NotAStoreError(f"{path} isn't a backup of a store on Valkey; nothing was changed")
    if first != _MAGIC + b"%d" % _FORMAT:
        raise SchemaVersionError(
            f"the backup {path} was written by a newer Everthread; nothing was changed", supported=_FORMAT
        )
    damaged = StateCorruptedError(f"the backup {path} is damaged; nothing was changed", where=path)
    found: list[Entry] = []
    whole = sha256()
    at = 0
    while at + 12 <= len(rest):
        size, sum_ = int.from_bytes(rest[at : at + 8], "big"), int.from_bytes(rest[at + 8 : at + 12], "big")
        packed = rest[at + 12 : at + 12 + size]
        at += 12 + size
        if len(packed) != size or crc32(packed) != sum_:
            raise damaged
        key, kind, content = msgspec.msgpack.decode(packed)
        if kind == _END:
            if content == [len(found), whole.digest()] and at == len(rest):
                return found
            raise damaged
        whole.update(packed)
        found.append((key, kind, content))
    raise damaged
