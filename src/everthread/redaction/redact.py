"""Replacing a text wherever it stands in the history of a namespace: ``store.redact()``.

Versions keep their ids and hashes: a rewritten record keeps the digest of what was committed, and the store
records what was redacted. A mark says that a redaction was begun, so that the next open finishes it.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.values import decode, encode_stored, lift, same
from everthread.errors import ConflictError, EverthreadError, StateCorruptedError, StoreBusyError
from everthread.history import packs
from everthread.history.metadata import index_value
from everthread.history.redaction import Needle, digest_of, key_replacement, logs_of_pruned, mark, reprinted
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import read_keyframe, write_keyframe
from everthread.maintenance.examine import Gap, rows_of
from everthread.maintenance.redaction_record import NAME, entry, events_entry, redactions_space
from everthread.maintenance.unfinished import REDACTION, Work, begin, cut_short, end, work
from everthread.process import here
from everthread.redaction.report import Place, Redaction, RedactionReport
from everthread.redaction.scan import Scanner, needle_of
from everthread.stores.contract import DAMAGED, DELTA, PACK, PRUNED, SEAL_SEQ, Line, Prune, Row
from everthread.threads.lifetimes import has_expired
from everthread.threads.reports import Progress
from everthread.threads.runtime import Runtime
from everthread.threads.sync.core import Core
from everthread.threads.sync.journals import beside, told_as
from everthread.threads.sync.thread import Thread
from everthread.threads.twins import pause

_TRIES = 5
#: How often the index is asked for while others write, and the pause in between.
_TAG_TRIES, _TAG_PAUSE_S = 100, 0.05
_NAME = "redaction/"
_PAGE = 100
_COPIES = "backups, exports and other copies made before, and what other processes have read"
_EVENTS_PAGE = 200
#: As many bytes of events are rewritten at once, about.
_BATCH_BYTES = 1024 * 1024
#: (space, stream, [(seq, digest before, digest after)]).
Note = Callable[[str, str, list[tuple[int, bytes, bytes]]], Awaitable[None]]
_LEFT_MAX = 1000
_PURGE_S = 30.0
#: By log and position: an item before and after.
Items = dict[str, dict[int, tuple[bytes, bytes]]]
_RECORDS_PAGE = 256


def redact(
    core: Core, needle: Needle, reason: str, *, dry_run: bool, progress: Progress | None
) -> RedactionReport:
    """Redact, or with ``dry_run`` only look."""
    if dry_run:
        return Redactor(core, needle, reason, progress).run(dry_run=True)
    return carry_out(core, begun_before(core, needle, reason), progress, _PURGE_S)


class Redactor:
    """One redaction."""

    def __init__(self, core: Core, needle: Needle, reason: str, progress: Progress | None) -> None:
        self._core = core
        self._needle = needle
        self._reason = reason
        self._progress = progress
        self.id = core.runtime.random_bytes(8).hex()
        self.threads = self.versions = self.events = 0

    def run(self, *, dry_run: bool) -> RedactionReport:
        core = self._core
        left: list[Place] = []
        left_count = values = streams = 0
        lines: set[tuple[str, str]] = set()
        for place in Scanner(core, self._needle, self._progress).run():
            if place.redactable:
                values += 1
                if place.stream:
                    streams += 1
                else:
                    lines.add((place.thread, place.beside))
            else:
                left_count += 1
                left += [place] if len(left) < _LEFT_MAX else []
        if not dry_run:
            # Journals go by another name than the threads they are beside.
            holding = [line for line in self._lines() if told_as(core.backend, line) in lines]
            self._retag(holding)
            for line in holding:
                self._line(line)
            if streams:
                self.events = EventRedactor(self._core, self._needle, self._note_events).run()
        return RedactionReport(
            id=self.id,
            dry_run=dry_run,
            threads=len(lines) if dry_run else self.threads,
            versions=self.versions,
            events=self.events,
            values=values,
            left=tuple(left),
            left_count=left_count,
        )

    def _lines(self) -> Iterator[Line]:
        for line in self._core.backend.every_line():
            if line.space.partition("\0")[0] == self._core.space:
                yield line

    def _is_empty(self, line: Line) -> bool:
        return line.deleted and not self._core.backend.scan(line.id, SEAL_SEQ - 1, 1)

    def _retag(self, lines: list[Line]) -> None:
        metadata_redactor = MetadataRedactor(self._core, self._needle)
        for line in lines:
            # The metadata of journals isn't data.
            if needle_of(self._needle, line) is self._needle and not self._is_empty(line):
                _ThreadRedactor(self, line).fold()
                metadata_redactor.look_at(line)
        metadata_redactor.run()
        self._core.head_cache.clear()

    def _line(self, line: Line) -> None:
        if self._is_empty(line):
            return
        for _ in range(_TRIES):
            redacting = _ThreadRedactor(self, line)
            done = redacting.run()
            self._core.head_cache.clear()
            if done:
                self.threads += redacting.changed
                return
        raise ConflictError(f"{line.name!r} is being written to all the time; run it again")

    def note(self, line: Line, versions: list[tuple[int, bytes, bytes]]) -> None:
        """Keep a record of what is about to be rewritten."""
        now_us = self._core.runtime.now_us()
        self._keep(line.space, entry(self.id, now_us, line.uid, versions, self._reason))

    def _note_events(self, space: str, stream: str, events: list[tuple[int, bytes, bytes]]) -> None:
        now_us = self._core.runtime.now_us()
        self._keep(space, events_entry(self.id, now_us, stream, events, self._reason))

    def note_rest_of(self, other: str) -> None:
        """Keep a record that this did what another one had left, which was cut short."""
        told = entry(other, self._core.runtime.now_us(), b"", (), "")
        self._keep(self._core.space, {**told, "by": self.id})

    def _keep(self, space: str, told: Any) -> None:
        core = copy.copy(self._core)
        core.space = redactions_space(space)
        thread = Thread(core, NAME)
        thread.handle.load()

        def add(draft: object) -> None:
            draft.log(NAME).append(told)  # type: ignore[attr-defined]

        thread.update(add)


# ── one thread ──────────────────────────────────────────────────────────────────────────────────────────


class _ThreadRedactor:
    """One line: what of it holds the text, and what takes its place."""

    def __init__(self, redactor: Redactor, line: Line) -> None:
        self._redactor = redactor
        self._core = redactor._core
        self._backend = redactor._core.backend
        self._needle = needle_of(redactor._needle, line)
        self._line = line
        self._items: Items = {}
        self._chunks: list[packs.Chunk] = []
        #: Versions as they are from now on, until they are stored.
        self._bodies: dict[int, bytes] = {}
        self.changed = False

    def run(self) -> bool:
        """False if somebody changed the line meanwhile: look again."""
        self.fold()
        rows = self._rows()
        self._look_at_items(rows)
        spans = [_inserted(row) for row in rows]
        groups = self._groups(rows, spans)
        for first, last in reversed(groups):
            if not self._group(rows[first : last + 1], spans[first : last + 1]):
                return False
        # Items that only pruned versions inserted: no record speaks of them any more.
        self.changed = self.changed or bool(self._chunks)
        return self._replace([], [], self._chunks)

    def fold(self) -> None:
        """Rewritten are packs: what is single is folded first, so that its key is in the index of keys."""
        if not self._line.deleted:
            self._core.folder.fold_tail(self._line, newest=False)
        tail = self._backend.tail(self._line.id)
        for row, _ in tail:
            if row.kind == DELTA and (self._needle.within(row.body) or self._apart(row)):
                self._core.folder.fold_tail(self._line, newest=True)
                return

    def _apart(self, row: Row) -> bool:
        """Whether items of a large commit, which stand beside its record, hold the text."""
        _, change, blocks = records.read_record(row.body)
        for log, start, stop in [] if blocks else packs.inserted_ranges(change):
            for chunk in self._backend.chunks(self._line.id, log, start, stop):
                if not chunk.pruned and self._needle.within(chunk.block()):
                    return True
        return False

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for row in rows_of(self._core.reader, self._line):
            if isinstance(row, Gap) or row.kind == DAMAGED:
                raise StateCorruptedError(f"{self._line.name!r} is damaged; see store.verify()")
            rows.append(row)
        return rows

    def _look_at_items(self, rows: list[Row]) -> None:
        """Find the chunks that hold the text, and what takes their place."""
        logs = {log for row in rows for log in _inserted(row)} | set(self._line.counts)
        for row in rows:
            if row.kind == PRUNED:
                logs |= logs_of_pruned(row.net, row.keyframe)
        for log in logs:
            start = self._line.counts.get(log, 0) if self._line.parent else 0
            while chunks := self._backend.chunks(self._line.id, log, start, start + 1):
                chunk = max(chunks, key=lambda each: each.end)
                if not chunk.pruned and self._needle.within(block := chunk.block()):
                    self._note_chunk(chunk, records.split(block))
                start = chunk.end

    def _note_chunk(self, chunk: packs.Chunk, raws: list[bytes]) -> None:
        changed = [self._needle.item(raw) for raw in raws]
        if changed == raws:
            return
        known = self._items.setdefault(chunk.log, {})
        for position, (old, new) in enumerate(zip(raws, changed, strict=True), chunk.position):
            if old != new:
                known[position] = (old, new)
        prints = b"".join(map(records.print_of, changed))
        data = records.compress(records.array(changed))
        self._chunks.append(packs.Chunk(chunk.log, chunk.position, chunk.count, prints, data))

    def _groups(self, rows: list[Row], spans: list[dict[str, tuple[int, int]]]) -> list[tuple[int, int]]:
        """Rows that are replaced together: those with the text, and all that share a chunk with it."""
        touched = [(index, index) for index, row in enumerate(rows) if self._holds(row)]
        for chunk in self._chunks:
            within = [
                index
                for index, span in enumerate(spans)
                if chunk.log in span
                and span[chunk.log][0] < chunk.end
                and chunk.position < span[chunk.log][1]
            ]
            if within:
                touched.append((within[0], within[-1]))
        groups: list[tuple[int, int]] = []
        for first, last in sorted(touched):
            if groups and first <= groups[-1][1]:
                groups[-1] = (groups[-1][0], max(groups[-1][1], last))
            else:
                groups.append((first, last))
        if groups and self._backend.capabilities.rewrites_lines:
            return [(groups[0][0], groups[-1][1])]
        return groups

    def _holds(self, row: Row) -> bool:
        needle = self._needle
        for data in (row.net, row.keyframe):
            if data is not None and needle.within(records.expand(data, "a row")):
                return True
        if row.kind in (PACK, PRUNED):
            return needle.within(records.expand(row.body, "a row"))
        return needle.within(row.body)

    def _group(self, rows: list[Row], spans: list[dict[str, tuple[int, int]]]) -> bool:
        noted: list[tuple[int, bytes, bytes]] = []
        new = [self._row(row, noted) for row in rows]
        chunks = [
            chunk
            for chunk in self._chunks
            if any(
                chunk.log in span and span[chunk.log][0] < chunk.end and chunk.position < span[chunk.log][1]
                for span in spans
            )
        ]
        self._chunks = [chunk for chunk in self._chunks if chunk not in chunks]
        if noted:
            self._redactor.note(self._line, noted)
        if new == rows and not chunks:
            return True
        changed = tuple((seq, self._bodies.pop(seq)) for seq, _, _ in noted)
        if not self._replace(rows, new, chunks, changed):
            return False
        self._redactor.versions += len(noted)
        self.changed = True
        return True

    def _replace(
        self,
        old: list[Row],
        new: list[Row],
        chunks: list[packs.Chunk],
        changed: tuple[tuple[int, bytes], ...] = (),
    ) -> bool:
        if not new and not chunks:
            return True
        dropped = tuple((chunk.log, chunk.position, chunk.end) for chunk in chunks)
        prune = Prune(tuple(old), tuple(new), dropped=dropped, chunks=tuple(chunks), records=changed)
        return self._backend.prune(self._line, prune)

    # ── a row ────────────────────────────────────────────────────────────────────────────────

    def _row(self, row: Row, noted: list[tuple[int, bytes, bytes]]) -> Row:
        keyframe = row.keyframe
        if keyframe is not None and self._needle.within(records.expand(keyframe, "a keyframe")):
            keyframe = write_keyframe(self._needle.keyframe(read_keyframe(keyframe)))
        if row.kind == PRUNED:
            net = row.net
            if net is not None and self._needle.within(content := records.expand(net, "a net")):
                net = records.compress(self._needle.change(content))
            body = self._needle.tombstone(row.body)
            return Row(row.seq, row.first, PRUNED, row.hash, body, net, keyframe)
        if row.kind != PACK:
            return msgspec.structs.replace(row, keyframe=keyframe)
        body_ = self._core.reader.pack(row)
        parts: list[records.Parts] = []
        hashes = [*body_.hashes[:-1], row.hash]
        for seq, (head, change) in enumerate(zip(body_.heads, body_.changes, strict=True), row.first):
            parts.append((*self._record(seq, head, change, noted), []))
        pack = packs.fold_parts(row.first, parts, hashes)
        return Row(row.seq, row.first, PACK, row.hash, pack.body, pack.net, keyframe)

    def _record(
        self, seq: int, head: bytes, change: bytes, noted: list[tuple[int, bytes, bytes]]
    ) -> tuple[bytes, bytes]:
        """Head and change of a version as they are from now on; notes it, if that isn't what they were."""
        ranges = packs.inserted_ranges(change)
        items = any(
            start <= position < stop for log, start, stop in ranges for position in self._items.get(log, ())
        )
        new_head, new_change = self._needle.head(head), self._needle.change(change)
        if not items and (new_head, new_change) == (head, change):
            return head, change
        raws = [self._core.reader.raw_items(self._line, *each) for each in ranges]
        old = digest_of(head, change, [records.array(each) for each in raws])
        blocks = []
        for (log, start, _), each in zip(ranges, raws, strict=True):
            known = self._items.get(log, {})
            after = [known[at][1] if at in known else raw for at, raw in enumerate(each, start)]
            blocks.append(records.array(after))
        if items:
            new_change = reprinted(new_change, self._prints)
        new_head = mark(new_head, old)
        body = records.write_record(new_head, new_change, blocks)
        self._bodies[seq] = body
        noted.append((seq, old, sha256(body).digest()))
        return new_head, new_change

    def _prints(self, log: str, start: int, count: int, old: bytes) -> bytes:
        known = self._items.get(log, {})
        prints = [old[4 * index : 4 * index + 4] for index in range(count)]
        for index in range(count):
            if start + index in known:
                prints[index] = records.print_of(known[start + index][1])
        return b"".join(prints)


