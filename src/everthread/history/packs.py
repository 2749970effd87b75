"""Folding: many records become one pack, their log items chunks.

A pack keeps every record it was made of, byte for byte (:func:`whole` gives them back), and beside
them the *net* change, which is all that reading a later version needs. Items leave the records and
go into compressed chunks, where a position is found with one look-up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Change, Plain
from everthread.codec.values import encode_stored
from everthread.errors import StateCorruptedError
from everthread.history import ops
from everthread.history.chain import HASH_KEPT

#: A pack takes at most this many records; its chunks at most about this many bytes each.
FOLD_RECORDS = 64
FOLD_BYTES = 256 * 1024


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive items of one log: ``data`` is the compressed block of ``count`` items.

    One that has neither data nor fingerprints says that they were pruned.
    """

    log: str
    position: int
    count: int
    fingerprints: bytes
    data: bytes

    @property
    def pruned(self) -> bool:
        return not self.data

    @property
    def end(self) -> int:
        return self.position + self.count

    def block(self) -> bytes:
        return records.expand(self.data, f"chunk {self.position} of log {self.log!r}")


class Pack(msgspec.Struct, frozen=True):
    """Records ``first`` to ``last`` of a line, folded."""

    first: int
    last: int
    body: bytes
    net: bytes
    chunks: list[Chunk]


class _Run:
    """Items of one log on their way into chunks."""

    __slots__ = ("blocks", "bytes", "end", "fingerprints", "log", "position")

    def __init__(self, log: str, position: int) -> None:
        self.log = log
        self.position = self.end = position
        self.blocks: list[tuple[int, bytes]] = []
        self.fingerprints: list[bytes] = []
        self.bytes = 0

    def add(self, count: int, block: bytes, fingerprints: bytes) -> None:
        self.blocks.append((count, block))
        self.fingerprints.append(fingerprints)
        self.end += count
        self.bytes += len(block)

    def chunk(self) -> Chunk:
        data = records.compress(records.join(self.blocks))
        return Chunk(self.log, self.position, self.end - self.position, b"".join(self.fingerprints), data)


class _Chunker:
    """Cuts the items of each log into chunks by bytes, whatever the commits they came in."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self.chunks: list[Chunk] = []

    def add(self, log: str, position: int, count: int, block: bytes, fingerprints: bytes) -> None:
        run = self.runs.get(log)
        if run is not None and (run.end != position or run.bytes >= FOLD_BYTES):
            self.chunks.append(run.chunk())
            run = None
        if run is None:
            run = self.runs[log] = _Run(log, position)
        if len(block) <= FOLD_BYTES:
            run.add(count, block, fingerprints)
            return
        for index, item in enumerate(records.split(block)):
            if run.bytes >= FOLD_BYTES:
                self.chunks.append(run.chunk())
                run = self.runs[log] = _Run(log, position + index)
            run.add(1, records.array([item]), fingerprints[4 * index : 4 * index + 4])

    def add_all(self, splices: Sequence[Sequence[Any]], blocks: list[bytes]) -> None:
        if len(blocks) == len(splices) == 1:
            # Nearly always.
            log, _, _, insert, position, fingerprints = splices[0]
            self.add(log, position, insert, blocks[0], fingerprints)
            return
        if not blocks:
            return
        inserts = [splice for splice in splices if splice[3]]
        for (log, _, _, insert, position, fingerprints), block in zip(inserts, blocks, strict=False):
            self.add(log, position, insert, block, fingerprints)

    def finish(self) -> list[Chunk]:
        self.chunks.extend(run.chunk() for run in self.runs.values() if run.blocks)
        self.runs.clear()
        return self.chunks


class Single(msgspec.Struct, frozen=True):
    """A record that isn't folded yet, with all that folding it takes. ``size``: the bytes of its row."""

    seq: int
    hash: bytes
    key: bytes | None
    metadata: bytes | None
    parts: records.Parts
    size: int
    keyframe: bytes | None = None


def fold(first: int, bodies: Sequence[bytes], hashes: Sequence[bytes]) -> Pack:
    """One pack of the records ``first``, ``first + 1``, … whose framed bodies and chain hashes these are."""
    return fold_parts(first, [records.read_record(body) for body in bodies], hashes)


def fold_parts(first: int, parts: Sequence[records.Parts], hashes: Sequence[bytes]) -> Pack:
    """As :func:`fold`, of records that are taken apart already."""
    heads = [head for head, _, _ in parts]
    encoded = [change for _, change, _ in parts]
    changes: Sequence[Change | Plain] = records.read_plain(encoded) or records.read_each(encoded)
    chunker = _Chunker()
    for change, (_, _, blocks) in zip(changes, parts, strict=True):
        # A detached record has no blocks: its items are in chunks already.
        chunker.add_all(change.logs, blocks)
    return Pack(
        first,
        first + len(heads) - 1,
        records.compress(encode_stored([heads, encoded, b"".join([h[:HASH_KEPT] for h in hashes])])),
        records.compress(net_of(changes)),
        chunker.finish(),
    )


