# Generated from src/everthread/threads/aio/commit.py by tools/twin.py: change that, then run: make twin
"""The one way to write: what is pending becomes a record, the store appends it, the handle moves on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.values import LEAVES, decode_plain, encode, is_plain, lower
from everthread.errors import ConflictError, InvalidStateError, InvalidValueError, ThreadDeletedError
from everthread.history import packs
from everthread.history.chain import genesis, link_record, version_id
from everthread.process import check_not_in_workflow
from everthread.stores.contract import (
    DELTA,
    NO_TAGS,
    REWIND,
    KeyErased,
    Line,
    NameTaken,
    NewRow,
    StaleWrite,
    VersionGone,
)
from everthread.threads import migrations
from everthread.threads.document import CUT, SHARED, UNTOUCHED
from everthread.threads.head_cache import CachedHead, Costs, from_snapshot, moved
from everthread.threads.lifetimes import carried
from everthread.threads.sealing import read_metadata
from everthread.threads.sync.core import empty_head
from everthread.threads.sync.fallback import over_the_damage, refusal
from everthread.threads.sync.journals import bury
from everthread.threads.sync.lost_ack import find_landed
from everthread.threads.sync.reader import Loaded, make_version
from everthread.threads.tombstones import pruned
from everthread.threads.validation import check_attached
from everthread.versions import NO_METADATA, Kind, Version

if TYPE_CHECKING:
    from everthread.history.ops import Op
    from everthread.threads.document import Document
    from everthread.threads.sync.handle import Handle
    from everthread.threads.sync.log import Log

_KIND_NAMES: dict[int, Kind] = {
    records.COMMIT: "commit",
    records.MERGE: "merge",
    records.FORK: "fork",
    records.FENCE: "fence",
}


def _check(handle: Handle) -> None:
    """Whether a handle that is out of the ordinary may write at all."""
    handle.check_alive()
    if handle.recovered is not None:
        raise refusal(handle)
    if handle.validate is not None:
        handle.validate(handle.open_document().root.plain())
    if handle.sealed:
        handle.core.vault.check_pending(handle.sealed, lambda: _still_used(handle))


def _still_used(handle: Handle) -> set[bytes]:
    """Which of the values that were sealed since the last commit can be read in the next version."""
    document = handle.document
    ops = document.take_ops() if document is not None and document.dirty else []
    written = [records.encode_change(ops, [], None, handle.limits)]
    for log in handle.logs.values():
        written.extend(log._new_items())
    # An id is 16 random bytes: where it stands, it is meant.
    return {value_id for value_id in handle.sealed if any(value_id in part for part in written)}


def _without_erased(handle: Handle, row: NewRow, erased: KeyErased) -> NewRow:
    """The row without values of somebody who was erased at this moment, if nothing refers to them any more.

    Raises :class:`ErasedError` otherwise.
    """
    handle.core.vault.note_erased(erased.key_ids)
    handle.core.vault.check_pending(handle.sealed, lambda: _still_used(handle))
    return msgspec.structs.replace(row, sealed=tuple(handle.sealed.values()))


def _note_items(handle: Handle, line: Line, splices: list[list[Any]]) -> None:
    """Remember the ids that were written."""
    for log, _, _, insert, start, prints in splices:
        if insert:
            offset = start - (line.counts.get(log, 0) if line.parent else 0)
            handle.core.head_cache.note_items(handle.slot, log, offset, prints)


def _gather(
    handle: Handle,
) -> tuple[Document | None, list[Op], list[Log], list[list[Any]], list[bytes]]:
    """What is pending: the document and its ops, the logs that changed, their splices and blocks."""
    if migrations.may_be_due() and handle.head is not None:
        handle.open_document()
    document = handle.document
    ops: list[Op] = []
    if document is not None and (document.root._dirty or document.cut == CUT):
        check_attached(document.root, handle.attaches_schema)
        ops = document.take_ops()
    watched = handle.writing
    if watched and document is not None:
        document.cut = UNTOUCHED
    touched: list[Log] = []
    splices: list[list[Any]] = []
    blocks: list[bytes] = []
    if handle.logs_touched:
        for log in handle.logs.values():
            if log._splices or log._cut:
                log._record(splices, blocks)
                touched.append(log)
                if watched:
                    log._cut = UNTOUCHED
    return document, ops, touched, splices, blocks


def _conceive(handle: Handle) -> CachedHead:
    """What the first version of a line goes on from."""
    if handle.line is None and handle.unborn is None:
        # Kept until it is born: a second try must be recognisable as the same line.
        handle.unborn = (_new_line(handle), 0, NO_TAGS)
    return empty_head(handle.unborn[0].start_hash if handle.unborn else b"")


def write(
    handle: Handle,
    *,
    kind: int = records.COMMIT,
    label: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    key: str | None = None,
    key_hash: bytes | None = None,
    guard: int = 0,
    source: tuple[bytes, int, int, str] | None = None,
    step: tuple[str, int, int] | None = None,
    merged: dict[bytes, list[int]] | None = None,
) -> Version:
    """Commit what is pending. Raises :class:`ConflictError` if the line has moved on.

    Long on purpose: it is what every save runs, and a call less is a cache miss less.
    """
    check_not_in_workflow()
    unsure = handle.sealed and not handle.core.vault.allows(handle.sealed)
    if unsure or handle.deleted or handle.recovered is not None or handle.validate is not None:
        _check(handle)
    document, ops, touched, splices, blocks = _gather(handle)
    noted = _with_migration(handle, ops, metadata) if migrations.may_be_due() else metadata
    packed, shown = (None, NO_METADATA) if noted is None else _encode_metadata(handle, noted)
    now_us, ttl, head = handle.runtime.now_us(), None, handle.head
    if handle.ttl_us is not None or (head is not None and head.version.ttl_us is not None):
        ttl = carried(handle.line, head.version if head else None, handle.ttl_us, now_us)
    header = records.encode_head((kind, now_us, label, packed, key, source, step, ttl))
    change = records.encode_change(ops, splices, merged, handle.limits)
    body = records.write_record(header, change, blocks)
    head = head or _conceive(handle)
    seq, digest, sealed = head.seq + 1, link_record(head.hash, body), (*handle.sealed.values(),)
    chunks: tuple[packs.Chunk, ...] = ()
    if len(body) > packs.FOLD_BYTES and blocks:
        chunks, blocks = tuple(packs.detach(splices, blocks)), []
        body = records.write_record(header, change, blocks)
    row = NewRow(
        seq, DELTA, head.hash, digest, body, key_hash, chunks, sealed, guard, None, ttl or 0, now_us, packed
    )
    # All that can be is made ready now: code is slow to run after the disk has been waited for.
    parent, origin = head.version.id if head.version is not None else None, source[3] if source else None
    step_key, step_slot = (None, None) if step is None else records.step_key(step[0])
    version = Version(
        seq=seq, id=version_id(seq, digest), parent=parent, at_us=now_us, label=label, metadata=shown,
        key=key, kind=_KIND_NAMES[kind], source=origin, ttl_us=ttl, step=step_key, slot=step_slot,
    )  # fmt: skip
    logs = head.logs.copy() if touched else head.logs
    for log in touched:
        logs[log.name] = log._recorded_state
    edits, contained = change if ops else None, {**head.merged, **merged} if merged else head.merged
    single = packs.Single(seq, digest, key_hash, packed, (header, change, blocks), len(body))
    head = moved(head, seq, digest, version, edits, logs, splices, blocks, contained, len(body), single)
    due = head.due(handle.core.folder.records_max, packs.FOLD_BYTES)
    line = _create(handle, row) if handle.unborn is not None else _append(handle, row)
    slot = handle.slot
    if slot.prints:
        _note_items(handle, line, splices)
    if slot.keys is not None:
        handle.core.head_cache.note_key(slot, seq, key_hash)
    if due:
        head = _folded(handle, line, head)
    _move(handle, head, document, touched, folded=due)
    slot.head = handle.head
    return version


def _with_migration(
    handle: Handle, ops: list[Op], metadata: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The metadata of a version, which say so if it brings the document into a newer form."""
    head, document = handle.head, handle.document
    if not ops or head is None or document is None:
        return metadata
    note = migrations.note(ops, document.raw, head.build_document)
    return metadata if note is None else {migrations.MIGRATED: note, **(metadata or {})}


