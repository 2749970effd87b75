"""The briefing of a session: the text for a new run, from what is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.briefing.facts import Background, Fact, Kind, Trust, limited, masked, message_text, shown
from everthread.sessions.resume import FactCheck, ResumeReport, microseconds, sound_items
from everthread.verifiers.specs import Status
from everthread.working.items import INTENTIONS, OPEN_LOOPS

if TYPE_CHECKING:
    from everthread.sessions.children import Child
    from everthread.sessions.orders import StandingOrder
    from everthread.sessions.records import DecisionRecord, EffectRecord, ErrorRecord, RunRecord
    from everthread.sessions.tasks import Task
    from everthread.working.items import Intention, OpenLoop, Todo


# ── facts from a session's records, the most important of each kind first ───────────────────────────


_TRUST = {Status.FRESH: Trust.VERIFIED, Status.STALE: Trust.STALE, Status.CONTRADICTED: Trust.STALE}
_NAMED_MAX = 3


def run_fact(report: ResumeReport) -> Iterator[Fact]:
    """How the last run ended, and how much of what it left must be looked at first."""
    run = report.run
    if run is None:
        return
    doubts, drift = len(report.in_doubt), len(report.contradicted)
    doubtful = f"; calls in doubt: {doubts}" if doubts else ""
    drifted = f"; facts contradicted: {drift}" if drift else ""
    yield Fact(
        kind=Kind.RUN,
        id=f"run-{run.number}",
        text=f"Last: {run.text}{doubtful}{drifted}",
        source="journal",
        named=True,
        at_us=report.heard_us,
        # That a run crashed was found out; how another ended is its own word.
        trust=Trust.VERIFIED if report.crashed else Trust.UNVERIFIED,
    )


def goal_fact(report: ResumeReport) -> Iterator[Fact]:
    if report.goal is not None:
        yield _goal_fact(report.goal)


def _goal_fact(goal: Intention, state: str = "") -> Fact:
    at_us = microseconds(goal.updated_at or goal.created_at)
    text = shown(goal.text)
    return Fact(kind=Kind.GOAL, id=goal.id, text=text, source="intention", at_us=at_us, state=state)


def next_facts(report: ResumeReport, settled: Sequence[EffectRecord] = ()) -> Iterator[Fact]:
    """What to do now: settle what is in doubt, then what was planned, then what was begun or is next."""
    for effect in report.in_doubt[:1]:
        text = f"First find out whether {_call_name(effect)} happened"
        yield _call_fact(Kind.NEXT, effect, text, effect.at_us)
    for decision in report.decisions[-1:]:
        planned = decision.planned_action or decision.decision
        planned = masked(planned) if decision.personal else planned
        text = f"Planned, no outcome recorded: {planned}{_done_since(decision, settled)}"
        yield Fact(kind=Kind.NEXT, id=decision.id, text=text, source="decision", at_us=decision.at_us)
    yield from _work_fact(report)


def _done_since(decision: DecisionRecord, settled: Sequence[EffectRecord]) -> str:
    """What the run that decided did afterwards, so that a reader of the plan doesn't do it again."""
    done = [
        effect
        for effect in settled
        if effect.state == "done" and effect.run == decision.run and effect.at_us >= decision.at_us
    ]
    if not done:
        return ""
    first = min(done, key=lambda effect: effect.at_us)
    return f" (since then done: {first.key}; don't repeat it, record the outcome)"


def _work_fact(report: ResumeReport) -> Iterator[Fact]:
    tasks, todos = report.in_progress, report.todos.get("in_progress", ())
    verb = "Continue"
    if not tasks and not todos:
        verb, tasks = "Start", report.ready
        todos = tuple(sorted(report.todos.get("pending", ()), key=_urgency))
    if tasks:
        (task,) = tasks[:1]
        text = f"{verb}: {shown(task.active_form or task.subject)}"
        yield Fact(kind=Kind.NEXT, id=task.id, text=text, source="task", at_us=task.updated_us)
    elif todos:
        todo = min(todos, key=_urgency)
        at_us = microseconds(todo.updated_at)
        text = f"{verb}: {shown(todo.content)}"
        yield Fact(kind=Kind.NEXT, id=todo.id, text=text, source="todo", at_us=at_us)


