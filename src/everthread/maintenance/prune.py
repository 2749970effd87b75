"""Taking versions out of a line: digests stay in their place, and what later versions go on from.

Runs of versions that go become one row each, with the state at their end if a version that stays needs it:
as a keyframe, or as the change from the version before them where that is smaller. Worked from the newest
rows to the oldest, so that whatever has to be read for it is still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.values import decode, encode_stored
from everthread.errors import StateCorruptedError
from everthread.history import ops, packs
from everthread.history.chain import link, record_digest
from everthread.history.diff import diff_documents
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.history.retention import Retention, Spans, read_tombstone, tombstone
from everthread.history.snapshots import Snapshot, read_keyframe, write_keyframe
from everthread.maintenance.examine import Gap, rows_of
from everthread.stores.contract import COLD, DAMAGED, DELTA, PACK, PRUNED, REWIND, SEAL_SEQ, Line, Prune, Row
from everthread.threads.sync.reader import Reader
from everthread.threads.tombstones import away

#: Versions that are worked on, and replaced, at a time.
GROUP_MAX = 4096
#: Rows after which there is a keyframe, so that reading a version in their midst stays quick.
_KEYFRAME_EVERY = 64


class Moved(Exception):  # noqa: N818 - a signal inside this layer
    """Somebody wrote, forked, rewound or folded meanwhile: look again."""


class Record(msgspec.Struct, frozen=True):
    """One version as a row holds it, with its digest and its hash."""

    head: bytes
    change: bytes
    digest: bytes
    hash: bytes


class _Run:
    """Versions one after another that go, or have gone."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.digests: list[bytes] = []
        self.heads: dict[int, bytes] = {}
        self.splices: list[Sequence[object]] = []
        self.merged: dict[bytes, list[int]] = {}
        #: Whether there is a change that leads through it: no rewind, nothing that only a keyframe tells.
        self.straight = True
        self.hash = b""

    @property
    def last(self) -> int:
        return self.first + len(self.digests) - 1

    def add(self, record: Record) -> None:
        head = records.read_head(record.head)
        if head.key is not None or head.step is not None or head.source is not None:
            self.heads[len(self.digests)] = record.head
        self.digests.append(record.digest)
        self.hash = record.hash
        self.straight = self.straight and head.kind != records.REWIND
        self._lead(records.read_change(record.change))

    def add_gone(self, row: Row) -> None:
        """Take in versions that were pruned before."""
        tomb = read_tombstone(row.body)
        self.heads.update({len(self.digests) + index: head for index, head in tomb.heads.items()})
        self.digests.extend(tomb.digests)
        self.hash = row.hash
        self.straight = self.straight and row.net is not None
        if row.net is not None:
            self._lead(packs.read_net(row.net))

    def _lead(self, change: Change) -> None:
        self.splices.extend(change.logs)
        self.merged.update(change.merged)


