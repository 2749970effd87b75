"""What is recorded of sessions, as readers see it: frozen types, and how they are read from what is stored.

Reading tolerates what it doesn't know: a field that is missing or of another type counts as absent. None of
these has an "id" in its log: an item without one is appended without looking for another one like it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from everthread.errors import EverthreadError
from everthread.sessions.usage import Usage
from everthread.values import Erased, Personal

#: The last four are derived by the reader. ``silent``: nothing was heard for longer than its lease lasts of a
#: run that its caller named, which belongs to no process and may go on. ``superseded``: another run took the
#: place of such a one. ``crashed``: the run said nothing of its end. ``unknown``: what it said can't be read,
#: because its journal is damaged.
Status = Literal[
    "running",
    "waiting_for_input",
    "completed",
    "failed",
    "cancelled",
    "silent",
    "crashed",
    "superseded",
    "unknown",
]
Reason = Literal["completed", "max_turns", "waiting_for_input", "failed", "cancelled"]
STATUSES: Final = ("running", "waiting_for_input", "completed", "failed", "cancelled")
REASONS: Final = ("completed", "max_turns", "waiting_for_input", "failed", "cancelled")
#: Nothing more comes from a run with one of these.
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "crashed", "superseded", "unknown"})
#: What isn't recorded by the run itself.
DERIVED: Final = frozenset({"silent", "crashed", "superseded", "unknown"})
#: How a run that ended for this reason stands. A run that used up its turns has failed.
STATUS_OF: Final[dict[str, Status]] = {
    "completed": "completed",
    "max_turns": "failed",
    "waiting_for_input": "waiting_for_input",
    "failed": "failed",
    "cancelled": "cancelled",
}


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``reason`` and ``ended_us`` are ``None`` for one that goes on, or that died: then ``status``
    is ``crashed``. One that its caller named is ``silent`` instead, and ``superseded`` once a successor has
    come. ``turn`` is the turn it was in, 0 between turns."""

    id: str
    number: int
    status: Status
    started_us: int
    ended_us: int | None = None
    reason: Reason | None = None
    agent: str | None = None
    host: str = ""
    pid: int = 0
    turns: int = 0
    turn: int = 0
    usage: Usage
    error: str | None = None
    sandbox_id: str | None = None
    #: When one without an end was last heard of, if its lease can't say that any more.
    heard_us: int | None = None
    #: On an engine: the id of the workflow, and the id of its execution.
    workflow: str | None = None
    execution: str | None = None
    #: The earlier execution whose effects this run skipped, if it skipped any.
    skipped: str | None = None

    @property
    def started_at(self) -> datetime.datetime:
        return moment(self.started_us)

    @property
    def ended_at(self) -> datetime.datetime | None:
        return moment_or_none(self.ended_us)

    @property
    def text(self) -> str:
        if self.status == "unknown":
            return f"how run {self.number}, or a later one, ended isn't known: its journal is damaged"
        how = self.status if self.reason in (None, self.status) else f"{self.status} ({self.reason})"
        where = f" in turn {self.turn}" if self.turn and self.status == "crashed" else ""
        why = f": {self.error}" if self.error and self.status == "failed" else ""
        return f"run {self.number} {how}{where}{why}"


class EffectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One effect. ``state``: ``done``, ``not_done``, ``in_flight`` (its run goes on), or ``in_doubt``.
    ``result`` is what a done one returned; ``stored`` is false where that could not be kept. ``print`` tells
    its arguments from others."""

    key: str
    name: str
    state: Literal["done", "not_done", "in_flight", "in_doubt"]
    run: str
    attempt: int
    at_us: int
    settled_us: int | None = None
    settled_by: str | None = None
    error: str | None = None
    result: Any = None
    stored: bool = True
    print: str = ""
    #: The execution of a workflow that made it; "" outside of an engine.
    execution: str = ""

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    @property
    def settled_at(self) -> datetime.datetime | None:
        return moment_or_none(self.settled_us)

    @property
    def text(self) -> str:
        why = f" ({self.error})" if self.error else ""
        return f"{self.name}: {self.state.replace('_', ' ')}{why}"


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, written before it was acted upon: by which ``agent``, and ``after`` which message (its id).
    ``outcome`` is ``None`` until one was recorded. It is ``personal`` if a part of it was sealed as
    somebody's."""

    id: str
    decision: str
    rationale: str = ""
    planned_action: str = ""
    rejected: tuple[str, ...] = ()
    at_us: int = 0
    run: str = ""
    agent: str | None = None
    after: Any = None
    outcome: Any = None
    failed: bool = False
    outcome_us: int | None = None
    personal: bool = False
    #: The key of the effect that carries it out; once that is done, so is the decision.
    effect: str | None = None

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    @property
    def outcome_at(self) -> datetime.datetime | None:
        return moment_or_none(self.outcome_us)

    @property
    def complete(self) -> bool:
        return self.outcome_us is not None

    @property
    def text(self) -> str:
        return self.decision

    def __repr__(self) -> str:
        return _masked(self, "decision", "rationale", "planned_action", "rejected")


class TurnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn of a run counted, and when it last did."""

    turn: int
    run: str
    usage: Usage
    at_us: int = 0

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    def __add__(self, other: TurnUsage) -> TurnUsage:
        """Add what the same turn counted at another time."""
        usage, at_us = self.usage + other.usage, max(self.at_us, other.at_us)
        return TurnUsage(turn=self.turn, run=self.run, usage=usage, at_us=at_us)


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, where, and what was done about it (``handled``). The message is ``personal`` if the
    session has a user: it was sealed as theirs, and is empty once that person was erased."""

    id: str
    kind: str
    message: str
    where: str
    at_us: int
    run: str = ""
    turn: int = 0
    handled: str | None = None
    personal: bool = False

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    @property
    def text(self) -> str:
        return f"{self.where}: {self.kind}" + (f": {self.message}" if self.message else "")

    def __repr__(self) -> str:
        return _masked(self, "message")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A boundary that a session marked, and the names of what it kept there. Its fields also answer by name,
    as those of a dictionary do: ``record["id"]``."""

    id: str
    label: str
    keys: tuple[str, ...]
    at_us: int

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    @property
    def at(self) -> datetime.datetime:
        return moment(self.at_us)

    @property
    def text(self) -> str:
        return self.label


def _masked(record: DecisionRecord | ErrorRecord, *words: str) -> str:
    """A record as it may stand in a log: what is personal in it isn't shown."""
    fields = msgspec.structs.asdict(record)
    if record.personal:
        fields.update(dict.fromkeys(words, "•••"))
    return f"{type(record).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


# ── from what is stored ──────────────────────────────────────────────────────────────────────


def run_of(stored: Mapping[str, Any]) -> RunRecord:
    status, reason = stored.get("status"), stored.get("reason")
    return RunRecord(
        id=_text(stored, "run_id"),
        number=_whole(stored, "number"),
        status=status if status in STATUSES or status in DERIVED else "crashed",
        started_us=_whole(stored, "started_us"),
        ended_us=_whole_or_none(stored, "ended_us"),
        reason=reason if reason in REASONS else None,
        agent=_text_or_none(stored, "agent"),
        host=_text(stored, "host"),
        pid=_whole(stored, "pid"),
        turns=_whole(stored, "turns"),
        turn=_whole(stored, "turn"),
        usage=usage_of(stored.get("usage")),
        error=_text_or_none(stored, "error"),
        sandbox_id=_text_or_none(stored, "sandbox_id"),
        heard_us=_whole_or_none(stored, "heard_us"),
        workflow=_text_or_none(stored, "workflow"),
        execution=_text_or_none(stored, "execution"),
        skipped=_text_or_none(stored, "skipped"),
    )


def usage_of(stored: Any) -> Usage:
    return Usage(stored if isinstance(stored, Mapping) else None)


