"""Pruning and redaction: the only two operations that rewrite a journal.

Each segment is replaced whole, by one rename, the newest one first. After each rename the journal is sound,
so an interrupt leaves versions that weren't pruned yet and nothing worse. Records that stay are the same
bytes. That is why versions that are pruned together get one record in each segment, with the state after the
last of them.

Folds hold offsets in the old segments. They are written anew under new names, or removed if that can't be
done: see the editions in :mod:`everthread.stores.files.journal`.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.packs import Chunk, Pack
from everthread.history.retention import read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, write_keyframe
from everthread.stores.contract import DELTA, PACK, PRUNED, REWIND, Fold, NewRow, Prune, Row
from everthread.stores.files import pack_files
from everthread.stores.files.disk import TEMPORARY, Disk, Replaced
from everthread.stores.files.journal import Entry, Spot, begin_edition, end_edition, segment_name
from everthread.stores.files.json_form import read_pruned, render, render_pruned, without_items
from everthread.stores.files.line_files import LineFiles, Ref, StateGone, add_pack, add_pruned, tags_of
from everthread.stores.files.pack_files import (
    ChunkEntry,
    DerivedDamage,
    Extent,
    KeyframeEntry,
    PackEntry,
    TagEntry,
    Volume,
    remove_folds,
)


class Edit(Struct, kw_only=True):
    """A stretch of a segment, and the record that replaces it.

    ``items`` is the new file of items, with its ``content``; ``freed`` are the files that it replaces.
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


class _Piece(Struct):
    """Consecutive versions in one segment that go: the row that replaces them, and their entries."""

    row: Row
    entries: list[Entry]


