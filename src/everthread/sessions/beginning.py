"""How a run begins: the thread, the lease, the fence, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.arguments import check_name
from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidValueError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from everthread.sessions import journal as j
from everthread.sessions.beside import core_of, uid_of
from everthread.sessions.held import HeldThread, Hold
from everthread.sessions.lease import HeldLease, Lease
from everthread.sessions.losses import forget_a_namesake, go_on
from everthread.sessions.records import SessionRecords
from everthread.sessions.runs import Runs
from everthread.threads.process import here
from everthread.threads.sync.thread import AnyVersion, Thread
from everthread.values import Personal

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.store import ThreadStore

MODES: Final = ("continue", "new", "fork")
SYSTEM_ID: Final = "system"
_TTL_S_MAX: Final = 1e9


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a session was asked to be."""

    name: str | None = None
    mode: str = "continue"
    source: str | Thread | None = None
    at: AnyVersion | None = None
    agent: str | None = None
    user_id: str | None = None
    system: Any = None
    ttl_s: float = 300.0
    max_turns: int | None = None
    must_exist: bool = False

    def __post_init__(self) -> None:
        names = ((self.name, "session id"), (self.agent, "agent"), (self.user_id, "user id"))
        for value, what in names:
            if value is not None:
                check_name(value, what)
        if self.mode not in MODES:
            raise InvalidValueError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}", path="mode")
        if (self.source is None) == (self.mode == "fork"):
            raise InvalidValueError("a fork, and only a fork, needs its source", path="source")
        if self.system is not None and not self.system:
            raise InvalidValueError("the system message is empty; leave it out, or write one", path="system")
        if type(self.ttl_s) not in (int, float) or not 0 < self.ttl_s <= _TTL_S_MAX:
            raise InvalidValueError("lease_ttl is a number of seconds, more than none", path="lease_ttl")
        if self.max_turns is not None and (type(self.max_turns) is not int or self.max_turns < 0):
            raise InvalidValueError("max_turns is a whole number, or None for no limit", path="max_turns")


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that holds its session: its handles, and what it found."""

    thread: HeldThread
    journal: HeldThread
    hold: Hold
    runs: Runs
    uid: str
    run_id: str
    user_id: str | None
    found: SessionRecords


def begin(store: ThreadStore, wanted: Wanted) -> Begun:
    """Begin a run. Raises :class:`SessionBusyError` if another one holds the session.

    Whoever dies on the way leaves a lease whose process is gone, and at most a run without an end. Until the
    fence stands, in the journal and then in the thread, the run before may still write; what it wrote is read
    again, so that ``found`` is what there was when it could write no more.
    """
    core = core_of(store)
    run_id = core.runtime.random_bytes(6).hex()
    name = wanted.name if wanted.name is not None else f"session/{core.runtime.random_bytes(8).hex()}"
    thread, created = _thread(store, name, wanted, run_id)
    uid = uid_of(thread)
    ttl_us = round(wanted.ttl_s * 1_000_000)
    lease = HeldLease(core, name, uid, run=run_id, agent=wanted.agent, ttl_us=ttl_us)
    before = lease.acquire()
    try:
        return _fenced(core, name, wanted, uid, run_id, Hold(lease), before, created and before is None)
    except BaseException:
        with suppress(EverthreadError):
            lease.release()
        raise


def _thread(store: ThreadStore, name: str, wanted: Wanted, run_id: str) -> tuple[Thread, bool]:
    """The thread to work on, and whether it was created just now."""
    if wanted.mode == "fork":
        assert wanted.source is not None
        source = store.thread(wanted.source) if isinstance(wanted.source, str) else wanted.source
        return source.fork(name, at=wanted.at), False
    thread = store.thread(name)
    if thread.head is None and wanted.must_exist:
        raise ThreadNotFoundError(f"there is no session {name!r} to restore")
    if thread.head is None:
        if wanted.system is not None:
            # In the first version: whatever is retried, no thread is without it, or has it twice.
            thread.messages.append(_system_message(wanted.system))
        try:
            thread.commit(metadata=_tags(wanted, run_id))
            return thread, True
        except ConflictError:
            # Somebody created it in between.
            thread = store.thread(name)
    if wanted.mode == "new":
        raise ThreadExistsError(
            f"a thread named {name!r} exists already; continue it, or choose another name"
        )
    return thread, False


def _system_message(system: Any) -> Any:
    if isinstance(system, Mapping):
        return {"id": SYSTEM_ID, **system}
    return {"id": SYSTEM_ID, "role": "system", "content": system}


def _tags(wanted: Wanted, run_id: str) -> dict[str, Any]:
    tags = {"run": run_id, "agent": wanted.agent}
    return {name: value for name, value in tags.items() if value is not None}


def _fenced(
    core: Core,
    name: str,
    wanted: Wanted,
    uid: str,
    run_id: str,
    hold: Hold,
    before: Lease | None,
    fresh: bool,
) -> Begun:
    thread = HeldThread(core, name, hold)
    journal = j.open_journal(core, uid, hold)
    runs = Runs(thread, journal, uid, run_id)
    while True:
        # First where this run stands, then what there is: if that moved in between, the commit tells.
        journal.refresh()
        go_on(journal, name)
        found = _look(core, name, uid, before)
        user_id = wanted.user_id or found.user_id
        user = None if user_id is None else Personal(user_id, user_id)
        try:
            runs.begin(agent=wanted.agent, user=user, place=here(), losses=found.losses)
            break
        except ConflictError:
            journal.discard()
    if found.losses is not None:
        # What the lease knew of is gone: the next run is to compare with what there is from here on.
        hold.lease.renew()
        forget_a_namesake(core, name)
    while True:
        thread.refresh()
        _check_line(thread, uid)
        found._look_again()
        try:
            if not fresh:
                thread.commit(metadata=_tags(wanted, run_id))
            break
        except ConflictError:
            thread.discard()
    return Begun(
        thread=thread,
        journal=journal,
        hold=hold,
        runs=runs,
        uid=uid,
        run_id=run_id,
        user_id=user_id,
        found=found,
    )


def _look(core: Core, name: str, uid: str, before: Lease | None) -> SessionRecords:
    noted = core.witness.known(core.space, name)
    thread = Thread(core, name)
    _check_line(thread, uid)
    return SessionRecords(thread, j.read_journal(core, uid), before, before, noted)


def _check_line(thread: Thread, uid: str) -> None:
    if thread.head is None or thread.uid != uid:
        raise ThreadDeletedError(f"the thread {thread.name!r} was deleted; begin again to get a new one")
