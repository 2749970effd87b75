"""Checking one line against itself: checksums, chain, packs, items, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from everthread.codec import records
from everthread.codec.records import Change
from everthread.codec.seal import check_sealed, references
from everthread.codec.values import same
from everthread.errors import EverthreadError, StateCorruptedError, VersionPrunedError
from everthread.history import packs
from everthread.history.chain import HASH_KEPT, branch, genesis, link, record_digest
from everthread.history.retention import Spans, read_tombstone
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.maintenance.redaction_record import Redactions
from everthread.maintenance.reports import Damage, What
from everthread.stores.contract import (
    COLD,
    DAMAGED,
    DELTA,
    PACK,
    PRUNED,
    REWIND,
    SEAL_SEQ,
    Backend,
    Line,
    Row,
)
from everthread.threads.sync.core import head_key
from everthread.threads.sync.fallback import readable_below
from everthread.threads.sync.reader import Reader
from everthread.threads.tombstones import away, pruned_hashes

# Personal values that records speak of: whether each is there, and is what they say.


Note = Callable[[int, int, object, What], None]

#: Whether what is sealed under keys could be opened: they are at hand, and nobody whose they are was erased.
CanOpen = Callable[[tuple[bytes, ...]], bool]


class SealedValues:
    """Looks for the values. One that is absent was erased, or is under a key that isn't at hand: nobody can
    tell, then. If all its keys are, it was lost."""

    def __init__(self, backend: Backend, can_open: CanOpen, note: Note) -> None:
        self._backend = backend
        self._can_open = can_open
        self._note = note

    def look(self, first: int, last: int, parts: Iterable[bytes]) -> None:
        """Note what is wrong with the values that are referred to in ``parts`` of these versions."""
        found = references(parts)
        if not found:
            return
        stored = self._backend.sealed(found)
        for value_id, reference in found.items():
            data = stored.get(value_id)
            if data is not None:
                try:
                    check_sealed(data, reference)
                except EverthreadError as error:
                    self._note(first, last, error, "items")
            elif self._lost(reference.key_ids):
                problem = f"the sealed bytes of a personal value are gone ({value_id.hex()})"
                self._note(first, last, problem, "items")

    def _lost(self, key_ids: tuple[bytes, ...]) -> bool:
        return self._can_open(key_ids)


# Items that pruned versions inserted and later ones still hold: no record is left to check them by.


#: So many items are read at a time.
_STRETCH = 1_000


class HeldItems:
    """Goes along while the rows of a line are looked at, and reads what the first version after pruned ones
    holds. Everything that a later one holds was there, too, or was inserted since."""

    def __init__(self, reader: Reader, line: Line, note: Note, sealed: SealedValues) -> None:
        self._reader = reader
        self._line = line
        self._note = note
        self._sealed = sealed
        #: By log, the positions that need no further look.
        self._seen: dict[str, Spans] = {}
        self._due = False

    def inserted(self, changes: list[Change]) -> None:
        """These are checked with their records."""
        for change in changes:
            for log, _, _, insert, position, *_ in change.logs:
                self._seen.setdefault(log, Spans()).add(position, position + insert - 1)

    def after(self, row: Row) -> None:
        """``row`` has been looked at."""
        if row.kind == PRUNED:
            self._due = True
            return
        if not self._due:
            return
        self._due = False
        try:
            logs = (self._reader.load(self._line, row.first)).snapshot.logs
        except EverthreadError:
            # What keeps it from being rebuilt is told where it stands.
            return
        for log, state in logs.items():
            seen = self._seen.setdefault(log, Spans())
            for start, stop in state.pieces:
                for first, last, known in list(seen.split(start, stop - 1)):
                    if not known:
                        self._read(row, log, first, last + 1)
                seen.add(start, stop - 1)

    def _read(self, row: Row, log: str, start: int, stop: int) -> None:
        for first in range(start, stop, _STRETCH):
            last = min(first + _STRETCH, stop)
            try:
                found = self._reader.raw_items(self._line, log, first, last)
                if len(found) != last - first:
                    raise StateCorruptedError("some of them are missing")
            except EverthreadError as error:
                problem = f"items {first} to {last} of log {log!r}, of pruned versions: {error}"
                self._note(row.first, row.seq, problem, "items")
            else:
                self._sealed.look(row.first, row.seq, found)


class Gap(Exception):  # noqa: N818 - carried as data: why rows can't be read
    """Versions ``first`` to ``last`` can't be reached."""

    def __init__(self, first: int, last: int, why: str) -> None:
        super().__init__(why)
        self.first = first
        self.last = last

    @property
    def damage(self) -> StateCorruptedError:
        """The error of whoever needs these versions."""
        return StateCorruptedError(f"versions {self.first} to {self.last} can't be read: {self}")


