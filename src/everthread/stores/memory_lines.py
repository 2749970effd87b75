"""One line of the memory store: its rows, chunks, keys and tags."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import COLD, PACK, PRUNED, SEAL, Found, Line, Row
from everthread.stores.usage import Usage


class Track:
    """Everything that belongs to one line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.rows: list[Row] = []
        self.keys: dict[int, bytes] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        self.tags: dict[str, bytes] = {}
        self.tagged_seq = 0

    def index(self, seq: int) -> int:
        """Where the row that holds ``seq`` is, or would be."""
        return bisect.bisect_left(self.rows, seq, key=lambda row: row.seq)

    def newest(self) -> Row | None:
        for row in reversed(self.rows):
            if row.kind != SEAL:
                return row
        return None

    @property
    def hash(self) -> bytes:
        """What the next row has to build on; nothing builds on a seal."""
        return self.rows[-1].hash if self.rows else self.line.start_hash

    def found(self) -> Found:
        rows = [row for row in self.rows[-3:] if row.kind != SEAL]
        return Found(self.line, rows[-1] if rows else None, rows[-2].hash if len(rows) > 1 else None)

    def is_pruned(self, seq: int) -> bool:
        at = self.index(seq)
        return at < len(self.rows) and self.rows[at].kind == PRUNED

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            bisect.insort(self.chunks.setdefault(chunk.log, []), chunk, key=lambda c: c.position)

    def replace(self, old: tuple[Row, ...], rows: tuple[Row, ...]) -> bool:
        """Put rows in the place of others; False if those aren't there."""
        if old:
            first = self.index(old[0].seq)
            if tuple(self.rows[first : first + len(old)]) != old:
                return False
            self.rows[first : first + len(old)] = rows
        return True

    def drop(self, log: str, start: int, stop: int) -> None:
        """Drop the chunks that lie between these positions."""
        chunks = self.chunks.get(log, [])
        dead = [c for c in chunks if c.position >= start and c.end <= stop]
        if dead:
            gone = {chunk.position for chunk in dead}
            self.chunks[log] = [c for c in chunks if c.position not in gone]
            self.add_chunks(pruned_chunks(log, ((c.position, c.count) for c in dead)))

    def bring_back(self, chunks: Iterable[Chunk]) -> None:
        """Put chunks into the place of those that stand for them."""
        coming = list(chunks)
        places = Places(coming)
        for log in {chunk.log for chunk in coming}:
            self.chunks[log] = [c for c in self.chunks.get(log, []) if c.data or not places.within(c)]
        self.add_chunks(coming)

    def usage(self) -> Usage:
        versions = pruned = records = packs = keyframes = tombstones = 0
        for row in self.rows:
            keyframes += len(row.keyframe or b"")
            size = len(row.body) + len(row.net or b"")
            if row.kind == PRUNED:
                pruned += row.seq - row.first + 1
                tombstones += size
            elif row.kind in (PACK, COLD):
                versions += row.seq - row.first + 1
                packs += size
            elif row.kind != SEAL:
                versions += 1
                records += size
        chunks = sum(len(c.data) + len(c.fingerprints) for every in self.chunks.values() for c in every)
        return Usage(
            versions=versions,
            pruned=pruned,
            records=records,
            packs=packs,
            keyframes=keyframes,
            chunks=chunks,
            tombstones=tombstones,
        )
