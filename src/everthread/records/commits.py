"""Commits: new versions on top of a head, and new branches, each one batch.

A version is stored only if the thread's HEAD still has the hash and the revision that it builds on.
Everything that is looked up by it (metadata, expiry, commit key, entries) is in the same batch. If the
answer of a write is lost, the head and the row that are stored tell by their hashes what became of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from everthread.errors import EverthreadError, StorageWriteError, StoreBusyError
from everthread.history.packs import Chunk
from everthread.records.branches import REACH, SHAPE, Branch, Branches, child_key, put_branch
from everthread.records.checked import CheckedStore
from everthread.records.entries import Entry, delete_entry, put_entry
from everthread.records.erasures import Erasures
from everthread.records.heads import (
    HASH_BYTES,
    Digests,
    Head,
    decode_digests,
    decode_head,
    detail_key,
    encode_head,
    head_key,
    index_expiry,
    index_metadata,
    with_digests,
)
from everthread.records.keys import Put, encode_number
from everthread.records.logs import Logs
from everthread.records.namespaces import Namespaces
from everthread.records.numbers import Numbers
from everthread.records.rows import Rows, decode_row, put_record
from everthread.records.sealed import guard_sealed, key_ids, put_sealed
from everthread.records.tables import COMMIT_KEY, ERASED, HEAD, MARK, REGISTER, ROW
from everthread.stores.contract import (
    KeyErased,
    KeyKnown,
    NameTaken,
    SealedRow,
    SourceGone,
    VersionGone,
)
from everthread.stores.interface import Batch, Guard, Key, Outcome, Refused, Span

_CACHED = 4_096
#: How often a write that only lost a race against maintenance is planned again.
_TRIES = 8

_encode = msgspec.msgpack.encode
_decode_seqs = msgspec.msgpack.Decoder(list[int]).decode


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version to store on top of the one with the hash ``previous``."""

    seq: int
    kind: int
    previous: bytes
    hash: bytes
    body: bytes
    at_us: int
    ttl_us: int = 0
    #: The digests of the metadata that this version sets, by name.
    digests: Digests = {}
    #: The hash of its commit or step key.
    key: bytes | None = None
    #: Refuse the version if the branch or its ancestors have one with this key.
    key_is_new: bool = False
    chunks: Sequence[Chunk] = ()
    sealed: Sequence[SealedRow] = ()
    #: ``(branch, seq)`` of the version that a rewind goes back to.
    source: tuple[int, int] | None = None
    #: Refuse the version unless a lease still has its owner; see :func:`~.registers.lease_guard`.
    lease: Guard | None = None
    #: Entries to put, and entries to delete.
    entries: Sequence[Entry] = ()
    closed_entries: Sequence[Entry] = ()


class StaleHead(Exception):  # noqa: N818 - a signal between layers, callers see ConflictError
    """The thread's newest version is another one; ``head`` is ``None`` if the branch was deleted."""

    def __init__(self, head: Head | None) -> None:
        super().__init__("stale")
        self.head = head


class LeaseLost(Exception):  # noqa: N818 - a signal between layers, callers see a typed error
    """Another owner has taken the lease over, or it was deleted."""


class Plan(msgspec.Struct):
    """A batch in the making, and what it leaves for the next version of the same branch."""

    head: Head
    guards: list[Guard]
    puts: list[Put] = []
    deletes: list[Span] = []
    #: The indexed metadata, if this batch or one before it in the same write sets any.
    digests: Digests | None = None
    #: The versions by commit key, for keys of this batch or one before it in the same write.
    seqs: dict[bytes, list[int]] = {}

    @property
    def head_put(self) -> Put:
        return next(put for put in self.puts if put[0][0] == HEAD.number)

    def batch(self) -> Batch:
        return Batch(self.guards, self.puts, self.deletes)


