"""What can still be read of a damaged SQLite store, from its pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

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
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.events import SEQ_BITS as EVENT_BITS
from everthread.stores.sqlite.pages import Pages, Place
from everthread.stores.sqlite.rows import chunk_fits, line_sum, row_sum, to_line
from everthread.stores.sqlite.sealed import split_beside, to_erased

_Columns = list[Any]
_Number, _Text, _Bytes, _Null = int, str, bytes, type(None)

#: The types of the columns of each table, to recognise its rows by. What is wrong with a sealed value is no
#: reason to give up the version that it stands beside.
_SHAPES: dict[str, tuple[tuple[type, ...], ...]] = {
    "line": (
        (_Null,), (_Bytes,), (_Text,), (_Text,), (_Number,), (_Number,), (_Number,), (_Number,),
        (_Bytes,), (_Bytes,), (_Bytes,), (_Number,), (_Number,), (_Number,),
    ),
    "record": (
        (_Null,), (_Number,), (_Number,), (_Number,), (_Bytes,), (_Bytes, _Null), (_Bytes, _Null),
        (_Bytes, _Null), (_Bytes,), (_Bytes, _Null, _Number, _Text, float),
    ),
    "chunk": (
        (_Null,), (_Number,), (_Text,), (_Number,), (_Number,), (_Number,), (_Bytes,), (_Bytes,),
    ),
    "sealed": ((_Bytes,), (_Bytes,), (_Bytes,), (_Number,)),
    "cell": ((_Null,), (_Text,), (_Text,), (_Number,), (_Number,), (_Bytes,)),
    "stream": ((_Null,), (_Text,), (_Text,), (_Number,), (_Number,), (_Number, _Null), (_Number,)),
    "event": ((_Null,), (_Number,), (_Text,), (_Text, _Null), (_Number,), (_Number,), (_Bytes,)),
}  # fmt: skip


#: Tables of which nothing is needed; all else are indexes, or tables that are kept like one.
_OTHER_TABLES = frozenset({"sqlite_sequence", "cell_floor"})
#: What tables are called now that had another name in earlier versions.
_RENAMED = {"sealed_apart": "sealed"}


class SqliteRemains:
    """The tables of a store, gathered from whatever pages hold their rows."""

    def __init__(self, path: str) -> None:
        self.problems: list[str] = []
        self._pages = Pages(path)
        self._rows: dict[int, list[tuple[int, tuple[Place, bool]]]] = {}
        self._chunks: dict[int, list[ChunkPlace]] = {}
        self._lines: dict[int, list[_Columns]] = {}
        self._plain: dict[str, list[Place]] = {"sealed": [], "cell": []}
        #: Rows of versions that have a sealed value beside them.
        self._beside: list[Place] = []
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

    # ── gathering ────────────────────────────────────────────────────────────────────────────

    def _gather(self) -> None:
        pages = self._pages
        if pages.log_damaged:
            self.problems.append(f"{pages.log_damaged} frames of the write-ahead log fail their checksum")
        seen: set[int] = set()
        passed: set[int] = set()
        roots = self._roots(seen)
        self._ledger = self._read_ledger(roots.get("erased", 0))
        for table in _SHAPES:
            if table not in roots:
                self.problems.append(f"the table {table!r} isn't found by its definition")
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

    def _roots(self, seen: set[int]) -> dict[str, int]:
        """The first page of each tree, by name."""
        found = {}
        for leaf in self._pages.leaves(1, seen):
            for offset in self._pages.cells(leaf):
                row = self._pages.row((leaf, offset))
                if row is not None and len(row[1]) == 5:
                    _, name, _, root, _ = row[1]
                    # Views and triggers have no tree.
                    if isinstance(name, str) and isinstance(root, int) and root:
                        found[_RENAMED.get(name, name)] = root
        return found

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

    def _search(self, known: set[int], *, everything: bool) -> None:
        """Look for rows on pages that nothing leads to any more.

        Unless nothing does (``everything``), these may also be pages that were given up long ago.
        """
        found = 0
        for number in range(1, self._pages.count + 1):
            if number not in known:
                for offset in self._pages.cells(number):
                    found += self._take((number, offset), None, rooted=everything, passed=None)
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
            seq = rowid & schema.SEQ_MASK
            self._rows.setdefault(rowid >> schema.SEQ_BITS, []).append((seq, (place, rooted)))
            if rooted and len(columns) == len(_SHAPES[table]) and type(columns[-1]) is bytes:
                self._beside.append(place)
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
            # Removed personal values and cells must not come back from pages that were given up.
            self._plain[table].append(place)
        return True

    # ── lines ────────────────────────────────────────────────────────────────────────────────

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

    # ── rows and chunks ──────────────────────────────────────────────────────────────────────

    def rows(self, line: int) -> Sequence[tuple[int, object]]:
        return [entry for entry in self._rows.get(line, ()) if entry[0] < SEAL_SEQ]

    def relic(self, place: Any) -> FoundRow | None:
        at, rooted = place
        row = self._again(at, "record")
        if row is None:
            return None
        _, kind, first, told, digest, key, net, keyframe, body, *_ = row[1]
        sound = row_sum(row[0], kind, first, digest, key) == told
        return FoundRow(
            Row(row[0] & schema.SEQ_MASK, first, kind, digest, body, net, keyframe), rooted, sound
        )

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

    # ── what may be missing ──────────────────────────────────────────────────────────────────

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

    # ── what isn't threads ───────────────────────────────────────────────────────────────────

    def erasures(self) -> Sequence[ErasedKey]:
        return self._ledger

    def sealed(self) -> Iterator[SealedRow]:
        for place in self._plain["sealed"]:
            row = self._again(place, "sealed")
            if row is not None:
                yield row[1][0], row[1][1], row[1][2]
        for place in self._beside:
            row = self._again(place, "record")
            if row is not None and len(row[1]) == len(_SHAPES["record"]) and type(row[1][-1]) is bytes:
                yield split_beside(row[1][-1])

    def cells(self) -> Iterator[tuple[str, str, bytes, int]]:
        for place in self._plain["cell"]:
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
    if table in ("sealed", "record") and len(columns) == len(shape) - 1:
        # Written before these rows had a sum, or a place for a sealed value.
        shape = shape[:-1]
    return len(columns) == len(shape) and all(
        type(c) in kinds for c, kinds in zip(columns, shape, strict=True)
    )
