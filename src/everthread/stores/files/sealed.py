"""Personal values, encrypted, a file each: so that one can be deleted without touching anything else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import SealedRow
from everthread.stores.files.disk import Disk, read_file
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
            if not self._has(path):
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
        try:
            line = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            if not intact(line):
                raise ValueError(path)
            return base64_bytes(_decode(line).data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise StateCorruptedError(f"the sealed value {path} is damaged", where=path) from error

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        for folder, _, names in os.walk(self._folder):
            for name in sorted(names):
                if name.endswith(".json"):
                    try:
                        self._read(os.path.join(folder, name))
                    except StateCorruptedError as error:
                        yield str(error)


def _text(value_id: bytes, keys: bytes, data: bytes) -> bytes:
    return stamp(encode_json(_Sealed(value_id.hex(), base64_text(keys), base64_text(data))))
