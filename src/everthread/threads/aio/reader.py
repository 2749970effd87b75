"""Reading a line: the state at a version, the items of its logs, its versions, its ancestry."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from operator import add
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.values import Open, decode_plain
from everthread.errors import StateCorruptedError, ThreadDeletedError
from everthread.history import packs
from everthread.history.chain import version_id
from everthread.history.logs import LOST, join_prints
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import COLD, DAMAGED, DELTA, PACK, PRUNED, REWIND, SEAL_SEQ, Line, Row
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.head_cache import (
    Block,
    Costs,
    Recent,
    covers,
    cut,
    gap,
    inserted,
    joined,
    recent_prints,
)
from everthread.threads.sealing import read_metadata
from everthread.threads.tombstones import away, dropped, pruned, pruned_hashes, pruned_head
from everthread.versions import NO_METADATA, Kind, Version

# ── the state at a version: back to a keyframe, then forward again ──


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
        rewind = records.read_head(head)
        if rewind.kind != records.REWIND or rewind.source is None:
            raise StateCorruptedError("it is marked as a rewind and isn't one")
        self._steps.append((lambda snapshot: snapshot.jump(row.seq, change.counts), self.reached))
        self._in_tail = self._straight = False
        self._line, self._seq = await self._reader.by_uid(self._line, rewind.source[0]), rewind.source[1]


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


_UNPACKED_MAX = 8
#: From so many items on the cyclic collector is kept still while they are decoded.
LARGE = 256
_KINDS: tuple[Kind, ...] = ("commit", "rewind", "merge", "fork", "fence")


class Stretch(msgspec.Struct, frozen=True):
    """A piece of a version's ancestry: ``first`` to ``last`` of one line, then whatever came before."""

    line: Line
    first: int
    last: int
    segment: int


