"""The store that lives in this process and dies with it: same rules, no disk."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everthread import process
from everthread.errors import LimitError, StoreClosedError, UnsupportedError
from everthread.history.packs import Chunk, Places, pruned_chunks
from everthread.stores.contract import (
    COLD,
    DELTA,
    EVENT_SEQ_MAX,
    FINISHED,
    NO_TAGS,
    PACK,
    PRUNED,
    REWIND,
    SEAL,
    SEAL_SEQ,
    Capabilities,
    Cell,
    ErasedKey,
    Fold,
    Found,
    KeyErased,
    KeyKnown,
    Line,
    NameTaken,
    NewEvent,
    NewRow,
    NoTexts,
    Progress,
    Prune,
    Purged,
    PutCell,
    Residues,
    Row,
    SealedRow,
    SourceGone,
    StaleCell,
    StaleWrite,
    StoredEvent,
    Totals,
    Usage,
    VersionGone,
    merged_erasure,
    split_keys,
)
from everthread.stores.signals import Signals


class MemoryLine:
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

    @property
    def hash(self) -> bytes:
        """What the next row has to build on; nothing builds on a seal."""
        return self.rows[-1].hash if self.rows else self.line.start_hash

    def found(self) -> Found:
        rows = [row for row in self.rows[-3:] if row.kind != SEAL]
        return Found(self.line, rows[-1] if rows else None, rows[-2].hash if len(rows) > 1 else None)

    def is_pruned(self, seq: int) -> bool:
        at = self.index(seq)
        return at < len(self.rows) and self.rows[at].kind == PRUNED

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            bisect.insort(self.chunks.setdefault(chunk.log, []), chunk, key=lambda c: c.position)

    def replace(self, old: tuple[Row, ...], rows: tuple[Row, ...]) -> bool:
        """Put rows in the place of others; False if those aren't there."""
        if old:
            first = self.index(old[0].seq)
            if tuple(self.rows[first : first + len(old)]) != old:
                return False
            self.rows[first : first + len(old)] = rows
        return True

    def drop(self, log: str, start: int, stop: int) -> None:
        """Drop the chunks that lie between these positions."""
        chunks = self.chunks.get(log, [])
        dead = [c for c in chunks if c.position >= start and c.end <= stop]
        if dead:
            gone = {chunk.position for chunk in dead}
            self.chunks[log] = [c for c in chunks if c.position not in gone]
            self.add_chunks(pruned_chunks(log, ((c.position, c.count) for c in dead)))

    def bring_back(self, chunks: Iterable[Chunk]) -> None:
        """Put chunks into the place of those that stand for them."""
        coming = list(chunks)
        places = Places(coming)
        for log in {chunk.log for chunk in coming}:
            self.chunks[log] = [c for c in self.chunks.get(log, []) if c.data or not places.within(c)]
        self.add_chunks(coming)

    def usage(self) -> Usage:
        versions = pruned = records = packs = keyframes = tombstones = 0
        for row in self.rows:
            keyframes += len(row.keyframe or b"")
            size = len(row.body) + len(row.net or b"")
            if row.kind == PRUNED:
                pruned += row.seq - row.first + 1
                tombstones += size
            elif row.kind in (PACK, COLD):
                versions += row.seq - row.first + 1
                packs += size
            elif row.kind != SEAL:
                versions += 1
                records += size
        chunks = sum(len(c.data) + len(c.fingerprints) for every in self.chunks.values() for c in every)
        return Usage(
            versions=versions,
            pruned=pruned,
            records=records,
            packs=packs,
            keyframes=keyframes,
            chunks=chunks,
            tombstones=tombstones,
        )


