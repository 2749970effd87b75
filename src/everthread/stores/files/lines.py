"""The lines of a content folder: finding one, and what it holds, past what others change meanwhile."""

from __future__ import annotations

import os
from collections.abc import Mapping

from everthread.stores.contract import Found, Line, Row
from everthread.stores.files import refolding
from everthread.stores.files.catalog import Catalog
from everthread.stores.files.disk import Disk
from everthread.stores.files.linefile import Replaced
from everthread.stores.files.track import Track
from everthread.stores.files.views import Views

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
        elif refolding.is_due(track):
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
