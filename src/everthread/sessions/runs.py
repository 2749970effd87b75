"""The runs of a session: how each began, what it used, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everthread.sessions import journal as j
from everthread.sessions.beside import core_under
from everthread.sessions.entries import STATUS_OF, Reason, RunRecord, Status, run_of, usage_of
from everthread.sessions.losses import LOSSES, Losses, lost_records
from everthread.sessions.usage import Count, Total
from everthread.threads.process import Place

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread
    from everthread.threads.sync.core import Core


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
        state, log = self._journal.state, self._journal.log(j.RUN_LOG)
        before = j.own_part(state.plain(), self._uid)
        last = before.get(j.RUN)
        if isinstance(last, Mapping):
            log.append(_closed(last, self._journal.now_us()))
        number = (before.get(j.RUNS) or 0) + 1
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
                "format": j.FORMAT_WHOLE if losses is None else j.FORMAT,
                j.LINE: self._uid,
                j.RUNS: number,
                j.TURNS: before.get(j.TURNS) or 0,
                j.USAGE: before.get(j.USAGE) or {},
                j.CHANGES: (before.get(j.CHANGES) or 0) + 1,
                j.OPEN: before.get(j.OPEN) or {},
                j.CHILDREN: before.get(j.CHILDREN) or {},
                j.CHILD_USAGE: before.get(j.CHILD_USAGE) or {},
                j.CHILD_TURNS: before.get(j.CHILD_TURNS) or 0,
                j.RUN: {**self._begun, "user": user},
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
            stored = self._journal.state[j.RUN].plain()
        return run_of(stored if stored["run_id"] == self.run_id else {**self._begun, "status": "failed"})

    @property
    def changes(self) -> int:
        """How often the status changed, over all runs."""
        with self._journal.lock:
            return int(self._journal.state[j.CHANGES])

    @property
    def total(self) -> Total:
        """What all runs of this line used, their subagents included."""
        with self._journal.lock:
            document = self._journal.state.plain()
        return total_of(core_under(self._thread), j.own_part(document, self._uid), {self._uid})

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    def set_status(self, status: Status) -> None:
        with self._journal.writing():
            self._set_status(status)

    def _set_status(self, status: Status) -> None:
        run = self._journal.state[j.RUN]
        if run["status"] != status:
            run["status"] = status
            self._journal.state.increment(j.CHANGES)

    def begin_turn(self) -> int:
        """Count one more turn; its number over all runs."""
        with self._journal.writing():
            state = self._journal.state
            number = int(state.increment(j.TURNS))
            state[j.RUN].increment("turns")
            state[j.RUN]["turn"] = number
            self._set_status("running")
        return number

    def end_turn(self) -> None:
        with self._journal.writing():
            self._journal.state[j.RUN]["turn"] = 0

    def add_usage(self, counts: Mapping[str, Count]) -> None:
        with self._journal.writing():
            state = self._journal.state
            for name, count in counts.items():
                state[j.USAGE].increment(name, count)
                state[j.RUN]["usage"].increment(name, count)

    def set_sandbox(self, sandbox_id: str, base_snapshot: Any) -> None:
        with self._journal.writing():
            self._journal.state[j.RUN].update({"sandbox_id": sandbox_id, "base_snapshot": base_snapshot})

    def begin_child(self, name: str, uid: str, before: Total) -> None:
        """A subagent begins; ``before`` is what it has used already. One that is open from an earlier time,
        because its run or ours died, goes on counting from then."""
        with self._journal.writing():
            open_ = self._journal.state[j.CHILDREN].get(name)
            if open_ is None or open_["uid"] != uid:
                child = {"uid": uid, "usage": dict(before.usage), "turns": before.turns}
                self._journal.state[j.CHILDREN][name] = child

    def end_child(self, name: str, after: Total) -> None:
        """A subagent has ended: what it used is counted here, so that nobody need ask it again."""
        with self._journal.writing():
            open_ = self._journal.state[j.CHILDREN].pop(name, None)
            if open_ is None:
                return
            used = after.since(stored_total(open_))
            self._journal.state.increment(j.CHILD_TURNS, used.turns)
            for counter, count in used.usage.items():
                self._journal.state[j.CHILD_USAGE].increment(counter, count)

    def end(self, reason: Reason, error: str | None) -> None:
        with self._journal.writing():
            self._set_status(STATUS_OF[reason])
            run = self._journal.state[j.RUN]
            run.update({"ended_us": self._journal.now_us(), "reason": reason, "turn": 0})
            if error is not None:
                run["error"] = error


def stored_total(stored: Mapping[str, Any]) -> Total:
    """Turns and usage as a document holds them."""
    turns = stored.get(j.TURNS)
    return Total(turns if type(turns) is int else 0, usage_of(stored.get(j.USAGE)))


def total_of(core: Core, own: Mapping[str, Any], seen: set[str]) -> Total:
    """What a line and its subagents used, from its part of a journal. Those that haven't ended are asked."""
    ended = {j.TURNS: own.get(j.CHILD_TURNS), j.USAGE: own.get(j.CHILD_USAGE)}
    total = stored_total(own) + stored_total(ended)
    children = own.get(j.CHILDREN)
    for child in children.values() if isinstance(children, Mapping) else ():
        uid = child.get("uid") if isinstance(child, Mapping) else None
        if isinstance(uid, str) and uid not in seen:
            seen.add(uid)
            journal = j.read_journal(core, uid)
            now = total_of(core, j.own_part(journal.state.plain(), uid), seen)
            total += now.since(stored_total(child))
    return total


def _closed(run: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """A run as its successor puts it away: one without an end has crashed, and stays without one."""
    kept = {name: value for name, value in run.items() if name != "user"}
    return kept if run.get("ended_us") is not None else {**kept, "status": "crashed", "found_us": now_us}
