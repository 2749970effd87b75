"""A step: one unit of work, recorded exactly once, whatever is retried around it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

from everthread.arguments import check_mapping, check_name
from everthread.codec import records
from everthread.errors import (
    ConflictError,
    FencedError,
    InvalidStateError,
    InvalidValueError,
    StateCorruptedError,
    UsageError,
    VersionPrunedError,
)
from everthread.history.logs import EMPTY_LOG
from everthread.threads.aio import workspace as workspaces
from everthread.threads.aio.commit import write_alone
from everthread.threads.aio.core import key_hash
from everthread.threads.aio.keys import KeyFinder
from everthread.threads.aio.lost_ack import Landed
from everthread.threads.aio.merge import Choice, check_choice
from everthread.threads.aio.undo import Undo
from everthread.threads.twins import ASYNC, AwaitedFace
from everthread.versions import RecordedStep, RunToken, Version

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.stores.contract import Line
    from everthread.threads.aio.core import StepRun
    from everthread.threads.aio.handle import AnyVersion, Handle
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.aio.update import Ticket
    from everthread.threads.document import TrackedDict
    from everthread.threads.head_cache import CachedHead

#: The log that holds the results; no caller's log can have this name.
STEP_LOG = "\0steps"
#: So many results in a row without a sibling of a slot, and no more of them are looked for.
_SIBLINGS = 256
#: So many results are read at a time where all of them are listed.
_PAGE = 64


class AsyncStepLog:
    """What a step appends to one log; written, or put in place of what has the same id, when it ends."""

    def __init__(self, step: AsyncStep, name: str) -> None:
        self._step = step
        self._handle = step._handle
        self.name = name
        self._items: list[tuple[Any, str]] = []

    def append(self, item: Any) -> Any:
        """Append an item, or replace the one with the same id. Without an id it gets a derived one."""
        self._step._check_open()
        slot = len(self._items)
        derived = self._step.message_id(slot if self.name == "messages" else f"{self.name}/{slot}")
        lowered, item_id, _ = self._handle.log(self.name)._prepare(item, derived)
        self._items.append((self._handle.lift(lowered), derived))
        return item_id

    def extend(self, items: Sequence[Any]) -> list[Any]:
        return [self.append(item) for item in items]

    async def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        """The items from ``start`` up to, not including, ``stop``: those of the thread, then the step's own.
        Negative numbers count from the end."""
        log = self._handle.log(self.name)
        # Whatever still waits for the store is settled by a read.
        await log.read(0, 0)
        before = len(log)
        first, last, _ = slice(start, stop).indices(before + len(self._items))
        found = await log.read(first, min(last, before)) if first < before else []
        return found + [item for item, _ in self._items[max(first - before, 0) : max(last - before, 0)]]

    def __len__(self) -> int:
        return len(self._handle.log(self.name)) + len(self._items)

    if ASYNC:

        def __getitem__(self, index: object) -> NoReturn:
            raise UsageError("what a log of an async store holds is read with: await step.log(name).read()")

    else:

        def __getitem__(self, index: Any) -> Any:
            return self.read()[index]

    def __repr__(self) -> str:
        return f"<step log {self.name!r}: {len(self._items)} to write>"


class AsyncStep(AwaitedFace):
    """Use as a context manager; leaving the block is one transaction.

    If ``done`` is true, an earlier attempt has committed: take ``result`` and leave. Otherwise do the work,
    append to ``messages``, change ``state``, set ``result``. An exception, or :meth:`leave`, discards
    everything. The first committed result wins; an attempt below the highest one entered raises
    :class:`FencedError`, on entering or when it wakes up and tries to write. So does a step that was entered
    on a version which a rewind has left behind since. Results and fences move with a rewind.

    ``slot`` tells parallel steps of one key apart; whatever the order they finish in, their messages stand
    in the order of their slots. ``resolve`` settles what they change both, as ``merge()`` has it: ``"ours"``
    is this step. With ``redo`` a recorded result doesn't count: what that step had written is taken back,
    and what this one comes to stands in its place, in one version.

    ``run`` names the run that it is part of: see :class:`RunToken`. :meth:`call` needs one, unless the thread
    is a session's.
    """

    def __init__(
        self,
        thread: AsyncThread,
        key: str | Sequence[Any],
        attempt: int = 1,
        slot: int | None = None,
        *,
        redo: bool = False,
        resolve: Choice = None,
        base: AnyVersion | None = None,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        run: str | RunToken | None = None,
    ) -> None:
        #: The thread as this step's caller holds it.
        self.thread = thread
        self._handle = thread.handle
        self.key = key
        self._text = step_text(key, slot)
        if type(attempt) is not int or not 1 <= attempt < 2**31:
            raise InvalidValueError("attempt counts from 1", path="attempt")
        if type(redo) is not bool:
            raise InvalidValueError("redo is True or False", path="redo")
        check_choice(resolve)
        if metadata is not None:
            check_mapping(metadata, "metadata")
        self.attempt = attempt
        self.slot = slot
        self._redo = redo
        self._resolve = resolve
        self._base = base
        self._label = None if label is None else check_name(label, "label")
        self._metadata = metadata or None
        self._token = run
        self._run: StepRun | None = None
        #: Whether whoever made it has just moved the handle to the newest version.
        self._is_fresh = False
        self._hash = key_hash(b"step", self._text)
        self._logs: dict[str, AsyncStepLog] = {}
        self._open = False
        self._left = False
        #: The version that the handle stood on then: its hash, and the line and number that it has.
        self._entered: bytes | None = None
        self._stood: tuple[Line, int] | None = None
        #: What is to be done again: the versions that recorded it, newest first, where the record of the
        #: newest is, and how to take them back.
        self._former: list[tuple[Line, int]] = []
        self._former_at = -1
        self._undo: Undo | None = None
        self.done = False
        self._result: Any = None
        #: The version that it made, now or earlier; ``None`` before.
        self.version: Version | None = None

    # ── inside the block ─────────────────────────────────────────────────────────────────────

    @property
    def result(self) -> Any:
        """What the step gives; a recorded one can't be given anew. Raises :class:`InvalidStateError` then."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        self._check_open()
        self._result = value

    @property
    def state(self) -> TrackedDict:
        self._check_open()
        return self.thread.state

    @property
    def messages(self) -> AsyncStepLog:
        return self._log("messages")

    def log(self, name: str) -> AsyncStepLog:
        return self._log(check_name(name, "log name"))

    def _log(self, name: str) -> AsyncStepLog:
        if name not in self._logs:
            self._logs[name] = AsyncStepLog(self, name)
        return self._logs[name]

    def message_id(self, slot: Any) -> str:
        """An id derived from thread, key and slot: the same after any retry or engine reset."""
        text = json.dumps([self.thread.name, self._text, str(slot)])
        return sha256(text.encode()).hexdigest()[:32]

    async def call(
        self,
        key: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        verify: Callable[..., Any] | None = None,
        retry_on: Any = (),
        **kwargs: Any,
    ) -> Any:
        """Call ``fn(*args, **kwargs)``, which has an effect on the world, at most once for this key, whatever
        becomes of the step: as :meth:`AsyncAgentSession.call`, in any process that takes part in the run.

        While another process calls it, :class:`InDoubtError` says so, and ``verify`` isn't asked; nor is it
        while that can't be known, for as long as the lease lasts. A later attempt of the same step asks it.
        Raises :class:`UsageError` if the step belongs to no run.
        """
        self._check_open()
        caller = self._run or self._handle.effect_caller
        if caller is None:
            raise UsageError(
                "an effect belongs to a run: name it with thread.step(key, run=…), or take a step of a "
                "session's thread"
            )
        options: Any = {"verify": verify, "retry_on": retry_on, "step": (self._text, self.attempt)}
        return await caller.call_effect(key, fn, args, kwargs, **options)

    def leave(self) -> None:
        """Leave the step open: when the block ends nothing is recorded, and its changes are dropped."""
        self._check_open()
        self._left = True

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidStateError("a step works inside its with block only")
        if self._left:
            raise InvalidStateError(f"the step {self.key!r} was left open; nothing more is written by it")
        if self.done:
            raise InvalidStateError(
                f"the step {self.key!r} is done; take its result, it changes nothing any more"
            )

    # ── entering and leaving ─────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> AsyncStep:
        thread, handle = self.thread, self._handle
        handle.require_clean("step()")
        if not self._is_fresh:
            await thread.refresh()
        if self._token is not None and self._run is None:
            if thread.core.join_run is None:
                raise UsageError("this store knows nothing of runs: open it with everthread.open()")
            self._run = await thread.core.join_run(thread, self._token)
        while True:
            if self._base is not None and not await thread.contains(self._base):
                raise self._fenced(f"{self._base} isn't on the line that {thread.name!r} stands on", 0)
            entered = await self._look(handle.line, handle.head)
            if await self._moved_by_joining():
                continue
            if self.done or entered >= self.attempt or self.attempt == 1:
                break
            # A higher attempt than any before: from here on the lower ones may not write.
            try:
                fence = (self._text, self.attempt, -1)
                options: Any = {"metadata": self._metadata, "key_hash": self._hash, "step": fence}
                await write_alone(handle, "step()", kind=records.FENCE, **options)
                break
            except (Landed, ConflictError):
                handle.drop_changes()
                await thread.refresh()
        if handle.line is not None and handle.head is not None:
            self._entered = handle.head.hash
            seq = handle.head.seq
            self._stood = (await thread.core.reader.owner(handle.line, seq), seq)
        if self._former:
            # Above all attempts that were ever recorded or let in: these may not write any more.
            self.attempt = max(self.attempt, entered + 1)
            try:
                self._undo = await Undo.of(handle, self._former)
                await self._undo.show()
            except BaseException:
                handle.drop_changes()
                raise
        self._open = True
        return self

    async def _moved_by_joining(self) -> bool:
        """Make sure that the run may write; whether that took a fence, which is the newest version now.

        The lease is read after the version that the handle stands on: a newer run changes the lease first,
        and writes its fence afterwards.
        """
        if self._run is None or self._token is None:
            return False
        handle = self._handle
        if self.done:
            await self._run.require_not_superseded()
            return False
        standing = handle.head.hash if handle.head is not None else b""
        if handle.vouched == (self._run.id, standing):
            return False
        if await self._run.enter(self._token):
            await self.thread.refresh()
            return True
        handle.vouched = (self._run.id, standing)
        return False

    async def _look(self, line: Line | None, head: CachedHead | None, leaving: bool = False) -> int:
        """Take note of a recorded result; the highest attempt entered so far. Raises if fenced off.

        On entering, a recorded result is there for every attempt: taking it writes nothing.
        """
        if line is None or head is None:
            return 0
        reader, stood = self._handle.core.reader, self._stood if leaving else None
        if stood is not None and not await reader.contains(line, head.seq, head.segment, *stood):
            raise self._fenced("the thread was rewound to before the version it was entered on", 0)
        found = await KeyFinder(self._handle.core, line, head).steps(self._hash)
        highest = max((attempt for _, (_, attempt, _) in found), default=0)
        recorded = next((each for each in found if each[1][2] >= 0), None)
        if highest > self.attempt and (leaving or recorded is None):
            raise self._fenced(f"attempt {highest} took over", highest)
        if recorded is None:
            return highest
        (owner, seq), (_, _, at) = recorded
        if self._redo:
            if leaving and (not self._former or self._former[0][1] != seq):
                raise self._fenced("somebody else recorded it meanwhile", highest)
            self._former = [place for place, (_, _, position) in found if position >= 0]
            self._former_at = at
            return highest
        self._result = (await read_record(self._handle, line, head, at))["result"]
        self.version = (await reader.version(owner, seq, gone=True))[0]
        self.done = True
        return highest

    def _fenced(self, why: str, newest: int) -> FencedError:
        return FencedError(
            f"attempt {self.attempt} of the step {self.key!r} must stop: {why}",
            attempt=self.attempt,
            newest=max(newest, self.attempt),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        thread, handle = self.thread, self._handle
        if error is not None or self.done or self._left:
            changed = error is None and not self._left and handle.dirty
            handle.drop_changes()
            if changed:
                raise InvalidStateError(f"the step {self.key!r} was done already; its changes were not taken")
            return
        queue, name = thread.core.update_queue, thread.name
        ticket: Ticket | None = None
        try:
            if self._undo is not None:
                self._undo.hide()
            if handle.records_each_commit:
                await workspaces.record(handle)
            # On a conflict look again, and go on from there unless somebody else was first.
            while not await self._finish():
                ticket = ticket or await queue.enter(name)
                await thread.rebase(resolve=self._resolve)
                if self._run is not None and self._token is not None:
                    # What was met there may be the fence of a newer run.
                    await self._run.enter(self._token)
            if self._run is not None and not self.done and handle.head is not None:
                # It follows a version at which the run held the lease.
                handle.vouched = (self._run.id, handle.head.hash)
                await self._run.wrote()
        except BaseException:
            handle.drop_changes()
            raise
        finally:
            if ticket is not None:
                queue.leave(ticket)

    async def _finish(self) -> bool:
        """Commit; False if somebody has written meanwhile, but not this step."""
        thread, handle = self.thread, self._handle
        standing = handle.head.hash if handle.head is not None else None
        if standing != self._entered:
            # The handle was moved inside the block, or by a rebase since: is this still our step?
            await self._look(handle.line, handle.head, leaving=True)
            if self.done:
                handle.drop_changes()
                return True
            self._entered = standing
        if ASYNC:
            await handle.settle_logs()
        before = {name: log._pending() for name, log in handle.logs.items()}
        await self._place()
        recorded = (self._text, self.attempt, self._record())
        try:
            self.version = await write_alone(
                handle,
                "step()",
                label=self._label,
                metadata=self._metadata,
                key_hash=self._hash,
                step=recorded,
            )
            return True
        except Landed:
            # Something this handle sent before the step; the step itself may or may not be recorded.
            handle.drop_changes()
            await thread.refresh()
            await self._look(handle.line, handle.head, leaving=True)
            if not self.done:
                raise ConflictError(f"the step {self.key!r} met a version of its own; run it again") from None
            return True
        except ConflictError:
            # Only what the step itself put there is taken back: it finds its place anew.
            for name, log in handle.logs.items():
                log._take_back(before.get(name))
            handle.untouch()
            found = await thread.core.find(thread.name)
            if found is not None:
                await self._look(found.line, await thread.core.head(found), leaving=True)
            if self.done:
                # Somebody else recorded this step first: that result stands.
                handle.drop_changes()
                await thread.refresh()
                return True
            return False

    def _record(self) -> int:
        """Put what is recorded of the step into its log; the position that it takes there."""
        handle = self._handle
        steps = handle.log(STEP_LOG)
        ids = [item["id"] for log in self._logs.values() for item, _ in log._items if isinstance(item, dict)]
        record = {
            "key": step_text(self.key, None),
            "slot": self.slot,
            "attempt": self.attempt,
            "seq": handle.head.seq + 1 if handle.head is not None else 1,
            "ids": ids,
            "result": self.result,
        }
        position = steps._current.count
        former = steps._current.index_of(self._former_at) if self._former else None
        steps._add(handle.lower(record, "step"), None, former, 0 if former is None else 1)
        return position

    async def _place(self) -> None:
        """Put the step's items into the handle's logs: by id where they are known, else in slot order. What
        is done again takes the place of what was there."""
        places = self._undo.apply() if self._undo is not None else {}
        for name, log in self._logs.items():
            target = self._handle.log(name)
            at = places[name] if name in places else await self._place_of_slot(name)
            for item, derived in log._items:
                before = len(target)
                await target._upsert(item, derived, at)
                if at is not None and len(target) > before:
                    at += 1

    async def _place_of_slot(self, name: str) -> int | None:
        """Before the first item of a sibling with a higher slot; ``None`` for the end."""
        if self.slot is None:
            return None
        steps, target = self._handle.log(STEP_LOG), self._handle.log(name)
        places: list[int | None] = []
        stop, near, family = len(steps), True, step_text(self.key, None)
        while stop > 0 and near:
            records, stop = await steps.read(max(stop - _SIBLINGS, 0), stop), stop - _SIBLINGS
            siblings = [each for each in records if each["key"] == family and each["slot"] is not None]
            near = bool(siblings)
            for record in siblings:
                if record["slot"] > self.slot:
                    places += [await target.find(item_id) for item_id in record["ids"]]
        return min((place for place in places if place is not None), default=None)


def step_text(key: str | Sequence[Any], slot: int | None) -> str:
    """One text per key and slot. Raises :class:`InvalidValueError` if they are none."""
    if slot is not None and (type(slot) is not int or slot < 0):
        raise InvalidValueError("slot counts from 0", path="slot")
    if isinstance(key, str):
        check_name(key, "step key")
    elif not isinstance(key, tuple | list) or not key:
        raise InvalidValueError("a step key is text or a tuple such as (turn, step)", path="key")
    elif not all(isinstance(part, str | int) and not isinstance(part, bool) for part in key):
        raise InvalidValueError("the parts of a step key are text or whole numbers", path="key")
    else:
        check_name(json.dumps(list(key)), "step key")
    return records.step_text(key, slot)


# ── looking, without doing anything ──────────────────────────────────────────────────────────


async def read_record(handle: Handle, line: Line, head: CachedHead, at: int) -> Any:
    """What is recorded of a step, by its position in the log of steps."""
    recent = head.recent.get(STEP_LOG)
    (record,) = await handle.core.reader.items(line, STEP_LOG, at, at + 1, recent, handle.open_seal)
    return record


async def find_result(handle: Handle, line: Line, head: CachedHead, text: str, default: Any) -> Any:
    """See :meth:`AsyncThread.step_result`."""
    for _, (_, _, at) in await KeyFinder(handle.core, line, head).steps(key_hash(b"step", text)):
        if at >= 0:
            return (await read_record(handle, line, head, at))["result"]
    return default


async def list_steps(handle: Handle, line: Line, head: CachedHead) -> AsyncIterator[RecordedStep]:
    """See :meth:`AsyncThread.steps`."""
    state, reader = head.logs.get(STEP_LOG, EMPTY_LOG), handle.core.reader
    for start in range((state.length - 1) // _PAGE * _PAGE, -1, -_PAGE):
        found: list[Any] = []
        for first, last in state.ranges(start, min(start + _PAGE, state.length)):
            found += await reader.items(
                line, STEP_LOG, first, last, head.recent.get(STEP_LOG), handle.open_seal
            )
        for record in reversed(found):
            yield RecordedStep(
                key=records.step_key(record["key"])[0],
                slot=record["slot"],
                attempt=record["attempt"],
                result=record["result"],
                version=await _recorded_by(handle, line, head, record),
            )


async def _recorded_by(handle: Handle, line: Line, head: CachedHead, record: Any) -> Version:
    """The version that recorded a step."""
    core, key, seq = handle.core, records.step_key(record["key"])[0], record["seq"]
    if seq <= head.seq:
        with suppress(VersionPrunedError, StateCorruptedError):
            version = (await core.reader.version(line, seq, gone=True))[0]
            if (version.step, version.slot) == (key, record["slot"]):
                return version
    # A line that was made anew from a damaged one numbers its versions itself.
    hashed = key_hash(b"step", records.step_text(key, record["slot"]))
    for place, (_, _, at) in await KeyFinder(core, line, head).steps(hashed):
        if at >= 0:
            return (await core.reader.version(*place, gone=True))[0]
    raise StateCorruptedError(f"no version recorded the step {key!r} of {line.name!r}", where=line.name)
