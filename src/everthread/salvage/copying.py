"""Writing lines into the new store: as they were, or made anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.codec.values import decode, encode_stored
from everthread.errors import StateCorruptedError
from everthread.history import packs
from everthread.history.chain import HASH_KEPT, branch
from everthread.history.retention import read_tombstone
from everthread.limits import DEFAULT_LIMITS
from everthread.salvage.pieces import Held
from everthread.stores.contract import (
    DELTA,
    NO_TAGS,
    REWIND,
    Backend,
    Fold,
    Line,
    NewEvent,
    NewRow,
    Prune,
    Row,
    SealedRow,
    split_keys,
)
from everthread.threads.runtime import Runtime
from everthread.threads.sync.core import Core, head_key
from everthread.threads.sync.fold import tag_value
from everthread.threads.tombstones import pruned_hashes

_BATCH = 64
#: So many personal values are brought at once, or fewer that take about so many bytes.
_SEALED_MAX = 256
_SEALED_BYTES = 1024 * 1024
#: A stream that no namespace has: personal values come only along with something.
_CARRIER = ("\0salvage", "personal values")
_CARRIED = "everthread.salvaged"
_NOTHING = records.frame(encode_stored([None, 0]))
#: What stands in the metadata of a version that a session made when it began.
_RUN = b"run"


class Target:
    """The new store."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.runtime = Runtime()
        self._cores: dict[str, Core] = {}
        #: The lines that are there and their names, and those that are to be deleted in the end.
        self.taken: set[tuple[str, str]] = set()
        self._doomed: dict[tuple[str, str], Line] = {}

    def core(self, space: str) -> Core:
        if space not in self._cores:
            self._cores[space] = Core(self.backend, space, DEFAULT_LIMITS, "memory:", self.runtime)
        return self._cores[space]

    def bring_sealed(self, sealed: Iterable[SealedRow], erased: set[bytes]) -> int:
        """Bring personal values, but those of keys that were erased; how many there are.

        All of them, whatever refers to them, and before that: which of them a version needs is known only to
        who reads all of its items, and one version may need more than there is memory.
        """
        count = size = 0
        batch: dict[bytes, SealedRow] = {}
        for row in sealed:
            if erased.isdisjoint(split_keys(row[1])):
                batch[row[0]] = row
                size += len(row[2])
            if len(batch) == _SEALED_MAX or size >= _SEALED_BYTES:
                count += self._carry(batch)
                batch, size = {}, 0
        count += self._carry(batch)
        self.backend.drop_stream(*_CARRIER)
        return count

    def _carry(self, batch: Mapping[bytes, SealedRow]) -> int:
        """Bring those that aren't there: a damaged store may have one twice."""
        there = self.backend.sealed(batch)
        new = [row for value_id, row in batch.items() if row[2] and value_id not in there]
        if new:
            self.backend.emit(*_CARRIER, [NewEvent(0, _CARRIED, None, _NOTHING)], new)
        return len(new)

    def make_way(self, space: str, name: str) -> None:
        """Before a line of this name is made: one that was deleted under the same name is done with."""
        doomed = self._doomed.pop((space, name), None)
        if doomed is not None:
            self.backend.delete(doomed)
            self.taken.discard((space, name))

    def doom(self, line: Line) -> None:
        """The line was deleted in the damaged store; its forks still need it."""
        self._doomed[line.space, line.name] = line

    def finish(self) -> None:
        for line in self._doomed.values():
            self.backend.delete(line)
        self._doomed.clear()

    def free_name(self, space: str, name: str) -> str:
        """A name like this one that nobody has."""
        number = 1
        while True:
            suffix = " (recovered)" if number == 1 else f" (recovered {number})"
            room = 1024 - len(suffix)
            found = name.encode()[:room].decode(errors="ignore") + suffix
            if (space, found) not in self.taken:
                return found
            number += 1


