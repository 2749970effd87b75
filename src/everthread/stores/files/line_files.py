"""The files of one line: its journal and the packs derived from it, as rows of the contract.

Three parts: reading rows and items, the state at a version, and folding versions into packs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from everthread.codec import records
from everthread.codec.records import Change
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.metadata import encoded_index_values
from everthread.history.packs import FOLD_RECORDS, Chunk, detach
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import DELTA, PACK, PRUNED, REWIND, Fold, Found, Line, Row
from everthread.stores.files.disk import Disk, Replaced, intact, read_at
from everthread.stores.files.journal import (
    SEGMENT_BYTES,
    Entry,
    Journal,
    Spot,
    check_items_name,
    edition_of,
    segments_in,
)
from everthread.stores.files.json_form import Part, PrunedRecord, read_items, read_pruned
from everthread.stores.files.pack_files import (
    ChunkEntry,
    Extent,
    Folds,
    KeyframeEntry,
    PackEntry,
    TagEntry,
    Volume,
    volumes_in,
)

#: Where a row is: a single version or a pack, and the number of its volume.
Ref = tuple[Entry | PackEntry, int | None]


class LineFiles:
    """The journal and the packs of one line. Not for two threads at once."""

    def __init__(self, line: Line, folder: str, tags: Mapping[str, bytes], disk: Disk) -> None:
        self.line = line
        self.folder = folder
        self._disk = disk
        self.first_tags = dict(tags)
        self.journal: Journal
        self.folds: Folds

    def load(self, *, derived: bool = True) -> None:
        """Read what there is; without ``derived``, from the journal alone.

        Raises :class:`FileNotFoundError` if the folder isn't there (any more).
        """
        # Read the edition first, so that later changes are noticed.
        self.edition = edition_of(self.folder)
        names = os.listdir(self.folder)
        self.journal = Journal(self.folder, self.line, segments_in(names), self._disk)
        volumes = volumes_in(self.folder, names, self.edition) if derived and not self.half_pruned else []
        self.folds = Folds(self.folder, volumes, self.edition)
        self.journal.begin(self.folds.bind(self.journal))

    @property
    def half_pruned(self) -> bool:
        """Whether it is being pruned, or its pruning was interrupted."""
        return self.edition % 2 == 1

    @property
    def moved(self) -> bool:
        """Whether offsets in the journal that are known here may be wrong by now."""
        return self.half_pruned or edition_of(self.folder) != self.edition

    def refresh(self) -> None:
        """Read what was appended since. Raises what :meth:`Journal.grow` does."""
        if self.moved:
            raise Replaced(self.folder)
        if self.journal.grow() and len(self.journal.entries) > FOLD_RECORDS:
            # Others may have folded what is a long tail here.
            self.refresh_folds()

    def refresh_folds(self) -> None:
        if not self.half_pruned:
            self.folds.refresh(volumes_in(self.folder, os.listdir(self.folder), self.edition))
        # The versions of new packs must be known from the journal before they are dropped from memory.
        self.journal.grow()
        if (last := self.folds.bind(self.journal)) is not None:
            self.journal.forget(last.seq)

    @property
    def newest(self) -> Entry | PackEntry | None:
        entries = self.journal.entries
        return entries[-1] if entries else self.folds.last

    @property
    def hash(self) -> bytes:
        """What the next version has to build on."""
        newest = self.newest
        return self.line.start_hash if newest is None else newest.hash

    @property
    def last_seq(self) -> int:
        newest = self.newest
        if newest is None:
            return self.line.parent_seq
        return newest.seq if isinstance(newest, Entry) else newest.last

    def found(self) -> Found:
        refs = self.down(self.last_seq)
        newest, before = next(refs, None), next(refs, None)
        if newest is None:
            return Found(self.line, None)
        below = before[0].hash if before is not None else None
        return Found(self.line, self.row(newest), below, self.journal.has_damage)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def down(self, seq: int) -> Iterator[Ref]:
        """Rows from the one that holds ``seq`` downwards."""
        entries = self.journal.entries
        above, first = (entries[0].at, entries[0].first) if entries else (self.journal.end, self.last_seq + 1)
        if seq >= first:
            for entry in reversed(entries[: self.journal.index(seq) + 1]):
                yield entry, None
            seq = first - 1
        for pack, volume in self.folds.down(seq):
            if pack.first <= seq:
                if seq > pack.last:
                    for entry in reversed(self.journal.between(_end(pack), above, pack.last)):
                        if entry.seq <= seq:
                            yield entry, volume + 1
                yield pack, volume
                seq = pack.first - 1
            above, first = pack.start, pack.first
        if seq > self.line.parent_seq:
            start = Spot(self.journal.segments[0], 0)
            for entry in reversed(self.journal.between(start, above, self.line.parent_seq)):
                if entry.seq <= seq:
                    yield entry, 0

    def row(self, ref: Ref) -> Row:
        """All of a row. A damaged one has an empty body, which callers recognise as damage."""
        found, volume = ref
        if found.kind == PRUNED:
            try:
                return self.pruned_record(found).row()
            except StateCorruptedError:
                last = found.seq if isinstance(found, Entry) else found.last
                return Row(last, found.first, PRUNED, found.hash, b"")
        if isinstance(found, Entry):
            try:
                body = self.journal.body(found)
            except StateCorruptedError:
                body = b""
            return Row(
                found.seq, found.seq, found.kind, found.hash, body, None, self._keyframe(found, volume)
            )
        assert volume is not None
        assert found.body is not None
        assert found.net is not None
        frame = self.folds.frame
        return Row(
            found.last,
            found.first,
            PACK,
            found.hash,
            frame(found.body, volume),
            frame(found.net, volume),
            None if found.keyframe is None else frame(found.keyframe, volume),
        )

    def replayed(self, ref: Ref, seq: int) -> Row:
        """What replaying up to ``seq`` needs of a row."""
        found, volume = ref
        # A state needs every row, so a damaged one raises here.
        if found.kind == PRUNED:
            return self.pruned_record(found).row()
        if isinstance(found, Entry):
            self.journal.body(found)
            return self.row(ref)
        assert volume is not None
        assert found.net is not None
        if found.last > seq:
            return self.row(ref)
        if found.keyframe is not None:
            keyframe = self.folds.frame(found.keyframe, volume)
            return Row(found.last, found.first, PACK, found.hash, b"", None, keyframe)
        return Row(found.last, found.first, PACK, found.hash, b"", self.folds.frame(found.net, volume))

    def replay(self, seq: int, floor: int) -> list[Row]:
        """See the contract."""
        rows: list[Row] = []
        if seq > self.last_seq:
            return rows
        for ref in self.down(seq):
            if (ref[0].seq if isinstance(ref[0], Entry) else ref[0].last) <= floor:
                break
            row = self.replayed(ref, seq)
            rows.append(row)
            if (row.keyframe is not None and row.seq <= seq) or row.kind == REWIND:
                break
        return rows

    def tail(self) -> list[tuple[Row, bytes | None]]:
        entries = self.journal.entries[self.journal.hidden :]
        return [(self.row((entry, None)), entry.key) for entry in entries]

    def single(self, seq: int) -> Entry | None:
        """A version that isn't folded."""
        entries, index = self.journal.entries, self.journal.index(seq)
        return entries[index] if index < len(entries) and entries[index].seq == seq else None

    def is_pruned(self, seq: int) -> bool:
        found = next(self.down(seq), None)
        return found is not None and found[0].kind == PRUNED and found[0].first <= seq

    def pruned_totals(self) -> tuple[int, int]:
        """How many versions were pruned, and the bytes of the records that stand for them."""
        folded = [pack for volume in self.folds.volumes for pack in volume.packs if pack.kind == PRUNED]
        entries = [entry for entry in self.journal.entries if entry.kind == PRUNED]
        count = sum(pack.last - pack.first + 1 for pack in folded) + sum(entry.count for entry in entries)
        size = sum(pack.length for pack in folded) + sum(entry.length for entry in entries)
        return count, size

    def pruned_record(self, found: Entry | PackEntry) -> PrunedRecord:
        """What is left of pruned versions. Raises :class:`StateCorruptedError`."""
        record = found.record if isinstance(found, Entry) else None
        if record is None:
            record = self.journal.read(found.at, found.at.offset + found.length)
        where = self.journal.path(found.at.segment)
        if not intact(record):
            raise StateCorruptedError(
                f"a record of {where} doesn't fit its checksum; keep a copy", where=where
            )
        return read_pruned(record, where)

    def _keyframe(self, entry: Entry, volume: int | None) -> bytes | None:
        found = self.folds.keyframe(entry.seq, entry.hash, volume)
        return None if found is None else self.folds.frame(*found)

    # ── items ────────────────────────────────────────────────────────────────────────────────

    def chunks(self, log: str, start: int, stop: int) -> list[Chunk]:
        found = [self._chunk(place, volume) for place, volume in self.folds.chunks(log, start, stop)]
        found.extend(chunk for chunk in self._below_pruned(log, start) if chunk.position < stop)
        found.extend(
            self._apart(entry, part) for entry, part in self._parts(log, start) if part.position < stop
        )
        return found

    def fingerprints(self, log: str, start: int) -> list[tuple[int, bytes]]:
        found = [
            (place.position, self._place_prints(place, volume))
            for place, volume in self.folds.chunks(log, start, None)
        ]
        found.extend((chunk.position, _prints_of(chunk)) for chunk in self._below_pruned(log, start))
        found.extend((part.position, self._prints(entry, part)) for entry, part in self._parts(log, start))
        return found

    def _parts(self, log: str, start: int) -> Iterator[tuple[Entry, Part]]:
        """Items of the tail that are in files of their own, from position ``start`` on."""
        for entry in self.journal.entries[self.journal.hidden :]:
            for part in entry.parts:
                if part.log == log and part.position + part.count > start:
                    yield entry, part

    def _below_pruned(self, log: str, start: int) -> Iterator[Chunk]:
        """All items below pruned versions that no pack holds, because the folds are missing."""
        for entry in self.journal.entries[: self.journal.hidden]:
            if entry.kind == PRUNED:
                pruned = self.pruned_record(entry)
                chunks = [*self.kept_chunks(pruned), *pruned.stubs()]
            else:
                chunks = self.record_chunks(entry)
            for chunk in sorted(chunks, key=lambda chunk: chunk.position):
                if chunk.log == log and chunk.end > start:
                    yield chunk

    def record_chunks(self, entry: Entry, *, blocks: bool = True) -> list[Chunk]:
        """The items that a version inserts: those apart, and with ``blocks`` those in its record."""
        if entry.kind not in (DELTA, REWIND):
            return []
        found = [self._apart(entry, part) for part in entry.parts]
        if blocks:
            _, encoded, inside = records.read_record(self.journal.body(entry))
            found.extend(detach(records.read_change(encoded).logs, inside))
        return found

    def kept_chunks(self, pruned: PrunedRecord) -> list[Chunk]:
        """The items of pruned versions that other versions still hold."""
        found = []
        for part in pruned.apart:
            block, prints = self.items(pruned.items, part.start, part.length)
            found.append(Chunk(part.log, part.position, part.count, prints, records.compress(block)))
        return found

    def _chunk(self, place: ChunkEntry, volume: int) -> Chunk:
        if not place.data.length:
            return Chunk(place.log, place.position, place.count, b"", b"")
        prints = self._place_prints(place, volume)
        if place.apart is None:
            data = self.folds.frame(place.data, volume)
        else:
            data = records.compress(self.items(place.apart, place.data.start, place.data.length)[0])
        return Chunk(place.log, place.position, place.count, prints, data)

    def _place_prints(self, place: ChunkEntry, volume: int) -> bytes:
        if not place.data.length:
            return bytes(4 * place.count)
        return records.unframe(self.folds.frame(place.prints, volume), "fingerprints")

    def _apart(self, entry: Entry, part: Part) -> Chunk:
        block, _ = self.items(entry.items, part.start, part.length)
        return Chunk(part.log, part.position, part.count, self._prints(entry, part), records.compress(block))

    def _prints(self, entry: Entry, part: Part) -> bytes:
        """The fingerprints of items in a file of their own."""
        prints = part_prints(self.journal.body(entry), part)
        if len(prints) != 4 * part.count:
            # The record lacks them: the items came with a copy of versions that were pruned before.
            block, _ = self.items(entry.items, part.start, part.length)
            prints = b"".join(map(records.print_of, records.split(block)))
        return prints

    def items(self, name: str, start: int, length: int) -> tuple[bytes, bytes]:
        """A block of items from a file of their own, with fingerprints if it has any.

        Raises :class:`StateCorruptedError`.
        """
        path = os.path.join(self.folder, check_items_name(name))
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            record = read_at(file, start, length)
            if not intact(record):
                where = f"{path}:{read_at(file, 0, start).count(bytes([10])) + 1}"
                raise StateCorruptedError(f"{where} doesn't fit its checksum; keep a copy of it", where=where)
        finally:
            os.close(file)
        return read_items(record, path)

    # ── tags and keys ────────────────────────────────────────────────────────────────────────

    def tags(self) -> tuple[dict[str, bytes], int]:
        """The newest metadata, and the version up to which that is complete."""
        last, noted = self.folds.last, self.folds.tags()
        found = None if noted is None else self.single(noted.seq)
        if noted is not None and found is not None and found.hash == noted.hash:
            return noted.tags, noted.seq
        for entry in reversed(self.journal.entries[: self.journal.hidden]):
            if entry.kind == PRUNED:
                return self.pruned_record(entry).newest_tags(), entry.seq
        return (self.first_tags, 0) if last is None else (last.tags, last.last)

    def keyed(self, key: bytes) -> list[int]:
        """Versions that carry a key, folded or not."""
        found = self.keyed_before(key)
        found.extend(entry.seq for entry in self.journal.entries if entry.key == key)
        return found

    def keyed_before(self, key: bytes) -> list[int]:
        """Versions that carry a key and are folded, or pruned."""
        found = self.folds.keyed(key)
        for entry in self.journal.entries[: self.journal.hidden]:
            if entry.kind == PRUNED:
                found.extend(seq for known, seq in self.pruned_record(entry).key_hashes() if known == key)
        return found

    def close(self) -> None:
        self.journal.close()
        self.folds.close()


