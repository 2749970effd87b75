"""The journal: what a rewind of the thread never moves.

Its document holds the run that is under way or was last, what all runs of the line used up, and the effects
that are open; its logs the runs before, the settled effects, and what went wrong. It is never rewound, so
that a position in one of its logs stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from everthread.errors import AccessError, NotFoundError, SchemaVersionError, StateCorruptedError
from everthread.sessions.lease import Holder, Lease, read_lease
from everthread.sessions.records import (
    STATUS_OF,
    STATUSES,
    ErrorRecord,
    Reason,
    RunRecord,
    Status,
    error_of,
    run_of,
    usage_of,
)
from everthread.sessions.usage import Count, Total
from everthread.stores.contract import StaleCell
from everthread.threads.sync.journals import (
    GONE,
    LOSSES,
    LOSSY_FORMAT,
    beside,
    lost_records,
    read_lost,
    shorter,
    space_beside,
)
from everthread.values import Personal, check_text

if TYPE_CHECKING:
    from everthread.sessions.fenced_thread import FencedThread, RunGuard
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


T = TypeVar("T")

#: What this code understands. A journal that lost nothing is written as the first format, so that older code
#: goes on with it; one that did must not be taken for whole by code that knows nothing of that.
FORMAT: Final = LOSSY_FORMAT
FORMAT_WHOLE: Final = 1

# In the document.
LINE: Final = "line"
RUN: Final = "run"
RUNS: Final = "runs"
CHANGES: Final = "changes"
TURNS: Final = "turns"
USAGE: Final = "usage"
OPEN: Final = "open"
#: Subagents whose end isn't recorded, each with what it had used before; and what all others have used.
CHILDREN: Final = "children"
CHILD_USAGE: Final = "child_usage"
CHILD_TURNS: Final = "child_turns"

# Logs.
RUN_LOG: Final = "runs"
EFFECT_LOG: Final = "effects"
ERROR_LOG: Final = "errors"


def open_journal(core: Core, uid: str, guard: RunGuard) -> FencedThread:
    """The journal of a line, to be written by the run that holds it."""
    from everthread.sessions.fenced_thread import FencedThread

    return FencedThread(beside(core), uid, guard, is_journal=True)


def read_journal(core: Core, uid: str) -> Thread:
    """The journal of a line, to be read. It may not exist yet."""
    from everthread.threads.sync.thread import Thread

    return Thread(beside(core), uid)


def check_format(document: Mapping[str, Any]) -> None:
    """Raises :class:`SchemaVersionError` if newer code wrote this journal."""
    found = document.get("format", FORMAT_WHOLE)
    if type(found) is not int or found > FORMAT:
        raise SchemaVersionError(
            f"this session was written by a newer Everthread (journal format {found}); upgrade to go on",
            found=found,
            supported=FORMAT,
        )


def own_part(document: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """The document, if this line wrote it. What a fork took along counts nothing but its open effects: runs,
    turns and usage are its source's."""
    if document.get(LINE) == uid:
        return document
    return {OPEN: document.get(OPEN, {})}


def find_keyed(thread: Thread, key: str) -> Version | None:
    """The version that carries a commit key, looked up in the index: nothing is written."""
    assert not thread.dirty, "a look-up must not commit anything"
    version = thread.commit(key=key)
    return version if version is not None and version.key == key else None


# ── journals that lost records ──────────────────────────────────────────────────────────────────────
# A ledger that lacks an effect looks like one in which it never happened. So a process that notices
# that records are lost writes it down in the journal itself, where forks, copies and exports take it along:
# salvaging, a run that begins, a fork. From then on a key that the journal doesn't know may stand for
# something that has happened, until somebody accepts that.


#: Keys that are known not to have happened although records are lost: begun since, or settled.
CLEARED: Final = "cleared"
#: In the document of a journal: records of effects can't be read, which has been told. Stays when that was
#: accepted: they can't be read then either.
UNREADABLE: Final = "unreadable"


class Losses(msgspec.Struct, frozen=True):
    """That records of a journal were lost, why that is known, and since when."""

    why: str
    since_us: int