def effect_of(stored: Mapping[str, Any], state: str | None = None) -> EffectRecord:
    """``state`` says how an open one stands, which depends on whether its run goes on."""
    recorded = stored.get("state")
    return EffectRecord(
        key=_text(stored, "key"),
        name=_text(stored, "name"),
        state=state or (recorded if recorded in ("done", "not_done") else "in_doubt"),  # type: ignore[arg-type]
        run=_text(stored, "run"),
        attempt=_whole(stored, "attempt"),
        at_us=_whole(stored, "at_us"),
        settled_us=_whole_or_none(stored, "settled_us"),
        settled_by=_text_or_none(stored, "by"),
        error=_text_or_none(stored, "error"),
        result=stored.get("result"),
        stored="unstorable" not in stored,
        print=_text(stored, "print"),
        execution=_text(stored, "execution"),
    )


def decision_of(stored: Mapping[str, Any], outcome: Mapping[str, Any] | None = None) -> DecisionRecord:
    rejected = stored.get("rejected")
    options = list(rejected) if isinstance(rejected, list | tuple) else []
    words = [stored.get("decision"), stored.get("rationale"), stored.get("planned_action"), *options]
    return DecisionRecord(
        id=_text(stored, "decision_id"),
        decision=revealed(stored.get("decision")) or "",
        rationale=revealed(stored.get("rationale")) or "",
        planned_action=revealed(stored.get("planned_action")) or "",
        rejected=tuple(revealed(option) or "" for option in options),
        at_us=_whole(stored, "at_us"),
        run=_text(stored, "run"),
        agent=_text_or_none(stored, "agent"),
        after=stored.get("after"),
        outcome=None if outcome is None else outcome.get("outcome"),
        failed=outcome is not None and bool(outcome.get("failed")),
        outcome_us=None if outcome is None else _whole(outcome, "at_us"),
        personal=any(isinstance(part, Personal | Erased) for part in words),
        effect=_text_or_none(stored, "effect"),
    )


def turn_usage_of(stored: Mapping[str, Any]) -> TurnUsage:
    return TurnUsage(
        turn=_whole(stored, "turn"),
        run=_text(stored, "run"),
        usage=usage_of(stored.get("usage")),
        at_us=_whole(stored, "at_us"),
    )


def error_of(stored: Mapping[str, Any], handled: str | None = None) -> ErrorRecord:
    return ErrorRecord(
        id=_text(stored, "error_id"),
        kind=_text(stored, "kind"),
        message=revealed(stored.get("message")) or "",
        where=_text(stored, "where"),
        at_us=_whole(stored, "at_us"),
        run=_text(stored, "run"),
        turn=_whole(stored, "turn"),
        handled=handled if handled is not None else _text_or_none(stored, "handled"),
        personal=isinstance(stored.get("message"), Personal | Erased),
    )


def checkpoint_of(stored: Mapping[str, Any]) -> CheckpointRecord:
    parts = stored.get("kept")
    return CheckpointRecord(
        id=_text(stored, "checkpoint_id"),
        label=_text(stored, "label"),
        keys=tuple(parts) if isinstance(parts, Mapping) else (),
        at_us=_whole(stored, "at_us"),
    )


def revealed(value: Any) -> str | None:
    """A text that may have been sealed; ``None`` if it was erased or its key isn't here."""
    if isinstance(value, Personal):
        try:
            value = value.value
        except EverthreadError:
            return None
    return value if isinstance(value, str) else None


def _text(stored: Mapping[str, Any], name: str) -> str:
    return _text_or_none(stored, name) or ""


def _text_or_none(stored: Mapping[str, Any], name: str) -> str | None:
    value = stored.get(name)
    return value if isinstance(value, str) else None


def _whole(stored: Mapping[str, Any], name: str) -> int:
    return _whole_or_none(stored, name) or 0


def _whole_or_none(stored: Mapping[str, Any], name: str) -> int | None:
    value = stored.get(name)
    return value if type(value) is int else None


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(at_us: int) -> datetime.datetime:
    """Microseconds since 1970 as an aware datetime."""
    return _EPOCH + datetime.timedelta(microseconds=at_us)


def moment_or_none(at_us: int | None) -> datetime.datetime | None:
    return None if at_us is None else moment(at_us)
