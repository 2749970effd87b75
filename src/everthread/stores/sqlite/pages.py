"""Reading the pages of a SQLite file without its engine, going around whatever is damaged.

Follows https://sqlite.org/fileformat2.html, as far as a store of ours needs it. Opens for reading only and
never touches a byte. What comes out is not to be trusted: whoever uses it checks it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from everthread.stores.sqlite.raw import RawFile

_MAGIC = b"SQLite format 3\0"
#: What our files are made with, if the header doesn't say anything sensible.
_PAGE_BYTES = 4096
_PAYLOAD_MAX = 1 << 30
#: Up to this size a database and its log are put together in memory to be checked.
_IMAGE_BYTES_MAX = 1 << 30

_LEAF_TABLE, _INTERIOR_TABLE, _LEAF_INDEX, _INTERIOR_INDEX = 0x0D, 0x05, 0x0A, 0x02

#: Page and offset of a cell.
Place = tuple[int, int]


class Pages:
    """The newest content of each page: that of the write-ahead log, else that of the file itself."""

    def __init__(self, path: str) -> None:
        self._file = RawFile(path)
        self._path = path
        self._log = -1
        with suppress(FileNotFoundError):
            self._log = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        header = self._file.read(100, 0)
        #: Whether the file says that it is one of SQLite's.
        self.marked = header.startswith(_MAGIC)
        self.page_bytes = _page_bytes(header)
        self.usable = self.page_bytes - (header[20] if self.marked and header[20] < 64 else 0)
        size = self._file.size()
        self.count = -(-size // self.page_bytes)
        self._newer: dict[int, int] = {}
        self._last = (0, b"")
        #: Pages that aren't what leads to them says.
        self.astray: set[int] = set()
        #: Pages that something leads to and that lie behind the end of the file.
        self.beyond: set[int] = set()
        #: Frames of the log that fail their checksum.
        self.log_damaged = 0
        if self._log >= 0:
            self._read_log()

    def close(self) -> None:
        self._file.close()
        if self._log >= 0:
            os.close(self._log)

    def page(self, number: int) -> bytes:
        """A page; shorter than others, or empty, where the file ends too early."""
        if number == self._last[0]:
            return self._last[1]
        self._last = (number, self._read_page(number))
        return self._last[1]

    def _read_page(self, number: int) -> bytes:
        if number < 1:
            return b""
        offset = self._newer.get(number)
        if offset is not None:
            return os.pread(self._log, self.page_bytes, offset)
        return self._file.read(self.page_bytes, (number - 1) * self.page_bytes)

    def _read_log(self) -> None:
        """Note the newest frame of each page, up to the last commit.

        Each frame is checked by itself, against the checksum that the one before it states: unlike SQLite,
        which stops at the first that fails, this goes on behind it.
        """
        header = os.pread(self._log, 32, 0)
        if len(header) < 32 or header[:3] != b"\x37\x7f\x06" or header[3] not in (0x82, 0x83):
            # One that was only made room for is none.
            self.log_damaged = 1 if any(header) else 0
            return
        page_bytes = _u32(header, 8)
        words = "<" if header[3] == 0x82 else ">"
        salt_bytes, before = header[16:24], struct.unpack(">II", header[24:32])
        if page_bytes != self.page_bytes:
            self.log_damaged = 1
            return
        found: list[tuple[int, int]] = []
        committed = 0
        offset = 32
        while len(frame := os.pread(self._log, 24 + page_bytes, offset)) == 24 + page_bytes:
            number, pages, first, second = struct.unpack(">II8xII", frame[:24])
            if frame[8:16] == salt_bytes:
                if _checksum(frame[:8] + frame[24:], before, words) == (first, second):
                    found.append((number, offset + 24))
                    if pages:
                        committed = len(found)
                        self.count = max(self.count, pages)
                else:
                    self.log_damaged += 1
                before = (first, second)
            offset += 24 + page_bytes
        self._newer = dict(found[:committed])

    def consistent(self) -> bool:
        """Whether SQLite finds nothing wrong with the way in which the pages hang together."""
        import apsw

        try:
            if self._newer:
                if self.count * self.page_bytes > _IMAGE_BYTES_MAX:
                    return False
                image = bytearray(b"".join(map(self._read_page, range(1, self.count + 1))))
                # No write-ahead log: what it holds is in the image.
                image[18:20] = b"\x01\x01"
                database = apsw.Connection(":memory:")
                database.deserialize("main", bytes(image))
            else:
                where = quote(os.path.abspath(self._path))
                flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
                database = apsw.Connection(f"file:{where}?immutable=1", flags=flags)
            try:
                return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            finally:
                database.close()
        except (apsw.Error, UnicodeDecodeError):
            return False

    # ── trees ────────────────────────────────────────────────────────────────────────────────

    def leaves(self, root: int, seen: set[int], *, index: bool = False) -> Iterator[int]:
        """The pages of a tree that hold rows, in order, as far as the way to them can be found."""
        wanted, inner = (_LEAF_INDEX, _INTERIOR_INDEX) if index else (_LEAF_TABLE, _INTERIOR_TABLE)
        stack = [root]
        while stack:
            number = stack.pop()
            if number in seen or not 1 <= number <= self.count:
                if number > self.count:
                    self.beyond.add(number)
                continue
            page = self.page(number)
            start = 100 if number == 1 else 0
            kind = page[start] if len(page) > start else 0
            if kind not in (wanted, inner):
                self.astray.add(number)
                continue
            seen.add(number)
            if kind == wanted:
                yield number
                continue
            if index:
                # Entries also stand in the inner pages of an index.
                yield number
            children = [_u32(page, at) for at in self._pointers(page, start)]
            stack.append(_u32(page, start + 8))
            stack.extend(reversed(children))

    def _pointers(self, page: bytes, start: int) -> list[int]:
        """Where the cells of a page begin."""
        head = start + (12 if page[start] in (_INTERIOR_TABLE, _INTERIOR_INDEX) else 8)
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        found = []
        for at in range(head, min(head + 2 * count, len(page) - 1), 2):
            offset = int.from_bytes(page[at : at + 2], "big")
            if head <= offset < len(page) - 3:
                found.append(offset)
        return found

    def cells(self, number: int, *, index: bool = False) -> list[int]:
        """Where the cells of a page with rows begin; none if it isn't one."""
        page = self.page(number)
        start = 100 if number == 1 else 0
        kinds = (_LEAF_INDEX, _INTERIOR_INDEX) if index else (_LEAF_TABLE,)
        return self._pointers(page, start) if len(page) > start + 8 and page[start] in kinds else []

    def row(self, place: Place, passed: set[int] | None = None) -> tuple[int, list[Any]] | None:
        """The rowid and columns of a table's cell, ``None`` if they make no sense.

        Columns whose bytes are on a page that can't be read come out too short. Pages that the cell goes on
        in are added to ``passed``.
        """
        page, at = self.page(place[0]), place[1]
        try:
            size, at = _varint(page, at)
            rowid, at = _varint(page, at)
            local = _local(size, self.usable, self.usable - 35)
            if size > _PAYLOAD_MAX or at + local > len(page):
                return None
            return rowid - (1 << 64 if rowid >> 63 else 0), self._columns(page, at, local, size, passed)
        except (IndexError, ValueError):
            return None

    def entry(self, place: Place, passed: set[int] | None = None) -> list[Any] | None:
        """The columns of an index entry, the rowid last; ``None`` if they make no sense."""
        page, at = self.page(place[0]), place[1]
        start = 100 if place[0] == 1 else 0
        try:
            if page[start] == _INTERIOR_INDEX:
                at += 4
            size, at = _varint(page, at)
            local = _local(size, self.usable, (self.usable - 12) * 64 // 255 - 23)
            if size > _PAYLOAD_MAX or at + local > len(page):
                return None
            return self._columns(page, at, local, size, passed)
        except (IndexError, ValueError):
            return None

    def _columns(self, page: bytes, at: int, local: int, size: int, passed: set[int] | None) -> list[Any]:
        payload = page[at : at + local]
        if local < size:
            payload += self._overflow(_u32(page, at + local), size - local, passed)
        return _decode_row(payload)

    def _overflow(self, number: int, size: int, passed: set[int] | None) -> bytes:
        """What stands on a chain of pages, as much of it as can be followed."""
        parts: list[bytes] = []
        seen: set[int] = set()
        while size > 0 and 1 <= number <= self.count and number not in seen:
            seen.add(number)
            page = self.page(number)
            part = page[4 : min(self.usable, 4 + size)]
            if not part:
                break
            parts.append(part)
            size -= len(part)
            number = _u32(page, 0) if len(page) >= 4 else 0
        if passed is not None:
            passed |= seen
        return b"".join(parts)

    def free(self) -> set[int]:
        """The pages that are in no use, as far as the list of them can be followed."""
        found: set[int] = set()
        number = _u32(self.page(1), 32) if len(self.page(1)) >= 36 else 0
        while 1 <= number <= self.count and number not in found:
            found.add(number)
            page = self.page(number)
            if len(page) < 8:
                break
            leaves = min(_u32(page, 4), (self.usable - 8) // 4)
            found.update(_u32(page, 8 + 4 * i) for i in range(leaves) if 12 + 4 * i <= len(page))
            number = _u32(page, 0)
        return found


def _page_bytes(header: bytes) -> int:
    if len(header) < 21 or not header.startswith(_MAGIC):
        return _PAGE_BYTES
    found = int.from_bytes(header[16:18], "big")
    found = 65536 if found == 1 else found
    return found if found >= 512 and found & (found - 1) == 0 else _PAGE_BYTES


def _checksum(data: bytes, before: tuple[int, int], words: str) -> tuple[int, int]:
    first, second = before
    numbers = iter(struct.unpack(f"{words}{len(data) // 4}I", data))
    for one, two in zip(numbers, numbers, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def _local(size: int, usable: int, most: int) -> int:
    """How many bytes of a payload stand in the cell itself."""
    if size <= most:
        return size
    least = (usable - 12) * 32 // 255 - 23
    found = least + (size - least) % (usable - 4)
    return found if found <= most else least


def _u32(page: bytes, at: int) -> int:
    return int.from_bytes(page[at : at + 4], "big")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next thing begins. Raises :class:`IndexError` at the end."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _decode_row(payload: bytes) -> list[Any]:
    """The columns of a row. Raises :class:`ValueError` or :class:`IndexError` if it can't be one."""
    head, at = _varint(payload, 0)
    if not at <= head <= len(payload):
        raise ValueError(head)
    kinds = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    columns: list[Any] = []
    for kind in kinds:
        size = _size(kind)
        part = payload[at : at + size]
        at += size
        columns.append(_value(kind, part))
    return columns


_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)


def _size(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    if kind >= len(_SIZES):
        raise ValueError(kind)
    return _SIZES[kind]


def _value(kind: int, part: bytes) -> Any:
    if kind >= 12:
        return part if kind % 2 == 0 else part.decode("utf-8", "replace")
    if kind == 0:
        return None
    if kind == 7:
        return struct.unpack(">d", part)[0] if len(part) == 8 else 0.0
    return kind - 8 if kind >= 8 else int.from_bytes(part, "big", signed=True)