def _inserted(row: Row) -> dict[str, tuple[int, int]]:
    """By log, between which positions the versions of a row inserted items."""
    if row.kind == PACK:
        changes = packs.read_pack(row.body).changes
    elif row.kind == PRUNED:
        return {}
    else:
        changes = [records.read_record(row.body)[1]]
    found: dict[str, tuple[int, int]] = {}
    for log, start, stop in (each for change in changes for each in packs.inserted_ranges(change)):
        low, high = found.get(log, (start, stop))
        found[log] = min(low, start), max(high, stop)
    return found


class MetadataRedactor:
    """What stood in the metadata of some lines, and the threads that are found by it."""

    def __init__(self, core: Core, needle: Needle) -> None:
        self._core = core
        self._backend = core.backend
        self._needle = needle
        #: By space and name: what the index may hold, and the value that takes its place.
        self._known: dict[tuple[str, str], dict[bytes, Any]] = {}

    def look_at(self, line: Line) -> None:
        """Take note of the metadata of a line. What is damaged is told by whoever rewrites it."""
        for row in rows_of(self._core.reader, line):
            if not isinstance(row, Gap) and row.kind != DAMAGED:
                for head in _heads(row):
                    if self._needle.within(head):
                        self._note(line.space, records.read_head(head))

    def _note(self, space: str, head: records.Head) -> None:
        for name, value in (decode(head.metadata) if head.metadata is not None else {}).items():
            replaced = self._needle.replaced(value)
            if isinstance(name, str) and not same(replaced, value):
                self._known.setdefault((space, name), {})[index_value(value)] = replaced

    def run(self) -> None:
        """Give every thread that is found by what was noted the new values."""
        new: dict[int, tuple[Line, dict[str, Any]]] = {}
        for (space, name), values in self._known.items():
            for old, value in values.items():
                for found in self._backend.lines_by_tags(space, {name: old}):
                    new.setdefault(found.line.id, (found.line, {}))[1][name] = value
        for line, metadata in new.values():
            self._replace(line, metadata)

    def _replace(self, line: Line, values: dict[str, Any]) -> None:
        metadata = {name: lift(value) for name, value in values.items()}
        for left in reversed(range(_TRIES)):
            core = self._awake(line)
            if core is None:
                return
            thread = Thread(core, line.name)
            thread.handle.load()
            try:
                version = thread.commit(label="redacted", metadata=metadata)
            except ConflictError:
                if not left:
                    raise
                continue
            if version is not None:
                self._tag(line, version.seq, {name: index_value(value) for name, value in values.items()})
            return

    def _awake(self, line: Line) -> Core | None:
        """The core to write to a line with; ``None`` if it isn't there any more. One that has expired is
        written to as of the moment of its newest version, so that it stays expired."""
        core = copy.copy(self._core)
        core.space = line.space
        core.head_cache.clear()
        found = self._backend.find(line.space, line.name)
        if found is None or found.line.id != line.id:
            return None
        version = (core.head(found)).version
        if version is not None and has_expired(found.line, version, core.runtime.now_us()):
            at_us = version.at_us
            core.runtime = Runtime(lambda: at_us, core.runtime.random_bytes)
        return core

    def _tag(self, line: Line, seq: int, tags: dict[str, bytes]) -> None:
        """The index must not keep the text, so that it is waited for."""
        for left in reversed(range(_TAG_TRIES)):
            try:
                self._backend.tag(line.id, seq, tags)
                return
            except StoreBusyError:
                if not left:
                    raise
                pause(_TAG_PAUSE_S)


