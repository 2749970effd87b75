"""Writing lines into the new store: as they were, or made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.values import decode, encode_stored
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history import packs
from everthread.history.chain import HASH_KEPT, branch, link, record_digest, version_id
from everthread.history.diff import copy_tree, diff_documents
from everthread.history.logs import EMPTY_LOG, LogState, common_prefix
from everthread.history.metadata import encoded_index_values
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import Snapshot
from everthread.limits import DEFAULT_LIMITS
from everthread.salvager.reader import DamagedLines, Piece, PrunedItems, Strand, lost_item
from everthread.stores.contract import (
    DELTA,
    EVENT_SEQ_MAX,
    NO_TAGS,
    REWIND,
    Backend,
    Fold,
    Line,
    NewEvent,
    NewRow,
    Prune,
    Row,
    SealedRow,
    split_keys,
)
from everthread.threads.runtime import Runtime
from everthread.threads.sync.core import Core, head_key
from everthread.threads.tombstones import pruned_hashes

_BATCH = 64
#: So many personal values are brought at once, or fewer that take about so many bytes.
_SEALED_MAX = 256
_SEALED_BYTES = 1024 * 1024
#: A stream that no namespace has: personal values come only along with something.
_CARRIER = ("\0salvage", "personal values")
_CARRIED = "everthread.salvaged"
_NOTHING = records.frame(encode_stored([None, 0]))
#: What stands in the metadata of a version that a session made when it began.
_RUN = b"run"


class Target:
    """The new store."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.runtime = Runtime()
        self._cores: dict[str, Core] = {}
        #: The lines that are there and their names, and those that are to be deleted in the end.
        self.taken: set[tuple[str, str]] = set()
        self._doomed: dict[tuple[str, str], Line] = {}

    def core(self, space: str) -> Core:
        if space not in self._cores:
            self._cores[space] = Core(self.backend, space, DEFAULT_LIMITS, "memory:", self.runtime)
        return self._cores[space]

    def bring_sealed(self, sealed: Iterable[SealedRow], erased: set[bytes]) -> int:
        """Bring personal values, but those of keys that were erased; how many there are.

        All of them, whatever refers to them, and before that: which of them a version needs is known only to
        who reads all of its items, and one version may need more than there is memory.
        """
        count = size = 0
        batch: dict[bytes, SealedRow] = {}
        for row in sealed:
            if erased.isdisjoint(split_keys(row[1])):
                batch[row[0]] = row
                size += len(row[2])
            if len(batch) == _SEALED_MAX or size >= _SEALED_BYTES:
                count += self._carry(batch)
                batch, size = {}, 0
        count += self._carry(batch)
        self.backend.trim_stream(*_CARRIER, EVENT_SEQ_MAX)
        return count

    def _carry(self, batch: Mapping[bytes, SealedRow]) -> int:
        """Bring those that aren't there: a damaged store may have one twice."""
        there = self.backend.sealed(batch)
        new = [row for value_id, row in batch.items() if row[2] and value_id not in there]
        if new:
            self.backend.emit(*_CARRIER, [NewEvent(0, _CARRIED, None, _NOTHING)], new)
        return len(new)

    def make_way(self, space: str, name: str) -> None:
        """Before a line of this name is made: one that was deleted under the same name is done with."""
        doomed = self._doomed.pop((space, name), None)
        if doomed is not None:
            self.backend.delete(doomed)
            self.taken.discard((space, name))

    def doom(self, line: Line) -> None:
        """The line was deleted in the damaged store; its forks still need it."""
        self._doomed[line.space, line.name] = line

    def finish(self) -> None:
        for line in self._doomed.values():
            self.backend.delete(line)
        self._doomed.clear()

    def free_name(self, space: str, name: str) -> str:
        """A name like this one that nobody has."""
        number = 1
        while True:
            suffix = " (recovered)" if number == 1 else f" (recovered {number})"
            room = 1024 - len(suffix)
            found = name.encode()[:room].decode(errors="ignore") + suffix
            if (space, found) not in self.taken:
                return found
            number += 1


