# Generated from src/everthread/threads/aio/thread.py by tools/twin.py: change that, then run: make twin
"""The thread: a named line of versions over one document and its logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import Any

from everthread.arguments import check_count, check_name, check_seconds
from everthread.errors import (
    ConflictError,
    KeyReusedError,
    ThreadNotFoundError,
    UsageError,
    VersionNotFoundError,
)
from everthread.history.chain import SignedHead, sign_head
from everthread.history.diff import Diff
from everthread.history.merge import Merge
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import KeyKnown
from everthread.threads.colours import iterated
from everthread.threads.document import TrackedDict
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.reports import Recovered
from everthread.threads.sync import fork as forks
from everthread.threads.sync import journals
from everthread.threads.sync import merge as merges
from everthread.threads.sync import update as updates
from everthread.threads.sync.commit import write, write_alone, write_rewind
from everthread.threads.sync.core import key_hash
from everthread.threads.sync.handle import Handle
from everthread.threads.sync.keys import KeyFinder
from everthread.threads.sync.log import Log
from everthread.threads.sync.lost_ack import Landed
from everthread.threads.sync.past import Past, compare
from everthread.threads.sync.step import Step
from everthread.threads.sync.update import Draft
from everthread.threads.sync.version_names import find_named
from everthread.threads.sync.watch import Watcher
from everthread.versions import Version

MESSAGES = "messages"

AnyVersion = Version | int | str


class Thread(Handle):
    """An independent handle on a thread.

    Change ``state`` and the logs in place, then :meth:`commit`. The handle is pinned at its first read and
    moves only by its own commit, rewind, rebase or refresh. Use one handle per thread of execution.
    """

    @property
    def state(self) -> TrackedDict:
        """The document: mutate it in place; ``.plain()`` hands out plain data."""
        document = self._document
        if document is None or self._moving or not self._pinned:
            document = self._doc()
        return document.root

    @property
    def messages(self) -> Log:
        """The same as ``log("messages")``."""
        return self._logs[MESSAGES] if MESSAGES in self._logs else self._log(MESSAGES)

    def log(self, name: str) -> Log:
        """A log of this thread; it exists from its first item on."""
        return self._log(check_name(name, "log name"))

    @property
    def logs(self) -> list[str]:
        """The names of the logs that hold or have held items, committed or not."""
        self._here()
        names = set(self._memo.logs) if self._memo else set()
        names.update(name for name, log in self._logs.items() if log._dirty)
        return sorted(name for name in names if "\0" not in name)

    @property
    def head(self) -> Version | None:
        """The version this handle stands on; ``None`` before the first commit."""
        self._here()
        return self._memo.version if self._memo else None

    @property
    def uid(self) -> str | None:
        """Which incarnation of the name this is: no other thread, earlier or later, has the same."""
        self._here()
        return self._line.uid.hex() if self._line is not None else None

    @property
    def recovered(self) -> Recovered | None:
        """Why this handle stands on an older version than the newest, which is damaged; usually ``None``.
        Until a :meth:`rewind`, which may go to ``head`` itself, it only reads and can be forked."""
        self._here()
        return self._recovered

    @property
    def dirty(self) -> bool:
        """Whether there is anything to commit."""
        return self._dirty

    # ── committing ───────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Version | None:
        """Make what changed a new version, durable when this returns.

        Without a change, label or metadata the head is returned. The same ``key`` again returns the version
        it made first and drops what is pending, which that version holds already.

        Raises :class:`ConflictError` if another writer was first (the changes stay in the handle),
        :class:`KeyReusedError` if the key's version was rewound past, :class:`StorageWriteError` if the disk
        refused: then simply commit again.
        """
        if not self._pinned or self._moving:
            self._load_newest()
        # An empty dictionary says as little as none.
        metadata = metadata or None
        if label is not None:
            label = check_name(label, "label")
        hashed = None if key is None else key_hash(b"key", check_name(key, "commit key"))
        idle = label is None and metadata is None and not (self._logs_touched or self._dirty)
        guard = 0
        if hashed is not None:
            # Versions that aren't folded are looked at here, folded ones by the store as it writes. A handle
            # without changes can't find out by colliding, so it asks the newest version at once.
            seen = idle
            if not idle and self._line is not None and self._memo is not None:
                guard = self._line.root
                seen = self.core.tail_holds(self._line, self._memo.seq, hashed, self._slot)
            if seen:
                guard = 0
                if (known := self._known(key or "", hashed)) is not None:
                    return known
        if idle:
            return self.head
        try:
            me = get_ident()
            if self._writing and self._writing != me:
                self._require_idle("commit()")
            try:
                self._writing = me
                return write(self, label=label, metadata=metadata, key=key, key_hash=hashed, guard=guard)
            finally:
                self._writing = 0
        except KeyKnown:
            if (known := self._known(key or "", hashed or b"")) is not None:
                return known
            # Known to a fork that went its own way.
            told: Any = {"label": label, "metadata": metadata, "key": key, "key_hash": hashed}
            return write_alone(self, "commit()", **told)
        except Landed as landed:
            made = landed.version
            if self._dirty or (made.label, made.key) != (label, key) or made.metadata != (metadata or {}):
                # What landed is an earlier commit: this one goes on from there.
                return self.commit(label, metadata, None if made.key == key else key)
            return made
        except ConflictError:
            # The winner may be an earlier try of this very commit, whose answer was lost.
            if hashed is not None and (known := self._known(key or "", hashed)) is not None:
                return known
            raise

    def _known(self, key: str, hashed: bytes) -> Version | None:
        """The version a key made before; the handle then stands on the newest version, which says whether
        that still stands."""
        found = self.core.find(self.name)
        line = found.line if found else self._line
        memo = self.core.head(found) if found else self._memo
        if line is None or memo is None:
            return None
        version, rewind = KeyFinder(self.core, line, memo).version(hashed)
        if version is None:
            return None
        if rewind is not None:
            raise KeyReusedError(
                f"the key {key!r} made {version}, which {rewind} went back before; use another key",
                key=key,
                version=version,
                rewind=rewind,
            )
        self._drop_changes()
        self.refresh()
        return version

    def update(self, fn: Callable[[Draft], Any], *, tries: int = updates.TRIES) -> Version | None:
        """Read, let ``fn`` modify, commit; on a conflict again from the newest version.

        ``fn`` gets a :class:`Draft`: ``draft["n"] += 1`` or ``draft.state`` for the document,
        ``draft.messages`` and ``draft.log(name)`` for the logs. It may run several times.
        """
        return updates.update(self, fn, tries)

    def step(self, key: str | Sequence[Any], attempt: int = 1, slot: int | None = None) -> Step:
        """One unit of work that is recorded exactly once, whatever is retried: see :class:`Step`."""
        return Step(self, key, attempt, slot)

    # ── moving this handle ───────────────────────────────────────────────────────────────────

    def discard(self) -> None:
        """Forget what is uncommitted; the handle stays where it stands."""
        self._require_idle("discard()")
        self._drop_changes()
        if self._moving:
            self._load()

    def refresh(self) -> Version | None:
        """Move to the newest version. Refuses while there are uncommitted changes."""
        self._require_clean("refresh()")
        self._check_alive()
        line, memo = self._newest()
        if self._line is not None and (line is None or line.uid != self._line.uid):
            self._deleted = True
            self._check_alive()
        if memo is not None and (self._memo is None or memo.hash != self._memo.hash or self._moving):
            self._stand(line, memo)
        self._pinned = True
        return self.head

    def rebase(self) -> Version | None:
        """Move the uncommitted changes onto the newest version.

        Logs become base, theirs, ours, each id once. Raises :class:`MergeConflictError`, and changes
        nothing, where both sides changed the same place.
        """
        self._load()
        self._check_alive()
        self._require_idle("rebase()")
        return merges.rebase(self)

    # ── the past ─────────────────────────────────────────────────────────────────────────────

    def at(self, version: AnyVersion) -> Past:
        """The thread as it was at a version, read only. A version is a :class:`Version`, its seq, or a text:
        its id, its label, ``"head"``, or ``"head~2"`` for two before it; wherever one is taken.

        A label costs reading the history. Raises :class:`VersionNotFoundError` if there is none, and
        :class:`UsageError` for a label that several versions have.
        """
        line, memo = self._require()
        found = self._resolve(version)
        if memo.version.id == found.id:
            snapshot = Snapshot(memo.build_document(), memo.logs, memo.segment, memo.merged)
        else:
            snapshot = (self.core.reader.load(line, found.seq)).snapshot
        return Past(self, line, found, snapshot)

    def _resolve(self, version: AnyVersion) -> Version:
        return (self._find_version(version))[0]

    def _find_version(self, version: AnyVersion) -> tuple[Version, bytes]:
        """A version of this thread and (the beginning of) its hash."""
        line, memo = self._require()
        if isinstance(version, Version):
            seq, wanted = version.seq, version.id
        elif isinstance(version, str):
            return find_named(self.core.reader, self.name, line, memo, version)
        elif isinstance(version, int) and not isinstance(version, bool):
            seq, wanted = version, None
        else:
            raise UsageError(
                f"a version is a Version, its seq, its id or its label, not {type(version).__name__}"
            )
        if seq == memo.seq and wanted in (None, memo.version.id):
            return memo.version, memo.hash
        if 1 <= seq <= memo.seq:
            found = self.core.reader.version(line, seq)
            if wanted in (None, found[0].id):
                return found
        raise VersionNotFoundError(f"{self.name!r} has no version {wanted or seq}")

    @iterated
    def history(self, limit: int | None = 20, before: AnyVersion | None = None) -> Iterator[Version]:
        """The versions up to the head, newest first, those left behind by a rewind included.

        Read lazily; ``limit=None`` for all. ``before`` starts below that version.
        """
        left = -1 if limit is None else check_count(limit, "limit")
        self._load()
        if self._line is None or self._memo is None:
            return
        line, start = self._line, self._memo.seq
        if before is not None:
            start = (self._resolve(before)).seq - 1
        if left == 0:
            return
        for version in self.core.reader.history(line, start):
            yield version
            left -= 1
            if left == 0:
                return

    def diff(self, a: AnyVersion | Past | None, b: AnyVersion | Past | None = None) -> Diff:
        """What changed from ``a`` to ``b`` (by default: the head) in document and logs.

        ``a=None`` compares with nothing at all.
        """
        self._require()
        old = a if isinstance(a, Past) else None if a is None else self.at(a)
        head = self.head
        new = b if isinstance(b, Past) else self.at(head if b is None and head is not None else b)  # type: ignore[arg-type]
        return compare(old, new, self._lift, lambda value: self._lower(value, "state"))

    # ── branching ────────────────────────────────────────────────────────────────────────────

    def fork(
        self,
        name: str,
        at: AnyVersion | None = None,
        *,
        prepare: Callable[[list[Any]], Sequence[Any]] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> Thread:
        """A new thread that shares this one's history up to ``at`` (by default: the head). O(1).

        ``prepare`` gets the messages and returns those the fork starts with; ``transform`` then gets each one
        and returns it as it should be. Both are applied once, in the new thread only. Raises
        :class:`ThreadExistsError` if the name is taken.
        """
        self._require_clean("fork()")
        if isinstance(at, Version) and self._memo is not None and 1 <= at.seq <= self._memo.seq:
            # Whether it is one of this thread shows when it is loaded.
            version: Version | None = at
        else:
            version = self.head if at is None else self._resolve(at)
        if version is None:
            raise ThreadNotFoundError(f"there is no thread {self.name!r} yet: commit something, then fork it")
        other = Thread(self.core, name, self._validate)
        forks.fork(self, other, version, prepare, transform)
        return other

    def rewind(self, version: AnyVersion) -> Version:
        """Go back to an earlier version. O(1); itself a version, so it can be rewound in turn."""
        self._require_clean("rewind()")
        line, memo = self._require()
        target = self._resolve(version)
        reader = self.core.reader
        owner = reader.owner(line, target.seq)
        try:
            return write_rewind(self, line, memo, owner, target, reader.load(owner, target.seq))
        except Landed as landed:
            if landed.version.source != target.id:
                return self.rewind(target)
            return landed.version

    def merge(
        self,
        other: Thread,
        *,
        resolve: str | Callable[[Any], Any] | None = None,
        label: str | None = None,
    ) -> Merge:
        """Bring in what ``other`` did since both went apart: a three-way merge, committed if it is clean.

        Conflicts are data: with any left, nothing is committed and ``.conflicts`` lists them. ``resolve``
        settles them: ``"ours"``, ``"theirs"``, or a function from a conflict to the value to take.
        """
        self._require_clean("merge()")
        if not isinstance(other, Thread):
            raise UsageError(f"merge() takes another thread, not {type(other).__name__}")
        if other.core is not self.core:
            raise UsageError("merge() takes a thread of the same store; copy it here first")
        if label is not None:
            label = check_name(label, "label")
        other._require_clean("merge() of the other thread")
        try:
            return merges.merge(self, other, resolve, label)
        except Landed as landed:
            self._drop_changes()
            if other.head is not None and landed.version.source == other.head.id:
                self.refresh()
                return Merge(landed.version)
            return merges.merge(self, other, resolve, label)

    def delete(self) -> None:
        """Delete the thread for good. Forks live on; the same name later is a new thread."""
        line, _ = self._require()
        self.core.backend.delete(line)
        # After it: a thread is never without its companion.
        journals.remove(self, line)
        self.core.memos.slot(line.uid).forget()
        self._drop_changes()
        self._deleted = True

    @iterated
    def watch(self, after: AnyVersion | None = None, *, timeout: float | None = None) -> Iterator[Version]:
        """The versions that come after ``after`` (by default: after the head of this handle), as they come.

        In order and without a gap, whoever commits them, rewinds and merges included; ``after=0`` begins with
        the first one. The handle itself doesn't move. Waits for ever, or ends when nothing has come for
        ``timeout`` seconds. Raises :class:`ThreadDeletedError` when the thread is deleted,
        :class:`VersionPrunedError` where versions have been pruned, :class:`StoreClosedError` when the store
        is closed.
        """
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        self._here()
        self._check_alive()
        if after is None:
            after = self._memo.version if self._memo is not None else 0
        uid = self._line.uid if self._line is not None else None
        return Watcher(self.core, self.name, uid, after).run(timeout)

    def expire(self, after: Lifetime) -> Version | None:
        """Let the thread expire when nothing has been written to it for this long; ``None``: never.

        ``after`` is a ``timedelta`` or seconds. Itself a version, and every later one renews it; a fork
        begins without. An expired thread is as good as deleted: a late write never brings it back, forks live
        on.
        Before the first commit it applies to that one, and nothing is returned.
        """
        self._require_clean("expire()")
        self._load()
        self._check_alive()
        before, self._ttl_us = self._ttl_us, ttl_us(after)
        if self._line is None or self._memo is None:
            return None
        # There is something to commit: how long it lives.
        self._touch()
        try:
            return self.commit()
        except BaseException:
            self._ttl_us = before
            self._drop_changes()
            raise

    def sign(self, private_key: Any) -> SignedHead:
        """Sign the head with an Ed25519 key. Kept elsewhere, it shows later whether history was rewritten."""
        _, memo = self._require()
        return sign_head(self.name, memo.seq, memo.hash, private_key)

    def __repr__(self) -> str:
        where = (
            "not read yet"
            if not self._pinned
            else str(self._memo.version)
            if self._memo
            else "no version yet"
        )
        return f"<thread {self.name!r}: {where}{', uncommitted changes' if self._dirty else ''}>"