def _urgency(todo: Todo) -> int:
    """The most urgent first; sorting keeps the order of those alike."""
    return -todo.priority.rank


def order_facts(orders: Sequence[StandingOrder]) -> Iterator[Fact]:
    """Orders that were given to all agents: word for word, before what this thread has of its own."""
    for order in orders:
        yield Fact(
            kind=Kind.CONSTRAINT,
            id=order.id,
            text=order.text,
            source=f"standing order of {order.author}",
            at_us=order.at_us,
        )


def constraint_facts(report: ResumeReport) -> Iterator[Fact]:
    for each in report.constraints:
        at_us = microseconds(each.updated_at or each.created_at)
        yield Fact(kind=Kind.CONSTRAINT, id=each.id, text=shown(each.text), source="constraint", at_us=at_us)


def denial_fact(report: ResumeReport, denied: bool) -> Iterator[Fact]:
    """That no effects are made in this fork, which whoever works in it must know before planning any."""
    if denied:
        text = "This thread is a fork for trying things out: calls that have effects are refused in it"
        yield Fact(
            kind=Kind.CONSTRAINT,
            id="effects-denied",
            text=text,
            source="fork",
            at_us=report.made_us,
            trust=Trust.VERIFIED,
        )


def problem_facts(problems: Sequence[str], now_us: int) -> Iterator[Fact]:
    """Parts that are damaged, as found just now: the next run must know that they are missing."""
    for number, problem in enumerate(problems, 1):
        yield Fact(
            kind=Kind.DRIFT,
            id=f"damage-{number}",
            text=f"UNREADABLE: {problem}",
            source="store",
            at_us=now_us,
            trust=Trust.STALE,
            named=True,
        )


def context_facts(report: ResumeReport) -> Iterator[Fact]:
    """Contradicted facts as drift; the others with their value and, where one looked, what was seen."""
    order = {Status.FRESH: 0, Status.UNVERIFIABLE: 1, Status.STALE: 2}
    for fact in report.contradicted:
        value = shown(fact.value)
        # A verifier that names the value needn't be told it again.
        recorded = "" if value in fact.reason else f"; recorded was {value}"
        yield _context_fact(Kind.DRIFT, fact, f"CONTRADICTED: {fact.reason}{recorded}")
    rest = [fact for fact in report.facts if fact.status is not Status.CONTRADICTED]
    # Newest first among those alike: sorting is stable.
    rest.sort(key=lambda fact: -(fact.recorded_us or 0))
    for fact in sorted(rest, key=lambda fact: order[fact.status]):
        observed = f" ({fact.reason})" if fact.verifier else ""
        yield _context_fact(Kind.CONTEXT, fact, shown(fact.value) + observed)


def _context_fact(kind: Kind, fact: FactCheck, text: str) -> Fact:
    trust = _TRUST.get(fact.status, Trust.UNVERIFIED)
    source = fact.verifier or "context"
    return Fact(
        kind=kind, id=fact.key, text=text, source=source, at_us=fact.recorded_us, trust=trust, named=True
    )


def call_facts(report: ResumeReport, settled: Sequence[EffectRecord]) -> Iterator[Fact]:
    """Calls without an outcome, then settled ones; a key that was called again stands as it is now."""
    for effect in report.in_flight:
        in_doubt = effect.state == "in_doubt"
        state = "UNKNOWN, it may have happened: check first" if in_doubt else "in flight"
        yield _call_fact(Kind.CALL, effect, _call_name(effect), effect.at_us, state)
    newest = {effect.key for effect in report.in_flight}
    for effect in settled:
        if effect.state in ("done", "not_done") and effect.key not in newest:
            newest.add(effect.key)
            why = f": {effect.error}" if effect.error and effect.state == "not_done" else ""
            state = "done, don't repeat it" if effect.state == "done" else "not done"
            yield _call_fact(Kind.SETTLED, effect, _call_name(effect) + why, effect.settled_us, state)


def child_facts(children: Sequence[tuple[Child, str | None]]) -> Iterator[Fact]:
    """Subagents without a result; with how the last run on their own thread stands."""
    for child, status in children:
        run = f"its run: {status}" if status is not None else "no run of its own yet"
        where = "on this thread" if child.mode == "parent" else f"on the thread {child.thread}, {run}"
        yield Fact(
            kind=Kind.CALL,
            id=child.call,
            text=f"subagent {child.name} {where}",
            source="subagent",
            at_us=child.at_us,
            state="no result yet: the same call goes on with it",
            named=True,
        )