def losses_in(document: Mapping[str, Any]) -> Losses | None:
    """What a journal's document says."""
    stored = document.get(LOSSES)
    if stored is None:
        return None
    if not isinstance(stored, Mapping):
        return Losses("it says so, and not why", 0)
    since = stored.get("since_us")
    return Losses(str(stored.get("why")), since if type(since) is int else 0)


def losses_of(journal: Thread, known: str) -> Losses | None:
    """What the journal of a line says of itself, or shows. ``known`` is the id of the newest version that the
    lease knew of, "" if it knew none; it was read before the journal."""
    now_us = journal.core.runtime.now_us()
    marked = losses_in(journal.state)
    if marked is not None:
        return marked
    head = journal.head
    if journal.recovered is not None:
        return Losses(str(journal.recovered), now_us)
    if head is not None and head.kind == "rewind":
        # Nothing else rewinds a journal: a run continued past the damage and died before it wrote that down.
        return Losses(f"it went on from {head.source}, because the versions after that are damaged", now_us)
    number = known.partition("-")[0]
    seq = head.seq if head is not None else 0
    if number.isdecimal() and int(number) > seq:
        return Losses(shorter(seq, int(number)), now_us)
    return None


def is_unheard_of(core: Core, uid: bytes) -> bool:
    """Whether there is no trace of a line, not even that it was deleted."""
    with suppress(StateCorruptedError):
        return core.backend.line_by_uid(uid) is None
    return False


def losses_of_a_namesake(thread: Thread) -> Losses | None:
    """For a thread without a journal: whether a restored backup left nothing of one that had this name."""
    core = thread.core
    lost = read_lost(core.backend.cell(space_beside(core.space, GONE), thread.name, core.runtime.now_us()))
    if lost is None or not is_unheard_of(core, lost.uid):
        return None
    why = "there was another thread of this name, of which a backup that was restored knows nothing"
    return Losses(why, core.runtime.now_us())


def forget_a_namesake(core: Core, name: str) -> None:
    """What is lost is written down in the journal of the thread that has the name now."""
    space, now_us = space_beside(core.space, GONE), core.runtime.now_us()
    cell = core.backend.cell(space, name, now_us)
    with suppress(StaleCell):
        if cell is not None:
            core.backend.swap(space, name, cell.revision, None, now_us)


def continue_past_damage(journal: FencedThread, thread: str) -> None:
    """Let a journal whose newest versions are damaged continue from the last good one; they stay as they are.

    Raises :class:`StateCorruptedError` if nothing can follow them.
    """
    if journal.recovered is None or journal.head is None:
        return
    try:
        journal.rewind(journal.head)
    except StateCorruptedError as error:
        raise StateCorruptedError(
            f"the effects of {thread!r} can't be written down, because its journal is damaged ({error}); "
            "everthread.salvage() brings what is sound into a new store",
            where=error.where,
        ) from error


def accept_losses(journal: Thread) -> bool:
    """Take the mark away, within a write of the caller's; whether there was one."""
    return journal.state.pop(LOSSES, None) is not None


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────


def begun_run(holder: Holder, uid: str, number: int) -> dict[str, Any]:
    """The record of a run that has just begun, from the lease it holds."""
    return {
        "run_id": holder.run,
        "line": uid,
        "number": number,
        "status": "running",
        "started_us": holder.since_us,
        "agent": holder.agent,
        "host": holder.host,
        "pid": holder.pid,
        "turns": 0,
        "turn": 0,
        "usage": {},
    }


def with_run(own: Mapping[str, Any], holder: Holder, uid: str) -> dict[str, Any]:
    """A line's part of a journal once the run of this lease is recorded in it."""
    number = (own.get(RUNS) or 0) + 1
    return {
        LINE: uid,
        RUNS: number,
        TURNS: own.get(TURNS) or 0,
        USAGE: own.get(USAGE) or {},
        CHANGES: (own.get(CHANGES) or 0) + 1,
        OPEN: own.get(OPEN) or {},
        CHILDREN: own.get(CHILDREN) or {},
        CHILD_USAGE: own.get(CHILD_USAGE) or {},
        CHILD_TURNS: own.get(CHILD_TURNS) or 0,
        RUN: begun_run(holder, uid, number),
    }


