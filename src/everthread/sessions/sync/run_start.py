# Generated from src/everthread/sessions/aio/run_start.py by tools/twin.py: change that, then run: make twin
"""How a run begins: the thread, the lease, what is found, and the fence against the run before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.arguments import check_mapping, check_name
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    KeyReusedError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from everthread.sessions.lease import Lease, token_of
from everthread.sessions.sync.effects import Ledger
from everthread.sessions.sync.fenced_thread import FencedThread, RunGuard
from everthread.sessions.sync.journal import (
    Runs,
    continue_past_damage,
    find_keyed,
    forget_a_namesake,
    open_journal,
    read_journal,
)
from everthread.sessions.sync.lease import OwnLease, SharedLease
from everthread.sessions.sync.status import SessionRecords, read_records, uid_of
from everthread.sessions.tasks import custom_part
from everthread.threads.sync.fork import deny_effects
from everthread.threads.sync.thread import AnyVersion, Effects, Thread
from everthread.values import Personal
from everthread.versions import RunToken

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.past import Past
    from everthread.threads.sync.store import ThreadStore


MODES: Final = ("continue", "new", "fork")
SYSTEM_ID: Final = "system"
_TTL_S_MAX: Final = 1e9


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a session was asked to be."""

    name: str | None = None
    mode: str = "continue"
    source: str | Thread | None = None
    at: AnyVersion | None = None
    key: str | None = None
    effects: Effects = "inherit"
    prepare: Callable[..., Any] | None = None
    transform: Callable[..., Any] | None = None
    agent: str | None = None
    user_id: str | None = None
    system: Any = None
    replace_system: bool = False
    initial: Mapping[str, Any] | None = None
    ttl_s: float = 300.0
    max_turns: int | None = None
    must_exist: bool = False
    run: str | RunToken | None = None
    #: It does something for the run before it, which stays the last one: it settles an effect.
    unlisted: bool = False
    #: The run that began it makes no effects: neither does a thread that is made for it.
    denied: bool = False

    def __post_init__(self) -> None:
        names = (
            (self.name, "session id"),
            (self.agent, "agent"),
            (self.user_id, "user id"),
            (self.key, "key"),
        )
        for value, what in names:
            if value is not None:
                check_name(value, what)
        if self.mode not in MODES:
            raise InvalidValueError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}", path="mode")
        if (self.source is None) == (self.mode == "fork"):
            raise InvalidValueError("a fork, and only a fork, needs its source", path="source")
        if self.key is not None and (self.mode == "continue" or self.name is None):
            raise InvalidValueError(
                'a key says which call begins a thread: it needs a name, and mode "new" or "fork"', path="key"
            )
        if self.effects not in ("inherit", "deny"):
            raise InvalidValueError(f'effects is "inherit" or "deny", not {self.effects!r}', path="effects")
        for given, what in (
            (self.at is not None, "at"),
            (self.effects == "deny", "effects"),
            (self.prepare is not None, "prepare"),
            (self.transform is not None, "transform"),
        ):
            if given and self.mode != "fork":
                raise InvalidValueError(f'{what} is for mode "fork"', path=what)
        if self.system is not None and not self.system:
            raise InvalidValueError("the system message is empty; leave it out, or write one", path="system")
        if self.initial is not None:
            check_mapping(self.initial, "initial")
            custom_part(self.initial)
            if self.mode == "fork":
                raise InvalidValueError("a fork begins with the state of its source", path="initial")
        if type(self.ttl_s) not in (int, float) or not 0 < self.ttl_s <= _TTL_S_MAX:
            raise InvalidValueError("lease_ttl is a number of seconds, more than none", path="lease_ttl")
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 0):
            raise InvalidValueError(
                "max_turns is a whole number, not below 0, or None for no limit", path="max_turns"
            )
        if self.run is not None:
            token_of(self.run)


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that holds its session: its handles, and what it found."""

    thread: FencedThread
    journal: FencedThread
    guard: RunGuard
    runs: Runs
    uid: str
    run_id: str
    user_id: str | None
    found: SessionRecords


def begin(store: ThreadStore, options: SessionOptions, parent: Runs | None = None) -> StartedRun:
    """Begin a run. Raises :class:`SessionBusyError` if another one holds the session.

    The lease records that it has begun. A process that dies on the way leaves a lease whose process is gone,
    and at most a run without an end.
    """
    core = store.core
    run_id = core.runtime.random_bytes(6).hex() if options.run is None else token_of(options.run)[0]
    name = options.name if options.name is not None else f"session/{core.runtime.random_bytes(8).hex()}"
    thread, created = _thread(store, name, options, run_id)
    uid = uid_of(thread)
    ttl_us = round(options.ttl_s * 1_000_000)
    if options.run is not None:
        joined = SharedLease(core, uid, options.run, agent=options.agent, ttl_us=ttl_us)
        return join(core, name, uid, options, joined, created, parent)
    lease = OwnLease(core, uid, run=run_id, agent=options.agent, ttl_us=ttl_us, unlisted=options.unlisted)
    before = lease.acquire()
    try:
        return _started(core, name, uid, options, lease, before, created, parent)
    except BaseException:
        with suppress(EverthreadError):
            lease.release(fence_due=before is not None and not before.given_back)
        raise


def join(
    core: Core,
    name: str,
    uid: str,
    options: SessionOptions,
    lease: SharedLease,
    created: bool = False,
    parent: Runs | None = None,
) -> StartedRun:
    """Become part of a run that its caller named, or begin it.

    A process that dies on the way leaves a lease that says what is still to be done: whoever comes next with
    the same name records the run, and fences off the runs before.
    """
    before = lease.acquire()
    return _started(core, name, uid, options, lease, before, created, parent)


def _thread(store: ThreadStore, name: str, options: SessionOptions, run_id: str) -> tuple[Thread, bool]:
    """The thread to work on, and whether it was created just now."""
    if options.mode == "fork":
        assert options.source is not None
        source = store.thread(options.source) if isinstance(options.source, str) else options.source
        _check_system(source if options.at is None else source.at(options.at), options)
        forked = source.fork(
            name,
            at=options.at,
            key=options.key,
            effects="deny" if options.denied else options.effects,
            prepare=options.prepare,
            transform=options.transform,
        )
        return forked, False
    thread = store.thread(name)
    if thread.head is None and options.must_exist:
        raise ThreadNotFoundError(f"there is no session {name!r} to restore")
    if thread.head is None:
        # In the first version: whatever is retried, no thread is without these, or has them twice.
        if options.system is not None:
            thread.messages.append(_system_message(options.system))
        if options.initial is not None:
            thread.state.update(custom_part(options.initial))
        if options.denied:
            deny_effects(thread)
        try:
            thread.commit(metadata=_tags(options, run_id), key=_beginning(options))
            return thread, True
        except ConflictError:
            # Somebody created it in between.
            thread = store.thread(name)
    if options.mode == "new" and not _began_before(thread, options):
        raise ThreadExistsError(
            f"a thread named {name!r} exists already; continue it, or choose another name"
        )
    _check_system(thread, options)
    return thread, False


def _beginning(options: SessionOptions) -> str | None:
    """The commit key of the version that begins a new thread."""
    return None if options.key is None else f"session:{options.key}"


def _began_before(thread: Thread, options: SessionOptions) -> bool:
    """Whether the same call made this thread: it was repeated, after a kill for one."""
    key = _beginning(options)
    found = None if key is None else find_keyed(thread, key)
    return found is not None and found.seq == 1


def _check_system(thread: Thread | Past, options: SessionOptions) -> None:
    """Raise :class:`InvalidStateError` if the thread's own system message isn't the one that is wanted. Where
    there is no message yet, it will be the first."""
    if options.system is None or options.replace_system or not len(thread.messages):
        return
    if not _is_same(_own_system(thread), _system_message(options.system)):
        raise InvalidStateError(
            "this thread has another system message than system= says, or none; leave system= out to go on "
            "with it, or give replace_system=True to put the new one in its place"
        )


def _own_system(thread: Thread | Past) -> Any:
    """The system message that a session was begun with: the first message, unless it was taken away."""
    for message in thread.messages.read(0, 1):
        if isinstance(message, Mapping) and message.get("id") == SYSTEM_ID:
            return message
    return None


def _is_same(known: Any, wanted: Any) -> bool:
    return bool(known is not None and dict(known) == {"id": SYSTEM_ID, **wanted})


def _replace_system(thread: FencedThread, options: SessionOptions, run_id: str) -> None:
    """Put the wanted system message in the place of the thread's own, as one version."""
    message = _system_message(options.system)
    if _is_same(_own_system(thread), message):
        return
    with thread.step(("session", "system", run_id)) as step:
        step.messages.append(message)


