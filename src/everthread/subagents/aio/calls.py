"""One call of a subagent: begun in the parent's document, carried out by ``start``, recorded with its end.

In a thread or a session each of these is a version, so that whoever dies in between finds the child again.
In a step both are part of what the step commits; then the child is found again by its name, and the engine or
the caller repeats the step.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from everthread.errors import (
    ConflictError,
    EffectMismatchError,
    EverthreadError,
    FencedError,
    InvalidValueError,
    KeyReusedError,
    MaxTurnsError,
    NotFoundError,
    ThreadNotFoundError,
    UnavailableError,
    UsageError,
    VersionNotFoundError,
)
from everthread.sessions.aio.fenced_thread import AsyncFencedThread
from everthread.sessions.aio.session import AsyncAgentSession
from everthread.sessions.aio.status import records_of
from everthread.sessions.children import (
    MODES,
    Child,
    ThreadMode,
    children_in,
    drop_children,
    put_child,
    remove_child,
)
from everthread.sessions.effects import fingerprint
from everthread.sessions.usage import Total, Usage
from everthread.subagents.results import UnfitError, Wanted, fitted, plain_form, restored
from everthread.subagents.task import (
    AGENT_TAG,
    CHILD_TAG,
    PARENT_TAG,
    Outcome,
    Task,
    check_call,
    child_name,
    claim_key,
    failure,
    log_name,
    shortened,
    step_key,
    task_key,
)
from everthread.threads.aio.core import Core
from everthread.threads.aio.fork import deny_effects
from everthread.threads.aio.item_times import item_versions
from everthread.threads.aio.keys import committed_under
from everthread.threads.aio.step import AsyncStep
from everthread.threads.aio.store import AsyncThreadStore
from everthread.threads.aio.thread import AnyVersion, AsyncThread
from everthread.threads.twins import ASYNC, refuse_coroutine

#: What a subagent may be called from.
AsyncParent = AsyncAgentSession | AsyncThread | AsyncStep

#: Messages, from the end, among which the one is looked for that asks for a call.
_LOOKED_AT = 256


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a subagent is, apart from the function that does its work."""

    name: str
    mode: ThreadMode
    result: Wanted = None
    sandbox: Any = None


class _NoSuchChildError(NotFoundError):
    """There is no child of the name that a caller gave."""


class _MovedError(Exception):
    """Somebody else has gone on with the thread that was to be continued."""


# ── the whole of it ──────────────────────────────────────────────────────────────────────────


async def call(
    spec: Spec,
    start: Callable[[Task], Any],
    parent: AsyncParent,
    call_id: str,
    prompt: Any,
    of: str | None,
    before: AnyVersion | None,
) -> Outcome:
    """See :meth:`Subagent.call`."""
    check_call(spec.name, call_id)
    thread = _thread(parent)
    if not isinstance(parent, AsyncStep):
        async with _held(parent):
            recorded = await thread.step_result(step_key(spec.name, call_id))
        if recorded is not None:
            _require_same(recorded["print"], _print(prompt), call_id)
            return _outcome(recorded, spec)
    try:
        task = await begin(spec, parent, call_id, prompt, of, before)
    except (_NoSuchChildError, VersionNotFoundError) as error:
        # The model has named a child that isn't there, or what is to be gone on from was pruned.
        return Outcome(error=failure(spec.name, error), reason="failed")
    return await end(spec, parent, task, await _answer(spec, start, task))


async def _answer(spec: Spec, start: Callable[[Task], Any], task: Task) -> Any:
    try:
        answer = start(task)
        if ASYNC and inspect.isawaitable(answer):
            answer = await answer
    except (FencedError, UnavailableError):
        # Another run has the child, or nothing can be written: that isn't its answer.
        raise
    except Exception as error:
        return error
    if not ASYNC:
        refuse_coroutine(answer, "start", "call it from a thread or session of an async store")
    return answer


# ── beginning ────────────────────────────────────────────────────────────────────────────────


