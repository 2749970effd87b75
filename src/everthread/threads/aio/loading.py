"""The state at a version: back to a keyframe, then forward again.

What is derived (keyframes, the nets of packs) only makes this faster: where one of them is damaged, the
records themselves are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import COLD, DAMAGED, DELTA, PACK, PRUNED, REWIND, Line, Row
from everthread.threads.memo import Block, Costs, Recent, inserted
from everthread.threads.tombs import away, pruned

if TYPE_CHECKING:
    from everthread.threads.aio.reading import Reader


class Loaded(msgspec.Struct):
    """A snapshot, and what it took to read it."""

    snapshot: Snapshot
    costs: Costs
    recent: dict[str, Recent]
    #: (The beginning of) the hash of the version.
    digest: bytes


class Loading:
    """One walk back from a version to a keyframe, and forward again.

    After a failure ``reached`` is the lowest version of the thread that can't be rebuilt for the same reason.
    """

    def __init__(self, reader: Reader, line: Line, seq: int, pruned: bool = False) -> None:
        self._asked = reader, line, seq, pruned
        self._begin(reader, line, seq, pruned)
        #: Whether single records are taken one by one, which tells where a failure is.
        self._singly = False

    def _begin(self, reader: Reader, line: Line, seq: int, pruned: bool) -> None:
        self._reader = reader
        self._line = line
        self._seq = self.reached = seq
        #: Whether the last version of those that were pruned together will do.
        self._pruned = pruned
        self.done = False
        #: Until a rewind is met, lower versions of the thread lie on the way.
        self._straight = True
        #: What to do on the way forward, the last first, and where on the way that is.
        self._steps: list[tuple[Callable[[Snapshot], None], int]] = []
        self._base: Snapshot | None = None
        self._digest = b""
        self._in_tail = True
        #: The log splices and blocks of each record of the tail, the newest first.
        self._tail: list[tuple[list[list[Any]], list[bytes]]] = []
        #: The items of these, where they are known already.
        self._newest: dict[str, Recent] | None = None
        self._tail_bytes = self._rows = self._packs = self._replay_bytes = self._keyframe_bytes = 0

    async def run(self) -> Loaded:
        try:
            return await self._run()
        except StateCorruptedError:
            if self._singly:
                raise
        self._begin(*self._asked)
        self._singly = True
        return await self._run()

    async def _run(self) -> Loaded:
        while self._base is None:
            if self._seq > self._line.parent_seq:
                await self._walk_line()
            elif self._line.parent:
                self._steps.append((Snapshot.branch, self.reached))
                self._in_tail = False
                self._seq = min(self._seq, self._line.parent_seq)
                self._line = await self._reader.parent(self._line)
            else:
                self._base = Snapshot.empty()
        snapshot = self._base
        for step, at in reversed(self._steps):
            self.reached = at
            step(snapshot)
        self.done = True
        costs = Costs(
            len(self._tail),
            self._tail_bytes,
            self._rows,
            self._packs,
            self._replay_bytes,
            self._keyframe_bytes,
        )
        recent = _recent(self._tail) if self._newest is None else self._newest
        return Loaded(snapshot, costs, recent, self._digest)

    async def _walk_line(self) -> None:
        """Down the rows of one line as far as a keyframe, a rewind or its first version."""
        line, seq = self._line, self._seq
        rows = await self._reader.backend.replay(line.id, seq, line.parent_seq)
        if not rows:
            raise await self._reader.missing(line, seq)
        taken = 0 if self._singly or not self._in_tail else self._take_tail(rows)
        for row in rows[taken:]:
            if row.seq != self._seq and not (row is rows[0] and row.first <= seq <= row.seq):
                raise await self._reader.missing(line, self._seq)
            self._rows += 1
            if self._straight:
                self.reached = row.first if row.kind in (PACK, PRUNED) else row.seq
            if row.kind == COLD and (row.keyframe is None or row.seq > seq):
                raise away(line)
            if row.kind == PRUNED and row is rows[0] and not (self._pruned and seq == row.seq):
                raise pruned(seq, line.name)
            try:
                if not self._digest:
                    whole = row.kind == PACK and row.seq > seq
                    self._digest = self._reader.pack(row).hashes[seq - row.first] if whole else row.hash
                if row.keyframe is not None and row.seq <= seq and self._begin_with(row.keyframe):
                    return
                if row.kind == PRUNED:
                    self._take_pruned(row)
                elif row.kind == PACK:
                    await self._take_pack(row, seq)
                else:
                    await self._take_record(row)
            except StateCorruptedError as error:
                raise placed(error, line, row) from error

    def _begin_with(self, keyframe: bytes) -> bool:
        """Begin with a keyframe, unless it is damaged: then the records go on saying the same."""
        try:
            self._base = read_keyframe(keyframe)
        except StateCorruptedError:
            return False
        self._keyframe_bytes = len(keyframe)
        return True

    def _take_pruned(self, row: Row) -> None:
        """Of pruned versions there is nothing but what they add up to."""
        self._in_tail = False
        self._packs += 1
        self._seq = row.first - 1
        self._replay_bytes += len(row.net or b"")
        self._steps.append((_advance(packs.read_net(row.net or b"")), self.reached))

    async def _take_pack(self, row: Row, seq: int) -> None:
        self._in_tail = False
        self._packs += 1
        self._seq = row.first - 1
        if row.seq > seq:
            self._advance_by(self._reader.pack(row).changes[: seq - row.first + 1])
            return
        net = row.net or b""
        self._replay_bytes += len(net)
        try:
            self._steps.append((_advance(packs.read_net(net)), self.reached))
        except StateCorruptedError:
            # The net is derived: what it adds up is in the pack itself.
            whole = await self._reader.row(self._line, row.seq)
            self._advance_by(self._reader.pack(whole).changes)

    def _advance_by(self, changes: list[bytes]) -> None:
        self._steps.append((_advance(packs.in_one(changes)), self.reached))

    def _take_tail(self, rows: list[Row]) -> int:
        """Take the plain records with which the rows begin, all together; returns how many these were."""
        bodies, seq = [], self._seq
        for row in rows:
            if row.seq != seq or row.first != seq or row.kind != DELTA or row.keyframe is not None:
                break
            bodies.append(row.body)
            seq -= 1
        if not bodies:
            return 0
        self._seq = seq
        parts = records.read_records(bodies)
        # In the order in which they were written.
        parts.reverse()
        encoded = [each for _, each, _ in parts]
        blocks = [each for _, _, each in parts]
        changes: list[Any] = [*records.read_plain(encoded)] or _read_each(parts, encoded)
        together = Change()
        ops, splices = together.ops, together.logs
        for change in changes:
            ops += change.ops
            splices += change.logs
            if change.merged:
                together.merged.update(change.merged)
        if len(splices) == len(changes) and (grown := _grown(splices, blocks)) is not None:
            together.logs, self._newest = grown
        else:
            together.logs = packs.compose_splices(splices)
        self._tail = [(change.logs, filled) for change, filled in zip(changes, blocks, strict=True)]
        self._tail.reverse()
        self._tail_bytes = sum(map(len, bodies))
        self._replay_bytes += sum(map(len, encoded))
        self._rows += len(bodies)
        self._digest = rows[0].hash
        if self._straight:
            self.reached = self._seq + 1
        self._steps.append((_advance(together), self.reached))
        return len(bodies)

    async def _take_record(self, row: Row) -> None:
        if row.first != row.seq:
            raise StateCorruptedError("it claims to hold several versions")
        head, encoded, blocks = records.read_record(row.body)
        change = records.read_change(encoded)
        if self._in_tail:
            self._tail.append((change.logs, blocks))
            self._newest = None
            self._tail_bytes += len(row.body)
        self._replay_bytes += len(encoded)
        self._seq = row.seq - 1
        if row.kind != REWIND:
            if not change.ops and not change.logs and records.read_head(head).kind == records.REWIND:
                raise StateCorruptedError("it is a rewind and isn't marked as one")
            self._steps.append((_advance(change), self.reached))
            return
        told = records.read_head(head)
        if told.kind != records.REWIND or told.source is None:
            raise StateCorruptedError("it is marked as a rewind and isn't one")
        self._steps.append((lambda snapshot: snapshot.jump(row.seq, change.counts), self.reached))
        self._in_tail = self._straight = False
        self._line, self._seq = await self._reader.by_uid(self._line, told.source[0]), told.source[1]


def _advance(change: Change) -> Callable[[Snapshot], None]:
    return lambda snapshot: snapshot.advance(change)


def placed(error: StateCorruptedError, line: Line, row: Row) -> StateCorruptedError:
    """The same error, with the version it was met at, unless it says so already."""
    if error.where is not None and error.where.startswith(line.name):
        return error
    if row.kind == DAMAGED:
        error = StateCorruptedError("its row fails its checksum")
    which = f"version {row.seq}" if row.first == row.seq else f"versions {row.first} to {row.seq}"
    return StateCorruptedError(f"{which} of {line.name!r}: {error}", where=f"{line.name} {row.seq}")


def _read_each(parts: list[records.Parts], encoded: list[bytes]) -> list[Change]:
    """The changes of records that aren't all of the plainest kind."""
    changes = records.read_each(encoded)
    for change, (head, _, _) in zip(changes, parts, strict=True):
        if not change.ops and not change.logs and records.read_head(head).kind == records.REWIND:
            raise StateCorruptedError("it is a rewind and isn't marked as one")
    return changes


