"""What a store holds: one content folder with its lines, sealed values, cells and streams."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress

from everthread.stores.contract import (
    Found,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
)
from everthread.stores.erasures import split_keys
from everthread.stores.files import refolding
from everthread.stores.files.appending import Batch, Prepared, write_extras
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.cells import Cells
from everthread.stores.files.disk import Disk
from everthread.stores.files.folds import remove_folds
from everthread.stores.files.journal import header, segment_name
from everthread.stores.files.layout import thread_folder
from everthread.stores.files.ledger import Ledger
from everthread.stores.files.linefile import Replaced
from everthread.stores.files.sealed import SealedValues
from everthread.stores.files.streams import Streams
from everthread.stores.files.track import Track
from everthread.stores.files.views import Views

#: So many lines are kept in mind, each with its files open.
TRACKS_MAX = 128


class Content:
    """One content folder. Not for two threads at once."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self.catalog = Catalog(folder, disk)
        self.sealed = SealedValues(folder, disk)
        self.ledger = Ledger(folder, disk)
        self.cells = Cells(folder, disk)
        self.streams = Streams(folder, disk)
        self.views = Views(self, self._known_track, disk)
        self._tracks: dict[int, Track] = {}
        #: Folders in which what folding derived is damaged.
        self._spoilt: set[str] = set()
        #: Lines whose folds are missing.
        self._long: set[int] = set()
        #: Lines that are sealed, but not in the catalog.
        self._half_deleted: set[int] = set()
        self._tidy = False

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
        return track

    def _load(self, line: Line) -> Track:
        while len(self._tracks) >= TRACKS_MAX:
            self.forget(next(iter(self._tracks)))
        track = Track(line, self.path(line.id), self.catalog.tags[line.id], self._disk)
        track.load(derived=track.folder not in self._spoilt)
        if refolding.is_due(track):
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
        return parent is not None and parent.last_seq >= line.parent_seq

    def _free(self, space: str, name: str) -> None:
        """Raise :class:`NameTaken` unless the name is free; finish a deletion that was interrupted."""
        taken = self.catalog.find(space, name)
        if taken is not None:
            if self.found(taken) is not None:
                raise NameTaken
            self._finish_deletion(taken)

    def append_at_once(self, line: int, prepared: Prepared) -> bool:
        """Append a row that is all there is to it to a line that nobody else has touched.

        That is what nearly every save does. Otherwise False, and nothing was done.
        """
        row, track = prepared.row, self._tracks.get(line)
        if track is None or row.sealed or prepared.items:
            return False
        if row.guard and self._knows_key(track.line, row.key):
            return False
        if not track.append_at_once(row, prepared.text):
            return False
        self.views.touch(track)
        return True

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
            if track is not None and track.folds.keyed(key):
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

    # ── in spare moments ─────────────────────────────────────────────────────────────────────

    def distrust(self, folder: str) -> None:
        """Do without what folding derived there, until it has been made again."""
        self._spoilt.add(folder)
        self._forget_folder(folder)

    def _forget_folder(self, folder: str) -> None:
        for line in [line for line, track in self._tracks.items() if track.folder == folder]:
            self.forget(line)

    @property
    def has_chores(self) -> bool:
        return not self._tidy or bool(self._spoilt or self._long or self._half_deleted) or self.views.waiting

    def chore(self) -> bool:
        """Do something that nobody waits for; whether there is more to do. The caller has the turn."""
        for folder in list(self._spoilt):
            with suppress(FileNotFoundError):
                remove_folds(folder)
            self._spoilt.discard(folder)
            self._forget_folder(folder)
        while self._half_deleted:
            self._finish_deletion(self.catalog.lines[self._half_deleted.pop()])
        if not self._tidy:
            self._tidy = True
            self._finish_deletions()
        for line in list(self._long):
            found = self.track(line)
            fold = None if found is None else refolding.next_fold(found)
            if found is None or fold is None or not found.fold(fold):
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