async def begin(
    spec: Spec,
    parent: AsyncParent,
    call_id: str,
    prompt: Any,
    of: str | None,
    before: AnyVersion | None,
) -> Task:
    """See :meth:`Subagent.begin`."""
    check_call(spec.name, call_id)
    thread = _thread(parent)
    print_ = _print(prompt)
    while True:
        child = await _begin_link(spec, parent, call_id, print_, of, before)
        try:
            version = await _claim(thread.core, child, thread)
        except _MovedError:
            await _unlink(parent, child.key)
            continue
        except VersionNotFoundError:
            await _unlink(parent, child.key)
            raise
        log = log_name(spec.name) if child.mode == "parent" else "messages"
        return Task(
            name=spec.name,
            thread=child.thread,
            key=child.key,
            mode=child.mode,
            prompt=prompt,
            version=version,
            log=log,
            parent=thread.name,
            parent_version=child.parent_version,
            call=call_id,
            sandbox=spec.sandbox,
            snapshot=child.snapshot,
        )


async def _begin_link(
    spec: Spec,
    parent: AsyncParent,
    call_id: str,
    print_: str,
    of: str | None,
    before: AnyVersion | None,
) -> Child:
    """The open entry of this call in the parent's document: the one that is there, or a new one."""
    thread = _thread(parent)
    if isinstance(parent, AsyncStep):
        found = await _plan(thread, spec, call_id, print_, of, before, durable=False)
        put_child(parent.state, found)
        return found
    if thread.head is None:
        await _make(thread)
    while True:
        with suppress(ConflictError):
            async with _writing(parent):
                known = _open_child(thread, spec.name, call_id)
                if known is not None and known.parent == thread.uid:
                    _require_same(known.print, print_, call_id)
                    return known
                made = await _plan(thread, spec, call_id, print_, of, before, durable=True)
                if known is not None:
                    # This is a fork of the thread that had begun it, and does that work by itself.
                    remove_child(thread.state, known.key)
                put_child(thread.state, made)
            return made


async def _make(thread: AsyncThread) -> None:
    """A child belongs to a thread that exists."""
    thread.handle.require_clean("a call of a subagent")
    try:
        await thread.commit()
    except ConflictError:
        await thread.discard()
        await thread.refresh()


def _open_child(thread: AsyncThread, name: str, call_id: str) -> Child | None:
    for child in children_in(thread.state):
        if child.is_open and (child.name, child.call) == (name, call_id):
            return child
    return None


async def _plan(
    thread: AsyncThread,
    spec: Spec,
    call_id: str,
    print_: str,
    of: str | None,
    before: AnyVersion | None,
    *,
    durable: bool,
) -> Child:
    """Which thread a child is to work on, and from where. Writes nothing."""
    head, uid = thread.head, thread.uid
    if head is None or uid is None:
        raise NotFoundError(f"there is no thread {thread.name!r} yet: commit something, then call a subagent")
    seq = head.seq if durable else None
    source, version, snapshot = await _origin(thread, spec, call_id, of, before)
    # The same call that goes on from something else is another task.
    key = task_key(uid, spec.name, call_id, seq, version or "")
    used = Usage()
    if spec.mode == "parent":
        key, name, source, version = task_key(uid, spec.name, call_id, seq), thread.name, None, head.id
    elif spec.mode == "continue" and source is not None and await _can_go_on(thread, source, version, key):
        used = await _used(thread.core, source)
        name, source = source, None
    else:
        name = await _free_name(thread.core, thread.name, spec.name, call_id, key)
    return Child(
        key=key,
        name=spec.name,
        call=call_id,
        thread=name,
        mode=spec.mode,
        version=version,
        source=source,
        usage=used,
        snapshot=snapshot,
        parent=uid,
        parent_version=head.id,
        print=print_,
        at_us=thread.core.runtime.now_us(),
    )


