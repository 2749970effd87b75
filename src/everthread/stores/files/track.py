"""One line as it stands on disk: its journal, and what folding derived from it, as rows of the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history.packs import FOLD_RECORDS, Chunk, detach
from everthread.stores.contract import DELTA, PACK, PRUNED, REWIND, Found, Line, Row
from everthread.stores.files.disk import Disk, read_at
from everthread.stores.files.editions import edition_of
from everthread.stores.files.folds import Folds
from everthread.stores.files.journal import Journal, segments_in
from everthread.stores.files.jsonl import intact
from everthread.stores.files.linefile import Replaced
from everthread.stores.files.parsing import Entry, Spot, check_items_name
from everthread.stores.files.rendering import Part, read_items
from everthread.stores.files.tombstones import Tomb, read_tomb
from everthread.stores.files.volumes import ChunkPlace, PackEntry, volumes_in

#: A row as it is found: a single version, or a pack; and the volume that knows more about it.
Ref = tuple[Entry | PackEntry, int | None]


class Track:
    """Everything about one line. Not for two threads at once."""

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
        # First of all: what changes from here on is noticed.
        self.edition = edition_of(self.folder)
        names = os.listdir(self.folder)
        self.journal = Journal(self.folder, self.line, segments_in(names), self._disk)
        volumes = volumes_in(self.folder, names, self.edition) if derived and not self.halfway else []
        self.folds = Folds(self.folder, volumes, self.edition)
        self.journal.begin(self.folds.bind(self.journal))

    @property
    def halfway(self) -> bool:
        """Whether somebody is pruning it, or was interrupted while doing so."""
        return self.edition % 2 == 1

    @property
    def moved(self) -> bool:
        """Whether places in the journal that are known here may not be right any more."""
        return self.halfway or edition_of(self.folder) != self.edition

    def refresh(self) -> None:
        """Read on. Raises what :meth:`Journal.grow` does."""
        if self.moved:
            raise Replaced(self.folder)
        if self.journal.grow() and len(self.journal.entries) > FOLD_RECORDS:
            # Others may have folded what is a long tail here. Not to know costs time, nothing else.
            self.refresh_folds()

    def refresh_folds(self) -> None:
        if not self.halfway:
            self.folds.refresh(volumes_in(self.folder, os.listdir(self.folder), self.edition))
        # What was folded stands in the journal already: afterwards this knows at least as much as they do.
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
        return Found(self.line, self.row(newest), below, self.journal.holed)

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
        """All of a row. One that is damaged comes without a body, which nobody takes for a sound one."""
        found, volume = ref
        if found.kind == PRUNED:
            try:
                return self.tomb(found).row()
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
        # Unlike a list of rows, a state can't do without any of them: this raises, and says where.
        if found.kind == PRUNED:
            return self.tomb(found).row()
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

    def tombs(self) -> tuple[int, int]:
        """How many versions were pruned, and how many bytes tell of them."""
        folded = [pack for volume in self.folds.volumes for pack in volume.packs if pack.kind == PRUNED]
        entries = [entry for entry in self.journal.entries if entry.kind == PRUNED]
        count = sum(pack.last - pack.first + 1 for pack in folded) + sum(entry.count for entry in entries)
        size = sum(pack.length for pack in folded) + sum(entry.length for entry in entries)
        return count, size

    def tomb(self, found: Entry | PackEntry) -> Tomb:
        """What is left of pruned versions. Raises :class:`StateCorruptedError`."""
        line = found.line if isinstance(found, Entry) else None
        if line is None:
            line = self.journal.read(found.at, found.at.offset + found.length)
        where = self.journal.path(found.at.segment)
        if not intact(line):
            raise StateCorruptedError(f"a line of {where} doesn't fit its checksum; keep a copy", where=where)
        return read_tomb(line, where)

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
        """Items that stand apart from versions of the tail, from position ``start`` on."""
        for entry in self.journal.entries[self.journal.hidden :]:
            for part in entry.parts:
                if part.log == log and part.position + part.count > start:
                    yield entry, part

    def _below_pruned(self, log: str, start: int) -> Iterator[Chunk]:
        """All items that neither a pack nor the tail knows of: what was derived is missing."""
        for entry in self.journal.entries[: self.journal.hidden]:
            if entry.kind == PRUNED:
                tomb = self.tomb(entry)
                chunks = [*self.kept_chunks(tomb), *tomb.stubs()]
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

    def kept_chunks(self, tomb: Tomb) -> list[Chunk]:
        """The items of pruned versions that others still hold."""
        found = []
        for part in tomb.apart:
            block, prints = self.items(tomb.items, part.start, part.length)
            found.append(Chunk(part.log, part.position, part.count, prints, records.compress(block)))
        return found

    def _chunk(self, place: ChunkPlace, volume: int) -> Chunk:
        if not place.data.length:
            return Chunk(place.log, place.position, place.count, b"", b"")
        prints = self._place_prints(place, volume)
        if place.apart is None:
            data = self.folds.frame(place.data, volume)
        else:
            data = records.compress(self.items(place.apart, place.data.start, place.data.length)[0])
        return Chunk(place.log, place.position, place.count, prints, data)

    def _place_prints(self, place: ChunkPlace, volume: int) -> bytes:
        if not place.data.length:
            return bytes(4 * place.count)
        return records.unframe(self.folds.frame(place.prints, volume), "fingerprints")

    def _apart(self, entry: Entry, part: Part) -> Chunk:
        block, _ = self.items(entry.items, part.start, part.length)
        return Chunk(part.log, part.position, part.count, self._prints(entry, part), records.compress(block))

    def _prints(self, entry: Entry, part: Part) -> bytes:
        """The fingerprints of items that stand apart."""
        prints = part_prints(self.journal.body(entry), part)
        if len(prints) != 4 * part.count:
            # No version tells of them: they came with a copy of versions that were pruned before.
            block, _ = self.items(entry.items, part.start, part.length)
            prints = b"".join(map(records.print_of, records.split(block)))
        return prints

    def items(self, name: str, start: int, length: int) -> tuple[bytes, bytes]:
        """A block of items that stand apart, with fingerprints if there are any.

        Raises :class:`StateCorruptedError`.
        """
        path = os.path.join(self.folder, check_items_name(name))
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            line = read_at(file, start, length)
            if not intact(line):
                where = f"{path}:{read_at(file, 0, start).count(bytes([10])) + 1}"
                raise StateCorruptedError(f"{where} doesn't fit its checksum; keep a copy of it", where=where)
        finally:
            os.close(file)
        return read_items(line, path)

    # ── tags and keys ────────────────────────────────────────────────────────────────────────

    def tags(self) -> tuple[dict[str, bytes], int]:
        """The newest metadata, and the version up to which that is complete."""
        last, noted = self.folds.last, self.folds.tags()
        found = None if noted is None else self.single(noted.seq)
        if noted is not None and found is not None and found.hash == noted.hash:
            return noted.tags, noted.seq
        for entry in reversed(self.journal.entries[: self.journal.hidden]):
            if entry.kind == PRUNED:
                return self.tomb(entry).newest_tags(), entry.seq
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
                found.extend(seq for known, seq in self.tomb(entry).key_hashes() if known == key)
        return found

    def close(self) -> None:
        self.journal.close()
        self.folds.close()


def _end(pack: PackEntry) -> Spot:
    return Spot(pack.at.segment, pack.at.offset + pack.length)


def _prints_of(chunk: Chunk) -> bytes:
    return chunk.fingerprints or bytes(4 * chunk.count)


def part_prints(body: bytes, part: Part) -> bytes:
    """The fingerprints of items that stand apart from the record ``body``."""
    logs: list[list[Any]] = records.read_change(records.read_record(body)[1]).logs
    found = bytearray()
    for log, _, _, insert, position, prints in logs:
        if log == part.log and position < part.position + part.count and position + insert > part.position:
            start = max(part.position - position, 0)
            found += prints[4 * start : 4 * (part.position + part.count - position)]
    return bytes(found)