def unrecorded(own: Mapping[str, Any], lease: Lease | None) -> Holder | None:
    """The holder of a lease whose run isn't in the journal yet: it has begun and written nothing there."""
    if lease is None or not lease.holder.run or not lease.holder.since_us:
        return None
    run = own.get(RUN)
    known = isinstance(run, Mapping) and run.get("run_id") == lease.holder.run
    return None if known else lease.holder


class Runs:
    """The run under way, in the journal. Every call that changes something is durable when it returns.

    That a run has begun is recorded by its lease at once, and by the journal with the first thing that is
    written there, at the latest its end. A run that takes over records it at once: its commit is the fence.
    """

    def __init__(self, thread: FencedThread, journal: FencedThread, uid: str, holder: Holder) -> None:
        self._thread = thread
        self._journal = journal
        self._uid = uid
        self._holder = holder
        self.run_id = holder.run
        self._user: Any = None
        self._begun: dict[str, Any] = {}

    def begin(self, user: Any) -> None:
        """Let the journal's next version record that this run has begun, for ``user``, a Personal or None."""
        self._user = user
        self._begun = self._document()[RUN]
        self._journal.before_write = self._put_begin

    def begin_now(self, user: Any, before: Lease | None, losses: Losses | None) -> None:
        """Record it at once: raises :class:`ConflictError` if somebody wrote in between. ``before`` is the
        lease that was there; ``losses`` are those of the journal."""
        self._user = user
        crashed = unrecorded(self._own(), before)
        if crashed is not None:
            self._put_run(crashed)
        self._put_begin()
        state = self._journal.state
        if losses is not None:
            state["format"] = FORMAT
            if LOSSES not in state:
                state[LOSSES] = lost_records(losses.why, losses.since_us)
        self._begun = state[RUN].plain()
        self._journal.commit()
        self._journal.before_write = self._put_begin

    def _put_begin(self) -> None:
        """Before a write to the journal: the run is recorded there."""
        if not self.recorded:
            self._put_run(self._holder)
            self._journal.state[RUN]["user"] = self._user

    def _put_run(self, holder: Holder) -> None:
        """Put a run in the place of the one before it, which goes to the log; if that has no end, it has
        crashed."""
        own = self._own()
        last = own.get(RUN)
        if isinstance(last, Mapping):
            self._journal.log(RUN_LOG).append(_closed(last, self._journal.now_us()))
        state = self._journal.state
        state.update(with_run(own, holder, self._uid))
        state.setdefault("format", FORMAT_WHOLE)

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    @property
    def recorded(self) -> bool:
        """Whether the journal, as it is at hand, has this run as its newest."""
        run = self._own().get(RUN)
        return isinstance(run, Mapping) and run.get("run_id") == self.run_id

    def _own(self) -> Mapping[str, Any]:
        return own_part(self._journal.state.plain(), self._uid)

    def _document(self) -> Mapping[str, Any]:
        """This line's part of the journal, with this run in it."""
        with self._journal.lock:
            own = self._own()
            return own if self.recorded else with_run(own, self._holder, self._uid)

    @property
    def current(self) -> RunRecord:
        """This run. One that was taken over has failed: what stands in the journal is its successor's."""
        stored = self._document()[RUN]
        fenced = self._journal.is_fenced and not self.recorded
        return run_of({**self._begun, "status": "failed"} if fenced else stored)

    @property
    def changes(self) -> int:
        """How often the status changed, over all runs."""
        return int(self._document()[CHANGES])

    @property
    def total(self) -> Total:
        """What all runs of this line used, their subagents included."""
        return total_of(self._thread.core, self._document(), {self._uid})

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def set_status(self, status: Status) -> None:
        with self._journal.writing():
            self._set_status(status)

    def _set_status(self, status: Status) -> None:
        run = self._journal.state[RUN]
        if run["status"] != status:
            run["status"] = status
            self._journal.state.increment(CHANGES)

    def begin_turn(self) -> int:
        """Count one more turn; its number over all runs."""
        with self._journal.writing():
            state = self._journal.state
            number = int(state.increment(TURNS))
            state[RUN].increment("turns")
            state[RUN]["turn"] = number
            self._set_status("running")
        return number

    def end_turn(self) -> None:
        with self._journal.writing():
            self._journal.state[RUN]["turn"] = 0

    def add_usage(self, counts: Mapping[str, Count]) -> None:
        with self._journal.writing():
            state = self._journal.state
            for name, count in counts.items():
                state[USAGE].increment(name, count)
                state[RUN]["usage"].increment(name, count)

    def set_sandbox(self, sandbox_id: str, base_snapshot: Any) -> None:
        with self._journal.writing():
            self._journal.state[RUN].update({"sandbox_id": sandbox_id, "base_snapshot": base_snapshot})

    def begin_child(self, name: str, uid: str, before: Total) -> None:
        """A subagent begins; ``before`` is what it has used already. One that is open from an earlier time,
        because its run or ours died, goes on counting from then."""
        with self._journal.writing():
            open_ = self._journal.state[CHILDREN].get(name)
            if open_ is None or open_["uid"] != uid:
                child = {"uid": uid, "usage": dict(before.usage), "turns": before.turns}
                self._journal.state[CHILDREN][name] = child

    def end_child(self, name: str, after: Total) -> None:
        """A subagent has ended: what it used is counted here, so that nobody need ask it again."""
        with self._journal.writing():
            open_ = self._journal.state[CHILDREN].pop(name, None)
            if open_ is None:
                return
            used = after.since(stored_total(open_))
            self._journal.state.increment(CHILD_TURNS, used.turns)
            for counter, count in used.usage.items():
                self._journal.state[CHILD_USAGE].increment(counter, count)

    def end(self, reason: Reason, error: str | None) -> None:
        with self._journal.writing():
            self._set_status(STATUS_OF[reason])
            run = self._journal.state[RUN]
            run.update({"ended_us": self._journal.now_us(), "reason": reason, "turn": 0})
            if error is not None:
                run["error"] = error


