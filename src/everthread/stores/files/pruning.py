"""Taking versions out of a journal: the one thing that rewrites it.

Each segment is replaced whole, by one rename, the newest one first; after each rename the journal is sound,
so that an interrupt leaves versions that weren't pruned yet and nothing worse. Lines that stay are the same
bytes. For that, versions that are pruned together are told of once in each segment, and each of these lines
has the state that comes after it.

What was derived from the old segments knows places in them. It is written anew under new names, and removed
if that can't be done: see :mod:`everthread.stores.files.editions`.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.packs import Chunk
from everthread.history.retention import read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, write_keyframe
from everthread.stores.contract import DELTA, PRUNED, REWIND, Prune, Row
from everthread.stores.files import editions
from everthread.stores.files.disk import TEMPORARY, Disk
from everthread.stores.files.journal import segment_name
from everthread.stores.files.linefile import Replaced
from everthread.stores.files.parsing import Entry, Spot
from everthread.stores.files.refolding import tags_of
from everthread.stores.files.revolving import Edit, Revolving
from everthread.stores.files.states import StateGone
from everthread.stores.files.tombstones import render_tomb, without
from everthread.stores.files.track import Ref, Track
from everthread.stores.files.volumes import DerivedDamage, remove_folds

States = Callable[[int], Snapshot]


class _Piece(Struct):
    """Versions one after another that go, in one segment: the row that takes their place, and their lines."""

    row: Row
    entries: list[Entry]


class Pruning:
    """Puts rows in the place of others, and drops items, in one line. The caller has the turn."""

    def __init__(self, track: Track, states: States, disk: Disk) -> None:
        self._track = track
        self._states = states
        self._disk = disk
        #: The newest metadata as of each line that is worked on.
        self._tags: dict[int, dict[str, bytes]] = {}

    def run(self, prune: Prune) -> bool:
        """False, and nothing changed, if the rows aren't these any more."""
        refs = self._standing(prune)
        if refs is None:
            return False
        entries = self._entries(refs)
        self._note_tags(entries)
        edits = [self._edit(piece, prune) for piece in self._pieces(prune.rows, entries)]
        if prune.dropped:
            edits += self._drops(prune, {edit.last for edit in edits})
        if edits:
            self._carry_out(edits, prune.rows, entries)
        return True

    # ── what is there ────────────────────────────────────────────────────────────────────────

    def _standing(self, prune: Prune) -> list[Ref] | None:
        """Where the rows are that are to go, oldest first."""
        refs: list[Ref] = []
        if not prune.old:
            return refs
        waiting = list(prune.old)
        for ref in self._track.down(prune.old[-1].seq):
            if not waiting:
                break
            if self._track.row(ref) != waiting.pop():
                return None
            refs.append(ref)
        return None if waiting else refs[::-1]

    def _entries(self, refs: list[Ref]) -> list[Entry]:
        """The lines of the journal behind these rows."""
        found: list[Entry] = []
        for ref, _ in refs:
            if isinstance(ref, Entry):
                found.append(ref)
            else:
                stop = Spot(ref.at.segment, ref.at.offset + ref.length)
                found.extend(self._track.journal.between(ref.start, stop, ref.first - 1))
        if any(entry.kind not in (DELTA, REWIND, PRUNED) for entry in found):
            raise StateCorruptedError(
                f"versions of {self._track.line.name!r} can't be read; see store.verify()"
            )
        return found

    def _pieces(self, rows: tuple[Row, ...], entries: list[Entry]) -> Iterator[_Piece]:
        """The rows that stand for pruned versions, cut where segments end."""
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
        """A part of a row of pruned versions that stands on its own."""
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
        track, row = self._track, piece.row
        keys: list[tuple[bytes, int]] = []
        chunks: list[Chunk] = []
        splices: list[list[object]] = []
        blocks: list[bytes] = []
        for entry in piece.entries:
            if entry.kind == PRUNED:
                tomb = track.tomb(entry)
                keys += tomb.key_hashes()
                chunks += [*track.kept_chunks(tomb), *tomb.stubs()]
                continue
            if entry.key is not None:
                keys.append((entry.key, entry.seq))
            chunks += track.record_chunks(entry, blocks=False)
            _, encoded, inside = records.read_record(track.journal.body(entry))
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
        chunks = [left for chunk in chunks for left in without(chunk, prune.dropped)]
        text, name, items = render_tomb(row, keys, tags, chunks, durable=self._disk.durable)
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
        track = self._track
        tags = dict(track.first_tags)
        for pack, _ in track.folds.down(entries[0].first - 1) if entries else ():
            # The first one may be that of the entries themselves: a rewind, which is in none, stands below.
            if pack.last < entries[0].first:
                tags = dict(pack.tags)
                break
        for entry in entries:
            if entry.kind == PRUNED:
                tags = track.tomb(entry).newest_tags()
            else:
                tags.update(tags_of(track.journal.body(entry)))
            self._tags[entry.seq] = dict(tags)

    def _drops(self, prune: Prune, done: set[int]) -> Iterator[Edit]:
        """Lines of pruned versions whose items aren't all held any more."""
        for ref in self._track.down(self._track.last_seq):
            found = ref[0]
            last = found.seq if isinstance(found, Entry) else found.last
            if found.kind != PRUNED or last in done:
                continue
            tomb = self._track.tomb(found)
            if any(
                log == part.log and start < part.position + part.count and part.position < stop
                for part in tomb.apart
                for log, start, stop in prune.dropped
            ):
                chunks = [*self._track.kept_chunks(tomb), *tomb.stubs()]
                line = Entry(last, PRUNED, found.hash, None, found.at, found.length, items=tomb.items)
                yield self._render(tomb.row(), [line], tomb.key_hashes(), tomb.newest_tags(), chunks, prune)

    # ── doing it ─────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry]) -> None:
        track, disk = self._track, self._disk
        # What is torn at its end is put aside, as before every append.
        track.journal.file.prepare()
        for edit in edits:
            if edit.items:
                self._write_items(os.path.join(track.folder, edit.items), edit.content)
        disk.sync_folder(track.folder)
        edition = editions.begin(track.folder, disk)
        for segment in sorted({edit.segment for edit in edits}, reverse=True):
            within = sorted((edit for edit in edits if edit.segment == segment), key=lambda edit: edit.start)
            disk.replace(track.journal.path(segment), self._rewritten(segment, within))
        # Editions are counted anew where somebody removed the count.
        remove_folds(track.folder, only=edition)
        self._derive(edits, rows, entries, edition)
        remove_folds(track.folder, but=edition)
        kept = {edit.items for edit in edits}
        for name in {name for edit in edits for name in edit.freed} - kept:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(track.folder, name))
        editions.end(track.folder, edition)

    def _derive(self, edits: list[Edit], rows: tuple[Row, ...], entries: list[Entry], edition: int) -> None:
        """Write anew what was derived from the old segments, or let it be made again."""
        try:
            Revolving(self._track, edits, edition).run(rows, entries)
        except (DerivedDamage, StateCorruptedError, Replaced):
            remove_folds(self._track.folder)

    def _write_items(self, path: str, content: bytes) -> None:
        """It is called after what it holds: what is there under that name is this, or was never finished."""
        with suppress(FileNotFoundError), open(path, "rb") as file:
            if file.read() == content:
                self._disk.sync(file.fileno())
                return
        self._disk.write_new(path, content)

    def _rewritten(self, segment: int, edits: list[Edit]) -> bytes:
        text = self._track.journal.read(Spot(segment, 0), None)
        parts: list[bytes] = []
        at = 0
        for edit in edits:
            parts += (text[at : edit.start], edit.text)
            at = edit.stop
        return b"".join((*parts, text[at:]))


def tidy_up(track: Track, disk: Disk) -> None:
    """Finish what somebody was interrupted in: whatever is derived goes, and what nobody names."""
    folder = track.folder
    edition = editions.begin(folder, disk)
    remove_folds(folder)
    fresh = Track(track.line, folder, {}, disk)
    fresh.load(derived=False)
    try:
        entries = fresh.journal.entries
        named = {entry.items for entry in entries}
        # Where a line can't be read nobody knows what it named.
        sound = all(entry.kind in (DELTA, REWIND, PRUNED) for entry in entries)
    finally:
        fresh.close()
    for name in os.listdir(folder):
        unfinished = name.startswith(TEMPORARY + segment_name(0)[:8])
        if unfinished or (sound and name.startswith("items-") and name not in named):
            os.unlink(os.path.join(folder, name))
    editions.end(folder, edition)
