"""What a store remembers of the heads it has seen, so that a new handle on a known head reads one row.

A head is only ever used after its hash has been found again in the store, and the hash covers the
line's whole past: a head can be missing, it can't be wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import Any

import msgspec

from everthread import process
from everthread.codec import records
from everthread.codec.records import Change, array, item_print, join_run
from everthread.codec.values import decode, encode_stored
from everthread.history import ops
from everthread.history.logs import EMPTY_LOG, LogState, Prints
from everthread.history.packs import Single
from everthread.history.snapshots import Snapshot
from everthread.versions import Version

#: (position of the first item, number of items, encoded block)
Block = tuple[int, int, bytes]
#: (encoded block, number of its items that come before the wanted ones)
BlockPart = tuple[bytes, int]

#: Log items kept per line, and lines kept per store.
_RECENT_BYTES = 192 * 1024
_LINES_MAX = 256
_BYTES_MAX = 64 * 1024 * 1024
#: After so many commits the document is encoded anew instead of keeping the changes.
_CHANGES_MAX = 128


class Recent(msgspec.Struct, frozen=True):
    """The newest items of one log: blocks that follow each other without a gap. The list is shared with later
    states, which only append to it; ``count`` says how much is ours."""

    blocks: list[Block]
    count: int
    bytes: int

    def added(self, block: Block) -> Recent:
        blocks, count = self.blocks, self.count
        if count and blocks[count - 1][0] + blocks[count - 1][1] != block[0]:
            return Recent([block], 1, len(block[2]))
        if len(blocks) != count:
            # Somebody else went on from the same head, or tried to.
            blocks = blocks[:count]
        if self.bytes > _RECENT_BYTES:
            blocks = blocks[count // 2 : count]
            total = sum(len(b) for _, _, b in blocks)
            while total > _RECENT_BYTES:
                total -= len(blocks.pop(0)[2])
            blocks.append(block)
            return Recent(blocks, len(blocks), total + len(block[2]))
        blocks.append(block)
        if blocks[count] is not block:
            # Another thread appended in between: the list is no longer ours to share.
            blocks = [*blocks[:count], block]
        return Recent(blocks, count + 1, self.bytes + len(block[2]))

    def between(self, start: int, stop: int) -> BlockPart | None:
        """One block that holds ``[start, stop)``, and how many before; ``None`` if not all are here."""
        blocks, end = self.blocks, self.count
        # The position alone comes before a block there: no two positions are the same.
        first = bisect_left(blocks, (start + 1,), 0, end) - 1
        if first < 0:
            return None
        last, n, _ = blocks[end - 1]
        if last >= stop:
            end = bisect_left(blocks, (stop,), first + 1, end)
            last, n, _ = blocks[end - 1]
        if last + n < stop:
            return None
        at = blocks[first][0]
        return join_run(blocks[first:end], last + n - at), start - at

    def covering(self, start: int, stop: int) -> list[Block]:
        """The blocks that hold positions of ``[start, stop)``, as far as they are here, in order."""
        found: list[Block] = []
        for index in range(self.count - 1, -1, -1):
            block = self.blocks[index]
            if block[0] + block[1] <= start:
                break
            if block[0] < stop:
                found.append(block)
        found.reverse()
        return found


NO_RECENT = Recent([], 0, 0)


def recent_prints(recent: Recent, start: int, stop: int) -> dict[int, bytes]:
    """Fingerprints of the items of ``[start, stop)`` that are at hand, by the first position of a block."""
    return {at: b"".join(map(item_print, decode(block))) for at, _, block in recent.covering(start, stop)}


class Costs(msgspec.Struct, frozen=True):
    """What reading this head from the store would take; decides when to fold and when to write a keyframe."""

    tail_rows: int = 0
    tail_bytes: int = 0
    rows: int = 0
    packs: int = 0
    replay_bytes: int = 0
    keyframe_bytes: int = 0


class CachedHead(msgspec.Struct, frozen=True):
    """A head: its document as bytes plus the changes since, its logs, and the newest items.

    ``changes`` and ``recent`` are shared with later heads, which only append; the counts say what is ours.
    """

    seq: int
    hash: bytes
    version: Version
    document: bytes
    changes: list[bytes]
    changes_count: int
    changes_bytes: int
    logs: dict[str, LogState]
    segment: int
    merged: dict[bytes, list[int]]
    recent: dict[str, Recent]
    #: What reading took when it was last reckoned, and the rows and bytes that were added since.
    reckoned: Costs
    rows_since: int = 0
    bytes_since: int = 0
    #: The line's unfolded records, where all of them were written here, so that folding needn't read them:
    #: as many as ``costs.tail_rows`` says. Shared with later heads, as above.
    singles: list[Single] | None = None

    @property
    def unfolded(self) -> list[Single] | None:
        """The line's unfolded records, if they are known."""
        singles, count = self.singles, self.reckoned.tail_rows + self.rows_since
        return None if singles is None or len(singles) < count else singles[:count]

    @property
    def costs(self) -> Costs:
        """What reading this head from the store would take."""
        old, rows = self.reckoned, self.rows_since
        if not rows:
            return old
        return Costs(
            old.tail_rows + rows,
            old.tail_bytes + self.bytes_since,
            old.rows + rows,
            old.packs,
            old.replay_bytes,
            old.keyframe_bytes,
        )

    def due(self, rows_max: int, bytes_max: int) -> bool:
        """Whether the folder should have a look."""
        old, rows = self.reckoned, self.rows_since
        return (
            old.tail_rows + rows > rows_max
            or old.tail_bytes + self.bytes_since >= bytes_max
            or old.rows + rows > 256
        )

    def build_document(self) -> Any:
        """The document as a tree of its own."""
        document = decode(self.document)
        if self.changes_count:
            # They were looked through when they were taken in: the ops come first. Mostly there is one.
            if self.changes_count == 1:
                return ops.apply(document, decode(self.changes[0])[0])
            for change in decode(array(self.changes[: self.changes_count])):
                document = ops.apply(document, change[0])
        return document

    def size(self) -> int:
        return len(self.document) + self.changes_bytes + sum(r.bytes for r in self.recent.values())

    def compacted(self, document: Any) -> CachedHead:
        """The same head with its document, which the caller has at hand, encoded in one piece."""
        encoded = encode_stored(document)
        return msgspec.structs.replace(self, document=encoded, changes=[], changes_count=0, changes_bytes=0)

    @property
    def long(self) -> bool:
        """Whether encoding the document anew is due: it costs no more than the changes did."""
        return self.changes_count >= _CHANGES_MAX or self.changes_bytes > 2 * len(self.document) + 65536