def _call_name(effect: EffectRecord) -> str:
    """What was called; its key where the name is lost."""
    return effect.name or effect.key


def _call_fact(kind: Kind, effect: EffectRecord, text: str, at_us: int | None, state: str = "") -> Fact:
    source = "effect ledger"
    return Fact(kind=kind, id=effect.key, text=text, source=source, at_us=at_us, state=state, named=True)


def todo_facts(report: ResumeReport) -> Iterator[Fact]:
    """Tasks and todos that are open: what was begun, what is next, what waits."""
    for task in report.in_progress:
        yield _task_fact(task, "in progress")
    for todo in sorted(report.todos.get("in_progress", ()), key=_urgency):
        yield _todo_fact(todo, f"in progress, {todo.priority.value}")
    for task in report.ready:
        yield _task_fact(task, "ready")
    for todo in sorted(report.todos.get("pending", ()), key=_urgency):
        yield _todo_fact(todo, f"pending, {todo.priority.value}")
    for task in report.blocked:
        if task.status != "in_progress":
            yield _task_fact(task, f"blocked by {', '.join(task.blocked_by[:_NAMED_MAX])}")


def finished_facts(
    report: ResumeReport, tasks: Sequence[Task], loops: Sequence[OpenLoop], intentions: Sequence[Intention]
) -> list[Fact]:
    """What is over, the newest first: todos, tasks, loops, and goals that a later one replaced."""
    over = [_todo_fact(todo, status) for status in _OVER for todo in report.todos.get(status, ())]
    over += [_task_fact(task, "completed") for task in tasks if task.status == "completed"]
    over += [_loop_fact(loop, "resolved") for loop in loops if not loop.open]
    over += [_goal_fact(goal, "replaced by a later goal") for goal in intentions[:-1]]
    found = [msgspec.structs.replace(fact, kind=Kind.FINISHED) for fact in over]
    return sorted(found, key=lambda fact: -(fact.at_us or 0))


_OVER = ("completed", "cancelled")


def _todo_fact(todo: Todo, state: str) -> Fact:
    at_us = microseconds(todo.updated_at or todo.created_at)
    text = shown(todo.content)
    return Fact(kind=Kind.TODO, id=todo.id, text=text, source="todo", at_us=at_us, state=state)


def _task_fact(task: Task, state: str) -> Fact:
    text = shown(task.subject)
    return Fact(kind=Kind.TODO, id=task.id, text=text, source="task", at_us=task.updated_us, state=state)


def decision_facts(decisions: Sequence[DecisionRecord]) -> Iterator[Fact]:
    for decision in decisions:
        text = "; ".join(_decision_parts(decision))
        kind = Kind.DECIDED if decision.complete else Kind.DECISION
        yield Fact(kind=kind, id=decision.id, text=text, source="decision", at_us=decision.at_us)


def _decision_parts(decision: DecisionRecord) -> Iterator[str]:
    if decision.personal and masked(decision.decision) != decision.decision:
        yield masked(decision.decision)
    else:
        yield decision.decision
        if decision.rationale:
            yield f"why: {decision.rationale}"
        if decision.rejected:
            yield f"rejected: {', '.join(decision.rejected)}"
    if decision.complete:
        yield f"outcome: {'failed, ' if decision.failed else ''}{shown(decision.outcome)}"
    elif decision.planned_action:
        planned = decision.planned_action
        yield f"planned: {masked(planned) if decision.personal else planned}"


def loop_facts(report: ResumeReport) -> Iterator[Fact]:
    # The newest first: what was opened last is most likely what is still in the way.
    for loop in reversed(report.open_loops):
        yield _loop_fact(loop)


def _loop_fact(loop: OpenLoop, state: str = "") -> Fact:
    at_us = microseconds(loop.updated_at or loop.created_at)
    about = f" ({shown(loop.context)})" if loop.context is not None else ""
    text = shown(loop.description) + about
    return Fact(kind=Kind.LOOP, id=loop.id, text=text, source="open loop", at_us=at_us, state=state)