def rows_of(reader: Reader, line: Line) -> Iterator[Row | Gap]:
    """All rows of a line, oldest first, a bounded number at a time, and what stands where there are none."""
    marks: list[tuple[int, int] | Gap] = []
    seq, limit = SEAL_SEQ - 1, 64
    while seq > line.parent_seq:
        try:
            rows = reader.backend.scan(line.id, seq, limit)
        except StateCorruptedError as error:
            if limit > 1:
                limit = 1
                continue
            below = readable_below(reader.backend, line, seq)
            marks.append(Gap(below + 1, seq, str(error)))
            seq = below
            continue
        if not rows:
            break
        if rows[-1].kind == COLD:
            raise away(line)
        asked, limit = limit, min(2 * limit, 64)
        marks.append((rows[0].seq, len(rows)))
        if len(rows) < asked:
            # There are no more, wherever a damaged one says that it is.
            break
        # The seq of a damaged row may be wrong: go on below the lowest that isn't.
        lowest = min((row.first for row in rows if row.kind != DAMAGED), default=rows[-1].seq)
        seq = min(lowest, seq) - 1
    done = line.parent_seq
    # The seq of a damaged row may be wrong: it may fill a gap, and doesn't say what was handed out.
    expected = done + 1
    for mark in reversed(marks):
        if isinstance(mark, Gap):
            yield mark
            expected = max(expected, mark.last + 1)
            continue
        try:
            again = reader.backend.scan(line.id, *mark)
        except StateCorruptedError as error:
            yield Gap(done + 1, mark[0], str(error))
            expected = max(expected, mark[0] + 1)
            continue
        for row in reversed(again):
            if row.kind == DAMAGED:
                expected += row.seq == expected
                yield row
            elif row.first > done:
                if row.first > expected:
                    yield Gap(expected, row.first - 1, "missing")
                done, expected = row.seq, row.seq + 1
                yield row