def _heads(row: Row) -> list[bytes]:
    if row.kind == PRUNED:
        return list(read_tombstone(row.body).heads.values())
    return packs.read_pack(row.body).heads if row.kind == PACK else [records.read_record(row.body)[0]]


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────


class EventRedactor:
    """All streams of a namespace."""

    def __init__(self, core: Core, needle: Needle, note: Any) -> None:
        self._backend = core.backend
        self._space = core.space
        self._needle = needle
        self._note: Note = note

    def run(self) -> int:
        """How many events were rewritten."""
        spaces = {self._space: None}
        for line in self._backend.every_line():
            if line.space.partition("\0")[0] == self._space:
                spaces[line.space] = None
        rewritten = 0
        for space in spaces:
            after: str | None = None
            while page := self._backend.streams(space, "", after, _EVENTS_PAGE):
                for stream, _ in page:
                    rewritten += self._stream(space, stream)
                after = page[-1][0]
        return rewritten

    def _stream(self, space: str, stream: str) -> int:
        rewritten, seq, size = 0, 0, 0
        bodies: dict[int, bytes] = {}
        noted: list[tuple[int, bytes, bytes]] = []
        while events := self._backend.events(space, stream, seq, _EVENTS_PAGE):
            for event in events:
                body = self._redacted(event.body) if self._needle.within(event.body) else event.body
                if body != event.body:
                    bodies[event.seq] = body
                    noted.append((event.seq, sha256(event.body).digest(), sha256(body).digest()))
                    size += len(body)
            seq = events[-1].seq
            if size >= _BATCH_BYTES:
                rewritten += self._rewrite(space, stream, bodies, noted)
                bodies, noted, size = {}, [], 0
        return rewritten + (self._rewrite(space, stream, bodies, noted) if bodies else 0)

    def _redacted(self, body: bytes) -> bytes:
        parts = decode(records.unframe(body, "an event"))
        parts[0] = self._needle.replaced(parts[0])
        return records.frame(encode_stored(parts))

    def _rewrite(
        self, space: str, stream: str, bodies: dict[int, bytes], noted: list[tuple[int, bytes, bytes]]
    ) -> int:
        # The name may hold the text itself, and stays: what is kept of it here doesn't.
        self._note(space, self._needle.replaced(stream), noted)
        return self._backend.rewrite_events(space, stream, bodies)


