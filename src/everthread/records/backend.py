"""The old store contract over the rules, for callers that haven't moved to them yet.

Translates names and values, drives the rules with :func:`~everthread.stores.interface.run`, and wakes
waiters. It holds no rule of its own. It goes away with :class:`everthread.stores.contract.Backend`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from everthread import process
from everthread.codec import records as codec
from everthread.errors import StateCorruptedError, StoreClosedError, UnsupportedError
from everthread.history.metadata import encoded_index_values
from everthread.history.packs import Chunk
from everthread.records.branches import Branch
from everthread.records.commits import NewVersion, StaleHead
from everthread.records.heads import Head, digest_metadata
from everthread.records.keys import SEQ_END
from everthread.records.records import Records
from everthread.records.registers import Register, StaleRegister
from everthread.records.rewrites import Compaction, Replacement
from everthread.records.sealed import key_ids
from everthread.records.tables import HEAD
from everthread.stores.contract import (
    NO_TAGS,
    Capabilities,
    Cell,
    ErasedKey,
    Fold,
    Found,
    KeyErased,
    Line,
    NewEvent,
    NewRow,
    NoTexts,
    Progress,
    Prune,
    Purged,
    PutCell,
    Residues,
    Row,
    SealedRow,
    StaleCell,
    StaleWrite,
    StoredEvent,
    Totals,
    Usage,
    line_usage,
)
from everthread.stores.interface import Refused, Store, run
from everthread.stores.signals import Signals

T = TypeVar("T")

_PAGE = 256
_PROBE_S = 0.25


def to_branch(line: Line) -> Branch:
    return Branch(
        number=line.id,
        uid=line.uid,
        namespace=line.space,
        name=line.name,
        root=line.root,
        parent=line.parent,
        parent_seq=line.parent_seq,
        parent_segment=line.parent_segment,
        parent_hash=line.parent_hash,
        start_hash=line.start_hash,
        counts=line.counts,
        deleted=line.deleted,
    )


def to_line(branch: Branch) -> Line:
    return Line(
        id=branch.number,
        uid=branch.uid,
        space=branch.namespace,
        name=branch.name,
        root=branch.root,
        parent=branch.parent,
        parent_seq=branch.parent_seq,
        parent_segment=branch.parent_segment,
        parent_hash=branch.parent_hash,
        start_hash=branch.start_hash,
        counts=branch.counts,
        deleted=branch.deleted,
    )


def to_version(row: NewRow) -> NewVersion:
    at_us, metadata = row.at_us, row.metadata
    if not at_us:
        # A caller that doesn't say it, or a record that can't be read and is copied as it is.
        with suppress(StateCorruptedError):
            head = codec.read_head(codec.read_record(row.body)[0])
            at_us, metadata = head.at_us, head.metadata
    return NewVersion(
        seq=row.seq,
        kind=row.kind,
        previous=row.previous,
        hash=row.hash,
        body=row.body,
        at_us=at_us,
        ttl_us=row.ttl_us,
        digests=to_digests(encoded_index_values(metadata)),
        key=row.key,
        key_is_new=bool(row.guard),
        chunks=row.chunks,
        sealed=row.sealed,
        source=row.source,
    )


def to_digests(tags: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: digest_metadata(name, value) for name, value in tags.items()}


def to_cell(register: Register | None, now_us: int) -> Cell | None:
    if register is None:
        return None
    return Cell(register.value, register.revision, register.written_us, now_us)


class FeedProbe:
    """Waits for other processes to change a thread, on behalf of all waiters of one backend."""

    waits = True

    def __init__(self, records: Records) -> None:
        self._records = records
        self._cursors: dict[tuple[int, int], bytes] = {}

    def changed(self, lines: Sequence[int]) -> tuple[()] | None:
        """Return ``None`` (any line may have changed) or nothing, after a short wait."""
        return run(self._changed())

    async def _changed(self) -> tuple[()] | None:
        cursors: dict[tuple[int, int], bytes] = {}
        for name in await self._records.namespaces.names():
            namespace = await self._records.namespaces.find(name)
            newest = await self._records.threads.newest_cursor(namespace)
            cursors[HEAD.number, namespace] = newest
        if cursors != self._cursors:
            self._cursors = cursors
            return None
        await self._records.store.wait({}, cursors, _PROBE_S)
        return ()

    def close(self) -> None:
        """Nothing is held: the store belongs to the backend."""


class RecordsBackend(NoTexts):
    """Thread-safe, if the store is."""

    def __init__(self, store: Store) -> None:
        self.records = Records(store)
        info = store.info
        self.signals = Signals((lambda: FeedProbe(self.records)) if info.shared else None)
        self.url = info.url
        self.capabilities = Capabilities(
            durable=info.durable, multi_process=info.shared, backup="backup" in info.optional, cold=True
        )
        self._generation = process.generation
        self._closed = False

    def _run(self, rule: Coroutine[Any, Any, T]) -> T:
        try:
            self._check()
        except StoreClosedError:
            rule.close()
            raise
        return run(rule)

    def _check(self) -> None:
        process.check_not_forked(self._generation)
        if self._closed:
            raise StoreClosedError("this store is closed; open it again")

    def identity(self) -> str:
        return self.records.store.info.identity

    # ── branches and rows ──

    def find(self, space: str, name: str) -> Found | None:
        return self._run(self._find(space, name))

    async def _find(self, space: str, name: str) -> Found | None:
        namespace = await self.records.namespaces.find(space)
        while head := await self.records.threads.find(namespace, name):
            (found,) = await self._found([head])
            if found is not None:
                return found
        return None

    async def _found(self, heads: Sequence[Head]) -> list[Found | None]:
        """Return each thread with its newest rows; ``None`` if it was deleted since its head was read."""
        for head in heads:
            self.records.commits.remember(head)
        branches = await self.records.branches.get_many(head.branch for head in heads)
        newest = await self.records.rows.newest([head.branch for head in heads], 2)
        found: list[Found | None] = []
        for head, branch, rows in zip(heads, branches, newest, strict=True):
            if head.seq > branch.parent_seq and not rows:
                found.append(None)
                continue
            before = rows[1].hash if len(rows) > 1 else None
            found.append(Found(to_line(branch), rows[0] if rows else None, before))
        return found

    def line(self, line: int) -> Line | None:
        branch = self._run(self.records.branches.get(line))
        return None if branch is None else to_line(branch)

    def line_by_uid(self, uid: bytes) -> Line | None:
        branch = self._run(self.records.branches.find(uid))
        return None if branch is None else to_line(branch)

    def replay(self, line: int, seq: int, floor: int) -> list[Row]:
        return self._run(self.records.rows.replay(line, seq, floor))

    def scan(self, line: int, seq: int, limit: int) -> list[Row]:
        return self._run(self.records.rows.scan(line, seq, limit))

    def tail(self, line: int) -> list[tuple[Row, bytes | None]]:
        # Keys are indexed with the commit: keyed() finds all of them.
        return [(row, None) for row in self._run(self.records.rows.tail(line))]

    def chunks(self, line: int, log: str, start: int, stop: int) -> list[Chunk]:
        return self._run(self.records.logs.chunks(line, log, start, stop))

    def fingerprints(self, line: int, log: str, start: int) -> list[tuple[int, bytes]]:
        return self._run(self.records.logs.fingerprints(line, log, start))

    def keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        return self._run(self._keyed(root, key))

    async def _keyed(self, root: int, key: bytes) -> list[tuple[int, int]]:
        family = await self.records.branches.family(root)
        return await self.records.commits.find_commit_key([(number, SEQ_END) for number in family], key)

    def create(
        self, line: Line, row: NewRow | None, source: int = 0, tags: Mapping[str, bytes] = NO_TAGS
    ) -> Line:
        version = None if row is None else to_version(row)
        digests = to_digests(tags)
        branch = self._run(
            self.records.commits.create(to_branch(line), version, source=source, digests=digests)
        )
        self.signals.ring(0)
        return to_line(branch)

    def append(self, line: int, row: NewRow) -> None:
        (error,) = self.append_all([(line, row)])
        if error is not None:
            raise error

    def append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        return self._run(self._append_all(rows))

    async def _append_all(self, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
        results = await self.records.commits.commit_all([(line, to_version(row)) for line, row in rows])
        errors: list[Exception | None] = []
        for (line, _), result in zip(rows, results, strict=True):
            if isinstance(result, StaleHead):
                (newest,) = await self.records.rows.newest([line], 1)
                errors.append(StaleWrite(newest[0] if newest else None, sealed=result.head is None))
            elif isinstance(result, Exception):
                errors.append(result)
            else:
                errors.append(None)
                self.signals.ring(line)
        return errors

    def fold(self, line: Line, fold: Fold) -> bool:
        compaction = Compaction(fold.pack, fold.hash, fold.keyframe, fold.beside)
        return self._run(self.records.rewrites.compact(line.id, compaction))

    def keyframe(self, line: int, seq: int, digest: bytes, keyframe: bytes) -> None:
        self._run(self.records.rewrites.add_keyframe(line, seq, digest, keyframe))

    def prune(self, line: Line, prune: Prune) -> bool:
        replacement = Replacement(prune.old, prune.rows, prune.dropped, prune.chunks, prune.seen, prune.held)
        return self._run(self.records.rewrites.replace(line.id, replacement))

    def delete(self, line: Line, newest: bytes | None = None) -> bool:
        deleted = self._run(self.records.deletion.delete(to_branch(line), newest))
        if deleted:
            self.signals.ring(line.id)
        return deleted

    # ── waiting ──

    def newer(self, line: int, seq: int) -> bool:
        return self._run(self._newer(line, seq))

    async def _newer(self, line: int, seq: int) -> bool:
        branch = await self.records.branches.identity(line)
        if branch is None:
            return line > 0
        head = await self.records.commits.head(branch)
        return head is None or head.seq > seq

    def wait(self, line: int, seq: int, timeout_s: float) -> bool:
        return self.signals.wait(line, timeout_s, lambda: self.newer(line, seq))

    # ── lists ──

    def lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        return self._run(self._lines(space, prefix, after, limit))

    async def _lines(self, space: str, prefix: str, after: str | None, limit: int) -> list[Found]:
        namespace = await self.records.namespaces.find(space)
        heads = await self.records.threads.page(namespace, prefix, after, limit)
        return await self._live(heads)

    async def _live(self, heads: Sequence[Head]) -> list[Found]:
        return [found for found in await self._found(heads) if found is not None]

    def lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        return self._run(self._lines_by_tags(space, tags))

    async def _lines_by_tags(self, space: str, tags: Mapping[str, bytes]) -> list[Found]:
        namespace = await self.records.namespaces.find(space)
        digests = list(to_digests(tags).values())
        return await self._live(await self.records.threads.with_metadata(namespace, digests, None, SEQ_END))

    def untagged(self, space: str) -> list[tuple[Line, int]]:
        # Metadata is indexed with the commit.
        self._check()
        return []

    def tag(self, line: int, seq: int, tags: Mapping[str, bytes]) -> None:
        self._run(self._tag(line, seq, to_digests(tags)))

    async def _tag(self, line: int, seq: int, digests: Mapping[str, bytes]) -> None:
        branch = await self.records.branches.identity(line)
        if branch is not None:
            await self.records.commits.index(branch, seq, digests)

    def every_line(self) -> Iterator[Line]:
        after = 0
        while page := self._run(self.records.branches.page(after, _PAGE)):
            yield from [to_line(branch) for _, branch in page if branch is not None]
            after = page[-1][0]

    def unreadable_lines(self) -> list[str]:
        after, damaged = 0, []
        while page := self._run(self.records.branches.page(after, _PAGE)):
            damaged += [f"the entry of branch {number}" for number, branch in page if branch is None]
            after = page[-1][0]
        return damaged

    # ── registers ──

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        return self._run(self._cell(space, name, now_us))

    async def _cell(self, space: str, name: str, now_us: int) -> Cell | None:
        namespace = await self.records.namespaces.find(space)
        return to_cell(await self.records.registers.get(namespace, name), now_us)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        try:
            register = self._run(self._swap(space, name, expected, value, now_us, durable))
        except StaleRegister as stale:
            raise StaleCell(to_cell(stale.actual, now_us)) from None
        return 0 if register is None else register.revision

    async def _swap(
        self, space: str, name: str, expected: int, value: bytes | None, now_us: int, durable: bool
    ) -> Register | None:
        namespace = await self.records.namespaces.make(space)
        return await self.records.registers.compare_and_set(
            namespace, name, expected, value, now_us, durable=durable
        )

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        found = self._run(self._cells(space, prefix, after, limit))
        return [(name, cell) for name, each in found if (cell := to_cell(each, now_us)) is not None]

    async def _cells(
        self, space: str, prefix: str, after: str | None, limit: int
    ) -> list[tuple[str, Register]]:
        namespace = await self.records.namespaces.find(space)
        return await self.records.registers.page(namespace, prefix, after, limit)

    # ── streams ──

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        return self._run(self._emit(space, stream, events, sealed))

    async def _emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow]
    ) -> int:
        number = await self.records.streams.make(await self.records.namespaces.make(space), stream)
        outcome = await self.records.streams.append(number, events, sealed)
        if isinstance(outcome, Refused):
            raise KeyErased(frozenset(await self.records.erasures.among(key_ids(sealed))))
        return outcome

    async def _stream(self, space: str, stream: str) -> int:
        return await self.records.streams.find(await self.records.namespaces.find(space), stream)

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        streams, number = self.records.streams, self._run(self._stream(space, stream))
        if not number:
            return []
        if since_us is None and until_us is None:
            return self._run(streams.page(number, after, limit, type=type, agent=agent))
        return self._run(
            streams.between_by_number(
                number, after, limit, since_us=since_us, until_us=until_us, type=type, agent=agent
            )
        )

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        namespace = self._run(self.records.namespaces.find(space))
        return self._run(self.records.streams.names(namespace, prefix, after, limit))

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        number = self._run(self._stream(space, stream))
        return self._run(self.records.streams.trim(number, up_to)) if number else 0

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        number = self._run(self._stream(space, stream))
        return self._run(self.records.streams.rewrite(number, bodies)) if number else 0

    # ── erasure ──

    def sealed(self, value_ids: Iterable[bytes]) -> Mapping[bytes, bytes]:
        return self._run(self.records.sealed.get(value_ids))

    def note_erasures(self, keys: Sequence[ErasedKey]) -> None:
        self._run(self.records.erasures.note(keys))

    def erasures(self, unfinished: bool = False) -> list[ErasedKey]:
        ledger = self.records.erasures
        return self._run(ledger.unfinished() if unfinished else ledger.all())

    def erased(self, key_ids: Iterable[bytes]) -> set[bytes]:
        return self._run(self.records.erasures.among(key_ids))

    def sealed_under(self, key_ids: Sequence[bytes] | None, after: bytes, limit: int) -> list[SealedRow]:
        return self._run(self.records.sealed.page(key_ids, after, limit))

    def drop_sealed(self, key_ids: Sequence[bytes]) -> int:
        return self._run(self.records.sealed.delete(key_ids))

    def purge(self, timeout_s: float, progress: Progress | None = None) -> Purged:
        report = self._run(self.records.store.purge(timeout_s, progress))
        return Purged(done=report.done, waiting=report.waiting, unreached=report.unreachable)

    def residues(self, needles: Sequence[bytes], progress: Progress | None = None) -> Residues:
        report = self._run(self.records.store.find_residue(needles, progress))
        return Residues(looked=report.searched, hits=report.hits, unreached=report.unreachable)

    # ── the store as a whole ──

    def check(self) -> list[str]:
        return self._run(self._check_all())

    async def _check_all(self) -> list[str]:
        problems = await self.records.store.check()
        # Entries of files that the engine can't read would only repeat that.
        return problems or await self.records.agreement.check()

    def usage(self, line: int) -> Usage:
        return self._run(self._usage(line))

    async def _usage(self, line: int) -> Usage:
        sizes: dict[int, tuple[int, int, int]] = {}
        seq = SEQ_END
        while rows := await self.records.rows.complete(line, 1, seq - 1, _PAGE):
            for row in rows:
                versions, size, keyframes = sizes.get(row.kind, (0, 0, 0))
                versions += row.seq - row.first + 1
                size += len(row.body) + len(row.net or b"")
                sizes[row.kind] = versions, size, keyframes + len(row.keyframe or b"")
            seq = rows[-1].seq
        chunks = await self.records.logs.size(line)
        return line_usage([(kind, *size) for kind, size in sizes.items()], chunks)

    def totals(self) -> Totals:
        sizes = self._run(self.records.store.usage(None))
        _, file_bytes = sizes.get("files", (0, 0))
        return Totals(
            sealed=sizes["sealed"],
            cells=sizes["register"],
            events=sizes["event"],
            files=((self.url, file_bytes),) if file_bytes else (),
            free=sizes.get("free", (0, 0))[1],
        )

    def persist(self) -> None:
        self._run(self.records.store.flush())

    def compact(self) -> None:
        self._check()

    def backup(self, path: str) -> None:
        raise UnsupportedError(f"a {self.url} store can't be backed up; open a sqlite:/// store to keep data")

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        raise UnsupportedError(f"a {self.url} store can't be restored; open a sqlite:/// store to keep data")

    def close(self) -> None:
        if not self._closed:
            run(self.records.store.close())
        self._closed = True
        self.signals.close()

    def __getstate__(self) -> Any:
        raise UnsupportedError(f"a {self.url} store belongs to one process and can't be sent to another")