def net_of(changes: Sequence[Change | Plain]) -> bytes:
    """What these changes, one after another, do together."""
    splices: list[Sequence[object]] = []
    merged: dict[bytes, Sequence[int]] = {}
    for change in changes:
        splices.extend(change.logs)
        merged.update(change.merged)
    return encode_stored([ops.compose([change.ops for change in changes]), compose_splices(splices), merged])


def in_one(encoded: list[bytes]) -> Change:
    """These changes, one after another, as one that takes less time to apply. Its ops aren't composed."""
    joined = records.read_changes(encoded)
    joined.logs = compose_splices(joined.logs)
    return joined


def detach(splices: Sequence[Sequence[Any]], blocks: list[bytes]) -> list[Chunk]:
    """The items of one large commit as chunks, so that they never stand in the way of replaying."""
    chunker = _Chunker()
    chunker.add_all(splices, blocks)
    return chunker.finish()


def pruned_chunks(log: str, spans: Iterable[tuple[int, int]]) -> list[Chunk]:
    """What takes the place of chunks that are dropped, of which these are (position, count), in order."""
    stubs: list[Chunk] = []
    for position, count in spans:
        if stubs and stubs[-1].end == position:
            count, position = count + stubs[-1].count, stubs.pop().position
        stubs.append(Chunk(log, position, count, b"", b""))
    return stubs


def placeholder(log: str, position: int, count: int) -> Chunk:
    """Where items were dropped in another store: a store drops only what is there (``Prune.dropped``)."""
    nothing = records.compress(records.array([b"\xc0"] * count))
    return Chunk(log, position, count, records.NO_FINGERPRINT * count, nothing)


def bringing(chunks: Iterable[Chunk]) -> bytes:
    """The encoded change of a record that stands in for pruned ones until they are pruned here as well, and
    brings what is left of their items in chunks: some stores take the fingerprints of these from there."""
    return encode_stored([[], [[c.log, 0, 0, c.count, c.position, c.fingerprints] for c in chunks]])


class Places:
    """The positions of chunks that don't overlap, of any logs."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for chunk in sorted(chunks, key=lambda each: each.position):
            self._spans.setdefault(chunk.log, []).append((chunk.position, chunk.end))

    def within(self, chunk: Chunk) -> list[tuple[int, int]]:
        """Start and end of those that have positions of this one, in order."""
        spans = self._spans.get(chunk.log, [])
        first = max(bisect_left(spans, (chunk.position,)) - 1, 0)
        found = spans[first : bisect_left(spans, (chunk.end,))]
        return [span for span in found if span[1] > chunk.position]

    def beside(self, stub: Chunk) -> Iterator[Chunk]:
        """What is left of a stub without these."""
        at = stub.position
        for start, end in [*self.within(stub), (stub.end, stub.end)]:
            if start > at:
                yield Chunk(stub.log, at, start - at, b"", b"")
            at = max(at, end)


def compose_splices(splices: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The same log splices without their fingerprints, runs of appends joined."""
    net: list[list[Any]] = []
    latest: dict[object, list[Any]] = {}
    for splice in splices:
        log, at, remove, insert, position = splice[:5]
        before = latest.get(log)
        if before is not None and not remove and at == before[1] + before[3]:
            before[3] += insert
            continue
        latest[log] = [log, at, remove, insert, position]
        net.append(latest[log])
    return net


def read_net(data: bytes) -> Change:
    """The net change of a whole pack."""
    return records.read_change(records.expand(data, "the net of a pack"))


class PackBody(msgspec.Struct, frozen=True):
    """The heads and changes of a pack's records, in order, still encoded, and how their hashes begin."""

    heads: list[bytes]
    changes: list[bytes]
    hashes: list[bytes]


class _Stored(msgspec.Struct, array_like=True):
    """A pack's body as it is stored. What a later format appends is passed over."""

    heads: list[bytes]
    changes: list[bytes]
    hashes: bytes


_decode_pack = msgspec.msgpack.Decoder(_Stored).decode


def read_pack(data: bytes) -> PackBody:
    try:
        stored = _decode_pack(records.expand(data, "a pack"))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StateCorruptedError("a pack can't be decoded") from error
    heads, changes, hashes = stored.heads, stored.changes, stored.hashes
    if not len(heads) == len(changes) == len(hashes) / HASH_KEPT:
        raise StateCorruptedError("a pack can't be decoded")
    starts = [hashes[at : at + HASH_KEPT] for at in range(0, len(hashes), HASH_KEPT)]
    return PackBody(heads, changes, starts)


def inserted_ranges(encoded: bytes) -> list[tuple[str, int, int]]:
    """(log, start, stop): the physical positions of the items that a change inserts, in its order."""
    logs = records.read_change(encoded).logs
    return [(log, position, position + insert) for log, _, _, insert, position, *_ in logs if insert]


def whole(head: bytes, encoded: bytes, items: list[list[bytes]]) -> bytes:
    """The framed body of a record exactly as it was committed.

    ``items`` are its encoded items, one list for each of the change's :func:`inserted_ranges`.
    """
    return records.write_record(head, encoded, [records.array(found) for found in items])
