"""Which versions of recorded files stay: those that the versions of their threads refer to that stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everthread.codec import records
from everthread.errors import StateCorruptedError
from everthread.history.chain import parse_version_id
from everthread.history.logs import LogState
from everthread.history.retention import Retention, Spans
from everthread.maintenance.prune import Family, Pins
from everthread.stores.contract import PACK, PRUNED, REWIND, Line, Row
from everthread.threads.sync.core import Core
from everthread.threads.sync.journals import FILES, space_beside
from everthread.threads.sync.pins import pins_of
from everthread.threads.sync.reader import Reader
from everthread.threads.sync.workspace import FILES_LOG

_PAGE = 64


class FilePins:
    """Pins versions of files beside threads, of one namespace."""

    def __init__(self, core: Core, rule: Retention, now_us: int) -> None:
        self._core = core
        self._reader: Reader = core.reader
        self._rule = rule
        self._now_us = now_us
        self._space = space_beside(core.space, FILES)
        #: What stays of the families of threads that were looked at, by their root.
        self._kept: dict[int, dict[int, Spans]] = {}

    def add(self, family: Family, lines: Callable[[], Iterator[Line]], pins: Pins) -> None:
        """Pin what threads refer to, if these are files beside threads; ``lines`` gives all lines."""
        beside = [line for line in family.lines.values() if line.space == self._space and not line.deleted]
        for line in beside:
            owner = self._core.backend.line_by_uid(bytes.fromhex(line.name))
            if owner is not None and not owner.deleted:
                for version in self._referred(owner, lines):
                    seq = parse_version_id(version)[0]
                    pins.add(self._reader.owner(line, seq).id, seq)

    def _referred(self, owner: Line, lines: Callable[[], Iterator[Line]]) -> set[str]:
        """The versions of files that a thread refers to in its versions that stay, inherited ones, too."""
        kept = self._kept.get(owner.root)
        if kept is None:
            kept = self._kept[owner.root] = self._stays([each for each in lines() if each.root == owner.root])
        positions: set[int] = set()
        line, last = owner, self._newest(owner)
        while True:
            for first, end in kept.get(line.id, Spans()):
                positions.update(self._positions(line, first, min(end, last)))
            if not line.parent:
                break
            last, line = line.parent_seq, self._reader.parent(line)
        found: set[str] = set()
        for position in positions:
            for item in self._reader.items(owner, FILES_LOG, position, position + 1, None, None):
                if isinstance(version := item.get("files"), str):
                    found.add(version)
        return found

    def _stays(self, lines: list[Line]) -> dict[int, Spans]:
        family = Family(self._reader, lines)
        family.look()
        pins = Pins()
        for line in lines:
            if not line.deleted:
                pins.add_past(self._reader, line, family.newest[line.id])
                for each in pins_of(self._core, line):
                    pins.add(self._reader.by_uid(line, each.owner).id, each.seq)
        return family.kept(self._rule, self._now_us, pins)

    def _newest(self, line: Line) -> int:
        found = self._core.find(line.name)
        return line.parent_seq if found is None or found.newest is None else found.newest.seq

    def _positions(self, line: Line, first: int, last: int) -> set[int]:
        """Where the log says which files were there, at any of these versions."""
        if last < first:
            return set()
        found = self._at(line, last)
        seq = last
        while seq >= first:
            rows = self._core.backend.scan(line.id, seq, _PAGE)
            if not rows:
                raise StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=line.name)
            for row in rows:
                if row.seq < first:
                    break
                if row.kind == REWIND:
                    found |= self._at(line, row.seq)
                elif row.kind != PRUNED:
                    found |= self._brought(row, first, last)
                seq = row.first - 1
            else:
                continue
            break
        return found | self._at(line, first)

    def _at(self, line: Line, seq: int) -> set[int]:
        state: LogState | None = self._reader.load(line, seq).snapshot.logs.get(FILES_LOG)
        return {state.pieces[-1][1] - 1} if state is not None and state.pieces else set()

    def _brought(self, row: Row, first: int, last: int) -> set[int]:
        """Return the positions that these versions added. A row may hold others, too: those after the version
        that a fork was made from have positions that the fork doesn't know."""
        found: set[int] = set()
        changes = self._reader.pack(row).changes if row.kind == PACK else [records.read_record(row.body)[1]]
        for seq, change in enumerate(changes, row.first):
            if first <= seq <= last:
                for log, _, _, insert, position, *_ in records.read_change(change).logs:
                    if log == FILES_LOG:
                        found.update(range(position, position + insert))
        return found