def write_alone(handle: Handle, verb: str, **options: Any) -> Version:
    """The same; whoever else uses the handle meanwhile, a signal handler for one, gets an error."""
    if handle.writing:
        handle.require_idle(verb)
    try:
        handle.writing = True
        return write(handle, **options)
    finally:
        handle.writing = False


def _check_alone(handle: Handle, document: Document | None, touched: list[Log]) -> None:
    """In a blocking store: raises :class:`InvalidStateError` if another thread of execution has changed the
    handle since the commit began. What it shows isn't what is stored, then: it is read again."""
    edited = document is not None and document.cut != UNTOUCHED
    for log in touched:
        edited |= log._cut != UNTOUCHED
    if edited:
        handle.moving = "standing"
        raise InvalidStateError(
            f"the commit is stored, but the handle was changed while it was under way: {SHARED}. "
            "What was changed then is gone"
        )


def _move(
    handle: Handle, head: CachedHead, document: Document | None, touched: list[Log], *, folded: bool
) -> None:
    """Stand on the version just written, without reading anything."""
    if handle.writing:
        _check_alone(handle, document, touched)
    handle.moving = "standing"
    handle.head = head
    handle.attempted.clear()
    if document is not None:
        document.mark_clean()
        # Not at each save: what became long shows soon enough.
        if folded and head.long:
            handle.head = head.compacted(document.raw)
    for log in touched:
        log._settle(log._recorded_state)
    handle.logs_touched = False
    if handle.sealed:
        handle.sealed = {}
    handle.moving = ""