class Writer:
    """One line of the new store, growing. It exists from its first version on, a fork at once."""

    def __init__(self, target: Target, line: Line, tags: Mapping[str, bytes] = NO_TAGS) -> None:
        self._target = target
        self._core = target.core(line.space)
        self._tags = tags
        self._batch: list[NewRow] = []
        self.line = line
        self.hash = line.start_hash
        self.seq = line.parent_seq
        self.born = False
        #: Whether something tells that a session ran here, or might have told.
        self.ran = False
        if line.parent:
            self._create(None)

    def _create(self, row: NewRow | None) -> None:
        line = self.line
        self._target.make_way(line.space, line.name)
        self.line = self._target.backend.create(line, row, 0, self._tags)
        self._target.taken.add((line.space, line.name))
        self.born = True

    def add(self, digest: bytes, head: bytes, change: bytes, blocks: list[bytes]) -> None:
        """Append one version; ``digest`` is its hash."""
        told = records.read_head(head)
        kind = REWIND if told.kind == records.REWIND else DELTA
        self.ran |= tells_of_a_run(told.metadata)
        body = records.write_record(head, change, blocks)
        chunks: tuple[packs.Chunk, ...] = ()
        if len(body) > packs.FOLD_BYTES and blocks:
            chunks = tuple(packs.detach(records.read_change(change).logs, blocks))
            body = records.write_record(head, change, [])
        row = NewRow(self.seq + 1, kind, self.hash, digest, body, head_key(told), chunks)
        self.seq, self.hash = row.seq, digest
        if not self.born:
            self._create(row)
            return
        self._batch.append(row)
        if len(self._batch) >= _BATCH:
            self.flush()

    def add_tomb(self, row: Row, digest: bytes, held: PrunedItems) -> None:
        """Append a row for versions that were pruned. The contract prunes what is there: so something stands
        in for it first, a row for each version. The last of them brings ``held``, what is left of the items.
        """
        self.flush()
        if self.born:
            # What is single below a pruned row would be lost from sight.
            self._core.folder.fold_tail(self.line, newest=True)
        self.ran = True
        backend = self._target.backend
        new = msgspec.structs.replace(row, first=self.seq + 1, hash=digest)
        rows = list(self._stand_ins(new, held))
        runs = [rows[at : at + packs.FOLD_RECORDS] for at in range(0, len(rows), packs.FOLD_RECORDS)]
        for run in runs:
            left = run
            if not self.born:
                self._create(run[0])
                left = run[1:]
            for refused in backend.append_all([(self.line.id, stand_in) for stand_in in left]):
                if refused is not None:
                    raise refused
        for run in runs:
            pack = packs.fold(run[0].seq, [each.body for each in run], [each.hash for each in run])
            keys = tuple((each.key, each.seq) for each in run if each.key is not None)
            if not backend.fold(self.line, Fold(pack, run[-1].hash, None, keys)):
                raise StateCorruptedError(f"{self.line.name!r} can't be folded in the new store")
        old = backend.scan(self.line.id, row.seq, len(runs))
        if not backend.prune(self.line, Prune(tuple(reversed(old)), (new,), tuple(held.dropped))):
            raise StateCorruptedError(f"{self.line.name!r} can't be pruned in the new store")
        self.seq, self.hash = row.seq, digest

    def _stand_ins(self, tomb: Row, held: PrunedItems) -> Iterator[NewRow]:
        """A row for each version that a row for pruned ones is about, with its hash and its key."""
        head = records.write_head(Head(records.COMMIT, 0))
        empty = records.write_record(head, packs.bringing(()), [])
        bringing = records.write_record(head, packs.bringing(held.chunks), [])
        heads = read_tombstone(tomb.body).heads
        before = self.hash
        for index, made in enumerate(pruned_hashes(self.line, tomb, before)):
            told = heads.get(index)
            key = None if told is None else head_key(records.read_head(told))
            seq = tomb.first + index
            if seq == tomb.seq:
                yield NewRow(seq, DELTA, before, made, bringing, key, tuple(held.chunks))
            else:
                yield NewRow(seq, DELTA, before, made, empty, key)
            before = made

    def flush(self) -> None:
        """Bring what was added into the store, and fold it."""
        batch, self._batch = self._batch, []
        if batch:
            for refused in self._target.backend.append_all([(self.line.id, row) for row in batch]):
                if refused is not None:
                    raise refused
            found = self._target.backend.find(self.line.space, self.line.name)
            if found is None:
                raise StateCorruptedError(f"{self.line.name!r} isn't found in the new store")
            core = self._core
            core.head_cache.slot(self.line.uid).head = core.maintain(self.line, core.head(found))

    def used(self) -> dict[str, int]:
        """How many positions each log has used."""
        self.flush()
        if not self.born or self.seq <= self.line.parent_seq:
            return dict(self.line.counts)
        logs = self._core.reader.load(self.line, self.seq).snapshot.logs
        return {log: state.count for log, state in logs.items()}

    def document(self, seq: int | None = None) -> Any:
        """The document at a version, by default the newest."""
        self.flush()
        if not self.born:
            return {}
        return self._core.reader.load(self.line, self.seq if seq is None else seq).snapshot.document


def forked(target: Target, parent: Line, seq: int, uid: bytes, name: str) -> tuple[Line, Mapping[str, bytes]]:
    """A line of the new store that is about to be forked from a version there, and its tags."""
    reader = target.core(parent.space).reader
    owner = reader.owner(parent, seq)
    version, digest = reader.version(owner, seq)
    snapshot = reader.load(owner, seq).snapshot
    row = reader.row(owner, seq)
    metadata = reader.head(row, seq).metadata
    tags = encoded_index_values(metadata)
    line = Line(
        id=0,
        uid=uid,
        space=parent.space,
        name=name,
        root=owner.root,
        parent=owner.id,
        parent_seq=version.seq,
        parent_segment=snapshot.segment,
        parent_hash=digest[:HASH_KEPT],
        start_hash=branch(digest[:HASH_KEPT], uid),
        counts={log: state.count for log, state in snapshot.logs.items()},
    )
    return line, tags


def tells_of_a_run(metadata: bytes | None) -> bool:
    """Whether the metadata of a version may be what a session writes when it begins."""
    return metadata is not None and _RUN in metadata


# Versions after a hole: the same content, as new versions that say what they stand for.


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
        lines_found: DamagedLines,
        strand: Strand,
        writer: Writer,
        base: Snapshot,
        counts: Counts,
        without: Spans,
        others: Callable[[bytes, int], Made | None],
    ) -> None:
        """``others`` finds versions of other lines that were made anew."""
        self._others = others
        self._lines_found = lines_found
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
        return self._lines_found.state(self._strand.line.id, seq)

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
