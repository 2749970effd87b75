"""The journal: what a rewind of the thread never moves.

Its document holds the run that is under way or was last, what all runs of the line used up, and the effects
that are open; its logs the runs before, the settled effects, and what went wrong. It is never rewound, so
that a position in one of its logs stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everthread.errors import AccessError, NotFoundError, SchemaVersionError, StateCorruptedError
from everthread.process import Place
from everthread.sessions.lease import beside, core_under, is_unheard_of
from everthread.sessions.records import (
    STATUS_OF,
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
    lost_records,
    read_lost,
    shorter,
    space_beside,
)
from everthread.values import Personal, check_text

if TYPE_CHECKING:
    from everthread.sessions.fenced_thread import HeldThread, Hold
    from everthread.stores.witness import Noted
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


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


def open_journal(core: Core, uid: str, hold: Hold) -> HeldThread:
    """The journal of a line, to be written by the run that holds it."""
    from everthread.sessions.fenced_thread import HeldThread

    return HeldThread(beside(core), uid, hold, private=True)


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


# ── losses ────────────────────────────────────────
# Journals that lost records: what they don't know any more counts as in doubt.
#
# A ledger that merely lacks an effect can't be told from one in which it never happened. So whoever notices
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


def losses_of(journal: Thread, witness: str, noted: Noted | None, uid: bytes) -> Losses | None:
    """What the journal of a line says of itself, or shows. ``witness`` is the id of the newest version that a
    lease knew of, "" if none did; ``noted`` what was noted beside the store. Both were read before it."""
    core = core_under(journal)
    now_us = core.runtime.now_us()
    known = losses_in(journal.state)
    if known is not None:
        return known
    head = journal.head
    if journal.recovered is not None:
        return Losses(str(journal.recovered), now_us)
    if head is not None and head.kind == "rewind":
        # Nothing else rewinds a journal: somebody went on over the damage and died before saying so.
        return Losses(f"it went on from {head.source}, because the versions after that are damaged", now_us)
    number = witness.partition("-")[0]
    seq = head.seq if head is not None else 0
    newest = int(number) if number.isdecimal() else 0
    if noted is not None and noted.uid == uid:
        newest = max(newest, noted.seq)
    if newest > seq:
        return Losses(shorter(seq, newest), now_us)
    if noted is not None and noted.uid != uid and is_unheard_of(core, noted.uid):
        return Losses("there was another thread of this name, of which nothing is left", now_us)
    return None


def losses_of_a_namesake(thread: Thread) -> Losses | None:
    """For a thread without a journal: whether a restored backup left nothing of one that had this name."""
    core = core_under(thread)
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


def go_on(journal: HeldThread, thread: str) -> None:
    """Let a journal whose newest versions are damaged go on from the last good one; they stay as they are.

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


def accept(journal: Thread) -> bool:
    """Take the mark away, within a write of the caller's; whether there was one."""
    return journal.state.pop(LOSSES, None) is not None


# ── runs ────────────────────────────────────────
# The runs of a session: how each began, what it used, how it ended.


