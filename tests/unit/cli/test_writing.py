"""Commands that write: todos, notes, loops, intentions and messages from a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from everthread import WorkingState
from tests.unit.cli.calling import Program


@pytest.fixture(autouse=True)
def thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_THREAD", "bot")


def test_a_todo_is_added_started_and_done(program: Program, store: everthread.Store) -> None:
    added = program.json("todo", "add", "reconcile March", "--priority", "high")["todo"]
    assert program.json("todo", "start", "march")["todo"]["status"] == "in_progress"
    assert [todo["id"] for todo in program.json("todo", "list")["todos"]] == [added["id"]]
    assert program.json("todo", "done", added["id"][:6])["todo"]["status"] == "completed"
    listed = program.json("todo", "list")
    assert (listed["todos"], listed["finished"]) == ([], 1)
    assert [todo["id"] for todo in program.json("todo", "list", "--all")["todos"]] == [added["id"]]


def test_each_answer_is_one_line(program: Program, store: everthread.Store) -> None:
    commands = [
        ("todo", "add", "reconcile\nMarch"),
        ("note", "branch", "a\nb"),
        ("decide", "refund\nT030", "--why", "paid\ntwice"),
        ("outcome", "refund", "re\nfunded"),
        ("loop", "open", "auditor"),
        ("loop", "close", "auditor"),
        ("intend", "go\non"),
        ("append", "user", "hello"),
        ("todo", "cancel", "reconcile"),
    ]
    for command in commands:
        assert len(program(*command).out.splitlines()) == 1, command


def test_what_a_command_wrote_is_in_the_working_state(program: Program, store: everthread.Store) -> None:
    program("note", "branch", "feature/x")
    program("note", "retries", "3", "--parse")
    program("intend", "mail the totals")
    program("loop", "open", "waiting for the auditor")
    program("append", "user", "skip March", "--id", "m1")
    program("append", "user", "skip March", "--id", "m1")
    state = WorkingState(store=store, thread="bot")
    assert (state.get_context("branch"), state.get_context("retries")) == ("feature/x", 3)
    assert state.get_intention() == "mail the totals"
    assert [loop.description for loop in state.open_loops] == ["waiting for the auditor"]
    assert [(item["id"], item["content"]) for item in store.thread("bot").messages] == [("m1", "skip March")]


def test_a_live_run_keeps_its_own_changes_and_the_command_s(
    program: Program, store: everthread.Store
) -> None:
    with store.session("bot") as session:
        session.work.add_todo("of the run")
        program("todo", "add", "of the shell")
        session.work.add_todo("of the run again")
    found = {todo.content for todo in WorkingState(store=store, thread="bot").todos}
    assert found == {"of the run", "of the shell", "of the run again"}


def test_commands_at_once_lose_nothing(program: Program, store: everthread.Store) -> None:
    command = [sys.executable, "-m", "everthread.cli", "todo", "add", "--store", program.url]
    running = [subprocess.Popen([*command, f"todo {n}"], stdout=subprocess.DEVNULL) for n in range(4)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0, 0]
    assert {todo["text"] for todo in program.json("todo", "list")["todos"]} == {f"todo {n}" for n in range(4)}


def test_an_ambiguous_or_unknown_item_is_refused_by_name(program: Program, store: everthread.Store) -> None:
    program("todo", "add", "pay 817")
    program("todo", "add", "pay 818")
    assert "fits 2 todos" in program("todo", "done", "pay", code=2).err
    assert "there is no todo 'march'" in program("todo", "done", "march", code=3).err
    assert "must be JSON" in program("note", "x", "not json", "--parse", code=2).err


def test_listing_todos_creates_no_store(program: Program) -> None:
    program("todo", "list", code=3)
    assert not Path(program.url.removeprefix("sqlite:///")).exists()


def test_init_names_the_thread_that_commands_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.delenv("EVERTHREAD_THREAD")
    project = tmp_path / "invoices"
    (project / "deep").mkdir(parents=True)
    run = [sys.executable, "-m", "everthread.cli"]
    for command in (["init", str(project)], ["init", str(project)]):
        assert subprocess.run([*run, *command], capture_output=True, text=True).stdout.endswith(
            ": invoices\n"
        )
    added = subprocess.run(
        [*run, "todo", "add", "x", "--json"], cwd=project / "deep", capture_output=True, text=True
    )
    assert '"thread": "invoices"' in added.stdout, added.stderr


def test_without_a_thread_a_command_says_how_to_choose_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.delenv("EVERTHREAD_THREAD")
    monkeypatch.chdir(tmp_path)
    assert "no thread was chosen: pass --thread NAME" in program("todo", "add", "x", code=2).err


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


def test_a_decision_is_open_until_it_has_an_outcome(program: Program, store: everthread.Store) -> None:
    made = program.json(
        "decide", "refund T030", "--why", "paid twice", "--rejected", "ask", "--rejected", "wait"
    )
    records = store.session_records("bot")
    (pending,) = records.open_decisions()
    assert (pending.id, pending.decision, pending.rationale) == (made["id"], "refund T030", "paid twice")
    assert pending.rejected == ("ask", "wait")
    assert "refund T030" in program("resume", "bot").out
    told = program.json("outcome", made["id"][:5], "the bank refused", "--failed")
    assert (told["id"], told["outcome"], told["failed"]) == (made["id"], "the bank refused", True)
    records = store.session_records("bot")
    assert records.open_decisions() == []
    (known,) = records.decisions()
    assert (known.outcome, known.failed) == ("the bank refused", True)


def test_an_outcome_is_recorded_once(program: Program, store: everthread.Store) -> None:
    made = program.json("decide", "refund T030", "--why", "paid twice")
    program("outcome", "refund", "done")
    head = store.thread("bot").head
    assert program.json("outcome", made["id"], "done")["outcome"] == "done"
    assert "recorded already: 'done'" in program("outcome", made["id"], "not done", code=2).err
    assert store.thread("bot").head == head


def test_the_outcome_of_an_unknown_decision_is_refused(program: Program) -> None:
    program("outcome", "refund", "done", code=3)
    assert not Path(program.url.removeprefix("sqlite:///")).exists()
    program("decide", "refund T030", "--why", "paid twice")
    assert "there is no decision 'pay'" in program("outcome", "pay", "done", code=3).err
    program("decide", "refund T031", "--why", "paid twice")
    assert "fits 2 decisions" in program("outcome", "refund", "done", code=2).err


def test_decisions_of_a_live_run_and_of_a_shell_are_all_kept(
    program: Program, store: everthread.Store
) -> None:
    with store.session("bot") as session:
        first = program.json("decide", "of the shell", "--why", "first")
        pending = session.decide("of the run")
        program("decide", "of the shell again", "--why", "second")
        program("outcome", "of the run", "seen by the shell")
        program("outcome", first["id"], "done")
        session.decide("of the run again")
    found = {each.decision: each.outcome for each in store.session_records("bot").decisions()}
    assert found == {
        "of the shell": "done",
        "of the run": "seen by the shell",
        "of the shell again": None,
        "of the run again": None,
    }
    assert pending.id in {each.id for each in store.session_records("bot").decisions()}
    left = {each.decision for each in store.session_records("bot").open_decisions()}
    assert left == {"of the shell again", "of the run again"}