def _system_message(system: Any) -> Any:
    if isinstance(system, Mapping):
        return {"id": SYSTEM_ID, **system}
    return {"id": SYSTEM_ID, "role": "system", "content": system}


def _tags(options: SessionOptions, run_id: str) -> dict[str, Any]:
    tags = {"run": run_id, "agent": options.agent}
    return {name: value for name, value in tags.items() if value is not None}


def _started(
    core: Core,
    name: str,
    uid: str,
    options: SessionOptions,
    lease: OwnLease,
    before: Lease | None,
    created: bool,
    parent: Runs | None,
) -> StartedRun:
    """The handles of a run that has its lease, and what it found."""
    guard = RunGuard(lease)
    thread = FencedThread(core, name, guard)
    journal = open_journal(core, uid, guard)
    runs = Runs(journal, uid, lease.holder, parent, unlisted=options.unlisted)
    if isinstance(options.run, RunToken):
        parts = {"workflow": options.run.workflow, "execution": options.run.execution}
        runs.about = {name: value for name, value in parts.items() if value}
    _check_line(thread, uid)
    tags = _tags(options, lease.holder.run)
    found = _look(core, name, uid, before)
    user_id = options.user_id or found.user_id
    if isinstance(lease, SharedLease):
        taken_over = lease.fence_due
        unrecorded = not runs.is_open
    else:
        taken_over = before is not None and not before.given_back
        unrecorded = False
    if (
        taken_over
        or unrecorded
        or found.losses is not None
        or user_id != found.user_id
        or journal.recovered is not None
    ):
        found = _begin_now(runs, journal, name, user_id, lambda: _look(core, name, uid, before), before)
        if found.losses is not None:
            # What the lease knew of is gone: the next run is to compare with what there is from here on.
            lease.renew()
            forget_a_namesake(core, name)
        if created and options.name is None and found.losses is not None:
            # No thread had this name before: it was generated just now.
            Ledger(journal, lease.holder.run).accept_loss()
            found.losses = None
    else:
        runs.begin(_sealed(user_id))
        # Another run may have taken the lease since: then what was read is that run's.
        thread.require_lease()
    if taken_over:
        _fence(thread, uid, tags, found, lease)
    elif not created:
        thread.tags = tags
    if options.system is not None and (options.replace_system or not len(thread.messages)) and not created:
        _replace_system(thread, options, lease.holder.run)
    runs.ask_children(core)
    return StartedRun(
        thread=thread,
        journal=journal,
        guard=guard,
        runs=runs,
        uid=uid,
        run_id=lease.holder.run,
        user_id=user_id,
        found=found,
    )


