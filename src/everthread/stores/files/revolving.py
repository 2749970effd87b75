"""New volumes for a journal that was rewritten: the same packs, at other places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from everthread.history import packs
from everthread.history.packs import Chunk, Pack
from everthread.stores.contract import PACK, Fold, Row
from everthread.stores.files import volumes
from everthread.stores.files.packing import add_pack, add_tomb
from everthread.stores.files.parsing import Entry, Spot
from everthread.stores.files.refolding import tags_of
from everthread.stores.files.tombstones import read_tomb
from everthread.stores.files.track import Track
from everthread.stores.files.volumes import (
    ChunkPlace,
    DerivedDamage,
    KeyframeEntry,
    PackEntry,
    Place,
    TagEntry,
    Volume,
)


class Edit(Struct, kw_only=True):
    """A stretch of a segment, and the line of pruned versions that takes its place.

    ``items`` is the file for what they still hold, with its content; ``freed`` are files that they held.
    """

    segment: int
    start: int
    stop: int
    text: bytes
    first: int
    last: int
    items: str
    content: bytes
    chunks: list[Chunk]
    freed: set[str]


class Revolving:
    """Writes the volumes of a new edition; those that know nothing of what changed are merely renamed."""

    def __init__(self, track: Track, edits: list[Edit], edition: int) -> None:
        self._track = track
        self._edits = sorted(edits, key=lambda edit: edit.first)
        self._edition = edition
        self._segments = {edit.segment for edit in edits}
        self._old: dict[int, Volume] = {}
        self._volume: Volume | None = None
        self._counts: dict[str, int] = {}
        self._tags = dict(track.first_tags)
        self._first = 0

    def shift(self, spot: Spot) -> Spot:
        """Where a line stands by now that stood there before."""
        moved = spot.offset
        for edit in self._edits:
            if edit.segment == spot.segment and edit.stop <= spot.offset:
                moved += len(edit.text) - (edit.stop - edit.start)
        return Spot(spot.segment, moved)

    def run(self, rows: tuple[Row, ...], entries: list[Entry]) -> None:
        """Raises :class:`DerivedDamage` if all had better be made again."""
        every = self._track.folds.volumes
        touched = [index for index, volume in enumerate(every) if self._is_touched(volume)]
        if not touched or self._track.journal.hidden:
            # They don't know everything below what was pruned.
            raise DerivedDamage(self._track.folder)
        # From the first that is touched to the last: what is folded anew has its place in their midst.
        low, high = touched[0], touched[-1] + 1
        try:
            for volume in (*every[:low], *every[high:]):
                volume.move(self._edition)
            for pack in (volume.packs[-1] for volume in every[:low] if volume.packs):
                self._note(pack)
            self._first = every[low - 1].first + 1 if low else 0
            for item in self._sequence(every[low:high], rows):
                if isinstance(item, Row):
                    self._add_row(item, entries)
                elif isinstance(item, Edit):
                    self._add_edit(item)
                else:
                    self._copy(*item)
        finally:
            for volume in (*every, *([] if self._volume is None else [self._volume])):
                volume.close()

    def _is_touched(self, volume: Volume) -> bool:
        return any(
            pack.start.segment in self._segments or pack.at.segment in self._segments for pack in volume.packs
        )

    def _sequence(
        self, old: list[Volume], rows: tuple[Row, ...]
    ) -> Iterator[Row | Edit | tuple[Volume, volumes.AnyEntry]]:
        """What the new volumes hold, in the order of versions."""
        low, high = (rows[0].first, rows[-1].seq) if rows else (0, -1)
        edited = {edit.last for edit in self._edits}
        found: list[tuple[int, Row | Edit | tuple[Volume, volumes.AnyEntry]]] = []
        tags: tuple[Volume, TagEntry] | None = None
        for volume in old:
            for entry in volume.entries:
                if isinstance(entry, TagEntry):
                    tags = (volume, entry)
                elif isinstance(entry, KeyframeEntry):
                    if not self._is_gone(entry.seq):
                        found.append((entry.seq, (volume, entry)))
                elif not low <= entry.last <= high and entry.last not in edited:
                    found.append((entry.last, (volume, entry)))
        found += [(row.seq, row) for row in rows if row.kind == PACK]
        found += [(edit.last, edit) for edit in self._edits]
        found.sort(key=lambda each: each[0])
        yield from (item for _, item in found)
        if tags is not None:
            yield tags

    def _is_gone(self, seq: int) -> bool:
        return any(edit.first <= seq <= edit.last for edit in self._edits)

    def _room(self, first: int) -> Volume:
        """Where the next pack goes."""
        if self._volume is None or len(self._volume.packs) >= volumes.VOLUME_PACKS:
            if self._volume is not None:
                self._volume.close()
            self._volume = Volume(self._track.folder, max(first, self._first), self._edition)
            self._first = self._volume.first + 1
        return self._volume

    def _note(self, entry: PackEntry) -> None:
        self._counts, self._tags = dict(entry.counts), dict(entry.tags)

    # ── what they hold ───────────────────────────────────────────────────────────────────────

    def _add_row(self, row: Row, entries: list[Entry]) -> None:
        """A pack of versions that stay, where before there was one of more versions."""
        singles = [entry for entry in entries if row.first <= entry.seq <= row.seq]
        bodies = [self._track.journal.body(entry) for entry in singles]
        made = packs.fold(row.first, bodies, [entry.hash for entry in singles])
        keys = tuple((entry.key, entry.seq) for entry in singles if entry.key is not None)
        for body in bodies:
            self._tags.update(tags_of(body))
        pack = Pack(row.first, row.seq, row.body, row.net or b"", made.chunks)
        fold = Fold(pack, row.hash, row.keyframe, keys)
        volume = self._room(row.first)
        journal = self._track.journal
        self._note(add_pack(volume, journal, fold, singles, self._counts, dict(self._tags), self.shift))

    def _add_edit(self, edit: Edit) -> None:
        at = self.shift(Spot(edit.segment, edit.start))
        tomb = read_tomb(edit.text, edit.items)
        volume = self._room(edit.first)
        self._note(add_tomb(volume, tomb, edit.chunks, at, len(edit.text), self._counts))

    def _copy(self, old: Volume, entry: volumes.AnyEntry) -> None:
        if isinstance(entry, TagEntry):
            self._room(entry.seq).add(entry)
        elif isinstance(entry, KeyframeEntry):
            volume = self._volume or self._room(entry.seq)
            (place,) = volume.put([old.frame(entry.keyframe)])
            volume.add(replace(entry, keyframe=place))
        else:
            self._copy_pack(old, entry)

    def _copy_pack(self, old: Volume, entry: PackEntry) -> None:
        volume = self._room(entry.first)
        wanted = [place for place in (entry.body, entry.net, entry.keyframe) if place is not None]
        for chunk in entry.chunks:
            if chunk.data.length:
                wanted += [chunk.prints] if chunk.apart is not None else [chunk.data, chunk.prints]
        moved = iter(volume.put([old.frame(place) for place in wanted]))
        body, net, keyframe = (
            None if place is None else next(moved) for place in (entry.body, entry.net, entry.keyframe)
        )
        chunks = list(_moved_chunks(entry.chunks, moved))
        copied = replace(
            entry,
            body=body,
            net=net,
            keyframe=keyframe,
            chunks=chunks,
            start=self.shift(entry.start),
            at=self.shift(entry.at),
        )
        volume.add(copied)
        self._note(copied)


def _moved_chunks(chunks: Iterable[ChunkPlace], moved: Iterator[Place]) -> Iterator[ChunkPlace]:
    for chunk in chunks:
        if not chunk.data.length:
            yield chunk
        elif chunk.apart is None:
            data = next(moved)
            yield replace(chunk, data=data, prints=next(moved))
        else:
            yield replace(chunk, prints=next(moved))