def _end(pack: PackEntry) -> Spot:
    return Spot(pack.at.segment, pack.at.offset + pack.length)


def _prints_of(chunk: Chunk) -> bytes:
    return chunk.fingerprints or bytes(4 * chunk.count)


def part_prints(body: bytes, part: Part) -> bytes:
    """The fingerprints in the record ``body`` of items in a file of their own."""
    logs: list[list[Any]] = records.read_change(records.read_record(body)[1]).logs
    found = bytearray()
    for log, _, _, insert, position, prints in logs:
        if log == part.log and position < part.position + part.count and position + insert > part.position:
            start = max(part.position - position, 0)
            found += prints[4 * start : 4 * (part.position + part.count - position)]
    return bytes(found)


# ── the state at a version ─────────────────────────────────────────────────────────────────────────
# Views show it, and pruning writes it as a keyframe.


StateStep = Callable[[Snapshot], None]


class StateGone(StateCorruptedError):  # noqa: N818 - a signal inside the store
    """The version was pruned, and nothing goes on from it."""


class Rows(Protocol):
    """What :func:`state_at` reads."""

    def line(self, line: int) -> Line | None: ...

    def line_by_uid(self, uid: bytes) -> Line | None: ...

    def replay(self, line: int, seq: int, floor: int) -> list[Row]: ...


