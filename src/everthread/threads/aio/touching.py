"""Which versions, of which threads, need something that is damaged."""

from __future__ import annotations

import msgspec

from everthread.codec import records
from everthread.errors import EverthreadError
from everthread.history import packs
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import read_keyframe
from everthread.stores.contract import DAMAGED, PACK, PRUNED, REWIND, Line, Row
from everthread.threads.aio.examining import Gap, rows_of
from everthread.threads.aio.journals import is_companion
from everthread.threads.aio.reader import Reader
from everthread.threads.reports import Damage

#: A place where something is damaged: the line and the version.
Cause = tuple[int, int]
#: A line, and the first and last of some versions of it.
Versions = tuple[Line, int, int]


class Stretch(msgspec.Struct):
    """Versions of a line that can't be rebuilt, because of the same cause."""

    first: int
    last: int
    cause: Cause


class Touched:
    """The lines of one family, parents before their forks, and what can't be rebuilt of each."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lines: dict[int, Line] = {}
        self._by_uid: dict[bytes, int] = {}
        self._lost: dict[int, list[Stretch]] = {}
        self._newest: dict[int, int] = {}

    async def add(self, line: Line) -> None:
        """Walk one line; those that it was forked from have been walked before."""
        self._lines[line.id], self._by_uid[line.uid] = line, line.id
        self._lost[line.id] = []
        self._newest[line.id] = line.parent_seq
        # The reason why the state before the row at hand is lost, if it is.
        inherited = cause = self._cause(line.parent, line.parent_seq) if line.parent else None
        expected = line.parent_seq + 1
        async for row in rows_of(self._reader, line):
            if row.first > expected:
                cause = cause or (line.id, expected)
                self._lose(line, expected, row.first - 1, cause)
            if isinstance(row, Gap) or row.kind == DAMAGED:
                last = row.last if isinstance(row, Gap) else row.seq
                cause = cause or (line.id, row.first)
                if last == expected or isinstance(row, Gap):
                    self._lose(line, row.first, last, cause)
                    expected = last + 1
                continue
            expected = row.seq + 1
            self._newest[line.id] = row.seq
            cause = self._walk(line, row, cause)
        bare = expected == line.parent_seq + 1 and not line.deleted
        if inherited is not None and bare and is_companion(line):
            # The journal that a fork took along, and that has nothing of its own yet.
            self._lose(line, line.parent_seq, line.parent_seq, inherited)

    def _walk(self, line: Line, row: Row, cause: Cause | None) -> Cause | None:
        """Note what of a row can't be rebuilt; the reason why the state after it is lost, if it is."""
        readable, source = _readable(row)
        own = (line.id, row.first)
        if source is not None:
            known = self._by_uid.get(source[0])
            cause = self._cause(known, source[1]) if known is not None else own
        if not readable or cause is not None:
            self._lose(line, row.first, row.seq, cause or own)
        if row.keyframe is not None and _works(read_keyframe, row.keyframe):
            if readable and self._lost[line.id] and self._lost[line.id][-1].last == row.seq:
                # The state at the end of the row is told by the keyframe.
                self._lost[line.id][-1].last -= 1
            return None
        if not readable and not (row.kind == PACK and _works(packs.read_net, row.net or b"")):
            cause = cause or own
        return cause

    def _lose(self, line: Line, first: int, last: int, cause: Cause) -> None:
        lost = self._lost[line.id]
        if lost and lost[-1].cause == cause and lost[-1].last == first - 1:
            lost[-1].last = last
        elif last >= first:
            lost.append(Stretch(first, last, cause))

    def _cause(self, line: int, seq: int) -> Cause | None:
        """Why a version of a line can't be rebuilt."""
        while line in self._lines and seq <= self._lines[line].parent_seq and self._lines[line].parent:
            line = self._lines[line].parent
        found = (s.cause for s in self._lost.get(line, ()) if s.first <= seq <= s.last)
        return next(found, None)

    def hurt_by_source(self, line: Line) -> bool:
        """Whether the version that a line was forked from is among those that can't be rebuilt."""
        return bool(line.parent) and self._cause(line.parent, line.parent_seq) is not None

    def by(self, line: Line, damage: Damage) -> list[Versions]:
        """What a damage of a line touches."""
        if damage.what == "items":
            return self._from(line, damage.first)
        return [
            (self._lines[number], stretch.first, stretch.last)
            for number, stretches in self._lost.items()
            for stretch in stretches
            if stretch.last >= stretch.first
            and stretch.cause[0] == line.id
            and damage.first <= stretch.cause[1] <= damage.last
        ]

    def _from(self, line: Line, seq: int) -> list[Versions]:
        """Every version that comes after one of a line: items stay in a log until they are cut off."""
        found = [(line, seq, max(self._newest.get(line.id, seq), seq))]
        for fork in self._lines.values():
            if fork.parent == line.id and fork.parent_seq >= seq:
                found.extend(self._from(fork, fork.parent_seq + 1))
        return [(each, first, last) for each, first, last in found if last >= first]


def _readable(row: Row) -> tuple[bool, tuple[bytes, int] | None]:
    """Whether the versions of a row can be read, and where a rewind goes back to."""
    try:
        if row.kind == PRUNED:
            read_tombstone(row.body)
            return True, None
        if row.kind == PACK:
            for encoded in packs.read_pack(row.body).changes:
                records.read_change(encoded)
            return True, None
        head, encoded, _ = records.read_record(row.body)
        records.read_change(encoded)
        source = records.read_head(head).source if row.kind == REWIND else None
    except EverthreadError:
        return False, None
    return True, None if source is None else source[:2]


def _works(read: object, data: bytes) -> bool:
    try:
        read(data)  # type: ignore[operator]
    except EverthreadError:
        return False
    return True
