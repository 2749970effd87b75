"""Cells as files: small registers, one JSON file each, replaced whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from everthread.errors import StateCorruptedError
from everthread.stores.contract import Cell, PutCell, StaleCell
from everthread.stores.files.disk import Disk, files_in, read_file
from everthread.stores.files.json_form import Value, read_value, write_value
from everthread.stores.files.layout import hashed_name, space_folder
from everthread.stores.files.record_file import encode_json, intact, with_sum

FOLDER = "cells"
_FLOOR = "revisions.json"
#: Spaces with this ending hold leases, which neither git nor a clone should keep.
_LEASES = "\0lease"


class _File(Struct, omit_defaults=True):
    """What a cell's file holds."""

    space: str
    name: str
    revision: int
    written_us: int
    value: Value


class _Floor(Struct):
    """The highest revision of any removed cell: new cells begin above it."""

    revisions_above: int


_decode = msgspec.json.Decoder(_File).decode
_decode_floor = msgspec.json.Decoder(_Floor).decode


class Cells:
    """The cells of a content. Writers hold the store's lock."""

    def __init__(self, content: str, disk: Disk) -> None:
        self._folder = os.path.join(content, FOLDER)
        self._disk = disk
        #: Which name a file belongs to, which never changes.
        self._names: dict[str, str] = {}

    def _path(self, space: str, name: str) -> str:
        return os.path.join(self._folder, space_folder(space), f"{hashed_name(space, name)}.json")

    def read(self, space: str, name: str, now_us: int) -> Cell | None:
        found = _read(self._path(space, name))
        return None if found is None else _cell(found, now_us)

    def list(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int
    ) -> list[tuple[str, Cell]]:
        folder = os.path.join(self._folder, space_folder(space))
        paths = {name: path for path in files_in(folder, ".json") if (name := self._name(path)) is not None}
        found: list[tuple[str, Cell]] = []
        for name in sorted(paths):
            if len(found) >= limit:
                break
            if name.startswith(prefix) and (after is None or name > after):
                cell = _read(paths[name])
                if cell is not None:
                    found.append((name, _cell(cell, now_us)))
        return found

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            found = _read(path)
            if found is None:
                return None
            self._names[path] = found.name
        return self._names[path]

    # ── writing: the caller holds the store's lock ───────────────────────────────────────────

    def swap(
        self, space: str, name: str, expected: int, value: bytes | None, now_us: int, durable: bool
    ) -> int:
        path = self._path(space, name)
        found = _read(path)
        if (0 if found is None else found.revision) != expected:
            raise StaleCell(None if found is None else _cell(found, now_us))
        if value is None:
            if found is not None:
                self._raise_floor(expected)
                os.unlink(path)
                self._disk.sync_folder(os.path.dirname(path))
            return 0
        revision = (expected if found is not None else self._floor()) + 1
        self._make_folder(space, os.path.dirname(path))
        self._write(path, _File(space, name, revision, now_us, write_value(value)), durable)
        return revision

    def _make_folder(self, space: str, folder: str) -> None:
        self._disk.make_folder(folder)
        ignore = os.path.join(folder, ".gitignore")
        if space.endswith(_LEASES) and not os.path.lexists(ignore):
            self._disk.write_new(ignore, b"*\n")

    def _write(self, path: str, file: _File, durable: bool) -> None:
        self._disk.replace(path, with_sum(encode_json(file)), durable=durable)

    def _floor(self) -> int:
        path = os.path.join(self._folder, _FLOOR)
        try:
            record = read_file(path)
        except FileNotFoundError:
            return 0
        try:
            return _decode_floor(record if intact(record) else b"").revisions_above
        except msgspec.MsgspecError as error:
            raise StateCorruptedError(f"{path} is damaged", where=path) from error

    def _raise_floor(self, revision: int) -> None:
        if revision > self._floor():
            record = with_sum(encode_json(_Floor(revision)))
            self._disk.replace(os.path.join(self._folder, _FLOOR), record)

    # ── the whole ────────────────────────────────────────────────────────────────────────────

    def highest(self) -> int:
        """The highest revision that any cell has or had."""
        return max([self._floor(), *(found.revision for path in self._every() if (found := _read(path)))])

    def raise_all(self, above: int) -> None:
        """Raise all revisions, so that no cell gets one again that it had before a restore."""
        above = max(above, self.highest())
        self._disk.make_folder(self._folder)
        for path in self._every():
            found = _read(path)
            if found is not None:
                found.revision = above + 1
                self._write(path, found, True)
        self._raise_floor(above + 1)

    def put(self, cell: PutCell) -> None:
        """Write a cell, after :meth:`raise_all`."""
        path = self._path(cell.space, cell.name)
        found = _read(path)
        revision = found.revision if found is not None else self._floor() + 1
        self._make_folder(cell.space, os.path.dirname(path))
        value = write_value(cell.value)
        self._write(path, _File(cell.space, cell.name, revision, cell.written_us, value), True)

    def _every(self) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            for space in sorted(os.listdir(self._folder)):
                yield from files_in(os.path.join(self._folder, space), ".json")

    def check(self) -> Iterator[str]:
        """What is wrong with the files."""
        try:
            self._floor()
        except StateCorruptedError as error:
            yield str(error)
        for path in self._every():
            try:
                found = _read(path)
                if found is not None:
                    read_value(found.value)
            except StateCorruptedError as error:
                yield str(error)


def _read(path: str) -> _File | None:
    try:
        record = read_file(path)
    except FileNotFoundError:
        return None
    try:
        return _decode(record if intact(record) else b"")
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(f"the cell {path} is damaged", where=path) from error


def _cell(file: _File, now_us: int) -> Cell:
    return Cell(read_value(file.value), file.revision, file.written_us, now_us)