def state_at(store: Rows, line: Line, seq: int) -> Snapshot:
    """The state at version ``seq``: back to a keyframe, then forward again."""
    steps: list[StateStep] = []
    base: Snapshot | None = None
    while base is None:
        if seq > line.parent_seq:
            rows = store.replay(line.id, seq, line.parent_seq)
            if not rows:
                raise _missing(line, seq)
            base, line, seq = _walk(store, line, seq, rows, steps)
        elif line.parent:
            steps.append(Snapshot.branch)
            seq, line = min(seq, line.parent_seq), _known(store.line(line.parent), line)
        else:
            base = Snapshot.empty()
    for step in reversed(steps):
        step(base)
    return base


def _walk(
    store: Rows, line: Line, seq: int, rows: list[Row], steps: list[StateStep]
) -> tuple[Snapshot | None, Line, int]:
    """Down the rows of one line: the state it begins with, or where to go on."""
    top = seq
    for row in rows:
        if not row.first <= seq <= row.seq:
            raise _missing(line, seq)
        if row.keyframe is not None and row.seq <= top:
            return read_keyframe(row.keyframe), line, seq
        seq = row.first - 1
        if row.kind == PRUNED and (row.seq > top or row.net is None):
            if row is rows[0]:
                raise StateGone(f"version {top} of {line.name!r} was pruned", where=line.name)
            raise _missing(line, top)
        if row.kind in (PACK, PRUNED):
            steps.extend(_advance(change) for change in reversed(_changes(row, top)))
            continue
        head, encoded, _ = records.read_record(row.body)
        change = records.read_change(encoded)
        if row.kind != REWIND:
            steps.append(_advance(change))
            continue
        source = records.read_head(head).source
        if source is None:
            raise _missing(line, row.seq)
        steps.append(_jump(row.seq, change))
        return None, _known(store.line_by_uid(source[0]), line), source[1]
    return None, line, seq