def plan_version(
    namespace: int, branch: Branch, head: Head, version: NewVersion, before: Digests, seqs: Sequence[int]
) -> Plan:
    """Plan a version on top of a head, without what needs further reading.

    ``before`` is the head's indexed metadata, needed if the version sets any. ``seqs`` are earlier versions
    of the branch with the same key.
    """
    name, key = branch.name, head_key(namespace, branch.name)
    new = Head(version.hash, branch.number, version.seq, version.at_us, version.ttl_us, 0, head.digests)
    row = put_record(branch.number, version.seq, version.kind, version.hash, version.body)
    # HEAD and row come first: a batch of little else takes the fast path of a store.
    plan = Plan(new, [Guard(key, head.guard)], [(key, b""), row])
    if version.lease is not None:
        plan.guards.append(version.lease)
    if version.digests:
        plan.digests = {**before, **version.digests}
        plan.head, detail = with_digests(new, plan.digests)
        entries, plan.deletes = index_metadata(namespace, name, before, plan.digests)
        plan.puts += [*detail, *entries]
    plan.puts[0] = key, encode_head(plan.head)
    if version.ttl_us or head.ttl_us:
        puts, deletes = index_expiry(namespace, name, head, new)
        plan.puts += puts
        plan.deletes += deletes
    if version.key is not None:
        plan.seqs[version.key] = [*seqs, version.seq]
        plan.puts.append((commit_key(branch.number, version.key), _encode(plan.seqs[version.key])))
        if version.key_is_new:
            plan.guards.append(Guard(commit_key(branch.number, version.key), None))
    if version.sealed:
        plan.guards += guard_sealed(version.sealed)
        plan.puts += put_sealed(version.sealed)
    for entry in version.entries:
        plan.puts += put_entry(namespace, branch.number, entry)
    for entry in version.closed_entries:
        plan.deletes += delete_entry(namespace, branch.number, entry)
    return plan


def commit_key(branch: int, key: bytes) -> Key:
    return COMMIT_KEY.number, branch, key


