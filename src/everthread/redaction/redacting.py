"""Taking a text out of history: records and items are rewritten, the chain of hashes stays.

A record that is rewritten keeps the digest of what was committed, so that the chain leads through it. The
store keeps a record of what was redacted, written first, with the digest of what is there now, so that
nobody can pass off another change as a redaction. Rows and their items are replaced together, some versions
at a time; cut short anywhere, the store verifies, and the next open does the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from everthread.codec import records
from everthread.errors import ConflictError, StateCorruptedError
from everthread.history import packs
from everthread.history.redaction import Needle, digest_of, logs_of_pruned, mark, reprinted
from everthread.history.snapshots import read_keyframe, write_keyframe
from everthread.redaction.events import EventsRedacting
from everthread.redaction.places import Place, RedactionReport
from everthread.redaction.resuming import begun_before, carry_out
from everthread.redaction.retagging import Retagging
from everthread.redaction.scanning import Scanner, needle_of
from everthread.stores.contract import DAMAGED, DELTA, PACK, PRUNED, SEAL_SEQ, Line, Prune, Row
from everthread.threads.reports import Progress
from everthread.threads.sync.core import Core
from everthread.threads.sync.examining import Gap, rows_of
from everthread.threads.sync.journals import told_as
from everthread.threads.sync.redactions import NAME, entry, events_entry, redactions_space
from everthread.threads.sync.thread import Thread

_LEFT_MAX = 1000
_TRIES = 5
_PURGE_S = 30.0

#: By log and position: an item before and after.
Items = dict[str, dict[int, tuple[bytes, bytes]]]


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
                self.events = EventsRedacting(self._core, self._needle, self._note_events).run()
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
        retagging = Retagging(self._core, self._needle)
        for line in lines:
            # The metadata of journals isn't data.
            if needle_of(self._needle, line) is self._needle and not self._is_empty(line):
                _LineRedacting(self, line).fold()
                retagging.look_at(line)
        retagging.run()
        self._core.memos.clear()

    def _line(self, line: Line) -> None:
        if self._is_empty(line):
            return
        for _ in range(_TRIES):
            redacting = _LineRedacting(self, line)
            done = redacting.run()
            self._core.memos.clear()
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
        thread._load()

        def add(draft: object) -> None:
            draft.log(NAME).append(told)  # type: ignore[attr-defined]

        thread.update(add)


class _LineRedacting:
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
