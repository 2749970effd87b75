"""The thread: a named line of versions over one document and its logs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from everthread.arguments import check_count, check_name, check_seconds
from everthread.errors import (
    ConflictError,
    InvalidValueError,
    ThreadNotFoundError,
    UsageError,
)
from everthread.history.chain import SignedHead, sign_head
from everthread.history.diff import Diff
from everthread.history.merge import Merge
from everthread.history.snapshots import Snapshot
from everthread.stores.contract import KeyKnown
from everthread.threads import migrations
from everthread.threads.aio import fork as forks
from everthread.threads.aio import journals, pins
from everthread.threads.aio import merge as merges
from everthread.threads.aio import update as updates
from everthread.threads.aio import workspace as workspaces
from everthread.threads.aio.commit import write_alone, write_rewind
from everthread.threads.aio.core import Core, Validator, key_hash
from everthread.threads.aio.handle import AnyVersion, Guard, Handle
from everthread.threads.aio.keys import committed_under
from everthread.threads.aio.lock import LEASE_S, AsyncThreadLock
from everthread.threads.aio.log import AsyncLog
from everthread.threads.aio.lost_ack import Landed
from everthread.threads.aio.past import AsyncPast, compare
from everthread.threads.aio.pins import Until
from everthread.threads.aio.step import AsyncStep, find_result, list_steps, step_text
from everthread.threads.aio.update import AsyncDraft
from everthread.threads.aio.watch import Watcher
from everthread.threads.document import TrackedDict
from everthread.threads.lifetimes import Lifetime, ttl_us
from everthread.threads.reports import Recovered
from everthread.threads.twins import ASYNC, AwaitedFace, streamed
from everthread.threads.validation import ATTACHED, attachable
from everthread.versions import Pin, RecordedStep, RunToken, Version

__all__ = ["MESSAGES", "AnyVersion", "AsyncThread"]

MESSAGES = "messages"

Effects = Literal["inherit", "deny"]


class AsyncThread(AwaitedFace):
    """An independent handle on a thread.

    Change ``state`` and the logs in place, then :meth:`commit`. The handle is pinned at its first read and
    moves only by its own commit, rewind, rebase or refresh. Use one handle per thread of execution.
    """

    def __init__(
        self, core: Core, name: str, validate: Validator | None = None, guard: Guard | None = None
    ) -> None:
        #: The inside: for this package and for what stands on ``store.core``.
        self.handle = Handle(core, name, validate, guard)
        self.core = core
        self.name = self.handle.name

    @property
    def state(self) -> TrackedDict:
        """The document: mutate it in place; ``.plain()`` hands out plain data."""
        handle = self.handle
        document = handle.document
        if document is None or handle.moving or not handle.pinned:
            document = handle.open_document()
        return document.root

    @property
    def messages(self) -> AsyncLog:
        """The same as ``log("messages")``."""
        handle = self.handle
        return handle.logs[MESSAGES] if MESSAGES in handle.logs else handle.log(MESSAGES)

    def log(self, name: str) -> AsyncLog:
        """A log of this thread; it exists from its first item on."""
        return self.handle.log(check_name(name, "log name"))

    @property
    def logs(self) -> list[str]:
        """The names of the logs that hold or have held items, committed or not."""
        handle = self.handle
        handle.ensure_loaded()
        names = set(handle.head.logs) if handle.head else set()
        names.update(name for name, log in handle.logs.items() if log._dirty)
        return sorted(name for name in names if "\0" not in name)

    @property
    def head(self) -> Version | None:
        """The version this handle stands on; ``None`` before the first commit."""
        handle = self.handle
        handle.ensure_loaded()
        return handle.head.version if handle.head else None

    @property
    def uid(self) -> str | None:
        """Which incarnation of the name this is: no other thread, earlier or later, has the same."""
        handle = self.handle
        handle.ensure_loaded()
        return handle.line.uid.hex() if handle.line is not None else None

    @property
    def effects(self) -> Effects:
        """``"deny"`` if this thread is a fork in which no effects are to be made, a fork of such a one, or
        the thread of a subagent that one of them began."""
        handle = self.handle
        handle.ensure_loaded()
        return "deny" if handle.head is not None and forks.denies_effects(handle.head) else "inherit"

    @property
    def recovered(self) -> Recovered | None:
        """Why this handle stands on an older version than the newest, which is damaged; usually ``None``.
        Until a :meth:`rewind`, which may go to ``head`` itself, it only reads and can be forked."""
        handle = self.handle
        handle.ensure_loaded()
        return handle.recovered

    @property
    def dirty(self) -> bool:
        """Whether there is anything to commit."""
        return self.handle.dirty

    # ── committing ───────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Version:
        """Make what changed a new version, durable when this returns.

        Without a change, label or metadata the head is returned; a thread without a version gets its first
        one, which is empty. The same ``key`` again returns the version
        it made first and drops what is pending, which that version holds already.

        Raises :class:`ConflictError` if another writer was first (the changes stay in the handle),
        :class:`KeyReusedError` if the key's version was rewound past, :class:`StorageWriteError` if the disk
        refused: then simply commit again.
        """
        handle = self.handle
        if not handle.pinned or handle.moving:
            await handle.load_newest()
        if handle.records_each_commit and not handle.writing:
            await workspaces.record(handle)
        if ASYNC:
            await handle.before_commit()
        # An empty dictionary says as little as none.
        metadata = metadata or None
        if label is not None:
            label = check_name(label, "label")
        hashed = None if key is None else key_hash(b"key", check_name(key, "commit key"))
        idle = label is None and metadata is None and not (handle.logs_touched or handle.dirty)
        guard = 0
        if hashed is not None:
            # Versions that aren't folded are looked at here, folded ones by the store as it writes. A handle
            # without changes can't find out by colliding, so it asks the newest version at once.
            seen = idle
            if not idle and handle.line is not None and handle.head is not None:
                guard = handle.line.root
                seen = await self.core.tail_holds(handle.line, handle.head.seq, hashed, handle.slot)
            if seen:
                guard = 0
                if (known := await committed_under(self, key or "", hashed)) is not None:
                    return known
        if ASYNC:
            # Another task may have committed everything while the store was asked.
            idle = label is None and metadata is None and not (handle.logs_touched or handle.dirty)
        if idle and handle.head is not None:
            return handle.head.version
        options: Any = {"label": label, "metadata": metadata, "key": key, "key_hash": hashed}
        try:
            return await write_alone(handle, "commit()", guard=guard, **options)
        except KeyKnown:
            if (known := await committed_under(self, key or "", hashed or b"")) is not None:
                return known
            # Known to a fork that went its own way.
            return await write_alone(handle, "commit()", **options)
        except Landed as landed:
            made = landed.version
            if handle.dirty or (made.label, made.key) != (label, key) or _given(made) != (metadata or {}):
                # What landed is an earlier commit: this one goes on from there.
                return await self.commit(label, metadata, None if made.key == key else key)
            return made
        except ConflictError:
            # The winner may be an earlier try of this very commit, whose answer was lost.
            if hashed is not None and (known := await committed_under(self, key or "", hashed)) is not None:
                return known
            raise

    async def update(self, fn: Callable[[AsyncDraft], Any], *, tries: int = updates.TRIES) -> Version:
        """Read, let ``fn`` modify, commit; on a conflict again from the newest version.

        ``fn`` gets a :class:`AsyncDraft`: ``draft["n"] += 1`` or ``draft.state`` for the document,
        ``draft.messages`` and ``draft.log(name)`` for the logs. It may run several times.
        """
        return await updates.update(self, fn, tries)

    def lock(self, timeout_s: float | None = None, *, lease_s: float = LEASE_S) -> AsyncThreadLock:
        """Wait for one's turn, over all processes and hosts that ask for it in this way; then the block runs
        once, with a :class:`AsyncDraft` of the newest version, and what it changed is committed once, when it
        is left.

        An exception takes its changes back. What others wrote meanwhile, without the lock, is brought
        together with them, or raises :class:`MergeConflictError`: the changes stay in the handle then.
        Raises :class:`StoreBusyError` if the turn doesn't come within ``timeout_s`` seconds (``None``: for
        ever). A holder whose process is gone has lost it at once, any other one after ``lease_s`` seconds:
        if somebody has taken it then, leaving the block raises :class:`FencedError`.
        """
        return AsyncThreadLock(self, timeout_s, lease_s)

    def step(
        self,
        key: str | Sequence[Any],
        attempt: int = 1,
        slot: int | None = None,
        *,
        redo: bool = False,
        resolve: merges.Choice = None,
        base: AnyVersion | None = None,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        run: str | RunToken | None = None,
    ) -> AsyncStep:
        """One unit of work that is recorded exactly once, whatever is retried: see :class:`AsyncStep`.

        ``base`` is the version that the caller takes the thread to build on: entering raises
        :class:`FencedError` if the line doesn't hold it. ``label`` and ``metadata`` are those of the version
        that the step makes. ``run`` names the run that it is part of, in whatever process: a newer run takes
        the thread over, and from then on steps of an older one raise :class:`FencedError`.
        """
        options: Any = {"redo": redo, "resolve": resolve, "base": base, "label": label, "metadata": metadata}
        return AsyncStep(self, key, attempt, slot, run=run, **options)

    @streamed
    async def steps(self, limit: int | None = None) -> AsyncIterator[RecordedStep]:
        """The steps that are done where this handle stands, the newest first. Read lazily; writes nothing.

        A step that was done again is where it was when it was done first.
        """
        left = -1 if limit is None else check_count(limit, "limit")
        handle = self.handle
        await handle.load()
        if handle.line is None or handle.head is None or left == 0:
            return
        async for recorded in list_steps(handle, handle.line, handle.head):
            yield recorded
            left -= 1
            if left == 0:
                return

    async def step_result(
        self, key: str | Sequence[Any], slot: int | None = None, *, default: Any = None
    ) -> Any:
        """What a step came to, or ``default`` if it isn't done where this handle stands. Writes nothing."""
        text = step_text(key, slot)
        handle = self.handle
        await handle.load()
        if handle.line is None or handle.head is None:
            return default
        return await find_result(handle, handle.line, handle.head, text, default)

    # ── moving this handle ───────────────────────────────────────────────────────────────────

    async def discard(self) -> None:
        """Forget what is uncommitted; the handle stays where it stands."""
        handle = self.handle
        handle.require_idle("discard()")
        handle.drop_changes()
        if handle.moving:
            await handle.load()

    async def refresh(self) -> Version | None:
        """Move to the newest version. Refuses while there are uncommitted changes."""
        handle = self.handle
        handle.require_clean("refresh()")
        handle.check_alive()
        line, head = await handle.newest()
        if ASYNC:
            # Another task may have edited this handle meanwhile.
            handle.require_clean("refresh()")
        if handle.line is not None and (line is None or line.uid != handle.line.uid):
            handle.deleted = True
            handle.check_alive()
        if head is not None and (handle.head is None or head.hash != handle.head.hash or handle.moving):
            handle.stand(line, head)
        handle.pinned = True
        return self.head

    async def rebase(self, *, resolve: merges.Choice = None) -> Version | None:
        """Move the uncommitted changes onto the newest version.

        Logs become base, theirs, ours, each id once. Raises :class:`MergeConflictError`, and changes
        nothing, where both sides changed the same place and ``resolve`` doesn't settle it: ``"ours"`` (the
        uncommitted changes), ``"theirs"``, or a function from a conflict to the value to take.
        """
        handle = self.handle
        await handle.load()
        handle.check_alive()
        handle.require_idle("rebase()")
        return await merges.rebase(handle, resolve)

    # ── the past ─────────────────────────────────────────────────────────────────────────────

    async def at(self, version: AnyVersion) -> AsyncPast:
        """The thread as it was at a version, read only. A version is a :class:`Version`, its seq, or a text:
        its id, its label, ``"head"``, or ``"head~2"`` for two before it; wherever one is taken.

        A label costs reading the history. Raises :class:`VersionNotFoundError` if there is none, and
        :class:`UsageError` for a label that several versions have.
        """
        handle = self.handle
        line, head = handle.require()
        found = await handle.find_version(version)
        if head.version.id == found.id:
            snapshot = Snapshot(head.build_document(), head.logs, head.segment, head.merged)
        else:
            snapshot = (await self.core.reader.load(line, found.seq)).snapshot
        return AsyncPast(handle, line, found, snapshot)

    async def contains(self, version: AnyVersion) -> bool:
        """Whether a version is on the line that this handle stands on: among those that led to its head.

        False for one that a rewind has left behind, for one that comes later, and for one of another thread.
        """
        await self.handle.load()
        return await self.handle.contains(version)

    # ── pins ─────────────────────────────────────────────────────────────────────────────────

    async def pin(self, version: AnyVersion, until: Until = None) -> Pin:
        """Let a version stay, whatever retention says: until a moment (a ``datetime`` with a time zone), for
        a time (a ``timedelta`` or seconds), or for ever. Pinned again, the new time counts.

        No rewind moves a pin; it goes with its thread. Raises :class:`VersionPrunedError` if the version is
        gone, :class:`StoreBusyError` if ``gc()`` is pruning this thread and takes long.
        """
        line, _ = self.handle.require()
        until_us = pins.moment_us(until, self.core.runtime.now_us())
        return await pins.pin(self.core, line, await self.handle.find_version(version), until_us)

    async def unpin(self, version: AnyVersion) -> bool:
        """Let go of a version; whether it was pinned."""
        line, _ = self.handle.require()
        return await pins.unpin(self.core, line, (await self.handle.find_version(version)).seq)

    async def pins(self) -> list[Pin]:
        """The versions of this thread that are pinned, the oldest first."""
        line, _ = self.handle.require()
        return [pins.shown(stored, self.name) for stored in await pins.pins_of(self.core, line)]

    @streamed
    async def history(
        self, limit: int | None = 20, before: AnyVersion | None = None
    ) -> AsyncIterator[Version]:
        """The versions up to the head, newest first, those left behind by a rewind included.

        Read lazily; ``limit=None`` for all. ``before`` starts below that version.
        """
        handle = self.handle
        left = -1 if limit is None else check_count(limit, "limit")
        await handle.load()
        if handle.line is None or handle.head is None:
            return
        line, start = handle.line, handle.head.seq
        if before is not None:
            start = (await handle.find_version(before)).seq - 1
        if left == 0:
            return
        async for version in self.core.reader.history(line, start):
            yield version
            left -= 1
            if left == 0:
                return

    async def diff(
        self,
        a: AnyVersion | AsyncPast | None,
        b: AnyVersion | AsyncPast | None = None,
        *,
        files: bool = False,
    ) -> Diff:
        """What changed from ``a`` to ``b`` (by default: the head) in document and logs; with ``files`` also
        in the working folder, as far as it was recorded: ``diff.files``.

        ``a=None`` compares with nothing at all.
        """
        handle = self.handle
        handle.require()
        old = a if isinstance(a, AsyncPast) else None if a is None else await self.at(a)
        head = self.head
        new = b if isinstance(b, AsyncPast) else await self.at(head if b is None and head is not None else b)  # type: ignore[arg-type]
        found = await compare(old, new, handle.lift, lambda value: handle.lower(value, "state"))
        return replace(found, files=await workspaces.compare(self, old, new)) if files else found

    # ── branching ────────────────────────────────────────────────────────────────────────────

    async def fork(
        self,
        name: str,
        at: AnyVersion | None = None,
        *,
        key: str | None = None,
        effects: Effects = "inherit",
        prepare: Callable[..., Sequence[Any]] | None = None,
        transform: Callable[..., Any] | None = None,
        files: str | os.PathLike[str] | None = None,
    ) -> AsyncThread:
        """A new thread that shares this one's history up to ``at`` (by default: the head). O(1).

        ``prepare`` gets the messages and returns those the fork starts with; ``transform`` then gets each one
        and returns it as it should be. Both are applied once, in the new thread only; one that has a second
        parameter is called for every log, and told its name there. With
        ``effects="deny"`` the fork is for trying things out: no effects are to be made in it, nor in its own
        forks. ``files`` is an empty folder, or one to be made: the files that were recorded at that version
        are put there, and it becomes the working folder of the fork.
        Raises :class:`ThreadExistsError` if the name is taken; the same call with the same ``key``
        again returns the fork that the first one made.
        """
        handle = self.handle
        handle.require_clean("fork()")
        if isinstance(at, Version) and handle.head is not None and 1 <= at.seq <= handle.head.seq:
            # Whether it is one of this thread shows when it is loaded.
            version: Version | None = at
        else:
            version = self.head if at is None else await handle.find_version(at)
        if version is None:
            raise ThreadNotFoundError(f"there is no thread {self.name!r} yet: commit something, then fork it")
        if key is not None:
            key = check_name(key, "fork key")
        if effects not in ("inherit", "deny"):
            raise InvalidValueError(f'effects is "inherit" or "deny", not {effects!r}', path="effects")
        other = AsyncThread(self.core, name, handle.validate)
        terms = forks.Terms(prepare, transform, key, effects == "deny", at is not None)
        if files is not None:
            await workspaces.workspaces_of(handle).check_empty(self, files)
        await forks.fork(self, other, version, terms)
        if files is not None:
            await workspaces.attach_fork(other, files, handle.workspace_options)
        return other

    async def attach_schema(self, schema: Any) -> Version:
        """Record a schema in this thread: from this version on every commit is checked against it, whoever
        makes it and through whatever handle, session or step. ``None`` removes it.

        ``schema`` is a JSON Schema, or a pydantic model, which is recorded as its JSON Schema. It sees the
        whole document, what sessions keep there included, and belongs to it: a fork has it, a rewind goes
        back to the one of that version. Raises :class:`ValidationError`, and changes nothing, if the document
        breaks it.
        """
        text = None if schema is None else attachable(schema)

        def put(draft: AsyncDraft) -> None:
            if text is not None:
                draft[ATTACHED] = text
            else:
                draft.pop(ATTACHED, None)

        self.handle.attaches_schema = True
        try:
            return await self.update(put)
        finally:
            self.handle.attaches_schema = False

    async def attach_workspace(
        self, path: str | os.PathLike[str], *, each: str = "commit", **options: Any
    ) -> Any:
        """Record a working folder beside this thread: now, and with each commit through this handle, or with
        ``each="turn"`` when a turn of its session begins and when it ends.

        Ignore rules are respected; what looks like a secret, or can't be read, is left out and named in
        ``.last.left_out``. ``detectors`` and ``limits`` may be given. The folder's own repository is never
        touched. :meth:`rewind` and :meth:`diff` take ``files=True`` from then on.
        """
        return await workspaces.attach(self, path, each, options)

    async def rewind(self, version: AnyVersion, *, files: bool = False) -> Version:
        """Go back to an earlier version. O(1); itself a version, so it can be rewound in turn.

        With ``files`` the working folder goes back as well, to what was recorded at that version. What was
        changed in it since is recorded first. What isn't recorded (ignored files, secrets) is left alone.
        """
        if files:
            return await workspaces.go_back(self, version)
        handle = self.handle
        handle.require_clean("rewind()")
        line, head = handle.require()
        target = await handle.find_version(version)
        reader = self.core.reader
        owner = await reader.owner(line, target.seq)
        try:
            return await write_rewind(handle, line, head, owner, target, await reader.load(owner, target.seq))
        except Landed as landed:
            if landed.version.source != target.id:
                return await self.rewind(target)
            return landed.version

    async def merge(
        self,
        other: AsyncThread | str,
        *,
        resolve: str | Callable[[Any], Any] | None = None,
        label: str | None = None,
        unrelated: bool = False,
    ) -> Merge:
        """Bring in what ``other``, a thread or its name, did since both went apart: a three-way merge,
        committed if it is clean.

        Conflicts are data: with any left, nothing is committed and ``.conflicts`` lists them. ``resolve``
        settles them: ``"ours"``, ``"theirs"``, or a function from a conflict to the value to take. Raises
        :class:`UsageError` if the two have no version in common, unless ``unrelated`` says that it is meant.
        """
        handle = self.handle
        handle.require_clean("merge()")
        if isinstance(other, str):
            other = AsyncThread(self.core, check_name(other, "thread name"))
            if await other.refresh() is None:
                raise ThreadNotFoundError(f"there is no thread {other.name!r} to merge")
        if not isinstance(other, AsyncThread):
            raise UsageError(f"merge() takes another thread or its name, not {type(other).__name__}")
        if other.core is not self.core:
            raise UsageError("merge() takes a thread of the same store; copy it here first")
        if label is not None:
            label = check_name(label, "label")
        other.handle.require_clean("merge() of the other thread")
        try:
            return await merges.merge(handle, other.handle, resolve, label, unrelated)
        except Landed as landed:
            handle.drop_changes()
            if other.head is not None and landed.version.source == other.head.id:
                await self.refresh()
                return Merge(landed.version)
            return await merges.merge(handle, other.handle, resolve, label, unrelated)

    async def delete(self) -> None:
        """Delete the thread for good. Forks live on; the same name later is a new thread."""
        handle = self.handle
        line, _ = handle.require()
        await self.core.backend.delete(line)
        # After it: a thread is never without its companion.
        await journals.remove(self.core, line)
        self.core.head_cache.slot(line.uid).forget()
        handle.drop_changes()
        handle.deleted = True

    @streamed
    def watch(
        self, after: AnyVersion | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Version]:
        """The versions that come after ``after`` (by default: after the head of this handle), as they come. A
        label, or a distance such as ``"head~2"``, is looked up when the first one is asked for.

        In order and without a gap, whoever commits them, rewinds and merges included; ``after=0`` begins with
        the first one. The handle itself doesn't move. Waits for ever, or ends when nothing has come for
        ``timeout`` seconds. Raises :class:`ThreadDeletedError` when the thread is deleted,
        :class:`VersionPrunedError` where versions have been pruned, :class:`StoreClosedError` when the store
        is closed.
        """
        handle = self.handle
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        handle.ensure_loaded()
        handle.check_alive()
        if after is None:
            after = handle.head.version if handle.head is not None else 0
        uid = handle.line.uid if handle.line is not None else None
        return Watcher(self.core, self.name, uid, after, self._newest_named).run(timeout)

    async def _newest_named(self, text: str) -> Version:
        """The version that a text names, as the thread is now, not as this handle sees it."""
        now = AsyncThread(self.core, self.name)
        await now.handle.load()
        return await now.handle.find_version(text)

    async def expire(self, after: Lifetime) -> Version | None:
        """Let the thread expire when nothing has been written to it for this long; ``None``: never.

        ``after`` is a ``timedelta`` or seconds. Itself a version, and every later one renews it; a fork
        begins without. An expired thread is as good as deleted: a late write never brings it back, forks live
        on.
        Before the first commit it applies to that one, and nothing is returned.
        """
        handle = self.handle
        handle.require_clean("expire()")
        await handle.load()
        handle.check_alive()
        before, handle.ttl_us = handle.ttl_us, ttl_us(after)
        if handle.line is None or handle.head is None:
            return None
        # There is something to commit: how long it lives.
        handle.touch()
        try:
            return await self.commit()
        except BaseException:
            handle.ttl_us = before
            handle.drop_changes()
            raise

    def sign(self, private_key: Any) -> SignedHead:
        """Sign the head with an Ed25519 key. Kept elsewhere, it shows later whether history was rewritten."""
        _, head = self.handle.require()
        return sign_head(self.name, head.seq, head.hash, private_key)

    def __repr__(self) -> str:
        handle = self.handle
        where = (
            "not read yet"
            if not handle.pinned
            else str(handle.head.version)
            if handle.head
            else "no version yet"
        )
        return f"<thread {self.name!r}: {where}{', uncommitted changes' if handle.dirty else ''}>"


def _given(version: Version) -> Mapping[str, Any]:
    """The metadata that whoever committed a version gave it."""
    return {name: value for name, value in version.metadata.items() if name != migrations.MIGRATED}
