# Generated from src/everthread/threads/aio/keeping.py by tools/twin.py: change that, then run: make twin
"""Which versions stay: what the rules keep, and what threads and forks stand on."""

from __future__ import annotations

from collections.abc import Iterable

from everthread.codec import records
from everthread.codec.records import Head
from everthread.errors import StateCorruptedError
from everthread.history.retention import Retention, read_tombstone
from everthread.history.spans import Spans
from everthread.stores.contract import COLD, DAMAGED, PACK, PRUNED, SEAL_SEQ, Line, Row
from everthread.threads.sync.reader import Reader
from everthread.threads.tombstones import away


class Pins:
    """Versions that must stay whatever the rules say, by line."""

    def __init__(self) -> None:
        self._seqs: dict[int, set[int]] = {}

    def add(self, line: int, seq: int) -> None:
        self._seqs.setdefault(line, set()).add(seq)

    def of(self, line: int) -> set[int]:
        return self._seqs.get(line, set())

    def add_past(self, reader: Reader, line: Line, seq: int) -> None:
        """What the state at a head goes back to: where its past was forked and rewound, and what was merged.

        One of these is the base of any later merge with another thread.
        """
        snapshot = (reader.load(line, seq)).snapshot
        for stretch in reader.ancestry(line, seq, snapshot.segment):
            self.add(stretch.line.id, stretch.last)
        for uid, (merged_seq, segment) in snapshot.merged.items():
            source = reader.backend.line_by_uid(uid)
            # What came from a thread that was deleted and purged since is no base for anything.
            if source is not None and reader.backend.scan(source.id, merged_seq, 1):
                for stretch in reader.ancestry(source, merged_seq, segment):
                    self.add(stretch.line.id, stretch.last)


class Family:
    """Lines that share a history: a line that isn't a fork, with all its forks and theirs."""

    def __init__(self, reader: Reader, lines: Iterable[Line]) -> None:
        self._reader = reader
        #: Parents before their forks.
        self.lines = {line.id: line for line in sorted(lines, key=lambda line: line.id)}
        self.newest: dict[int, int] = {}
        self._children: dict[int, list[Line]] = {}
        #: The newest version of each line that somebody can come to.
        self._reach: dict[int, int] = {}

    def look(self) -> None:
        """See how far each line has come. Everything that follows is as of this moment."""
        for line in self.lines.values():
            rows = self._reader.backend.scan(line.id, SEAL_SEQ - 1, 1)
            self.newest[line.id] = rows[0].seq if rows else line.parent_seq
            self._children.setdefault(line.parent, []).append(line)
        for line in reversed(self.lines.values()):
            if not line.deleted:
                self._reach[line.id] = self.newest[line.id]
            forks = [fork for fork in self._children.get(line.id, ()) if fork.id in self._reach]
            if forks:
                highest = max(fork.parent_seq for fork in forks)
                self._reach[line.id] = max(self._reach.get(line.id, 0), highest)

    def reach(self, line: Line) -> int:
        """The newest version of a line that somebody can come to; 0 if nobody comes there at all."""
        return self._reach.get(line.id, 0)

    def seen(self, line: Line) -> tuple[tuple[int, int], ...]:
        """The lines from which versions of this one can be reached, and how far each had come."""
        found = [line]
        for each in found:
            found.extend(self._children.get(each.id, ()))
        return tuple((each.id, self.newest[each.id]) for each in found)

    def kept(self, rule: Retention, now_us: int, pins: Pins) -> dict[int, Spans]:
        """The versions of each line that stay."""
        if not rule.takes:
            return {line.id: self._reachable(line, pins) for line in self.lines.values()}
        last: dict[int, Spans] = {number: Spans() for number in self.lines}
        for line in self.lines.values():
            if line.id in self._reach:
                if line.parent:
                    pins.add(line.parent, line.parent_seq)
                if not line.deleted:
                    self._keep_last(line, max(rule.keep_last or 1, 1), last)
        kept: dict[int, Spans] = {}
        # A rewind goes back to an earlier version of its line, or of one that it was forked from: whoever
        # goes from the newest to the oldest knows all that is needed of a version when coming to it.
        for line in reversed(self.lines.values()):
            kept[line.id] = self._walk(line, rule, now_us, pins, last[line.id])
        return kept

    def _reachable(self, line: Line, pins: Pins) -> Spans:
        spans = Spans([(line.parent_seq + 1, self.reach(line))])
        for seq in pins.of(line.id):
            spans.add(seq, seq)
        return spans

    def _keep_last(self, line: Line, count: int, last: dict[int, Spans]) -> None:
        """The newest versions of a thread, also those that it shares with what it was forked from."""
        top = self.newest[line.id]
        lowest = max(top - count + 1, 1)
        while True:
            last[line.id].add(max(lowest, line.parent_seq + 1), top)
            if lowest > line.parent_seq or not line.parent:
                return
            top, line = line.parent_seq, self.lines[line.parent]

    def _walk(self, line: Line, rule: Retention, now_us: int, pins: Pins, last: Spans) -> Spans:
        kept = Spans()
        reach = self.reach(line)
        seq = self.newest[line.id]
        #: Whether anything stays of the stretch that the next rewind began.
        held = False
        while seq > line.parent_seq:
            rows = self._reader.backend.scan(line.id, seq, 64)
            if not rows or not rows[0].first <= seq <= rows[0].seq:
                raise StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=line.name)
            for row in rows:
                for at, head in self._heads(line, row):
                    if row.kind != PRUNED and (
                        at in pins.of(line.id) or (at <= reach and (at in last or rule.keeps(head, now_us)))
                    ):
                        kept.add(at, at)
                        held = True
                    if head.kind == records.REWIND:
                        if held and head.source is not None:
                            source = self._reader.by_uid(line, head.source[0])
                            pins.add(source.id, head.source[1])
                        held = False
            seq = rows[-1].first - 1
        return kept

    def _heads(self, line: Line, row: Row) -> list[tuple[int, Head]]:
        """The versions of a row that are left, or that are still asked for, the newest first."""
        if row.kind == DAMAGED:
            raise StateCorruptedError(f"version {row.seq} of {line.name!r} is damaged", where=line.name)
        if row.kind == COLD:
            raise away(line)
        if row.kind == PACK:
            heads = dict(enumerate(self._reader.pack(row).heads))
        elif row.kind == PRUNED:
            heads = dict(read_tombstone(row.body).heads)
        else:
            heads = {0: records.read_record(row.body)[0]}
        return [(row.first + index, records.read_head(heads[index])) for index in sorted(heads, reverse=True)]
