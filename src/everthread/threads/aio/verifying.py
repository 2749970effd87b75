"""Checking a whole store against itself: checksums, chain, packs, chunks, keyframes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from everthread.codec import records
from everthread.codec.values import same
from everthread.errors import EverthreadError
from everthread.history import packs
from everthread.history.chain import HASH_KEPT, branch, genesis, link, record_digest
from everthread.history.snapshots import Snapshot, read_keyframe
from everthread.stores.contract import PACK, SEAL_SEQ, Line, Row
from everthread.stores.contract_async import AsyncBackend
from everthread.threads.aio.core import head_key
from everthread.threads.aio.reading import Reader
from everthread.threads.reports import Damage, Progress, VerifyReport


class Verifier:
    """Reads everything once and recomputes what can be recomputed."""

    def __init__(self, backend: AsyncBackend, reader: Reader) -> None:
        self._backend = backend
        self._reader = reader
        self._damage: list[Damage] = []
        self._versions = 0

    async def run(self, progress: Progress | None = None) -> VerifyReport:
        threads = 0
        for problem in await self._backend.check():
            self._damage.append(Damage("(the whole store)", 0, 0, problem))
        async for line in self._backend.every_line():
            threads += not line.deleted
            if line.deleted and not await self._backend.scan(line.id, SEAL_SEQ - 1, 1):
                # Deleted and purged: there is nothing left to check, nor perhaps what it was forked from.
                continue
            await self._line_twice(line)
            if progress is not None:
                progress(self._versions, line.name)
        return VerifyReport(threads, self._versions, tuple(self._damage))

    async def _line_twice(self, line: Line) -> None:
        """What seems damaged is looked at once more: a fold by somebody else meanwhile looks like it."""
        found, versions = len(self._damage), self._versions
        await self._line(line)
        if len(self._damage) > found:
            del self._damage[found:]
            self._versions = versions
            await self._line(line)

    def _note(self, line: Line, first: int, last: int, problem: object) -> None:
        self._damage.append(Damage(line.name, first, last, str(problem)))

    async def _line(self, line: Line) -> None:
        expected = line.parent_seq + 1
        before = await self._start(line)
        prints: dict[str, dict[int, bytes]] = {}
        async for row in self._rows(line):
            if row.first != expected:
                self._note(line, expected, row.first - 1, "missing")
                before = b""
            expected = row.seq + 1
            self._versions += row.seq - row.first + 1
            try:
                bodies = await self._bodies(line, row)
                digest = before
                for index, body in enumerate(bodies):
                    digest = link(digest, record_digest(body))
                    self._check_prefix(row, index, digest, before)
                if before and digest != row.hash:
                    raise EverthreadError("the chain of hashes is broken here")
                await self._check_derived(line, row, bodies)
                await self._check_indexes(line, row, bodies, prints)
            except EverthreadError as error:
                self._note(line, row.first, row.seq, error)
            before = row.hash
        for log, wanted in prints.items():
            stored = {
                position + i: found[4 * i : 4 * i + 4]
                for position, found in await self._backend.fingerprints(line.id, log, 0)
                for i in range(len(found) // 4)
            }
            wrong = [p for p, print_ in stored.items() if wanted.get(p, print_) != print_]
            if wrong:
                self._note(line, 0, 0, f"the index of ids of log {log!r} is wrong at position {wrong[0]}")

    async def _check_indexes(
        self, line: Line, row: Row, bodies: list[bytes], prints: dict[str, dict[int, bytes]]
    ) -> None:
        """Ids and keys are found through indexes: a wrong one would let something happen twice."""
        for index, body in enumerate(bodies):
            head, encoded, _ = records.read_record(body)
            for log, _, _, insert, position, stored in records.read_change(encoded).logs:
                known = prints.setdefault(log, {})
                known.update({position + i: stored[4 * i : 4 * i + 4] for i in range(insert)})
            hashed = head_key(records.read_head(head))
            if row.kind != PACK or hashed is None:
                continue
            if (line.id, row.first + index) not in await self._backend.keyed(line.root, hashed):
                raise EverthreadError(f"the key of version {row.first + index} is missing in the index")

    async def _start(self, line: Line) -> bytes:
        start = genesis(line.uid)
        if line.parent:
            try:
                parent = await self._reader.parent(line)
                found = (await self._reader.version(parent, line.parent_seq))[1][:HASH_KEPT]
                if found != line.parent_hash:
                    raise EverthreadError("forked from another version than it says")
                snapshot = (await self._reader.load(parent, line.parent_seq)).snapshot
                counts = {name: log.count for name, log in snapshot.logs.items()}
                if counts != line.counts or snapshot.segment != line.parent_segment:
                    raise EverthreadError("the fork says something else about its beginning than its source")
            except EverthreadError as error:
                self._note(line, line.parent_seq, line.parent_seq, error)
            start = branch(line.parent_hash, line.uid)
        if start != line.start_hash:
            self._note(line, line.parent_seq, line.parent_seq, "the line itself was altered")
        return start

    async def _rows(self, line: Line) -> AsyncIterator[Row]:
        """All rows of a line, oldest first, a bounded number at a time."""
        marks = []
        seq = SEAL_SEQ - 1
        while rows := await self._backend.scan(line.id, seq, 64):
            marks.append((rows[0].seq, len(rows)))
            if rows[-1].first <= line.parent_seq + 1 or rows[-1].first <= 1:
                break
            seq = rows[-1].first - 1
        done = 0
        for top, count in reversed(marks):
            for row in reversed(await self._backend.scan(line.id, top, count)):
                if row.first > done:
                    done = row.seq
                    yield row

    async def _bodies(self, line: Line, row: Row) -> list[bytes]:
        if row.kind == PACK:
            body = packs.read_pack(row.body)
            if len(body.heads) != row.seq - row.first + 1:
                raise EverthreadError("the pack doesn't hold as many versions as it says")
            return [
                await self._whole(line, head, encoded)
                for head, encoded in zip(body.heads, body.changes, strict=True)
            ]
        head, encoded, blocks = records.read_record(row.body)
        inserts = any(splice[3] for splice in records.read_change(encoded).logs)
        return [row.body if blocks or not inserts else await self._whole(line, head, encoded)]

    async def _whole(self, line: Line, head: bytes, encoded: bytes) -> bytes:
        """The framed body of a record, its items fetched from where they are now."""
        items = [
            await self._reader.raw_items(line, log, start, stop)
            for log, start, stop in packs.inserted_ranges(encoded)
        ]
        return packs.whole(head, encoded, items)

    def _check_prefix(self, row: Row, index: int, digest: bytes, before: bytes) -> None:
        if row.kind == PACK and before:
            kept = packs.read_pack(row.body).hashes[index]
            if kept != digest[:HASH_KEPT]:
                raise EverthreadError(f"the pack names version {row.first + index} wrongly")

    async def _check_derived(self, line: Line, row: Row, bodies: list[bytes]) -> None:
        """What is stored beside the records to make reading fast must say the same as they do."""
        if row.kind == PACK:
            again = packs.fold(row.first, bodies, [b""] * len(bodies))
            if records.expand(again.net, "net") != records.expand(row.net or b"", "the net of a pack"):
                raise EverthreadError("the net change of the pack isn't what its versions add up to")
        if row.keyframe is not None:
            stored = read_keyframe(row.keyframe)
            if not _equal(stored, await _replayed(self._reader, line, row)):
                raise EverthreadError("the keyframe isn't the state of its version")


async def _replayed(reader: Reader, line: Line, row: Row) -> Snapshot:
    """The state at the end of a row, computed from what comes before it."""
    if row.kind != PACK:
        head = reader.head(row, row.seq)
        change = records.read_change(records.read_record(row.body)[1])
        if head.kind == records.REWIND and head.source is not None:
            snapshot = (await reader.load(await reader.by_uid(line, head.source[0]), head.source[1])).snapshot
            snapshot.jump(row.seq, change.counts)
            return snapshot
        snapshot = await _before(reader, line, row)
        snapshot.advance(change)
        return snapshot
    snapshot = await _before(reader, line, row)
    for encoded in packs.read_pack(row.body).changes:
        snapshot.advance(records.read_change(encoded))
    return snapshot


async def _before(reader: Reader, line: Line, row: Row) -> Snapshot:
    if row.first == line.parent_seq + 1 and line.parent:
        snapshot = (await reader.load(await reader.parent(line), line.parent_seq)).snapshot
        snapshot.branch()
        return snapshot
    return (await reader.load(line, row.first - 1)).snapshot if row.first > 1 else Snapshot.empty()


def _equal(a: Snapshot, b: Snapshot) -> bool:
    return (
        same(a.document, b.document) and a.logs == b.logs and a.segment == b.segment and a.merged == b.merged
    )
