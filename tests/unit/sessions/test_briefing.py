"""Records turned into the facts of a briefing: what is named, in which order, and how far it is trusted."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from everthread import Personal
from everthread.briefing.facts import Fact, Kind, Trust
from everthread.sessions import briefing as facts
from everthread.sessions.records import DecisionRecord, EffectRecord, ErrorRecord, RunRecord
from everthread.sessions.resume import FactCheck, ResumeReport
from everthread.sessions.tasks import Task
from everthread.sessions.usage import Usage
from everthread.verifiers import Status
from everthread.working.items import Constraint, Intention, OpenLoop, Priority, Todo, TodoStatus

NOW_US = 1_800_000_000_000_000
NOW = dt.datetime.fromtimestamp(NOW_US / 1e6, dt.UTC)


def report(**fields: Any) -> ResumeReport:
    return ResumeReport(thread="bot", version=1, made_us=NOW_US, **fields)


def todo(id: str, status: str = "pending", priority: str = "medium", minutes: int = 0) -> Todo:
    at = NOW - dt.timedelta(minutes=minutes)
    return Todo(
        id=id,
        content=f"do {id}",
        status=TodoStatus(status),
        priority=Priority(priority),
        created_at=at,
        updated_at=at,
        completed_at=at if status == "completed" else None,
    )


def todos(*given: Todo) -> dict[str, tuple[Todo, ...]]:
    return {status.value: tuple(t for t in given if t.status is status) for status in TodoStatus}


def effect(key: str, state: Any = "in_doubt", *, run: str = "r", at_us: int = NOW_US) -> EffectRecord:
    return EffectRecord(key=key, name="pay", state=state, run=run, attempt=1, at_us=at_us, settled_us=NOW_US)


def decision(id: str, **fields: Any) -> DecisionRecord:
    return DecisionRecord(id=id, decision=f"decision {id}", **{"at_us": NOW_US, **fields})


def texts(found: Any) -> list[str]:
    return [fact.text for fact in found]


def test_how_the_last_run_ended() -> None:
    assert list(facts.run_fact(report())) == []
    run = RunRecord(id="r", number=3, status="crashed", started_us=NOW_US, turn=7, usage=Usage())
    found = report(
        run=run,
        status="crashed",
        heard_us=NOW_US - 5,
        in_flight=tuple(effect(f"pay-{n}") for n in range(5)),
        facts=(check("config", Status.CONTRADICTED),),
    )
    (fact,) = facts.run_fact(found)
    assert (fact.id, fact.at_us, fact.trust) == ("run-3", NOW_US - 5, Trust.VERIFIED)
    assert fact.text == "Last: run 3 crashed in turn 7; calls in doubt: 5; facts contradicted: 1"
    ended = msgspec.structs.replace(run, status="completed", reason="completed", ended_us=NOW_US)
    (fact,) = facts.run_fact(report(run=ended, status="completed", heard_us=NOW_US))
    assert (fact.text, fact.trust) == ("Last: run 3 completed", Trust.UNVERIFIED)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"todos": todos(todo("a"), todo("b", priority="critical"))}, ["Start: do b"]),
        ({"todos": todos(todo("a"), todo("b"))}, ["Start: do a"]),
        (
            {"todos": todos(todo("a", priority="critical"), todo("b", "in_progress", "low"))},
            ["Continue: do b"],
        ),
        ({"todos": todos(todo("a", "completed"), todo("b", "cancelled"))}, []),
        ({"ready": (Task(id="t", subject="build"),), "todos": todos(todo("a"))}, ["Start: build"]),
        (
            {"in_progress": (Task(id="t", subject="build", active_form="building", status="in_progress"),)},
            ["Continue: building"],
        ),
        (
            {
                "in_flight": (effect("pay-1"), effect("pay-2", "in_flight")),
                "decisions": (
                    decision("d1", planned_action="old"),
                    decision("d2", planned_action="recompute"),
                ),
                "todos": todos(todo("a", "in_progress")),
            },
            [
                "First find out whether pay happened",
                "Planned, no outcome recorded: recompute",
                "Continue: do a",
            ],
        ),
    ],
)
def test_the_next_action(fields: dict[str, Any], expected: list[str]) -> None:
    assert texts(facts.next_facts(report(**fields))) == expected


def test_todos_and_tasks_in_order_of_urgency() -> None:
    found = report(
        todos=todos(
            todo("low", priority="low"),
            todo("high", priority="high"),
            todo("begun", "in_progress"),
            *(todo(f"done-{n}", "completed", minutes=n) for n in range(10)),
            todo("dropped", "cancelled"),
        ),
        in_progress=(Task(id="t1", subject="one", status="in_progress"),),
        ready=(Task(id="t2", subject="two"),),
        blocked=(Task(id="t3", subject="three", blocked_by=("t1", "t2")),),
    )
    made = list(facts.todo_facts(found))
    assert [fact.id for fact in made] == ["t1", "begun", "t2", "high", "low", "t3"]
    assert [fact.state for fact in made] == [
        *("in progress", "in progress, medium", "ready", "pending, high", "pending, low", "blocked by t1, t2")
    ]


def test_whatever_is_over_is_known_the_newest_first() -> None:
    found = report(
        todos=todos(
            todo("open"),
            *(todo(f"done-{n}", "completed", minutes=n) for n in range(1, 10)),
            todo("dropped", "cancelled", minutes=10),
        )
    )
    built = Task(id="t", subject="build", status="completed", updated_us=NOW_US)
    loops = [OpenLoop(id="l", description="answered", resolved_at=NOW), OpenLoop(id="o", description="open")]
    goals = [Intention(id="old", text="survive"), Intention(id="new", text="thrive")]
    made = facts.finished_facts(found, [built, Task(id="t2", subject="two")], loops, goals)
    assert [(fact.id, fact.state) for fact in made] == [
        ("t", "completed"),
        *((f"done-{n}", "completed") for n in range(1, 10)),
        ("dropped", "cancelled"),
        ("l", "resolved"),
        ("old", "replaced by a later goal"),
    ]
    assert {fact.kind for fact in made} == {Kind.FINISHED}


def check(key: str, status: Status, verifier: str | None = "file_hash", at_us: int = NOW_US) -> FactCheck:
    return FactCheck(
        key=key,
        value=f"value of {key}",
        status=status,
        reason="because",
        verifier=verifier,
        recorded_us=at_us,
    )


def test_only_what_was_checked_now_is_called_verified() -> None:
    found = report(
        facts=(
            check("old", Status.STALE, None),
            check("plain", Status.UNVERIFIABLE, None),
            check("odd", Status.UNVERIFIABLE),
            check("good", Status.FRESH),
            check("better", Status.FRESH, at_us=NOW_US + 1),
            check("bad", Status.CONTRADICTED),
        )
    )
    made = {fact.id: fact for fact in facts.context_facts(found)}
    assert {id: (fact.kind, fact.trust) for id, fact in made.items()} == {
        "bad": (Kind.DRIFT, Trust.STALE),
        "better": (Kind.CONTEXT, Trust.VERIFIED),
        "good": (Kind.CONTEXT, Trust.VERIFIED),
        "plain": (Kind.CONTEXT, Trust.UNVERIFIED),
        "odd": (Kind.CONTEXT, Trust.UNVERIFIED),
        "old": (Kind.CONTEXT, Trust.STALE),
    }
    assert list(made) == ["bad", "better", "good", "plain", "odd", "old"]
    assert made["bad"].text == "CONTRADICTED: because; recorded was value of bad"
    assert made["good"].text == "value of good (because)"
    assert made["plain"].text == "value of plain"


def test_calls_say_how_they_stand() -> None:
    settled = [effect("c", "done"), effect("d", "not_done")]
    made = list(facts.call_facts(report(in_flight=(effect("a"), effect("b", "in_flight"))), settled))
    assert [(fact.kind.value, fact.id, fact.text, fact.state) for fact in made] == [
        ("call", "a", "pay", "UNKNOWN, it may have happened: check first"),
        ("call", "b", "pay", "in flight"),
        ("settled", "c", "pay", "done, don't repeat it"),
        ("settled", "d", "pay", "not done"),
    ]


def test_a_key_that_was_called_again_stands_only_as_it_is_now() -> None:
    settled = [effect("a", "done"), effect("a", "not_done"), effect("b", "not_done")]
    made = list(facts.call_facts(report(in_flight=(effect("b"),)), settled))
    assert [(fact.kind.value, fact.id) for fact in made] == [("call", "b"), ("settled", "a")]
    assert made[1].state == "done, don't repeat it"


def test_a_plan_that_was_carried_out_is_no_invitation_to_repeat_it() -> None:
    plan = decision("d1", planned_action="call send", run="r1", at_us=100)
    settled = [
        effect("send-2", "done", run="r2", at_us=120),
        effect("send-1", "done", run="r1", at_us=101),
        effect("send-0", "done", run="r1", at_us=99),
        effect("refused", "not_done", run="r1", at_us=100),
    ]
    (told,) = texts(facts.next_facts(report(decisions=(plan,)), settled))
    planned, _, rest = told.partition(" (")
    assert planned == "Planned, no outcome recorded: call send"
    assert rest == "since then done: send-1; don't repeat it, record the outcome)"
    (told,) = texts(facts.next_facts(report(decisions=(plan,)), settled[2:]))
    assert told == "Planned, no outcome recorded: call send"


def test_decisions_with_why_and_what_was_rejected() -> None:
    open_one = decision(
        "d1", rationale="auditor asked", planned_action="recompute", rejected=("LIFO", "average")
    )
    done = decision("d2", outcome="fine", outcome_us=NOW_US)
    failed = decision("d3", outcome=Personal("ann", "secret"), outcome_us=NOW_US, failed=True)
    sealed = decision("d4", rationale="Ann", planned_action="Ann", rejected=("Ann",), personal=True)
    assert texts(facts.next_facts(report(decisions=(sealed,)))) == ["Planned, no outcome recorded: •••"]
    assert texts(facts.decision_facts([sealed])) == ["•••; planned: •••"]
    assert "Ann" not in str(report(decisions=(sealed,)).plain())
    assert texts(facts.decision_facts([open_one, done, failed])) == [
        "decision d1; why: auditor asked; rejected: LIFO, average; planned: recompute",
        "decision d2; outcome: fine",
        "decision d3; outcome: failed, •••",
    ]


def test_a_decision_without_a_planned_action_names_none() -> None:
    assert texts(facts.decision_facts([decision("d1", rationale="y")])) == ["decision d1; why: y"]


def test_a_call_whose_name_is_lost_is_called_by_its_key() -> None:
    def lost(key: str, state: str) -> EffectRecord:
        return msgspec.structs.replace(effect(key, state), name="")

    found = report(in_flight=(lost("pay 1", "in_doubt"),))
    assert texts(facts.call_facts(found, [lost("pay 2", "done")])) == ["pay 1", "pay 2"]
    assert texts(facts.next_facts(found)) == ["First find out whether pay 1 happened"]


def test_the_rest() -> None:
    found = report(
        goal=Intention(id="i", text="ship it", updated_at=NOW),
        constraints=(Constraint(id="c", text="never  <this>\n"),),
        open_loops=(
            OpenLoop(id="l1", description="old"),
            OpenLoop(id="l2", description=Personal("ann", "x"), context={"a": 1}),
        ),
    )
    assert list(facts.goal_fact(found)) == [
        Fact(kind=Kind.GOAL, id="i", text="ship it", source="intention", at_us=NOW_US)
    ]
    assert texts(facts.constraint_facts(found)) == ["never  <this>\n"]
    assert texts(facts.loop_facts(found)) == ["••• ({a: 1})", "old"]
    error = ErrorRecord(
        id="e", kind="ValueError", message="no", where="parse", at_us=NOW_US, handled="skipped"
    )
    assert texts(facts.failure_facts([error])) == ["parse: ValueError: no; done about it: skipped"]
    assert texts(facts.failure_facts([msgspec.structs.replace(error, personal=True)])) == [
        "parse: ValueError: •••; done about it: skipped"
    ]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    made = list(facts.exchange_facts(said, 50, [1, 2]))
    assert [(fact.id, fact.text, fact.at_us) for fact in made] == [
        ("m49", "assistant: hello", 2),
        ("m48", "user: hi", 1),
    ]