def _begin_now(
    runs: Runs,
    journal: FencedThread,
    name: str,
    user_id: str | None,
    look: Callable[[], SessionRecords],
    before: Lease | None,
) -> SessionRecords:
    """Record in the journal that the run has begun; what there was by then.

    After a takeover this commit is the fence: until it stands, the run before may still write there. What it
    wrote is read again.
    """
    while True:
        # First where this run stands, then what there is: if that moved in between, the commit fails.
        journal.refresh()
        continue_past_damage(journal, name)
        found = look()
        if runs.is_open and found.losses is None:
            # Another process of the same run has done it.
            runs.begin(_sealed(user_id))
            return found
        try:
            runs.begin_now(_sealed(user_id or found.user_id), before, found.losses)
            return found
        except ConflictError:
            journal.discard()


def _fence(
    thread: FencedThread,
    uid: str,
    tags: Mapping[str, Any],
    found: SessionRecords,
    lease: OwnLease,
) -> None:
    """Commit to the thread, so that the run before can't write there any more; ``found`` follows."""
    # Of a run that several processes share each may find that this is still to be done.
    key = f"everthread/fence/{lease.holder.since_us}-{lease.fence}" if lease.shared else None
    while True:
        thread.refresh()
        _check_line(thread, uid)
        found.thread.refresh()
        try:
            thread.commit(metadata=tags, key=key)
            break
        except KeyReusedError:
            # It was there, and somebody has gone back since.
            thread.discard()
            break
        except ConflictError:
            thread.discard()
    if isinstance(lease, SharedLease):
        lease.fenced_off()


def _sealed(user_id: str | None) -> Personal | None:
    return None if user_id is None else Personal(user_id, user_id)


def _look(core: Core, name: str, uid: str, before: Lease | None) -> SessionRecords:
    thread = Thread(core, name)
    _check_line(thread, uid)
    return read_records(thread, read_journal(core, uid), before)


def _check_line(thread: Thread, uid: str) -> None:
    if thread.head is None or thread.uid != uid:
        raise ThreadDeletedError(f"the thread {thread.name!r} was deleted; begin again to get a new one")