def _folded(handle: Handle, line: Line, head: CachedHead) -> CachedHead:
    """Fold, while the handle still stands on the version before: if this is cut short, trying again finds
    the version that was written."""
    return handle.core.maintain(line, head)


def _encode_metadata(handle: Handle, metadata: Mapping[str, Any]) -> tuple[bytes, Mapping[str, Any]]:
    """Metadata as they are stored, and as the version shows them."""
    limits, screen = handle.limits, handle.core.screen
    if screen is not None:
        metadata = screen(metadata, "metadata")
    if type(metadata) is dict and is_plain(metadata, limits):
        packed = encode(metadata, limits)
        flat = LEAVES.issuperset(map(type, metadata.values()))
        return packed, MappingProxyType(metadata.copy() if flat else decode_plain(packed))
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        raise InvalidValueError("metadata must be a dictionary with text keys", path="metadata")
    vault, pending = handle.core.vault, handle.sealed
    lowered = lower(metadata, limits=limits, seal=handle.seal, root="metadata")
    packed = encode(lowered, limits)
    return packed, read_metadata(packed, lambda tagged: vault.open(tagged, pending))


def _new_line(handle: Handle) -> Line:
    uid = handle.runtime.random_bytes(16)
    core = handle.core
    return Line(id=0, uid=uid, space=core.space, name=handle.name, root=0, start_hash=genesis(uid))


def _create(handle: Handle, row: NewRow) -> Line:
    assert handle.unborn is not None
    line, source, tags = handle.unborn
    core = handle.core
    handle.attempted.append(row.hash)
    try:
        born = core.backend.create(line, row, source, tags)
    except KeyErased as erased:
        return _create(handle, _without_erased(handle, row, erased))
    except NameTaken:
        if bury(core, handle.name):
            return _create(handle, row)
        found = core.backend.find(core.space, handle.name)
        if found is not None and found.line.uid == line.uid:
            landed = find_landed(handle, found.line, row.seq)
            if landed is not None:
                raise landed from None
        actual = (core.head(found)).version if found else None
        raise ConflictError(
            f"somebody else created the thread {handle.name!r} first; rebase() onto it or discard()",
            expected=None,
            actual=actual,
        ) from None
    handle.line, handle.slot, handle.unborn = born, core.head_cache.slot(born.uid), None
    return born


