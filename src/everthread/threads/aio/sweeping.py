"""Dropping the items of logs that only pruned versions held.

An item stays if a version that is left inserted it (its record, and so the chain, needs it), or if a version
that follows pruned ones still holds it. Everything between is held by one of these, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from everthread.codec import records
from everthread.codec.records import Change
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.logs import EMPTY_LOG, LogState
from everthread.history.snapshots import read_keyframe
from everthread.history.spans import Spans
from everthread.stores.contract import PACK, PRUNED, REWIND, Line, Prune, Row
from everthread.threads.aio.examining import Gap, rows_of
from everthread.threads.aio.keeping import Family
from everthread.threads.aio.pruning import Moved
from everthread.threads.aio.reader import Reader

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

    async def run(self) -> None:
        """Raises :class:`Moved` if somebody forked or rewound meanwhile."""
        for line in self._family.lines.values():
            await self._walk(line)
        if not self._pruned:
            return
        for line in self._family.lines.values():
            dropped = tuple(self._dropped(line))
            if dropped:
                prune = Prune(dropped=dropped, seen=self._family.seen(line))
                if not await self._reader.backend.prune(line, prune):
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

    async def _walk(self, line: Line) -> None:
        top = self._family.newest[line.id]
        if top == line.parent_seq:
            return
        logs: Logs | None = {}
        if line.parent:
            parent = await self._reader.parent(line)
            logs = dict((await self._reader.load(parent, line.parent_seq)).snapshot.logs)
        used = self._used[line.id] = {name: log.count for name, log in (logs or {}).items()}
        gap = False
        following = line.parent_seq + 1
        async for row in rows_of(self._reader, line):
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
                logs, gap = dict((await self._reader.load(line, row.seq)).snapshot.logs), False
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
