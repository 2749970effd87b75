"""Versions after a hole: the same content, as new versions that say what they stand for."""

from __future__ import annotations

from typing import Any

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.types import Code
from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError
from everthread.history.chain import link, record_digest, version_id
from everthread.history.diff import copy_tree, diff_documents
from everthread.history.logs import EMPTY_LOG, common_prefix
from everthread.history.snapshots import Snapshot
from everthread.model.values import Tagged
from everthread.salvaging.copying import Writer
from everthread.salvaging.strands import Family, Piece, Strand

SALVAGED_FROM = "salvaged_from"
_STEPS = "\0steps"


class Remaker:
    """Goes on with a line of the new store from one state to the next that can be rebuilt."""

    def __init__(
        self, family: Family, strand: Strand, writer: Writer, base: Snapshot, counts: dict[str, int]
    ) -> None:
        self._family = family
        self._strand = strand
        self._writer = writer
        #: What the new line holds, with the positions of the damaged store.
        self._state = base
        #: How many positions the new line has used.
        self._counts = counts
        #: Whether ``_state`` is that of the version just before the one at hand.
        self._current = True
        self.made: dict[int, int] = {}
        self.lost: list[int] = []
        self.items_lost = 0

    def run(self, first: int, last: int) -> None:
        for seq in range(first, last + 1):
            piece = self._strand.piece(seq)
            if not (self._current and piece is not None and self._advance(piece)):
                state = self._family.state(self._strand.line.id, seq)
                self._current = state is not None
                if state is None:
                    self.lost.append(seq)
                    continue
                self._jump(seq, piece, state)
            self.made[seq] = self._writer.seq
        self._writer.flush()

    def _advance(self, piece: Piece) -> bool:
        """Do what a version did to the one before it. False if it can't be done like this."""
        change, told = records.read_change(piece.change), piece.told()
        if told.kind == records.REWIND:
            return False
        if not self._continues(change):
            return False
        try:
            self._state.advance(change)
        except (EverthreadError, KeyError, IndexError, TypeError, ValueError):
            return False
        splices: list[list[Any]] = []
        blocks: list[bytes] = []
        for log, at, remove, insert, position, prints in change.logs:
            raws, found = self._raws(log, [(position, position + insert)] if insert else [], prints)
            self._add(splices, blocks, log, at, remove, raws, found)
        self._write(piece.seq, piece, Change(change.ops, splices), blocks)
        return True

    def _continues(self, change: Change) -> bool:
        """Whether the positions of its items are the next ones: else the whole has to be compared."""
        counts: dict[str, int] = {}
        for log, _, _, insert, position, _ in change.logs:
            expected = counts.get(log, self._state.logs.get(log, EMPTY_LOG).count)
            if insert and position != expected:
                return False
            counts[log] = expected + insert
        return True

    def _jump(self, seq: int, piece: Piece | None, state: Snapshot) -> None:
        """Make the new line what the state says, whatever it was before."""
        ops = copy_tree(diff_documents(self._state.document, state.document))
        splices: list[list[Any]] = []
        blocks: list[bytes] = []
        for log in sorted({*self._state.logs, *state.logs}):
            was, now = self._state.logs.get(log, EMPTY_LOG), state.logs.get(log, EMPTY_LOG)
            shared = common_prefix(was, now)
            raws, prints = self._raws(log, list(now.ranges(shared, now.length)), None)
            if raws or was.length > shared:
                self._add(splices, blocks, log, shared, was.length - shared, raws, prints)
        self._state = state
        self._write(seq, piece, Change(ops, splices), blocks)

    def _raws(
        self, log: str, ranges: list[tuple[int, int]], known: bytes | None
    ) -> tuple[list[bytes], list[bytes]]:
        """Encoded items and their fingerprints, with a marker in the place of each that is lost."""
        raws: list[bytes] = []
        prints: list[bytes] = []
        for start, stop in ranges:
            for offset, raw in enumerate(self._strand.items(log, start, stop)):
                if raw is None:
                    self.items_lost += 1
                    reason = f"item {start + offset} of log {log!r} of {self._strand.line.name!r} was lost"
                    raws.append(encode_stored(Tagged(Code.CORRUPT, reason.encode())))
                    prints.append(records.NO_FINGERPRINT)
                    continue
                raws.append(raw)
                prints.append(known[4 * offset : 4 * offset + 4] if known is not None else _print_of(raw))
        return raws, prints

    def _add(
        self,
        splices: list[list[Any]],
        blocks: list[bytes],
        log: str,
        at: int,
        remove: int,
        raws: list[bytes],
        prints: list[bytes],
    ) -> None:
        position = self._counts.get(log, 0)
        splices.append([log, at, remove, len(raws), position, b"".join(prints)])
        self._counts[log] = position + len(raws)
        if raws:
            blocks.append(records.array(raws))

    def _write(self, seq: int, piece: Piece | None, change: Change, blocks: list[bytes]) -> None:
        told = piece.told() if piece is not None else Head(records.COMMIT, 0)
        found = piece.hash if piece is not None else next((f.hash for f in self._strand.ending(seq)), b"")
        metadata = decode(told.metadata) if told.metadata is not None else {}
        metadata[SALVAGED_FROM] = version_id(seq, found) if len(found) >= 12 else f"{seq}"
        kind = records.FENCE if told.kind == records.FENCE else records.COMMIT
        head = records.write_head(
            Head(
                kind,
                told.at_us,
                told.label,
                encode_stored(metadata),
                told.key,
                None,
                self._step(told, change),
            )
        )
        encoded = encode_stored([change.ops, change.logs])
        body = records.write_record(head, encoded, blocks)
        self._writer.add(link(self._writer.hash, record_digest(body)), head, encoded, blocks)

    def _step(self, told: Head, change: Change) -> tuple[str, int, int] | None:
        """A step, with the position of its result in the new line."""
        if told.step is None or told.step[2] < 0:
            return told.step
        key, attempt, position = told.step
        at = self._state.logs.get(_STEPS, EMPTY_LOG).index_of(position)
        for log, start, _, insert, place, _ in change.logs:
            if log == _STEPS and at is not None and start <= at < start + insert:
                return key, attempt, place + at - start
        return None


def _print_of(raw: bytes) -> bytes:
    item = decode(raw)
    item_id = item.get("id") if type(item) is dict else None
    return records.NO_FINGERPRINT if item_id is None else records.fingerprint(item_id)
