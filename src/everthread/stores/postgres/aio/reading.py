"""Lines, rows and chunks, read: one round trip each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any

from everthread.errors import StateCorruptedError
from everthread.history.packs import Chunk
from everthread.stores.contract import DAMAGED, SEAL_SEQ, Found, Line, Row
from everthread.stores.postgres import statements
from everthread.stores.postgres.aio.connections import AsyncConnections
from everthread.stores.postgres.rows import (
    LINE_COLUMNS,
    ROW_COLUMNS,
    chunk_fits,
    root_of,
    to_found,
    to_line,
    to_row,
)

#: Lines that were found with their rows, which nobody has asked for yet.
_STASHED_MAX = 64
#: Lines that this store object has seen: of these somebody may remember the head.
_KNOWN_MAX = 10_000


class Reading:
    """What :class:`AsyncPostgresBackend` reads."""

    connections: AsyncConnections

    def __init__(self) -> None:
        self._stashed: OrderedDict[int, list[Row]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def find(self, space: str, name: str) -> Found | None:
        if (space, name) in self._known:
            rows = await self.connections.read(statements.FIND, (space, name))
            return to_found(rows[0]) if rows else None
        # Seen for the first time: whoever opens it asks for its rows next, so these come along.
        rows = await self.connections.read(statements.FIND_AND_REPLAY, (space, name))
        if not rows:
            return None
        self._note(space, name)
        found = to_found(rows[0])
        if found.newest is not None:
            self._stash(found.line.id, [to_row(_row_of(columns)) for columns in rows])
        return found

    def _note(self, space: str, name: str) -> None:
        self._known[space, name] = None
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def _stash(self, line: int, rows: list[Row]) -> None:
        self._stashed[line] = rows
        while len(self._stashed) > _STASHED_MAX:
            self._stashed.popitem(last=False)

    async def line(self, line: int) -> Line | None:
        rows = await self.connections.read(statements.LINE, (line,))
        return to_line(rows[0]) if rows else None

    async def line_by_uid(self, uid: bytes) -> Line | None:
        rows = await self.connections.read(statements.LINE_BY_UID, (uid,))
        return to_line(rows[0]) if rows else None

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        # Used once: what was read a moment ago is as good as what would be read now.
        stashed = self._stashed.pop(line, None)
        if stashed is not None and stashed[0].seq == seq and stashed[0].kind != DAMAGED:
            return [row for row in stashed if row.seq > floor]
        rows = await self.connections.read(statements.REPLAY, (root_of(line), line, seq, floor))
        return [to_row(columns) for columns in rows]

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        bounds = root_of(line), line, min(seq, SEAL_SEQ - 1), limit
        rows = await self.connections.read(statements.SCAN, bounds)
        return [to_row(columns) for columns in rows]

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows = await self.connections.read(statements.TAIL, (root_of(line), line))
        return [
            (row := to_row(columns), None if row.kind == DAMAGED else columns[ROW_COLUMNS - 2])
            for columns in rows
        ]

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        bounds = root_of(line), line, log, start, stop
        rows = await self.connections.read(statements.CHUNKS, bounds)
        log_bytes = log.encode()
        # One that isn't where it belongs is as good as missing.
        return [
            Chunk(log, position, count, prints, data)
            for position, count, prints, data, sum_ in rows
            if position + count > start and chunk_fits(log_bytes, position, count, prints, sum_)[0]
        ]

    async def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        rows = await self.connections.read(statements.FINGERPRINTS, (root_of(line), line, log, start))
        log_bytes = log.encode()
        return [
            (position, prints or bytes(4 * count))
            for position, count, prints, sum_ in rows
            if position + count > start and all(chunk_fits(log_bytes, position, count, prints, sum_))
        ]

    async def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        rows: list[Any] = await self.connections.read(statements.KEYED, (root, key))
        return rows

    async def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        rows: list[Any] = await self.connections.read(statements.SEALED, (list(value_ids),))
        return dict(rows)

    # ── lists ────────────────────────────────────────────────────────────────────────────────

    async def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        rows = await self.connections.read(statements.LINES, (space, prefix, after or "", limit))
        found = [to_found(columns) for columns in rows]
        return [entry for entry in found if entry.line.name.startswith(prefix)]

    async def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        (name, value), *others = tags.items()
        wanted = [other for other, _ in others], [data for _, data in others]
        rows = await self.connections.read(statements.LINES_BY_TAG, (space, name, value, *wanted))
        return [to_found(columns) for columns in rows]

    async def untagged(self, space: str) -> list[tuple[Line, int]]:
        rows = await self.connections.read(statements.UNTAGGED, (space,))
        return [(to_line(columns[:LINE_COLUMNS]), columns[LINE_COLUMNS]) for columns in rows]

    async def every_line(self) -> AsyncIterator[Line]:
        after = 0
        while rows := await self.connections.read(statements.EVERY_LINE, (after,)):
            for columns in rows:
                # unreadable_lines() names a damaged one.
                with suppress(StateCorruptedError):
                    yield to_line(columns)
            after = rows[-1][0]

    async def unreadable_lines(self) -> list[str]:
        after, found = 0, []
        while rows := await self.connections.read(statements.EVERY_LINE, (after,)):
            for columns in rows:
                try:
                    to_line(columns)
                except StateCorruptedError as error:
                    found.append(str(error))
            after = rows[-1][0]
        return found


def _row_of(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    return columns[LINE_COLUMNS : LINE_COLUMNS + ROW_COLUMNS]
