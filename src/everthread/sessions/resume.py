"""The report for a new run: how the last one ended, what was in flight, which facts still hold."""

from __future__ import annotations

import datetime
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everthread.arguments import counted
from everthread.briefing.facts import MASK, shown
from everthread.briefing.text import age
from everthread.codec.schema import VERSION_FIELD
from everthread.errors import DamageError
from everthread.sessions.records import DecisionRecord, EffectRecord, RunRecord
from everthread.sessions.tasks import Task
from everthread.verifiers.registry import check_all
from everthread.verifiers.specs import Permissions, Status, Verdict
from everthread.working.items import (
    CONSTRAINTS,
    INTENTIONS,
    OPEN_LOOPS,
    TODOS,
    Constraint,
    ContextItem,
    Intention,
    Item,
    Kind,
    OpenLoop,
    Todo,
    TodoStatus,
)

# ── which recorded facts still hold ─────────────────────────────────────────────────────────────────


#: A fact that nothing verifies counts as stale after a day, unless its metadata or the caller say otherwise.
MAX_AGE_S = 86_400.0
#: In the metadata of a context item: after how many seconds it is stale.
AGE_FIELD = "max_age_s"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class FactCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One fact and what became of it. ``verifier`` is None where it has none and only its age counts."""

    key: str
    value: Any
    status: Status
    reason: str
    verifier: str | None = None
    recorded_us: int | None = None

    @property
    def text(self) -> str:
        return f"{self.key} is {self.status.value}: {self.reason}"


def check_context(
    items: Iterable[ContextItem], *, now_us: int, max_age_s: float | None, allowed: Permissions
) -> tuple[FactCheck, ...]:
    """Verify every item that says how, and judge the others by their age. Never raises for what is stored."""
    items = list(items)
    verifiable = [item for item in items if item.verify is not None]
    verdicts = dict(
        zip(
            (item.key for item in verifiable),
            check_all([(item.verify, item.value) for item in verifiable], allowed),
            strict=True,
        )
    )
    return tuple(
        FactCheck(
            key=item.key,
            value=item.value,
            status=verdict.status,
            reason=verdict.reason,
            verifier=_verifier_name(item),
            recorded_us=microseconds(item.updated_at),
        )
        for item in items
        for verdict in (verdicts.get(item.key) or _by_age(item, now_us, max_age_s),)
    )


def microseconds(moment: dt.datetime | None) -> int | None:
    """A moment in µs since 1970."""
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def _verifier_name(item: ContextItem) -> str | None:
    """What the stored verifier calls itself. The state may come from anywhere and hold anything there."""
    if item.verify is None:
        return None
    name = item.verify.get("name") if isinstance(item.verify, Mapping) else None
    return name if isinstance(name, str) else "unknown verifier"


def _by_age(item: ContextItem, now_us: int, max_age_s: float | None) -> Verdict:
    """Old facts are stale. A young one isn't fresh: nobody has looked."""
    own = item.metadata.get(AGE_FIELD) if isinstance(item.metadata, Mapping) else None
    limit_s = own if isinstance(own, int | float) and not isinstance(own, bool) else max_age_s
    recorded_us = microseconds(item.updated_at)
    if limit_s is None or recorded_us is None:
        return Verdict(Status.UNVERIFIABLE, "it has no verifier")
    age_s = (now_us - recorded_us) / 1_000_000
    if age_s > limit_s:
        return Verdict(Status.STALE, f"it has no verifier and is older than {_duration(limit_s)}")
    return Verdict(Status.UNVERIFIABLE, f"it has no verifier; stale after {_duration(limit_s)}")


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


# ── reading states that may be damaged ──────────────────────────────────────────────────────────────


#: As many unsound items of one collection are described.
_DESCRIBED_MAX = 3


def sound_items(problems: list[str], document: Mapping[Any, Any], kind: Kind[Item]) -> list[Item]:
    """The items of a collection in a plain document, without those that make no sense.

    These are problems only in a working state's document: elsewhere the key may mean something else.
    """
    if VERSION_FIELD not in document:
        problems = []
    stored = document.get(kind.key)
    if stored is None:
        return []
    if not isinstance(stored, Mapping):
        problems.append(f"state.{kind.key} holds no {kind.many}")
        return []
    found, unsound = [], []
    for id, fields in stored.items():
        try:
            found.append(kind.read(id if isinstance(id, str) else repr(id), fields))
        except DamageError as error:
            unsound.append(str(error))
    problems += unsound[:_DESCRIBED_MAX]
    if len(unsound) > _DESCRIBED_MAX:
        problems.append(f"{len(unsound) - _DESCRIBED_MAX:,} more of state.{kind.key} make no sense")
    return found


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
        if self.open_loops:
            words = _named(shown(loop.description) for loop in self.open_loops)
            lines.append(f"{counted(len(self.open_loops), 'open loop')}: {words}")
        if self.ready or self.blocked or self.in_progress:
            lines.append(
                f"tasks: {len(self.in_progress):,} in progress, {len(self.ready):,} ready, "
                f"{len(self.blocked):,} blocked"
            )
        for status in Status:
            found = self._with(status)
            if found and status in (Status.STALE, Status.CONTRADICTED):
                words = _named(f"{fact.key} ({fact.reason})" for fact in found)
                lines.append(f"{counted(len(found), 'fact')} {status.value}: {words}")
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


def working_part(document: Mapping[Any, Any], problems: list[str]) -> dict[str, Any]:
    """What a document's working state gives for a report."""
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
    words = age(at_us, now_us)
    return f"{words} ago" if words[0].isdigit() else words


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
