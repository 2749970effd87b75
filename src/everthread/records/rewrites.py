"""Rewrites: rows that take the place of others while their versions stay, or stay known.

Compaction and keyframes are *derived*: a store may lose them, and they can be rebuilt from the rows that
they replace. A replacement (prune, redact, move to an archive) is not, so it names the whole span of
versions that it replaces, whatever rows hold them, and depends on nothing derived.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everthread.history.packs import Chunk, Pack
from everthread.records.branches import REACH, SHAPE, Branches
from everthread.records.checked import CheckedStore
from everthread.records.keys import SEQ_END, Put
from everthread.records.logs import Logs
from everthread.records.rows import Rows, put_row
from everthread.records.tables import KEYFRAME, PAST, ROW
from everthread.stores.contract import COLD, DELTA, PACK, PRUNED, REWIND, Row
from everthread.stores.interface import Batch, Refused, Span

_PAGE = 256


class Compaction(msgspec.Struct, frozen=True):
    """A pack, the hash of its last version, and a keyframe as of its end.

    ``after_gap`` says that the row before it can't be compacted, because it can't be read.
    """

    pack: Pack
    hash: bytes
    keyframe: bytes | None = None
    after_gap: bool = False


class Replacement(msgspec.Struct, frozen=True):
    """``rows`` take the place of ``old``, rows as they were read, for the same versions.

    ``dropped`` are ``(log, start, stop)``: positions that nothing refers to any more. ``chunks`` take the
    place of items that were dropped, now or before. ``seen`` are ``(branch, seq)``: every branch from which
    these versions can be reached, and the newest version that was considered. ``expected`` are chunks as
    they were read.
    """

    old: Sequence[Row] = ()
    rows: Sequence[Row] = ()
    dropped: Sequence[tuple[str, int, int]] = ()
    chunks: Sequence[Chunk] = ()
    seen: Sequence[tuple[int, int]] = ()
    expected: Sequence[Chunk] = ()


class Rewrites:
    """Replaces rows."""

    def __init__(self, store: CheckedStore, branches: Branches, rows: Rows, logs: Logs) -> None:
        self._store = store
        self._branches = branches
        self._rows = rows
        self._logs = logs

    async def compact(self, branch: int, compaction: Compaction) -> bool:
        """Replace the single records of a pack by the pack, all at once; not durable by itself.

        False, and nothing changed, if they aren't all single records any more, or others, or if the version
        before them is a single record: that would then be below a pack, where no later compaction looks.
        """
        pack = compaction.pack
        guards = await self._branches.guards((branch, SHAPE))
        rows = await self._rows.between(branch, max(pack.first - 1, 1), pack.last)
        if rows and rows[0].seq < pack.first:
            before = rows.pop(0)
            if before.kind == DELTA and not compaction.after_gap:
                return False
        if [row.seq for row in rows if row.kind == DELTA] != list(range(pack.first, pack.last + 1)):
            return False
        if len(rows) != pack.last - pack.first + 1 or rows[-1].hash != compaction.hash:
            return False
        row = Row(pack.last, pack.first, PACK, compaction.hash, pack.body, pack.net, compaction.keyframe)
        puts = [
            *put_row(branch, row),
            *await self._logs.put_all(branch, pack.chunks),
            self._branches.new_mark(branch, SHAPE),
        ]
        deletes = [Span(table.number, branch, pack.first, pack.last) for table in (ROW, KEYFRAME)]
        return await self._apply(Batch(guards, puts, deletes, durable=False, derived=True))

    async def add_keyframe(self, branch: int, seq: int, digest: bytes, keyframe: bytes) -> bool:
        """Attach a keyframe to the row that ends with version ``seq``; False if that has another hash."""
        guards = await self._branches.guards((branch, SHAPE))
        row = await self._rows.holding(branch, seq)
        if row is None or row.seq != seq or row.hash != digest:
            return False
        puts: list[Put] = [((KEYFRAME.number, branch, seq), keyframe)]
        return await self._apply(Batch(guards, puts, durable=False, derived=True))

    async def replace(self, branch: int, replacement: Replacement) -> bool:
        """Put rows in the place of others and drop items, all at once, durably. Versions keep their keys.

        False, and nothing changed, if the rows or the expected chunks aren't these any more, or if a branch
        of ``seen`` was forked, rewound or rewritten since.
        """
        marks = [(branch, SHAPE), *((number, REACH) for number, _ in replacement.seen)]
        guards = await self._branches.guards(*marks)
        old, rows = replacement.old, replacement.rows
        if not await self._is_unchanged(branch, replacement):
            return False
        puts: list[Put] = [self._branches.new_mark(branch, SHAPE)]
        deletes: list[Span] = []
        if old:
            first, last = old[0].first, old[-1].seq
            deletes += [Span(table.number, branch, first, last + 1) for table in (ROW, PAST, KEYFRAME)]
        for row in rows:
            puts += put_row(branch, row)
        chunks: list[Chunk] = []
        for log, start, stop in replacement.dropped:
            spans, stubs = await self._logs.drop(branch, log, start, stop)
            deletes += spans
            chunks += stubs
        if replacement.chunks:
            spans, left = await self._logs.bring_back(branch, replacement.chunks)
            deletes += spans
            chunks += [*left, *replacement.chunks]
        puts += await self._logs.put_all(branch, chunks)
        # A chunk may take the very place of one that it replaces: the last put of a key counts.
        return await self._apply(Batch(guards, list(dict(puts).items()), deletes))

    async def _is_unchanged(self, branch: int, replacement: Replacement) -> bool:
        """Return True if everything that the replacement was made of is still as it was read."""
        old = list(replacement.old)
        if old and await self._rows.between(branch, old[0].seq, old[-1].seq) != old:
            return False
        for chunk in replacement.expected:
            if chunk not in await self._logs.chunks(branch, chunk.log, chunk.position, chunk.end):
                return False
        known = {number for number, _ in replacement.seen}
        for number, seq in replacement.seen:
            if not known.issuperset(await self._branches.children(number)):
                return False
            if await self._was_rewritten(number, seq):
                return False
        return True

    async def _was_rewritten(self, branch: int, after: int) -> bool:
        """Return True if a version after this one rewinds, was pruned or was moved to an archive."""
        seq = SEQ_END - 1
        while seq > after:
            rows = await self._rows.above(branch, after, seq, _PAGE)
            if any(row.kind in (REWIND, PRUNED, COLD) for row in rows):
                return True
            if len(rows) < _PAGE:
                break
            seq = rows[-1].seq - 1
        return False

    async def _apply(self, batch: Batch) -> bool:
        return not isinstance(await self._store.write_one(batch), Refused)