# ── a redaction that was begun ──────────────────────────────────────────────────────────────────────────


class RedactionRequest(msgspec.Struct, frozen=True):
    """A redaction as it was asked for; ``instead_of`` those of the same text that were cut short.

    ``in_keys`` takes the place of the text in keys (empty: as everywhere). Whoever goes on, and whoever
    redacts the same text at the same time, takes the same: a key must not become two.
    """

    id: str
    text: str
    replacement: str
    reason: str
    instead_of: tuple[str, ...] = ()
    in_keys: str = ""
    #: The text in bytes if it has lone surrogates, which nothing encodes as text.
    data: bytes = b""

    @property
    def name(self) -> str:
        return _NAME + self.id

    def pack(self) -> bytes:
        """As bytes in which neither a scan nor a person who looks at them finds the text, behind a checksum:
        with a wrong bit in them another text would be taken out of all of history."""
        raw, told = self.text.encode("utf-8", "surrogatepass"), self
        if raw.decode("utf-8", "replace") != self.text:
            told = msgspec.structs.replace(self, text="", data=raw)
        data = msgspec.msgpack.encode(told)
        return _masked(zlib.crc32(data).to_bytes(4, "little") + data)

    @classmethod
    def unpack(cls, data: bytes) -> RedactionRequest:
        """Raises :class:`StateCorruptedError` if it isn't what was packed."""
        whole = _masked(data)
        if zlib.crc32(whole[4:]).to_bytes(4, "little") != whole[:4]:
            raise StateCorruptedError(
                "what was to be redacted is damaged; redact it again", where="unfinished"
            )
        try:
            told = msgspec.msgpack.decode(whole[4:], type=cls)
            text = told.data.decode("utf-8", "surrogatepass") or told.text
            return msgspec.structs.replace(told, text=text, data=b"")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StateCorruptedError(
                "what was to be redacted can't be read; redact it again", where="unfinished"
            ) from error