class Writer:
    """One line of the new store, growing. It exists from its first version on, a fork at once."""

    def __init__(self, target: Target, line: Line, tags: Mapping[str, bytes] = NO_TAGS) -> None:
        self._target = target
        self._core = target.core(line.space)
        self._tags = tags
        self._batch: list[NewRow] = []
        self.line = line
        self.hash = line.start_hash
        self.seq = line.parent_seq
        self.born = False
        #: Whether something tells that a session ran here, or might have told.
        self.ran = False
        if line.parent:
            self._create(None)

    def _create(self, row: NewRow | None) -> None:
        line = self.line
        self._target.make_way(line.space, line.name)
        self.line = self._target.backend.create(line, row, 0, self._tags)
        self._target.taken.add((line.space, line.name))
        self.born = True

    def add(self, digest: bytes, head: bytes, change: bytes, blocks: list[bytes]) -> None:
        """Append one version; ``digest`` is its hash."""
        told = records.read_head(head)
        kind = REWIND if told.kind == records.REWIND else DELTA
        self.ran |= tells_of_a_run(told.metadata)
        body = records.write_record(head, change, blocks)
        chunks: tuple[packs.Chunk, ...] = ()
        if len(body) > packs.FOLD_BYTES and blocks:
            chunks = tuple(packs.detach(records.read_change(change).logs, blocks))
            body = records.write_record(head, change, [])
        row = NewRow(self.seq + 1, kind, self.hash, digest, body, head_key(told), chunks)
        self.seq, self.hash = row.seq, digest
        if not self.born:
            self._create(row)
            return
        self._batch.append(row)
        if len(self._batch) >= _BATCH:
            self.flush()

    def add_tomb(self, row: Row, digest: bytes, held: Held) -> None:
        """Append a row for versions that were pruned. The contract prunes what is there: so something stands
        in for it first, a row for each version. The last of them brings ``held``, what is left of the items.
        """
        self.flush()
        if self.born:
            # What is single below a pruned row would be lost from sight.
            self._core.folder.fold_tail(self.line, newest=True)
        self.ran = True
        backend = self._target.backend
        new = msgspec.structs.replace(row, first=self.seq + 1, hash=digest)
        rows = list(self._stand_ins(new, held))
        runs = [rows[at : at + packs.FOLD_RECORDS] for at in range(0, len(rows), packs.FOLD_RECORDS)]
        for run in runs:
            left = run
            if not self.born:
                self._create(run[0])
                left = run[1:]
            for refused in backend.append_all([(self.line.id, stand_in) for stand_in in left]):
                if refused is not None:
                    raise refused
        for run in runs:
            pack = packs.fold(run[0].seq, [each.body for each in run], [each.hash for each in run])
            keys = tuple((each.key, each.seq) for each in run if each.key is not None)
            if not backend.fold(self.line, Fold(pack, run[-1].hash, None, keys)):
                raise StateCorruptedError(f"{self.line.name!r} can't be folded in the new store")
        old = backend.scan(self.line.id, row.seq, len(runs))
        if not backend.prune(self.line, Prune(tuple(reversed(old)), (new,), tuple(held.dropped))):
            raise StateCorruptedError(f"{self.line.name!r} can't be pruned in the new store")
        self.seq, self.hash = row.seq, digest

    def _stand_ins(self, tomb: Row, held: Held) -> Iterator[NewRow]:
        """A row for each version that a row for pruned ones is about, with its hash and its key."""
        head = records.write_head(Head(records.COMMIT, 0))
        empty = records.write_record(head, packs.bringing(()), [])
        bringing = records.write_record(head, packs.bringing(held.chunks), [])
        heads = read_tombstone(tomb.body).heads
        before = self.hash
        for index, made in enumerate(pruned_hashes(self.line, tomb, before)):
            told = heads.get(index)
            key = None if told is None else head_key(records.read_head(told))
            seq = tomb.first + index
            if seq == tomb.seq:
                yield NewRow(seq, DELTA, before, made, bringing, key, tuple(held.chunks))
            else:
                yield NewRow(seq, DELTA, before, made, empty, key)
            before = made

    def flush(self) -> None:
        """Bring what was added into the store, and fold it."""
        batch, self._batch = self._batch, []
        if batch:
            for refused in self._target.backend.append_all([(self.line.id, row) for row in batch]):
                if refused is not None:
                    raise refused
            found = self._target.backend.find(self.line.space, self.line.name)
            if found is None:
                raise StateCorruptedError(f"{self.line.name!r} isn't found in the new store")
            core = self._core
            core.memos.slot(self.line.uid).memo = core.maintain(self.line, core.head(found))

    def used(self) -> dict[str, int]:
        """How many positions each log has used."""
        self.flush()
        if not self.born or self.seq <= self.line.parent_seq:
            return dict(self.line.counts)
        logs = self._core.reader.load(self.line, self.seq).snapshot.logs
        return {log: state.count for log, state in logs.items()}

    def document(self, seq: int | None = None) -> Any:
        """The document at a version, by default the newest."""
        self.flush()
        if not self.born:
            return {}
        return self._core.reader.load(self.line, self.seq if seq is None else seq).snapshot.document


def forked(target: Target, parent: Line, seq: int, uid: bytes, name: str) -> tuple[Line, Mapping[str, bytes]]:
    """A line of the new store that is about to be forked from a version there, and its tags."""
    reader = target.core(parent.space).reader
    owner = reader.owner(parent, seq)
    version, digest = reader.version(owner, seq)
    snapshot = reader.load(owner, seq).snapshot
    row = reader.row(owner, seq)
    metadata = reader.head(row, seq).metadata
    tags = {} if metadata is None else {key: tag_value(value) for key, value in decode(metadata).items()}
    line = Line(
        id=0,
        uid=uid,
        space=parent.space,
        name=name,
        root=owner.root,
        parent=owner.id,
        parent_seq=version.seq,
        parent_segment=snapshot.segment,
        parent_hash=digest[:HASH_KEPT],
        start_hash=branch(digest[:HASH_KEPT], uid),
        counts={log: state.count for log, state in snapshot.logs.items()},
    )
    return line, tags


def tells_of_a_run(metadata: bytes | None) -> bool:
    """Whether the metadata of a version may be what a session writes when it begins."""
    return metadata is not None and _RUN in metadata