class Examination:
    """One line, read once from its first version to its newest."""

    def __init__(
        self,
        reader: Reader,
        line: Line,
        can_open: CanOpen,
        anchored: dict[int, set[bytes]],
        tick: Callable[[int], None] | None = None,
        redactions: Redactions | None = None,
    ) -> None:
        #: What is known to have been redacted, and how many such versions were met.
        self._redactions, self.redacted = redactions or {}, 0
        #: Called with the number of versions looked at.
        self._tick = tick
        self._reader = reader
        self._backend = reader.backend
        self._line = line
        #: By seq, the hashes that somebody vouched for; those found are noted as (seq, hash).
        self._anchored = anchored
        self.confirmed: set[tuple[int, bytes]] = set()
        self.damage: list[Damage] = []
        self.versions = 0
        self.newest = line.parent_seq
        #: Whether the version that it was forked from can't be read: damage of another line.
        self.orphaned = bool(line.parent)
        self._sealed = SealedValues(reader.backend, can_open, self._note)
        self._held = HeldItems(reader, line, self._note, self._sealed)
        #: Single records since the last pack: their keys are in the index once a pack stands above them.
        self._singles: list[tuple[Row, records.Head]] = []

    def _note(self, first: int, last: int, problem: object, what: What = "version") -> None:
        self.damage.append(Damage(self._line.name, first, last, str(problem), what))

    def run(self) -> None:
        line = self._line
        expected, before = line.parent_seq + 1, self._start()
        for row in rows_of(self._reader, line):
            if isinstance(row, Gap):
                # How far one at the end reaches isn't known.
                self._note(row.first, row.last if row.last < SEAL_SEQ - 1 else row.first, row)
                expected, before = max(expected, row.last + 1), None
                continue
            if row.kind == DAMAGED:
                self._note(row.seq, row.seq, "its row fails its checksum")
                expected, before = expected + (row.seq == expected), None
                continue
            expected = row.seq + 1
            self.versions += row.seq - row.first + 1
            self._row(row, before)
            self._held.after(row)
            before = row.hash
            self.newest = row.seq
            if self._tick is not None:
                self._tick(self.versions)
        if not self.damage and self.newest > line.parent_seq:
            self._rebuild()

    def _start(self) -> bytes | None:
        """What the first own version builds on, and whether the fork says of its source what that says."""
        line = self._line
        start = genesis(line.uid)
        if line.parent:
            try:
                parent = self._reader.parent(line)
                found = (self._reader.version(parent, line.parent_seq))[1][:HASH_KEPT]
                snapshot = (self._reader.load(parent, line.parent_seq)).snapshot
                self.orphaned = False
                if found != line.parent_hash:
                    raise StateCorruptedError("forked from another version than it says")
                said = {name: log.count for name, log in snapshot.logs.items()}, snapshot.segment
                if said != (line.counts, line.parent_segment):
                    raise StateCorruptedError("the fork's beginning isn't what its source says")
            except EverthreadError as error:
                self._note(line.parent_seq, line.parent_seq, error, "thread")
            start = branch(line.parent_hash, line.uid)
        if start != line.start_hash:
            self._note(line.parent_seq, line.parent_seq, "the line itself was altered", "thread")
        self._confirm(line.parent_seq, start)
        return start

    def _confirm(self, seq: int, digest: bytes) -> None:
        if digest in self._anchored.get(seq, ()):
            self.confirmed.add((seq, digest))

    def _row(self, row: Row, before: bytes | None) -> None:
        """Check one row; ``before`` is the hash of the version before it, if that is known."""
        if row.kind in (PACK, PRUNED):
            for single, head in self._singles:
                self._keys(single, {0: head})
            self._singles.clear()
        if row.kind == PRUNED:
            self._pruned(row, before)
            return
        try:
            heads, encoded, blocks, hashes = self._parts(row)
            changes = [records.read_change(part) for part in encoded]
            told = [records.read_head(head) for head in heads]
        except EverthreadError as error:
            self._note(row.first, row.seq, error)
            return
        if row.kind != PACK and (told[0].kind == records.REWIND) != (row.kind == REWIND):
            self._note(row.first, row.seq, "the row says something else about itself than its record")
        self._held.inserted(changes)
        items = blocks if blocks is not None else self._items(row, changes)
        self._chain(row, before, hashes, heads, encoded, items)
        if row.kind == PACK:
            self._net(row, changes)
            self._keys(row, dict(enumerate(told)))
        elif row.kind == DELTA:
            self._singles.append((row, told[0]))
        if row.keyframe is not None:
            self._keyframe(row)
        metadata = (head.metadata for head in told if head.metadata)
        written = (block for inserted in items for block in inserted or ())
        self._sealed.look(row.first, row.seq, (*encoded, *metadata, *written))

    def _parts(
        self, row: Row
    ) -> tuple[list[bytes], list[bytes], list[list[bytes] | None] | None, list[bytes]]:
        """Heads, changes, blocks (``None`` if they are elsewhere) and beginnings of the hashes of a row."""
        if row.kind == PACK:
            body = packs.read_pack(row.body)
            if len(body.heads) != row.seq - row.first + 1:
                raise StateCorruptedError("the pack doesn't hold as many versions as it says")
            return body.heads, body.changes, None, body.hashes
        head, encoded, blocks = records.read_record(row.body)
        detached = not blocks and packs.inserted_ranges(encoded)
        return [head], [encoded], None if detached else [blocks], [row.hash[:HASH_KEPT]]

    def _pruned(self, row: Row, before: bytes | None) -> None:
        """Of versions that were pruned their digests must lead on, and the state that others go on from."""
        kept = row.net if row.keyframe is None else row.keyframe
        try:
            tomb = read_tombstone(row.body)
            if row.keyframe is not None:
                read_keyframe(row.keyframe)
            elif row.net is not None:
                packs.read_net(row.net)
            parts = [] if kept is None else [records.expand(kept, "what is left of pruned versions")]
            if before is not None:
                for index, digest in enumerate(pruned_hashes(self._line, row, before)):
                    self._confirm(row.first + index, digest)
        except EverthreadError as error:
            self._note(row.first, row.seq, error)
            return
        heads = {index: records.read_head(head) for index, head in tomb.heads.items()}
        self._keys(row, heads)
        metadata = (head.metadata for head in heads.values() if head.metadata)
        self._sealed.look(row.first, row.seq, (*parts, *metadata))

    def _items(self, row: Row, changes: list[Change]) -> list[list[bytes] | None]:
        """The blocks of each version, put together from chunks; ``None`` where some item can't be read."""
        places: dict[str, list[tuple[int, int]]] = {}
        for change in changes:
            for log, _, _, insert, position, _ in change.logs:
                if insert:
                    places.setdefault(log, []).append((position, position + insert))
        before = len(self.damage)
        found: dict[str, dict[int, bytes]] = {}
        prints: dict[str, dict[int, bytes]] = {}
        for log, ranges in places.items():
            start, stop = min(first for first, _ in ranges), max(last for _, last in ranges)
            found[log], prints[log] = self._from_chunks(row, log, start, stop)
        filled: list[list[bytes] | None] = []
        lost: list[int] = []
        for index, change in enumerate(changes):
            blocks: list[bytes] | None = []
            for log, _, _, insert, position, stored in change.logs:
                raws = [found[log].get(at) for at in range(position, position + insert)] if insert else []
                whole = [raw for raw in raws if raw is not None]
                if insert and blocks is not None:
                    blocks = [*blocks, records.array(whole)] if len(whole) == insert else None
                self._compare_prints(row, log, position, stored, prints.get(log, {}))
            filled.append(blocks)
            if blocks is None:
                lost.append(row.first + index)
        if lost and not any(damage.what == "items" for damage in self.damage[before:]):
            self._note(lost[0], lost[-1], "items of these versions are missing", "items")
        return filled

    def _from_chunks(
        self, row: Row, log: str, start: int, stop: int
    ) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """The items of a range, and their fingerprints, as far as they can be read, by position."""
        found: dict[int, bytes] = {}
        prints: dict[int, bytes] = {}
        try:
            chunks = self._backend.chunks(self._line.id, log, start, stop)
        except StateCorruptedError as error:
            self._note(row.first, row.seq, error, "items")
            return found, prints
        for chunk in chunks:
            stored = chunk.fingerprints
            prints.update((chunk.position + i, stored[4 * i : 4 * i + 4]) for i in range(chunk.count))
            try:
                raws = records.split(chunk.block())
                if len(raws) != chunk.count:
                    raise StateCorruptedError("it doesn't hold as many items as it says")
            except StateCorruptedError as error:
                last = chunk.position + chunk.count
                self._note(
                    row.first, row.seq, f"items {chunk.position} to {last} of log {log!r}: {error}", "items"
                )
                continue
            found.update(enumerate(raws, chunk.position))
        return found, prints

    def _compare_prints(
        self, row: Row, log: str, position: int, recorded: bytes, stored: dict[int, bytes]
    ) -> None:
        for index in range(len(recorded) // 4):
            there = stored.get(position + index)
            if there is not None and there != recorded[4 * index : 4 * index + 4]:
                problem = f"the index of ids of log {log!r} is wrong at position {position + index}"
                self._note(row.first, row.seq, problem, "derived")
                return

    def _chain(
        self,
        row: Row,
        before: bytes | None,
        hashes: list[bytes],
        heads: list[bytes],
        encoded: list[bytes],
        items: list[list[bytes] | None],
    ) -> None:
        """Follow the chain through a row, as far as everything that it takes can be read."""
        digest = before
        for index, (head, part, blocks) in enumerate(zip(heads, encoded, items, strict=True)):
            if digest is None or blocks is None:
                return
            body = records.write_record(head, part, blocks)
            digest = link(digest, record_digest(body))
            self._redaction(row.first + index, head, body)
            if digest[:HASH_KEPT] != hashes[index]:
                self._note(row.first + index, row.first + index, "the chain of hashes is broken here")
                return
            self._confirm(row.first + index, digest)
        if digest != row.hash:
            self._note(row.seq, row.seq, "the chain of hashes is broken here")

    def _redaction(self, seq: int, head: bytes, body: bytes) -> None:
        """What says that it was redacted must be what the redaction put there."""
        if records.redacted_digest(head) is not None:
            self.redacted += 1
            if sha256(body).digest() not in self._redactions.get((self._line.uid, seq), ()):
                self._note(seq, seq, "it says that it was redacted, and there is no record of that")

    def _net(self, row: Row, changes: list[Change]) -> None:
        try:
            if packs.net_of(changes) == records.expand(row.net or b"", "the net of a pack"):
                return
            problem = "the net change of the pack isn't what its versions add up to"
        except EverthreadError as error:
            problem = str(error)
        self._note(row.first, row.seq, problem, "derived")

    def _keys(self, row: Row, told: dict[int, records.Head]) -> None:
        """Keys are found through an index: a wrong one would let something happen twice."""
        for index, head in told.items():
            hashed = head_key(head)
            if hashed is None:
                continue
            seq = row.first + index
            if (self._line.id, seq) not in self._backend.keyed(self._line.root, hashed):
                self._note(seq, seq, "its key is missing in the index of keys", "derived")

    def _keyframe(self, row: Row) -> None:
        try:
            stored = read_keyframe(row.keyframe or b"")
        except EverthreadError as error:
            self._note(row.seq, row.seq, error, "derived")
            return
        try:
            replayed = replay_row(self._reader, self._line, row)
        except EverthreadError:
            # What comes before is damaged, and told already: there is nothing to compare with.
            return
        if not _equal(stored, replayed):
            self._note(row.seq, row.seq, "the keyframe isn't the state of its version", "derived")

    def _rebuild(self) -> None:
        try:
            self._reader.load(self._line, self.newest)
        except VersionPrunedError:
            # Of a deleted thread: nobody comes there any more.
            return
        except EverthreadError as error:
            self._note(self.newest, self.newest, error)


def replay_row(reader: Reader, line: Line, row: Row) -> Snapshot:
    """The state at the end of a row, computed from what comes before it."""
    if row.kind == PACK:
        snapshot = _before(reader, line, row)
        for encoded in packs.read_pack(row.body).changes:
            snapshot.advance(records.read_change(encoded))
        return snapshot
    head, encoded, _ = records.read_record(row.body)
    change, told = records.read_change(encoded), records.read_head(head)
    if told.kind == records.REWIND and told.source is not None:
        snapshot = (reader.load(reader.by_uid(line, told.source[0]), told.source[1])).snapshot
        snapshot.jump(row.seq, change.counts)
        return snapshot
    snapshot = _before(reader, line, row)
    snapshot.advance(change)
    return snapshot


def _before(reader: Reader, line: Line, row: Row) -> Snapshot:
    if row.first == line.parent_seq + 1 and line.parent:
        snapshot = (reader.load(reader.parent(line), line.parent_seq)).snapshot
        snapshot.branch()
        return snapshot
    if row.first == 1:
        return Snapshot.empty()
    return (reader.load(line, row.first - 1, pruned=True)).snapshot


def _equal(a: Snapshot, b: Snapshot) -> bool:
    return (
        same(a.document, b.document) and a.logs == b.logs and a.segment == b.segment and a.merged == b.merged
    )