def newest_status(core: Core, uid: str) -> Status | None:
    """The status of the newest run on a line; ``None`` if there never was one. Two small reads: lists of
    threads ask for it.

    Raises :class:`StateCorruptedError` if the newest version of its journal can't be read.
    """
    space = beside(core)

    def read_document() -> Mapping[str, Any]:
        found = space.find(uid)
        return {} if found is None else space.head(found).build_document()

    document, lease = read_with_lease(core, uid, read_document, lambda document: document)
    check_format(document)
    own = own_part(document, uid)
    holder = unrecorded(own, lease)
    run = own.get(RUN) if holder is None else begun_run(holder, uid, 0)
    return run_status(run, lease) if isinstance(run, Mapping) else None


def read_with_lease(
    core: Core, uid: str, read: Callable[[], T], document: Callable[[T], Mapping[str, Any]]
) -> tuple[T, Lease | None]:
    """What ``read`` finds in the journal, and the lease as it was before that.

    The lease is read once, unless it and the journal tell of different runs: then one began or ended in
    between, which would look like a crash, and both are read again until the lease stays the same.
    """
    lease = read_lease(core, uid)
    while True:
        found = read()
        if _tell_of_the_same_run(lease, own_part(document(found), uid).get(RUN)):
            return found, lease
        again = read_lease(core, uid)
        if _holding_run(again) == _holding_run(lease):
            return found, lease
        lease = again


def _tell_of_the_same_run(lease: Lease | None, run: Any) -> bool:
    known = run if isinstance(run, Mapping) else {"run_id": "", "ended_us": 0}
    holding = _holding_run(lease)
    return holding == known.get("run_id") or (not holding and known.get("ended_us") is not None)


def _holding_run(lease: Lease | None) -> str:
    return "" if lease is None else lease.holder.run


def run_status(stored: Mapping[str, Any], lease: Lease | None) -> Status:
    """Of a stored run. One without an end whose lease is gone, or expired, has crashed."""
    if stored.get("ended_us") is None and not is_held_by(lease, stored.get("run_id")):
        return "crashed"
    status = stored.get("status")
    return status if status in STATUSES else "crashed"


def is_held_by(lease: Lease | None, run_id: Any) -> bool:
    """Whether this run holds the lease, and may well be alive."""
    return lease is not None and lease.holder.run == run_id and lease.active


def stored_total(stored: Mapping[str, Any]) -> Total:
    """Turns and usage as a document holds them."""
    turns = stored.get(TURNS)
    return Total(turns if type(turns) is int else 0, usage_of(stored.get(USAGE)))


