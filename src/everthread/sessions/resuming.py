"""What a new run finds: how the last one ended, what was in flight, and what of it still is true."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.arguments import counted
from everthread.briefing.rendering import age
from everthread.briefing.values import MASK, shown
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.sessions.drift import MAX_AGE_S, FactCheck, check_context
from everthread.sessions.salvage import readable, sound_items
from everthread.verifiers.permissions import AllowCommands, permissions
from everthread.verifiers.verdicts import Status
from everthread.working.items import Constraint, Intention, OpenLoop, Todo, TodoStatus
from everthread.working.layout import (
    CONSTRAINTS,
    CONTEXT_ITEMS,
    INTENTIONS,
    OPEN_LOOPS,
    TODOS,
    check_version,
)

if TYPE_CHECKING:
    from everthread.sessions.entries import DecisionRecord, EffectRecord, RunRecord
    from everthread.sessions.records import SessionRecords
    from everthread.sessions.taskgraph import Task

_NAMED_MAX = 5
RECORDS_LOST = "records of its effects were lost"
#: Fields of records that hold what somebody wrote.
_WORDS = frozenset({"decision", "rationale", "planned_action", "rejected", "message"})


class ResumeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on a thread, at one moment. Nothing in it changes any more.

    ``status``: how the last run stands (``crashed`` is found out, never recorded by the run itself), None if
    there never was one. ``heard_us``: its end or last sign of life. ``in_flight``: effects without a recorded
    result; one that is in doubt may have happened. ``decisions``: those without an outcome. ``todos``: by
    status. ``facts``: the context, each item checked. ``problems``: parts that could not be read.
    ``losses``: why records of its effects are known to be lost, None if none are.
    """

    thread: str
    version: int | None
    made_us: int
    status: str | None = None
    run: RunRecord | None = None
    heard_us: int | None = None
    turns: int = 0
    in_flight: tuple[EffectRecord, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    ready: tuple[Task, ...] = ()
    blocked: tuple[Task, ...] = ()
    in_progress: tuple[Task, ...] = ()
    todos: Mapping[str, tuple[Todo, ...]] = {}
    goal: Intention | None = None
    constraints: tuple[Constraint, ...] = ()
    open_loops: tuple[OpenLoop, ...] = ()
    facts: tuple[FactCheck, ...] = ()
    problems: tuple[str, ...] = ()
    losses: str | None = None

    @property
    def crashed(self) -> bool:
        """Whether the last run ended without saying so."""
        return self.status == "crashed"

    @property
    def in_doubt(self) -> tuple[EffectRecord, ...]:
        """Effects that may or may not have happened: find out before you repeat one."""
        return tuple(effect for effect in self.in_flight if effect.state == "in_doubt")

    @property
    def fresh(self) -> tuple[FactCheck, ...]:
        return self._with(Status.FRESH)

    @property
    def stale(self) -> tuple[FactCheck, ...]:
        return self._with(Status.STALE)

    @property
    def contradicted(self) -> tuple[FactCheck, ...]:
        return self._with(Status.CONTRADICTED)

    @property
    def unverifiable(self) -> tuple[FactCheck, ...]:
        return self._with(Status.UNVERIFIABLE)

    def _with(self, status: Status) -> tuple[FactCheck, ...]:
        return tuple(fact for fact in self.facts if fact.status is status)

    def summary(self) -> str:
        """The report in a few lines for a person."""
        lines = [f"{self.thread}: {self._ending()}"]
        for words, state in (("in doubt", "in_doubt"), ("in flight", "in_flight")):
            calls = tuple(effect.key for effect in self.in_flight if effect.state == state)
            if calls:
                lines.append(f"{counted(len(calls), 'call')} {words}: {_named(calls)}")
        if self.decisions:
            lines.append(f"{counted(len(self.decisions), 'decision')} without an outcome")
        todos = [
            f"{len(found):,} {status.replace('_', ' ')}" for status, found in self.todos.items() if found
        ]
        if todos:
            lines.append("todos: " + ", ".join(todos))
        if self.ready or self.blocked or self.in_progress:
            lines.append(
                f"tasks: {len(self.in_progress):,} in progress, {len(self.ready):,} ready, "
                f"{len(self.blocked):,} blocked"
            )
        for status in Status:
            found = self._with(status)
            if found and status in (Status.STALE, Status.CONTRADICTED):
                told = _named(f"{fact.key} ({fact.reason})" for fact in found)
                lines.append(f"{counted(len(found), 'fact')} {status.value}: {told}")
            elif found:
                lines.append(f"{counted(len(found), 'fact')} {status.value}")
        lines += [f"could not be read: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _ending(self) -> str:
        if self.run is None:
            return "no run yet"
        when = "last heard of" if self.run.ended_us is None else "ended"
        heard, started = (_ago(at_us, self.made_us) for at_us in (self.heard_us, self.run.started_us))
        return f"{self.run.text}, {when} {heard}, started {started}"

    def plain(self) -> dict[str, Any]:
        """The report as JSON-like data. Personal values are masked."""
        found = {name: _plain(getattr(self, name)) for name in self.__struct_fields__}
        return {**found, "crashed": self.crashed, "summary": self.summary()}

    def __str__(self) -> str:
        return self.summary()


def resume_report(
    records: SessionRecords,
    *,
    now_us: int,
    max_age_s: float | None = MAX_AGE_S,
    allow_commands: AllowCommands = False,
    allow_network: bool = True,
) -> ResumeReport:
    """The report on what ``records`` show. Writes nothing and reads documents and tails only.

    ``max_age_s``: when a fact without a verifier counts as stale; None for never. Stored commands are run
    only as far as ``allow_commands`` says. Parts that are damaged are named in ``problems``. Raises
    :class:`SchemaVersionError` for a state that newer code wrote.
    """
    allowed = permissions(allow_commands, allow_network)
    problems: list[str] = []
    if (lost := records.thread.recovered) is not None:
        which = f"version {lost.last}" if lost.first == lost.last else f"versions {lost.first}–{lost.last}"
        problems.append(f"{which}, the newest; it stands on {lost.version}: {'; '.join(lost.reasons)}")
    found = _session_part(records, problems)
    document = records.thread.state.plain()
    check_version(document.get(VERSION_FIELD), CURRENT_SCHEMA_VERSION)
    found |= _working_part(document, problems)
    items = sound_items(problems, document, CONTEXT_ITEMS)
    found["facts"] = check_context(items, now_us=now_us, max_age_s=max_age_s, allowed=allowed)
    return ResumeReport(
        thread=records.name,
        version=None if records.head is None else records.head.seq,
        made_us=now_us,
        problems=tuple(problems),
        **found,
    )


def _session_part(records: SessionRecords, problems: list[str]) -> dict[str, Any]:
    tasks = readable(problems, records.tasks.all)
    if records.losses is not None:
        problems.append(
            f"{RECORDS_LOST} ({records.losses.why}): an effect that isn't known here may have happened"
        )
    return {
        "losses": None if records.losses is None else records.losses.why,
        "status": records.status,
        "run": records.last_run,
        "heard_us": heard_us(records),
        "turns": records.turns,
        "in_flight": tuple(readable(problems, records.open_effects)),
        "decisions": tuple(readable(problems, records.open_decisions)),
        "ready": tuple(readable(problems, records.tasks.ready)),
        "blocked": tuple(readable(problems, records.tasks.blocked)),
        "in_progress": tuple(task for task in tasks if task.status == "in_progress"),
    }


def heard_us(records: SessionRecords) -> int | None:
    """When the last run ended or, if it didn't say, was last heard of."""
    run = records.last_run
    if run is None:
        return None
    return run.ended_us if run.ended_us is not None else max(run.started_us, records.heartbeat_us or 0)


def _working_part(document: Mapping[Any, Any], problems: list[str]) -> dict[str, Any]:
    todos = sound_items(problems, document, TODOS)
    intentions = sound_items(problems, document, INTENTIONS)
    loops = sound_items(problems, document, OPEN_LOOPS)
    return {
        "todos": {
            status.value: tuple(todo for todo in todos if todo.status is status) for status in TodoStatus
        },
        "goal": intentions[-1] if intentions else None,
        "constraints": tuple(sound_items(problems, document, CONSTRAINTS)),
        "open_loops": tuple(loop for loop in loops if loop.open),
    }


def _ago(at_us: int | None, now_us: int) -> str:
    told = age(at_us, now_us)
    return f"{told} ago" if told[0].isdigit() else told


def _named(names: Any) -> str:
    found = list(names)
    more = f" and {len(found) - _NAMED_MAX:,} more" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + more


def _plain(value: Any) -> Any:
    """Frozen records as dicts; everything that isn't JSON-like as text, dates as programs read them."""
    if isinstance(value, msgspec.Struct):
        found = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        # Its words were sealed as somebody's and are read in clear here.
        hidden = _WORDS.intersection(found) if found.get("personal") else ()
        return {**found, **dict.fromkeys(hidden, MASK)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if value is None or type(value) in (bool, int, float, str) else shown(value)
