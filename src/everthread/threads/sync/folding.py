# Generated from src/everthread/threads/aio/folding.py by tools/twin.py: change that, then run: make twin
"""Folding a line's single records into packs, after the commit that made them too many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from everthread.codec import records
from everthread.codec.values import decode, encode
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.packs import FOLD_BYTES, FOLD_RECORDS
from everthread.history.snapshots import KEYFRAME_ROWS, Snapshot, keyframe_due, write_keyframe
from everthread.stores.contract import DELTA, Backend, Fold, Line, Row
from everthread.threads.memo import Costs, Memo
from everthread.threads.sync.reading import Reader
from everthread.threads.sync.strays import stray_rows

#: Metadata values up to this many bytes are indexed as they are, longer ones by their hash.
_TAG_BYTES_MAX = 64

#: A row with its key hash, taken apart; ``None`` if it can't be folded.
Taken = tuple[Row, bytes | None, packs.Parts | None]


class Folder:
    """Knows when to fold and does it. What it reads never changes, so it needs no lock of its own."""

    def __init__(self, backend: Backend, reader: Reader, records_max: int = FOLD_RECORDS) -> None:
        self._backend = backend
        self._reader = reader
        self.records_max = records_max

    def fold(self, line: Line, memo: Memo) -> Costs:
        """Fold the line's tail if it is long enough; what reading the head costs afterwards."""
        costs = memo.costs
        if costs.tail_rows <= self.records_max and costs.tail_bytes < FOLD_BYTES:
            if costs.rows - costs.tail_rows > KEYFRAME_ROWS:
                return self._keyframe(line, memo)
            return costs
        tail = self._backend.tail(line.id)
        if len(tail) < 2:
            return costs
        *singles, newest = tail
        replay_bytes, packs_read, keyframe_bytes = costs.replay_bytes, costs.packs, costs.keyframe_bytes
        # What no fold takes isn't counted: else everybody from now on would come to look at it again.
        tail_rows = 1 if newest[0].kind == DELTA else 0
        tail_bytes, others = len(newest[0].body), costs.rows - costs.tail_rows
        beside = False
        for run in self._runs(singles):
            if run[0][2] is None:
                beside = True
                continue
            fold, beside = self._make(line, run, beside), False
            current = run[-1][0].seq > memo.segment
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
                return costs
        rows = others + packs_read + tail_rows
        return Costs(tail_rows, tail_bytes, rows, packs_read, replay_bytes, keyframe_bytes)

    def fold_tail(self, line: Line, *, newest: bool) -> None:
        """Fold all single records that can be, however few; the newest one only if told to."""
        tail = self._backend.tail(line.id)
        self._fold_all(line, tail if newest else tail[:-1])

    def fold_strays(self, line: Line) -> None:
        """Fold the single records that stand below a pack, so that their keys are in the index of keys."""
        # Made above this module.
        from everthread.threads.sync.core import head_key

        strays = list(stray_rows(self._backend, line))
        keyed: list[tuple[Row, bytes | None]] = []
        for row in reversed(strays):
            parts = _taken_apart(row)
            keyed.append((row, head_key(records.read_head(parts[0])) if parts is not None else None))
        self._fold_all(line, keyed, strays=True)

    def _fold_all(self, line: Line, rows: list[tuple[Row, bytes | None]], *, strays: bool = False) -> None:
        beside = strays
        for run in self._runs(rows):
            if run[0][2] is None:
                beside = True
                continue
            if not self._backend.fold(line, self._make(line, run, beside)):
                return
            beside = strays

    def _runs(self, rows: list[tuple[Row, bytes | None]]) -> Iterator[list[Taken]]:
        """Cut the tail into what becomes one pack each; what can't be folded comes alone.

        A row that has a keyframe ends its run, so that the pack keeps the keyframe; so does one after which
        a version is missing.
        """
        run: list[Taken] = []
        size = 0
        for row, key in rows:
            parts = _taken_apart(row)
            full = len(run) >= self.records_max or size >= FOLD_BYTES
            ends = run and (run[-1][0].keyframe is not None or run[-1][0].seq + 1 != row.seq)
            if run and (parts is None or full or ends):
                yield run
                run, size = [], 0
            if parts is None:
                yield [(row, key, None)]
                continue
            run.append((row, key, parts))
            size += len(row.body)
        if run:
            yield run

    def _make(self, line: Line, run: list[Taken], beside: bool) -> Fold:
        rows = [row for row, _, _ in run]
        parts = [parts for _, _, parts in run if parts is not None]
        pack = packs.fold_parts(rows[0].seq, parts, [row.hash for row in rows])
        keys = tuple((key, row.seq) for row, key, _ in run if key is not None)
        metadata: dict[object, object] = {}
        for head, _, _ in parts:
            metadata.update(_metadata(head))
        return Fold(pack, rows[-1].hash, rows[-1].keyframe, keys, _tags(metadata), beside)

    def _keyframe(self, line: Line, memo: Memo) -> Costs:
        """Many short stretches between rewinds: give the newest row a keyframe of its own."""
        keyframe = write_keyframe(Snapshot(memo.build_document(), memo.logs, memo.segment, memo.merged))
        if keyframe is None:
            return memo.costs
        self._backend.keyframe(line.id, memo.seq, memo.hash, keyframe)
        old = memo.costs
        return Costs(old.tail_rows, old.tail_bytes, old.tail_rows, 0, 0, len(keyframe))


def _taken_apart(row: Row) -> packs.Parts | None:
    """Rewinds stay rows of their own, and so does what is damaged: evidence isn't thrown away."""
    if row.kind != DELTA:
        return None
    try:
        return records.read_record(row.body)
    except StateCorruptedError:
        return None


def tags_of(row: Row) -> Mapping[str, bytes]:
    """The metadata of a single record as the index keeps it."""
    return _tags(_metadata(records.read_record(row.body)[0]))


def tags_of_head(head: records.Head) -> Mapping[str, bytes]:
    """The metadata of a version as the index keeps it."""
    return _tags(decode(head.metadata)) if head.metadata is not None else {}


def _metadata(head: bytes) -> Mapping[object, object]:
    encoded = records.read_head(head).metadata
    return decode(encoded) if encoded is not None else {}


def _tags(metadata: Mapping[object, object]) -> Mapping[str, bytes]:
    return {name: tag_value(value) for name, value in metadata.items() if isinstance(name, str)}


def _sorted(node: object) -> object:
    if type(node) is dict:
        return {key: _sorted(value) for key, value in sorted(node.items(), key=lambda item: encode(item[0]))}
    return [_sorted(value) for value in node] if type(node) is list else node


def tag_value(lowered: object) -> bytes:
    """What the index compares instead of a value; the order of keys doesn't count."""
    encoded = encode(_sorted(lowered))
    if len(encoded) <= _TAG_BYTES_MAX:
        return encoded
    from hashlib import sha256

    return b"\xc1" + sha256(encoded).digest()