async def _origin(
    thread: AsyncThread, spec: Spec, call_id: str, of: str | None, before: AnyVersion | None
) -> tuple[str | None, str | None, Any]:
    """What a child goes on from: a thread, its version, and a snapshot; nothing, if it begins anew."""
    if spec.mode in ("new", "parent"):
        return None, None, None
    former = await _former(thread, spec.name, of)
    if former is not None:
        return former.thread, former.version, former.snapshot
    if spec.mode == "continue":
        return None, None, None
    if before is None:
        asked = await _before_call(thread, call_id)
    else:
        asked = (await thread.handle.find_version(before)).id
    return (None, None, None) if asked is None else (thread.name, asked, None)


async def _former(thread: AsyncThread, name: str, of: str | None) -> Child | None:
    """The child that is gone on from: the newest of this name that has ended, or the one whose thread or call
    is ``of``; ``None`` if there is none, or ``of`` is the parent itself."""
    if of == thread.name:
        return None
    for child in reversed(children_in(thread.state)):
        if child.name != name or child.is_open or child.mode == "parent":
            continue
        if of in (None, child.thread, child.call) and await thread.core.find(child.thread) is not None:
            return child
    if of is not None:
        raise _NoSuchChildError(f"{thread.name!r} has no subagent {name!r} that ended and is called {of!r}")
    return None


async def _can_go_on(thread: AsyncThread, source: str, version: str | None, key: str) -> bool:
    """Whether a child's thread is still what its parent knows, or was claimed by this very task before. A
    parent in which no effects are to be made forks a child in which they are."""
    child = await _open(thread.core, source)
    if thread.effects == "deny" and child.effects != "deny":
        return False
    try:
        if await committed_under(child, claim_key(key)) is not None:
            return True
    except KeyReusedError:
        return False
    return child.head is not None and child.head.id == version


async def _free_name(core: Core, parent: str, name: str, call_id: str, key: str) -> str:
    """The name of a child's thread. One that is taken is somebody else's, or was begun by a version that the
    parent has gone back behind."""
    wanted = child_name(parent, name, call_id)
    if await core.find(wanted) is None:
        return wanted
    with suppress(KeyReusedError):
        if await committed_under(await _open(core, wanted), claim_key(key)) is not None:
            return wanted
    return child_name(parent, name, call_id, key[:8])


async def _before_call(thread: AsyncThread, call_id: str) -> str | None:
    """The version before the one that brought the message which asks for the call, so that a fork holds no
    call without a result; the head, if no message does; ``None`` if there is none before it."""
    log, head = thread.messages, thread.head
    first = max(0, len(log) - _LOOKED_AT)
    for at, message in enumerate(await log.read(first), first):
        if _mentions(message, call_id):
            (seq, *_) = await item_versions(thread, log.name, at)
            if seq is None:
                raise UsageError(f"the call {call_id!r} was asked for long ago; name the version before it")
            return (await thread.handle.find_version(seq - 1)).id if seq > 1 else None
    return None if head is None else head.id


def _mentions(value: Any, text: str) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str) and part == text:
            return True
        if isinstance(part, dict):
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
    return False


async def _claim(core: Core, child: Child, parent: AsyncThread) -> str | None:
    """Make the version with which the child's work begins, once; its id. If no effects are to be made in the
    parent, none are made in the child. Raises :class:`_MovedError` if its thread has become somebody else's.
    """
    if child.mode == "parent":
        return child.version
    goes_on = child.source is None and child.version is not None
    thread = await _open(core, child.thread)
    if child.source is not None:
        source = await _open(core, child.source)
        thread = await source.fork(child.thread, at=child.version, key=child.key, effects=parent.effects)
    while True:
        if thread.head is not None:
            try:
                known = await committed_under(thread, claim_key(child.key))
            except KeyReusedError as reused:
                if goes_on:
                    raise _MovedError from None
                # Somebody has rewound it: it goes on from there.
                known = reused.version
            if known is not None:
                return known.id
            if goes_on and thread.head.id != child.version:
                raise _MovedError
        if child.source == parent.name:
            # A copy of the parent has its words, not its children.
            drop_children(thread.state)
        if parent.effects == "deny":
            deny_effects(thread)
        tags = {AGENT_TAG: child.name, PARENT_TAG: child.parent, CHILD_TAG: child.thread}
        try:
            return (await thread.commit(metadata=tags, key=claim_key(child.key))).id
        except ConflictError:
            await thread.discard()
            await thread.refresh()