class JournalPruner:
    """Replaces rows and drops items in one line. The caller holds the lock."""

    def __init__(self, files: LineFiles, states: States, disk: Disk) -> None:
        self._files = files
        self._states = states
        self._disk = disk
        #: The newest metadata as of each entry.
        self._tags: dict[int, dict[str, bytes]] = {}

    def run(self, prune: Prune) -> bool:
        """False, and nothing changed, if the rows aren't these any more."""
        refs = self._current_refs(prune)
        if refs is None:
            return False
        entries = self._entries(refs)
        self._note_tags(entries)
        edits = [self._edit(piece, prune) for piece in self._pieces(prune.rows, entries)]
        if prune.dropped:
            edits += self._drops(prune, {edit.last for edit in edits})
        if edits:
            self._apply(edits, prune.rows, entries)
        return True

    # ── what is there ────────────────────────────────────────────────────────────────────────

    def _current_refs(self, prune: Prune) -> list[Ref] | None:
        """Where the rows to be replaced are, oldest first; ``None`` if they changed."""
        refs: list[Ref] = []
        if not prune.old:
            return refs
        waiting = list(prune.old)
        for ref in self._files.down(prune.old[-1].seq):
            if not waiting:
                break
            if self._files.row(ref) != waiting.pop():
                return None
            refs.append(ref)
        return None if waiting else refs[::-1]

    def _entries(self, refs: list[Ref]) -> list[Entry]:
        """The journal's entries behind these rows."""
        found: list[Entry] = []
        for ref, _ in refs:
            if isinstance(ref, Entry):
                found.append(ref)
            else:
                stop = Spot(ref.at.segment, ref.at.offset + ref.length)
                found.extend(self._files.journal.between(ref.start, stop, ref.first - 1))
        if any(entry.kind not in (DELTA, REWIND, PRUNED) for entry in found):
            raise StateCorruptedError(
                f"versions of {self._files.line.name!r} can't be read; see store.verify()"
            )
        return found

    def _pieces(self, rows: tuple[Row, ...], entries: list[Entry]) -> Iterator[_Piece]:
        """The rows of pruned versions, cut where segments end."""
        for row in rows:
            if row.kind != PRUNED:
                continue
            first = bisect.bisect_left(entries, row.first, key=lambda entry: entry.seq)
            stop = bisect.bisect_right(entries, row.seq, key=lambda entry: entry.seq)
            within: dict[int, list[Entry]] = {}
            for entry in entries[first:stop]:
                within.setdefault(entry.at.segment, []).append(entry)
            for group in within.values():
                piece = row if len(within) == 1 else self._cut(row, group[0].first, group[-1])
                yield _Piece(piece, group)

    def _cut(self, row: Row, first: int, end: Entry) -> Row:
        """The part of a row of pruned versions that lies in one segment."""
        whole = read_tombstone(row.body)
        low, high = first - row.first, end.seq - row.first + 1
        heads = {index - low: head for index, head in whole.heads.items() if low <= index < high}
        body = tombstone(whole.digests[low:high], heads)
        keyframe = None
        if row.keyframe is not None or row.net is not None:
            keyframe = row.keyframe if end.seq == row.seq else None
            keyframe = keyframe or self._keyframe(end.seq)
        return Row(end.seq, first, PRUNED, end.hash, body, None, keyframe)

    def _keyframe(self, seq: int) -> bytes | None:
        """The state after a version; none where nothing goes on from it, because a rewind follows."""
        try:
            keyframe = write_keyframe(self._states(seq))
        except StateGone:
            return None
        if keyframe is None:
            raise StateCorruptedError("the document is too large for a keyframe; its past can't be pruned")
        return keyframe

    # ── what takes their place ───────────────────────────────────────────────────────────────

    def _edit(self, piece: _Piece, prune: Prune) -> Edit:
        files, row = self._files, piece.row
        keys: list[tuple[bytes, int]] = []
        chunks: list[Chunk] = []
        splices: list[list[object]] = []
        blocks: list[bytes] = []
        for entry in piece.entries:
            if entry.kind == PRUNED:
                pruned = files.pruned_record(entry)
                keys += pruned.key_hashes()
                chunks += [*files.kept_chunks(pruned), *pruned.stubs()]
                continue
            if entry.key is not None:
                keys.append((entry.key, entry.seq))
            chunks += files.record_chunks(entry, blocks=False)
            _, encoded, inside = records.read_record(files.journal.body(entry))
            if inside:
                splices += records.read_change(encoded).logs
                blocks += inside
        chunks += packs.detach([splice for splice in splices if splice[3]], blocks)
        return self._render(row, piece.entries, keys, self._tags[row.seq], chunks, prune)

    def _render(
        self,
        row: Row,
        entries: list[Entry],
        keys: list[tuple[bytes, int]],
        tags: Mapping[str, bytes],
        chunks: list[Chunk],
        prune: Prune,
    ) -> Edit:
        chunks = [left for chunk in chunks for left in without_items(chunk, prune.dropped)]
        text, name, items = render_pruned(row, keys, tags, chunks, durable=self._disk.durable)
        return Edit(
            segment=entries[0].at.segment,
            start=entries[0].at.offset,
            stop=entries[-1].end.offset,
            text=text,
            first=row.first,
            last=row.seq,
            items=name,
            content=items,
            chunks=chunks,
            freed={entry.items for entry in entries if entry.items},
        )

    def _note_tags(self, entries: list[Entry]) -> None:
        files = self._files
        tags = dict(files.first_tags)
        for pack, _ in files.folds.down(entries[0].first - 1) if entries else ():
            # The first pack may hold the entries themselves: a rewind, which is in no pack, may come below
            # it.
            if pack.last < entries[0].first:
                tags = dict(pack.tags)
                break
        for entry in entries:
            if entry.kind == PRUNED:
                tags = files.pruned_record(entry).newest_tags()
            else:
                tags.update(tags_of(files.journal.body(entry)))
            self._tags[entry.seq] = dict(tags)

    def _drops(self, prune: Prune, done: set[int]) -> Iterator[Edit]:
        """Edits for records of pruned versions that keep items which nobody holds any more."""
        for ref in self._files.down(self._files.last_seq):
            found = ref[0]
            last = found.seq if isinstance(found, Entry) else found.last
            if found.kind != PRUNED or last in done:
                continue
            pruned = self._files.pruned_record(found)
            if any(
                log == part.log and start < part.position + part.count and part.position < stop
                for part in pruned.apart
                for log, start, stop in prune.dropped
            ):
                chunks = [*self._files.kept_chunks(pruned), *pruned.stubs()]
                line = Entry(last, PRUNED, found.hash, None, found.at, found.length, items=pruned.items)
                yield self._render(
                    pruned.row(), [line], pruned.key_hashes(), pruned.newest_tags(), chunks, prune
                )

    # ── doing it ─────────────────────────────────────────────────────────────────────────────

    def _apply(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry]) -> None:
        files, disk = self._files, self._disk
        # Put a torn end aside, as before every append.
        files.journal.file.prepare()
        for edit in edits:
            if edit.items:
                self._write_items(os.path.join(files.folder, edit.items), edit.content)
        disk.sync_folder(files.folder)
        edition = begin_edition(files.folder, disk)
        for segment in sorted({edit.segment for edit in edits}, reverse=True):
            within = sorted((edit for edit in edits if edit.segment == segment), key=lambda edit: edit.start)
            disk.replace(files.journal.path(segment), self._rewritten(segment, within))
        # If the edition file was removed, editions count from 0 again: volumes of that number may be left.
        remove_folds(files.folder, only=edition)
        self._derive(edits, rows, entries, edition)
        remove_folds(files.folder, but=edition)
        kept = {edit.items for edit in edits}
        for name in {name for edit in edits for name in edit.freed} - kept:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(files.folder, name))
        end_edition(files.folder, edition)

    def _derive(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry], edition: int) -> None:
        """Write the folds of the edited segments anew, or remove them to be made again."""
        try:
            VolumeRewriter(self._files, edits, edition).run(rows, entries)
        except (DerivedDamage, StateCorruptedError, Replaced):
            remove_folds(self._files.folder)

    def _write_items(self, path: str, content: bytes) -> None:
        """Its name holds a hash of its content: a file of that name is the same, or unfinished."""
        with suppress(FileNotFoundError), open(path, "rb") as file:
            if file.read() == content:
                self._disk.sync(file.fileno())
                return
        self._disk.write_new(path, content)

    def _rewritten(self, segment: int, edits: list[Edit]) -> bytes:
        text = self._files.journal.read(Spot(segment, 0), None)
        parts: list[bytes] = []
        at = 0
        for edit in edits:
            parts += (text[at : edit.start], edit.text)
            at = edit.stop
        return b"".join((*parts, text[at:]))


