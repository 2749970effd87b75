"""The inside of a thread handle: where it stands, what it has changed, and the one way to write."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from everthread.codec import records
from everthread.codec.records import Change, Head
from everthread.codec.values import decode_plain, encode, lift, lower
from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    ThreadDeletedError,
    ThreadNotFoundError,
)
from everthread.history import packs
from everthread.history.chain import genesis, link, record_digest, version_id
from everthread.history.logs import EMPTY_LOG
from everthread.model.names import check_name
from everthread.model.values import Personal, Tagged
from everthread.model.versions import NO_METADATA, Version
from everthread.stores.contract import DELTA, NO_TAGS, REWIND, Line, NameTaken, NewRow, Row, StaleWrite
from everthread.threads.aio.core import Core, Validator, empty_memo
from everthread.threads.aio.landing import find_landed
from everthread.threads.aio.log import AsyncLog, search_prints
from everthread.threads.aio.reading import Loaded, make_version
from everthread.threads.colours import ASYNC
from everthread.threads.document import Document
from everthread.threads.memo import Memo, advanced, from_snapshot
from everthread.threads.sealing import SealedRow

_KIND_NAMES = {records.COMMIT: "commit", records.MERGE: "merge", records.FORK: "fork", records.FENCE: "fence"}


class Handle:
    """Pinned at its first read; moved only by what its owner does. Not for two threads at once."""

    def __init__(self, core: Core, name: str, validate: Validator | None = None) -> None:
        self._core = core
        self.name = check_name(name, "thread name")
        self._runtime = core.runtime
        self._limits = core.limits
        self._validate = validate
        self._line: Line | None = None
        self._memo: Memo | None = None
        #: A line to be created with its first version; for a fork the line it comes from and its tags.
        self._unborn: tuple[Line, int, Mapping[str, bytes]] | None = None
        self._pinned = False
        #: What was under way: "" nothing, "standing" a move, "rebasing" one that carries changes along.
        self._moving = ""
        self._deleted = False
        self._document: Document | None = None
        self._logs: dict[str, AsyncLog] = {}
        self._logs_touched = False
        self._sealed: dict[bytes, SealedRow] = {}
        #: The hashes of versions that were sent to the store and not acknowledged (yet).
        self._attempted: list[bytes] = []

    # ── standing ─────────────────────────────────────────────────────────────────────────────

    async def _load(self) -> None:
        if not self._pinned or self._moving:
            await self._load_newest()

    def _here(self) -> None:
        """Make sure that there is something to look at, for what can't wait for the store."""
        if ASYNC:
            if not self._pinned or self._moving:
                raise InvalidStateError(
                    "moving this handle was interrupted half way: await thread.discard(), then go on"
                )
        else:
            self._load()

    async def _load_newest(self) -> None:
        """Read the newest version: for the first time, or because a move was interrupted half way."""
        found = await self._core.backend.find(self._core.space, self.name)
        if self._moving and self._line is not None and (found is None or found.line.uid != self._line.uid):
            self._deleted = True
        lost = self._moving == "rebasing"
        if found is None:
            self._stand(None, None)
        else:
            self._stand(found.line, await self._core.head(found))
        if lost:
            raise InvalidStateError(
                "moving the uncommitted changes was interrupted half way: they are gone, "
                "and the handle stands on the newest version"
            )

    def _stand(self, line: Line | None, memo: Memo | None, moving: str = "") -> None:
        """Take up a committed position; whatever was uncommitted is gone.

        Until it is complete the handle is marked as moving, so that an interrupt in between is noticed.
        """
        self._moving = moving or "standing"
        self._line, self._memo, self._pinned = line, memo, True
        self._sealed = {}
        self._attempted = []
        self._unborn = None
        self._logs_touched = False
        for name, log in self._logs.items():
            log._settle(memo.logs.get(name, EMPTY_LOG) if memo else EMPTY_LOG)
        if self._document is not None:
            self._document.reset(self._build_document())
        self._moving = moving

    def _drop_changes(self) -> None:
        """Forget what is uncommitted. A handle that was moving finds its place when it loads again."""
        if self._moving:
            self._moving = "standing"
        elif self._pinned:
            self._stand(self._line, self._memo)

    def _stand_unborn(self, line: Line, memo: Memo, source: int, tags: Mapping[str, bytes]) -> None:
        """Stand on a version that the first commit, together with ``line`` itself, will follow."""
        self._stand(None, memo)
        self._unborn = (line, source, tags)

    def _build_document(self) -> Any:
        memo = self._memo
        if memo is None:
            return {}
        document = memo.build_document()
        if memo.changes_count >= 4 and self._line is not None:
            self._memo = memo.compacted(document)
            self._core.memos.put(self._line.uid, self._memo)
        return document

    def _doc(self) -> Document:
        self._here()
        if self._document is None:
            self._document = Document(
                self._build_document(),
                lower=self._lower,
                lift=self._lift,
                depth_max=self._limits.depth_max,
            )
        return self._document

    def _log(self, name: str) -> AsyncLog:
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = AsyncLog(self, name)  # type: ignore[arg-type]
            if self._pinned and not self._moving and self._memo is not None:
                log._settle(self._memo.logs.get(name, EMPTY_LOG))
        return log

    @property
    def _dirty(self) -> bool:
        return self._logs_touched or (self._document is not None and self._document.dirty)

    def _require(self) -> tuple[Line, Memo]:
        """The line and head of a thread that exists."""
        self._here()
        self._check_alive()
        if self._line is None or self._memo is None:
            raise ThreadNotFoundError(
                f"there is no thread {self.name!r} yet: it exists from its first commit"
            )
        return self._line, self._memo

    def _check_alive(self) -> None:
        if self._deleted:
            raise ThreadDeletedError(
                f"the thread {self.name!r} was deleted; store.thread({self.name!r}) starts a new one"
            )

    def _require_clean(self, verb: str) -> None:
        if self._dirty:
            raise InvalidStateError(
                f"{verb} needs a handle without uncommitted changes: commit() or discard() them first"
            )

    # ── what logs and documents ask for ──────────────────────────────────────────────────────

    def _touch(self) -> None:
        self._logs_touched = True

    def _untouch(self) -> None:
        """A change was taken back: see whether any is left."""
        self._logs_touched = any(log._dirty for log in self._logs.values())

    if ASYNC:

        async def _settle_logs(self) -> None:
            """Let the logs do what had to wait for the store."""
            for log in self._logs.values():
                await log._settle_deferred()

    def _writable(self) -> None:
        self._here()
        self._check_alive()

    def _lower(self, value: Any, where: str) -> Any:
        return lower(value, limits=self._limits, seal=self._seal, root=where)

    def _lift(self, node: Any) -> Any:
        return lift(node, self._open_seal)

    def _seal(self, personal: Personal) -> Tagged:
        return self._core.vault.seal(personal, self._sealed)

    def _open_seal(self, tagged: Tagged) -> Any:
        return self._core.vault.open(tagged, self._sealed)

    async def _fetch(self, log: str, start: int, stop: int) -> list[Any]:
        line, memo = self._require()
        return await self._core.reader.items(line, log, start, stop, memo.recent.get(log), self._open_seal)

    async def _fetch_raw(self, log: str, start: int, stop: int) -> list[bytes]:
        return await self._core.reader.raw_items(self._require()[0], log, start, stop)

    async def _find_print(self, log: str, print_: bytes, count: int) -> list[int]:
        """Committed positions below ``count`` whose fingerprint fits, the newest first."""
        line = self._line
        found: list[int] = []
        while line is not None and count:
            own = line.counts.get(log, 0) if line.parent else 0
            if count > own:
                prints = await self._core.prints(line, log, count)
                found.extend(search_prints(prints, print_, own, 4 * (count - own)))
                count = own
            line = await self._core.reader.parent(line) if line.parent else None
        return found

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    async def _write(
        self,
        *,
        kind: int = records.COMMIT,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        key_hash: bytes | None = None,
        source: tuple[bytes, int, int, str] | None = None,
        step: tuple[str, int, int] | None = None,
        merged: dict[bytes, list[int]] | None = None,
    ) -> Version:
        """Commit what is pending. Raises :class:`ConflictError` if the line has moved on."""
        self._check_alive()
        if self._validate is not None:
            self._validate(self._doc().root.plain())
        if self._sealed:
            self._core.vault.check_pending(self._sealed)
        document = self._document
        ops = document.take_ops() if document is not None and document.dirty else []
        splices: list[list[Any]] = []
        blocks: list[bytes] = []
        if self._logs_touched:
            for log in self._logs.values():
                if log._splices:
                    splices.extend(log._recorded())
                    blocks.extend(log._blocks())
        change = Change(ops, splices, merged or {})
        encoded_metadata = None if metadata is None else self._encode_metadata(metadata)
        head = Head(kind, self._runtime.now_us(), label, encoded_metadata, key, source, step)
        memo = await self._append(head, change, blocks, key_hash)
        self._moving = "standing"
        self._memo = memo
        self._attempted.clear()
        if document is not None:
            document.mark_clean()
            if memo.long:
                self._memo = memo = memo.compacted(document.raw)
        if self._logs_touched:
            self._logs_touched = False
            for name, log in self._logs.items():
                if log._splices:
                    log._settle(memo.logs[name])
        self._sealed = {}
        self._moving = ""
        await self._finish()
        return memo.version

    def _encode_metadata(self, metadata: Mapping[str, Any]) -> bytes:
        if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
            raise InvalidValueError("metadata must be a dictionary with text keys", path="metadata")
        lowered = lower(metadata, limits=self._limits, seal=_not_in_metadata, root="metadata")
        return encode(lowered, self._limits)

    async def _append(self, head: Head, change: Change, blocks: list[bytes], key_hash: bytes | None) -> Memo:
        line, memo = self._line, self._memo
        if line is None and self._unborn is None:
            # Kept until it is born: a second try must be recognisable as the same line.
            self._unborn = (self._new_line(), 0, NO_TAGS)
        if memo is None:
            memo = empty_memo(self._unborn[0].start_hash if self._unborn else b"")
        encoded = records.write_change(change, self._limits)
        body = records.write_record(records.write_head(head), encoded, blocks)
        digest = link(memo.hash, record_digest(body))
        seq = memo.seq + 1
        chunks: tuple[packs.Chunk, ...] = ()
        if len(body) > packs.FOLD_BYTES and blocks:
            chunks = tuple(packs.detach(change, blocks))
            blocks = []
            body = records.write_record(records.write_head(head), encoded, blocks)
        row = NewRow(
            seq,
            DELTA,
            memo.hash,
            digest,
            body,
            key_hash,
            chunks,
            tuple(row for row in self._sealed.values() if row[2]),
        )
        if self._unborn is not None:
            line = await self._create(*self._unborn, row)
            self._unborn = None
        elif line is not None:
            await self._append_row(line, row)
        assert line is not None
        version = self._version(memo, seq, digest, head)
        self._core.memos.extend_keys(line.uid, seq, key_hash)
        for log, _, _, insert, position, prints in change.logs:
            if insert:
                own = line.counts.get(log, 0) if line.parent else 0
                self._core.memos.extend_prints(line.uid, log, position - own, prints)
        return advanced(
            memo,
            seq=seq,
            digest=digest,
            version=version,
            change=change,
            encoded=encoded,
            blocks=blocks,
            size=len(body),
        )

    def _version(self, memo: Memo, seq: int, digest: bytes, head: Head) -> Version:
        previous = memo.version
        return Version(
            seq=seq,
            id=version_id(seq, digest),
            parent=None if previous is None else previous.id,
            at_us=head.at_us,
            label=head.label,
            metadata=MappingProxyType(decode_plain(head.metadata)) if head.metadata else NO_METADATA,
            key=head.key,
            kind=_KIND_NAMES.get(head.kind, "commit"),  # type: ignore[arg-type]
            source=head.source[3] if head.source else None,
        )

    def _new_line(self) -> Line:
        uid = self._runtime.random_bytes(16)
        return Line(id=0, uid=uid, space=self._core.space, name=self.name, root=0, start_hash=genesis(uid))

    async def _create(self, line: Line, source: int, tags: Mapping[str, bytes], row: NewRow) -> Line:
        self._attempted.append(row.hash)
        try:
            self._line = await self._core.backend.create(line, row, source, tags)
        except NameTaken:
            found = await self._core.backend.find(self._core.space, self.name)
            if found is not None and found.line.uid == line.uid:
                landed = await find_landed(self, found.line, row.seq)
                if landed is not None:
                    raise landed from None
            actual = (await self._core.head(found)).version if found else None
            raise ConflictError(
                f"somebody else created the thread {self.name!r} first; rebase() onto it or discard()",
                expected=None,
                actual=actual,
            ) from None
        return self._line

    async def _append_row(self, line: Line, row: NewRow) -> None:
        """Append, and recognise an earlier try that landed without telling us.

        That may have been an I/O error, or an interrupt between the store's answer and our noting it.
        """
        self._attempted.append(row.hash)
        try:
            await self._core.backend.append(line.id, row)
        except StaleWrite as stale:
            landed = await find_landed(self, line, row.seq) if len(self._attempted) > 1 else None
            raise landed or await self._conflict(line, stale) from None

    async def _conflict(self, line: Line, stale: StaleWrite) -> Exception:
        if stale.sealed:
            self._deleted = True
            return ThreadDeletedError(f"the thread {self.name!r} was deleted; deletion is final")
        expected = self._memo.version if self._memo else None
        actual = await self._row_version(line, stale.newest) if stale.newest else None
        return ConflictError(
            f"{self.name!r} moved on from {expected} to {actual}; rebase(), or discard() and refresh()",
            expected=expected,
            actual=actual,
        )

    async def _row_version(self, line: Line, row: Row) -> Version:
        return (await self._core.reader.version(line, row.seq))[0]

    async def _finish(self) -> None:
        """After a commit was acknowledged by the store: remember the head, fold if it is time."""
        assert self._line is not None
        assert self._memo is not None
        costs = self._memo.costs
        if (
            costs.tail_rows > self._core.folder.records_max
            or costs.tail_bytes >= packs.FOLD_BYTES
            or costs.rows > 256
        ):
            self._memo = await self._core.maintain(self._line, self._memo)
        self._core.memos.put(self._line.uid, self._memo)

    async def _rewind_to(
        self, line: Line, memo: Memo, owner: Line, target: Version, loaded: Loaded
    ) -> Version:
        """Append the version that goes back to ``target`` and stand on it."""
        snapshot = loaded.snapshot
        source = (owner.uid, target.seq, snapshot.segment, target.id)
        counts = {name: log.count for name, log in memo.logs.items()}
        head = Head(records.REWIND, self._runtime.now_us(), source=source)
        change = Change(counts=counts)
        body = records.write_record(records.write_head(head), records.write_change(change), [])
        digest = link(memo.hash, record_digest(body))
        seq = memo.seq + 1
        await self._append_row(line, NewRow(seq, REWIND, memo.hash, digest, body))
        self._core.memos.extend_keys(line.uid, seq, None)
        snapshot.jump(seq, counts)
        version = make_version(line, seq, digest, memo.hash if memo.seq > line.parent_seq else None, head)
        costs = loaded.costs
        # The rows read for the target, the rewind itself, and the tail that still waits for its fold.
        tail = memo.costs
        costs = type(costs)(
            tail.tail_rows + 1,
            tail.tail_bytes + len(body),
            costs.rows + 1 + tail.tail_rows,
            costs.packs,
            costs.replay_bytes,
            costs.keyframe_bytes,
        )
        self._stand(line, from_snapshot(snapshot, seq, digest, version, costs, {}))
        await self._finish()
        return version


def _not_in_metadata(personal: Personal) -> Tagged:
    raise InvalidValueError(
        "metadata is listed and searched in clear and can't hold personal values; put them into the document",
        path="metadata",
    )
