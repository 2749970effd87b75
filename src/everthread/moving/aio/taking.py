"""Taking out what a store holds, piece by piece, in an order in which it can be put in elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from everthread.codec import archive, records
from everthread.codec.archive import (
    CellEntry,
    Entry,
    ErasedEntry,
    EventsEntry,
    GoneEntry,
    Header,
    LineEntry,
    PrunedEntry,
    SealedEntry,
    VersionsEntry,
)
from everthread.codec.references import references
from everthread.errors import EverthreadError, StateCorruptedError, VersionPrunedError
from everthread.history import packs
from everthread.history.chain import link, record_digest, verify_chain
from everthread.history.retention import read_tombstone
from everthread.history.snapshots import read_keyframe
from everthread.moving.spaces import CONSUMERS, namespace_of
from everthread.stores.contract import DAMAGED, PACK, PRUNED, SEAL_SEQ, Line, Row
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.aio.core import Core
from everthread.threads.aio.examining import Gap, rows_of
from everthread.threads.aio.healing import newest_seq
from everthread.threads.reports import Progress

#: How much goes into one record, about.
_BATCH_BYTES = 256 * 1024
_BATCH_VERSIONS = 64
_BATCH_EVENTS = 256
_PAGE = 200
#: Value ids that are remembered, so that what is referred to again and again goes along once.
_REMEMBERED = 100_000
#: A line that is folded, pruned or deleted while it is read is read again so often.
_LOOKS = 5


class Changed(Exception):  # noqa: N818 - a signal inside this layer
    """Rows of a line were folded, pruned or deleted while they were read."""


class Taken(msgspec.Struct):
    """What was taken out so far."""

    threads: int = 0
    versions: int = 0
    streams: int = 0
    events: int = 0
    sealed: int = 0
    skipped: list[str] = []


class Taker:
    """Reads a store from its first line to its last event. Others may go on writing meanwhile: each thread
    comes as it stood at some moment, forks with all that they share."""

    def __init__(self, core: Core, *, every: bool, progress: Progress | None = None) -> None:
        self._core = core
        self._backend = core.backend
        self._every = every
        self._progress = progress
        self._total = 0
        self.taken = Taken()
        #: By line, up to which version it has gone out: a fork may have begun after that.
        self._tops: dict[int, int] = {}
        self._spaces: dict[str, None] = {core.space: None}
        self._sealed_before: dict[bytes, None] = {}

    def _wanted(self, space: str) -> bool:
        return self._every or namespace_of(space) == self._core.space

    async def header(self) -> Header:
        """What comes first; counts what there is to do."""
        versions = events = 0
        async for line in self._backend.every_line():
            if self._wanted(line.space):
                self._spaces[line.space] = None
                if not line.deleted:
                    versions += await newest_seq(self._backend, line) - line.parent_seq
        for space in self._spaces:
            async for _, last in self._streams(space):
                events += last
        self._total = versions + events
        return Header(
            archive.FORMAT,
            self._core.runtime.random_bytes(16),
            self._core.runtime.now_us(),
            "everthread",
            [] if self._every else [self._core.space],
            versions,
            events,
        )

    def _tell(self) -> None:
        if self._progress is not None:
            done = self.taken.versions + self.taken.events
            self._total = max(self._total, done)
            self._progress(done, self._total)

    async def entries(self) -> AsyncIterator[Entry]:
        """Everything but the header and the end."""
        for erased in await self._erased():
            yield erased
        async for line in self._backend.every_line():
            if self._wanted(line.space):
                self._spaces[line.space] = None
                async for entry in self._line(line):
                    yield entry
        for space in self._spaces:
            async for name, last in self._streams(space):
                async for entry in self._stream(space, name, last):
                    yield entry
        for space in self._spaces:
            async for entry in self._cells(space):
                yield entry
        # What there is to do was counted before, about.
        self._total = 0
        self._tell()

    async def outline(self, target: AsyncBackend) -> AsyncIterator[Entry]:
        """What there is, without the content of what the target doesn't have: so that conflicts are known
        before anything is moved."""
        async for line in self._backend.every_line():
            if not self._wanted(line.space) or (line.deleted and not await self._top(line)):
                continue
            yield await self._told(line)
            if not target.capabilities.prune or await target.line_by_uid(line.uid) is not None:
                async for entry in self._versions(line, await self._top(line)):
                    yield entry
        for space in self._spaces:
            async for name, last in self._streams(space):
                if await last_seq(target, space, name):
                    async for entry in self._stream(space, name, last):
                        yield entry

    # ── lines ────────────────────────────────────────────────────────────────────────────────

    async def _top(self, line: Line) -> int:
        """The newest version of its own; 0 if it has none."""
        rows = await self._backend.scan(line.id, SEAL_SEQ - 1, 1)
        return rows[0].seq if rows else 0

    async def _told(self, line: Line) -> LineEntry:
        parent = await self._core.reader.parent(line) if line.parent else None
        return LineEntry(
            line.uid,
            line.space,
            line.name,
            line.deleted,
            line.start_hash,
            parent.uid if parent is not None else b"",
            line.parent_seq,
            line.parent_segment,
            line.parent_hash,
            line.counts,
        )

    async def _line(self, line: Line) -> AsyncIterator[Entry]:
        top = await self._top(line)
        line = await self._backend.line(line.id) or line
        if not top and (line.deleted or not line.parent):
            # Nothing is left of it, and nobody needs it.
            return
        if line.parent and line.parent_seq > self._tops.get(line.parent, 0):
            parent = await self._core.reader.parent(line)
            if line.parent_seq > parent.parent_seq:
                # Forked after its parent went out: the rest of that first.
                async for entry in self._versions(parent, line.parent_seq):
                    yield entry
        yield await self._told(line)
        shown = not line.deleted and "\0" not in line.space
        self.taken.threads += shown
        async for entry in self._versions(line, top):
            yield entry

    async def _versions(self, line: Line, top: int) -> AsyncIterator[Entry]:
        """The versions of a line up to ``top`` that haven't gone out yet."""
        for look in range(_LOOKS):
            try:
                async for entry in _LineTaking(self, line, top).run():
                    yield entry
                self._tell()
                return
            except (Changed, VersionPrunedError, StateCorruptedError) as error:
                now = await self._backend.line(line.id)
                if now is None or (now.deleted and not line.deleted and not await self._top(now)):
                    if "\0" not in line.space:
                        self.taken.skipped.append(line.name)
                        self.taken.threads -= 1
                    yield GoneEntry(line.uid)
                    return
                if look + 1 == _LOOKS:
                    raise _unreadable(line, error) from error

    async def _erased(self) -> list[ErasedEntry]:
        """Who was erased here is to stay erased there."""
        ledger = [(each.key_id, each.erasure, each.noted_us) for each in await self._backend.erasures()]
        return [ErasedEntry(ledger[at : at + _PAGE]) for at in range(0, len(ledger), _PAGE)]

    # ── sealed values ────────────────────────────────────────────────────────────────────────

    async def sealed(self, parts: Iterable[bytes]) -> list[SealedEntry]:
        """The personal values that are referred to here and didn't go out before."""
        found = references(parts)
        wanted = [value_id for value_id in found if value_id not in self._sealed_before]
        if not wanted:
            return []
        entries: list[SealedEntry] = []
        rows: list[archive.Sealed] = []
        size = 0
        dead = await self._backend.erased({key for value_id in wanted for key in found[value_id].key_ids})
        for value_id, data in (await self._backend.sealed(wanted)).items():
            if not dead.isdisjoint(found[value_id].key_ids):
                continue
            rows.append((value_id, b"".join(found[value_id].key_ids), data))
            size += len(data)
            if size >= _BATCH_BYTES:
                entries.append(SealedEntry(rows))
                rows, size = [], 0
        if rows:
            entries.append(SealedEntry(rows))
        self.taken.sealed += sum(len(entry.rows) for entry in entries)
        for value_id in wanted:
            if len(self._sealed_before) >= _REMEMBERED:
                self._sealed_before.pop(next(iter(self._sealed_before)))
            self._sealed_before[value_id] = None
        return entries

    # ── events and cells ─────────────────────────────────────────────────────────────────────

    async def _streams(self, space: str) -> AsyncIterator[tuple[str, int]]:
        after: str | None = None
        while page := await self._backend.streams(space, "", after, _PAGE):
            for found in page:
                yield found
            after = page[-1][0]

    async def _stream(self, space: str, name: str, last: int) -> AsyncIterator[Entry]:
        self.taken.streams += 1
        after, size = 0, _BATCH_EVENTS
        while after < last:
            page = await self._backend.events(space, name, after, size)
            page = [event for event in page if event.seq <= last]
            if not page:
                return
            payloads = [
                records.unframe(event.body, f"event {event.seq} of the stream {name!r}") for event in page
            ]
            for sealed in await self.sealed(payloads):
                yield sealed
            told = [(event.at_us, event.type, event.agent, event.body) for event in page]
            yield EventsEntry(space, name, page[0].seq, told)
            after = page[-1].seq
            self.taken.events += len(page)
            self._tell()
            average = sum(map(len, payloads)) // len(page) + 1
            size = max(1, min(_BATCH_EVENTS, _BATCH_BYTES // average))

    async def _cells(self, space: str) -> AsyncIterator[Entry]:
        after: str | None = None
        while page := await self._backend.cells(space, CONSUMERS, after, _PAGE):
            for name, cell in page:
                yield CellEntry(space, name, cell.value)
            after = page[-1][0]


async def last_seq(backend: AsyncBackend, space: str, stream: str) -> int:
    """The newest event of a stream; 0 if it holds none."""
    # A name comes before all longer ones that begin with it.
    found = await backend.streams(space, stream, None, 1)
    return found[0][1] if found and found[0][0] == stream else 0


class _LineTaking:
    """One line on its way out."""

    def __init__(self, taker: Taker, line: Line, top: int) -> None:
        self._taker = taker
        self._core = taker._core
        self._backend = taker._backend
        self._line = line
        self._top = top
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

    async def run(self) -> AsyncIterator[Entry]:
        line, done = self._line, self._line.parent_seq
        sent = max(self._taker._tops.get(line.id, 0), line.parent_seq)
        tomb: tuple[Row, bytes] | None = None
        async for row in rows_of(self._core.reader, line):
            if isinstance(row, Gap) or row.kind == DAMAGED or row.first != done + 1:
                raise StateCorruptedError(f"versions after {done} can't be read: {row}")
            if row.first > self._top:
                break
            if tomb is not None:
                yield await self._pruned(*tomb, row)
                tomb = None
            done = row.seq
            if row.kind == PRUNED and row.first <= sent < row.seq:
                # Some of these versions went out while they were still there.
                raise Changed
            if row.kind == PRUNED:
                for batch in self._flush():
                    yield batch
                for sealed in await self._tomb_sealed(row):
                    yield sealed
                if row.seq > sent:
                    tomb = row, self._hash
                else:
                    self._count_pruned(row, None)
                self._hash = verify_chain(self._hash, read_tombstone(row.body).digests)
            else:
                async for entry in self._row(row, sent):
                    yield entry
            if self._hash != row.hash:
                raise StateCorruptedError(f"the chain of hashes is broken at version {row.seq}")
        for batch in self._flush():
            yield batch
        if tomb is not None:
            yield await self._pruned(*tomb, None)
        if done < self._top:
            raise Changed
        self._taker._tops[line.id] = max(done, sent)

    async def _row(self, row: Row, sent: int) -> AsyncIterator[Entry]:
        """The versions of a row: those up to ``sent`` went out before, those after ``top`` stay."""
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
                blocks = [records.array(await self._items(*each)) for each in ranges]
            before = self._hash
            self._hash = link(before, record_digest(records.write_record(head, change, blocks)))
            self._used(records.read_change(change))
            if not sent < seq <= self._top:
                continue
            metadata = records.read_head(head).metadata
            parts = [change, *blocks] if metadata is None else [change, *blocks, metadata]
            for sealed in await self._taker.sealed(parts):
                yield sealed
            self._before = self._before if self._batch else before
            self._batch.append((head, change, blocks))
            self._batch_bytes += len(head) + len(change) + sum(map(len, blocks))
            self._last, self._last_hash = seq, self._hash
            if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_VERSIONS:
                for entry in self._flush():
                    yield entry

    def _flush(self) -> list[VersionsEntry]:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return []
        end, reached = self._last, self._last_hash
        self._taker.taken.versions += len(batch)
        self._taker._tops[self._line.id] = end
        self._taker._tell()
        return [VersionsEntry(self._line.uid, end - len(batch) + 1, self._before, reached, batch)]

    async def _items(self, log: str, start: int, stop: int) -> list[bytes]:
        """Items that are in chunks, of which one is held for each log."""
        found: list[bytes] = []
        while start < stop:
            position, raws = self._held.get(log, (0, []))
            if not position <= start < position + len(raws):
                chunk = await self._chunk(log, start)
                if chunk is None or chunk.pruned:
                    raise Changed
                position, raws = self._held[log] = chunk.position, records.split(chunk.block())
                if not position <= start < position + len(raws):
                    raise StateCorruptedError(f"chunk {position} of log {log!r} holds too few items")
            part = raws[start - position : stop - position]
            found.extend(part)
            start += len(part)
        return found

    async def _chunk(self, log: str, position: int) -> packs.Chunk | None:
        chunks = await self._backend.chunks(self._line.id, log, position, position + 1)
        whole = [chunk for chunk in chunks if not chunk.pruned]
        return whole[-1] if whole else chunks[-1] if chunks else None

    def _used(self, change: records.Change) -> None:
        for log, _, _, insert, position, *_ in change.logs:
            if insert:
                self._counts[log] = max(self._counts.get(log, 0), position + insert)
        self._counts.update(change.counts)

    # ── pruned versions ──────────────────────────────────────────────────────────────────────

    async def _tomb_sealed(self, row: Row) -> list[SealedEntry]:
        held = [(row.net, "the net of a row"), (row.keyframe, "a keyframe")]
        parts = [records.expand(data, what) for data, what in held if data is not None]
        heads = read_tombstone(row.body).heads.values()
        metadata = [records.read_head(head).metadata for head in heads]
        return await self._taker.sealed([*parts, *(each for each in metadata if each is not None)])

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

    async def _pruned(self, row: Row, before: bytes, after: Row | None) -> PrunedEntry:
        """The row, with those of its items that later versions still hold."""
        used = dict(self._counts)
        self._count_pruned(row, after)
        items: list[tuple[str, int, int, bytes]] = []
        for log, stop in self._counts.items():
            items.extend(await self._left(log, used.get(log, 0), stop))
        self._taker.taken.versions += row.seq - row.first + 1
        self._taker._tops[self._line.id] = row.seq
        return PrunedEntry(
            self._line.uid, row.first, row.seq, before, row.hash, row.body, row.net, row.keyframe, items
        )

    async def _left(self, log: str, start: int, stop: int) -> list[tuple[str, int, int, bytes]]:
        """What is left of the items at these positions."""
        found: list[tuple[str, int, int, bytes]] = []
        while start < stop:
            chunk = await self._chunk(log, start)
            if chunk is None:
                raise StateCorruptedError(f"items from {start} on of log {log!r} are missing")
            end = min(stop, chunk.end)
            block = b""
            if not chunk.pruned:
                raws = records.split(chunk.block())[start - chunk.position : end - chunk.position]
                block = records.compress(records.array(raws))
            found.append((log, start, end - start, block))
            start = end
        return found


def _unreadable(line: Line, error: Exception) -> EverthreadError:
    return StateCorruptedError(
        f"{line.name!r} can't be exported as it is: {error}. See store.verify(); everthread.salvage() brings "
        "what is left into a new store",
        where=line.name,
    )
