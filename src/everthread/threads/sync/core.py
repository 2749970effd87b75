# Generated from src/everthread/threads/aio/core.py by tools/twin.py: change that, then run: make twin
"""What all handles of one store share, and how a handle finds its head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from everthread.codec import records
from everthread.codec.records import Head
from everthread.errors import EverthreadError, StateCorruptedError
from everthread.history.chain import link, record_digest
from everthread.history.logs import LOST, Prints
from everthread.history.snapshots import Snapshot
from everthread.limits import Limits
from everthread.stores.contract import DELTA, Backend, Found, Line
from everthread.threads.head_cache import (
    CachedHead,
    Costs,
    HeadCache,
    Recent,
    Slot,
    TailKeys,
    advanced,
    from_snapshot,
)
from everthread.threads.lifetimes import left_s
from everthread.threads.runtime import Runtime
from everthread.threads.sealing import Vault
from everthread.threads.sync.fallback import follows, hash_before, log_damage
from everthread.threads.sync.fold import Folder
from everthread.threads.sync.reader import Reader, make_version
from everthread.values import Erased, Personal, Tagged

if TYPE_CHECKING:
    from everthread.history.merge import Conflict
    from everthread.threads.reports import Recovered
    from everthread.threads.sync.merge import Choice
    from everthread.threads.sync.update import UpdateQueue
    from everthread.threads.sync.workspace import Workspaces
    from everthread.versions import RunToken


class EffectCaller(Protocol):
    """Calls functions that have effects on the world, once each. Sessions have one."""

    def call_effect(
        self,
        key: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        verify: Callable[..., Any] | None,
        retry_on: Any,
        step: tuple[str, int],
    ) -> Any: ...


class RunError(NamedTuple):
    """What a run failed with: the name of the exception and what it said. ``id`` is the same if that is told
    again."""

    name: str
    message: str
    id: str


class StepRun(EffectCaller, Protocol):
    """A run that its caller named, as a step needs to know it."""

    #: The hash of a version that follows one at which the run held the thread: a step on it needn't ask.
    vouched: bytes
    #: The effects that it skipped, each with the execution that had made it.
    skipped: dict[str, str]

    @property
    def id(self) -> str: ...

    def enter(self, run: str | RunToken) -> bool:
        """Raise if this run may not write to the thread; whether it has begun with that. To be asked after
        the version was read that is to be built on: a newer run changes the lease first and writes then."""

    def require_not_superseded(self) -> None:
        """Raise if another run has taken over."""

    def close(self) -> None:
        """Let nothing more of the run be written but its end. Only for one that was joined to end it."""

    def end(self, reason: str, error: RunError | None = None, **about: Any) -> None:
        """Record why the run ends, and with what error, and give the thread back, for all of its
        processes. ``about`` are further fields of its record."""

    def describe(self, **about: Any) -> None:
        """Record more about the run, such as its agent."""

    def wrote(self) -> None: ...


class LedgerMerge(Protocol):
    """What has to be done beside a thread that another one is merged into."""

    def conflicts(self) -> tuple[Conflict, ...]: ...

    def write(self, choice: Choice) -> int: ...


class Core:
    """One open store, as its handles see it."""

    def __init__(self, backend: Backend, space: str, limits: Limits, keyring: Any, runtime: Runtime) -> None:
        self.backend = backend
        self.space = space
        self.limits = limits
        self.runtime = runtime
        self.head_cache = HeadCache()
        driver = backend
        self.vault = Vault(
            driver.sealed, driver.erasures, driver.cells, driver.identity, backend.url, keyring, space,
            limits, runtime.random_bytes, runtime.now_us,
        )  # fmt: skip
        self.reader = Reader(backend, self._open)
        #: Looks at values that are about to be stored, if the store was opened with detectors.
        self.screen: Callable[[Any, str], Any] | None = None
        self.folder = Folder(backend, self.reader)
        #: The last failure of work that nobody waits for (folding); kept for whoever asks.
        self.background_error: EverthreadError | None = None
        #: Why handles stand on older versions than the newest, as far as that was logged.
        self.warned: set[tuple[str, ...]] = set()
        #: Called then, for each once.
        self.warn: Callable[[str, Recovered], None] = log_damage
        #: Finds the run that a step is part of. Threads know nothing of runs: the store fills this in.
        #: With ``ends=True`` it gives one that may close the run, and end it.
        self.join_run: Callable[..., StepRun] | None = None
        #: Compares the ledgers of two lines, given by uid, for a merge of the second into the first.
        self.compare_ledgers: Callable[[Core, str, str], LedgerMerge | None] | None = None
        #: Gives what opens the working folders of threads. Threads know nothing of files: the store fills
        #: this in.
        self.open_workspaces: Callable[[], Workspaces] | None = None
        #: The runs that steps of this store are part of, by the thread's uid and their own name.
        self.joined_runs: dict[tuple[str, str], Any] = {}

    @cached_property
    def update_queue(self) -> UpdateQueue:
        """Made for the first one that updates a thread; most programs only look, or commit."""
        from everthread.threads.sync.update import UpdateQueue

        return UpdateQueue()

    def _open(self, tagged: Tagged) -> Personal | Erased:
        return self.vault.open(tagged, {})

    def find(self, name: str) -> Found | None:
        """The thread of this name, unless it has expired."""
        found = self.backend.find(self.space, name)
        return None if found is None or left_s(found, self.runtime.now_us()) <= 0 else found

    def head(self, found: Found) -> CachedHead:
        """The newest version of a line: remembered, brought up to date, or read."""
        line, newest = found.line, found.newest
        slot = self.head_cache.slot(line.uid)
        head = slot.head
        seq = newest.seq if newest else line.parent_seq
        if head is not None:
            if head.seq == seq and (newest is None or head.hash == newest.hash):
                return head
            fresh = self._catch_up(line, head, seq) if head.seq < seq else None
            if fresh is None:
                slot.forget()
            head = fresh
        if head is None:
            head = self._read(found, seq)
        slot.head = head
        return head

    def _catch_up(self, line: Line, head: CachedHead, seq: int) -> CachedHead | None:
        """Apply what came after a remembered head, if it is a plain run of records that builds on it."""
        rows = self.backend.replay(line.id, seq, head.seq)
        rows.reverse()
        splices = []
        for row in rows:
            if row.kind != DELTA or row.seq != head.seq + 1 or row.keyframe is not None:
                return None
            try:
                header, encoded, blocks = records.read_record(row.body)
                change = records.read_change(encoded)
            except StateCorruptedError:
                return None
            detached = not blocks and any(splice[3] for splice in change.logs)
            if detached or link(head.hash, record_digest(row.body)) != row.hash:
                return None
            before = head.hash if head.seq > line.parent_seq else None
            version = make_version(line, row.seq, row.hash, before, records.read_head(header), self._open)
            head = advanced(head, row.seq, row.hash, version, change, encoded, blocks, len(row.body))
            splices += change.logs
        if head.seq != seq:
            return None
        slot = self.head_cache.slot(line.uid)
        for log, _, _, insert, start, *prints in splices if slot.prints else ():
            if prints and len(prints[0]) == 4 * insert:
                own = line.counts.get(log, 0) if line.parent else 0
                self.head_cache.note_items(slot, log, start - own, prints[0])
        return head

    def _read(self, found: Found, seq: int) -> CachedHead:
        line, newest = found.line, found.newest
        loaded = self.reader.load(line, seq)
        if newest is not None:
            before = found.before if follows(found) else hash_before(self.reader, line, newest)
            version = make_version(
                line, seq, newest.hash, before, self.reader.head(newest, seq), self.reader.open
            )
            digest = newest.hash
        else:
            version, digest = (self.reader.version(line, seq))[0], line.start_hash
        return from_snapshot(loaded.snapshot, seq, digest, version, loaded.costs, loaded.recent)

    def prints(
        self, line: Line, log: str, count: int, slot: Slot | None = None, recent: Recent | None = None
    ) -> Prints:
        """Fingerprints of the line's own items, at least up to position ``count``; the newest of these are
        at hand in ``recent``, perhaps."""
        slot = slot or self.head_cache.slot(line.uid)
        known = slot.prints.get(log)
        own = line.counts.get(log, 0) if line.parent else 0
        if known is None or own + len(known) < count:
            row = self.reader.prints(line, log, known.row if known else bytearray(), count, recent)
            known = slot.prints[log] = Prints(row)
            known.lost = LOST in row
        return known

    def tail_keys(self, line: Line, last: int, slot: Slot | None = None) -> Mapping[bytes, list[int]]:
        """Key hashes of the line's versions up to ``last`` that may not be in the index yet."""
        slot = slot or self.head_cache.slot(line.uid)
        known = slot.keys
        if known is None or known.last < last:
            known = TailKeys(last, {})
            for row, key in self.backend.tail(line.id):
                if key is not None and row.seq <= last:
                    known.seqs.setdefault(key, []).append(row.seq)
            slot.keys = known
        if known.last == last:
            return known.seqs
        return {key: kept for key, seqs in known.seqs.items() if (kept := [s for s in seqs if s <= last])}

    def tail_holds(self, line: Line, last: int, hashed: bytes, slot: Slot) -> bool:
        """Whether a version up to ``last``, or before the fork, that may not be in the index has the key."""
        if hashed in self.tail_keys(line, last, slot):
            return True
        if not line.parent:
            return False
        if slot.inherited is None:
            # What a fork inherited never changes: looked up once.
            inherited: set[bytes] = set()
            while line.parent:
                last, line = line.parent_seq, self.reader.parent(line)
                inherited.update(self.tail_keys(line, last))
            slot.inherited = inherited
        return hashed in slot.inherited

    def maintain(self, line: Line, head: CachedHead) -> CachedHead:
        """After an acknowledged commit: fold if it is time. Never fails the commit it follows."""
        before = head.costs
        try:
            costs, singles = self.folder.fold(line, head)
        except EverthreadError as error:
            self.background_error = error
            return msgspec.structs.replace(head, singles=None)
        slot = self.head_cache.slot(line.uid)
        if costs != before and slot.keys is not None:
            left = None if singles is None else {each.key: [each.seq] for each in singles if each.key}
            slot.keys = None if left is None else TailKeys(head.seq, left)
        return msgspec.structs.replace(head, reckoned=costs, rows_since=0, bytes_since=0, singles=singles)


def key_hash(kind: bytes, key: str) -> bytes:
    """Sixteen bytes that stand for a commit key (``b"key"``) or step key (``b"step"``) in the index."""
    return sha256(kind + b"\0" + key.encode("utf-8", "surrogatepass")).digest()[:16]


def head_key(head: Head) -> bytes | None:
    """The key hash of a version, from what it says about itself."""
    if head.kind == records.FORK:
        # Its key says which call made the fork, and stands for no commit.
        return None
    if head.step is not None:
        return key_hash(b"step", head.step[0])
    return key_hash(b"key", head.key) if head.key is not None else None


def empty_head(start_hash: bytes) -> CachedHead:
    """What a line that has no version yet goes on from."""
    nothing: Any = None
    head = from_snapshot(Snapshot.empty(), 0, start_hash, nothing, Costs(), {})
    return msgspec.structs.replace(head, singles=[])


Validator = Callable[[Any], None]
