"""Reading a damaged SQLite store for salvage: the pages of its file without SQLite, and the tables on them.

:class:`Pages` follows https://sqlite.org/fileformat2.html, as far as a store of ours needs it, and steps over
what is damaged. It opens for reading only and never touches a byte. What comes out is not to be trusted:
its users check it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from everthread.arguments import counted
from everthread.errors import StateCorruptedError
from everthread.stores.contract import (
    EVENT_SEQ_MAX,
    SEAL,
    SEAL_SEQ,
    ErasedKey,
    Line,
    Row,
    SealedRow,
    StoredEvent,
)
from everthread.stores.salvage_source import ChunkPlace, FoundRow, FoundStream, LineHint
from everthread.stores.sqlite.cells_and_events import EVENT_BITS
from everthread.stores.sqlite.files import RawFile
from everthread.stores.sqlite.rows import chunk_fits, line_sum, row_sum, to_line
from everthread.stores.sqlite.schema import SEQ_BITS, SEQ_MASK
from everthread.stores.sqlite.sealed import ID_BYTES, keys_sum, to_erased

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

    # ── trees ──

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

    def roots(self, seen: set[int]) -> dict[str, int]:
        """The first page of each tree, by name."""
        found = {}
        for leaf in self.leaves(1, seen):
            for offset in self.cells(leaf):
                row = self.row((leaf, offset))
                if row is not None and len(row[1]) == 5:
                    _, name, _, root, _ = row[1]
                    # Views and triggers have no tree.
                    if isinstance(name, str) and isinstance(root, int) and root:
                        found[name] = root
        return found

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


# ── the tables of a store ──


_Columns = list[Any]
_Number, _Text, _Bytes, _Null = int, str, bytes, type(None)

#: The types of the columns of each table, to recognise its rows by.
_SHAPES: dict[str, tuple[tuple[type, ...], ...]] = {
    "line": (
        (_Null,), (_Bytes,), (_Text,), (_Text,), (_Number,), (_Number,), (_Number,), (_Number,),
        (_Bytes,), (_Bytes,), (_Bytes,), (_Number,), (_Number,), (_Number,), (_Number,),
    ),
    "record": (
        (_Null,), (_Number,), (_Number,), (_Number,), (_Bytes,), (_Bytes, _Null), (_Bytes, _Null),
        (_Bytes, _Null), (_Bytes,),
    ),
    "chunk": (
        (_Null,), (_Number,), (_Text,), (_Number,), (_Number,), (_Number,), (_Bytes,), (_Bytes,),
    ),
    "cell": ((_Null,), (_Text,), (_Text,), (_Number,), (_Number,), (_Bytes,)),
    "stream": ((_Null,), (_Text,), (_Text,), (_Number,), (_Number,), (_Number, _Null), (_Number,)),
    "event": ((_Null,), (_Number,), (_Text,), (_Text, _Null), (_Number,), (_Number,), (_Bytes,)),
}  # fmt: skip


#: Tables of which nothing is needed; all else are indexes, or tables that are kept like one.
_OTHER_TABLES = frozenset({"sqlite_sequence", "cell_floor"})


class SqliteSalvageSource:
    """The tables of a store, gathered from whatever pages hold their rows."""

    def __init__(self, path: str) -> None:
        self.problems: list[str] = []
        self._pages = Pages(path)
        self._rows: dict[int, list[tuple[int, tuple[Place, bool]]]] = {}
        self._chunks: dict[int, list[ChunkPlace]] = {}
        self._lines: dict[int, list[_Columns]] = {}
        self._cells: list[Place] = []
        self._values: list[Place] = []
        self._streams: dict[int, _Columns] = {}
        self._events: dict[int, list[tuple[int, Place]]] = {}
        self._named: dict[int, tuple[str, str]] = {}
        self._uids: dict[int, bytes] = {}
        self._parents: dict[int, int] = {}
        self._ledger: list[ErasedKey] = []
        self._whole: bool | None = None
        self._gather()
        for rows in self._rows.values():
            rows.sort(key=lambda entry: (entry[0], not entry[1][1]))

    def close(self) -> None:
        self._pages.close()

    # ── gathering ──

    def _gather(self) -> None:
        pages = self._pages
        if pages.log_damaged:
            self.problems.append(f"{pages.log_damaged} frames of the write-ahead log fail their checksum")
        seen: set[int] = set()
        passed: set[int] = set()
        roots = pages.roots(seen)
        self._ledger = self._read_ledger(roots.get("erased", 0))
        for leaf in pages.leaves(roots.get("sealed", 0), set(), index=True):
            self._note_values(leaf)
        for table in ("sealed", *_SHAPES):
            if table not in roots:
                self.problems.append(f"the table {table!r} isn't found by its definition")
                continue
            if table not in _SHAPES:
                continue
            for leaf in pages.leaves(roots[table], seen):
                for offset in pages.cells(leaf):
                    self._take((leaf, offset), table, rooted=True, passed=passed)
        self._read_indexes(roots, seen)
        for name, root in roots.items():
            if name not in _SHAPES:
                # Only to know that these pages belong to somebody; but who knows what is on them by now.
                index = name not in _OTHER_TABLES
                for leaf in pages.leaves(root, seen, index=index):
                    passed.update(self._overflows(leaf, index))
                    for offset in pages.cells(leaf):
                        self._take((leaf, offset), None, rooted=True, passed=None)
        self.problems.extend(f"page {page} isn't what leads to it says" for page in sorted(pages.astray))
        if pages.beyond:
            missing = counted(len(pages.beyond), "page")
            self.problems.append(f"the file ends too early: something leads to {missing} behind its end")
        self._search(seen | passed | pages.free(), everything=not roots)

    def _read_indexes(self, roots: dict[str, int], seen: set[int]) -> None:
        """What indexes say about lines stands in for entries that are damaged."""
        for name, width in (("line_name", 3), ("sqlite_autoindex_line_1", 2), ("line_parent", 2)):
            for leaf in self._pages.leaves(roots.get(name, 0), seen, index=True):
                for offset in self._pages.cells(leaf, index=True):
                    entry = self._pages.entry((leaf, offset))
                    if entry is None or len(entry) != width or not isinstance(entry[-1], int):
                        continue
                    *told, line = entry
                    if name == "line_name" and all(isinstance(part, str) for part in told):
                        self._named[line] = (told[0], told[1])
                    elif name == "line_parent" and isinstance(told[0], int):
                        self._parents[line] = told[0]
                    elif isinstance(told[0], bytes) and len(told[0]) == 16:
                        self._uids[line] = told[0]

    def _read_ledger(self, root: int) -> list[ErasedKey]:
        """The entries of the erasure ledger that are sound. Pages that can't be right lead to none."""
        found = []
        for leaf in self._pages.leaves(root, set(), index=True):
            for offset in self._pages.cells(leaf, index=True):
                columns = self._pages.entry((leaf, offset))
                with suppress(StateCorruptedError, AttributeError, TypeError, ValueError, OverflowError):
                    if columns is not None:
                        found.append(to_erased(columns))
        return found

    def _overflows(self, leaf: int, index: bool) -> set[int]:
        passed: set[int] = set()
        for offset in self._pages.cells(leaf, index=index):
            if index:
                self._pages.entry((leaf, offset), passed)
            else:
                self._pages.row((leaf, offset), passed)
        return passed

    def _note_values(self, leaf: int) -> None:
        """Note the personal values on a page. Only where the store itself would have found them: removed ones
        must not come back from pages that were given up."""
        for offset in self._pages.cells(leaf, index=True):
            if self._value((leaf, offset)) is not None:
                self._values.append((leaf, offset))

    def _value(self, place: Place) -> SealedRow | None:
        columns = self._pages.entry(place)
        if columns is None or [type(column) for column in columns] != [bytes, bytes, int, bytes]:
            return None
        value_id, keys, told, data = columns
        if len(value_id) != ID_BYTES or not keys or len(keys) % ID_BYTES:
            return None
        return (value_id, keys, data) if keys_sum(value_id, keys) == told else None

    def _search(self, known: set[int], *, everything: bool) -> None:
        """Look for rows on pages that nothing leads to any more.

        Unless nothing does (``everything``), these may also be pages that were given up long ago.
        """
        found = 0
        for number in range(1, self._pages.count + 1):
            if number not in known:
                for offset in self._pages.cells(number):
                    found += self._take((number, offset), None, rooted=everything, passed=None)
                if everything:
                    self._note_values(number)
        if found:
            self.problems.append(f"{found} rows stand on pages that nothing leads to")

    def _take(self, place: Place, table: str | None, *, rooted: bool, passed: set[int] | None) -> bool:
        """Note a row. Without a table it must have the shape of one."""
        row = self._pages.row(place, passed)
        if row is None:
            if table is not None:
                self.problems.append(f"a row of {table!r} on page {place[0]} makes no sense")
            return False
        rowid, columns = row
        if table is None or not _fits(columns, table):
            table = next((name for name in _SHAPES if _fits(columns, name)), None)
        if table is None:
            return False
        if table == "record":
            seq = rowid & SEQ_MASK
            self._rows.setdefault(rowid >> SEQ_BITS, []).append((seq, (place, rooted)))
        elif table == "chunk":
            _, line, log, position, count, found, prints, data = columns
            if chunk_fits(line, log, (position, count, prints, found))[0]:
                stub = not prints and not data
                self._chunks.setdefault(line, []).append(ChunkPlace(log, position, count, place, stub))
        elif table == "line":
            columns[0] = rowid
            self._lines.setdefault(rowid, []).append(columns)
        elif table == "stream":
            columns[0] = rowid
            if rooted or rowid not in self._streams:
                self._streams[rowid] = columns
        elif table == "event":
            self._events.setdefault(rowid >> EVENT_BITS, []).append((rowid & EVENT_SEQ_MAX, place))
        elif rooted:
            # Removed cells must not come back from pages that were given up.
            self._cells.append(place)
        return True

    # ── lines ──

    def lines(self) -> Sequence[Line | LineHint]:
        known = {*self._lines, *self._rows, *self._named}
        return [self._line(number) for number in sorted(known) if number > 0]

    def _line(self, number: int) -> Line | LineHint:
        candidates = self._lines.get(number, [])
        for columns in candidates:
            for variant in self._variants(number, columns):
                try:
                    line = to_line((*variant[:11], self._deleted(number, variant), variant[11]))
                except StateCorruptedError:
                    continue
                return line
        named = [(columns[2], columns[3]) for columns in candidates]
        uids = [columns[1] for columns in candidates if len(columns[1]) == 16]
        parents = [columns[5] for columns in candidates]
        if number in self._named:
            named.insert(0, self._named[number])
        if number in self._uids:
            uids.insert(0, self._uids[number])
        if number in self._parents:
            parents.insert(0, self._parents[number])
        deleted = self._sealed(number)
        return LineHint(
            number, tuple(dict.fromkeys(uids)), tuple(named), tuple(dict.fromkeys(parents)), deleted
        )

    def _variants(self, number: int, columns: _Columns) -> Iterator[_Columns]:
        """An entry as it stands, and with what the indexes say in place of its own columns."""
        yield columns
        if number in self._named:
            yield [*columns[:2], *self._named[number], *columns[4:]]
        if number in self._uids:
            yield [columns[0], self._uids[number], *columns[2:]]
        if number in self._parents:
            yield [*columns[:5], self._parents[number], *columns[6:]]
        if (
            len(columns[9]) == 32
            and line_sum((number, *columns[1:11])) != columns[11]
            and number in self._named
        ):
            # Everything agrees with the indexes: then it is the sum itself that is wrong.
            agrees = (
                self._named[number] == (columns[2], columns[3])
                and self._uids.get(number) == columns[1]
                and self._parents.get(number) == columns[5]
            )
            if agrees and columns[5] == 0 and columns[4] == number:
                yield [*columns[:11], line_sum((number, *columns[1:11])), *columns[12:]]

    def _deleted(self, number: int, columns: _Columns) -> int:
        """Deleted lines are marked so, sealed, and left out of the index of names: two of the three count."""
        votes = [bool(columns[12]), self._sealed(number), number not in self._named]
        return int(sum(votes) >= 2)

    def _sealed(self, number: int) -> bool:
        for seq, place in reversed(self._rows.get(number, ())):
            if seq < SEAL_SEQ:
                return False
            relic = self.relic(place)
            if relic is not None and relic.row.kind == SEAL:
                return True
        return False

    # ── rows and chunks ──

    def rows(self, line: int) -> Sequence[tuple[int, object]]:
        return [entry for entry in self._rows.get(line, ()) if entry[0] < SEAL_SEQ]

    def relic(self, place: Any) -> FoundRow | None:
        at, rooted = place
        row = self._again(at, "record")
        if row is None:
            return None
        _, kind, first, told, digest, key, net, keyframe, body = row[1]
        sound = row_sum(row[0], kind, first, digest, key) == told
        return FoundRow(Row(row[0] & SEQ_MASK, first, kind, digest, body, net, keyframe), rooted, sound)

    def chunks(self, line: int) -> Sequence[ChunkPlace]:
        return self._chunks.get(line, ())

    def chunk(self, place: Any) -> bytes:
        row = self._again(place, "chunk")
        data: bytes = row[1][7] if row is not None else b""
        return data

    def _again(self, place: Place, table: str) -> tuple[int, _Columns] | None:
        """A row that was noted: who has the store open may have put something else there since."""
        row = self._pages.row(place)
        return row if row is not None and _fits(row[1], table) else None

    # ── what may be missing ──

    @property
    def outdated(self) -> bool:
        return self._pages.log_damaged > 0

    def unaccounted(self, line: int) -> bool:
        # Rows of all lines share their pages: one that is lost, or has become another's, may be anybody's.
        if self._whole is None:
            self._whole = not self.problems and self._rows_are_sound() and self._pages.consistent()
        return not self._whole

    def _rows_are_sound(self) -> bool:
        if any(isinstance(entry, LineHint) for entry in self.lines()):
            return False
        relics = (self.relic(place) for rows in self._rows.values() for _, place in rows)
        return all(relic is not None and relic.sound for relic in relics)

    # ── what isn't threads ──

    def erasures(self) -> Sequence[ErasedKey]:
        return self._ledger

    def sealed(self) -> Iterator[SealedRow]:
        for place in self._values:
            value = self._value(place)
            if value is not None:
                yield value

    def cells(self) -> Iterator[tuple[str, str, bytes, int]]:
        for place in self._cells:
            row = self._again(place, "cell")
            if row is not None:
                _, space, name, _, written_us, value = row[1]
                yield space, name, value, written_us

    def streams(self) -> Iterator[FoundStream]:
        for number, columns in self._streams.items():
            _, space, name, first, last, *_ = columns
            events = []
            for seq, place in sorted(self._events.get(number, ())):
                row = self._again(place, "event")
                if row is not None and first <= seq <= last:
                    _, _, kind, agent, at_us, _, body = row[1]
                    events.append(StoredEvent(seq, at_us, kind, agent, body))
            yield FoundStream(space, name, first, events)


def _fits(columns: _Columns, table: str) -> bool:
    shape = _SHAPES[table]
    return len(columns) == len(shape) and all(
        type(c) in kinds for c, kinds in zip(columns, shape, strict=True)
    )
