"""Versions after a hole: the same content, as new versions that say what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError
from everthread.history.chain import link, record_digest, version_id
from everthread.history.diff import copy_tree, diff_documents
from everthread.history.logs import EMPTY_LOG, LogState, common_prefix
from everthread.history.snapshots import Snapshot
from everthread.salvage.copying import Writer
from everthread.salvage.pieces import Piece, lost_item
from everthread.salvage.strands import Family, Strand

#: In the metadata of a version that was made anew: the one it stands for, and the lost ones that its state
#: should build on and doesn't.
SALVAGED_FROM = "salvaged_from"
SALVAGED_WITHOUT = "salvaged_without"
_STEPS = "\0steps"


Spans = tuple[tuple[int, int], ...]
Counts = dict[str, int]
#: A version that was made anew, the state at it, and what that lacks.
Made = tuple[int, Snapshot, Spans]


class Remaker:
    """Goes on with a line of the new store from one state to the next that can be rebuilt."""

    def __init__(
        self,
        family: Family,
        strand: Strand,
        writer: Writer,
        base: Snapshot,
        counts: Counts,
        without: Spans,
        others: Callable[[bytes, int], Made | None],
    ) -> None:
        """``others`` finds versions of other lines that were made anew."""
        self._others = others
        self._family = family
        self._strand = strand
        self._writer = writer
        #: What the new line holds, with the positions of the damaged store.
        self._state = base
        #: How many positions the new line has used.
        self._counts = counts
        #: (first, last) of versions that ``_state`` should have seen and hasn't, because they are lost.
        self._without = without
        #: Whether what was lost is known to be more than a change that can be passed over.
        self._blocked = False
        self._traces: dict[int, tuple[int, dict[str, LogState], Spans]] = {}
        self.lost: list[int] = []
        self.incomplete = self.items_lost = 0

    def run(self, first: int, last: int) -> None:
        for seq in range(first, last + 1):
            piece = self._strand.piece(seq)
            if not self._make(seq, piece):
                self.lost.append(seq)
                self._without = (*self._without, (seq, seq))
                self._blocked |= piece is not None
                continue
            self.incomplete += bool(self._without)
            self._traces[seq] = (self._writer.seq, dict(self._state.logs), self._without)
        self._writer.flush()

    @property
    def made(self) -> int:
        """How many versions were made."""
        return len(self._traces)

    def at(self, seq: int) -> Made | None:
        """The version that stands for one, the state at it, and what that lacks; ``None`` if it is lost."""
        if seq not in self._traces:
            return None
        made, logs, without = self._traces[seq]
        return made, Snapshot(self._writer.document(made), dict(logs)), without

    def _make(self, seq: int, piece: Piece | None) -> bool:
        """Make one version anew, in the best way there is."""
        if not self._without and piece is not None and self._advance(piece):
            return True
        state = self._known(seq, piece)
        if state is not None:
            self._without = ()
        elif piece is not None and (back := self._back(seq, piece)) is not None:
            state, self._without = back
        if state is not None:
            self._blocked = False
            self._jump(seq, piece, state)
            return True
        return piece is not None and not self._blocked and self._advance(piece, bridging=True)

    def _known(self, seq: int, piece: Piece | None) -> Snapshot | None:
        """The state at a version, where something tells it that doesn't build on what is lost."""
        if self._without:
            ending = list(self._strand.ending(seq))
            rewound = piece is not None and piece.told().kind == records.REWIND
            if not rewound and not any(found.keyframe or found.net for found in ending):
                return None
        return self._family.state(self._strand.line.id, seq)

    def _back(self, seq: int, piece: Piece) -> tuple[Snapshot, Spans] | None:
        """The state that a rewind goes back to, where that version was made anew."""
        source = piece.told().source
        if piece.told().kind != records.REWIND or source is None:
            return None
        own = source[0] == self._strand.line.uid
        found = self.at(source[1]) if own else self._others(source[0], source[1])
        if found is None:
            return None
        found[1].jump(seq, records.read_change(piece.change).counts)
        return found[1], found[2]

    def _advance(self, piece: Piece, *, bridging: bool = False) -> bool:
        """Do what a version did to the one before it. False if it can't be done like this.

        With ``bridging`` what it did is done to a state that lacks what is lost. The positions of its items
        tell how many were appended meanwhile; these are put in, or a marker for each.
        """
        change, told = records.read_change(piece.change), piece.told()
        gaps = self._gaps(change, bridging)
        if told.kind == records.REWIND or gaps is None or (gaps and not bridging):
            return False
        splices: list[list[Any]] = []
        blocks: list[bytes] = []
        before = dict(self._state.logs)
        try:
            for log, (start, stop) in gaps.items():
                length = before.get(log, EMPTY_LOG).length
                self._state.logs[log] = before.get(log, EMPTY_LOG).splice(length, 0, stop - start)
            self._state.advance(change)
        except (EverthreadError, KeyError, IndexError, TypeError, ValueError):
            # Half done: go back to what the new line holds.
            self._state.document, self._state.logs = self._writer.document(), before
            return False
        for log, (start, stop) in gaps.items():
            raws, found = self._raws(log, [(start, stop)], None)
            self._add(splices, blocks, log, before.get(log, EMPTY_LOG).length, 0, raws, found)
        for log, at, remove, insert, position, prints in change.logs:
            raws, found = self._raws(log, [(position, position + insert)] if insert else [], prints)
            self._add(splices, blocks, log, at, remove, raws, found)
        self._write(piece.seq, piece, Change(change.ops, splices), blocks)
        return True

    def _gaps(self, change: Change, bridging: bool) -> dict[str, tuple[int, int]] | None:
        """The positions that are missing before those a change goes on with, by log.

        ``None`` if more happened there than items being appended at the end of what is there; ``bridging`` a
        hole, that is known only of a change which does nothing but append in turn.
        """
        gaps: dict[str, tuple[int, int]] = {}
        seen: dict[str, tuple[int, int]] = {}
        for log, at, remove, insert, position, _ in change.logs:
            state = self._state.logs.get(log, EMPTY_LOG)
            count, length = seen.get(log, (state.count, state.length))
            missing = position - count if insert else 0
            if missing:
                if log in seen or missing < 0 or at != length + missing:
                    return None
                gaps[log] = (count, position)
            if bridging and (remove or at != length + missing):
                return None
            seen[log] = (count + missing + insert, length + missing + insert - remove)
        return gaps

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
                    raws.append(lost_item(self._strand.line, log, start + offset))
                    prints.append(records.NO_FINGERPRINT)
                    continue
                raws.append(raw)
                prints.append(
                    known[4 * offset : 4 * offset + 4] if known is not None else records.print_of(raw)
                )
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
        if self._without:
            metadata[SALVAGED_WITHOUT] = [list(span) for span in joined(self._without)]
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


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same spans, those that follow each other joined."""
    found: list[tuple[int, int]] = []
    for first, last in spans:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