class LinePruning:
    """Takes versions out of one line; ``kept`` are those that stay."""

    def __init__(self, reader: Reader, line: Line, kept: Spans, seen: tuple[tuple[int, int], ...]) -> None:
        self._reader = reader
        self._line = line
        self._kept = kept
        self._seen = seen
        self._top = dict(seen)[line.id]

    def run(self) -> int:
        """Prune; how many versions are gone that were there before. Raises :class:`Moved`."""
        groups: list[tuple[int, int]] = []
        gone = 0
        follows = single = False
        for row in rows_of(self._reader, self._line):
            if isinstance(row, Gap):
                raise row.damage
            if row.seq > self._top:
                break
            takes = self._takes(row)
            gone += takes
            single = single or row.kind == DELTA
            if takes and single:
                # It should have been folded: what is single below a pruned row would be lost from sight.
                raise Moved
            touched = takes > 0 or (row.kind == PRUNED and row.seq - row.first + 1 < GROUP_MAX // 2)
            if touched and follows and row.seq - groups[-1][0] < GROUP_MAX:
                groups[-1] = (groups[-1][0], row.seq)
            elif touched:
                groups.append((row.first, row.seq))
            follows = touched
        for first, last in reversed(groups):
            self._group(first, last)
        return gone

    def count(self) -> int:
        """How many versions would go."""
        total = 0
        for row in rows_of(self._reader, self._line):
            if isinstance(row, Gap):
                raise row.damage
            if row.seq <= self._top:
                total += self._takes(row)
        return total

    def _takes(self, row: Row) -> int:
        """How many versions of a row go that haven't gone yet."""
        if row.kind == PRUNED:
            return 0
        return sum(last - first + 1 for first, last, stays in self._split(row) if not stays)

    def _split(self, row: Row) -> list[tuple[int, int, bool]]:
        return list(self._kept.split(row.first, row.seq))

    # ── a group of rows ──────────────────────────────────────────────────────────────────────

    def _group(self, first: int, last: int) -> None:
        """Replace the rows that hold these versions."""
        old, before, after = self._rows(first, last)
        if all(row.kind == PRUNED for row in old):
            return
        rows: list[Row] = []
        run: _Run | None = None
        told = 0
        for row in old:
            if row.kind == PRUNED:
                run = run or _Run(row.first)
                run.add_gone(row)
                before = row.hash
                continue
            found = self._records(row, before)
            before = row.hash
            for start, stop, stays in self._split(row):
                part = found[start - row.first : stop - row.first + 1]
                if not stays:
                    run = run or _Run(start)
                    for record in part:
                        run.add(record)
                    continue
                if run is not None:
                    rows.append(self._stone(run, row.kind, forced=told >= _KEYFRAME_EVERY))
                    told = 0 if rows[-1].keyframe is not None else told + 1
                    run = None
                rows.append(_packed(row, start, part))
                told = 0 if rows[-1].keyframe is not None else told + 1
        if run is not None:
            rows.append(self._stone(run, after, forced=told >= _KEYFRAME_EVERY))
        prune = Prune(tuple(old), tuple(rows), seen=self._seen)
        if not self._reader.backend.prune(self._line, prune):
            raise Moved

    def _rows(self, first: int, last: int) -> tuple[list[Row], bytes, int | None]:
        """The rows of a group, oldest first; the hash before them, and the kind of the row that goes on from
        them, if one does."""
        backend, line = self._reader.backend, self._line
        following = backend.scan(line.id, last + 1, 1) if last < self._top else []
        after = following[0].kind if following else None
        if after == PRUNED and following[0].net is None:
            # It has the state at its own end, or nobody needs one.
            after = None
        rows = backend.scan(line.id, last, last - first + 2)
        old = [row for row in reversed(rows) if row.first >= first]
        below = rows[len(old)] if len(rows) > len(old) else None
        if not old or (old[0].first, old[-1].seq) != (first, last):
            raise Moved
        return old, line.start_hash if below is None else below.hash, after

    def _records(self, row: Row, before: bytes) -> list[Record]:
        """The versions of a row, each with its digest; the chain vouches for them."""
        if row.kind == PACK:
            pack = self._reader.pack(row)
            parts = list(zip(pack.heads, pack.changes, strict=True))
            bodies = self._whole(parts)
        elif row.kind == REWIND:
            parts, bodies = [records.read_record(row.body)[:2]], [row.body]
        else:
            # Not folded, or damaged.
            raise Moved
        found = []
        for (head, change), body in zip(parts, bodies, strict=True):
            digest = record_digest(body)
            before = link(before, digest)
            found.append(Record(head, change, digest, before))
        if before != row.hash:
            raise StateCorruptedError(
                f"versions {row.first} to {row.seq} aren't what their hashes say; run store.verify()"
            )
        return found

    def _whole(self, parts: list[tuple[bytes, bytes]]) -> list[bytes]:
        """The bodies of folded records, with their items."""
        ranges = [packs.inserted_ranges(change) for _, change in parts]
        edges: dict[str, tuple[int, int]] = {}
        for log, start, stop in (each for found in ranges for each in found):
            low, high = edges.get(log, (start, stop))
            edges[log] = min(low, start), max(high, stop)
        items = {
            log: (low, self._reader.raw_items(self._line, log, low, high))
            for log, (low, high) in edges.items()
        }

        def taken(log: str, start: int, stop: int) -> list[bytes]:
            low, found = items[log]
            return found[start - low : stop - low]

        return [
            packs.whole(head, change, [taken(*each) for each in found])
            for (head, change), found in zip(parts, ranges, strict=True)
        ]

    # ── what takes their place ───────────────────────────────────────────────────────────────

    def _stone(self, run: _Run, after: int | None, *, forced: bool) -> Row:
        """The row for versions that are gone. ``after`` is the kind of the row that goes on from them."""
        body = tombstone(run.digests, run.heads)
        if after is None or after == REWIND:
            # Nothing goes on from here.
            return Row(run.last, run.first, PRUNED, run.hash, body)
        snapshot = (self._reader.load(self._line, run.last, pruned=True)).snapshot
        keyframe = write_keyframe(snapshot)
        net = self._net(run, snapshot) if run.straight else None
        if net is not None and (keyframe is None or (not forced and len(net) < len(keyframe))):
            return Row(run.last, run.first, PRUNED, run.hash, body, net)
        if keyframe is None:
            raise StateCorruptedError("the document is too large for a keyframe; its past can't be pruned")
        return Row(run.last, run.first, PRUNED, run.hash, body, None, keyframe)

    def _net(self, run: _Run, snapshot: Snapshot) -> bytes | None:
        """What leads from the version before a run to its end, without what came and went between.

        ``None`` if only a keyframe tells it exactly.
        """
        line = self._line
        if run.first > line.parent_seq + 1:
            base = (self._reader.load(line, run.first - 1, pruned=True)).snapshot
        elif line.parent:
            base = (self._reader.load(self._reader.parent(line), line.parent_seq)).snapshot
        else:
            base = Snapshot.empty()
        edits: list[Any] = diff_documents(base.document, snapshot.document)
        net = encode_stored([edits, packs.compose_splices(run.splices), run.merged])
        # The order of keys counts, and not every way to it is an edit.
        reached = ops.apply(base.document, decode(net)[0])
        if encode_stored(reached) != encode_stored(snapshot.document):
            return None
        return records.compress(net)


def _packed(row: Row, first: int, part: list[Record]) -> Row:
    """The row for some versions of another row, which stay."""
    last = first + len(part) - 1
    keyframe = row.keyframe if last == row.seq else None
    if row.kind == REWIND:
        return row
    pack = packs.fold_parts(
        first, [(record.head, record.change, []) for record in part], [record.hash for record in part]
    )
    return Row(last, first, PACK, part[-1].hash, pack.body, pack.net, keyframe)


# Which versions stay: what the rules keep, and what threads and forks stand on.


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
            if source is not None and reader.has(source, merged_seq):
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


# Dropping the items of logs that only pruned versions held.
#
# An item stays if a version that is left inserted it (its record, and so the chain, needs it), or if a
# version that follows pruned ones still holds it. Everything between is held by one of these, too.


#: More positions than any log has: nothing is ever appended to a line that was deleted.
_EVERY = 1 << 62

Logs = dict[str, LogState]


class Sweep:
    """The items that are in use in one family of lines, and dropping those that aren't."""

    def __init__(self, reader: Reader, family: Family) -> None:
        self._reader = reader
        self._family = family
        self._live: dict[int, dict[str, Spans]] = {}
        #: How many positions of each log a line has used so far.
        self._used: dict[int, dict[str, int]] = {}
        self._pruned = False

    def run(self) -> None:
        """Raises :class:`Moved` if somebody forked or rewound meanwhile."""
        for line in self._family.lines.values():
            self._walk(line)
        if not self._pruned:
            return
        for line in self._family.lines.values():
            dropped = tuple(self._dropped(line))
            if dropped:
                prune = Prune(dropped=dropped, seen=self._family.seen(line))
                if not self._reader.backend.prune(line, prune):
                    raise Moved

    def _dropped(self, line: Line) -> list[tuple[str, int, int]]:
        """The positions of a line that nobody holds, as (log, start, stop)."""
        live = self._live.get(line.id, {})
        found: list[tuple[str, int, int]] = []
        for log, used in self._used.get(line.id, {}).items():
            own = line.counts.get(log, 0) if line.parent else 0
            top = _EVERY if line.deleted else used
            if own < top:
                free = live.get(log, Spans()).split(own, top - 1)
                found.extend((log, start, stop + 1) for start, stop, held in free if not held)
        return found

    # ── what is in use ───────────────────────────────────────────────────────────────────────

    def _walk(self, line: Line) -> None:
        top = self._family.newest[line.id]
        if top == line.parent_seq:
            return
        logs: Logs | None = {}
        if line.parent:
            parent = self._reader.parent(line)
            logs = dict((self._reader.load(parent, line.parent_seq)).snapshot.logs)
        used = self._used[line.id] = {name: log.count for name, log in (logs or {}).items()}
        gap = False
        following = line.parent_seq + 1
        for row in rows_of(self._reader, line):
            if isinstance(row, Gap):
                raise row.damage
            if row.kind == PRUNED and row.first <= top <= row.seq and not line.deleted:
                # Somebody else pruned what was the newest version here: who holds its items comes after it.
                raise Moved
            if row.first > top:
                break
            # A pack may have been made since that goes beyond the newest version of then: all of it counts.
            if row.first != following:
                raise Moved
            following = row.seq + 1
            if row.kind == PRUNED:
                logs, gap = _after_pruned(row, logs), True
                self._pruned = True
            elif row.kind == REWIND:
                logs, gap = dict((self._reader.load(line, row.seq)).snapshot.logs), False
            else:
                logs = self._after_records(line, row, logs, gap)
                gap = False
            for name, log in (logs or {}).items():
                used[name] = max(used.get(name, 0), log.count)
        if following <= top:
            raise Moved

    def _after_records(self, line: Line, row: Row, logs: Logs | None, gap: bool) -> Logs:
        if logs is None:
            raise StateCorruptedError(f"version {row.first} of {line.name!r} goes on from nothing")
        changes = self._changes(row, apart=gap)
        for index, change in enumerate(changes):
            for log, at, remove, insert, position, *_ in change.logs:
                logs[log] = logs.get(log, EMPTY_LOG).splice(at, remove, insert)
                if insert:
                    self._hold(line, log, position, position + insert)
            if gap and index == 0:
                for log, state in logs.items():
                    for start, stop in state.pieces:
                        self._hold(line, log, start, stop)
        return logs

    def _changes(self, row: Row, *, apart: bool) -> Sequence[Change]:
        """What a row changes: version by version, or for a pack all at once."""
        if row.kind != PACK:
            return [records.read_change(records.read_record(row.body)[1])]
        if not apart:
            return [packs.read_net(row.net or b"")]
        return [records.read_change(encoded) for encoded in self._reader.pack(row).changes]

    def _hold(self, line: Line, log: str, start: int, stop: int) -> None:
        """Positions of a line, or below it of those that it was forked from, are in use."""
        while start < stop:
            own = line.counts.get(log, 0) if line.parent else 0
            if stop > own:
                self._live.setdefault(line.id, {}).setdefault(log, Spans()).add(max(start, own), stop - 1)
                stop = own
            if not line.parent:
                return
            line = self._family.lines[line.parent]


def _after_pruned(row: Row, logs: Logs | None) -> Logs | None:
    """The logs as they are after pruned versions; ``None`` if nothing goes on from there."""
    if row.keyframe is not None:
        return dict(read_keyframe(row.keyframe).logs)
    if row.net is None or logs is None:
        return None
    for log, at, remove, insert, *_ in packs.read_net(row.net).logs:
        logs[log] = logs.get(log, EMPTY_LOG).splice(at, remove, insert)
    return logs
