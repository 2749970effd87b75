# Generated from src/everthread/threads/aio/fold.py by tools/twin.py: change that, then run: make twin
"""Folding a line's single records into packs, after the commit that made them too many."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from everthread.codec import records
from everthread.codec.values import decode
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.metadata import index_values
from everthread.history.packs import FOLD_BYTES, FOLD_RECORDS
from everthread.history.snapshots import KEYFRAME_ROWS, Snapshot, keyframe_due, write_keyframe
from everthread.stores.contract import DELTA, Backend, Fold, Line, Row
from everthread.threads.head_cache import CachedHead, Costs
from everthread.threads.sync.reader import Reader

#: A record of the tail, or ``None`` for a row that can't be folded.
Taken = packs.Single | None


class Folder:
    """Knows when to fold and does it. What it reads never changes, so it needs no lock of its own."""

    def __init__(self, backend: Backend, reader: Reader, records_max: int = FOLD_RECORDS) -> None:
        self._backend = backend
        self._reader = reader
        self.records_max = records_max

    def fold(self, line: Line, head: CachedHead) -> tuple[Costs, list[packs.Single] | None]:
        """Fold the line's tail if it is long enough.

        Returns what reading the head costs afterwards, and the records that are left, if they are known.
        """
        costs = head.costs
        if costs.tail_rows <= self.records_max and costs.tail_bytes < FOLD_BYTES:
            if costs.rows - costs.tail_rows > KEYFRAME_ROWS:
                return self._keyframe(line, head), None
            return costs, head.unfolded
        return self._fold(line, head, costs)

    def _fold(self, line: Line, head: CachedHead, costs: Costs) -> tuple[Costs, list[packs.Single] | None]:
        # As they were written here, if they were: the store refuses the fold unless it has just these. Only
        # who writes a record gives it a keyframe, and forgets it here.
        tail: list[Taken] = [*(head.unfolded or ())]
        if not tail:
            tail = [_taken_apart(row, key) for row, key in self._backend.tail(line.id)]
        if len(tail) < 2:
            return costs, None
        *singles, newest = tail
        replay_bytes, packs_read, keyframe_bytes = costs.replay_bytes, costs.packs, costs.keyframe_bytes
        others = costs.rows - costs.tail_rows
        for run, beside in self._runs(singles):
            fold = _made(run, beside)
            current = run[-1].seq > head.segment
            if current:
                replay_bytes += len(fold.pack.net)
                packs_read += 1
                if fold.keyframe is None and keyframe_due(
                    rows=others + packs_read,
                    packs=packs_read,
                    replay_bytes=replay_bytes,
                    keyframe_bytes=keyframe_bytes,
                ):
                    snapshot = (self._reader.load(line, fold.pack.last)).snapshot
                    fold = msgspec.structs.replace(fold, keyframe=write_keyframe(snapshot))
                if fold.keyframe is not None:
                    replay_bytes, packs_read, others = 0, 1, 0
                    keyframe_bytes = len(fold.keyframe)
            if not self._backend.fold(line, fold):
                # Somebody else is folding as well: going on here would leave single rows below a pack.
                return costs, None
        # What no fold takes isn't counted: else everybody from now on would come to look at it again.
        left = [] if newest is None else [newest]
        rows, tail_bytes = others + packs_read + len(left), sum(single.size for single in left)
        known = left if newest is not None and newest.keyframe is None else None
        return Costs(len(left), tail_bytes, rows, packs_read, replay_bytes, keyframe_bytes), known

    def fold_tail(self, line: Line, *, newest: bool) -> None:
        """Fold all single records that can be, however few; the newest one only if told to."""
        tail = [_taken_apart(row, key) for row, key in self._backend.tail(line.id)]
        self._fold_all(line, tail if newest else tail[:-1])

    def _fold_all(self, line: Line, tail: list[Taken]) -> None:
        for run, beside in self._runs(tail):
            if not self._backend.fold(line, _made(run, beside)):
                return

    def _runs(self, tail: list[Taken]) -> Iterator[tuple[list[packs.Single], bool]]:
        """Cut the tail into what becomes one pack each, and whether it follows upon what can't be folded.

        A record that has a keyframe ends its run, so that the pack keeps the keyframe; so does one after
        which a version is missing.
        """
        run: list[packs.Single] = []
        size, beside = 0, False
        # A rest that is hardly worth a pack of its own goes with those before it.
        rest = len(tail) - self.records_max // 2
        for place, single in enumerate(tail):
            if run and (
                single is None
                or (len(run) >= self.records_max and place < rest)
                or size >= FOLD_BYTES
                or run[-1].keyframe is not None
                or run[-1].seq + 1 != single.seq
            ):
                yield run, beside
                run, size, beside = [], 0, False
            if single is None:
                beside = True
            else:
                run.append(single)
                size += single.size
        if run:
            yield run, beside

    def _keyframe(self, line: Line, head: CachedHead) -> Costs:
        """Many short stretches between rewinds: give the newest row a keyframe of its own."""
        keyframe = write_keyframe(Snapshot(head.build_document(), head.logs, head.segment, head.merged))
        if keyframe is None:
            return head.costs
        self._backend.keyframe(line.id, head.seq, head.hash, keyframe)
        old = head.costs
        return Costs(old.tail_rows, old.tail_bytes, old.tail_rows, 0, 0, len(keyframe))


def _made(run: list[packs.Single], beside: bool) -> Fold:
    """The pack of a run, and what its store is told besides."""
    first, last = run[0], run[-1]
    pack = packs.fold_parts(first.seq, [single.parts for single in run], [single.hash for single in run])
    keys = tuple([(single.key, single.seq) for single in run if single.key is not None])
    metadata: dict[object, object] = {}
    for each in decode(records.array([single.metadata for single in run if single.metadata is not None])):
        metadata.update(each)
    return Fold(pack, last.hash, last.keyframe, keys, index_values(metadata), beside)


def _taken_apart(row: Row, key: bytes | None) -> Taken:
    """Rewinds stay rows of their own, and so does what is damaged: evidence isn't thrown away."""
    if row.kind != DELTA:
        return None
    try:
        parts = records.read_record(row.body)
        metadata = records.read_head(parts[0]).metadata
    except StateCorruptedError:
        return None
    return packs.Single(row.seq, row.hash, key, metadata, parts, len(row.body), row.keyframe)