class Reader:
    """Reads what a backend holds. Knows rows and records, not what a caller may do with them."""

    def __init__(self, backend: AsyncBackend, open_: Open | None = None) -> None:
        self.backend = backend
        #: Reads what is sealed in metadata.
        self.open = open_
        #: The packs looked into last; resolving, loading and forking a version look into the same one.
        self._unpacked: dict[bytes, tuple[bytes, packs.PackBody]] = {}

    def pack(self, row: Row) -> packs.PackBody:
        """What a pack row holds, unpacked."""
        known = self._unpacked.get(row.hash)
        if known is not None and known[0] == row.body:
            return known[1]
        body = packs.read_pack(row.body)
        if len(body.heads) != row.seq - row.first + 1:
            raise StateCorruptedError("the pack doesn't hold as many versions as it says")
        if len(self._unpacked) >= _UNPACKED_MAX:
            self._unpacked = {}
        self._unpacked[row.hash] = (row.body, body)
        return body

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    async def parent(self, line: Line) -> Line:
        found = await self.backend.line(line.parent)
        # A fork is always younger than what it was forked from: its parent's parents end.
        if found is None or found.id >= line.id:
            raise StateCorruptedError(
                f"the line that {line.name!r} was forked from is missing", where=line.name
            )
        return found

    async def owner(self, line: Line, seq: int) -> Line:
        """The line that holds version ``seq`` of this one: itself or an ancestor."""
        while seq <= line.parent_seq and line.parent:
            line = await self.parent(line)
        return line

    async def by_uid(self, line: Line, uid: bytes) -> Line:
        found = line if line.uid == uid else await self.backend.line_by_uid(uid)
        if found is None:
            raise StateCorruptedError(f"a line in the past of {line.name!r} is missing", where=line.name)
        return found

    async def ancestry(self, line: Line, seq: int, segment: int) -> AsyncIterator[Stretch]:
        """The versions that led to this one, newest stretch first. Walked lazily, a row per rewind."""
        while seq > 0:
            if segment > line.parent_seq:
                yield Stretch(line, segment, seq, segment)
                row = await self.row(line, segment)
                source = self.head(row, segment).source
                if row.kind not in (REWIND, PRUNED) or source is None:
                    raise await self.missing(line, segment)
                line, seq, segment = await self.by_uid(line, source[0]), source[1], source[2]
                continue
            if seq > line.parent_seq:
                yield Stretch(line, line.parent_seq + 1, seq, 0)
            if not line.parent:
                return
            seq, segment, line = line.parent_seq, line.parent_segment, await self.parent(line)

    async def contains(self, line: Line, seq: int, segment: int, wanted: Line, wanted_seq: int) -> bool:
        """Whether a version is among those that led to another."""
        async for s in self.ancestry(line, seq, segment):
            if s.last < wanted_seq:
                # Numbers fall along an ancestry: what comes is older still.
                return False
            if s.line.uid == wanted.uid and s.first <= wanted_seq:
                return True
        return False

    async def digest(self, line: Line, seq: int) -> bytes:
        """(The beginning of) the hash of a version, pruned or not."""
        line = await self.owner(line, seq)
        rows = await self.backend.scan(line.id, seq, 2)
        if not rows or not rows[0].first <= seq <= rows[0].seq:
            raise await self.missing(line, seq)
        row = rows[0]
        if row.kind == COLD:
            raise away(line)
        if row.kind == PACK:
            return self.pack(row).hashes[seq - row.first]
        if row.kind == PRUNED:
            return pruned_hashes(line, row, hash_below(rows, 0))[seq - row.first]
        return row.hash

    # ── state ────────────────────────────────────────────────────────────────────────────────

    async def load(self, line: Line, seq: int, *, pruned: bool = False) -> Loaded:
        """The state at version ``seq``: back to a keyframe, then forward again.

        Raises :class:`VersionPrunedError`; with ``pruned`` not for the last version of those that were pruned
        together, whose state is what later ones go on from.
        """
        return await Loading(self, line, seq, pruned).run()

    async def missing(self, line: Line, seq: int) -> Exception:
        now = await self.backend.line(line.id)
        if now is None or now.deleted:
            return ThreadDeletedError(f"the thread {line.name!r} was deleted; deletion is final")
        return StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=f"{line.name} {seq}")

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    async def row(self, line: Line, seq: int) -> Row:
        rows = await self.backend.scan(line.id, seq, 1)
        if not rows or not rows[0].first <= seq <= rows[0].seq:
            raise await self.missing(line, seq)
        return rows[0]

    async def has(self, line: Line, seq: int) -> bool:
        """Whether anything stands for a version of a line: not if a store has removed it with its line."""
        rows = await self.backend.scan(line.id, seq, 1)
        return bool(rows) and rows[0].seq >= seq

    def head(self, row: Row, seq: int) -> Head:
        if row.kind == PACK:
            return records.read_head(self.pack(row).heads[seq - row.first])
        if row.kind == PRUNED:
            return pruned_head(row, seq)
        if row.kind == COLD:
            raise away()
        return records.read_head(records.read_record(row.body)[0])

    async def change(self, line: Line, seq: int) -> Change:
        """What a version changed. Raises :class:`VersionPrunedError`."""
        row = await self.row(line, seq)
        if row.kind == PRUNED:
            raise pruned(seq, line.name)
        if row.kind == COLD:
            raise away(line)
        try:
            if row.kind == PACK:
                return records.read_change(self.pack(row).changes[seq - row.first])
            return records.read_change(records.read_record(row.body)[1])
        except StateCorruptedError as error:
            raise placed(error, line, row) from error

    async def edits(self, line: Line, first: int, last: int) -> list[Any] | None:
        """What these versions of a line changed in the document, in no order; ``None`` if some are pruned."""
        found: list[Any] = []
        while last >= first:
            rows = await self.backend.scan(line.id, last, 64)
            if not rows:
                raise await self.missing(line, last)
            for row in rows:
                if row.seq < first:
                    return found
                if row.kind not in (DELTA, PACK, REWIND) or not row.first <= last <= row.seq:
                    return None
                try:
                    changes = self.pack(row).changes if row.kind == PACK else []
                    encoded = changes[max(first - row.first, 0) : last - row.first + 1]
                    for each in encoded or [records.read_record(row.body)[1]]:
                        found += records.read_change(each).ops
                except StateCorruptedError as error:
                    raise placed(error, line, row) from error
                last = row.first - 1
        return found

    def versions(self, line: Line, row: Row, before: bytes | None) -> list[Version]:
        """The versions a row holds, newest first. ``before``: the hash of the version before the row."""
        if row.kind == PRUNED:
            return []
        if row.kind == COLD:
            raise away(line)
        if row.kind == PACK:
            body = self.pack(row)
            heads, hashes = body.heads, body.hashes
        else:
            heads, hashes = [records.read_record(row.body)[0]], [row.hash]
        found = []
        previous = before
        for index, head in enumerate(heads):
            seq = row.first + index
            found.append(make_version(line, seq, hashes[index], previous, records.read_head(head), self.open))
            previous = hashes[index]
        found.reverse()
        return found

    async def version(self, line: Line, seq: int, *, gone: bool = False) -> tuple[Version, bytes]:
        """One version of a line and (the beginning of) its hash.

        Raises :class:`VersionPrunedError`; with ``gone`` only if nothing is known of the version any more.
        """
        line = await self.owner(line, seq)
        rows = await self.backend.scan(line.id, seq, 2)
        if not rows or not rows[0].first <= seq <= rows[0].seq:
            raise await self.missing(line, seq)
        row, before = rows[0], hash_below(rows, 0)
        digest = row.hash
        if row.kind == COLD:
            raise away(line)
        if row.kind == PRUNED and not gone:
            raise pruned(seq, line.name)
        try:
            if row.kind == PRUNED:
                known, index = pruned_hashes(line, row, before), seq - row.first
                digest = known[index]
                before = known[index - 1] if index else before
            if row.kind == PACK:
                hashes, index = self.pack(row).hashes, seq - row.first
                digest = hashes[index]
                before = hashes[index - 1] if index else before
            return make_version(line, seq, digest, before, self.head(row, seq), self.open), digest
        except StateCorruptedError as error:
            raise placed(error, line, row) from error

    async def history(self, line: Line, seq: int) -> AsyncIterator[Version]:
        """The versions of a line from ``seq`` downwards, then those of the line it was forked from."""
        batch = 16
        while seq > 0:
            line = await self.owner(line, seq)
            rows = await self.backend.scan(line.id, seq, batch + 1)
            if not rows:
                raise await self.missing(line, seq)
            shown = rows[:batch] if len(rows) > batch else rows
            expected = seq
            for index, row in enumerate(shown):
                inside = index == 0 and row.first <= expected <= row.seq
                if row.kind != DAMAGED and row.seq != expected and not inside:
                    raise await self.missing(line, expected)
                expected = row.first - 1
                try:
                    versions = self.versions(line, row, hash_below(rows, index))
                except StateCorruptedError as error:
                    raise placed(error, line, row) from error
                for version in versions:
                    if version.seq <= seq:
                        yield version
            seq = shown[-1].first - 1
            batch = 64

    # ── items ────────────────────────────────────────────────────────────────────────────────

    async def blocks(
        self, line: Line, log: str, start: int, stop: int, recent: Recent | None
    ) -> list[tuple[Block, slice]]:
        """Blocks that together hold the physical positions ``[start, stop)``, in order.

        Each comes with the slice of it that counts: blocks may overlap, and one of an ancestor may go on
        after the fork.
        """
        found: list[tuple[Block, slice]] = []
        while start < stop:
            own = line.counts.get(log, 0) if line.parent else 0
            if stop > own:
                low = max(start, own)
                found[:0] = cut(await self._own_blocks(line, log, low, stop, recent), low, stop)
                stop = low
            recent = None
            if start < stop:
                line = await self.parent(line)
        return found

    async def _own_blocks(
        self, line: Line, log: str, start: int, stop: int, recent: Recent | None
    ) -> list[Block]:
        known = recent.covering(start, stop) if recent is not None else []
        # They follow each other without a gap.
        if known and known[0][0] <= start and known[-1][0] + known[-1][1] >= stop:
            return known
        edge = known[0][0] if known and covers(known, known[0][0], stop) else stop
        known = known if edge < stop else []
        # A fold between the two reads moves items from the tail into chunks: then look again.
        for _ in range(5):
            chunks = await self.backend.chunks(line.id, log, start, edge)
            if any(chunk.pruned for chunk in chunks) and await self._is_away(line):
                raise away(line)
            found = [(c.position, c.count, _block(line, c)) for c in chunks]
            if not covers(found, start, edge):
                found.extend(await self._tail_blocks(line, log))
                found.sort()
            if covers(found, start, edge):
                return [b for b in found if b[0] < edge and b[0] + b[1] > start] + known
        raise await self._missing_items(line, log, *gap(found, start, edge))

    async def _is_away(self, line: Line) -> bool:
        """Whether the past of a line is in an archive that this store wasn't opened with."""
        rows = await self.backend.scan(line.id, line.parent_seq + 1, 1)
        return bool(rows) and rows[0].kind == COLD

    async def _tail_blocks(self, line: Line, log: str) -> list[Block]:
        found: list[Block] = []
        for row, _ in await self.backend.tail(line.id):
            try:
                _, encoded, blocks = records.read_record(row.body)
                filled = inserted(records.read_change(encoded).logs, blocks)
            except StateCorruptedError:
                # It only matters to whoever needs what it held, and that is noticed: it isn't there.
                continue
            found.extend(block for name, block in filled if name == log)
        return found

    async def _missing_items(self, line: Line, log: str, start: int, stop: int) -> Exception:
        now = await self.backend.line(line.id)
        if now is None or now.deleted:
            return ThreadDeletedError(f"the thread {line.name!r} was deleted; deletion is final")
        return _unreadable(line, log, start, stop, "they are missing or damaged")

    async def raw_items(self, line: Line, log: str, start: int, stop: int) -> list[bytes]:
        """Encoded items by physical position."""
        found: list[bytes] = []
        for (_, _, block), part in await self.blocks(line, log, start, stop, None):
            found.extend(records.split(block)[part])
        return found

    async def items(
        self, line: Line, log: str, start: int, stop: int, recent: Recent | None, open_: Any
    ) -> list[Any]:
        """Items by physical position, as the caller's values."""
        if recent is not None and stop - start < LARGE and (recalled := recent.between(start, stop)):
            # Nearly always: the newest ones, which are remembered.
            block, before = recalled
            newest: list[Any] = decode_plain(block, open_)[before : before + stop - start]
            return newest
        found: list[Any] = []
        blocks = await self.blocks(line, log, start, stop, recent)
        # Decoding many small objects sets off the cyclic collector again and again, for nothing: what is
        # being decoded can't be garbage.
        quiet = stop - start >= LARGE and gc.isenabled()
        if quiet:
            gc.disable()
        try:
            for (_, count, block), part in joined(blocks):
                items = decode_plain(block, open_)
                found.extend(items if part.start == 0 and part.stop >= count else items[part])
        finally:
            if quiet:
                gc.enable()
        return found

    async def prints(
        self, line: Line, log: str, known: bytearray, count: int, recent: Recent | None = None
    ) -> bytearray:
        """Fingerprints of a line's own items up to position ``count``; ``known`` is their beginning,
        ``recent`` holds the newest items."""
        own = line.counts.get(log, 0) if line.parent else 0
        have = len(known) // 4
        if own + have >= count:
            return known
        for attempt in range(5):
            parts = dict(await self.backend.fingerprints(line.id, log, own + have))
            if not attempt and recent is not None:
                joined = join_prints(known, parts | recent_prints(recent, own + have, count), own)
                if own + len(joined) // 4 >= count:
                    return joined
            for row, _ in await self.backend.tail(line.id):
                with suppress(StateCorruptedError):
                    _note_prints(parts, log, records.read_record(row.body)[1])
            joined = join_prints(known, parts, own)
            if own + len(joined) // 4 >= count:
                return joined
        now = await self.backend.line(line.id)
        if now is None or now.deleted:
            raise await self._missing_items(line, log, own + have, count)
        return await _rebuilt_prints(self, line, log, own, count)


