"""One thread on its way out: its versions as archive entries, oldest first, packed and pruned ones too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from everthread.codec import archive, records
from everthread.codec.archive import Entry, Parts, PrunedEntry, SealedEntry, VersionsEntry
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.chain import link, record_digest, verify_chain
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import read_keyframe
from everthread.maintenance.examine import Gap, rows_of
from everthread.stores.contract import DAMAGED, PACK, PRUNED, Line, Row
from everthread.threads.sync.core import Core

#: How much goes into one record, about.
_BATCH_BYTES = 256 * 1024
_BATCH_VERSIONS = 64
Sealed = Callable[[Iterable[bytes]], list[SealedEntry]]


class Changed(Exception):  # noqa: N818 - a signal inside this layer
    """Rows of a line were folded, pruned or deleted while they were read."""


class ThreadReader:
    """One line on its way out."""

    def __init__(self, core: Core, line: Line, sent: int, top: int, sealed: Sealed) -> None:
        """Versions up to ``sent`` went out before, those after ``top`` stay. ``sealed`` finds the personal
        values that haven't gone out yet."""
        self._core = core
        self._backend = core.backend
        self._line = line
        self._sent = max(sent, line.parent_seq)
        self._top = top
        self._sealed = sealed
        #: By log, the items of the chunk that was read last, from which position on.
        self._held: dict[str, tuple[int, list[bytes]]] = {}
        #: How many positions each log has used up to here.
        self._counts: dict[str, int] = dict(line.counts) if line.parent else {}
        self._batch: list[archive.Parts] = []
        self._batch_bytes = 0
        self._hash = line.start_hash
        #: The hash before the batch, and number and hash of the last version in it.
        self._before = self._last_hash = b""
        self._last = 0

    def run(self) -> Iterator[Entry]:
        line, done = self._line, self._line.parent_seq
        tomb: tuple[Row, bytes] | None = None
        for row in rows_of(self._core.reader, line):
            if isinstance(row, Gap) or row.kind == DAMAGED or row.first != done + 1:
                why = row if isinstance(row, Gap) else "a row fails its checksum"
                raise StateCorruptedError(f"versions after {done} can't be read: {why}")
            if row.first > self._top:
                break
            if tomb is not None:
                for entry in self._pruned(*tomb, row):
                    yield entry
                tomb = None
            done = row.seq
            if row.kind == PRUNED and row.first <= self._sent < row.seq:
                # Some of these versions went out while they were still there.
                raise Changed
            if row.kind == PRUNED:
                for batch in self._flush():
                    yield batch
                yield from self._sealed(of_tombstone(row.body, row.net, row.keyframe))
                if row.seq > self._sent:
                    tomb = row, self._hash
                else:
                    self._count_pruned(row, None)
                self._hash = verify_chain(self._hash, read_tombstone(row.body).digests)
            else:
                for entry in self._row(row):
                    yield entry
            if self._hash != row.hash:
                raise StateCorruptedError(f"the chain of hashes is broken at version {row.seq}")
        for batch in self._flush():
            yield batch
        if tomb is not None:
            for entry in self._pruned(*tomb, None):
                yield entry
        if done < self._top:
            raise Changed

    def _row(self, row: Row) -> Iterator[Entry]:
        """The versions of a row that are to go out."""
        if row.kind == PACK:
            pack = self._core.reader.pack(row)
            whole: list[archive.Parts] = [
                (head, change, []) for head, change in zip(pack.heads, pack.changes, strict=True)
            ]
        else:
            whole = [records.read_record(row.body)]
        for seq, (head, change, blocks) in enumerate(whole, row.first):
            ranges = packs.inserted_ranges(change)
            if ranges and not blocks:
                blocks = [records.array(self._items(*each)) for each in ranges]
            before = self._hash
            self._hash = link(before, record_digest(records.write_record(head, change, blocks)))
            self._used(records.read_change(change))
            if not self._sent < seq <= self._top:
                continue
            yield from self._sealed(of_version((head, change, blocks)))
            self._before = self._before if self._batch else before
            self._batch.append((head, change, blocks))
            self._batch_bytes += len(head) + len(change) + sum(map(len, blocks))
            self._last, self._last_hash = seq, self._hash
            if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_VERSIONS:
                yield from self._flush()

    def _flush(self) -> list[VersionsEntry]:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return []
        end, reached = self._last, self._last_hash
        return [VersionsEntry(self._line.uid, end - len(batch) + 1, self._before, reached, batch)]

    def _items(self, log: str, start: int, stop: int) -> list[bytes]:
        """Items that are in chunks, of which one is held for each log."""
        found: list[bytes] = []
        while start < stop:
            position, raws = self._held.get(log, (0, []))
            if not position <= start < position + len(raws):
                chunk = self._chunk(log, start)
                if chunk is None or chunk.pruned:
                    raise Changed
                position, raws = self._held[log] = chunk.position, records.split(chunk.block())
                if not position <= start < position + len(raws):
                    raise StateCorruptedError(f"chunk {position} of log {log!r} holds too few items")
            part = raws[start - position : stop - position]
            found.extend(part)
            start += len(part)
        return found

    def _chunk(self, log: str, position: int) -> packs.Chunk | None:
        chunks = self._backend.chunks(self._line.id, log, position, position + 1)
        whole = [chunk for chunk in chunks if not chunk.pruned]
        return whole[-1] if whole else chunks[-1] if chunks else None

    def _used(self, change: records.Change) -> None:
        for log, _, _, insert, position, *_ in change.logs:
            if insert:
                self._counts[log] = max(self._counts.get(log, 0), position + insert)
        self._counts.update(change.counts)

    # ── pruned versions ──────────────────────────────────────────────────────────────────────

    def _count_pruned(self, row: Row, after: Row | None) -> None:
        """Note how many positions were used at the end of versions that are gone."""
        if row.net is not None:
            self._used(packs.read_net(row.net))
        if row.keyframe is not None:
            for log, state in read_keyframe(row.keyframe).logs.items():
                self._counts[log] = max(self._counts.get(log, 0), state.count)
        if after is not None and after.kind not in (PACK, PRUNED):
            # A rewind says it as well, where nothing else goes on from there.
            for log, used in records.read_change(records.read_record(after.body)[1]).counts.items():
                self._counts[log] = max(self._counts.get(log, 0), used)

    def _pruned(self, row: Row, before: bytes, after: Row | None) -> list[Entry]:
        """The row, with those of its items that later versions still hold; before it the personal values in
        these items, which no version that goes out speaks of."""
        used = dict(self._counts)
        self._count_pruned(row, after)
        items: list[tuple[str, int, int, bytes]] = []
        sealed: list[Entry] = []
        for log, stop in self._counts.items():
            for start, count, block in self._left(log, used.get(log, 0), stop):
                sealed.extend(self._sealed([block]))
                items.append((log, start, count, records.compress(block) if block else b""))
        pruned = PrunedEntry(
            self._line.uid, row.first, row.seq, before, row.hash, row.body, row.net, row.keyframe, items
        )
        return [*sealed, pruned]

    def _left(self, log: str, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        """What is left of the items at these positions: from where, how many, and they, or nothing."""
        while start < stop:
            chunk = self._chunk(log, start)
            if chunk is None:
                raise StateCorruptedError(f"items from {start} on of log {log!r} are missing")
            end = min(stop, chunk.end)
            block = b""
            if not chunk.pruned:
                raws = records.split(chunk.block())[start - chunk.position : end - chunk.position]
                block = records.array(raws)
            yield start, end - start, block
            start = end


# ── what of an entry may refer to personal values ───────────────────────────────────────────────────────


def of_version(parts: Parts) -> list[bytes]:
    """Of one version: its change, its items, and what is told of it."""
    head, change, blocks = parts
    return [change, *blocks, *_metadata([head])]


def of_tombstone(body: bytes, net: bytes | None, keyframe: bytes | None) -> list[bytes]:
    """Of a row for versions that are gone, without their items."""
    held = [(net, "the net of a row"), (keyframe, "a keyframe")]
    parts = [records.expand(data, what) for data, what in held if data is not None]
    return [*parts, *_metadata(read_tombstone(body).heads.values())]


def of_pruned(entry: PrunedEntry) -> list[bytes]:
    """Of such a row, with what is left of the items."""
    items = [records.expand(data, "items of the archive") for *_, data in entry.items if data]
    return [*of_tombstone(entry.body, entry.net, entry.keyframe), *items]


def _metadata(heads: Iterable[bytes]) -> list[bytes]:
    told = (records.read_head(head).metadata for head in heads)
    return [each for each in told if each is not None]
