"""One line as it stands on disk: its journal, and what folding derived from it, as rows of the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history.packs import FOLD_RECORDS, Chunk
from everthread.stores.contract import DELTA, PACK, REWIND, Fold, Found, Line, NewRow, Row
from everthread.stores.files.disk import Disk, read_at
from everthread.stores.files.folds import (
    ChunkPlace,
    Folds,
    KeyframeEntry,
    PackEntry,
    Place,
    TagEntry,
    volumes_in,
)
from everthread.stores.files.journal import SEGMENT_BYTES, Entry, Journal, Spot, items_name, segments_in
from everthread.stores.files.jsonl import intact
from everthread.stores.files.rendering import Part, read_items

#: A row as it is found: a single version, or a pack; and the volume that knows more about it.
Ref = tuple[Entry | PackEntry, int | None]


class Track:
    """Everything about one line. Not for two threads at once."""

    def __init__(self, line: Line, folder: str, tags: Mapping[str, bytes], disk: Disk) -> None:
        self.line = line
        self.folder = folder
        self._disk = disk
        self._first_tags = dict(tags)
        self.journal: Journal
        self.folds: Folds

    def load(self, *, derived: bool = True) -> None:
        """Read what there is; without ``derived``, from the journal alone.

        Raises :class:`FileNotFoundError` if the folder isn't there (any more).
        """
        names = os.listdir(self.folder)
        self.journal = Journal(self.folder, self.line, segments_in(names), self._disk)
        self.folds = Folds(self.folder, volumes_in(names) if derived else [])
        self.journal.begin(self.folds.bind(self.journal))

    def refresh(self) -> None:
        """Read on. Raises what :meth:`Journal.grow` does."""
        if self.journal.grow() and len(self.journal.entries) > FOLD_RECORDS:
            # Others may have folded what is a long tail here. Not to know costs time, nothing else.
            self.refresh_folds()

    def refresh_folds(self) -> None:
        self.folds.refresh(volumes_in(os.listdir(self.folder)))
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
        return Found(self.line, self.row(newest), before[0].hash if before is not None else None)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def down(self, seq: int) -> Iterator[Ref]:
        """Rows from the one that holds ``seq`` downwards."""
        entries = self.journal.entries
        above, first = (entries[0].at, entries[0].seq) if entries else (self.journal.end, self.last_seq + 1)
        if seq >= first:
            for entry in reversed(entries[: seq - first + 1]):
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
        if isinstance(found, Entry):
            try:
                body = self.journal.body(found)
            except StateCorruptedError:
                body = b""
            return Row(
                found.seq, found.seq, found.kind, found.hash, body, None, self._keyframe(found, volume)
            )
        assert volume is not None
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
        if isinstance(found, Entry):
            # Unlike a list of rows, a state can't do without any of them: this raises, and says where.
            self.journal.body(found)
            return self.row(ref)
        assert volume is not None
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
        return [(self.row((entry, None)), entry.key) for entry in self.journal.entries]

    def _keyframe(self, entry: Entry, volume: int | None) -> bytes | None:
        found = self.folds.keyframe(entry.seq, entry.hash, volume)
        return None if found is None else self.folds.frame(*found)

    # ── items ────────────────────────────────────────────────────────────────────────────────

    def chunks(self, log: str, start: int, stop: int) -> list[Chunk]:
        found = [self._chunk(place, volume) for place, volume in self.folds.chunks(log, start, stop)]
        found.extend(
            self._apart(entry, part) for entry, part in self._parts(log, start) if part.position < stop
        )
        return found

    def fingerprints(self, log: str, start: int) -> list[tuple[int, bytes]]:
        found = [
            (place.position, records.unframe(self.folds.frame(place.prints, volume), "fingerprints"))
            for place, volume in self.folds.chunks(log, start, None)
        ]
        found.extend(
            (part.position, _prints(self.journal.body(entry), part))
            for entry, part in self._parts(log, start)
        )
        return found

    def _parts(self, log: str, start: int) -> Iterator[tuple[Entry, Part]]:
        """Items that stand apart from versions that aren't folded, from position ``start`` on."""
        for entry in self.journal.entries:
            for part in entry.parts:
                if part.log == log and part.position + part.count > start:
                    yield entry, part

    def _chunk(self, place: ChunkPlace, volume: int) -> Chunk:
        prints = records.unframe(self.folds.frame(place.prints, volume), "fingerprints")
        if place.apart is None:
            data = self.folds.frame(place.data, volume)
        else:
            data = records.compress(self.items(place.apart, place.data.start, place.data.length))
        return Chunk(place.log, place.position, place.count, prints, data)

    def _apart(self, entry: Entry, part: Part) -> Chunk:
        block = self.items(items_name(entry.seq, entry.hash), part.start, part.length)
        prints = _prints(self.journal.body(entry), part)
        return Chunk(part.log, part.position, part.count, prints, records.compress(block))

    def items(self, name: str, start: int, length: int) -> bytes:
        """A block of items that stand apart. Raises :class:`StateCorruptedError`."""
        path = os.path.join(self.folder, name)
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
        entries = self.journal.entries
        at = noted.seq - entries[0].seq if noted is not None and entries else -1
        if noted is not None and 0 <= at < len(entries) and entries[at].hash == noted.hash:
            return noted.tags, noted.seq
        return (self._first_tags, 0) if last is None else (last.tags, last.last)

    def keyed(self, key: bytes) -> list[int]:
        """Versions that carry a key, folded or not."""
        found = self.folds.keyed(key)
        found.extend(entry.seq for entry in self.journal.entries if entry.key == key)
        return found

    # ── writing: the caller has the turn ─────────────────────────────────────────────────────

    def append_at_once(self, row: NewRow, text: bytes) -> bool:
        """Append a row that builds on the newest one, if nothing has changed since that was read or written.

        Otherwise False, and nothing was done. Raises :class:`OSError`.
        """
        journal = self.journal
        entries = journal.entries
        if not entries or entries[-1].hash != row.previous or journal.sealed:
            return False
        at = journal.end
        if not journal.file.append_at_once(text):
            return False
        journal.add(Entry(row.seq, row.kind, row.hash, row.key, at, len(text), [], None, row.body))
        return True

    # ── writing: the caller has the turn, and has refreshed ──────────────────────────────────

    def fold(self, fold: Fold) -> bool:
        pack = fold.pack
        self.refresh_folds()
        entries = self.journal.entries
        first = pack.first - entries[0].seq if entries else -1
        singles = entries[first : first + pack.last - pack.first + 1] if first >= 0 else []
        if [entry.seq for entry in singles if entry.kind == DELTA] != list(range(pack.first, pack.last + 1)):
            return False
        # Nothing before it may be left behind: a version that isn't folded is looked for in the tail alone.
        if singles[-1].hash != fold.hash or any(entry.kind == DELTA for entry in entries[:first]):
            return False
        self._add_pack(fold, singles)
        self.journal.forget(pack.last)
        if self.journal.end.offset > SEGMENT_BYTES:
            self.journal.rotate()
        return True

    def _add_pack(self, fold: Fold, singles: list[Entry]) -> None:
        pack = fold.pack
        volume = self.folds.volume_for(pack.first)
        last = self.folds.last
        parts = [(entry, part) for entry in singles for part in entry.parts]
        frames = [pack.body, pack.net, *([] if fold.keyframe is None else [fold.keyframe])]
        for chunk in pack.chunks:
            frames += (chunk.data, records.frame(chunk.fingerprints))
        frames += (records.frame(_prints(self.journal.body(entry), part)) for entry, part in parts)
        body, net, *rest = volume.put(frames)
        keyframe = rest.pop(0) if fold.keyframe is not None else None
        places = [
            ChunkPlace(chunk.log, chunk.position, chunk.count, rest.pop(0), rest.pop(0))
            for chunk in pack.chunks
        ]
        for entry, part in parts:
            place = Place(part.start, part.length)
            name = items_name(entry.seq, entry.hash)
            places.append(ChunkPlace(part.log, part.position, part.count, place, rest.pop(0), name))
        places.sort(key=lambda place: place.position)
        counts = dict(last.counts) if last is not None else {}
        for place_ in places:
            counts[place_.log] = max(counts.get(place_.log, 0), place_.position + place_.count)
        newest = singles[-1]
        tags, covered = self.tags()
        volume.add(
            PackEntry(
                first=pack.first,
                last=pack.last,
                hash=fold.hash,
                start=singles[0].at,
                at=newest.at,
                length=newest.length,
                body=body,
                net=net,
                keyframe=keyframe,
                chunks=places,
                keys=b"".join(key + seq.to_bytes(4, "big") for key, seq in fold.keys),
                counts=counts,
                tags={**tags, **fold.tags} if covered < pack.last else tags,
            )
        )

    def keyframe(self, seq: int, digest: bytes, keyframe: bytes) -> None:
        self.refresh_folds()
        entries = self.journal.entries
        index = seq - entries[0].seq if entries else -1
        if 0 <= index < len(entries) and entries[index].hash == digest:
            volume = self.folds.volume_for(seq)
            (place,) = volume.put([keyframe])
            volume.add(KeyframeEntry(seq, digest, place))

    def tag(self, seq: int, tags: Mapping[str, bytes]) -> None:
        self.refresh_folds()
        known, covered = self.tags()
        entries = self.journal.entries
        index = seq - entries[0].seq if entries else -1
        if seq > covered and 0 <= index < len(entries):
            self.folds.volume_for(seq).add(TagEntry(seq, entries[index].hash, {**known, **tags}))

    def close(self) -> None:
        self.journal.close()
        self.folds.close()


def _end(pack: PackEntry) -> Spot:
    return Spot(pack.at.segment, pack.at.offset + pack.length)


def _prints(body: bytes, part: Part) -> bytes:
    """The fingerprints of items that stand apart from the record ``body``."""
    logs: list[list[Any]] = records.read_change(records.read_record(body)[1]).logs
    found = bytearray()
    for log, _, _, insert, position, prints in logs:
        if log == part.log and position < part.position + part.count and position + insert > part.position:
            start = max(part.position - position, 0)
            found += prints[4 * start : 4 * (part.position + part.count - position)]
    return bytes(found)
