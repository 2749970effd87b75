"""One thread on its way in: appends its versions, with the personal values that they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from everthread.codec import records
from everthread.codec.archive import Parts, PrunedEntry, VersionsEntry
from everthread.codec.records import Head
from everthread.codec.seal import SealedRef, references
from everthread.errors import (
    ConflictError,
    StateCorruptedError,
    ThreadDeletedError,
    ThreadExistsError,
    VersionPrunedError,
)
from everthread.history import packs
from everthread.history.chain import link, record_digest, verify_chain
from everthread.history.metadata import encoded_index_values
from everthread.history.retention import read_tombstone
from everthread.stores.contract import (
    DELTA,
    PACK,
    PRUNED,
    REWIND,
    SEAL_SEQ,
    Backend,
    Fold,
    KeyErased,
    Line,
    NameTaken,
    NewRow,
    Prune,
    Row,
    SealedRow,
    StaleWrite,
    split_keys,
)
from everthread.threads.sync.core import Core, head_key
from everthread.transfer import thread_reader
from everthread.transfer.exporter import REMEMBERED, is_gone

_BATCH_ROWS = 64
_BATCH_BYTES = 1024 * 1024
#: What stands in for pruned versions until they are pruned here as well. No version is from 1970.
_STAND_IN = records.write_head(Head(records.COMMIT, 0))
DELETED_HERE = "it was deleted here, and deletion is final"
DIVERGED = "it was changed both here and there since they were the same"


class ThreadWriter:
    """Appends versions to a line, the oldest first, and skips those that are there already.

    ``line`` is the line, to be made with its first version, a fork at once; ``found`` is it, if it is there.
    With ``dry`` nothing is written; what stands in the way is found all the same.
    """

    def __init__(self, core: Core, line: Line, found: Line | None, *, hidden: bool, dry: bool) -> None:
        self._core = core
        self._backend = core.backend
        self._dry = dry
        self._born = found is not None
        self._batch: list[NewRow] = []
        self._batch_bytes = 0
        #: Up to where the archive has been read, and its hash there.
        self._seq, self._hash = line.parent_seq, line.start_hash
        #: What the line ends with in this store.
        self._there_seq, self._there_hash = line.parent_seq, line.start_hash
        #: Whether the newest of what was added is pruned.
        self._ends_pruned = False
        self.line = line
        self.hidden = hidden
        self.fresh = found is None
        self.made = 0
        #: Why the line can't be brought here, if it can't.
        self.diverged: str | None = None
        #: Whether that is so because something was deleted here: no conflict, nothing could be done about it.
        self.final = line.deleted

    def begin(self) -> None:
        """Look at what is there, or make a fork."""
        line = self.line
        if self._born:
            rows = self._backend.scan(line.id, SEAL_SEQ - 1, 1)
            if rows:
                self._there_seq, self._there_hash = rows[0].seq, rows[0].hash
            elif line.deleted:
                # Purged: nothing can be added to it, nor need it be.
                self._there_seq = SEAL_SEQ
        elif line.parent:
            self._fork()

    def _fork(self) -> None:
        """Make a fork, if the version that it was forked from is here."""
        line, reader = self.line, self._core.reader
        # It has no number yet; the one after its parent's will do.
        parent = reader.parent(msgspec.structs.replace(line, id=line.parent + 1))
        owner = reader.owner(parent, line.parent_seq)
        if self._dry and not owner.deleted:
            rows = self._backend.scan(owner.id, SEAL_SEQ - 1, 1)
            if not rows or rows[0].seq < line.parent_seq:
                # It will have been brought when this is written.
                return
        try:
            head = reader.head(reader.row(owner, line.parent_seq), line.parent_seq)
            reader.version(owner, line.parent_seq)
        except (StateCorruptedError, ThreadDeletedError, VersionPrunedError) as error:
            self.diverged = f"the version it was forked from isn't here ({error})"
            self.final = owner.deleted
            return
        if not self._dry:
            self._create(None, encoded_index_values(head.metadata))

    def _create(self, row: NewRow | None, tags: dict[str, bytes]) -> None:
        try:
            self.line = self._backend.create(self.line, row, 0, tags)
        except NameTaken:
            raise ThreadExistsError(
                f"somebody made a thread named {self.line.name!r} while it was being brought here; "
                "run it again, with on_conflict='rename' or 'skip'"
            ) from None
        self._born = True

    def _expect(self, first: int, before: bytes) -> None:
        """Entries of a line follow each other. A second part of one says where it begins."""
        if first == self._seq + 1 and before == self._hash:
            return
        if first <= self._seq or self._seq > self.line.parent_seq or not self._born:
            raise StateCorruptedError(f"the archive's versions of {self.line.name!r} don't follow each other")
        self._seq, self._hash = first - 1, before
        if self._there_seq == self._seq and self._there_hash != before:
            self.diverged = DIVERGED

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    def add(self, entry: VersionsEntry, values: IncomingValues) -> None:
        """Go on with these versions, and the personal values that they refer to."""
        self._expect(entry.first, entry.before)
        sealed: tuple[SealedRow, ...] | None = None
        for index, parts in enumerate(entry.versions):
            before = self._hash
            self._hash = link(before, record_digest(records.write_record(*parts)))
            self._seq += 1
            if self.diverged is not None or not self._is_new():
                continue
            if sealed is None:
                # With the first of those that are new, for all of them.
                new = entry.versions[index:]
                sealed = values.needed([part for each in new for part in thread_reader.of_version(each)])
            row = self._row(parts, before, sealed)
            sealed = ()
            self._ends_pruned = False
            self.made += 1
            if self._dry:
                continue
            if not self._born:
                self._create(row, {})
                continue
            self._batch.append(row)
            self._batch_bytes += len(row.body) + sum(len(chunk.data) for chunk in row.chunks)
            if len(self._batch) >= _BATCH_ROWS or self._batch_bytes >= _BATCH_BYTES:
                self._flush()
        if self._hash != entry.hash:
            raise StateCorruptedError(
                f"versions {entry.first} to {self._seq} of {self.line.name!r} aren't what their hashes say"
            )

    def _is_new(self) -> bool:
        """Whether the version just read isn't here yet; what is must be the same."""
        if self._seq == self._there_seq and self._hash != self._there_hash:
            self.diverged = DIVERGED
        if self._seq > self._there_seq and self.line.deleted:
            self.diverged = DELETED_HERE
            return False
        return self._seq > self._there_seq

    def _row(self, parts: Parts, before: bytes, sealed: tuple[SealedRow, ...]) -> NewRow:
        head, encoded, blocks = parts
        told, change = records.read_head(head), records.read_change(encoded)
        body = records.write_record(head, encoded, blocks)
        chunks: tuple[packs.Chunk, ...] = ()
        if len(body) > packs.FOLD_BYTES and blocks:
            chunks = tuple(packs.detach(change.logs, blocks))
            body = records.write_record(head, encoded, [])
        kind = REWIND if told.kind == records.REWIND else DELTA
        return NewRow(self._seq, kind, before, self._hash, body, head_key(told), chunks, sealed)

    def _flush(self) -> None:
        """Bring what was added into the store, and fold it as if it had been committed here."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if not batch:
            return
        for refused in self._backend.append_all([(self.line.id, row) for row in batch]):
            if isinstance(refused, StaleWrite | KeyErased):
                what = "wrote to" if isinstance(refused, StaleWrite) else "erased a person in"
                raise ConflictError(
                    f"somebody {what} {self.line.name!r} while it was being brought here; run it again"
                )
            if refused is not None:
                raise refused
        found = self._backend.find(self.line.space, self.line.name)
        if found is None:
            raise ConflictError(f"somebody deleted {self.line.name!r} while it was being brought here")
        core = self._core
        core.head_cache.slot(self.line.uid).head = core.maintain(self.line, core.head(found))

    def finish(self) -> None:
        """Nothing more comes of this line."""
        self._flush()
        if not self._born and not self._dry and self.diverged is None:
            raise StateCorruptedError(f"the archive has no version of {self.line.name!r}")
        if self.diverged is None and self._ends_pruned and not is_gone(self.line.space):
            # Only a thread that was deleted ends like that. This one lives, and would have no newest version.
            self.diverged = "it was deleted there, and versions that aren't here were pruned"
        if self.diverged is None and self._seq < self._there_seq < SEAL_SEQ and self._born:
            # It went on here since: what both have must be the same.
            try:
                _, digest = self._core.reader.version(self.line, self._seq, gone=True)
                same = self._seq <= self.line.parent_seq or self._hash.startswith(digest)
            except VersionPrunedError:
                same = True
            if not same:
                self.diverged = DIVERGED

    # ── pruned versions ──────────────────────────────────────────────────────────────────────

    def add_pruned(self, entry: PrunedEntry, values: IncomingValues) -> None:
        """Go on with a row for versions that are gone."""
        self._expect(entry.first, entry.before)
        tomb = read_tombstone(entry.body)
        if len(tomb.digests) != entry.last - entry.first + 1:
            raise StateCorruptedError("a tombstone of the archive doesn't cover the versions that it says")
        if verify_chain(self._hash, tomb.digests) != entry.hash:
            raise StateCorruptedError(
                f"the pruned versions of {self.line.name!r} aren't what their hashes say"
            )
        hashes = _hashes(self._hash, tomb.digests)
        self._seq, self._hash = entry.last, entry.hash
        if self.diverged is not None:
            return
        if entry.first > self._there_seq and not self._backend.capabilities.prune:
            self.diverged = f"some of its past was pruned, and {self._backend.url} keeps all versions"
        elif entry.first <= self._there_seq < entry.last and not self._cut_short():
            self.diverged = (
                "versions that are the newest here were pruned there since, as after a copy that was cut "
                "short: an empty store takes all that is left"
            )
        elif self._is_new():
            self._ends_pruned = True
            self.made += len(tomb.digests)
            if not self._dry:
                self._append_pruned(entry, hashes, values.needed(thread_reader.of_pruned(entry)))
        elif not self._dry and self._there_seq == entry.last:
            self._finish_pruned(entry)

    def _cut_short(self) -> bool:
        """Whether this ended here the last time, half way through versions that are gone."""
        rows = self._backend.scan(self.line.id, self._there_seq, 1)
        return bool(rows) and _stands_in(rows[0])

    def _append_pruned(self, entry: PrunedEntry, hashes: list[bytes], sealed: tuple[SealedRow, ...]) -> None:
        """The contract prunes what is there: so something stands in for it first, a row for each version. The
        last of them brings what is left of the items."""
        self._flush()
        if self._born:
            # What is single below a pruned row would be lost from sight.
            self._core.folder.fold_tail(self.line, newest=True)
        heads = read_tombstone(entry.body).heads
        chunks = tuple(_chunk(*items) for items in entry.items)
        empty = records.write_record(_STAND_IN, packs.bringing(()), [])
        bringing = records.write_record(_STAND_IN, packs.bringing(chunks), [])
        rows: list[tuple[int, NewRow]] = []
        for index in range(max(self._there_seq + 1 - entry.first, 0), len(hashes) - 1):
            seq, head = entry.first + index, heads.get(index)
            key = None if head is None else head_key(records.read_head(head))
            last = seq == entry.last
            brought = (chunks, sealed) if last else ((), ())
            body = bringing if last else empty
            row = NewRow(seq, DELTA, hashes[index], hashes[index + 1], body, key, *brought)
            if not self._born:
                self._create(row, {})
            else:
                rows.append((self.line.id, row))
        for at in range(0, len(rows), _BATCH_ROWS):
            for refused in self._backend.append_all(rows[at : at + _BATCH_ROWS]):
                if refused is not None:
                    raise refused
        self._finish_pruned(entry)

    def _finish_pruned(self, entry: PrunedEntry) -> None:
        """Put the pruned row where stand-ins are; if there are none, it is there already."""
        heads = read_tombstone(entry.body).heads
        singles = [row for row in self._stand_ins(entry) if row.kind == DELTA]
        for at in range(0, len(singles), packs.FOLD_RECORDS):
            run = singles[at : at + packs.FOLD_RECORDS]
            told = ((heads.get(row.seq - entry.first), row.seq) for row in run)
            found = ((head_key(records.read_head(head)), seq) for head, seq in told if head is not None)
            keys = tuple((key, seq) for key, seq in found if key is not None)
            pack = packs.fold(run[0].seq, [row.body for row in run], [row.hash for row in run])
            self._backend.fold(self.line, Fold(pack, run[-1].hash, None, keys))
        old = self._stand_ins(entry)
        new = Row(entry.last, entry.first, PRUNED, entry.hash, entry.body, entry.net, entry.keyframe)
        dropped = tuple((log, at, at + count) for log, at, count, data in entry.items if not data)
        if old and not self._backend.prune(self.line, Prune(tuple(old), (new,), dropped)):
            raise ConflictError(f"{self.line.name!r} changed while it was being brought here; run it again")

    def _stand_ins(self, entry: PrunedEntry) -> list[Row]:
        """The rows that stand in for these versions, in order."""
        rows = self._backend.scan(self.line.id, entry.last, entry.last - entry.first + 1)
        return [row for row in reversed(rows) if row.first >= entry.first and _stands_in(row)]


def _hashes(before: bytes, digests: list[bytes]) -> list[bytes]:
    """The hash before some versions, and that of each of them."""
    hashes = [before]
    for digest in digests:
        hashes.append(link(hashes[-1], digest))
    return hashes


def _chunk(log: str, position: int, count: int, data: bytes) -> packs.Chunk:
    if not data:
        return packs.placeholder(log, position, count)
    raws = records.split(records.expand(data, "items of the archive"))
    if len(raws) != count:
        raise StateCorruptedError("items of the archive are fewer or more than it says")
    return packs.Chunk(log, position, count, b"".join(map(records.print_of, raws)), data)


def _stands_in(row: Row) -> bool:
    if row.kind == DELTA:
        return records.read_record(row.body)[0] == _STAND_IN
    return row.kind == PACK and set(packs.read_pack(row.body).heads) == {_STAND_IN}


# ── personal values of what comes in ────────────────────────────────────────────────────────────────────


class Origin(Protocol):
    """Where the values come from."""

    def again(self, wanted: Mapping[bytes, SealedRef]) -> list[SealedRow]:
        """Values that came before; those that are gone are simply missing."""


class IncomingValues:
    """A value comes once, before what refers to it first. If that is left out, or is here already, the value
    isn't written; what refers to it later gets it from where it came from. So none is kept for that."""

    def __init__(self, backend: Backend, origin: Origin | None) -> None:
        """A dry look has no ``origin``: it takes nothing."""
        self._backend = backend
        self._origin = origin
        self._came: dict[bytes, SealedRow] = {}
        #: Ids of values that were written with the line or stream that is being put in: it may refer to them
        #: again and again, and holds them as long as it lives.
        self._written: dict[bytes, None] = {}
        self.count = 0

    def add(self, rows: Iterable[SealedRow]) -> None:
        """These came, for the entry that is next."""
        if self._origin is not None:
            self._came.update((row[0], row) for row in rows)

    def next(self) -> None:
        """The entry that they came for is done with."""
        self._came.clear()

    def forget(self) -> None:
        """Another line or stream is next. This one may be deleted from now on, with its values."""
        self._written.clear()

    def needed(self, parts: Iterable[bytes]) -> tuple[SealedRow, ...]:
        """What has to be written along with these parts: all that they refer to and that isn't here, but for
        values of people who were erased here."""
        found = {} if self._origin is None else references(parts)
        found = {value_id: ref for value_id, ref in found.items() if value_id not in self._written}
        if not found or self._origin is None:
            return ()
        rows = {value_id: self._came[value_id] for value_id in found if value_id in self._came}
        dead = self._backend.erased({key for ref in found.values() for key in ref.key_ids})
        missing = {
            value_id: ref
            for value_id, ref in found.items()
            if value_id not in rows and dead.isdisjoint(ref.key_ids)
        }
        if missing:
            here = self._backend.sealed(missing)
            missing = {value_id: ref for value_id, ref in missing.items() if value_id not in here}
        if missing:
            rows.update((row[0], row) for row in self._origin.again(missing))
        sealed = tuple(row for row in rows.values() if dead.isdisjoint(split_keys(row[1])))
        for value_id, *_ in sealed:
            if len(self._written) >= REMEMBERED:
                self._written.pop(next(iter(self._written)))
            self._written[value_id] = None
        self.count += len(sealed)
        return sealed