def from_snapshot(
    snapshot: Snapshot,
    seq: int,
    digest: bytes,
    version: Version,
    costs: Costs,
    recent: dict[str, Recent],
) -> CachedHead:
    """A head that was just read, to be remembered."""
    return CachedHead(
        seq,
        digest,
        version,
        encode_stored(snapshot.document),
        [],
        0,
        0,
        snapshot.logs,
        snapshot.segment,
        snapshot.merged,
        recent,
        costs,
    )


def advanced(
    head: CachedHead,
    seq: int,
    digest: bytes,
    version: Version,
    change: Change,
    encoded: bytes,
    blocks: list[bytes],
    size: int,
) -> CachedHead:
    """The head of the version that ``change`` makes of the one in ``head``."""
    logs = head.logs
    if change.logs:
        logs = dict(logs)
        for log, at, remove, insert, _, _ in change.logs:
            logs[log] = logs.get(log, EMPTY_LOG).splice(at, remove, insert)
    merged = {**head.merged, **change.merged} if change.merged else head.merged
    ops = encoded if change.ops else None
    return moved(head, seq, digest, version, ops, logs, change.logs, blocks, merged, size)


def moved(
    head: CachedHead,
    seq: int,
    digest: bytes,
    version: Version,
    ops: bytes | None,
    logs: dict[str, LogState],
    splices: list[list[Any]],
    blocks: list[bytes],
    merged: dict[bytes, list[int]],
    size: int,
    single: Single | None = None,
) -> CachedHead:
    """The head of the version after ``head``: ``ops`` is its encoded change if that has any, ``logs`` all
    logs as they are now, ``splices`` and ``blocks`` what was done to them, ``size`` the bytes of its row,
    ``single`` the record if folding may take it from here.

    A version that never comes to be leaves nothing behind but longer lists, of which nobody counts the ends.
    """
    recent = head.recent
    if blocks:
        recent = recent.copy()
        waiting = iter(blocks)
        for splice in splices:
            if splice[3] and (block := next(waiting, None)) is not None:
                log = splice[0]
                recent[log] = recent.get(log, NO_RECENT).added((splice[4], splice[3], block))
    changes, count, changes_bytes = head.changes, head.changes_count, head.changes_bytes
    if ops is not None:
        if len(changes) != count:
            # Another handle went on from the same head: its changes are not ours.
            changes = changes[:count]
        changes.append(ops)
        if changes[count] is not ops:
            # Another thread appended in between: the list is no longer ours to share.
            changes = [*changes[:count], ops]
        count += 1
        changes_bytes += len(ops)
    singles = head.singles if single is not None else None
    if singles is not None and single is not None:
        known = head.reckoned.tail_rows + head.rows_since
        if len(singles) != known:
            singles = singles[:known]
        singles.append(single)
        if singles[known] is not single:
            singles = [*singles[:known], single]
    return CachedHead(
        seq,
        digest,
        version,
        head.document,
        changes,
        count,
        changes_bytes,
        logs,
        head.segment,
        merged,
        recent,
        head.reckoned,
        head.rows_since + 1,
        head.bytes_since + size,
        singles,
    )


def inserted(splices: list[list[Any]], blocks: list[bytes]) -> list[tuple[str, Block]]:
    """The log items of a record, by log, in order; none of a detached one, whose items are elsewhere."""
    inserts = [splice for splice in splices if splice[3]]
    return [
        (log, (position, count, block))
        for (log, _, _, count, position, _), block in zip(inserts, blocks, strict=False)
    ]