def _masked(data: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in data)


def carry_out(
    core: Core, request: RedactionRequest, progress: Progress | None, purge_s: float
) -> RedactionReport:
    """Redact, with the request written first and removed last. Killed anywhere, the next open goes on."""

    needle = Needle(request.text, request.replacement, request.in_keys)
    redactor = Redactor(core, needle, request.reason, progress)
    redactor.id = request.id
    others = [_NAME + id_ for id_ in request.instead_of]
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    for name, told in begun:
        if name in others:
            # Whoever opens the store meanwhile doesn't go on with it.
            begin(core, name, msgspec.structs.replace(told, who=here()))
    begin(core, request.name, work(core, REDACTION, note=request.pack()))
    if request.name not in [name for name, _ in begun]:
        _give_way(core, request)
    report = redactor.run(dry_run=False)
    for id_ in request.instead_of:
        redactor.note_rest_of(id_)
    stays = [
        f"what the redaction {id_} of this text did before it was cut short: its own replacement stays there"
        for id_ in request.instead_of
    ]
    copies = [_COPIES] if report.values else []
    purged = purge(core, [*others, request.name], purge_s)
    unreached = (*stays, *purged, *_in_archive(core), *copies)
    return msgspec.structs.replace(report, unreached=unreached)


def _give_way(core: Core, request: RedactionRequest) -> None:
    """Somebody who began with the same text at the very same time knows nothing of this one, and has another
    replacement for keys. Nothing is done yet: of two that see each other both give way."""
    if any(each.in_keys != request.in_keys for each in _of_text(core, request.text)):
        begin(core, request.name, work(core, REDACTION))
        raise ConflictError("somebody else has begun to redact the same text just now; run it again")


