"""Personal values, encrypted, a file each: so that one can be deleted without touching anything else."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import SealedRow, split_keys
from everthread.stores.files.disk import TEMPORARY, Disk, read_file, write_at
from everthread.stores.files.escaping import base64_bytes, base64_text
from everthread.stores.files.jsonl import encode_json, intact, stamp

FOLDER = "sealed"


class _Sealed(Struct):
    value: str
    keys: str
    data: str


_decode = msgspec.json.Decoder(_Sealed).decode


class SealedValues:
    """The folder of sealed values of a content."""

    def __init__(self, content: str, disk: Disk) -> None:
        self._folder = os.path.join(content, FOLDER)
        self._disk = disk

    def _path(self, value_id: bytes) -> str:
        name = value_id.hex()
        return os.path.join(self._folder, name[:2] or "x", f"{name}.json")

    def put(self, rows: Iterable[SealedRow]) -> None:
        """Write them, durably, before whatever refers to them. One that is there already stays."""
        for value_id, keys, data in rows:
            path = self._path(value_id)
            # Without bytes it is here already.
            if data and not self._has(path):
                self._disk.make_folder(os.path.dirname(path))
                self._disk.replace(path, _text(value_id, keys, data))

    def _has(self, path: str) -> bool:
        try:
            return self._read(path) is not None
        except StateCorruptedError:
            return False

    def get(self, value_ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those that are there. One that is damaged isn't passed off as missing: it raises."""
        found = {}
        for value_id in value_ids:
            path = self._path(value_id)
            sealed = self._read(path)
            if sealed is not None:
                found[value_id] = sealed
        return found

    def _read(self, path: str) -> bytes | None:
        row = self._row(path)
        return None if row is None else row[2]

    def _row(self, path: str) -> SealedRow | None:
        try:
            line = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if not intact(line):
                raise ValueError(path)
            found = _decode(line)
            return bytes.fromhex(found.value), base64_bytes(found.keys), base64_bytes(found.data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateCorruptedError(f"the sealed value {path} is damaged", where=path) from error

    # ── by key: every file is looked at, because nothing but the files themselves can be relied on ───

    def under(self, key_ids: Collection[bytes], after: bytes, limit: int) -> list[SealedRow]:
        """Those that need one of these keys, by value id, from the first one > ``after``."""
        found: list[SealedRow] = []
        for path in self._paths(after):
            if len(found) >= limit:
                break
            row = self._known(path)
            if row is not None and not set(key_ids).isdisjoint(split_keys(row[1])):
                found.append(row)
        return found

    def _known(self, path: str) -> SealedRow | None:
        """A value whose keys can be told. Of a damaged one they can't: :meth:`check` names it."""
        with suppress(StateCorruptedError):
            return self._row(path)
        return None

    def drop(self, key_ids: Collection[bytes]) -> int:
        """Overwrite and remove them; how many there were. The caller has the turn."""
        dropped = 0
        folders = set()
        for path in self._paths(b""):
            row = self._known(path)
            if row is not None and not set(key_ids).isdisjoint(split_keys(row[1])):
                # Under a name that counts for nothing: it may be interrupted half way.
                left = os.path.join(os.path.dirname(path), TEMPORARY + os.path.basename(path))
                os.rename(path, left)
                obliterate(left)
                folders.add(os.path.dirname(path))
                dropped += 1
        for folder in folders:
            self._disk.sync_folder(folder)
        return dropped

    def _paths(self, after: bytes) -> Iterator[str]:
        """All files, in the order of their values, behind that of ``after``."""
        beyond = self._path(after) if after else ""
        for folder, inside, names in os.walk(self._folder):
            inside.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(".json") and not name.startswith(TEMPORARY) and path > beyond:
                    yield path

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        for folder, _, names in os.walk(self._folder):
            for name in sorted(names):
                # What a kill left half written counts for nothing.
                if name.endswith(".json") and not name.startswith(TEMPORARY):
                    try:
                        self._read(os.path.join(folder, name))
                    except StateCorruptedError as error:
                        yield str(error)


def obliterate(path: str) -> None:
    """Write zeros over a file, make sure that they reach the disk, and remove it."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_at(file, bytes(os.fstat(file).st_size), 0)
            os.fsync(file)
        finally:
            os.close(file)
        os.unlink(path)


def _text(value_id: bytes, keys: bytes, data: bytes) -> bytes:
    return stamp(encode_json(_Sealed(value_id.hex(), base64_text(keys), base64_text(data))))