class TailKeys(msgspec.Struct):
    """Key hashes of a line's unfolded versions up to ``last``, with the seqs that carry them."""

    last: int
    seqs: dict[bytes, list[int]]


class Slot:
    """What is remembered of one line: its head, and what that vouches for, as far as that was asked for.

    ``prints`` are the fingerprints of the line's own items by log, from its first own position on;
    ``keys`` those of its unfolded versions, ``inherited`` those that were unfolded in its ancestors.
    """

    __slots__ = ("head", "inherited", "keys", "prints")

    def __init__(self) -> None:
        self.head: CachedHead | None = None
        self.prints: dict[str, Prints] = {}
        self.keys: TailKeys | None = None
        self.inherited: set[bytes] | None = None

    def forget(self) -> None:
        # Fingerprints and keys go with the head: only its hash vouches for them.
        self.head, self.prints, self.keys, self.inherited = None, {}, None, None


#: For a handle that stands on no line yet.
NO_SLOT = Slot()


class HeadCache:
    """The slots of one store, least recently used first out. Safe between threads."""

    def __init__(self) -> None:
        self._lock = process.ProcessLock()
        self._slots: OrderedDict[bytes, Slot] = OrderedDict()
        #: The one asked for last, with its line.
        self._last: tuple[bytes, Slot] = b"", NO_SLOT
        self._asked = 0

    def slot(self, uid: bytes) -> Slot:
        """The slot of a line. Who holds on to it may fill it, also after it has fallen out here."""
        known, slot = self._last
        if known == uid:
            return slot
        with self._lock:
            found = self._slots.get(uid)
            if found is None:
                found = self._slots[uid] = Slot()
            slot = found
            self._last = uid, slot
            self._slots.move_to_end(uid)
            self._asked += 1
            if len(self._slots) > _LINES_MAX:
                self._slots.popitem(last=False)
            if self._asked % 256 == 0:
                self._shrink()
        return slot

    def _shrink(self) -> None:
        total = sum(slot.head.size() for slot in self._slots.values() if slot.head is not None)
        while total > _BYTES_MAX and len(self._slots) > 1:
            _, slot = self._slots.popitem(last=False)
            total -= slot.head.size() if slot.head is not None else 0

    # Noting takes no lock: of several writers of a line each notes only what follows upon what is noted, and
    # no two write the same version or positions.

    def note_items(self, slot: Slot, log: str, offset: int, prints: bytes) -> None:
        """Items ``offset`` … of the line were committed; only noted where the ones before are known."""
        known = slot.prints.get(log)
        if known is not None and len(known.row) == 4 * offset:
            # Put where it belongs, not added: another thread may be noting the same.
            known.row[4 * offset : 4 * offset + len(prints)] = prints

    def note_key(self, slot: Slot, seq: int, key: bytes | None) -> None:
        """Version ``seq`` was committed; only noted where all before it are known."""
        known = slot.keys
        if known is not None and known.last == seq - 1:
            if key is not None:
                known.seqs.setdefault(key, []).append(seq)
            known.last = seq

    def clear(self) -> None:
        with self._lock:
            for slot in self._slots.values():
                slot.forget()
            self._slots.clear()
            self._last = b"", NO_SLOT


# ── blocks of log items ──


#: Blocks up to this size are put together before they are decoded.
_SMALL_BYTES = 16 * 1024


def covers(blocks: list[Block], start: int, stop: int) -> bool:
    """Whether these blocks, in order, hold every position of ``[start, stop)``."""
    for position, count, _ in blocks:
        if position > start:
            return False
        start = max(start, position + count)
        if start >= stop:
            return True
    return start >= stop


def gap(blocks: list[Block], start: int, stop: int) -> tuple[int, int]:
    """The first positions of ``[start, stop)`` that none of these blocks holds."""
    for position, count, _ in blocks:
        if position > start:
            return start, min(position, stop)
        start = max(start, position + count)
    return start, stop


def joined(blocks: list[tuple[Block, slice]]) -> list[tuple[Block, slice]]:
    """The same items in fewer blocks: small ones that are wanted whole become one, which decodes faster."""
    joined: list[tuple[Block, slice]] = []
    run: list[tuple[int, bytes]] = []
    for (position, count, block), part in blocks:
        if len(block) <= _SMALL_BYTES and part.start == 0 and part.stop >= count:
            run.append((count, block))
            continue
        if run:
            joined.append(_one(run))
            run = []
        joined.append(((position, count, block), part))
    if run:
        joined.append(_one(run))
    return joined


def _one(run: list[tuple[int, bytes]]) -> tuple[Block, slice]:
    total = sum(count for count, _ in run)
    return (0, total, records.join(run)), slice(0, total)


def cut(blocks: list[Block], start: int, stop: int) -> list[tuple[Block, slice]]:
    """Which part of each block to take so that every position of ``[start, stop)`` comes once."""
    parts = []
    for block in blocks:
        position, count, _ = block
        end = min(stop, position + count)
        if end > start:
            parts.append((block, slice(start - position, end - position)))
            start = end
    return parts
