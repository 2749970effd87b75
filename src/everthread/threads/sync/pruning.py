# Generated from src/everthread/threads/aio/pruning.py by tools/twin.py: change that, then run: make twin
"""Taking versions out of a line: digests stay in their place, and what later versions go on from.

Runs of versions that go become one row each, with the state at their end if a version that stays needs it:
as a keyframe, or as the change from the version before them where that is smaller. Worked from the newest
rows to the oldest, so that whatever has to be read for it is still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change
from everthread.codec.values import decode, encode_stored
from everthread.errors import StateCorruptedError
from everthread.history import ops, packs
from everthread.history.chain import link, record_digest
from everthread.history.diff import diff_documents
from everthread.history.retention import read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, write_keyframe
from everthread.history.spans import Spans
from everthread.stores.contract import DELTA, PACK, PRUNED, REWIND, Line, Prune, Row
from everthread.threads.sync.examining import Gap, rows_of
from everthread.threads.sync.reader import Reader

#: Versions that are worked on, and replaced, at a time.
GROUP_MAX = 4096
#: Rows after which there is a keyframe, so that reading a version in their midst stays quick.
_KEYFRAME_EVERY = 64


class Moved(Exception):  # noqa: N818 - a signal inside this layer
    """Somebody wrote, forked, rewound or folded meanwhile: look again."""


class Record(msgspec.Struct, frozen=True):
    """One version as a row holds it, with its digest and its hash."""

    head: bytes
    change: bytes
    digest: bytes
    hash: bytes


class _Run:
    """Versions one after another that go, or have gone."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.digests: list[bytes] = []
        self.heads: dict[int, bytes] = {}
        self.splices: list[Sequence[object]] = []
        self.merged: dict[bytes, list[int]] = {}
        #: Whether there is a change that leads through it: no rewind, nothing that only a keyframe tells.
        self.straight = True
        self.hash = b""

    @property
    def last(self) -> int:
        return self.first + len(self.digests) - 1

    def add(self, record: Record) -> None:
        head = records.read_head(record.head)
        if head.key is not None or head.step is not None or head.source is not None:
            self.heads[len(self.digests)] = record.head
        self.digests.append(record.digest)
        self.hash = record.hash
        self.straight = self.straight and head.kind != records.REWIND
        self._lead(records.read_change(record.change))

    def add_gone(self, row: Row) -> None:
        """Take in versions that were pruned before."""
        tomb = read_tombstone(row.body)
        self.heads.update({len(self.digests) + index: head for index, head in tomb.heads.items()})
        self.digests.extend(tomb.digests)
        self.hash = row.hash
        self.straight = self.straight and row.net is not None
        if row.net is not None:
            self._lead(packs.read_net(row.net))

    def _lead(self, change: Change) -> None:
        self.splices.extend(change.logs)
        self.merged.update(change.merged)