def _in_archive(core: Core) -> tuple[str, ...]:
    """What came back from a cold archive is still in its parcel there, as it was."""
    archive = getattr(core.backend, "archive", None)
    if archive is None:
        return ()
    parcels = next(iter(archive.keys()), None)
    words = "parcels in the cold archive, until cool(…, sweep_after=…) removes those that came back"
    return () if parcels is None else (words,)


def purge(core: Core, names: list[str], purge_s: float) -> tuple[str, ...]:
    """What was written before is in free pages and logs of the store until it is purged, and so are the
    intentions: the text in them goes first."""
    for name in names:
        begin(core, name, work(core, REDACTION))
    core.head_cache.clear()
    # Also if nothing was found: somebody may have been killed before this.
    purged = core.backend.purge(purge_s)
    for name in [] if purged.waiting else names:
        end(core, name)
    return (*purged.waiting, *purged.replaced, *purged.unreached)


def begun_before(core: Core, needle: Needle, reason: str) -> RedactionRequest:
    """The request to redact this; the same again if it was cut short. One with another replacement takes
    the place of those that were: nothing of the text is left for them."""
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    same = [known for _, told in begun if (known := _request(told)) is not None]
    same = [known for known in same if known.text == needle.text]
    replaced = {id_ for known in same for id_ in known.instead_of}
    for known in same:
        if known.replacement == needle.replacement and known.id not in replaced:
            others = tuple(each.id for each in same if each.id != known.id)
            return msgspec.structs.replace(known, instead_of=others)
    # Why it is done is recorded in clear: the text doesn't stay in that.
    why, others = needle.replaced(reason), tuple(known.id for known in same)
    id_, in_keys = core.runtime.random_bytes(8).hex(), _in_keys(core, needle)
    return RedactionRequest(id_, needle.text, needle.replacement, why, others, in_keys)


