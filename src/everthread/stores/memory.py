"""The store that lives in this process and dies with it: same rules, no disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import UnsupportedError
from everthread.history.packs import Chunk
from everthread.stores.contract import (
    COLD,
    DELTA,
    NO_TAGS,
    PACK,
    PRUNED,
    REWIND,
    SEAL,
    SEAL_SEQ,
    Capabilities,
    Fold,
    Found,
    KeyKnown,
    Line,
    NameTaken,
    NewRow,
    Prune,
    PutCell,
    Row,
    SealedRow,
    SourceGone,
    StaleWrite,
    VersionGone,
)
from everthread.stores.erasures import ErasedKey, Progress, Purged, Residues
from everthread.stores.memory_cells import MemoryCells
from everthread.stores.memory_lines import Track
from everthread.stores.signals import Signals
from everthread.stores.texts import NoTexts
from everthread.stores.usage import Totals, Usage


class MemoryBackend(MemoryCells, NoTexts):
    """Thread-safe. Two stores opened as ``memory:`` share nothing."""

    capabilities = Capabilities(durable=False, multi_process=False, backup=False, cold=True)
    url = "memory:"

    def __init__(self) -> None:
        super().__init__()
        self.signals = Signals()
        self._tracks: dict[int, Track] = {}
        self._uids: dict[bytes, int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._keyed: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        self._next = 1

    def _track(self, line: int) -> Track:
        self._check()
        return self._tracks[line]

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def find(self, space: str, name: str) -> Found | None:
        with self._lock:
            line = self._names.get((space, name))
            if line is None:
                self._check()
                return None
            return self._track(line).found()

    def line(self, line: int) -> Line | None:
        self._check()
        track = self._tracks.get(line)
        return track.line if track else None

    def line_by_uid(self, uid: bytes) -> Line | None:
        self._check()
        line = self._uids.get(uid)
        return self._tracks[line].line if line else None

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        with self._lock:
            track = self._track(line)
            found: list[Row] = []
            start = track.index(seq)
            if start == len(track.rows):
                return found
            for row in reversed(track.rows[: start + 1]):
                if row.kind == SEAL or row.seq <= floor:
                    break
                found.append(row)
                whole = row.seq <= seq
                if (row.keyframe is not None and whole) or row.kind == REWIND:
                    break
            return found

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        with self._lock:
            track = self._track(line)
            stop = min(track.index(seq) + 1, len(track.rows))
            rows = [row for row in track.rows[:stop] if row.kind != SEAL]
            return rows[::-1][:limit]

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        with self._lock:
            track = self._track(line)
            rows: list[tuple[Row, bytes | None]] = []
            for row in reversed(track.rows):
                if row.kind in (PACK, PRUNED):
                    break
                if row.kind != SEAL:
                    rows.append((row, track.keys.get(row.seq)))
            return rows[::-1]

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        with self._lock:
            every = self._track(line).chunks.get(log, [])
            return [c for c in every if c.position < stop and c.position + c.count > start]

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        with self._lock:
            every = self._track(line).chunks.get(log, [])
            found = [c for c in every if c.end > start]
            return [(c.position, c.fingerprints or bytes(4 * c.count)) for c in found]

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        self._check()
        return list(self._keyed.get((root, key), ()))

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        with self._lock:
            self._check()
            return self._sealed.get(value_ids)

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        with self._lock:
            self._check()
            if source and self._tracks[source].line.deleted:
                raise SourceGone
            if source and self._tracks[line.parent].is_pruned(line.parent_seq):
                raise VersionGone
            if (line.space, line.name) in self._names:
                raise NameTaken
            if row is not None:
                self._sealed.check(row.sealed)
            line = msgspec.structs.replace(line, id=self._next, root=line.root or self._next)
            self._next += 1
            track = self._tracks[line.id] = Track(line)
            track.tags.update(tags)
            self._uids[line.uid] = line.id
            self._names[line.space, line.name] = line.id
            if row is not None:
                self._add(track, row)
            self.signals.ring(0)
            return line

    def append(self, line: int, row: NewRow) -> None:
        with self._lock:
            track = self._track(line)
            if track.hash != row.previous:
                raise StaleWrite(track.newest(), sealed=track.line.deleted)
            if row.source is not None and self._track(row.source[0]).is_pruned(row.source[1]):
                raise VersionGone
            if row.guard and row.key is not None and self.keyed(row.guard, row.key):
                raise KeyKnown
            self._sealed.check(row.sealed)
            self._add(track, row)
            self.signals.ring(line)

    def _add(self, track: Track, row: NewRow) -> None:
        track.rows.append(Row(row.seq, row.seq, row.kind, row.hash, row.body))
        if row.key is not None:
            track.keys[row.seq] = row.key
        track.add_chunks(row.chunks)
        self._sealed.add(row.sealed)

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        for line, row in rows:
            try:
                self.append(line, row)
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def fold(self, line: Line, fold: Fold) -> bool:
        with self._lock:
            track = self._track(line.id)
            pack = fold.pack
            first, last = track.index(pack.first), track.index(pack.last)
            rows = track.rows[first : last + 1]
            if [row.seq for row in rows if row.kind == DELTA] != list(range(pack.first, pack.last + 1)):
                return False
            if rows[-1].hash != fold.hash:
                return False
            before = track.rows[first - 1] if first else None
            if (
                before is not None
                and (before.seq, before.kind) == (pack.first - 1, DELTA)
                and not fold.beside
            ):
                return False
            packed = Row(pack.last, pack.first, PACK, rows[-1].hash, pack.body, pack.net, fold.keyframe)
            track.rows[first : last + 1] = [packed]
            track.add_chunks(pack.chunks)
            for key, seq in fold.keys:
                self._keyed.setdefault((line.root, key), []).append((line.id, seq))
            self.tag(line.id, pack.last, fold.tags)
            return True

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        with self._lock:
            track = self._track(line)
            at = track.index(seq)
            if at < len(track.rows) and track.rows[at].seq == seq and track.rows[at].hash == digest:
                track.rows[at] = msgspec.structs.replace(track.rows[at], keyframe=keyframe)

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        with self._lock:
            track = self._track(line.id)
            if track.line.deleted or newest not in (None, track.hash):
                return False
            track.line = msgspec.structs.replace(track.line, deleted=True)
            track.rows.append(Row(SEAL_SEQ, SEAL_SEQ, SEAL, b"", b""))
            del self._names[track.line.space, track.line.name]
            self._purge(line.id)
            self.signals.ring(line.id)
            return True

    def prune(self, line: Line, prune: Prune) -> bool:
        with self._lock:
            seen = dict(prune.seen)
            for id_, seq in prune.seen:
                track = self._track(id_)
                if any(row.kind in (REWIND, PRUNED, COLD) for row in track.rows[track.index(seq + 1) :]):
                    return False
            if any(t.line.parent in seen and t.line.id not in seen for t in self._tracks.values()):
                return False
            track = self._track(line.id)
            if any(chunk not in track.chunks.get(chunk.log, ()) for chunk in prune.held):
                return False
            if not track.replace(prune.old, prune.rows):
                return False
            for log, start, stop in prune.dropped:
                track.drop(log, start, stop)
            track.bring_back(prune.chunks)
            return True

    def newer(self, line: int, seq: int) -> bool:
        with self._lock:
            self._check()
            track = self._tracks.get(line)
            rows = track.rows if track is not None else []
            return (track is None and line > 0) or bool(rows and rows[-1].seq > seq)

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    def _purge(self, line: int) -> None:
        """Remove what no living thread reaches any more: this deleted line, then perhaps its ancestors."""
        while line and self._tracks[line].line.deleted:
            children = [t for t in self._tracks.values() if t.line.parent == line]
            if any(not c.line.deleted or len(c.rows) > 1 for c in children):
                return
            track = self._tracks[line]
            track.rows, track.keys, track.chunks, track.tags = track.rows[-1:], {}, {}, {}
            for found in self._keyed.values():
                found[:] = [entry for entry in found if entry[0] != line]
            line = track.line.parent

    # ── erasure ──────────────────────────────────────────────────────────────────────────────

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        with self._lock:
            self._check()
            self._sealed.note(keys)

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        with self._lock:
            self._check()
            return self._sealed.ledger(unfinished)

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        with self._lock:
            self._check()
            return self._sealed.erased(key_ids)

    def sealed_under(self, key_ids: Sequence[bytes], after: bytes, limit: int) -> list[SealedRow]:
        with self._lock:
            self._check()
            return self._sealed.page(key_ids, after, limit)

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        with self._lock:
            self._check()
            return self._sealed.drop(key_ids)

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        self._check()
        return Purged(unreached=("the memory of this process, until it ends",))

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        self._check()
        return Residues(unreached=("the memory of this process",))

    # ── the store as a whole ─────────────────────────────────────────────────────────────────

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        with self._lock:
            self._check()
            names = sorted(
                name
                for owner, name in self._names
                if owner == space and name.startswith(prefix) and (after is None or name > after)
            )
            tracks = [self._track(self._names[space, name]) for name in names[:limit]]
            return [track.found() for track in tracks]

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        with self._lock:
            self._check()
            tracks = [
                track
                for track in self._tracks.values()
                if track.line.space == space
                and not track.line.deleted
                and all(track.tags.get(name) == value for name, value in tags.items())
            ]
            tracks.sort(key=lambda track: track.line.name)
            return [track.found() for track in tracks]

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        with self._lock:
            self._check()
            return [
                (track.line, track.tagged_seq)
                for track in self._tracks.values()
                if track.line.space == space
                and not track.line.deleted
                and (newest := track.newest()) is not None
                and newest.seq > track.tagged_seq
            ]

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        with self._lock:
            track = self._track(line)
            if seq > track.tagged_seq:
                track.tags.update(tags)
                track.tagged_seq = seq

    def every_line(self) -> Iterator[Line]:
        with self._lock:
            self._check()
            return iter([track.line for track in self._tracks.values()])

    def unreadable_lines(self) -> list[str]:
        return []

    def check(self) -> list[str]:
        return []

    def usage(self, line: int) -> Usage:
        with self._lock:
            return self._track(line).usage()

    def totals(self) -> Totals:
        with self._lock:
            self._check()
            events = [len(event.body) for stream in self._streams.values() for event in stream.events]
            return Totals(
                sealed=self._sealed.take(),
                cells=(len(self._cells), sum(len(cell.value) for cell in self._cells.values())),
                events=(len(events), sum(events)),
            )

    def persist(self) -> None:
        self._check()

    def compact(self) -> None:
        self._check()

    def backup(self, path: str) -> None:
        raise UnsupportedError("a memory: store can't be backed up; open a sqlite:/// store to keep data")

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise UnsupportedError("a memory: store can't be restored; open a sqlite:/// store to keep data")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tracks.clear()
            self._names.clear()
        self.signals.close()

    def __getstate__(self) -> Any:
        raise UnsupportedError("a memory: store belongs to one process and can't be sent to another")
