"""What sessions promise beside the ledger, in both colours: limits, vetoes, slices, beginnings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    InvalidStateError,
    InvalidValueError,
    MaxTurnsError,
    SessionBusyError,
    Store,
    ToolVetoError,
)
from everthread.hooks import SessionLifecycle
from everthread.testing.driver import open_driven


@pytest.fixture(params=["blocking", "async"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    open_ = everthread.open if request.param == "blocking" else open_driven
    with open_(f"sqlite:///{tmp_path}/s.db", durability="process") as store:
        yield store


# ── no silent stop ───────────────────────────────────────────────────────────────────────────


def test_sixty_turns_without_a_limit_are_sixty_turns(store: Store) -> None:
    reached = 0
    with store.session("s") as session:
        assert (session.max_turns, session.turns_left) == (None, math.inf)
        while session.turns_left and reached < 60:
            with session.turn():
                reached += 1
    assert reached == 60
    assert session.exit_reason == "completed"


def test_with_a_limit_the_error_leaves_the_block_and_the_run_says_why(store: Store) -> None:
    left = []

    def work(session: Any) -> None:
        while True:
            left.append(session.turns_left)
            with session.turn():
                pass

    with pytest.raises(MaxTurnsError), store.session("s", max_turns=2) as session:
        work(session)
    assert left == [2, 1, 0]
    assert (session.exit_reason, session.status) == ("max_turns", "failed")
    assert store.session_records("s").last_run.reason == "max_turns"


def test_turns_left_ends_a_loop_without_an_error(store: Store) -> None:
    for _ in range(2):
        with store.session("s", max_turns=3) as session:
            while session.turns_left:
                with session.turn():
                    pass
        assert session.exit_reason == "completed"
    assert session.turns == 6


# ── hooks ────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_may_veto_a_tool_before_it_runs(store: Store) -> None:
    hooks = SessionLifecycle()

    @hooks.register("on_tool_use")
    def guard(use: Any) -> None:
        if use.phase == "pre" and use.name == "pay":
            raise ToolVetoError("no payments at night")

    paid: list[int] = []

    def pay(amount: int) -> None:
        paid.append(amount)

    with store.session("s", hooks=hooks) as session:
        with pytest.raises(ToolVetoError, match="at night"):
            session.call("pay-1", pay, 80)
        # Nothing was begun, so nothing is in doubt, and the key is free.
        assert (paid, session.in_doubt(), session.effects()) == ([], [], [])
        with session.turn() as turn:
            with pytest.raises(ToolVetoError), turn.tool("pay"):
                paid.append(0)
            with turn.tool("look"):
                pass
        hooks.unregister("on_tool_use", guard)
        session.call("pay-1", pay, 80)
    assert paid == [80]
    assert hooks.failures == ()


def test_whatever_else_a_hook_raises_is_reported_only(store: Store) -> None:
    hooks = SessionLifecycle()

    @hooks.register("on_tool_use")
    def broken(use: Any) -> None:
        raise ToolVetoError("too late") if use.phase == "post" else KeyError(use.name)

    with store.session("s", hooks=hooks) as session:
        assert session.call("k", lambda: 7) == 7
        assert [error.kind for error in session.errors] == ["KeyError", "ToolVetoError"]
    assert [type(failure.error) for failure in hooks.failures] == [KeyError, ToolVetoError]


def test_the_end_is_told_with_the_runs_own_turns_and_usage(store: Store) -> None:
    told: list[Any] = []

    def end(reason: str, turns: int, usage: Any, run_turns: int, run_usage: Any) -> None:
        told.append((reason, turns, dict(usage), run_turns, dict(run_usage)))

    for _ in range(2):
        with store.session("s", hooks={"on_session_end": end}) as session, session.turn() as turn:
            turn.add_usage(tokens=5)
    assert told == [
        ("completed", 1, {"tokens": 5}, 1, {"tokens": 5}),
        ("completed", 2, {"tokens": 10}, 1, {"tokens": 5}),
    ]


# ── slices ───────────────────────────────────────────────────────────────────────────────────


def test_a_slice_round_trips(store: Store) -> None:
    tasks = [
        ["t-1", {"subject": "one", "status": "completed", "blocked_by": [], "blocks": ["t-2", "ghost"]}],
        ["t-2", {"subject": "two", "status": "pending", "blocked_by": ["t-1", "elsewhere"], "blocks": []}],
        ["mine", {"subject": "three", "status": "in_progress", "extra": 7, "blocked_by": [], "blocks": []}],
    ]
    with store.session("a") as session:
        session.merge_update(tasks=tasks, phase="two")
        found = session.slice()
        assert found == {"phase": "two", "tasks": tasks}
        # An edge to a task that isn't there blocks nothing.
        assert [task.id for task in session.tasks.ready()] == ["t-2"]
    assert store.session_records("a").slice() == found
    with store.session("b") as session:
        session.merge_update(found)
        assert session.slice() == found
        session.tasks.complete("t-2")
        assert session.slice()["tasks"][1][1]["blocked_by"] == ["t-1", "elsewhere"]


@pytest.mark.parametrize(
    "wrong",
    [
        [["a", {"subject": "x", "status": "odd"}]],
        [["a", {"subject": "x", "blocked_by": "b"}]],
        [["a", {"subject": "x"}], ["a", {"subject": "y"}]],
        [["a"]],
        [[1, {"subject": "x"}]],
        {"a": {"subject": "x", "status": None}},
    ],
)
def test_tasks_that_make_no_sense_are_refused(store: Store, wrong: Any) -> None:
    with store.session("a") as session:
        session.merge_update(tasks=[["t", {"subject": "x"}]])
        before = session.slice()
        with pytest.raises(InvalidValueError):
            session.merge_update(tasks=wrong, phase="two")
        assert session.slice() == before


# ── how a session begins ─────────────────────────────────────────────────────────────────────


def test_the_threads_own_system_message_changes_nothing(store: Store) -> None:
    store.session("s", system="be brief").close()
    head = store.thread("s").head
    store.session("s", system="be brief").close()
    store.session("s", system={"role": "system", "content": "be brief"}).close()
    store.session("s").close()
    assert store.thread("s").head == head


def test_another_system_message_is_refused_or_replaces_it(store: Store) -> None:
    with store.session("s", system="be brief") as session:
        session.messages.append({"id": "m1", "role": "user"})
    head = store.thread("s").head
    for options in ({}, {"mode": "fork", "source": "s"}):
        name = "fork" if options else "s"
        with pytest.raises(InvalidStateError, match=r"leave system= out.*replace_system=True"):
            store.session(name, system="be long", **options)
    assert store.thread("s").head == head
    assert [info.name for info in store.threads()] == ["s"]
    with store.session("s", system="be long", replace_system=True) as session:
        assert [message["id"] for message in session.messages[:]] == ["system", "m1"]
        assert session.messages[0]["content"] == "be long"
        assert store.thread("s").head.seq == head.seq + 1
    store.session("s", system="be long").close()
    assert store.thread("s").head.seq == head.seq + 1


def test_initial_state_is_that_of_a_new_thread(store: Store) -> None:
    first = {"phase": "one", "tasks": [["t", {"subject": "x"}]]}
    with store.session("s", initial=first) as session:
        assert session.state["phase"] == "one"
        assert session.tasks["t"].status == "pending"
        session.merge_update(phase="two")
    with store.session("s", initial={"phase": "one"}) as session:
        assert session.state["phase"] == "two"
    for wrong in ({"todos": {}}, 7, {"tasks": [["t", {"status": "odd"}]]}):
        with pytest.raises(InvalidValueError):
            store.session("new", initial=wrong)
    with pytest.raises(InvalidValueError, match="source"):
        store.session("new", mode="fork", source="s", initial={})
    assert [info.name for info in store.threads()] == ["s"]


def test_a_limit_below_none_is_refused_with_what_is_allowed(store: Store) -> None:
    with pytest.raises(InvalidValueError, match="not below 0"):
        store.session("s", max_turns=-1)


def test_a_busy_named_run_says_how_it_is_joined_and_ended(store: Store) -> None:
    with store.session("s", run="job 7"):
        pass
    with pytest.raises(SessionBusyError, match=r"store\.session\(name, run='job 7'\).*complete\(\)"):
        store.session("s").close()
    with store.session("s", run="job 7") as session:
        session.complete()
    with store.session("s"), pytest.raises(SessionBusyError, match="wait, or end that run"):
        store.session("s").close()


def test_a_named_run_that_another_one_replaced_is_superseded_not_crashed(store: Store) -> None:
    with store.session("s", run="job 7") as session:
        session.messages.append({"content": "begun"})
    with store.session("s", run="job 8") as session:
        assert [(run.id, run.status) for run in store.session_records("s").runs()] == [
            ("job 8", "running"),
            ("job 7", "superseded"),
        ]
        session.complete()
    with store.session("s"):
        pass
    runs = store.session_records("s").runs()
    assert [run.status for run in runs] == ["completed", "completed", "superseded"]
    assert runs[-1].text == "run 1 superseded"