def failure_facts(errors: Sequence[ErrorRecord]) -> Iterator[Fact]:
    for error in errors:
        said = masked(error.message) if error.personal else error.message
        about = f"; done about it: {error.handled}" if error.handled else ""
        text = f"{error.where}: {error.kind}: {said}{about}"
        yield Fact(kind=Kind.FAILURE, id=error.id, text=text, source="error history", at_us=error.at_us)


def exchange_facts(messages: Sequence[Any], length: int, times: Sequence[int]) -> Iterator[Fact]:
    """The last messages, the newest first; ``length`` is how many the log has, ``times`` when the version
    of each was committed."""
    for back, (message, at_us) in enumerate(zip(reversed(messages), reversed(times), strict=True), 1):
        role, text = message_text(message)
        yield Fact(
            kind=Kind.EXCHANGE,
            id=f"m{length - back}",
            text=f"{role or 'message'}: {text}",
            source="messages",
            at_us=at_us,
            named=True,
        )


#: As many of a kind are looked at for one briefing, however small it is; constraints always all.
EACH_MIN = 60
#: A line takes about so many tokens at least, one of a message rather more: beyond that none has room.
LINE_TOKENS, MESSAGE_TOKENS = 8, 40
MESSAGES_MIN = 12


class Limits(msgspec.Struct, frozen=True):
    """How much a briefing of so many tokens looks at: of each kind, and of the messages."""

    each: int
    messages: int

    @classmethod
    def of(cls, max_tokens: int) -> Limits:
        return cls(max(EACH_MIN, max_tokens // LINE_TOKENS), max(MESSAGES_MIN, max_tokens // MESSAGE_TOKENS))


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What a briefing reads from the logs of a session: the newest of each, and how many messages there are.
    ``problems`` are the parts that could not be read, those of the report included."""

    tail: Sequence[Any]
    #: When the version of each of these messages was committed.
    times: Sequence[int]
    length: int
    settled: Sequence[EffectRecord]
    effect_count: int
    errors: Sequence[ErrorRecord]
    error_count: int
    recent: Sequence[DecisionRecord]
    decided_count: int
    tasks: Sequence[Task]
    document: Any
    orders: Sequence[StandingOrder]
    #: Those without a result, with how the last run on their own thread stands.
    children: Sequence[tuple[Child, str | None]]
    problems: Sequence[str]
    #: Whether this is a fork in which no effects are made.
    effects_denied: bool = False


def with_run_found(report: ResumeReport, run: RunRecord | None, heard_us: int | None) -> ResumeReport:
    """The report for a run under way: what it says of the last run is what this one found when it began."""
    status = None if run is None else run.status
    return msgspec.structs.replace(report, run=run, status=status, heard_us=heard_us)


def background(read: Readings, report: ResumeReport, each_max: int = EACH_MIN) -> Background:
    """All that is known: as many facts of each kind as a briefing could hold, and how many there are beside
    these."""
    tail, settled, length = read.tail, read.settled, read.length
    decisions = [*reversed(report.decisions), *(each for each in read.recent if each.complete)]
    # What makes no sense among these was said by the report.
    loops, intentions = (sound_items([], read.document, kind) for kind in (OPEN_LOOPS, INTENTIONS))
    everything: list[Fact] = [
        *run_fact(report),
        *goal_fact(report),
        *next_facts(report, settled),
        *denial_fact(report, read.effects_denied),
        *order_facts(read.orders),
        *constraint_facts(report),
        *problem_facts(read.problems, report.made_us),
        *context_facts(report),
        *call_facts(report, settled),
        *child_facts(read.children),
        *decision_facts(decisions),
        *todo_facts(report),
        *loop_facts(report),
        *failure_facts(read.errors),
        *finished_facts(report, read.tasks, loops, intentions),
        *exchange_facts(tail, length, read.times),
    ]
    counts = Counter(fact.kind for fact in everything)
    beside = {
        Kind.EXCHANGE: length - len(tail),
        # Not the facts: a key that was settled as not done and called again has several records.
        Kind.SETTLED: read.effect_count - len(settled),
        Kind.FAILURE: read.error_count - counts[Kind.FAILURE],
        Kind.DECIDED: read.decided_count - counts[Kind.DECIDED],
    }
    facts, more = limited(everything, each_max, beside)
    return Background(
        thread=report.thread, version=report.version, now_us=report.made_us, facts=facts, more=more
    )