def _block(line: Line, chunk: packs.Chunk) -> bytes:
    if chunk.pruned:
        raise dropped(line, chunk.log, chunk.position, chunk.end)
    try:
        return chunk.block()
    except StateCorruptedError as error:
        last = chunk.position + chunk.count
        raise _unreadable(line, chunk.log, chunk.position, last, str(error)) from error


def _unreadable(line: Line, log: str, start: int, stop: int, why: str) -> StateCorruptedError:
    where = f"{line.name}: {log}[{start}:{stop}]"
    return StateCorruptedError(
        f"items {start} to {stop} of log {log!r} of {line.name!r} can't be read: {why}", where=where
    )


def hash_below(rows: list[Row], index: int) -> bytes | None:
    """The hash of the version before ``rows[index]``; the rows come newest first.

    ``None`` where there is none on this line, and where it is damaged or missing.
    """
    if index + 1 >= len(rows) or rows[index + 1].kind == DAMAGED:
        return None
    return rows[index + 1].hash if rows[index + 1].seq == rows[index].first - 1 else None


def make_version(
    line: Line, seq: int, digest: bytes, before: bytes | None, head: Head, open_: Open | None = None
) -> Version:
    """What a caller sees of a record. ``before``: the hash of the version before it, if on this line.
    ``open_`` reads what is sealed in its metadata."""
    if before is None and line.parent and seq == line.parent_seq + 1:
        before = line.parent_hash
    step, slot = (None, None) if head.step is None else records.step_key(head.step[0])
    return Version(
        seq=seq,
        id=version_id(seq, digest),
        parent=version_id(seq - 1, before) if before else None,
        at_us=head.at_us,
        label=head.label,
        metadata=read_metadata(head.metadata, open_) if head.metadata else NO_METADATA,
        key=head.key,
        kind=_KINDS[head.kind] if 0 <= head.kind < len(_KINDS) else "commit",
        source=head.source[3] if head.source else None,
        ttl_us=head.ttl,
        step=step,
        slot=slot,
    )


def _note_prints(parts: dict[int, bytes], log: str, encoded: bytes) -> None:
    """Note the fingerprints of the items that a change inserts, by position."""
    parts.update({s[4]: s[5] for s in records.read_change(encoded).logs if s[0] == log and s[3]})


async def _rebuilt_prints(reader: Reader, line: Line, log: str, own: int, count: int) -> bytearray:
    """Fingerprints from the records themselves: those in the chunks, which are derived, are damaged.

    Where the record is damaged as well, LOST stands for each.
    """
    parts: dict[int, bytes] = {}
    seq = SEAL_SEQ - 1
    while rows := await reader.backend.scan(line.id, seq, 64):
        for row in rows:
            with suppress(StateCorruptedError):
                changes = reader.pack(row).changes if row.kind == PACK else [records.read_record(row.body)[1]]
                for encoded in changes:
                    _note_prints(parts, log, encoded)
        seq = min(seq, rows[-1].first) - 1
        if seq <= line.parent_seq:
            break
    joined = bytearray(LOST * (count - own))
    for position, prints in parts.items():
        at = 4 * (position - own)
        if 0 <= at < len(joined):
            joined[at : at + len(prints)] = prints[: len(joined) - at]
    return joined
