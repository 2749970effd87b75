"""Rows: the versions of a branch by number, as single records, packs, and what stands for pruned ones.

A row that stands for several versions is kept under its last sequence number. What replaying needs of it (its
net change) is in ROW, everything else in PAST, so that opening a head never reads the versions inside a pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everthread.errors import StateCorruptedError
from everthread.records.branches import SHAPE, mark_key
from everthread.records.checked import DAMAGED as UNREADABLE
from everthread.records.checked import CheckedStore
from everthread.records.keys import SEQ_END, Put
from everthread.records.tables import KEYFRAME, PAST, ROW
from everthread.stores.contract import COLD, DAMAGED, PACK, PRUNED, REWIND, Row
from everthread.stores.interface import Get, Page, Query

#: Kinds of rows that stand for several versions.
PACKED = (PACK, PRUNED, COLD)
_PAGE = 80

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes | None]).decode


def put_record(branch: int, seq: int, kind: int, digest: bytes, body: bytes) -> Put:
    """Return the put of a single record."""
    return (ROW.number, branch, seq), _encode((kind, seq, digest, body))


def put_row(branch: int, row: Row) -> list[Put]:
    """Return the puts of a whole row."""
    seq = row.seq
    content = row.net if row.kind in PACKED else row.body
    puts: list[Put] = [((ROW.number, branch, seq), _encode((row.kind, row.first, row.hash, content)))]
    if row.kind in PACKED:
        puts.append(((PAST.number, branch, seq), row.body))
    if row.keyframe is not None:
        puts.append(((KEYFRAME.number, branch, seq), row.keyframe))
    return puts


def decode_row(seq: int, content: Any, past: Any = b"", keyframe: Any = None) -> Row:
    """Return a row from what is stored of it; one of kind DAMAGED if that can't be read.

    A keyframe that can't be read is empty, which no keyframe is: replaying then goes further back.
    """
    if content is UNREADABLE:
        return Row(seq, seq, DAMAGED, b"", b"")
    try:
        kind, first, digest, body = _decode(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError(f"row {seq} can't be decoded", where="row") from error
    if past is UNREADABLE:
        return Row(seq, seq, DAMAGED, digest, b"")
    if keyframe is UNREADABLE:
        keyframe = b""
    if kind in PACKED:
        return Row(seq, first, kind, digest, past or b"", body, keyframe)
    return Row(seq, first, kind, digest, body or b"", None, keyframe)


class Rows:
    """Reads rows, newest first."""

    def __init__(self, store: CheckedStore) -> None:
        self._store = store

    async def newest(self, branches: Sequence[int], limit: int) -> list[list[Row]]:
        """Return the newest rows of each branch; of packs, only the newest row has the versions inside."""
        queries = [Page(ROW.number, branch, 1, SEQ_END, limit, True) for branch in branches]
        found = await self._store.read(queries, mark=True)
        pages = [[decode_row(at, content) for at, content in page] for page in found]
        for branch, rows in zip(branches, pages, strict=True):
            if rows and rows[0].kind in PACKED:
                rows[:1] = await self.complete(branch, rows[0].seq, rows[0].seq, 1) or rows[:1]
        return pages

    async def holding(self, branch: int, seq: int) -> Row | None:
        """Return the row that holds a version, or the next one if none does."""
        query = Page(ROW.number, branch, seq, SEQ_END, 1)
        (found,) = await self._store.read([query], mark=True)
        return decode_row(*found[0]) if found else None

    async def is_pruned(self, branch: int, seq: int) -> bool:
        """Return True if the version was pruned, or its branch removed."""
        row = await self.holding(branch, seq)
        return row is None or row.kind == PRUNED

    async def between(self, branch: int, first: int, last: int) -> list[Row]:
        """Return the rows that end with ``first`` … ``last``, oldest first, complete."""
        return (await self.complete(branch, first, last, last - first + 1))[::-1]

    async def above(self, branch: int, floor: int, last: int, limit: int) -> list[Row]:
        """Return up to ``limit`` rows with ``floor < seq <= last``, newest first, without what is in PAST."""
        query = Page(ROW.number, branch, floor + 1, last + 1, limit, True)
        (found,) = await self._store.read([query], mark=True)
        return [decode_row(at, content) for at, content in found]

    async def scan(self, branch: int, seq: int, limit: int) -> list[Row]:
        """Return up to ``limit`` complete rows from the one that holds ``seq`` downwards, newest first."""
        seq = min(seq, SEQ_END - 1)
        holding = Page(ROW.number, branch, seq, SEQ_END, 1)
        return await self._complete(branch, [holding, Page(ROW.number, branch, 1, seq, limit, True)], limit)

    async def complete(self, branch: int, first: int, last: int, limit: int) -> list[Row]:
        """Return up to ``limit`` complete rows with ``first <= seq <= last``, newest first."""
        return await self._complete(branch, [Page(ROW.number, branch, first, last + 1, limit, True)], limit)

    async def _complete(self, branch: int, pages: Sequence[Page], limit: int) -> list[Row]:
        """Return up to ``limit`` rows of these pages with what is in PAST and KEYFRAME.

        That takes two reads. If a compaction replaced rows between them, both are repeated: otherwise
        versions would seem to be missing.
        """
        shape = _shape(branch)
        while True:
            (before,), *found = await self._store.read([shape, *pages], mark=True)
            rows = [pair for page in found for pair in page][:limit]
            if not rows:
                return []
            keys = [[(table.number, branch, at) for at, _ in rows] for table in (PAST, KEYFRAME)]
            (after,), pasts, keyframes = await self._store.read([shape, *map(Get, keys)], mark=True)
            if after == before:
                return [
                    decode_row(at, content, past, keyframe)
                    for (at, content), past, keyframe in zip(rows, pasts, keyframes, strict=True)
                ]

    async def tail(self, branch: int) -> list[Row]:
        """Return the rows after the last pack, oldest first, with their keyframes."""
        found: list[Row] = []
        end = SEQ_END
        while True:
            query = Page(ROW.number, branch, 1, end, _PAGE, True)
            (page,) = await self._store.read([query], mark=True)
            rows = [decode_row(at, content) for at, content in page]
            packed = next((at for at, row in enumerate(rows) if row.kind in (PACK, PRUNED)), len(rows))
            found += rows[:packed]
            if packed < len(rows) or len(rows) < _PAGE:
                return await self._with_keyframes(branch, found[::-1])
            end = rows[-1].seq

    async def _with_keyframes(self, branch: int, rows: Sequence[Row]) -> list[Row]:
        keys = [(KEYFRAME.number, branch, row.seq) for row in rows]
        (keyframes,) = await self._store.read([Get(keys)], mark=True)
        return [
            row if keyframe is None else _with_keyframe(row, keyframe)
            for row, keyframe in zip(rows, keyframes, strict=True)
        ]

    async def replay(self, branch: int, seq: int, floor: int) -> list[Row]:
        """Return the rows from the one that holds ``seq`` downwards, newest first, as far as replay needs.

        The last one returned is the first that has a keyframe as of its own end, a REWIND, or the last above
        ``floor``. Packs come without the versions inside, except the first one if ``seq`` lies inside it.
        """
        while True:
            rows = await self._replay(branch, seq, floor)
            if rows is not None:
                return rows

    async def _replay(self, branch: int, seq: int, floor: int) -> list[Row] | None:
        """Return what :meth:`replay` returns, or ``None`` if rows were replaced between two reads."""
        shape, holding = _shape(branch), Page(ROW.number, branch, seq, SEQ_END, 1)
        first: list[Query] = [shape, holding, *_stretch(branch, floor + 1, seq + 1)]
        (before,), top, *stretch = await self._store.read(first, mark=True)
        rows: list[Row] = []
        if not top:
            return rows
        if (last := top[0][0]) > seq:
            whole = await self.between(branch, last, last)
            (after,) = (await self._store.read([shape], mark=True))[0]
            if not whole or after != before:
                return None
            rows.append(msgspec.structs.replace(whole[0], keyframe=None))
        while True:
            page, is_last = _cut(*stretch)
            rows += page
            if is_last or not page:
                return rows
            further: list[Query] = [shape, *_stretch(branch, floor + 1, rows[-1].seq)]
            (after,), *stretch = await self._store.read(further, mark=True)
            if after != before:
                return None


def _shape(branch: int) -> Get:
    """Return the query for the mark that is replaced whenever rows of the branch are."""
    return Get([mark_key(branch, SHAPE)])


def _stretch(branch: int, start: int, stop: int) -> list[Page]:
    """Return the queries for the newest keyframe and the newest rows with ``start <= seq < stop``."""
    stop = max(start, stop)
    return [
        Page(KEYFRAME.number, branch, start, stop, 1, True),
        Page(ROW.number, branch, start, stop, _PAGE, True),
    ]


def _cut(keyframes: Sequence[Any], found: Sequence[Any]) -> tuple[list[Row], bool]:
    """Return the rows that replay needs of a stretch, and True if it needs none below."""
    framed, keyframe = keyframes[0] if keyframes else (0, None)
    rows: list[Row] = []
    for at, content in found:
        row = decode_row(at, content)
        if at == framed and keyframe is not UNREADABLE:
            return [*rows, msgspec.structs.replace(row, keyframe=keyframe)], True
        rows.append(row)
        if row.kind == REWIND:
            return rows, True
        if at <= framed:
            # The keyframe can't be used: the next older one counts, if there is any.
            return rows, False
    return rows, len(found) < _PAGE


def _with_keyframe(row: Row, keyframe: Any) -> Row:
    return msgspec.structs.replace(row, keyframe=b"" if keyframe is UNREADABLE else keyframe)