def _append(handle: Handle, row: NewRow) -> Line:
    """Append, and recognise an earlier try that landed without telling us.

    That may have been an I/O error, or an interrupt between the store's answer and our noting it.
    """
    line = handle.line
    assert line is not None
    handle.attempted.append(row.hash)
    try:
        handle.core.backend.append(line.id, row)
    except StaleWrite as stale:
        landed = find_landed(handle, line, row.seq) if len(handle.attempted) > 1 else None
        raise landed or _conflict(handle, line, stale) from None
    except KeyErased as erased:
        return _append(handle, _without_erased(handle, row, erased))
    except VersionGone:
        raise pruned(row.source[1] if row.source else row.seq, handle.name) from None
    return line


def _conflict(handle: Handle, line: Line, stale: StaleWrite) -> Exception:
    if stale.sealed:
        handle.deleted = True
        return ThreadDeletedError(f"the thread {handle.name!r} was deleted; deletion is final")
    expected = handle.head.version if handle.head else None
    actual = (handle.core.reader.version(line, stale.newest.seq))[0] if stale.newest else None
    return ConflictError(
        f"{handle.name!r} moved on from {expected} to {actual}; rebase(), or discard() and refresh()",
        expected=expected,
        actual=actual,
    )


def write_rewind(
    handle: Handle,
    line: Line,
    head: CachedHead,
    owner: Line,
    target: Version,
    loaded: Loaded,
    metadata: Mapping[str, Any] | None = None,
) -> Version:
    """Append the version that goes back to ``target`` and stand on it."""
    if handle.recovered is not None:
        head = over_the_damage(handle, line, head)
    snapshot = loaded.snapshot
    source = (owner.uid, target.seq, snapshot.segment, target.id)
    counts = {name: log.count for name, log in head.logs.items()}
    now_us = handle.runtime.now_us()
    ttl = carried(line, head.version, handle.ttl_us, now_us)
    packed = _encode_metadata(handle, metadata)[0] if metadata else None
    header = Head(records.REWIND, now_us, metadata=packed, source=source, ttl=ttl)
    change = records.write_change(records.Change(counts=counts))
    body = records.write_record(records.write_head(header), change, [])
    digest = link_record(head.hash, body)
    seq = head.seq + 1
    at = owner.id, target.seq
    row = NewRow(
        seq, REWIND, head.hash, digest, body, source=at, ttl_us=ttl or 0, at_us=now_us, metadata=packed
    )
    if handle.writing:
        handle.require_idle("rewind()")
    try:
        handle.writing = True
        document, _, touched, _, _ = _gather(handle)
        _append(handle, row)
        _check_alone(handle, document, touched)
    finally:
        handle.writing = False
    handle.core.head_cache.note_key(handle.slot, seq, None)
    snapshot.jump(seq, counts)
    version = make_version(line, seq, digest, head.hash if head.seq > line.parent_seq else None, header)
    costs, tail = loaded.costs, head.costs
    # The rows read for the target, the rewind itself, and the tail that still waits for its fold. No fold
    # takes rewinds: they count where something else waits, which they would keep from being read quickly.
    costs = Costs(
        tail.tail_rows + 1 if tail.tail_rows else 0,
        tail.tail_bytes,
        costs.rows + 1 + tail.tail_rows,
        costs.packs,
        costs.replay_bytes,
        costs.keyframe_bytes,
    )
    head = from_snapshot(snapshot, seq, digest, version, costs, {})
    if head.due(handle.core.folder.records_max, packs.FOLD_BYTES):
        head = _folded(handle, line, head)
    handle.stand(line, head)
    handle.recovered = None
    handle.slot.head = head
    return version