def finish_pruning(files: LineFiles, disk: Disk) -> None:
    """Finish an interrupted pruning: remove all folds, and files of items that no record names."""
    folder = files.folder
    edition = begin_edition(folder, disk)
    remove_folds(folder)
    fresh = LineFiles(files.line, folder, {}, disk)
    fresh.load(derived=False)
    try:
        entries = fresh.journal.entries
        named = {entry.items for entry in entries}
        # A record that can't be read may name any file of items.
        sound = all(entry.kind in (DELTA, REWIND, PRUNED) for entry in entries)
    finally:
        fresh.close()
    for name in os.listdir(folder):
        unfinished = name.startswith(TEMPORARY + segment_name(0)[:8])
        if unfinished or (sound and name.startswith("items-") and name not in named):
            os.unlink(os.path.join(folder, name))
    end_edition(folder, edition)


# ── redaction ──────────────────────────────────────────────────────────────────────────────────────
# A version keeps its seq and hash, and gets another record, whose head holds the digest of the first one.
# Records of pruned versions, and their items, are written anew. Folds are made again.


class JournalRedactor(JournalPruner):
    """Rewrites versions, and items of pruned ones, in one line. The caller holds the lock."""

    def run(self, prune: Prune) -> bool:
        """False, and nothing changed, if the rows aren't these any more."""
        refs = self._current_refs(prune)
        if refs is None:
            return False
        entries = self._entries(refs)
        bodies = dict(prune.records)
        pruned = {row.seq: row for row in prune.rows if row.kind == PRUNED}
        edits = [self._version_edit(entry, bodies[entry.seq]) for entry in entries if entry.seq in bodies]
        edits += self._pruned_edits(pruned, prune.chunks)
        if edits:
            self._apply(edits, prune.rows, entries)
        return True

    def _version_edit(self, entry: Entry, body: bytes) -> Edit:
        """The edit for a version: its new record holds all of its items."""
        row = NewRow(entry.seq, entry.kind, b"", entry.hash, body, entry.key)
        return Edit(
            segment=entry.at.segment,
            start=entry.at.offset,
            stop=entry.end.offset,
            text=render(row, durable=self._disk.durable),
            first=entry.seq,
            last=entry.seq,
            items="",
            content=b"",
            chunks=[],
            freed={entry.items} if entry.items else set(),
        )

    def _pruned_edits(self, rows: dict[int, Row], changed: Iterable[Chunk]) -> Iterator[Edit]:
        """Edits for records of pruned versions whose row or items change."""
        for ref in self._files.down(self._files.last_seq):
            found = ref[0]
            if found.kind != PRUNED:
                continue
            last = found.seq if isinstance(found, Entry) else found.last
            pruned = self._files.pruned_record(found)
            before = self._files.kept_chunks(pruned)
            after = [replaced(chunk, changed) for chunk in before]
            row = rows.get(last, pruned.row())
            if row != pruned.row() or after != before:
                line = Entry(last, PRUNED, found.hash, None, found.at, found.length, items=pruned.items)
                chunks = [*after, *pruned.stubs()]
                yield self._render(row, [line], pruned.key_hashes(), pruned.newest_tags(), chunks, Prune())

    def _derive(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry], edition: int) -> None:
        remove_folds(self._files.folder)


def replaced(chunk: Chunk, changed: Iterable[Chunk]) -> Chunk:
    """A chunk with the items that ``changed`` has for its positions."""
    items: list[bytes] | None = None
    for other in changed:
        start, stop = max(chunk.position, other.position), min(chunk.end, other.end)
        if other.log == chunk.log and start < stop:
            if items is None:
                items = records.split(chunk.block())
            theirs = records.split(other.block())
            items[start - chunk.position : stop - chunk.position] = theirs[
                start - other.position : stop - other.position
            ]
    if items is None or items == records.split(chunk.block()):
        return chunk
    prints = b"".join(map(records.print_of, items))
    return Chunk(chunk.log, chunk.position, chunk.count, prints, records.compress(records.array(items)))


