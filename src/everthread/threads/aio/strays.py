"""Single records below packs. Items and keys of single records are looked for after the last pack only, so
that none should stand before it; a server that lost a fold in a crash, or damage that was mended from
outside, can leave some there all the same. They are as good as any: this finds them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED, DELTA, PACK, PRUNED, SEAL_SEQ, Line, Row
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.aio.damage import readable_below
from everthread.threads.head_cache import Block, inserted

#: Rows read at a time, and lines of which it is remembered where their strays are.
_ROWS = 64
_LINES_MAX = 8

#: By log: the first position of a block, the one after its last, and the version that inserted it.
Places = dict[str, list[tuple[int, int, int]]]


class Strays:
    """Finds items in single records below packs. Only asked for what can't be found anywhere else."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        #: By line, the hash of its newest row when it was looked through, and what was found. Only where to
        #: look is remembered, never what was there.
        self._known: dict[bytes, tuple[bytes, Places]] = {}

    async def blocks(self, line: Line, log: str, start: int, stop: int) -> list[Block]:
        """The blocks of single records below packs that hold positions of ``[start, stop)``."""
        places = (await self._places(line)).get(log, ())
        seqs = sorted({seq for first, end, seq in places if first < stop and end > start}, reverse=True)
        found: list[Block] = []
        while seqs:
            run = 1
            while run < min(len(seqs), _ROWS) and seqs[run] == seqs[0] - run:
                run += 1
            for row in await self._backend.scan(line.id, seqs[0], run):
                if row.kind == DELTA:
                    found += [block for name, block in _inserted(row) if name == log]
                else:
                    # Folded meanwhile.
                    self._known.pop(line.uid, None)
            del seqs[:run]
        return found

    async def _places(self, line: Line) -> Places:
        newest = await self._backend.scan(line.id, SEAL_SEQ - 1, 1)
        digest = newest[0].hash if newest else b""
        known = self._known.get(line.uid)
        if known is not None and known[0] == digest:
            return known[1]
        places: Places = {}
        async for row in stray_rows(self._backend, line):
            for log, (position, count, _) in _inserted(row):
                places.setdefault(log, []).append((position, position + count, row.seq))
        if len(self._known) >= _LINES_MAX:
            self._known.clear()
        self._known[line.uid] = digest, places
        return places


async def stray_rows(backend: AsyncBackend, line: Line) -> AsyncIterator[Row]:
    """The single records of a line that have a pack above them, newest first. Reads the whole line."""
    seq, limit, packed = SEAL_SEQ - 1, _ROWS, False
    while seq > line.parent_seq:
        try:
            rows = await backend.scan(line.id, seq, limit)
        except StateCorruptedError:
            if limit > 1:
                limit = 1
            else:
                seq = await readable_below(backend, line, seq)
            continue
        for row in rows:
            packed = packed or row.kind in (PACK, PRUNED)
            if row.kind == DELTA and packed:
                yield row
        if len(rows) < limit:
            return
        limit = min(2 * limit, _ROWS)
        # The seq of a damaged row may be wrong: go on below the lowest that isn't.
        lowest = min((row.first for row in rows if row.kind != DAMAGED), default=rows[-1].seq)
        seq = min(lowest, seq) - 1


def _inserted(row: Row) -> list[tuple[str, Block]]:
    """The items in a record, by log; none if it can't be read."""
    try:
        _, encoded, blocks = records.read_record(row.body)
        return inserted(records.read_change(encoded).logs, blocks)
    except StateCorruptedError:
        return []
