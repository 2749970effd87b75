"""resume: what a new run would find, and the exit code that says whether it may begin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from everthread import verifiers
from tests.unit.cli.calling import Committer, Program


def kill_in_the_middle(program: Program) -> None:
    """A run that dies in an effect."""
    code = (
        "import everthread, os, signal, sys\n"
        "def pay(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "with everthread.open(sys.argv[1]) as store, store.session('bot', agent='weaver') as s:\n"
        "    s.work.set_intention('pay the invoices')\n"
        "    s.work.complete_todo(s.work.add_todo('fetch').id)\n"
        "    s.work.add_todo('pay')\n"
        "    s.work.add_open_loop('ask the auditor')\n"
        "    s.work.resolve_open_loop(s.work.add_open_loop('ask the bank').id)\n"
        "    s.tasks.add('report')\n"
        "    s.decide('use FIFO')\n"
        "    s.call('pay-1', pay)\n"
    )
    subprocess.run([sys.executable, "-c", code, program.url], env=program.environment(), check=False)


def test_after_a_crash(program: Program) -> None:
    kill_in_the_middle(program)
    answer = program("resume", "bot", code=4)
    assert "run 1 crashed" in answer.out.splitlines()[0]
    assert [line.split(None, 1) for line in answer.out.splitlines()[1:]] == [
        ["goal", "pay the invoices"],
        ["in", "doubt            pay-1 (pay)"],
        ["decided,", "no outcome use FIFO"],
        ["todo", "pay"],
        ["open", "loop           ask the auditor"],
        ["task", "report"],
        ["todos", "1 pending, 1 completed"],
        ["tasks", "0 in progress, 1 ready, 0 blocked"],
    ]
    assert "before anybody repeats it" in answer.err
    report = program.json("resume", "bot", code=4)["report"]
    assert (report["status"], report["crashed"]) == ("crashed", True)
    assert report["in_flight"][0]["key"] == "pay-1"
    assert "1 open loop: ask the auditor" in report["summary"].splitlines()
    rows = program("resume", "bot", "--format", "tsv", code=4).out.splitlines()
    kinds = [row.split("\t")[:3] for row in rows[1:]]
    assert ["effect", "pay-1", "in_doubt"] in kinds
    assert [kind for kind, *_ in kinds] == [
        "session",
        "effect",
        "decision",
        "task",
        "todo",
        "todo",
        "open_loop",
    ]


def test_drift_ends_with_4(program: Program, store: everthread.Store, tmp_path: Path) -> None:
    prices = tmp_path / "prices.txt"
    prices.write_text("1")
    with store.session("bot") as s:
        s.work.set_context("prices", str(prices), verify=verifiers.file_hash())
    assert program("resume", "bot").out
    prices.write_text("2")
    answer = program("resume", "bot", code=4)
    assert "contradicted prices: " in answer.out
    for form in ("json", "yaml", "tsv"):
        assert program("resume", "bot", "--format", form, code=4).out
    assert "contradicted" in program("resume", "bot", "--briefing", code=4).out


def test_age_and_commands_are_up_to_the_caller(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as s:
        s.work.set_context("said", "by nobody")
        s.work.set_context("asked", "x", verify=verifiers.command([sys.executable, "-c", "print(1)"]))
    statuses = {f["key"]: f["status"] for f in program.json("resume", "bot")["report"]["facts"]}
    assert statuses["asked"] == "unverifiable"
    assert program("resume", "bot", "--max-age", "0", code=4).out
    allowed = program.json("resume", "bot", "--allow-commands", "--no-network")["report"]
    assert {f["key"]: f["status"] for f in allowed["facts"]}["asked"] == "fresh"


def test_a_run_at_work_ends_with_5(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as s:
        s.work.add_todo("x")
        answer = program("resume", "bot", code=5)
        assert "a new one would have to wait" in answer.err
        assert "running" in answer.out
    assert program("resume", "bot").out


def test_without_a_name_the_thread_saved_last(program: Program, commits: Committer) -> None:
    commits("first", 1)
    commits("second", 1)
    commits("checkpoint:x", 1)
    assert program.json("resume", code=3)["thread"] == "second"
    commits("first again", 1)
    assert program.json("resume", code=3)["thread"] == "first again"


def test_nothing_to_resume_ends_with_3(program: Program, store: everthread.Store) -> None:
    answer = program("resume", code=3)
    assert (answer.out, "nothing to resume" in answer.err) == ("", True)


def test_a_thread_without_runs_has_nothing_to_resume(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("a bot", 3)
    answer = program("resume", "a bot", code=3)
    assert answer.out == "a bot: no run yet\n"
    assert "nothing to resume" in answer.err
    assert "everthread show 'a bot'" in answer.err
    assert program.json("resume", "a bot", code=3)["report"]["run"] is None
    assert program("resume", "a bot", "--briefing", code=3).out.startswith("<everthread-briefing")
    # What a first run would go on with is something.
    work = everthread.WorkingState(store=store, thread="planned")
    work.add_todo("count")
    work.save()
    assert "todo" in program("resume", "planned").out
    with store.session("a bot"):
        pass
    assert program("resume", "a bot").out


def test_the_briefing(program: Program) -> None:
    kill_in_the_middle(program)
    text = program("resume", "bot", "--briefing", "--max-tokens", "400", code=4).out
    assert text.startswith("<everthread-briefing")
    data = program.json("resume", "bot", "--briefing", code=4)
    assert data["tokens"] <= 1_500
    assert data["complete"] is True
    assert "pay the invoices" in data["briefing"]
    assert program("resume", "bot", "--briefing", "--max-tokens", "1", code=2).err


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J"])
def test_names_stay_on_their_line(program: Program, store: everthread.Store, name: str) -> None:
    with store.session(name) as s:
        s.work.set_intention("x\x1b[31m\ny")
    answer = program("resume", name)
    assert all(line.isprintable() for line in answer.out.split("\n"))
    assert len(answer.out.splitlines()) == 2


def test_a_budget_without_a_briefing_is_wrong_usage(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    assert "--briefing" in program("resume", "bot", "--max-tokens", "400", code=2).err


@pytest.mark.parametrize("fork", ["a what-if", "z what-if"])
def test_a_fork_that_nothing_was_saved_to_isnt_the_thread_saved_last(
    program: Program, store: everthread.Store, fork: str
) -> None:
    with store.session("bot") as session:
        session.work.add_todo("count")
    made = store.thread("bot").fork(fork)
    assert program.json("resume")["thread"] == "bot"
    made.state["n"] = 1
    made.commit()
    assert program.json("resume")["thread"] == fork
    made.delete()
    store.thread("bot").fork("only")
    store.thread("bot").delete()
    assert program.json("resume")["thread"] == "only"


def test_what_was_erased_is_told_in_words(program: Program, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    with everthread.open(program.url, keyring=keys) as store:
        with store.session("bot") as session:
            session.work.add_todo(everthread.Personal("ann", "call ann"))
        store.erase("ann")
    out = program("resume", "bot").out
    assert "(erased)" in out
    assert "Erased()" not in out
