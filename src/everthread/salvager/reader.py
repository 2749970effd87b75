"""One line of a damaged store: its versions, states and items, as far as they can be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.types import Code
from everthread.codec.values import encode_stored
from everthread.errors import EverthreadError, StoreUnavailableError
from everthread.history import packs
from everthread.history.chain import link, record_digest, verify_chain
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import COLD, PACK, PRUNED, Line, Row
from everthread.stores.salvage_source import ChunkPlace, FoundRow, SalvageSource
from everthread.values import Tagged

# What is found of a damaged line: versions, rows, items of pruned versions.


class Piece(msgspec.Struct, frozen=True):
    """One version as it was found. ``blocks`` is ``None`` where its items stand in chunks.

    ``hash`` is what the store says its hash is, or the beginning of it.
    """

    seq: int
    head: bytes
    change: bytes
    blocks: list[bytes] | None
    hash: bytes

    def told(self) -> Head:
        return records.read_head(self.head)


class ReadRow(msgspec.Struct, frozen=True):
    """A row, taken apart. ``pieces`` is empty if its body is damaged.

    One that isn't ``rooted`` was left lying about, and counts only where the chain vouches for it.
    """

    first: int
    last: int
    pieces: list[Piece]
    hash: bytes
    net: bytes | None
    keyframe: bytes | None
    rooted: bool
    sound: bool
    #: The row itself, if it stands for versions that were pruned.
    tomb: Row | None = None


class PrunedItems(msgspec.Struct, frozen=True):
    """Items of pruned versions, in chunks, and (log, start, stop) of those among them that aren't items but
    stand where some were dropped."""

    chunks: list[packs.Chunk]
    dropped: list[tuple[str, int, int]]


def lost_item(line: Line, log: str, position: int) -> bytes:
    """What stands in the place of an item that is lost."""
    reason = f"item {position} of log {log!r} of {line.name!r} was lost"
    return encode_stored(Tagged(Code.CORRUPT, reason.encode()))


#: So many rows and chunks are kept decoded.
_KEPT = 16
#: Rows that may hold a version: one where it belongs, and a few that got between.
_NEAR = 4
#: No damaged row is believed to be so far behind the last sound one.
_FAR = 4096


class Strand:
    """Reads one line. Nothing that it returns has been held against the chain, but by :meth:`follow`."""

    def __init__(self, remains: SalvageSource, line: Line, lines_found: DamagedLines) -> None:
        self.line = line
        self._remains = remains
        self._lines_found = lines_found
        rows = remains.rows(line.id)
        self._ends = [seq for seq, _ in rows]
        self._places = [place for _, place in rows]
        self._found: dict[int, ReadRow | None] = {}
        self._chunks: dict[str, list[ChunkPlace]] = {}
        for chunk in sorted(remains.chunks(line.id), key=lambda chunk: chunk.position):
            self._chunks.setdefault(chunk.log, []).append(chunk)
        self._blocks: dict[object, list[bytes]] = {}
        self._singles: dict[str, dict[int, bytes]] | None = None
        self.reasons: dict[str, None] = {}

    @property
    def rows(self) -> int:
        return len(self._ends)

    @property
    def newest(self) -> int:
        """The highest version that any row claims to hold, leaving out what can't be believed."""
        highest = self.line.parent_seq
        for index in range(len(self._ends) - 1, -1, -1):
            found = self._at(index)
            if found is not None and found.sound and found.rooted:
                highest = found.last
                break
        # What comes after it and is damaged may be true as well, unless it is far off.
        return max((end for end in self._ends if highest < end <= highest + _FAR), default=highest)

    @property
    def oldest(self) -> int:
        """The lowest version that can be read; 0 if none can."""
        found = (self._at(index) for index in range(len(self._ends)))
        return next((row.first for row in found if row is not None and row.pieces), 0)

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def _at(self, index: int) -> ReadRow | None:
        if index not in self._found:
            if len(self._found) >= _KEPT:
                self._found.pop(next(iter(self._found)))
            relic = self._remains.relic(self._places[index])
            self._found[index] = None if relic is None else self._apart(relic)
        return self._found[index]

    def _apart(self, relic: FoundRow) -> ReadRow | None:
        row, rooted, sound = relic.row, relic.rooted, relic.sound
        if row.kind == COLD:
            # What is made of the rest would not know what was done: effects might be repeated.
            raise StoreUnavailableError(
                f"the past of {self.line.name!r} is in a cold archive, and sound there: open the store with "
                "cold=… and read its threads, or export them, before salvaging what is left"
            )
        try:
            if row.kind == PRUNED:
                first = row.seq - len(read_tombstone(row.body).digests) + 1
                return ReadRow(first, row.seq, [], row.hash, row.net, row.keyframe, rooted, sound, row)
            if row.kind == PACK:
                body = packs.read_pack(row.body)
                # How many there are is what the pack itself says: its row may be wrong.
                first = row.seq - len(body.heads) + 1
                hashes = [*body.hashes[:-1], row.hash]
                pieces = [
                    Piece(first + i, head, change, None, hashes[i])
                    for i, (head, change) in enumerate(zip(body.heads, body.changes, strict=True))
                ]
            else:
                head, change, blocks = records.read_record(row.body)
                first = row.seq
                detached = not blocks and packs.inserted_ranges(change)
                pieces = [Piece(row.seq, head, change, None if detached else blocks, row.hash)]
            for piece in pieces:
                piece.told()
                records.read_change(piece.change)
        except EverthreadError as error:
            self.reasons[f"version {row.seq}: {error}"] = None
            plausible = row.kind == PACK and self.line.parent_seq < row.first <= row.seq
            first = row.first if plausible else row.seq
            return ReadRow(first, row.seq, [], row.hash, row.net, row.keyframe, rooted, sound)
        return ReadRow(first, row.seq, pieces, row.hash, row.net, row.keyframe, rooted, sound)

    def _near(self, seq: int) -> Iterator[ReadRow]:
        """Rows that may hold a version."""
        start = bisect_left(self._ends, seq)
        for index in range(start, min(start + _NEAR, len(self._ends))):
            found = self._at(index)
            if found is not None and found.first <= seq <= found.last:
                yield found

    def pieces(self, seq: int) -> Iterator[Piece]:
        """What claims to be this version, also what was left lying about."""
        for found in self._near(seq):
            if found.pieces:
                yield found.pieces[seq - found.first]

    def piece(self, seq: int) -> Piece | None:
        """This version, as the store itself would have found it."""
        for found in self._near(seq):
            if found.pieces and found.rooted:
                return found.pieces[seq - found.first]
        return None

    def telling(self, seq: int) -> bool:
        """Whether anything is known of what a version did, or of the state it made."""
        return self.piece(seq) is not None or any(found.keyframe or found.net for found in self.ending(seq))

    def ending(self, seq: int) -> Iterator[ReadRow]:
        """Rows that end with this version."""
        return (found for found in self._near(seq) if found.last == seq and found.rooted)

    def follow(self, before: bytes, seq: int) -> tuple[Piece, list[bytes], bytes] | None:
        """The version that builds on the hash ``before``: as found, its blocks, its hash. ``None`` if no
        version can be shown to."""
        for piece in self.pieces(seq):
            blocks = self.blocks(piece)
            if blocks is None:
                self.reasons[f"version {seq}: some of its items can't be read"] = None
                continue
            reached = link(before, record_digest(records.write_record(piece.head, piece.change, blocks)))
            if _agrees(piece.hash, reached) or self._confirmed(reached, seq + 1):
                return piece, blocks, reached
            self.reasons[f"version {seq}: the chain of hashes is broken here"] = None
        return None

    def tomb(self, before: bytes, seq: int) -> tuple[Row, bytes] | None:
        """The row for pruned versions, from ``seq`` on, that builds on the hash ``before``; and its hash."""
        for found in self._near(seq):
            if found.tomb is not None and found.first == seq:
                reached = verify_chain(before, read_tombstone(found.tomb.body).digests)
                if _agrees(found.hash, reached):
                    return found.tomb, reached
                self.reasons[f"version {seq}: the chain of hashes is broken here"] = None
        return None

    def held(self, before: Mapping[str, int], after: Mapping[str, int]) -> PrunedItems:
        """What is left of the items that pruned versions inserted: those between these positions.

        Folding and pruning cut chunks by other measures: they reach across what is pruned, to both sides.
        """
        held = PrunedItems([], [])
        for log, stop in after.items():
            at = before.get(log, 0)
            for chunk in self._chunks.get(log, []):
                start, end = max(at, chunk.position), min(stop, chunk.position + chunk.count)
                if start >= end:
                    continue
                at = end
                if chunk.stub:
                    held.chunks.append(packs.placeholder(log, start, end - start))
                    held.dropped.append((log, start, end))
                else:
                    held.chunks.append(self._again(log, start, end))
        return held

    def _again(self, log: str, start: int, stop: int) -> packs.Chunk:
        raws = [
            lost_item(self.line, log, start + i) if raw is None else raw
            for i, raw in enumerate(self.items(log, start, stop))
        ]
        data = records.compress(records.array(raws))
        return packs.Chunk(log, start, stop - start, b"".join(map(records.print_of, raws)), data)

    def _confirmed(self, reached: bytes, seq: int) -> bool:
        """Whether the version after one builds on the hash that was computed for it."""
        for piece in self.pieces(seq):
            blocks = self.blocks(piece)
            if blocks is not None:
                body = records.write_record(piece.head, piece.change, blocks)
                if _agrees(piece.hash, link(reached, record_digest(body))):
                    return True
        return False

    # ── items ────────────────────────────────────────────────────────────────────────────────

    def blocks(self, piece: Piece) -> list[bytes] | None:
        """The items that a version inserts, a block for each splice; ``None`` if any can't be read."""
        if piece.blocks is not None:
            return piece.blocks
        blocks = []
        for log, start, stop in packs.inserted_ranges(piece.change):
            items = self.items(log, start, stop)
            if None in items:
                return None
            blocks.append(records.array([item for item in items if item is not None]))
        return blocks

    def items(self, log: str, start: int, stop: int) -> list[bytes | None]:
        """Encoded items by position; ``None`` for each that can't be read."""
        own = self.line.counts.get(log, 0) if self.line.parent else 0
        found: list[bytes | None] = []
        if start < own:
            parent = self._lines_found.strand(self.line.parent)
            wanted = min(stop, own)
            found = [None] * (wanted - start) if parent is None else parent.items(log, start, wanted)
            start = wanted
        chunks = self._chunks.get(log, [])
        index = max(bisect_left(chunks, start + 1, key=lambda chunk: chunk.position) - 1, 0)
        while start < stop:
            while index < len(chunks) and chunks[index].position + chunks[index].count <= start:
                index += 1
            if index < len(chunks) and chunks[index].position <= start:
                chunk = chunks[index]
                end = min(stop, chunk.position + chunk.count)
                raws = self._block(chunk)
                if raws:
                    found.extend(raws[start - chunk.position : end - chunk.position])
                    start = end
                    continue
            found.append(self._single(log, start))
            start += 1
        return found

    def _block(self, chunk: ChunkPlace) -> list[bytes]:
        """The items of a chunk; none if it is damaged."""
        if chunk.place not in self._blocks:
            if len(self._blocks) >= _KEPT:
                self._blocks.pop(next(iter(self._blocks)))
            raws: list[bytes] = []
            try:
                data = self._remains.chunk(chunk.place)
                raws = records.split(records.expand(data, f"chunk {chunk.position} of log {chunk.log!r}"))
            except EverthreadError as error:
                self.reasons[str(error)] = None
            self._blocks[chunk.place] = raws if len(raws) == chunk.count else []
        return self._blocks[chunk.place]

    def _single(self, log: str, position: int) -> bytes | None:
        """An item that stands in the record of its version."""
        if self._singles is None:
            self._singles = {}
            for index in range(len(self._ends)):
                found = self._at(index)
                for piece in found.pieces if found is not None else ():
                    if piece.blocks:
                        self._note_single(piece)
        return self._singles.get(log, {}).get(position)

    def _note_single(self, piece: Piece) -> None:
        assert self._singles is not None
        ranges = packs.inserted_ranges(piece.change)
        for (log, start, _), block in zip(ranges, piece.blocks or (), strict=False):
            self._singles.setdefault(log, {}).update(enumerate(records.split(block), start))