class MemorySealed:
    """Sealed values and the erasure ledger. Callers hold the store's lock."""

    def __init__(self) -> None:
        #: Value id to (key ids, sealed bytes).
        self._rows: dict[bytes, tuple[bytes, bytes]] = {}
        self._by_key: dict[bytes, set[bytes]] = {}
        self._ledger: dict[bytes, ErasedKey] = {}

    def check(self, rows: Iterable[SealedRow]) -> None:
        """Raise :class:`KeyErased` unless all of these may be added."""
        if self._ledger:
            used = {key_id for _, keys, _ in rows for key_id in split_keys(keys)}
            if gone := used & self._ledger.keys():
                raise KeyErased(frozenset(gone))

    def add(self, rows: Iterable[SealedRow]) -> None:
        for value_id, keys, data in rows:
            if data and value_id not in self._rows:
                self._rows[value_id] = (keys, data)
                for key_id in split_keys(keys):
                    self._by_key.setdefault(key_id, set()).add(value_id)

    def get(self, value_ids: Iterable[bytes]) -> dict[bytes, bytes]:
        return {value_id: self._rows[value_id][1] for value_id in value_ids if value_id in self._rows}

    def take(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        return len(self._rows), sum(len(data) for _, data in self._rows.values())

    def under(self, key_ids: Sequence[bytes]) -> list[bytes]:
        """The ids of values that need one of these keys, in order."""
        return sorted({value_id for key_id in key_ids for value_id in self._by_key.get(key_id, ())})

    def page(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        every = sorted(self._rows) if key_ids is None else self.under(key_ids)
        found = [value_id for value_id in every if value_id > after][:limit]
        return [(value_id, *self._rows[value_id]) for value_id in found]

    def drop(self, key_ids: Sequence[bytes]) -> int:
        found = self.under(key_ids)
        for value_id in found:
            keys, _ = self._rows.pop(value_id)
            for key_id in split_keys(keys):
                self._by_key[key_id].discard(value_id)
        return len(found)

    def note(self, keys: Sequence[ErasedKey]) -> None:
        for entry in keys:
            self._ledger[entry.key_id] = merged_erasure(self._ledger.get(entry.key_id), entry)

    def ledger(self, unfinished: bool) -> list[ErasedKey]:
        found = [entry for _, entry in sorted(self._ledger.items())]
        return [entry for entry in found if entry.phase < FINISHED] if unfinished else found

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        return set(key_ids) & self._ledger.keys()

    def clear(self) -> None:
        self._rows.clear()
        self._by_key.clear()


class _Stream:
    """The events of one stream; the one at index ``i`` has the seq ``dropped + 1 + i``."""

    def __init__(self) -> None:
        self.dropped = 0
        self.events: list[StoredEvent] = []
        #: The latest time up to each event, which only grows, and how far a time has lain below it.
        self.peaks: list[int] = []
        self.late_us = 0

    @property
    def last(self) -> int:
        return self.dropped + len(self.events)

    def add(self, event: NewEvent) -> None:
        peak = max(self.peaks[-1], event.at_us) if self.peaks else event.at_us
        self.late_us = max(self.late_us, peak - event.at_us)
        self.peaks.append(peak)
        self.events.append(StoredEvent(self.last + 1, event.at_us, event.type, event.agent, event.body))

    def trim(self, up_to: int) -> int:
        count = min(max(up_to - self.dropped, 0), len(self.events))
        self.dropped += count
        del self.events[:count], self.peaks[:count]
        if not self.events:
            self.late_us = 0
        return count

    def between(self, after: int, since_us: int | None, until_us: int | None) -> range:
        """The indices of what may lie between these times: nothing outside does."""
        start, stop = max(0, after - self.dropped), len(self.events)
        if since_us is not None:
            start = max(start, bisect.bisect_left(self.peaks, since_us))
        if until_us is not None:
            stop = bisect.bisect_right(self.peaks, until_us + self.late_us)
        return range(start, stop)


class MemoryCells:
    """The half of the memory store that isn't about lines, and what both halves share."""

    def __init__(self) -> None:
        self._lock = process.ProcessLock()
        self._generation = process.generation
        self._closed = False
        self._sealed = MemorySealed()
        self._cells: dict[tuple[str, str], Cell] = {}
        #: No removed cell had a higher revision: new ones begin above it.
        self._revision_floor = 0
        self._streams: dict[tuple[str, str], _Stream] = {}

    def _check(self) -> None:
        process.check_not_forked(self._generation)
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        with self._lock:
            self._check()
            found = self._cells.get((space, name))
            return None if found is None else msgspec.structs.replace(found, read_us=now_us)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        with self._lock:
            found = self.cell(space, name, now_us)
            if (0 if found is None else found.revision) != expected:
                raise StaleCell(found)
            if value is None:
                self._cells.pop((space, name), None)
                self._revision_floor = max(self._revision_floor, expected)
                return 0
            revision = expected + 1 if found is not None else self._revision_floor + 1
            self._cells[space, name] = Cell(value, revision, now_us, now_us)
            return revision

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        with self._lock:
            self._check()
            names = _listed(self._cells, space, prefix, after)[:limit]
            return [
                (name, msgspec.structs.replace(self._cells[space, name], read_us=now_us)) for name in names
            ]

    # ── streams ──────────────────────────────────────────────────────────────────────────────

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        assert events, "at least one event"
        with self._lock:
            self._check()
            self._sealed.check(sealed)
            found = self._streams.setdefault((space, stream), _Stream())
            first = found.last + 1
            if found.last + len(events) > EVENT_SEQ_MAX:
                raise LimitError(f"the stream {stream!r} is full; go on in another one")
            for event in events:
                found.add(event)
            self._sealed.add(sealed)
            return first

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            kept: list[StoredEvent] = []
            if found is None:
                return kept
            for index in found.between(after, since_us, until_us):
                if len(kept) >= limit:
                    break
                event = found.events[index]
                if (
                    (type is None or event.type == type)
                    and (agent is None or event.agent == agent)
                    and (since_us is None or event.at_us >= since_us)
                    and (until_us is None or event.at_us <= until_us)
                ):
                    kept.append(event)
            return kept

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        with self._lock:
            self._check()
            filled = {key: stream for key, stream in self._streams.items() if stream.events}
            names = _listed(filled, space, prefix, after)[:limit]
            return [(name, filled[space, name].last) for name in names]

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            return 0 if found is None else found.trim(up_to)

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        with self._lock:
            self._check()
            found = self._streams.get((space, stream))
            if found is None:
                return 0
            rewritten = 0
            for index, event in enumerate(found.events):
                if event.seq in bodies:
                    found.events[index] = msgspec.structs.replace(event, body=bodies[event.seq])
                    rewritten += 1
            return rewritten


def _listed(
    table: dict[tuple[str, str], Cell] | dict[tuple[str, str], _Stream],
    space: str,
    prefix: str,
    after: str | None,
) -> list[str]:
    """The names of a space that have the prefix and come after ``after``, in code point order."""
    return sorted(
        name
        for owner, name in table
        if owner == space and name.startswith(prefix) and (after is None or name > after)
    )


class MemoryBackend(MemoryCells, NoTexts):
    """Thread-safe. Two stores opened as ``memory:`` share nothing."""

    capabilities = Capabilities(durable=False, multi_process=False, backup=False, cold=True)
    url = "memory:"

    def identity(self) -> str:
        return f"memory {id(self)}"

    def __init__(self) -> None:
        super().__init__()
        self.signals = Signals()
        self._tracks: dict[int, MemoryLine] = {}
        self._uids: dict[bytes, int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._keyed: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
        self._next = 1

    def _track(self, line: int) -> MemoryLine:
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
            track = self._tracks[line.id] = MemoryLine(line)
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

    def _add(self, track: MemoryLine, row: NewRow) -> None:
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

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
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