def _changes(row: Row, top: int) -> list[Change]:
    """What a pack does up to version ``top``, oldest first."""
    if row.seq <= top:
        return [packs.read_net(row.net or b"")]
    return [records.read_change(each) for each in packs.read_pack(row.body).changes[: top - row.first + 1]]


def _advance(change: Change) -> StateStep:
    return lambda snapshot: snapshot.advance(change)


def _jump(seq: int, change: Change) -> StateStep:
    return lambda snapshot: snapshot.jump(seq, change.counts)


def _known(found: Line | None, line: Line) -> Line:
    if found is None:
        raise StateCorruptedError(f"a line in the past of {line.name!r} is missing", where=line.name)
    return found


def _missing(line: Line, seq: int) -> StateCorruptedError:
    return StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=f"{line.name} {seq}")


# ── folding ────────────────────────────────────────────────────────────────────────────────────────
# Writes packs, chunks, keyframes, keys and tags into volumes. The caller holds the lock. Nothing here is
# synced: what a crash takes away is made again.


_NOWHERE = Extent(0, 0)

Shift = Callable[[Spot], Spot]


def fold(files: LineFiles, fold: Fold) -> bool:
    """Fold the single versions that a pack holds; False, and nothing changed, if they aren't these."""
    if files.half_pruned:
        return False
    pack = fold.pack
    files.refresh_folds()
    entries = files.journal.entries
    first = files.journal.index(pack.first)
    singles = entries[first : first + pack.last - pack.first + 1]
    if [entry.seq for entry in singles if entry.kind == DELTA] != list(range(pack.first, pack.last + 1)):
        return False
    # No single version may stay below a pack: single versions are looked for in the tail alone.
    if singles[-1].hash != fold.hash or any(entry.kind == DELTA for entry in entries[:first]):
        return False
    for entry in entries[:first]:
        if entry.kind == PRUNED:
            _fold_pruned(files, entry)
    volume, last = files.folds.volume_for(pack.first), files.folds.last
    tags, covered = files.tags()
    add_pack(
        volume,
        files.journal,
        fold,
        singles,
        {} if last is None else last.counts,
        {**tags, **fold.tags} if covered < pack.last else tags,
    )
    files.journal.forget(pack.last)
    if files.journal.end.offset > SEGMENT_BYTES:
        files.journal.rotate()
    return True