# ── ending ───────────────────────────────────────────────────────────────────────────────────


async def end(spec: Spec, parent: AsyncParent, task: Task, answer: Any) -> Outcome:
    """See :meth:`Subagent.end`."""
    thread = _thread(parent)
    made = _fit(spec, answer)
    if isinstance(parent, AsyncStep):
        known = _child_of(parent.state, task)
        made = await _completed(thread.core, task, made, known)
        put_child(parent.state, _ended(known, task, made, thread))
        return made
    async with _held(parent):
        await thread.refresh()
        known = _child_of(thread.state, task)
        made = await _completed(thread.core, task, made, known)
        try:
            return await _record_end(spec, thread, task, made, known)
        except InvalidValueError as error:
            why = shortened(f"The answer of the subagent {spec.name!r} can't be stored: {error}")
            made = _with(made, value=None, snapshot=None, error=why)
            return await _record_end(spec, thread, task, made, known)


async def _record_end(
    spec: Spec, thread: AsyncThread, task: Task, made: Outcome, known: Child | None
) -> Outcome:
    """One version of the parent: the entry of the child, and what came of it."""
    async with thread.step(step_key(task.name, task.call), metadata={AGENT_TAG: spec.name}) as step:
        if not step.done:
            put_child(step.state, _ended(known, task, made, thread))
            step.result = _record(made, task)
            return made
    return _outcome(step.result, spec)


def _child_of(state: Any, task: Task) -> Child | None:
    return next((each for each in children_in(state) if each.key == task.key), None)


def _fit(spec: Spec, answer: Any) -> Outcome:
    """What a child has answered, checked. An error is an answer, too."""
    if isinstance(answer, MaxTurnsError):
        return Outcome(error=failure(spec.name, answer), reason="max_turns")
    if isinstance(answer, BaseException):
        return Outcome(error=failure(spec.name, answer), reason="failed")
    made = answer if isinstance(answer, Outcome) else Outcome(answer)
    if made.error is not None:
        return made
    try:
        return _with(made, value=fitted(made.value, spec.result, spec.name))
    except UnfitError as error:
        return _with(made, value=None, error=str(error))


def _with(made: Outcome, **changed: Any) -> Outcome:
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return Outcome(**{**fields, **changed})


async def _completed(core: Core, task: Task, made: Outcome, known: Child | None) -> Outcome:
    """What the child didn't say itself, as its thread and its session have it."""
    reason, usage, version = made.reason, made.usage, made.version
    name = made.thread or task.thread
    if task.mode != "parent" and await core.find(name) is not None:
        child = await _open(core, name)
        if version is None and child.head is not None:
            version = child.head.id
        if not usage or reason is None:
            records = await records_of(child)
            run = records.last_run
            since = 0 if known is None or known.at_us is None else known.at_us
            if reason is None and run is not None and run.started_us >= since:
                reason = run.reason or run.status
            if not usage:
                before = Usage() if known is None else known.usage
                total = Total(usage=await records.usage)
                usage = total.since(Total(usage=before)).usage
    elif task.mode == "parent":
        version = version or task.version
    if reason is None:
        reason = "completed" if made.error is None else "failed"
    return _with(made, reason=reason, usage=dict(usage), thread=name, version=version)


def _ended(known: Child | None, task: Task, made: Outcome, thread: AsyncThread) -> Child:
    """The entry of a child that has ended."""
    return Child(
        key=task.key,
        name=task.name,
        call=task.call,
        thread=made.thread or task.thread,
        mode=_mode(task),
        status="completed" if made.error is None else "failed",
        version=made.version,
        source=None if known is None else known.source,
        usage=Usage(made.usage),
        reason=made.reason,
        snapshot=made.snapshot,
        parent=(thread.uid or "") if known is None else known.parent,
        parent_version=task.parent_version,
        at_us=None if known is None else known.at_us,
    )


def _record(made: Outcome, task: Task) -> dict[str, Any]:
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return {**fields, "value": plain_form(made.value), "print": _print(task.prompt)}