class Runs:
    """The run under way, in the journal. Every call is durable when it returns."""

    def __init__(self, thread: HeldThread, journal: HeldThread, uid: str, run_id: str) -> None:
        self._thread = thread
        self._journal = journal
        self._uid = uid
        self.run_id = run_id
        self._begun: dict[str, Any] = {}

    def begin(self, *, agent: str | None, user: Any, place: Place, losses: Losses | None = None) -> None:
        """Record that a run begins, once: raises :class:`ConflictError` if somebody wrote in between. The run
        before it goes to the log; one that hasn't ended has crashed. ``losses`` are those of the journal."""
        state, log = self._journal.state, self._journal.log(RUN_LOG)
        before = own_part(state.plain(), self._uid)
        last = before.get(RUN)
        if isinstance(last, Mapping):
            log.append(_closed(last, self._journal.now_us()))
        number = (before.get(RUNS) or 0) + 1
        self._begun = {
            "run_id": self.run_id,
            "line": self._uid,
            "number": number,
            "status": "running",
            "started_us": self._journal.now_us(),
            "agent": agent,
            "host": place.host,
            "pid": place.pid,
            "turns": 0,
            "turn": 0,
            "usage": {},
        }
        state.update(
            {
                "format": FORMAT_WHOLE if losses is None else FORMAT,
                LINE: self._uid,
                RUNS: number,
                TURNS: before.get(TURNS) or 0,
                USAGE: before.get(USAGE) or {},
                CHANGES: (before.get(CHANGES) or 0) + 1,
                OPEN: before.get(OPEN) or {},
                CHILDREN: before.get(CHILDREN) or {},
                CHILD_USAGE: before.get(CHILD_USAGE) or {},
                CHILD_TURNS: before.get(CHILD_TURNS) or 0,
                RUN: {**self._begun, "user": user},
            }
        )
        if losses is not None and LOSSES not in state:
            state[LOSSES] = lost_records(losses.why, losses.since_us)
        self._journal.commit()

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    @property
    def current(self) -> RunRecord:
        """This run. One that was taken over has failed: what stands in the journal is its successor's."""
        with self._journal.lock:
            stored = self._journal.state[RUN].plain()
        return run_of(stored if stored["run_id"] == self.run_id else {**self._begun, "status": "failed"})

    @property
    def changes(self) -> int:
        """How often the status changed, over all runs."""
        with self._journal.lock:
            return int(self._journal.state[CHANGES])

    @property
    def total(self) -> Total:
        """What all runs of this line used, their subagents included."""
        with self._journal.lock:
            document = self._journal.state.plain()
        return total_of(core_under(self._thread), own_part(document, self._uid), {self._uid})

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


def stored_total(stored: Mapping[str, Any]) -> Total:
    """Turns and usage as a document holds them."""
    turns = stored.get(TURNS)
    return Total(turns if type(turns) is int else 0, usage_of(stored.get(USAGE)))


def total_of(core: Core, own: Mapping[str, Any], seen: set[str]) -> Total:
    """What a line and its subagents used, from its part of a journal. Those that haven't ended are asked."""
    ended = {TURNS: own.get(CHILD_TURNS), USAGE: own.get(CHILD_USAGE)}
    total = stored_total(own) + stored_total(ended)
    children = own.get(CHILDREN)
    for child in children.values() if isinstance(children, Mapping) else ():
        uid = child.get("uid") if isinstance(child, Mapping) else None
        if isinstance(uid, str) and uid not in seen:
            seen.add(uid)
            journal = read_journal(core, uid)
            now = total_of(core, own_part(journal.state.plain(), uid), seen)
            total += now.since(stored_total(child))
    return total


def _closed(run: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """A run as its successor puts it away: one without an end has crashed, and stays without one."""
    kept = {name: value for name, value in run.items() if name != "user"}
    return kept if run.get("ended_us") is not None else {**kept, "status": "crashed", "found_us": now_us}


# ── failures ────────────────────────────────────────
# What went wrong in a session, and what was done about it. Never rewound: it is why one rewinds.


MESSAGE_MAX = 2_000
#: How many errors are looked through for the one that something was done about.
_RECENT = 1_000
#: An attribute of errors that were recorded.
_NOTED = "_everthread_noted"


class Failures:
    """The error history, as the run under way writes it. The text of an error may hold anything: if the
    session has a user, it is sealed as that person's."""

    def __init__(self, journal: HeldThread, run_id: str, user_id: str | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._user_id = user_id

    def note(self, error: BaseException, where: str) -> None:
        """Record an error on its way out, once, however many blocks it leaves."""
        if not self._is_noted(error):
            with self._journal.writing():
                self.put(error, where)

    def _is_noted(self, error: BaseException) -> bool:
        return getattr(error, _NOTED, None) == self._run_id

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
            setattr(error, _NOTED, self._run_id)
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