def _grown(
    splices: list[list[Any]], filled: list[list[bytes]]
) -> tuple[list[list[Any]], dict[str, Recent]] | None:
    """What splices come to, one of each record, and the items that they insert, if all they do is let one log
    grow, as nearly always. All of it is looked at together, which takes a fraction of the time."""
    blocks = [block for (block,) in filled] if set(map(len, filled)) == {1} else []
    if not blocks or set(map(len, splices)) != {6}:
        return None
    names, ats, removes, inserts, positions, _ = zip(*splices, strict=True)
    if len(set(names)) > 1 or any(removes) or not all(inserts):
        return None
    if [*map(add, ats, inserts)][:-1] != [*ats[1:]] or [*map(add, positions, inserts)][:-1] != [
        *positions[1:]
    ]:
        return None
    items = [*zip(positions, inserts, blocks, strict=True)]
    recent = Recent(items, len(items), sum(map(len, blocks)))
    return [[names[0], ats[0], 0, sum(inserts), positions[0]]], {names[0]: recent}


def _recent(tail: list[tuple[list[list[Any]], list[bytes]]]) -> dict[str, Recent]:
    """The newest items, from records read newest first."""
    found: dict[str, list[Block]] = {}
    for splices, filled in reversed(tail):
        if not filled:
            continue
        for log, block in inserted(splices, filled):
            blocks = found.setdefault(log, [])
            if blocks and blocks[-1][0] + blocks[-1][1] != block[0]:
                blocks.clear()
            blocks.append(block)
    return {
        log: Recent(blocks, len(blocks), sum([len(data) for _, _, data in blocks]))
        for log, blocks in found.items()
    }
