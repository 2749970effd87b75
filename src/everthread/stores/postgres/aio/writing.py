"""Lines and rows, written: one round trip each, and one transaction in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import psycopg

from everthread.codec.values import encode
from everthread.errors import EverthreadError, LimitError, StorageWriteError
from everthread.stores.colours import ASYNC
from everthread.stores.contract import (
    NO_TAGS,
    PACK,
    SEAL_SEQ,
    Fold,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
    split_keys,
)
from everthread.stores.gathering import Gatherings
from everthread.stores.postgres import functions, statements
from everthread.stores.postgres.aio.reading import Reading
from everthread.stores.postgres.failing import KEY_ERASED, NOT_FOLDABLE, in_doubt
from everthread.stores.postgres.rows import chunk_columns, line_sum, root_of, row_sum
from everthread.stores.postgres.wire import Statement, name_bytes
from everthread.stores.signals import Signals

#: So many requests of appends are under way at a time; further ones gather meanwhile.
_LANES_MAX = 2
#: Nothing comes along.
_NOTHING: tuple[list[Any], ...] = ([],) * 9


class Writing(Reading):
    """What :class:`AsyncPostgresBackend` writes."""

    signals: Signals

    if ASYNC:

        @cached_property
        def _gatherings(self) -> Gatherings:
            # Some connections are left for whoever reads.
            lanes = max(1, min(self.connections.settings.pool_max // 2, _LANES_MAX))
            return Gatherings(lanes, self._append_one, self._append_gathered)

        async def _append_gathered(self, rows: Sequence[tuple[int, NewRow]]) -> Sequence[int | BaseException]:
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
            whole, again = ((statements.APPEND_WHOLE, (*values, sent, *rest)) for sent in (False, True))
            ((taken,),) = await self._sealing(*whole, again, row.sealed)
        else:
            if ASYNC:
                taken = await self._gatherings.append(line, row)
                if taken == functions.LOCKED:
                    taken = await self._append_one(line, row)
            else:
                taken = await self._append_one(line, row)
        if taken != functions.LANDED:
            raise await self._refusal(taken, line)
        if self.signals.awaited:
            self.signals.ring(line)

    def _values(self, line: int, row: NewRow) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What every row has, and what may come along besides."""
        root = root_of(line)
        sum_ = row_sum(row.seq, row.kind, row.seq, row.hash, row.key)
        guard = row.guard if row.key is not None else 0
        durable = self.connections.settings.durable
        source = row.source or (0, 0)
        return (
            *(root, line, row.seq, row.kind, sum_, row.hash, row.key, row.body, row.previous),
            *(guard, durable),
        ), (root_of(source[0]), *source, *_along(row))

    async def _append_one(self, line: int, row: NewRow, sent: bool = False) -> int:
        """One row and nothing else: the hot path. ``sent``: it may have landed already."""
        values, rest = self._values(line, row)
        again = (statements.APPEND_WHOLE, (*values, True, *rest))
        first = again if sent else (statements.APPEND, values)
        ((taken,),) = await self.connections.run(*first, again)
        return int(taken)

    async def _sealing(
        self,
        statement: Statement,
        values: tuple[Any, ...],
        again: tuple[Statement, Sequence[Any]] | None,
        sealed: Sequence[SealedRow],
    ) -> list[tuple[Any, ...]]:
        """Run what may be refused because a key was erased."""
        try:
            return await self.connections.run(statement, values, again)
        except StorageWriteError as error:
            if _state(error) != KEY_ERASED:
                raise
            used = [key_id for _, keys, _ in sealed for key_id in split_keys(keys)]
            gone: list[Any] = await self.connections.read(statements.ERASED, (used,))
            raise KeyErased(frozenset(key_id for (key_id,) in gone)) from None

    async def _refusal(self, answer: int, line: int) -> Exception:
        """Why a row wasn't taken."""
        if answer == functions.KEY_KNOWN:
            return KeyKnown()
        if answer == functions.VERSION_GONE:
            return VersionGone()
        if answer == functions.IN_DOUBT:
            return in_doubt(self.connections.settings.shown)
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
                if taken == functions.LOCKED:
                    taken = await self._append_one(line, row)
                outcomes.append(None if taken == functions.LANDED else await self._refusal(taken, line))
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
            self.connections.settings.durable,
        )
        answers = await self.connections.run(statements.APPEND_MANY, values)
        return [taken for _, taken in answers]

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        counts = encode(line.counts) if line.counts else b""
        space, name = name_bytes(line.space), name_bytes(line.name)
        parents = line.parent, line.parent_seq, line.parent_segment
        sum_ = line_sum(line.uid, space, name, parents, line.parent_hash, line.start_hash, counts)
        settings = self.connections.settings
        first: tuple[Any, ...] = (None,) * 6
        if row is not None:
            checksum = row_sum(row.seq, row.kind, row.seq, row.hash, row.key)
            first = (row.seq, row.kind, checksum, row.hash, row.key, row.body)
        values = (
            *(line.uid, line.space, line.name, line.root, *parents, line.parent_hash, line.start_hash),
            *(counts, sum_, source, settings.durable, list(tags), list(tags.values())),
            *(*first, *(_NOTHING if row is None else _along(row))),
        )
        # Sent again it finds its own name taken, by a line with this very uid.
        again = statements.CREATE, values
        try:
            sealed = () if row is None else row.sealed
            ((answer, made),) = await self._sealing(statements.CREATE, values, again, sealed)
        except StorageWriteError as error:
            if _state(error) != "23505":
                raise
            raise NameTaken from None
        if answer == functions.SOURCE_GONE:
            raise SourceGone
        if answer == functions.VERSION_GONE:
            raise VersionGone
        if answer != functions.LANDED:
            raise LimitError("a family of forks holds 16,777,215 lines at most; go on in a new thread")
        self._note(line.space, line.name)
        self.signals.ring(0)
        return msgspec.structs.replace(line, id=made, root=root_of(made))

    async def delete(self, line: Line, newest: bytes | None = None) -> bool:
        durable = self.connections.settings.durable
        values = root_of(line.id), line.id, line.uid, newest, durable
        ((sealed,),) = await self.connections.run(statements.DELETE, values)
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
            *(list(fold.tags), list(fold.tags.values()), int(fold.beside)),
        )
        try:
            # Folded already by the try whose answer was lost: then there is nothing left to fold.
            ((folded,),) = await self.connections.read(statements.FOLD, values)
        except StorageWriteError as error:
            if _state(error) != NOT_FOLDABLE:
                raise
            return False
        return bool(folded)

    async def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        await self.connections.read(statements.KEYFRAME, (root_of(line), line, seq, digest, keyframe))

    async def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        values = root_of(line), line, seq, list(tags), list(tags.values())
        await self.connections.read(statements.TAG, values)


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


def _state(error: Exception) -> str | None:
    """What the server called it."""
    return getattr(error.__cause__, "sqlstate", None)