def _outcome(record: Any, spec: Spec) -> Outcome:
    """What was recorded, in the form that was asked for."""
    made = Outcome(**{name: record.get(name) for name in Outcome.__dataclass_fields__})
    if made.error is not None:
        return made
    return _with(made, value=restored(made.value, spec.result, spec.name))


def _mode(task: Task) -> ThreadMode:
    # An engine has handed it from one place to another, as plain data.
    for mode in MODES:
        if mode == task.mode:
            return mode
    raise InvalidValueError(f"mode is one of {', '.join(MODES)}, not {task.mode!r}", path="mode")


# ── parents ──────────────────────────────────────────────────────────────────────────────────


def _thread(parent: AsyncParent) -> AsyncThread:
    if isinstance(parent, AsyncThread):
        return parent
    if isinstance(parent, AsyncAgentSession | AsyncStep):
        return parent.thread
    raise UsageError(
        f"a subagent is called from a session, a thread or a step, not from {type(parent).__name__}"
    )


@asynccontextmanager
async def _held(parent: AsyncParent) -> AsyncIterator[None]:
    """While versions are made of the parent's thread: a session's other tools wait, what isn't saved is."""
    thread = _thread(parent)
    if isinstance(thread, AsyncFencedThread) and thread.is_held:
        async with thread.mutex:
            await thread.save()
            yield
    else:
        thread.handle.require_clean("a call of a subagent")
        yield


@asynccontextmanager
async def _writing(parent: AsyncParent) -> AsyncIterator[None]:
    """What is changed in the block is a version of the parent's thread, made on its newest one. Raises
    :class:`ConflictError`, and keeps nothing, if somebody else was first."""
    thread = _thread(parent)
    if isinstance(thread, AsyncFencedThread) and thread.is_held:
        async with thread.writing(rebases=False):
            yield
        return
    thread.handle.require_clean("a call of a subagent")
    await thread.refresh()
    try:
        yield
        await thread.commit()
    except BaseException:
        with suppress(EverthreadError):
            await thread.discard()
        raise


async def _unlink(parent: AsyncParent, key: str) -> None:
    """Take an open entry back."""
    if isinstance(parent, AsyncStep):
        remove_child(parent.state, key)
        return
    while True:
        with suppress(ConflictError):
            async with _writing(parent):
                remove_child(_thread(parent).state, key)
            return


async def _open(core: Core, name: str) -> AsyncThread:
    thread = AsyncThread(core, name)
    if ASYNC:
        await thread.refresh()
    return thread


async def _used(core: Core, name: str) -> Usage:
    """What all runs on a thread have used."""
    return await (await records_of(await _open(core, name))).usage


def _print(prompt: Any) -> str:
    return fingerprint(None, (prompt,), {})


def _require_same(known: str, given: str, call_id: str) -> None:
    if known and known != given:
        raise EffectMismatchError(
            f"the call {call_id!r} was begun with another prompt; give each call an id of its own",
            key=call_id,
        )


# ── deleting ─────────────────────────────────────────────────────────────────────────────────


async def delete_with_children(store: AsyncThreadStore, name: str) -> list[str]:
    """See ``everthread.subagents.delete_with_children``."""
    thread = await store.thread(name)
    if thread.head is None or thread.uid is None:
        raise ThreadNotFoundError(f"there is no thread {name!r}")
    deleted: list[str] = []
    for child in await children_begun(store, thread.uid):
        with suppress(ThreadNotFoundError):
            deleted += await delete_with_children(store, child)
    await thread.delete()
    return [*deleted, name]


async def children_begun(store: AsyncThreadStore, uid: str) -> list[str]:
    """The threads of all children that a thread has begun, also in versions that it has gone back behind."""
    tagged = [info.name async for info in store.threads(metadata={PARENT_TAG: uid})]
    found = []
    for name in tagged:
        # A fork of a child has the same metadata, and belongs to whoever made it.
        own = {PARENT_TAG: uid, CHILD_TAG: name}
        found += [info.name async for info in store.threads(name, own) if info.name == name]
    return found
