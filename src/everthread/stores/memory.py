"""The store that lives in this process and dies with it: same rules, no disk."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import UnsupportedError
from everthread.history.packs import Chunk
from everthread.stores.contract import (
    DELTA,
    NO_TAGS,
    PACK,
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
    Row,
    SourceGone,
    StaleWrite,
)
from everthread.stores.memory_cells import MemoryCells


class _Track:
    """Everything that belongs to one line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.rows: list[Row] = []
        self.keys: dict[int, bytes] = {}
        self.chunks: dict[str, list[Chunk]] = {}
        self.tags: dict[str, bytes] = {}
        self.tagged_seq = 0

    def index(self, seq: int) -> int:
        """Where the row that holds ``seq`` is, or would be."""
        return bisect.bisect_left(self.rows, seq, key=lambda row: row.seq)

    def newest(self) -> Row | None:
        for row in reversed(self.rows):
            if row.kind != SEAL:
                return row
        return None

    def found(self) -> Found:
        rows = [row for row in self.rows[-3:] if row.kind != SEAL]
        return Found(self.line, rows[-1] if rows else None, rows[-2].hash if len(rows) > 1 else None)

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            bisect.insort(self.chunks.setdefault(chunk.log, []), chunk, key=lambda c: c.position)


class MemoryBackend(MemoryCells):
    """Thread-safe. Two stores opened as ``memory:`` share nothing."""

    capabilities = Capabilities(durable=False, multi_process=False, backup=False)
    url = "memory:"

    def __init__(self) -> None:
        super().__init__()
        self._tracks: dict[int, _Track] = {}
        self._uids: dict[bytes, int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._keyed: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        self._next = 1

    def _track(self, line: int) -> _Track:
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
                if row.kind == PACK:
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
            return [(c.position, c.fingerprints) for c in every if c.position + c.count > start]

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        self._check()
        return list(self._keyed.get((root, key), ()))

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        self._check()
        return {v: self._sealed[v] for v in value_ids if v in self._sealed}

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        with self._lock:
            self._check()
            if source and self._tracks[source].line.deleted:
                raise SourceGone
            if (line.space, line.name) in self._names:
                raise NameTaken
            line = msgspec.structs.replace(line, id=self._next, root=line.root or self._next)
            self._next += 1
            track = self._tracks[line.id] = _Track(line)
            track.tags.update(tags)
            self._uids[line.uid] = line.id
            self._names[line.space, line.name] = line.id
            if row is not None:
                self._add(track, row)
            return line

    def append(self, line: int, row: NewRow) -> None:
        with self._lock:
            track = self._track(line)
            if (track.rows[-1].hash if track.rows else track.line.start_hash) != row.previous:
                raise StaleWrite(track.newest(), sealed=track.line.deleted)
            if row.guard and row.key is not None and self.keyed(row.guard, row.key):
                raise KeyKnown
            self._add(track, row)

    def _add(self, track: _Track, row: NewRow) -> None:
        track.rows.append(Row(row.seq, row.seq, row.kind, row.hash, row.body))
        if row.key is not None:
            track.keys[row.seq] = row.key
        track.add_chunks(row.chunks)
        for value_id, _, data in row.sealed:
            self._sealed[value_id] = data

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

    def delete(self, line: Line) -> bool:
        with self._lock:
            track = self._track(line.id)
            if track.line.deleted:
                return False
            track.line = msgspec.structs.replace(track.line, deleted=True)
            track.rows.append(Row(SEAL_SEQ, SEAL_SEQ, SEAL, b"", b""))
            del self._names[track.line.space, track.line.name]
            self._purge(line.id)
            return True

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

    def check(self) -> list[str]:
        return []

    def backup(self, path: str) -> None:
        raise UnsupportedError("a memory: store can't be backed up; open a sqlite:/// store to keep data")

    def restore(self, path: str) -> None:
        raise UnsupportedError("a memory: store can't be restored; open a sqlite:/// store to keep data")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tracks.clear()
            self._names.clear()

    def __getstate__(self) -> Any:
        raise UnsupportedError("a memory: store belongs to one process and can't be sent to another")
