"""What a store holds: one content folder with its lines, sealed values, cells and streams."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from everthread.stores.contract import (
    PRUNED,
    REWIND,
    Found,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Prune,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
    split_keys,
)
from everthread.stores.files import line_folder
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.cells import Cells
from everthread.stores.files.disk import Disk
from everthread.stores.files.events import Streams
from everthread.stores.files.journal import Entry, Spot, header, items_name, segment_name
from everthread.stores.files.json_form import Part, render, render_items
from everthread.stores.files.layout import thread_folder
from everthread.stores.files.line_folder import Track, state_at
from everthread.stores.files.pack_files import remove_folds
from everthread.stores.files.prune import Pruning, Rewriting, tidy_up
from everthread.stores.files.record_file import Replaced
from everthread.stores.files.sealed import Ledger, SealedValues
from everthread.stores.files.views import VIEW, Views

# ── lines ────────────────────────────────────────
# The lines of a content folder: finding one, and what it holds, past what others change meanwhile.


#: So many lines are kept in mind, each with its files open.
TRACKS_MAX = 128


class Lines:
    """The lines of one content folder, as they stand on disk. Not for two threads at once."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self.catalog = Catalog(folder, disk)
        self.views = Views(self, self._known_track, disk)
        self._tracks: dict[int, Track] = {}
        #: Folders in which what folding derived is damaged.
        self._spoilt: set[str] = set()
        #: Lines whose folds are missing.
        self._long: set[int] = set()
        #: Lines that are sealed, but not in the catalog.
        self._half_deleted: set[int] = set()
        #: Lines whose pruning was interrupted.
        self._halfway: set[int] = set()
        #: The lines that were looked at, for who wants to know whether they stayed as they were.
        self.looked: list[Track] = []

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    def line(self, line: int) -> Line | None:
        return self.catalog.lines.get(line)

    def line_by_uid(self, uid: bytes) -> Line | None:
        found = self.catalog.uids.get(uid)
        return None if found is None else self.catalog.lines[found]

    def every_line(self) -> list[Line]:
        return [line for _, line in sorted(self.catalog.lines.items())]

    def path(self, line: int) -> str:
        return os.path.join(self.folder, "threads", self.catalog.folders[line])

    def track(self, line: int) -> Track | None:
        """A line as it stands now; ``None`` if there never was one, or nothing of it is left."""
        known = self.catalog.lines.get(line)
        if known is None or line in self.catalog.purged:
            return None
        track = self._tracks.get(line)
        if track is not None:
            try:
                track.refresh()
            except (Replaced, FileNotFoundError):
                self.forget(line)
                track = None
        if track is None:
            track = self._tracks[line] = self._load(known)
        elif track.line is not known:
            track.line = known
        self.looked.append(track)
        return track

    @property
    def moved(self) -> bool:
        """Whether somebody pruned, meanwhile, what was looked at."""
        return any(track.moved for track in self.looked)

    def _load(self, line: Line) -> Track:
        while len(self._tracks) >= TRACKS_MAX:
            self.forget(next(iter(self._tracks)))
        track = Track(line, self.path(line.id), self.catalog.tags[line.id], self._disk)
        track.load(derived=track.folder not in self._spoilt)
        if track.halfway:
            self._halfway.add(line.id)
        elif line_folder.is_due(track):
            self._long.add(line.id)
        if not line.deleted and not track.journal.sealed:
            self.views.note_stale(track)
        elif not line.deleted:
            self._half_deleted.add(line.id)
        return track

    def _known_track(self, line: int) -> Track:
        track = self._tracks.get(line) or self.track(line)
        if track is None:
            raise FileNotFoundError(line)
        return track

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        track = self.track(line)
        return [] if track is None else track.replay(seq, floor)

    def found(self, line: Line) -> Found | None:
        """A live line and its newest row."""
        track = self.track(line.id)
        # A deletion that was interrupted counts: its seal is there, and nothing follows it.
        return None if track is None or track.journal.sealed else track.found()

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        """(line, seq) of the versions in a family of lines that carry a key."""
        found: list[tuple[int, int]] = []
        for id_ in self.catalog.families.get(root, ()):
            track = self.track(id_)
            if track is not None:
                found.extend((id_, seq) for seq in track.keyed(key))
        return found

    def tagged(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        """Live lines whose tags have these values, by name. Looks at every line of the namespace."""
        found = []
        for line in self._living(space):
            track = self.track(line.id)
            if track is not None and not track.journal.sealed:
                has = track.tags()[0]
                if all(has.get(name) == value for name, value in tags.items()):
                    found.append(track.found())
        return found

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        found = []
        for line in self._living(space):
            track = self.track(line.id)
            if track is not None and track.newest is not None and not track.journal.sealed:
                covered = track.tags()[1]
                if track.last_seq > covered:
                    found.append((line, covered))
        return found

    def _living(self, space: str) -> list[Line]:
        names = self.catalog.names(space, "", None)
        return [line for name in names if (line := self.catalog.find(space, name)) is not None]

    def forget(self, line: int) -> None:
        """Read it anew the next time."""
        track = self._tracks.pop(line, None)
        self.views.forget(line)
        if track is not None:
            track.close()

    def forget_all(self) -> None:
        for line in list(self._tracks):
            self.forget(line)


# ── appending ────────────────────────────────────────
# Rows on their way into journals: made ready before anybody waits, written together, synced together.


class Prepared(Struct):
    """A row on its way to the disk: its line of the journal, and the file of items that stand apart."""

    row: NewRow
    text: bytes
    items: bytes
    parts: list[Part]


def prepare(row: NewRow, *, durable: bool) -> Prepared:
    """Everything about a row that needs no disk."""
    items, parts = render_items(row.chunks) if row.chunks else (b"", [])
    return Prepared(row, render(row, durable=durable, parts=parts), items, parts)


def write_extras(folder: str, prepared: Prepared, sealed: SealedValues, disk: Disk) -> None:
    """What a row refers to is durable before the row is."""
    row = prepared.row
    if row.sealed:
        sealed.put(row.sealed)
    if prepared.items:
        disk.write_new(os.path.join(folder, items_name(row.seq, row.hash)), prepared.items)
        disk.sync_folder(folder)


class Batch:
    """Rows of one line that are written together."""

    def __init__(self, track: Track) -> None:
        self.track = track
        #: What the next row has to build on.
        self.hash = track.hash
        #: Which of the rows that were handed in these are.
        self.indices: list[int] = []
        self._prepared: list[Prepared] = []
        self._entries: list[Entry] = []
        self._end = track.journal.end
        self._text = b""

    def add(self, prepared: Prepared, index: int) -> None:
        row, length = prepared.row, len(prepared.text)
        entry = Entry(row.seq, row.kind, row.hash, row.key, self._end, length, prepared.parts, None, row.body)
        if prepared.parts:
            entry.items = items_name(row.seq, row.hash)
        self._entries.append(entry)
        self._end = Spot(self._end.segment, self._end.offset + length)
        self._prepared.append(prepared)
        self.indices.append(index)
        self.hash = row.hash

    def newest(self) -> Row | None:
        """The row that another one would have had to build on."""
        if self._entries:
            return self.track.row((self._entries[-1], None))
        return self.track.found().newest

    def write(self, sealed: SealedValues, disk: Disk) -> None:
        """The first half: in the files, but not durable."""
        for prepared in self._prepared:
            if prepared.items or prepared.row.sealed:
                write_extras(self.track.folder, prepared, sealed, disk)
        file = self.track.journal.file
        file.prepare()
        self._text = b"".join(prepared.text for prepared in self._prepared)
        file.write(self._text)

    def sync(self) -> None:
        """The second half: now they count."""
        self.track.journal.file.sync(self._text)
        for entry in self._entries:
            self.track.journal.add(entry)


class Content(Lines):
    """One content folder. Not for two threads at once."""

    def __init__(self, folder: str, disk: Disk) -> None:
        super().__init__(folder, disk)
        self.sealed = SealedValues(folder, disk)
        self.ledger = Ledger(folder, disk)
        self.cells = Cells(folder, disk)
        self.streams = Streams(folder, disk)
        self._tidy = False

    # ── writing: the caller has the turn ─────────────────────────────────────────────────────

    def create(self, line: Line, prepared: Prepared | None, source: int, tags: Mapping[str, bytes]) -> Line:
        if source and not self._can_fork(line, source):
            raise SourceGone
        self._free(line.space, line.name)
        if prepared is not None:
            self.check_keys(prepared.row.sealed)
        if line.uid in self.catalog.uids:
            raise NameTaken
        line = self.catalog.next_line(line)
        folder = os.path.join(self.folder, "threads", thread_folder(line.name, line.uid))
        # What is there was left by somebody who was interrupted before the line existed.
        shutil.rmtree(folder, ignore_errors=True)
        self._disk.make_folder(folder)
        first = line.parent_seq + 1
        text = header(line, first, durable=self._disk.durable)
        if prepared is not None:
            write_extras(folder, prepared, self.sealed, self._disk)
            text += prepared.text
        self._disk.write_new(os.path.join(folder, segment_name(first)), text)
        self._disk.sync_folder(folder)
        self.catalog.add(line, tags)
        track = self.track(line.id)
        assert track is not None
        self.views.touch(track)
        return self.catalog.lines[line.id]

    def _can_fork(self, line: Line, source: int) -> bool:
        found = self.line(source)
        if found is None or self.found(found) is None or found.deleted:
            return False
        parent = self.track(line.parent)
        if parent is not None and parent.is_pruned(line.parent_seq):
            raise VersionGone
        return parent is not None and parent.last_seq >= line.parent_seq

    def _free(self, space: str, name: str) -> None:
        """Raise :class:`NameTaken` unless the name is free; finish a deletion that was interrupted."""
        taken = self.catalog.find(space, name)
        if taken is not None:
            if self.found(taken) is not None:
                raise NameTaken
            self._finish_deletion(taken)

    def append(self, rows: list[tuple[int, Prepared]]) -> list[Exception | None]:
        """Append rows, with a sync for each line at its end; what went wrong with each.

        An :class:`OSError` stands for a row whose line couldn't be written.
        """
        outcomes: list[Exception | None] = []
        waiting: dict[int, Batch] = {}
        for line, prepared in rows:
            if line not in self.catalog.lines:
                self.catalog.refresh()
            outcomes.append(self._plan(line, prepared, waiting, len(outcomes)))
        for step in (lambda batch: batch.write(self.sealed, self._disk), Batch.sync):
            for line, batch in list(waiting.items()):
                try:
                    step(batch)
                except (OSError, Replaced) as error:
                    for index in batch.indices:
                        outcomes[index] = error if isinstance(error, OSError) else OSError(str(error))
                    self.forget(line)
                    del waiting[line]
        for line, batch in waiting.items():
            self.views.touch(batch.track)
            if self._tracks.get(line) is not batch.track:
                # So many lines at once that this one had to make room.
                batch.track.close()
        return outcomes

    def _plan(self, line: int, prepared: Prepared, waiting: dict[int, Batch], index: int) -> Exception | None:
        """Add a row to what is written next, unless it may not be appended."""
        batch = waiting.get(line)
        if batch is None:
            track = self.track(line)
            if track is None or track.line.deleted or track.journal.sealed:
                return StaleWrite(None if track is None else track.found().newest, sealed=True)
            batch = Batch(track)
        if prepared.row.previous != batch.hash:
            return StaleWrite(batch.newest())
        if erased := self._erased_keys(prepared.row.sealed):
            return KeyErased(erased)
        source = prepared.row.source
        found = None if source is None else self.track(source[0])
        if source is not None and found is not None and found.is_pruned(source[1]):
            return VersionGone()
        if prepared.row.guard and self._knows_key(batch.track.line, prepared.row.key):
            return KeyKnown()
        batch.add(prepared, index)
        waiting[line] = batch
        return None

    def _erased_keys(self, rows: Iterable[SealedRow]) -> frozenset[bytes]:
        used = {key_id for _, keys, _ in rows for key_id in split_keys(keys)}
        return frozenset(used & self.ledger.read().keys()) if used else frozenset()

    def check_keys(self, rows: Iterable[SealedRow]) -> None:
        """Raise :class:`KeyErased` if any of these is sealed under a key that was erased."""
        if erased := self._erased_keys(rows):
            raise KeyErased(erased)

    def _knows_key(self, line: Line | None, key: bytes | None) -> bool:
        """Whether a folded version of a line, or of one that it was forked from, carries the key.

        That of another fork would be none of its business.
        """
        while line is not None and key is not None:
            track = self._tracks.get(line.id) or self.track(line.id)
            if track is not None and track.keyed_before(key):
                return True
            line = self.line(line.parent) if line.parent else None
        return False

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        track = self.track(line.id)
        found = self.line(line.id)
        if track is None or found is None or found.deleted or found.uid != line.uid:
            return False
        if newest not in (None, track.hash):
            return False
        sealed_before = track.journal.sealed
        if not sealed_before:
            # From here on nothing follows, whatever becomes of the rest.
            track.journal.seal()
        self._finish_deletion(found)
        return not sealed_before

    def _finish_deletion(self, line: Line) -> None:
        if not self.catalog.lines[line.id].deleted:
            self.catalog.delete(line.id)
        self._purge(line.id)

    def _purge(self, line: int) -> None:
        """Remove what no living thread reaches any more: this deleted line, then perhaps its ancestors."""
        while line and self.catalog.lines[line].deleted and not self._is_needed(line):
            if line not in self.catalog.purged:
                self.catalog.purge(line)
            self.forget(line)
            shutil.rmtree(self.path(line), ignore_errors=True)
            line = self.catalog.lines[line].parent

    def _is_needed(self, line: int) -> bool:
        """Whether a living line, or one that is needed in turn, goes on from it."""
        return any(
            not self.catalog.lines[child].deleted or child not in self.catalog.purged
            for child in self.catalog.children.get(line, ())
        )

    def prune(self, line: Line, prune: Prune) -> bool:
        self._finish_pruning(line.id)
        track = self.track(line.id)
        if track is None or not self._as_seen(prune.seen):
            return False
        rewriting = bool(prune.records or prune.chunks)
        work = Rewriting if rewriting else Pruning
        shown = self._showing(line.id) if rewriting else []
        for each in shown:
            # First: whoever is killed after this leaves no view that shows what isn't there any more.
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path(each), VIEW))
        try:
            return work(track, lambda seq: state_at(self, line, seq), self._disk).run(prune)
        finally:
            self.forget(line.id)
            for each in shown:
                self.forget(each)
                renewed = None if self.catalog.lines[each].deleted else self.track(each)
                if renewed is not None:
                    self.views.touch(renewed)

    def _showing(self, line: int) -> list[int]:
        """The line, and all that go on from it, whose views may show what is in it."""
        further = [each for child in self.catalog.children.get(line, ()) for each in self._showing(child)]
        return [line, *further]

    def _as_seen(self, seen: tuple[tuple[int, int], ...]) -> bool:
        """Whether none of these lines was rewound, forked or pruned since."""
        known = {line for line, _ in seen}
        for line, seq in seen:
            if any(child not in known for child in self.catalog.children.get(line, ())):
                return False
            track = self.track(line)
            for found, _ in track.down(track.last_seq) if track is not None else ():
                if (found.seq if isinstance(found, Entry) else found.last) <= seq:
                    break
                if found.kind in (REWIND, PRUNED):
                    return False
        return True

    def _finish_pruning(self, line: int) -> None:
        """What somebody was interrupted in."""
        track = self.track(line)
        if track is not None and track.halfway:
            tidy_up(track, self._disk)
            self.forget(line)

    # ── in spare moments ─────────────────────────────────────────────────────────────────────

    def distrust(self, folder: str) -> None:
        """Do without what folding derived there, until it has been made again."""
        self._spoilt.add(folder)
        self._forget_folder(folder)

    def _forget_folder(self, folder: str) -> None:
        for line in [line for line, track in self._tracks.items() if track.folder == folder]:
            self.forget(line)

    @property
    def _busy(self) -> bool:
        """Whether there is something to do besides views."""
        waiting = self._spoilt or self._long or self._half_deleted or self._halfway
        return not self._tidy or bool(waiting)

    @property
    def has_chores(self) -> bool:
        return self._busy or self.views.waiting

    def chore(self) -> bool:
        """Do something that nobody waits for; whether there is more to do. The caller has the turn."""
        for folder in list(self._spoilt):
            with suppress(FileNotFoundError):
                remove_folds(folder)
            self._spoilt.discard(folder)
            self._forget_folder(folder)
        while self._halfway:
            self._finish_pruning(self._halfway.pop())
        while self._half_deleted:
            self._finish_deletion(self.catalog.lines[self._half_deleted.pop()])
        if not self._tidy:
            self._tidy = True
            self._finish_deletions()
        for line in list(self._long):
            found = self.track(line)
            fold = None if found is None else line_folder.next_fold(found)
            if found is None or fold is None or not line_folder.fold(found, fold):
                self._long.discard(line)
            return True
        self.views.flush()
        return False

    def _finish_deletions(self) -> None:
        """What somebody was interrupted in: a deleted line that nobody needs is removed."""
        for line in list(self.catalog.lines.values()):
            if line.deleted and (line.id not in self.catalog.purged or os.path.isdir(self.path(line.id))):
                self._purge(line.id)

    def close(self) -> None:
        self.forget_all()
        self.catalog.close()
        self.streams.close()
        self.ledger.close()