def _fold_pruned(files: LineFiles, entry: Entry) -> None:
    """Add the record of pruned versions to a volume, where the folds are made again."""
    pruned, last = files.pruned_record(entry), files.folds.last
    volume = files.folds.volume_for(entry.first)
    chunks = [*files.kept_chunks(pruned), *pruned.stubs()]
    add_pruned(volume, pruned, chunks, entry.at, entry.length, {} if last is None else last.counts)


def add_pack(
    volume: Volume,
    journal: Journal,
    fold: Fold,
    singles: Sequence[Entry],
    counts: Mapping[str, int],
    tags: dict[str, bytes],
    shift: Shift = lambda spot: spot,
) -> PackEntry:
    """Put a pack of single versions into a volume. ``shift`` maps the offsets of before to those of now."""
    pack = fold.pack
    parts = [(single, part) for single in singles for part in single.parts]
    frames = [pack.body, pack.net, *([] if fold.keyframe is None else [fold.keyframe])]
    for chunk in pack.chunks:
        frames += (chunk.data, records.frame(chunk.fingerprints))
    frames += (records.frame(part_prints(journal.body(single), part)) for single, part in parts)
    body, net, *rest = volume.put(frames)
    keyframe = rest.pop(0) if fold.keyframe is not None else None
    places = [
        ChunkEntry(chunk.log, chunk.position, chunk.count, rest.pop(0), rest.pop(0)) for chunk in pack.chunks
    ]
    for single, part in parts:
        place = Extent(part.start, part.length)
        places.append(ChunkEntry(part.log, part.position, part.count, place, rest.pop(0), single.items))
    entry = PackEntry(
        first=pack.first,
        last=pack.last,
        hash=fold.hash,
        start=shift(singles[0].at),
        at=shift(singles[-1].at),
        length=singles[-1].length,
        body=body,
        net=net,
        keyframe=keyframe,
        chunks=sorted(places, key=lambda place: place.position),
        keys=b"".join(key + seq.to_bytes(4, "big") for key, seq in fold.keys),
        counts=_used(counts, places),
        tags=tags,
    )
    volume.add(entry)
    return entry