class DamagedLines:
    """All lines of a damaged store, by id and by uid."""

    def __init__(self, remains: SalvageSource) -> None:
        self._remains = remains
        self._strands: dict[int, Strand] = {}
        self._uids: dict[bytes, int] = {}

    def add(self, line: Line) -> Strand:
        strand = self._strands[line.id] = Strand(self._remains, line, self)
        self._uids[line.uid] = line.id
        return strand

    def strand(self, line: int) -> Strand | None:
        return self._strands.get(line)

    def by_uid(self, uid: bytes) -> Strand | None:
        return self._strands.get(self._uids.get(uid, -1))

    def state(self, line: int, seq: int) -> Snapshot | None:
        """The state at a version, positions as in the damaged store; ``None`` if it can't be rebuilt."""
        steps: list[Callable[[Snapshot], None]] = []
        try:
            base = self._base(line, seq, steps)
            if base is None:
                return None
            for step in reversed(steps):
                step(base)
        except (EverthreadError, KeyError, IndexError, TypeError, ValueError):
            # Changes that don't fit each other.
            return None
        return base

    def _base(self, number: int, seq: int, steps: list[Callable[[Snapshot], None]]) -> Snapshot | None:
        """What to begin with; fills in what to do from there on, the last first."""
        # Each turn goes to a lower version or to an older line, but for rewinds: those could go in circles.
        for _ in range(10_000_000):
            strand = self.strand(number)
            if seq <= 0:
                return Snapshot.empty()
            if strand is None:
                return None
            if seq <= strand.line.parent_seq:
                steps.append(Snapshot.branch)
                number = strand.line.parent
                continue
            for found in strand.ending(seq):
                if found.keyframe is not None and (begun := _keyframe(found.keyframe)) is not None:
                    return begun
            piece = strand.piece(seq)
            if piece is None:
                net = next(filter(None, map(_net, strand.ending(seq))), None)
                if net is None:
                    return None
                steps.append(_advance(net[1]))
                seq = net[0] - 1
                continue
            told, change = piece.told(), records.read_change(piece.change)
            if told.kind != records.REWIND:
                steps.append(_advance(change))
                seq -= 1
                continue
            source = self.by_uid(told.source[0]) if told.source is not None else None
            if source is None or told.source is None:
                return None
            steps.append(_jump(seq, change))
            number, seq = source.line.id, told.source[1]
        return None


def _advance(change: Change) -> Callable[[Snapshot], None]:
    return lambda snapshot: snapshot.advance(change)


def _jump(seq: int, change: Change) -> Callable[[Snapshot], None]:
    return lambda snapshot: snapshot.jump(seq, change.counts)


def _keyframe(data: bytes) -> Snapshot | None:
    try:
        return read_keyframe(data)
    except EverthreadError:
        return None


def _net(found: ReadRow) -> tuple[int, Any] | None:
    """First version and net change of a pack whose body is damaged."""
    try:
        return None if found.net is None else (found.first, packs.read_net(found.net))
    except EverthreadError:
        return None


def _agrees(told: bytes, reached: bytes) -> bool:
    """Whether a hash, or its beginning, is the one that was computed, a few flipped bits aside.

    Of two different hashes three quarters of all bytes are never the same.
    """
    same = sum(a == b for a, b in zip(told, reached, strict=False))
    return len(told) >= 16 and same * 4 >= len(told) * 3