class Commits:
    """Stores new versions and new branches."""

    def __init__(
        self,
        store: CheckedStore,
        numbers: Numbers,
        namespaces: Namespaces,
        branches: Branches,
        rows: Rows,
        logs: Logs,
        erasures: Erasures,
    ) -> None:
        self._store = store
        self._numbers = numbers
        self._namespaces = namespaces
        self._branches = branches
        self._rows = rows
        self._logs = logs
        self._erasures = erasures
        #: The newest head of each branch that was seen here. It may be out of date: writes guard it.
        self._heads: OrderedDict[int, Head] = OrderedDict()

    def forget(self) -> None:
        """Forget what was read, because the whole content has been replaced."""
        self._heads.clear()

    def remember(self, head: Head) -> Head:
        self._heads[head.branch] = head
        self._heads.move_to_end(head.branch)
        if len(self._heads) > _CACHED:
            self._heads.popitem(last=False)
        return head

    async def head(self, branch: Branch) -> Head | None:
        """Return the head of a branch, ``None`` if it was deleted."""
        namespace = await self._namespaces.find(branch.namespace)
        (content,) = await self._store.get(head_key(namespace, branch.name))
        return self._own_head(branch, content)

    def _own_head(self, branch: Branch, content: bytes | None) -> Head | None:
        head = None if content is None else decode_head(content)
        return None if head is None or head.branch != branch.number else self.remember(head)

    async def digests(self, head: Head) -> dict[str, bytes]:
        """Return the digests of a thread's indexed metadata by name."""
        if head.digests is not None:
            return decode_digests(head.digests)
        (content,) = await self._store.get(detail_key(head.branch))
        return decode_digests(content or b"")

    async def find_commit_key(self, branches: Sequence[tuple[int, int]], key: bytes) -> list[tuple[int, int]]:
        """Return ``(branch, seq)`` of the versions with this key, among ``(branch, newest seq)``."""
        contents = await self._store.get(*(commit_key(number, key) for number, _ in branches))
        return [
            (number, seq)
            for (number, last), content in zip(branches, contents, strict=True)
            if content is not None
            for seq in _decode_seqs(content)
            if seq <= last
        ]

    # ── commit ──

    async def commit(self, branch: int, version: NewVersion) -> Head:
        """Store one version durably and return the new head. Raises what :meth:`commit_all` returns."""
        (result,) = await self.commit_all([(branch, version)])
        if isinstance(result, Exception):
            raise result
        return result

    async def commit_all(self, commits: Sequence[tuple[int, NewVersion]]) -> list[Head | Exception]:
        """Store several versions, each on its own terms, with one sync.

        For each the new head, or why nothing was stored: :class:`StaleHead`, :class:`LeaseLost`,
        ``KeyKnown``, ``VersionGone`` (its source was pruned), ``KeyErased``, or ``StorageWriteError`` if it
        isn't certain that the version is stored. Versions that follow each other in one branch count in their
        order. A version that only met a changed index or a compaction is
        planned again.
        """
        results: dict[int, Head | Exception] = {}
        for _ in range(_TRIES):
            waiting = [index for index in range(len(commits)) if index not in results]
            if not waiting:
                break
            plans: dict[int, Plan] = {}
            newest: dict[int, Plan] = {}
            for index in waiting:
                number, version = commits[index]
                try:
                    plans[index] = newest[number] = await self._plan(number, version, newest.get(number))
                except (StaleHead, KeyKnown, VersionGone) as error:
                    results[index] = error
            outcomes = await self._write(list(plans.values()))
            again: set[int] = set()
            for (index, plan), outcome in zip(plans.items(), outcomes, strict=True):
                number, version = commits[index]
                if isinstance(outcome, StorageWriteError):
                    results[index] = outcome
                elif not isinstance(outcome, Refused):
                    results[index] = self.remember(plan.head)
                elif number not in again:
                    refusal = await self._refusal(number, version, outcome)
                    if refusal is None:
                        # What follows in this branch was refused with it, and is planned again with it.
                        again.add(number)
                    else:
                        results[index] = refusal
        busy = StoreBusyError("the thread is being maintained: its index keeps changing; try again")
        return [results.get(index, busy) for index in range(len(commits))]

    async def _write(self, plans: Sequence[Plan]) -> list[Outcome | StorageWriteError]:
        """Write the plans. After a lost answer, find out which of them are stored."""
        try:
            return list(await self._store.write([plan.batch() for plan in plans]))
        except StorageWriteError as error:
            try:
                return [0 if await self._is_stored(plan) else error for plan in plans]
            except EverthreadError:
                # The store can't be read, or not written, either: nothing is known.
                raise error from None

    async def _is_stored(self, plan: Plan) -> bool:
        """Return True if a version whose answer was lost is stored, durably then.

        A version that was compacted since can't be told by its hash and counts as not found.
        """
        (key, _), planned = plan.head_put, plan.head
        row_key: Key = (ROW.number, planned.branch, planned.seq)
        for _ in range(_TRIES):
            content, row = await self._store.get(key, row_key)
            head = None if content is None else decode_head(content)
            if head is None or head.branch != planned.branch:
                return False
            if head.hash != planned.hash and (
                row is None or decode_row(planned.seq, row).hash != planned.hash
            ):
                return False
            # Readers may see what a power cut still takes back. A durable write after it keeps it.
            again = Batch([Guard(key, content)], [(key, content or b"")])
            if not isinstance(await self._store.write_one(again), Refused):
                return True
        return False

    async def _plan(self, number: int, version: NewVersion, earlier: Plan | None) -> Plan:
        """Plan a version on top of an earlier one of the same write, or of the newest one."""
        branch = await self._branches.identity(number)
        if branch is None:
            raise StaleHead(None)
        head = self._heads.get(number) if earlier is None else earlier.head
        if head is None or head.hash != version.previous:
            head = await self.head(branch)
            if head is None or head.hash != version.previous:
                raise StaleHead(head)
            earlier = None
        namespace = await self._namespaces.find(branch.namespace)
        digests = None if earlier is None else earlier.digests
        seqs = {} if earlier is None else earlier.seqs
        if version.digests and digests is None:
            digests = await self.digests(head)
        if version.key is not None and version.key not in seqs:
            seqs = {**seqs, version.key: await self._seqs_with_key(branch, version)}
        known = seqs.get(version.key or b"", ())
        plan = plan_version(namespace, branch, head, version, digests or {}, known)
        plan.digests = digests if plan.digests is None else plan.digests
        plan.seqs = {**seqs, **plan.seqs}
        if version.source is not None:
            plan.guards += await self._source_guards(*version.source)
            plan.puts.append(self._branches.new_mark(version.source[0], REACH))
        if version.chunks:
            plan.puts += await self._logs.put_all(number, version.chunks)
        return plan

    async def _seqs_with_key(self, branch: Branch, version: NewVersion) -> list[int]:
        """Return the own versions with the same key. Raises ``KeyKnown`` if the key must be new and isn't.

        Those of ancestors up to the fork point never change, so reading them is enough. Own ones can't be
        added without moving the head; if the key must be new, a guard says so without a read.
        """
        assert version.key is not None
        if not version.key_is_new:
            found = await self.find_commit_key([(branch.number, version.seq)], version.key)
            return [seq for _, seq in found]
        if branch.parent and await self.find_commit_key(await self._branches.lineage(branch), version.key):
            raise KeyKnown
        return []

    async def _source_guards(self, branch: int, seq: int) -> list[Guard]:
        """Return the guard that a version still exists. Raises ``VersionGone`` if it was pruned."""
        guards = await self._branches.guards((branch, SHAPE))
        if await self._rows.is_pruned(branch, seq):
            raise VersionGone
        return guards

    async def _refusal(self, number: int, version: NewVersion, refused: Refused) -> Exception | None:
        """Return why a version can't be stored, or ``None`` if it is to be planned again."""
        table = refused.guard.key[0]
        if table == ERASED.number:
            return KeyErased(frozenset(await self._erasures.among(key_ids(version.sealed))))
        if table == COMMIT_KEY.number:
            return KeyKnown()
        if table == REGISTER.number:
            return LeaseLost()
        if table == HEAD.number:
            branch = await self._branches.get(number)
            head = None if branch is None else self._own_head(branch, refused.value)
            if head is None or head.hash != version.previous:
                return StaleHead(head)
        return None

    # ── create and fork ──

    async def create(
        self,
        branch: Branch,
        version: NewVersion | None,
        *,
        source: int = 0,
        digests: Digests = {},  # noqa: B006 - never changed
        at_us: int = 0,
    ) -> Branch:
        """Store a new branch with its first version, if any, and the metadata that it inherits.

        ``number``, and ``root`` if it is 0, are assigned. ``source`` is the thread's branch that is forked;
        ``branch.parent`` the one that holds the version. Raises ``NameTaken``, ``SourceGone`` (the source was
        deleted), ``VersionGone`` (the version was pruned), ``KeyErased`` or :class:`LeaseLost`; nothing is
        stored then. Raises ``StorageWriteError`` if it isn't certain that the branch is stored.
        """
        number = await self._numbers.next()
        branch = msgspec.structs.replace(branch, number=number, root=branch.root or number)
        namespace = await self._namespaces.make(branch.namespace)
        for _ in range(_TRIES):
            plan = await self._plan_branch(namespace, branch, version, digests, at_us)
            if source:
                plan.guards += await self._fork_guards(source, branch)
            if branch.parent:
                # Also without a live source, as in an import: deletion keeps what a child needs.
                plan.puts.append((child_key(branch.parent, number), encode_number(branch.parent_seq)))
                plan.puts.append(self._branches.new_mark(branch.parent, REACH))
            (outcome,) = await self._write([plan])
            if isinstance(outcome, StorageWriteError):
                raise outcome
            if not isinstance(outcome, Refused):
                self.remember(plan.head)
                return self._branches.remember(branch)
            table = outcome.guard.key[0]
            if table == HEAD.number:
                raise NameTaken
            if table == ERASED.number and version is not None:
                raise KeyErased(frozenset(await self._erasures.among(key_ids(version.sealed))))
            if table == REGISTER.number:
                raise LeaseLost
            assert table == MARK.number
        raise StoreBusyError("the thread to fork is being maintained: its rows keep changing; try again")

    async def _plan_branch(
        self, namespace: int, branch: Branch, version: NewVersion | None, digests: Digests, at_us: int
    ) -> Plan:
        """Plan the first head of a branch: an empty one, and the first version on top of it."""
        empty = Head(branch.start_hash, branch.number, branch.parent_seq, at_us)
        own = {**digests, **version.digests} if version is not None else digests
        if version is None:
            head, puts = with_digests(empty, own)
            puts.append((head_key(namespace, branch.name), encode_head(head)))
            plan = Plan(head, [], puts)
        else:
            bare = msgspec.structs.replace(version, digests=own)
            plan = plan_version(namespace, branch, empty, bare, {}, ())
            del plan.guards[0]
            plan.puts += await self._logs.put_all(branch.number, version.chunks)
        if version is None:
            plan.puts += index_metadata(namespace, branch.name, {}, own)[0]
        plan.guards.insert(0, Guard(head_key(namespace, branch.name), None))
        plan.puts += put_branch(branch)
        assert len(plan.head.hash) == HASH_BYTES
        return plan

    async def _fork_guards(self, source: int, branch: Branch) -> list[Guard]:
        """Return guards that the source is live and its version exists."""
        marks = dict.fromkeys([(source, SHAPE), (branch.parent, SHAPE)])
        guards = await self._branches.guards(*marks)
        origin = await self._branches.get(source)
        if origin is None or origin.deleted:
            raise SourceGone
        if branch.parent_seq and await self._rows.is_pruned(branch.parent, branch.parent_seq):
            raise VersionGone
        return guards

    # ── changes that keep the version ──

    async def index(self, branch: Branch, seq: int, digests: Digests) -> None:
        """Set indexed metadata of a thread as of version ``seq``; later versions have set their own."""
        for _ in range(_TRIES):
            head = await self.head(branch)
            if head is None or head.seq > seq:
                return
            before = await self.digests(head)
            after = {**before, **digests}
            if after == before:
                return
            namespace = await self._namespaces.find(branch.namespace)
            again = msgspec.structs.replace(head, revision=head.revision + 1)
            new, puts = with_digests(again, after)
            added, deletes = index_metadata(namespace, branch.name, before, after)
            puts += [*added, (head_key(namespace, branch.name), encode_head(new))]
            guards = [Guard(head_key(namespace, branch.name), head.guard)]
            if not isinstance(await self._store.write_one(Batch(guards, puts, deletes)), Refused):
                self.remember(new)
                return
        raise StoreBusyError("the thread keeps changing: its metadata couldn't be indexed; try again")