def add_pruned(
    volume: Volume,
    pruned: PrunedRecord,
    chunks: Sequence[Chunk],
    at: Spot,
    length: int,
    counts: Mapping[str, int],
) -> PackEntry:
    """Put into a volume where the record of pruned versions is, and which items are left of them."""
    kept = {(chunk.log, chunk.position): chunk for chunk in chunks if not chunk.pruned}
    prints = volume.put([records.frame(kept[part.log, part.position].fingerprints) for part in pruned.apart])
    places = [
        ChunkEntry(part.log, part.position, part.count, Extent(part.start, part.length), found, pruned.items)
        for part, found in zip(pruned.apart, prints, strict=True)
    ]
    places += [ChunkEntry(log, position, count, _NOWHERE, _NOWHERE) for log, position, count in pruned.gone]
    entry = PackEntry(
        first=pruned.first,
        last=pruned.seq,
        hash=bytes.fromhex(pruned.hash),
        start=at,
        at=at,
        length=length,
        body=None,
        net=None,
        keyframe=None,
        chunks=sorted(places, key=lambda place: place.position),
        keys=b"".join(key + seq.to_bytes(4, "big") for key, seq in pruned.key_hashes()),
        counts=_used(counts, places),
        tags=pruned.newest_tags(),
        kind=PRUNED,
    )
    volume.add(entry)
    return entry


def _used(counts: Mapping[str, int], places: Sequence[ChunkEntry]) -> dict[str, int]:
    """The positions that logs have used, after these chunks."""
    found = dict(counts)
    for place in places:
        found[place.log] = max(found.get(place.log, 0), place.position + place.count)
    return found


def add_keyframe(files: LineFiles, seq: int, digest: bytes, keyframe: bytes) -> None:
    """Attach a keyframe to a version that isn't folded."""
    files.refresh_folds()
    found = files.single(seq)
    if found is not None and found.hash == digest and not files.half_pruned:
        volume = files.folds.volume_for(seq)
        (place,) = volume.put([keyframe])
        volume.add(KeyframeEntry(seq, digest, place))


def add_tags(files: LineFiles, seq: int, tags: Mapping[str, bytes]) -> None:
    """Note the newest metadata as of a version that isn't folded."""
    files.refresh_folds()
    known, covered = files.tags()
    found = files.single(seq)
    if seq > covered and found is not None and not files.half_pruned:
        files.folds.volume_for(seq).add(TagEntry(seq, found.hash, {**known, **tags}))


# ── folds made again from the journal: after a clone, or after damage ──────────────────────────────


#: A tail with more single versions than this means that the folds are missing.
LONG_TAIL = 4 * packs.FOLD_RECORDS


def needs_folding(files: LineFiles) -> bool:
    """Whether folds are missing: the tail is long, or there are single versions below pruned ones."""
    entries = files.journal.entries
    if any(entry.kind == DELTA for entry in entries[: files.journal.hidden]):
        return True
    return len(entries) > LONG_TAIL and sum(entry.kind == DELTA for entry in entries) > LONG_TAIL


def next_fold(files: LineFiles) -> Fold | None:
    """The fold of the oldest versions of a long tail; ``None`` when it is short again."""
    if not needs_folding(files):
        return None
    run = next(_runs(files.journal.entries[:-1]), None)
    if run is None:
        return None
    bodies = [files.journal.body(entry) for entry in run]
    pack = packs.fold(run[0].seq, bodies, [entry.hash for entry in run])
    tags: dict[str, bytes] = {}
    for body in bodies:
        tags.update(tags_of(body))
    keys = tuple((entry.key, entry.seq) for entry in run if entry.key is not None)
    return Fold(pack, run[-1].hash, None, keys, tags)


def _runs(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Runs of versions that become one pack each. Rewinds and damaged versions stay single."""
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.kind != DELTA or len(run) >= packs.FOLD_RECORDS):
            yield run
            run = []
        if entry.kind == DELTA:
            run.append(entry)
    if run:
        yield run


def tags_of(body: bytes) -> dict[str, bytes]:
    """The metadata of a version as the index of metadata keeps it (docs/internals/format.md, "tag")."""
    return encoded_index_values(records.read_head(records.read_record(body)[0]).metadata)
