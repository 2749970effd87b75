"""How a run begins: the thread, the lease, the fence, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidValueError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadNotFoundError,
)
from everthread.model.names import check_name
from everthread.model.values import Personal
from everthread.sessions import journal as j
from everthread.sessions.beside import core_of, uid_of
from everthread.sessions.held import HeldThread, Hold
from everthread.sessions.lease import HeldLease, Lease
from everthread.sessions.process import here
from everthread.sessions.records import SessionRecords
from everthread.sessions.runs import Runs
from everthread.threads.sync.thread import AnyVersion, Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.store import ThreadStore

MODES: Final = ("continue", "new", "fork")
SYSTEM_ID: Final = "system"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a session was asked to be."""

    name: str
    mode: str = "continue"
    source: str | Thread | None = None
    at: AnyVersion | None = None
    agent: str | None = None
    user_id: str | None = None
    system: Any = None
    ttl_us: int = 300_000_000
    must_exist: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, "session id")
        for value, what in ((self.agent, "agent"), (self.user_id, "user id")):
            if value is not None:
                check_name(value, what)
        if self.mode not in MODES:
            raise InvalidValueError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}", path="mode")
        if (self.source is None) == (self.mode == "fork"):
            raise InvalidValueError("a fork, and only a fork, needs its source", path="source")
        if self.system is not None and not self.system:
            raise InvalidValueError("the system message is empty; leave it out, or write one", path="system")
        if self.ttl_us <= 0:
            raise InvalidValueError("a lease lasts some time: lease_ttl is in seconds", path="lease_ttl")


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
    plain, created = _thread(store, wanted, run_id)
    uid = uid_of(plain)
    lease = HeldLease(core, uid, run=run_id, agent=wanted.agent, ttl_us=wanted.ttl_us)
    before = lease.acquire()
    try:
        return _fenced(core, wanted, uid, run_id, Hold(lease), before, created and before is None)
    except BaseException:
        with suppress(EverthreadError):
            lease.release()
        raise


def _thread(store: ThreadStore, wanted: Wanted, run_id: str) -> tuple[Thread, bool]:
    """The thread to work on, and whether it was created just now."""
    if wanted.mode == "fork":
        assert wanted.source is not None
        source = store.thread(wanted.source) if isinstance(wanted.source, str) else wanted.source
        return source.fork(wanted.name, at=wanted.at), False
    thread = store.thread(wanted.name)
    if thread.head is None and wanted.must_exist:
        raise ThreadNotFoundError(f"there is no session {wanted.name!r} to restore")
    if thread.head is None:
        if wanted.system is not None:
            # In the first version: whatever is retried, no thread is without it, or has it twice.
            thread.messages.append(_system_message(wanted.system))
        try:
            thread.commit(metadata=_tags(wanted, run_id))
            return thread, True
        except ConflictError:
            # Somebody created it in between.
            thread = store.thread(wanted.name)
    if wanted.mode == "new":
        raise ThreadExistsError(
            f"a thread named {wanted.name!r} exists already; continue it, or choose another name"
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
    core: Core, wanted: Wanted, uid: str, run_id: str, hold: Hold, before: Lease | None, fresh: bool
) -> Begun:
    thread = HeldThread(core, wanted.name, hold)
    journal = j.open_journal(core, uid, hold)
    runs = Runs(thread, journal, uid, run_id)
    while True:
        # First where this run stands, then what there is: if that moved in between, the commit tells.
        journal.refresh()
        found = _look(core, wanted.name, uid, before)
        user_id = wanted.user_id or found.user_id
        user = None if user_id is None else Personal(user_id, user_id)
        try:
            runs.begin(agent=wanted.agent, user=user, place=here())
            break
        except ConflictError:
            journal.discard()
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
    thread = Thread(core, name)
    _check_line(thread, uid)
    return SessionRecords(thread, j.read_journal(core, uid), before)


def _check_line(thread: Thread, uid: str) -> None:
    if thread.head is None or thread.uid != uid:
        raise ThreadDeletedError(f"the thread {thread.name!r} was deleted; begin again to get a new one")
