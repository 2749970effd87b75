# Generated from src/everthread/sessions/aio/journal.py by tools/twin.py: change that, then run: make twin
"""The journal of a session, opened, read and written: see ``sessions/journal`` for what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from everthread.errors import AccessError, NotFoundError, StateCorruptedError
from everthread.sessions.journal import (
    CHANGES,
    CHILD_TURNS,
    CHILD_USAGE,
    CHILDREN,
    ERROR_LOG,
    FORMAT,
    FORMAT_WHOLE,
    HANDLED,
    RUN,
    RUN_LOG,
    TURNS,
    USAGE,
    USAGE_LOG,
    Losses,
    begun_run,
    check_format,
    closed_run,
    holding_run,
    losses_in,
    own_part,
    run_status,
    stored_total,
    tell_of_the_same_run,
    unrecorded,
    with_run,
)
from everthread.sessions.lease import Holder, Lease
from everthread.sessions.records import STATUS_OF, ErrorRecord, Reason, RunRecord, Status, error_of, run_of
from everthread.sessions.sync.lease import read_lease
from everthread.sessions.sync.logs import newest_first, revealing
from everthread.sessions.usage import Count, Total
from everthread.stores.contract import StaleCell
from everthread.threads.sync.journals import (
    GONE,
    LOSSES,
    beside,
    lost_records,
    put_doubts,
    read_lost,
    shorter,
    space_beside,
)
from everthread.values import Personal, check_text

if TYPE_CHECKING:
    from everthread.sessions.sync.fenced_thread import FencedThread, RunGuard
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.thread import Thread
    from everthread.versions import Version


T = TypeVar("T")


def open_journal(core: Core, uid: str, guard: RunGuard) -> FencedThread:
    """The journal of a line, to be written by the run that holds it."""
    from everthread.sessions.sync.fenced_thread import FencedThread

    return FencedThread(beside(core), uid, guard, is_journal=True)


def read_journal(core: Core, uid: str) -> Thread:
    """The journal of a line, to be read. It may not exist yet."""
    from everthread.threads.sync.thread import Thread

    return Thread(beside(core), uid)


def find_keyed(thread: Thread, key: str) -> Version | None:
    """The version that carries a commit key, looked up in the index: nothing is written."""
    assert not thread.dirty, "a look-up must not commit anything"
    # Writing is loaded by those who write: a look from outside does without.
    from everthread.threads.sync.keys import committed_under

    return committed_under(thread, key)


# ── journals that lost records: see ``sessions/journal`` ─────────────────────────────────────────────


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
    space, now_us = space_beside(core.space, GONE), core.runtime.now_us()
    lost = read_lost(core.backend.cell(space, thread.name, now_us))
    if lost is None or not is_unheard_of(core, lost.uid):
        return None
    why = "there was another thread of this name, of which a backup that was restored knows nothing"
    return Losses(why, now_us)


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


def accept_loss(journal: Thread) -> bool:
    """Take the mark away, within a write of the caller's; whether there was one."""
    return journal.state.pop(LOSSES, None) is not None


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────