def _in_keys(core: Core, needle: Needle) -> str:
    """What takes the place of the text in keys: the same as for whoever has begun with it, and isn't done."""
    for known in _of_text(core, needle.text):
        return known.in_keys or known.replacement
    return key_replacement(needle.text, needle.replacement, core.runtime.random_bytes)


def _of_text(core: Core, text: str) -> list[RedactionRequest]:
    """All that is to be done with a text, whether or not somebody is at it."""
    known = [_request(told) for _, told in _marks(core)]
    return [each for each in known if each is not None and each.text == text]


def _request(told: Work) -> RedactionRequest | None:
    """What a mark says was to be redacted; ``None`` if that is done, or can't be read."""
    if told.what == REDACTION and told.note:
        with suppress(StateCorruptedError):
            return RedactionRequest.unpack(told.note)
    return None


def under_way(core: Core) -> set[str]:
    """The redactions that have something left to rewrite, whether or not somebody is at them, by id."""
    return {name.removeprefix(_NAME) for name, told in _marks(core) if told.note}


def _marks(core: Core) -> list[tuple[str, Work]]:
    found: list[tuple[str, Work]] = []
    space, after = beside(core, "unfinished").space, None
    while page := core.backend.cells(space, _NAME, after, _PAGE):
        for name, cell in page:
            with suppress(msgspec.MsgspecError):
                found.append((name, msgspec.msgpack.decode(cell.value, type=Work)))
        after = page[-1][0]
    return found


