# Generated from src/everthread/threads/aio/reading.py by tools/twin.py: change that, then run: make twin
"""Reading a line: the state at a version, the items of its logs, its versions, its ancestry."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.values import Open, decode_plain
from everthread.errors import StateCorruptedError, ThreadDeletedError
from everthread.history import packs
from everthread.history.chain import version_id
from everthread.history.fingerprints import join_prints
from everthread.stores.contract import COLD, DAMAGED, PACK, PRUNED, REWIND, Backend, Line, Row
from everthread.threads.blocks import covers, cut, gap, joined
from everthread.threads.memo import Block, Recent, inserted, recent_prints
from everthread.threads.sealing import read_metadata
from everthread.threads.sync.healing import note_prints, rebuilt_prints
from everthread.threads.sync.loading import Loaded, Loading, placed
from everthread.threads.sync.strays import Strays
from everthread.threads.tombs import away, dropped, pruned, pruned_hashes, pruned_head
from everthread.versions import NO_METADATA, Kind, Version

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

    def __init__(self, backend: Backend, open_: Open | None = None) -> None:
        self.backend = backend
        #: Reads what is sealed in metadata.
        self.open = open_
        #: The packs looked into last; resolving, loading and forking a version look into the same one.
        self._unpacked: dict[bytes, tuple[bytes, packs.PackBody]] = {}
        self._strays = Strays(backend)

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

    def parent(self, line: Line) -> Line:
        found = self.backend.line(line.parent)
        # A fork is always younger than what it was forked from: its parent's parents end.
        if found is None or found.id >= line.id:
            raise StateCorruptedError(
                f"the line that {line.name!r} was forked from is missing", where=line.name
            )
        return found

    def owner(self, line: Line, seq: int) -> Line:
        """The line that holds version ``seq`` of this one: itself or an ancestor."""
        while seq <= line.parent_seq and line.parent:
            line = self.parent(line)
        return line

    def by_uid(self, line: Line, uid: bytes) -> Line:
        found = line if line.uid == uid else self.backend.line_by_uid(uid)
        if found is None:
            raise StateCorruptedError(f"a line in the past of {line.name!r} is missing", where=line.name)
        return found

    def ancestry(self, line: Line, seq: int, segment: int) -> Iterator[Stretch]:
        """The versions that led to this one, newest stretch first. Walked lazily, a row per rewind."""
        while seq > 0:
            if segment > line.parent_seq:
                yield Stretch(line, segment, seq, segment)
                row = self.row(line, segment)
                source = self.head(row, segment).source
                if row.kind not in (REWIND, PRUNED) or source is None:
                    raise self.missing(line, segment)
                line, seq, segment = self.by_uid(line, source[0]), source[1], source[2]
                continue
            if seq > line.parent_seq:
                yield Stretch(line, line.parent_seq + 1, seq, 0)
            if not line.parent:
                return
            seq, segment, line = line.parent_seq, line.parent_segment, self.parent(line)

    def contains(self, line: Line, seq: int, segment: int, wanted: Line, wanted_seq: int) -> bool:
        """Whether a version is among those that led to another."""
        for s in self.ancestry(line, seq, segment):
            if s.line.uid == wanted.uid and s.first <= wanted_seq <= s.last:
                return True
        return False

    # ── state ────────────────────────────────────────────────────────────────────────────────

    def load(self, line: Line, seq: int, *, pruned: bool = False) -> Loaded:
        """The state at version ``seq``: back to a keyframe, then forward again.

        Raises :class:`VersionPrunedError`; with ``pruned`` not for the last version of those that were pruned
        together, whose state is what later ones go on from.
        """
        return Loading(self, line, seq, pruned).run()

    def missing(self, line: Line, seq: int) -> Exception:
        now = self.backend.line(line.id)
        if now is None or now.deleted:
            return ThreadDeletedError(f"the thread {line.name!r} was deleted; deletion is final")
        return StateCorruptedError(f"version {seq} of {line.name!r} is missing", where=f"{line.name} {seq}")

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def row(self, line: Line, seq: int) -> Row:
        rows = self.backend.scan(line.id, seq, 1)
        if not rows or not rows[0].first <= seq <= rows[0].seq:
            raise self.missing(line, seq)
        return rows[0]

    def head(self, row: Row, seq: int) -> Head:
        if row.kind == PACK:
            return records.read_head(self.pack(row).heads[seq - row.first])
        if row.kind == PRUNED:
            return pruned_head(row, seq)
        if row.kind == COLD:
            raise away()
        return records.read_head(records.read_record(row.body)[0])

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

    def version(self, line: Line, seq: int, *, gone: bool = False) -> tuple[Version, bytes]:
        """One version of a line and (the beginning of) its hash.

        Raises :class:`VersionPrunedError`; with ``gone`` only if nothing is known of the version any more.
        """
        line = self.owner(line, seq)
        rows = self.backend.scan(line.id, seq, 2)
        if not rows or not rows[0].first <= seq <= rows[0].seq:
            raise self.missing(line, seq)
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

    def history(self, line: Line, seq: int) -> Iterator[Version]:
        """The versions of a line from ``seq`` downwards, then those of the line it was forked from."""
        batch = 16
        while seq > 0:
            line = self.owner(line, seq)
            rows = self.backend.scan(line.id, seq, batch + 1)
            if not rows:
                raise self.missing(line, seq)
            shown = rows[:batch] if len(rows) > batch else rows
            expected = seq
            for index, row in enumerate(shown):
                inside = index == 0 and row.first <= expected <= row.seq
                if row.kind != DAMAGED and row.seq != expected and not inside:
                    raise self.missing(line, expected)
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

    def blocks(
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
                found[:0] = cut(self._own_blocks(line, log, low, stop, recent), low, stop)
                stop = low
            recent = None
            if start < stop:
                line = self.parent(line)
        return found

    def _own_blocks(self, line: Line, log: str, start: int, stop: int, recent: Recent | None) -> list[Block]:
        known = recent.covering(start, stop) if recent is not None else []
        # They follow each other without a gap.
        if known and known[0][0] <= start and known[-1][0] + known[-1][1] >= stop:
            return known
        edge = known[0][0] if known and covers(known, known[0][0], stop) else stop
        known = known if edge < stop else []
        # A fold between the two reads moves items from the tail into chunks: then look again.
        seen: list[Block] | None = None
        for _ in range(5):
            chunks = self.backend.chunks(line.id, log, start, edge)
            if any(chunk.pruned for chunk in chunks) and self._is_away(line):
                raise away(line)
            found = [(c.position, c.count, _block(line, c)) for c in chunks]
            if not covers(found, start, edge):
                found.extend(self._tail_blocks(line, log))
                again, seen = found == seen, found[:]
                if again:
                    found.extend(self._strays.blocks(line, log, start, edge))
                found.sort()
            if covers(found, start, edge):
                return [b for b in found if b[0] < edge and b[0] + b[1] > start] + known
        raise self._missing_items(line, log, *gap(found, start, edge))

    def _is_away(self, line: Line) -> bool:
        """Whether the past of a line is in an archive that this store wasn't opened with."""
        rows = self.backend.scan(line.id, line.parent_seq + 1, 1)
        return bool(rows) and rows[0].kind == COLD

    def _tail_blocks(self, line: Line, log: str) -> list[Block]:
        found: list[Block] = []
        for row, _ in self.backend.tail(line.id):
            try:
                _, encoded, blocks = records.read_record(row.body)
                filled = inserted(records.read_change(encoded).logs, blocks)
            except StateCorruptedError:
                # It only matters to whoever needs what it held, and that is noticed: it isn't there.
                continue
            found.extend(block for name, block in filled if name == log)
        return found

    def _missing_items(self, line: Line, log: str, start: int, stop: int) -> Exception:
        now = self.backend.line(line.id)
        if now is None or now.deleted:
            return ThreadDeletedError(f"the thread {line.name!r} was deleted; deletion is final")
        return _unreadable(line, log, start, stop, "they are missing or damaged")

    def raw_items(self, line: Line, log: str, start: int, stop: int) -> list[bytes]:
        """Encoded items by physical position."""
        found: list[bytes] = []
        for (_, _, block), part in self.blocks(line, log, start, stop, None):
            found.extend(records.split(block)[part])
        return found

    def items(
        self, line: Line, log: str, start: int, stop: int, recent: Recent | None, open_: Any
    ) -> list[Any]:
        """Items by physical position, as the caller's values."""
        if recent is not None and stop - start < LARGE and (held := recent.between(start, stop)):
            # Nearly always: the newest ones, which are remembered.
            block, before = held
            newest: list[Any] = decode_plain(block, open_)[before : before + stop - start]
            return newest
        found: list[Any] = []
        blocks = self.blocks(line, log, start, stop, recent)
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

    def prints(
        self, line: Line, log: str, known: bytearray, count: int, recent: Recent | None = None
    ) -> bytearray:
        """Fingerprints of a line's own items up to position ``count``; ``known`` is their beginning,
        ``recent`` holds the newest items."""
        own = line.counts.get(log, 0) if line.parent else 0
        have = len(known) // 4
        if own + have >= count:
            return known
        for attempt in range(5):
            parts = dict(self.backend.fingerprints(line.id, log, own + have))
            if not attempt and recent is not None:
                joined = join_prints(known, parts | recent_prints(recent, own + have, count), own)
                if own + len(joined) // 4 >= count:
                    return joined
            for row, _ in self.backend.tail(line.id):
                with suppress(StateCorruptedError):
                    note_prints(parts, log, records.read_record(row.body)[1])
            joined = join_prints(known, parts, own)
            if own + len(joined) // 4 >= count:
                return joined
        now = self.backend.line(line.id)
        if now is None or now.deleted:
            raise self._missing_items(line, log, own + have, count)
        return rebuilt_prints(self, line, log, own, count)


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
    )