class Runs:
    """The run under way, in the journal. Every call that changes something is durable when it returns.

    That a run has begun is recorded by its lease at once, and by the journal with the first thing that is
    written there, at the latest its end. A run that takes over records it at once: its commit is the fence.
    """

    def __init__(
        self,
        journal: FencedThread,
        uid: str,
        holder: Holder,
        parent: Runs | None = None,
        *,
        unlisted: bool = False,
    ) -> None:
        self._unlisted = unlisted
        self._journal = journal
        self._uid = uid
        self._holder = holder
        self.run_id = holder.run
        self._user: Any = None
        self._begun: dict[str, Any] = {}
        #: More about the run than its lease says: the workflow that it belongs to.
        self.about: Mapping[str, str] = {}
        self._parent = parent
        #: What subagents without a recorded end have used in all, by uid.
        self._children: dict[str, Total] = {}

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
        if crashed is not None and crashed.run != self.run_id:
            self._put_run(crashed)
        self._put_begin()
        state = self._journal.state
        if self.is_unlisted:
            if before is not None and state[RUN].get("ended_us") is None:
                # The lease, which says when that run was last heard of, is this one's now.
                state[RUN]["heard_us"] = before.renewed_us
        elif not self.is_open:
            # A run that its caller named, and that goes on after it was ended.
            self._set_status("running")
            for part in ("ended_us", "reason", "error"):
                state[RUN].pop(part, None)
        if losses is not None:
            state["format"] = FORMAT
            if LOSSES not in state:
                state[LOSSES] = lost_records(losses.why, losses.since_us)
            if losses.doubts:
                put_doubts(self._journal, self._uid, losses.doubts)
        self._begun = state[RUN].plain()
        self._journal.commit()
        self._journal.before_write = self._put_begin

    def _put_begin(self) -> None:
        """Before a write to the journal: the run is recorded there."""
        if not self.recorded and not self.is_unlisted:
            self._put_run(self._holder)
            self._journal.state[RUN].update({**self.about, "user": self._user})

    def _put_run(self, holder: Holder) -> None:
        """Put a run in the place of the one before it, which goes to the log; if that has no end, it has
        crashed, or was superseded."""
        own = self._own()
        last = own.get(RUN)
        if isinstance(last, Mapping):
            self._journal.log(RUN_LOG).append(closed_run(last, holder, self._journal.now_us()))
        state = self._journal.state
        state.update(with_run(own, holder, self._uid))
        state.setdefault("format", FORMAT_WHOLE)

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    @property
    def recorded(self) -> bool:
        """Whether the journal, as it is at hand, has this run as its newest."""
        # Every write asks: the document isn't copied for that.
        run = own_part(self._journal.state, self._uid).get(RUN)
        return isinstance(run, Mapping) and run.get("run_id") == self.run_id

    @property
    def is_unlisted(self) -> bool:
        """Whether it isn't recorded, so that the run before it stays the last one. Where there is none, the
        journal needs this one to be told of."""
        return (
            self._unlisted
            and not self.recorded
            and isinstance(own_part(self._journal.state, self._uid).get(RUN), Mapping)
        )

    @property
    def is_open(self) -> bool:
        """Whether it is recorded, and without an end."""
        return self.recorded and self._own()[RUN].get("ended_us") is None

    def _own(self) -> Mapping[str, Any]:
        return own_part(self._journal.state.plain(), self._uid)

    def _document(self) -> Mapping[str, Any]:
        """This line's part of the journal, with this run in it."""
        with self._journal.mutex:
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
        own = self._document()
        total = _own_total(own)
        for uid, child in _children(own):
            if uid in self._children:
                total += self._children[uid].since(stored_total(child))
        return total

    def ask_children(self, core: Core) -> None:
        """Find out what subagents of earlier runs have used that died before they said so."""
        for uid, _ in _children(self._document()):
            self._children[uid] = total_of(core, uid, {self._uid, uid})

    def _tell_parent(self) -> None:
        """This is a subagent: whoever began it counts what it has used."""
        if self._parent is not None:
            self._parent._children[self._uid] = self.total
            self._parent._tell_parent()

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
        number = 0

        def count() -> None:
            nonlocal number
            state = self._journal.state
            number = int(state.increment(TURNS))
            state[RUN].increment("turns")
            state[RUN]["turn"] = number
            self._set_status("running")

        # Not moved onto what others have counted: no two turns have the same number.
        self._journal.write_anew(count)
        self._tell_parent()
        return number

    def end_turn(self) -> None:
        with self._journal.writing():
            self._journal.state[RUN]["turn"] = 0

    def add_usage(self, counts: Mapping[str, Count], turn: int = 0) -> None:
        """Count what was used, in the turn of this number if it was in one."""
        used = {
            "line": self._uid,
            "run": self.run_id,
            "turn": turn,
            "usage": dict(counts),
            "at_us": self._journal.now_us(),
        }
        with self._journal.writing():
            if turn:
                self._journal.log(USAGE_LOG).append(used)
            state = self._journal.state
            for name, count in counts.items():
                state[USAGE].increment(name, count)
                state[RUN]["usage"].increment(name, count)
        self._tell_parent()

    def describe(self, **fields: Any) -> None:
        """Record more about the run, such as its agent."""
        if self.is_unlisted:
            return
        with self._journal.writing():
            self._journal.state[RUN].update(fields)

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
        self._children[uid] = before

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

    def end(
        self,
        reason: Reason,
        error: str | None,
        beside: Callable[[], object] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Record why it ends, with the name of an error; ``beside`` records more within the same write, and
        ``about`` are further fields of the run's record."""
        if self.is_unlisted:
            return
        with self._journal.writing():
            if beside is not None:
                beside()
            self._set_status(STATUS_OF[reason])
            run = self._journal.state[RUN]
            run.update({**(about or {}), "ended_us": self._journal.now_us(), "reason": reason, "turn": 0})
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
        return {} if found is None else (space.head(found)).build_document()

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
        if tell_of_the_same_run(lease, own_part(document(found), uid).get(RUN)):
            return found, lease
        again = read_lease(core, uid)
        if holding_run(again) == holding_run(lease):
            return found, lease
        lease = again


def _own_total(own: Mapping[str, Any]) -> Total:
    """What a line used, and its subagents that have ended."""
    return stored_total(own) + stored_total({TURNS: own.get(CHILD_TURNS), USAGE: own.get(CHILD_USAGE)})


def _children(own: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The subagents that haven't ended: uid, and what each had used before."""
    found = own.get(CHILDREN)
    children = found.values() if isinstance(found, Mapping) else ()
    return [
        (child["uid"], child)
        for child in children
        if isinstance(child, Mapping) and isinstance(child.get("uid"), str)
    ]


def total_of(core: Core, uid: str, counted: set[str]) -> Total:
    """What a line and its subagents used. Those that haven't ended are asked, but for those ``counted``."""
    journal = read_journal(core, uid)
    return total_in(core, own_part(journal.state.plain(), uid), counted)


def total_in(core: Core, own: Mapping[str, Any], counted: set[str]) -> Total:
    """The same from a line's part of its journal."""
    total = _own_total(own)
    for uid, child in _children(own):
        if uid not in counted:
            counted.add(uid)
            total += (total_of(core, uid, counted)).since(stored_total(child))
    return total


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────


MESSAGE_MAX = 2_000
#: How many errors are looked through for the one that something was done about.
_RECENT = 1_000
#: How many for one that may have been recorded just before.
_LAST = 20
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
        recorded = self.put_named(kind, message, where, handled)
        if isinstance(error, BaseException):
            setattr(error, _RECORDED, self._run_id)
        return recorded

    def put_named(
        self, kind: str, message: str, where: str, handled: str | None = None, *, id_: str | None = None
    ) -> ErrorRecord:
        """The same of an error that another process met; ``id_`` tells it from others."""
        stored: dict[str, Any] = {
            "error_id": id_ or self._journal.new_id(),
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
        return error_of({**stored, "message": self._sealed(text)})

    def is_known(self, id_: str) -> bool:
        """Whether an error of this id is among the last few."""
        return any(error.id == id_ for error in read_errors(self._journal, _LAST))

    def _sealed(self, text: str) -> Any:
        return text if self._user_id is None else Personal(self._user_id, text)

    def handled(self, error_id: str, what: str) -> None:
        """Say what was done about an error. Raises :class:`NotFoundError` for an unknown id."""
        check_text(what, "what was done about an error", "handled")
        with self._journal.writing():
            known = read_errors(self._journal, _RECENT)
            if not any(error.id == error_id for error in known):
                raise NotFoundError(f"there is no error {error_id!r} among the last {_RECENT:,}")
            self._journal.log(ERROR_LOG).append({"about": error_id, "handled": str(what)})
            self._journal.state.increment(HANDLED)


def error_count(journal: Thread) -> int:
    """How many errors were recorded: what the log holds beside notes of what was done about them."""
    return max(0, len(journal.log(ERROR_LOG)) - int(journal.state.get(HANDLED, 0)))


def read_errors(journal: Thread, limit: int) -> list[ErrorRecord]:
    """The newest errors, newest first, with what was done about each."""
    handled: dict[str, str] = {}
    found: list[tuple[Mapping[str, Any], str | None]] = []
    if limit <= 0:
        return []
    for item in newest_first(journal.log(ERROR_LOG)):
        if not isinstance(item, Mapping):
            continue
        if "about" in item:
            handled.setdefault(item["about"], str(item.get("handled")))
            continue
        found.append((item, handled.get(item.get("error_id", ""))))
        if len(found) == limit:
            break
    return revealing(journal.core, lambda: [error_of(*each) for each in found])