def resume_redactions(core: Core) -> None:
    """When a store is opened: finish redactions, tell of imports. Whatever is wrong, the store is open."""
    begun = cut_short(core.backend, core.space, core.runtime.now_us)
    known = [each for _, told in begun if (each := _request(told)) is not None]
    replaced = {_NAME + id_ for each in known for id_ in each.instead_of}
    for name, told in begun:
        if name in replaced:
            # Ended by the one that takes its place.
            continue
        if told.what != REDACTION:
            warnings.warn(f"{core.backend.url}: {told}", stacklevel=2)
            continue
        try:
            if told.note:
                carry_out(core, RedactionRequest.unpack(told.note), None, 0.0)
            else:
                purge(core, [name], 0.0)
        except EverthreadError as error:
            core.background_error = error


# ── what was ever redacted ──────────────────────────────────────────────────────────────────────────────


def recorded(core: Core) -> list[Redaction]:
    """The redactions, the oldest first, each with all that was done for it: also before it was cut short, and
    by whoever went on with it. Changes nothing."""
    # Asked first: one that ends meanwhile is told as unfinished, and not the other way round.
    begun = under_way(core)
    thread = Thread(beside(core, NAME), NAME)
    thread.handle.load()
    log, found = thread.log(NAME), dict[str, _Tally]()
    for start in range(0, len(log), _RECORDS_PAGE):
        for item in log.read(start, start + _RECORDS_PAGE):
            found.setdefault(item["redaction"], _Tally(item)).add(item)
    for id_, each in found.items():
        each.settle(id_ not in begun, _rest_of(id_, found))
    return [each.told() for each in found.values() if each.places or not each.by]


def _places(item: Any) -> Iterator[tuple[Any, int]]:
    """What an entry is about: versions of a line, or events of a stream."""
    yield from ((item["line"], seq) for seq, *_ in item["versions"])
    yield from ((item["stream"], seq) for seq, *_ in item.get("events", ()))


def _rest_of(id_: str, found: dict[str, _Tally]) -> set[tuple[Any, int]]:
    """What redactions of the same text had to do after this one was cut short: the last of them ended all."""
    last, ids = found[id_].by, list(found)
    later = [(each, found[each]) for each in ids[ids.index(id_) + 1 :]] if last else []
    return set[tuple[Any, int]]().union(*(one.noted for each, one in later if last in (each, one.by)))


class _Tally:
    """One redaction, counted. What was noted again after it was cut short counts once."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self._last: set[tuple[Any, int]] = set()
        self._finished = True
        #: What was to be rewritten, and what of that was.
        self.noted: set[tuple[Any, int]] = set()
        self.places: set[tuple[Any, int]] = set()
        #: The redaction that did the rest.
        self.by = ""

    def add(self, item: Any) -> None:
        self.by = item.get("by", self.by)
        self._last = set(_places(item))
        self.noted |= self._last

    def settle(self, finished: bool, rest: Collection[tuple[Any, int]]) -> None:
        """Leave out what was noted and not done. It is noted before it is done, and nothing else before that
        is: so only the last entry of one that isn't finished may speak of what isn't there. If another one
        did the rest, that is what it has noted."""
        self._finished = finished
        self.places = self.noted.difference(rest, () if finished else self._last)

    def told(self) -> Redaction:
        # Lines are known by bytes, streams by name.
        versions = [line for line, _ in self.places if isinstance(line, bytes)]
        return Redaction(
            id=self._first["redaction"],
            at_us=self._first["at_us"],
            reason=self._first["reason"],
            threads=len(set(versions)),
            versions=len(versions),
            events=len(self.places) - len(versions),
            unfinished=True if not self._finished else msgspec.UNSET,
            by=self.by or msgspec.UNSET,
        )
