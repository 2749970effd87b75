"""Lines and rows of threads, read and written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
import psycopg

from everthread.codec.values import encode
from everthread.errors import EverthreadError, LimitError, StateCorruptedError, StorageWriteError
from everthread.history.packs import Chunk
from everthread.stores.colours import ASYNC
from everthread.stores.contract import (
    DAMAGED,
    NO_TAGS,
    PACK,
    SEAL_SEQ,
    Fold,
    Found,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Row,
    SourceGone,
    StaleWrite,
    VersionGone,
)
from everthread.stores.group_commit import RequestGroups
from everthread.stores.postgres.aio.erasure import run_sealing
from everthread.stores.postgres.aio.pool import AsyncPool
from everthread.stores.postgres.errors import NOT_FOLDABLE, in_doubt, sqlstate
from everthread.stores.postgres.rows import (
    IN_DOUBT,
    KEY_KNOWN,
    LANDED,
    LINE_COLUMNS,
    LOCKED,
    ROW_COLUMNS,
    SOURCE_GONE,
    VERSION_GONE,
    chunk_columns,
    chunk_fits,
    line_sum,
    name_bytes,
    root_of,
    row_sum,
    short_name,
    to_found,
    to_line,
    to_row,
)
from everthread.stores.signals import Signals

#: Lines that were found with their rows, which nobody has asked for yet.
_STASHED_MAX = 64
#: Lines that this store object has seen: of these somebody may remember the head.
_KNOWN_MAX = 10_000
#: So many requests of appends are under way at a time; further ones gather meanwhile.
_LANES_MAX = 2
#: Nothing comes along.
_NOTHING: tuple[list[Any], ...] = ([],) * 9


class LineReads:
    """Lines, rows and chunks, read: one round trip each."""

    pool: AsyncPool

    def __init__(self) -> None:
        self._stashed: OrderedDict[int, list[Row]] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def find(self, space: str, name: str) -> Found | None:
        if (space, name) in self._known:
            rows = await self.pool.read("find", (name_bytes(space), name_bytes(name)))
            return to_found(rows[0]) if rows else None
        # Seen for the first time: whoever opens it asks for its rows next, so these come along.
        rows = await self.pool.read("find_and_replay", (name_bytes(space), name_bytes(name)))
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
        rows = await self.pool.read("line", (line,))
        return to_line(rows[0]) if rows else None

    async def line_by_uid(self, uid: bytes) -> Line | None:
        rows = await self.pool.read("line_by_uid", (uid,))
        return to_line(rows[0]) if rows else None

    async def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        # Used once: what was read a moment ago is as good as what would be read now.
        stashed = self._stashed.pop(line, None)
        if stashed is not None and stashed[0].seq == seq and stashed[0].kind != DAMAGED:
            return [row for row in stashed if row.seq > floor]
        rows = await self.pool.read("replay", (root_of(line), line, seq, floor))
        return [to_row(columns) for columns in rows]

    async def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        bounds = root_of(line), line, min(seq, SEAL_SEQ - 1), limit
        rows = await self.pool.read("scan", bounds)
        return [to_row(columns) for columns in rows]

    async def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        rows = await self.pool.read("tail", (root_of(line), line))
        return [
            (row := to_row(columns), None if row.kind == DAMAGED else columns[ROW_COLUMNS - 2])
            for columns in rows
        ]

    async def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        log_bytes = log.encode()
        bounds = root_of(line), line, log_bytes, start, stop
        rows = await self.pool.read("chunks", bounds)
        # One that isn't where it belongs is as good as missing.
        return [
            Chunk(log, position, count, prints, data)
            for position, count, prints, data, sum_ in rows
            if position + count > start and chunk_fits(log_bytes, position, count, prints, sum_)[0]
        ]

    async def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        log_bytes = log.encode()
        rows = await self.pool.read("fingerprints", (root_of(line), line, log_bytes, start))
        return [
            (position, prints or bytes(4 * count))
            for position, count, prints, sum_ in rows
            if position + count > start and all(chunk_fits(log_bytes, position, count, prints, sum_))
        ]

    async def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        rows: list[Any] = await self.pool.read("versions_of_key", (root, key))
        return rows

    async def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        rows: list[Any] = await self.pool.read("sealed", (list(value_ids),))
        return dict(rows)

    # ── lists ────────────────────────────────────────────────────────────────────────────────

    async def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        rows = await self.pool.read("lines", _page(space, prefix, after, limit))
        found = [to_found(columns) for columns in rows]
        return [entry for entry in found if entry.line.name.startswith(prefix)]

    async def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        (name, value), *others = tags.items()
        wanted = [short_name(other) for other, _ in others], [data for _, data in others]
        values = name_bytes(space), short_name(name), value, *wanted
        rows = await self.pool.read("lines_by_tag", values)
        return [to_found(columns) for columns in rows]

    async def untagged(self, space: str) -> list[tuple[Line, int]]:
        rows = await self.pool.read("untagged", (name_bytes(space),))
        return [(to_line(columns[:LINE_COLUMNS]), columns[LINE_COLUMNS]) for columns in rows]

    async def every_line(self) -> AsyncIterator[Line]:
        after = 0
        while rows := await self.pool.read("every_line", (after,)):
            for columns in rows:
                # unreadable_lines() names a damaged one.
                with suppress(StateCorruptedError):
                    yield to_line(columns)
            after = rows[-1][0]

    async def unreadable_lines(self) -> list[str]:
        after, found = 0, []
        while rows := await self.pool.read("every_line", (after,)):
            for columns in rows:
                try:
                    to_line(columns)
                except StateCorruptedError as error:
                    found.append(str(error))
            after = rows[-1][0]
        return found


class Lines(LineReads):
    """Lines and rows, written: one round trip each, and one transaction in the server."""

    signals: Signals

    if ASYNC:

        @cached_property
        def _groups(self) -> RequestGroups:
            # Some connections are left for whoever reads.
            lanes = max(1, min(self.pool.settings.pool_max // 2, _LANES_MAX))
            return RequestGroups(lanes, self._append_one, self._append_group)

        async def _append_group(self, rows: Sequence[tuple[int, NewRow]]) -> Sequence[int | BaseException]:
            import asyncio

            try:
                return await self._append_plain(rows)
            except EverthreadError as error:
                if not isinstance(error.__cause__, psycopg.Error):
                    raise
            # Each by itself: nobody is refused because of another, and what landed is recognised.
            alone = (self._append_one(line, row, sent=True) for line, row in rows)
            return await asyncio.gather(*alone, return_exceptions=True)

    async def append(self, line: int, row: NewRow) -> None:
        if row.chunks or row.sealed or row.source is not None:
            values, rest = self._values(line, row)
            whole, again = (("append_whole", (*values, sent, *rest)) for sent in (False, True))
            ((taken,),) = await run_sealing(self.pool, *whole, again, row.sealed)
        else:
            if ASYNC:
                taken = await self._groups.append(line, row)
                if taken == LOCKED:
                    taken = await self._append_one(line, row)
            else:
                taken = await self._append_one(line, row)
        if taken != LANDED:
            raise await self._refusal(taken, line)
        if self.signals.awaited:
            self.signals.ring(line)

    def _values(self, line: int, row: NewRow) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What every row has, and what may come along besides."""
        root = root_of(line)
        sum_ = row_sum(row.seq, row.kind, row.seq, row.hash, row.key)
        guard = row.guard if row.key is not None else 0
        durable = self.pool.settings.durable
        source = row.source or (0, 0)
        return (
            *(root, line, row.seq, row.kind, sum_, row.hash, row.key, row.body, row.previous),
            *(guard, durable),
        ), (root_of(source[0]), *source, *_along(row))

    async def _append_one(self, line: int, row: NewRow, sent: bool = False) -> int:
        """One row and nothing else: the hot path. ``sent``: it may have landed already."""
        values, rest = self._values(line, row)
        again = ("append_whole", (*values, True, *rest))
        first = again if sent else ("append", values)
        ((taken,),) = await self.pool.run(*first, again)
        return int(taken)

    async def _refusal(self, answer: int, line: int) -> Exception:
        """Why a row wasn't taken."""
        if answer == KEY_KNOWN:
            return KeyKnown()
        if answer == VERSION_GONE:
            return VersionGone()
        if answer == IN_DOUBT:
            return in_doubt(self.pool.settings.shown)
        found = await self.line(line)
        rows = await self.scan(line, SEAL_SEQ - 1, 1)
        return StaleWrite(rows[0] if rows else None, sealed=found is None or found.deleted)

    async def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        plain = len(rows) > 1 and all(
            not row.chunks and not row.sealed and row.source is None for _, row in rows
        )
        if plain:
            return await self._append_many(rows)
        outcomes: list[Exception | None] = []
        for line, row in rows:
            try:
                await self.append(line, row)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes

    async def _append_many(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        try:
            answers = await self._append_plain(rows)
        except Exception as error:
            # One transaction: with any of it, all of it failed.
            return [error] * len(rows)
        self.signals.ring(*(line for line, _ in rows))
        outcomes: list[Exception | None] = []
        for taken, (line, row) in zip(answers, rows, strict=True):
            try:
                if taken == LOCKED:
                    taken = await self._append_one(line, row)
                outcomes.append(None if taken == LANDED else await self._refusal(taken, line))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    async def _append_plain(self, rows: Sequence[tuple[int, NewRow]]) -> list[int]:
        """Rows with which nothing comes along, in one transaction; what became of each."""
        new = [row for _, row in rows]
        values = (
            [root_of(line) for line, _ in rows],
            [line for line, _ in rows],
            [row.seq for row in new],
            [row.kind for row in new],
            [row_sum(row.seq, row.kind, row.seq, row.hash, row.key) for row in new],
            [row.hash for row in new],
            [row.key for row in new],
            [row.body for row in new],
            [row.previous for row in new],
            [row.guard if row.key is not None else 0 for row in new],
            self.pool.settings.durable,
        )
        answers = await self.pool.run("append_many", values)
        return [taken for _, taken in answers]

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        counts = encode(line.counts) if line.counts else b""
        space, name = name_bytes(line.space), name_bytes(line.name)
        parents = line.parent, line.parent_seq, line.parent_segment
        sum_ = line_sum(line.uid, space, name, parents, line.parent_hash, line.start_hash, counts)
        settings = self.pool.settings
        first: tuple[Any, ...] = (None,) * 6
        if row is not None:
            checksum = row_sum(row.seq, row.kind, row.seq, row.hash, row.key)
            first = (row.seq, row.kind, checksum, row.hash, row.key, row.body)
        values = (
            *(line.uid, space, name, line.root, *parents, line.parent_hash, line.start_hash),
            *(counts, sum_, source, settings.durable, *_tag_columns(tags)),
            *(*first, *(_NOTHING if row is None else _along(row))),
        )
        # Sent again it finds its own name taken, by a line with this very uid.
        again = "create_line", values
        try:
            sealed = () if row is None else row.sealed
            ((answer, made),) = await run_sealing(self.pool, "create_line", values, again, sealed)
        except StorageWriteError as error:
            if sqlstate(error) != "23505":
                raise
            raise NameTaken from None
        if answer == SOURCE_GONE:
            raise SourceGone
        if answer == VERSION_GONE:
            raise VersionGone
        if answer != LANDED:
            raise LimitError("a family of forks holds 16,777,215 lines at most; go on in a new thread")
        self._note(line.space, line.name)
        self.signals.ring(0)
        return msgspec.structs.replace(line, id=made, root=root_of(made))

    async def delete(self, line: Line, newest: bytes | None = None) -> bool:
        durable = self.pool.settings.durable
        values = root_of(line.id), line.id, line.uid, newest, durable
        ((sealed,),) = await self.pool.run("delete_line", values)
        self.signals.ring(line.id)
        return bool(sealed)

    # ── what is derived ──────────────────────────────────────────────────────────────────────

    async def fold(self, line: Line, fold: Fold) -> bool:
        pack = fold.pack
        root = root_of(line.id)
        values = (
            *(root, line.id, pack.first, pack.last, fold.hash),
            row_sum(pack.last, PACK, pack.first, fold.hash, None),
            *(pack.net, fold.keyframe, pack.body, *chunk_columns(pack.chunks)),
            *([key for key, _ in fold.keys], [seq for _, seq in fold.keys]),
            *(*_tag_columns(fold.tags), int(fold.beside)),
        )
        try:
            # Folded already by the try whose answer was lost: then there is nothing left to fold.
            ((folded,),) = await self.pool.read("fold", values)
        except StorageWriteError as error:
            if sqlstate(error) != NOT_FOLDABLE:
                raise
            return False
        return bool(folded)

    async def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        await self.pool.read("keyframe", (root_of(line), line, seq, digest, keyframe))

    async def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        values = root_of(line), line, seq, *_tag_columns(tags)
        await self.pool.read("set_tags", values)


def _row_of(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    return columns[LINE_COLUMNS : LINE_COLUMNS + ROW_COLUMNS]


def _along(row: NewRow) -> tuple[list[Any], ...]:
    """What comes along with a row, a list for each column."""
    if not row.sealed and not row.chunks:
        return _NOTHING
    sealed = (
        [value_id for value_id, _, _ in row.sealed],
        [keys for _, keys, _ in row.sealed],
        [data for _, _, data in row.sealed],
    )
    return (*sealed, *chunk_columns(row.chunks))


def _tag_columns(tags: Mapping[str, bytes]) -> tuple[list[bytes], list[bytes]]:
    return [short_name(name) for name in tags], list(tags.values())


def _page(space: str, prefix: str, after: str | None, limit: int) -> tuple[Any, ...]:
    return name_bytes(space), name_bytes(prefix), name_bytes(after or ""), limit