# ── new volumes for a rewritten journal ────────────────────────────────────────────────────────────


class VolumeRewriter:
    """Writes the volumes of a new edition; those without offsets in the edited segments are only renamed."""

    def __init__(self, files: LineFiles, edits: list[Edit], edition: int) -> None:
        self._files = files
        self._edits = sorted(edits, key=lambda edit: edit.first)
        self._edition = edition
        self._segments = {edit.segment for edit in edits}
        self._old: dict[int, Volume] = {}
        self._volume: Volume | None = None
        self._counts: dict[str, int] = {}
        self._tags = dict(files.first_tags)
        self._first = 0

    def shift(self, spot: Spot) -> Spot:
        """The new place of a record, given its old one."""
        moved = spot.offset
        for edit in self._edits:
            if edit.segment == spot.segment and edit.stop <= spot.offset:
                moved += len(edit.text) - (edit.stop - edit.start)
        return Spot(spot.segment, moved)

    def run(self, rows: tuple[Row, ...], entries: list[Entry]) -> None:
        """Raises :class:`DerivedDamage` if all folds have to be made again."""
        every = self._files.folds.volumes
        touched = [index for index, volume in enumerate(every) if self._is_touched(volume)]
        if not touched or self._files.journal.hidden:
            # The old volumes lack versions below the pruned ones.
            raise DerivedDamage(self._files.folder)
        # Rewrite all volumes from the first to the last one that changes.
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
    ) -> Iterator[Row | Edit | tuple[Volume, pack_files.AnyEntry]]:
        """What the new volumes hold, in the order of versions."""
        low, high = (rows[0].first, rows[-1].seq) if rows else (0, -1)
        edited = {edit.last for edit in self._edits}
        found: list[tuple[int, Row | Edit | tuple[Volume, pack_files.AnyEntry]]] = []
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

    def _volume_for(self, first: int) -> Volume:
        """Where the next pack goes."""
        if self._volume is None or len(self._volume.packs) >= pack_files.VOLUME_PACKS:
            if self._volume is not None:
                self._volume.close()
            self._volume = Volume(self._files.folder, max(first, self._first), self._edition)
            self._first = self._volume.first + 1
        return self._volume

    def _note(self, entry: PackEntry) -> None:
        self._counts, self._tags = dict(entry.counts), dict(entry.tags)

    # ── what they hold ───────────────────────────────────────────────────────────────────────

    def _add_row(self, row: Row, entries: list[Entry]) -> None:
        """Add a pack of the versions that stay of a larger pack."""
        singles = [entry for entry in entries if row.first <= entry.seq <= row.seq]
        bodies = [self._files.journal.body(entry) for entry in singles]
        made = packs.fold(row.first, bodies, [entry.hash for entry in singles])
        keys = tuple((entry.key, entry.seq) for entry in singles if entry.key is not None)
        for body in bodies:
            self._tags.update(tags_of(body))
        pack = Pack(row.first, row.seq, row.body, row.net or b"", made.chunks)
        fold = Fold(pack, row.hash, row.keyframe, keys)
        volume = self._volume_for(row.first)
        journal = self._files.journal
        self._note(add_pack(volume, journal, fold, singles, self._counts, dict(self._tags), self.shift))

    def _add_edit(self, edit: Edit) -> None:
        at = self.shift(Spot(edit.segment, edit.start))
        pruned = read_pruned(edit.text, edit.items)
        volume = self._volume_for(edit.first)
        self._note(add_pruned(volume, pruned, edit.chunks, at, len(edit.text), self._counts))

    def _copy(self, old: Volume, entry: pack_files.AnyEntry) -> None:
        if isinstance(entry, TagEntry):
            self._volume_for(entry.seq).add(entry)
        elif isinstance(entry, KeyframeEntry):
            volume = self._volume or self._volume_for(entry.seq)
            (place,) = volume.put([old.frame(entry.keyframe)])
            volume.add(replace(entry, keyframe=place))
        else:
            self._copy_pack(old, entry)

    def _copy_pack(self, old: Volume, entry: PackEntry) -> None:
        volume = self._volume_for(entry.first)
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


def _moved_chunks(chunks: Iterable[ChunkEntry], moved: Iterator[Extent]) -> Iterator[ChunkEntry]:
    for chunk in chunks:
        if not chunk.data.length:
            yield chunk
        elif chunk.apart is None:
            data = next(moved)
            yield replace(chunk, data=data, prints=next(moved))
        else:
            yield replace(chunk, prints=next(moved))


States = Callable[[int], Snapshot]