def total_of(core: Core, own: Mapping[str, Any], counted: set[str]) -> Total:
    """What a line and its subagents used, from its part of a journal. Those that haven't ended are asked."""
    ended = {TURNS: own.get(CHILD_TURNS), USAGE: own.get(CHILD_USAGE)}
    total = stored_total(own) + stored_total(ended)
    children = own.get(CHILDREN)
    for child in children.values() if isinstance(children, Mapping) else ():
        uid = child.get("uid") if isinstance(child, Mapping) else None
        if isinstance(uid, str) and uid not in counted:
            counted.add(uid)
            journal = read_journal(core, uid)
            now = total_of(core, own_part(journal.state.plain(), uid), counted)
            total += now.since(stored_total(child))
    return total


def _closed(run: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """A run as its successor puts it away: one without an end has crashed, and stays without one."""
    record = {name: value for name, value in run.items() if name != "user"}
    return record if run.get("ended_us") is not None else {**record, "status": "crashed", "found_us": now_us}


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────


MESSAGE_MAX = 2_000
#: How many errors are looked through for the one that something was done about.
_RECENT = 1_000
#: An attribute of errors that were recorded.
_RECORDED = "_everthread_noted"


class Failures:
    """The error history, as the run under way writes it. The text of an error may hold anything: if the
    session has a user, it is sealed as that person's."""

    def __init__(self, journal: FencedThread, run_id: str, user_id: str | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._user_id = user_id

    def note(self, error: BaseException, where: str) -> None:
        """Record an error on its way out, once, however many blocks it leaves."""
        if not self._is_recorded(error):
            with self._journal.writing():
                self.put(error, where)

    def _is_recorded(self, error: BaseException) -> bool:
        return getattr(error, _RECORDED, None) == self._run_id

    def record(self, error: BaseException | str, *, where: str, handled: str | None = None) -> ErrorRecord:
        with self._journal.writing():
            return self.put(error, where, handled)

    def put(self, error: BaseException | str, where: str, handled: str | None = None) -> ErrorRecord:
        """Record an error within a write of the caller's."""
        kind, message = ("error", error) if isinstance(error, str) else (type(error).__name__, str(error))
        stored: dict[str, Any] = {
            "error_id": self._journal.new_id(),
            "kind": kind,
            "where": where,
            "at_us": self._journal.now_us(),
            "run": self._run_id,
            "handled": handled,
        }
        text = message[:MESSAGE_MAX].encode("utf-8", "replace").decode()
        stored["turn"] = self._journal.state[RUN]["turn"]
        log = self._journal.log(ERROR_LOG)
        try:
            log.append({**stored, "message": self._sealed(text)})
        except AccessError:
            # Without the keyring it is still worth knowing that something failed.
            log.append({**stored, "message": ""})
        if isinstance(error, BaseException):
            setattr(error, _RECORDED, self._run_id)
        return error_of({**stored, "message": self._sealed(text)})

    def _sealed(self, text: str) -> Any:
        return text if self._user_id is None else Personal(self._user_id, text)

    def handled(self, error_id: str, what: str) -> None:
        """Say what was done about an error. Raises :class:`NotFoundError` for an unknown id."""
        check_text(what, "what was done about an error", "handled")
        with self._journal.writing():
            if not any(error.id == error_id for error in read_errors(self._journal, _RECENT)):
                raise NotFoundError(f"there is no error {error_id!r} among the last {_RECENT:,}")
            self._journal.log(ERROR_LOG).append({"about": error_id, "handled": str(what)})


def read_errors(journal: Thread, limit: int) -> list[ErrorRecord]:
    """The newest errors, newest first, with what was done about each."""
    handled: dict[str, str] = {}
    found: list[ErrorRecord] = []
    if limit <= 0:
        return found
    for item in reversed(journal.log(ERROR_LOG)):
        if not isinstance(item, Mapping):
            continue
        if "about" in item:
            handled.setdefault(item["about"], str(item.get("handled")))
            continue
        record = error_of(item)
        found.append(error_of(item, handled.get(record.id)))
        if len(found) == limit:
            break
    return found