class LinePruning:
    """Takes versions out of one line; ``kept`` are those that stay."""

    def __init__(self, reader: Reader, line: Line, kept: Spans, seen: tuple[tuple[int, int], ...]) -> None:
        self._reader = reader
        self._line = line
        self._kept = kept
        self._seen = seen
        self._top = dict(seen)[line.id]

    def run(self) -> int:
        """Prune; how many versions are gone that were there before. Raises :class:`Moved`."""
        groups: list[tuple[int, int]] = []
        gone = 0
        follows = single = False
        for row in rows_of(self._reader, self._line):
            if isinstance(row, Gap):
                raise row.damage
            if row.seq > self._top:
                break
            takes = self._takes(row)
            gone += takes
            single = single or row.kind == DELTA
            if takes and single:
                # It should have been folded: what is single below a pruned row would be lost from sight.
                raise Moved
            touched = takes > 0 or (row.kind == PRUNED and row.seq - row.first + 1 < GROUP_MAX // 2)
            if touched and follows and row.seq - groups[-1][0] < GROUP_MAX:
                groups[-1] = (groups[-1][0], row.seq)
            elif touched:
                groups.append((row.first, row.seq))
            follows = touched
        for first, last in reversed(groups):
            self._group(first, last)
        return gone

    def count(self) -> int:
        """How many versions would go."""
        total = 0
        for row in rows_of(self._reader, self._line):
            if isinstance(row, Gap):
                raise row.damage
            if row.seq <= self._top:
                total += self._takes(row)
        return total

    def _takes(self, row: Row) -> int:
        """How many versions of a row go that haven't gone yet."""
        if row.kind == PRUNED:
            return 0
        return sum(last - first + 1 for first, last, stays in self._split(row) if not stays)

    def _split(self, row: Row) -> list[tuple[int, int, bool]]:
        return list(self._kept.split(row.first, row.seq))

    # ── a group of rows ──────────────────────────────────────────────────────────────────────

    def _group(self, first: int, last: int) -> None:
        """Replace the rows that hold these versions."""
        old, before, after = self._rows(first, last)
        if all(row.kind == PRUNED for row in old):
            return
        rows: list[Row] = []
        run: _Run | None = None
        told = 0
        for row in old:
            if row.kind == PRUNED:
                run = run or _Run(row.first)
                run.add_gone(row)
                before = row.hash
                continue
            found = self._records(row, before)
            before = row.hash
            for start, stop, stays in self._split(row):
                part = found[start - row.first : stop - row.first + 1]
                if not stays:
                    run = run or _Run(start)
                    for record in part:
                        run.add(record)
                    continue
                if run is not None:
                    rows.append(self._stone(run, row.kind, forced=told >= _KEYFRAME_EVERY))
                    told = 0 if rows[-1].keyframe is not None else told + 1
                    run = None
                rows.append(_packed(row, start, part))
                told = 0 if rows[-1].keyframe is not None else told + 1
        if run is not None:
            rows.append(self._stone(run, after, forced=told >= _KEYFRAME_EVERY))
        prune = Prune(tuple(old), tuple(rows), seen=self._seen)
        if not self._reader.backend.prune(self._line, prune):
            raise Moved

    def _rows(self, first: int, last: int) -> tuple[list[Row], bytes, int | None]:
        """The rows of a group, oldest first; the hash before them, and the kind of the row that goes on from
        them, if one does."""
        backend, line = self._reader.backend, self._line
        following = backend.scan(line.id, last + 1, 1) if last < self._top else []
        after = following[0].kind if following else None
        if after == PRUNED and following[0].net is None:
            # It has the state at its own end, or nobody needs one.
            after = None
        rows = backend.scan(line.id, last, last - first + 2)
        old = [row for row in reversed(rows) if row.first >= first]
        below = rows[len(old)] if len(rows) > len(old) else None
        if not old or (old[0].first, old[-1].seq) != (first, last):
            raise Moved
        return old, line.start_hash if below is None else below.hash, after

    def _records(self, row: Row, before: bytes) -> list[Record]:
        """The versions of a row, each with its digest; the chain vouches for them."""
        if row.kind == PACK:
            pack = self._reader.pack(row)
            parts = list(zip(pack.heads, pack.changes, strict=True))
            bodies = self._whole(parts)
        elif row.kind == REWIND:
            parts, bodies = [records.read_record(row.body)[:2]], [row.body]
        else:
            # Not folded, or damaged.
            raise Moved
        found = []
        for (head, change), body in zip(parts, bodies, strict=True):
            digest = record_digest(body)
            before = link(before, digest)
            found.append(Record(head, change, digest, before))
        if before != row.hash:
            raise StateCorruptedError(
                f"versions {row.first} to {row.seq} aren't what their hashes say; run store.verify()"
            )
        return found

    def _whole(self, parts: list[tuple[bytes, bytes]]) -> list[bytes]:
        """The bodies of folded records, with their items."""
        ranges = [packs.inserted_ranges(change) for _, change in parts]
        edges: dict[str, tuple[int, int]] = {}
        for log, start, stop in (each for found in ranges for each in found):
            low, high = edges.get(log, (start, stop))
            edges[log] = min(low, start), max(high, stop)
        items = {
            log: (low, self._reader.raw_items(self._line, log, low, high))
            for log, (low, high) in edges.items()
        }

        def taken(log: str, start: int, stop: int) -> list[bytes]:
            low, found = items[log]
            return found[start - low : stop - low]

        return [
            packs.whole(head, change, [taken(*each) for each in found])
            for (head, change), found in zip(parts, ranges, strict=True)
        ]

    # ── what takes their place ───────────────────────────────────────────────────────────────

    def _stone(self, run: _Run, after: int | None, *, forced: bool) -> Row:
        """The row for versions that are gone. ``after`` is the kind of the row that goes on from them."""
        body = tombstone(run.digests, run.heads)
        if after is None or after == REWIND:
            # Nothing goes on from here.
            return Row(run.last, run.first, PRUNED, run.hash, body)
        snapshot = (self._reader.load(self._line, run.last, pruned=True)).snapshot
        keyframe = write_keyframe(snapshot)
        net = self._net(run, snapshot) if run.straight else None
        if net is not None and (keyframe is None or (not forced and len(net) < len(keyframe))):
            return Row(run.last, run.first, PRUNED, run.hash, body, net)
        if keyframe is None:
            raise StateCorruptedError("the document is too large for a keyframe; its past can't be pruned")
        return Row(run.last, run.first, PRUNED, run.hash, body, None, keyframe)

    def _net(self, run: _Run, snapshot: Snapshot) -> bytes | None:
        """What leads from the version before a run to its end, without what came and went between.

        ``None`` if only a keyframe tells it exactly.
        """
        line = self._line
        if run.first > line.parent_seq + 1:
            base = (self._reader.load(line, run.first - 1, pruned=True)).snapshot
        elif line.parent:
            base = (self._reader.load(self._reader.parent(line), line.parent_seq)).snapshot
        else:
            base = Snapshot.empty()
        edits: list[Any] = diff_documents(base.document, snapshot.document)
        net = encode_stored([edits, packs.compose_splices(run.splices), run.merged])
        # The order of keys counts, and not every way to it is an edit.
        reached = ops.apply(base.document, decode(net)[0])
        if encode_stored(reached) != encode_stored(snapshot.document):
            return None
        return records.compress(net)


def _packed(row: Row, first: int, part: list[Record]) -> Row:
    """The row for some versions of another row, which stay."""
    last = first + len(part) - 1
    keyframe = row.keyframe if last == row.seq else None
    if row.kind == REWIND:
        return row
    pack = packs.fold_parts(
        first, [(record.head, record.change, []) for record in part], [record.hash for record in part]
    )
    return Row(last, first, PACK, part[-1].hash, pack.body, pack.net, keyframe)
