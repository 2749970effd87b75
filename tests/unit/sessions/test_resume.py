"""What a new run finds on a thread, checked against reality."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal, Store, ThreadNotFoundError, verifiers
from everthread.sessions.resume import ResumeReport, check_context
from everthread.threads.runtime import Runtime
from everthread.verifiers.specs import Permissions
from everthread.working.items import ContextItem
from everthread.working.sync.state import WorkingState

DAY_US = 86_400 * 1_000_000


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with everthread.open("memory:", runtime=Runtime(now_us=clock)) as opened:
        yield opened


@pytest.fixture
def work(store: Store, clock: Clock) -> WorkingState:
    return WorkingState.on(store.thread("bot"), clock=clock)


def statuses(report: ResumeReport) -> dict[str, str]:
    return {fact.key: fact.status.value for fact in report.facts}


def save(work: WorkingState) -> None:
    work.thread.commit()


def test_an_unknown_thread(store: Store) -> None:
    for ask in (store.resume, store.briefing):
        with pytest.raises(ThreadNotFoundError):
            ask("nobody")


def test_a_thread_without_runs(store: Store) -> None:
    thread = store.thread("bare")
    thread.state["x"] = 1
    thread.commit()
    report = store.resume("bare")
    assert (report.status, report.run, report.crashed) == (None, None, False)
    assert (report.facts, report.in_flight, report.decisions, report.ready) == ((), (), (), ())
    assert report.todos == {"pending": (), "in_progress": (), "completed": (), "cancelled": ()}
    assert str(report) == "bare: no run yet"


def test_every_fact_gets_its_status(store: Store, work: WorkingState, tmp_path: Path, clock: Clock) -> None:
    same, changed = tmp_path / "same", tmp_path / "changed"
    for path in (same, changed):
        path.write_text("x")
    work.set_context("same", str(same), verify=verifiers.file_hash())
    work.set_context("changed", str(changed), verify=verifiers.file_hash())
    work.set_context("missing", 1, verify=verifiers.file_hash(tmp_path / "missing"))
    work.set_context("command", 1, verify=verifiers.command("true"))
    work.set_context("plain", 1)
    work.set_context("short", 1, metadata={"max_age_s": 60})
    save(work)
    changed.write_text("y")
    clock.us += 3_600 * 1_000_000
    report = store.resume("bot")
    assert statuses(report) == {
        "same": "fresh",
        "changed": "contradicted",
        "missing": "unverifiable",
        "command": "unverifiable",
        "plain": "unverifiable",
        "short": "stale",
    }
    assert [fact.key for fact in report.contradicted] == ["changed"]
    assert statuses(store.resume("bot", allow_commands=True))["command"] == "fresh"
    assert statuses(store.resume("bot", allow_commands=[["true"]]))["command"] == "fresh"
    assert statuses(store.resume("bot", allow_commands=[["false"]]))["command"] == "unverifiable"
    # What is verified doesn't age, what isn't does.
    clock.us += 2 * DAY_US
    assert statuses(store.resume("bot")) == {
        "same": "fresh",
        "changed": "contradicted",
        "missing": "unverifiable",
        "command": "unverifiable",
        "plain": "stale",
        "short": "stale",
    }
    assert statuses(store.resume("bot", max_age_s=None))["plain"] == "unverifiable"
    assert statuses(store.resume("bot", max_age_s=10))["plain"] == "stale"


def test_what_a_run_found_stays_what_it_found(store: Store, clock: Clock) -> None:
    with store.session("bot", agent="one") as session:
        assert session.resumed is None
        todo = session.work.add_todo("first")
        session.decide("use FIFO", planned_action="recompute")
    clock.us += 5_000_000
    with store.session("bot", agent="two") as session:
        session.work.complete_todo(todo.id)
        session.work.add_todo("second")
        found = session.resumed
        assert found is not None
        assert (found.status, found.run and found.run.agent) == ("completed", "one")
        assert [each.content for each in found.todos["pending"]] == ["first"]
        assert found is session.resumed
        # The briefing is about the state as it is now, and about how the run before ended.
        briefing = session.briefing()
        assert "pending, medium: second" in briefing
        assert "completed: first" in briefing
        assert "- [run-1 · 5s · unverified · journal] Last: run 1 completed" in briefing
        assert "Planned, no outcome recorded: recompute" in briefing
        # From outside, the run under way is the last one.
        seen = store.resume("bot")
        assert (seen.status, seen.crashed, seen.run and seen.run.agent) == ("running", False, "two")


def test_a_call_of_a_living_run_is_not_in_doubt(store: Store) -> None:
    with store.session("bot") as session:
        reports = []
        session.call("pay-1", lambda: reports.append(store.resume("bot")))
    (report,) = reports
    assert [effect.state for effect in report.in_flight] == ["in_flight"]
    assert report.in_doubt == ()
    assert "1 call in flight: pay-1" in str(report)
    assert store.resume("bot").in_flight == ()


def test_a_failed_run_says_why(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.session("bot") as session:
        session.call("pay-1", lambda: 1 // 0)
    report = store.resume("bot")
    assert (report.status, report.run and report.run.reason) == ("failed", "failed")
    # It raised, and nobody knows how far it had got.
    assert [effect.key for effect in report.in_doubt] == ["pay-1"]
    briefing = store.briefing("bot")
    assert "ZeroDivisionError" in briefing
    assert "UNKNOWN, it may have happened: check first" in briefing


def test_resuming_writes_nothing(store: Store, work: WorkingState) -> None:
    work.set_context("x", 1, verify=lambda value: True)
    save(work)
    before = [version.id for version in store.thread("bot").history()]
    store.resume("bot")
    store.briefing("bot")
    assert [version.id for version in store.thread("bot").history()] == before


def test_a_failing_verifier_is_reported_and_not_fatal(store: Store, work: WorkingState) -> None:
    def broken(value: Any) -> bool:
        raise ValueError("no idea")

    work.set_context("broken", 1, verify=broken)
    work.set_context("fine", 1, verify=lambda value: value == 1)
    save(work)
    report = store.resume("bot")
    assert statuses(report) == {"broken": "unverifiable", "fine": "fresh"}
    assert "ValueError: no idea" in report.unverifiable[0].reason


def test_a_hostile_state_runs_nothing(store: Store, tmp_path: Path) -> None:
    """A state from elsewhere names verifiers and arguments of its own choice."""
    ran = tmp_path / "ran"
    argv = ["touch", str(ran)]
    thread = store.thread("bot")
    thread.state["schema_version"] = 1
    thread.state["context"] = {
        key: {"value": "x", "verify": verify}
        for key, verify in {
            "command": {"name": "command", "args": {"argv": argv}, "expected": {"cwd": "/"}},
            "module": {"name": "os.system", "args": {"command": f"touch {ran}"}},
            "git": {"name": "git_branch", "args": {}, "expected": {"repo": f"$(touch {ran})", "branch": "x"}},
            "nonsense": {"name": 7},
            "nothing": {},
            "text": "rm -rf /",
            "number": 7,
            "list": ["command"],
            "device": {"name": "file_hash", "expected": {"path": "/dev/zero", "size": 0, "sha256": "x"}},
        }.items()
    }
    thread.commit()
    for ask in (store.resume, store.briefing):
        ask("bot")
    assert not ran.exists()
    report = store.resume("bot")
    assert set(statuses(report).values()) == {"unverifiable"}
    # What makes no sense is named and doesn't hide the rest.
    assert set(statuses(report)) == {"command", "module", "git", "nonsense", "device", "nothing"}
    assert len(report.problems) == 3
    store.resume("bot", allow_commands=True)
    assert ran.exists()


def test_a_damaged_part_is_named_and_the_rest_is_there(store: Store) -> None:
    thread = store.thread("bot")
    thread.state["todos"] = {
        "t1": {"content": "odd", "status": "no such status"},
        "t2": {"content": "fine"},
        7: {"content": "fine too"},
        **{f"u{n}": None for n in range(20)},
    }
    thread.state["open_loops"] = "nonsense"
    thread.state["constraints"] = {"c1": {"text": "never"}}
    thread.state["schema_version"] = 1
    thread.commit()
    report = store.resume("bot")
    assert [todo.content for todo in report.todos["pending"]] == ["fine", "fine too"]
    assert len(report.problems) == 5
    assert "state.todos['t1']" in report.problems[0]
    assert report.problems[3] == "18 more of state.todos make no sense"
    assert report.problems[4] == "state.open_loops holds no open loops"
    assert [constraint.text for constraint in report.constraints] == ["never"]
    assert "could not be read" in report.summary()
    briefing = store.briefing("bot")
    assert "never" in briefing
    assert "- [damage · age unknown · stale · store] UNREADABLE: " in briefing


def test_a_document_of_another_kind_is_no_damage(store: Store) -> None:
    thread = store.thread("bot")
    thread.state.update({"todos": ["buy milk"], "context": {"a": 1}, "constraints": 7})
    thread.commit()
    report = store.resume("bot")
    assert (report.problems, report.facts, report.constraints) == ((), (), ())


def test_a_newer_state_is_not_touched(store: Store) -> None:
    thread = store.thread("bot")
    thread.state["schema_version"] = 99
    thread.commit()
    for ask in (store.resume, store.briefing):
        with pytest.raises(everthread.SchemaVersionError):
            ask("bot")


def test_the_report_as_plain_data(store: Store, work: WorkingState) -> None:
    work.set_context("mail", Personal("ann", "ann@example.org"))
    work.add_todo(Personal("ann", "call Ann"))
    save(work)
    report = store.resume("bot")
    text = json.dumps(report.plain())
    assert json.loads(text)["facts"][0]["status"] == "unverifiable"
    made = json.loads(text)["todos"]["pending"][0]["created_at"]
    assert "T" in made
    assert datetime.datetime.fromisoformat(made).tzinfo is not None
    for shown in (text, str(report), store.briefing("bot"), repr(report)):
        assert "ann@" not in shown
        assert "call Ann" not in shown


def test_ages_that_nobody_knows(clock: Clock) -> None:
    items = [
        ContextItem(key="old form", value=1),
        ContextItem(key="odd", value=1, metadata={"max_age_s": "soon"}),
    ]
    found = check_context(items, now_us=clock.us, max_age_s=1.0, allowed=Permissions())
    assert {fact.status.value for fact in found} == {"unverifiable"}
