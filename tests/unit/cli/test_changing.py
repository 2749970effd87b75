"""fork and rewind: shown first, asked about, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys

import everthread
from tests.unit.cli.calling import Committer, Program


def test_fork_at_a_version(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 3)
    assert (
        program("fork", "bot", "what-if", "--at", "step 2").out == "what-if goes on from version 2 of bot\n"
    )
    assert store.thread("what-if").state["n"] == 2
    data = program.json("fork", "bot", "now")
    assert (data["thread"], data["source"], data["version"]["seq"]) == ("now", "bot", 3)


def test_fork_without_effects(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 1)
    program("fork", "bot", "what-if", "--effects", "deny")
    program("fork", "bot", "plain")
    assert (store.thread("what-if").effects, store.thread("plain").effects) == ("deny", "inherit")
    assert "inherit" in program("fork", "bot", "new", "--effects", "none", code=2).err


def test_fork_refuses_names_that_are_taken_or_impossible(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    commits("other", 1)
    assert "exists" in program("fork", "bot", "other", code=2).err
    assert "name" in program("fork", "bot", "", code=2).err
    assert "name" in program("fork", "bot", "x" * 2_000, code=2).err
    program("fork", "nobody", "new", code=3)
    program("fork", "bot", "new", "--at", "9", code=3)


def test_rewind_shows_asks_and_can_be_undone(program: Program, commits: Committer) -> None:
    thread = commits("bot", 3)
    answer = program("rewind", "bot", "1", input="y\n")
    assert "bot 3 → 1" in answer.out
    assert "~ n  3 → 1" in answer.out
    assert "bot is at version 4, as it was at 1" in answer.out
    assert f"everthread rewind bot 3 --store {program.url}" in answer.err
    assert thread.refresh().kind == "rewind"
    assert (thread.state["n"], len(thread.messages)) == (1, 1)
    program("rewind", "bot", "3", "--yes")
    thread.refresh()
    assert (thread.state["n"], len(thread.messages)) == (3, 3)


def test_rewind_changes_nothing_unless_told_to(program: Program, commits: Committer) -> None:
    thread = commits("bot", 3)
    head = thread.head
    assert "nothing was changed" in program("rewind", "bot", "1", code=1, input="n\n").err
    # Where nobody answers nothing is done.
    assert "nothing is half done" in program("rewind", "bot", "1", code=1, input="").err
    answer = program("rewind", "bot", "1", "--dry-run")
    assert "~ n  3 → 1" in answer.out
    assert "2 versions would be left behind" in answer.err
    assert "--yes" in program("rewind", "bot", "1", "--json", code=2).err
    data = program.json("rewind", "bot", "1", "--dry-run")
    assert (data["dry_run"], data["from"], data["to"], data["left_behind"], data["version"]) == (
        True,
        3,
        1,
        2,
        None,
    )
    assert thread.refresh() == head


def test_rewind_as_data(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    data = program.json("rewind", "bot", "head~1", "--yes")
    assert (data["version"]["kind"], data["version"]["seq"]) == ("rewind", 3)


def test_rewind_waits_for_no_run(program: Program, store: everthread.Store) -> None:
    with store.session("bot", agent="weaver") as s:
        s.work.add_todo("x")
        answer = program("rewind", "bot", "1", "--yes", code=5)
        assert "a run is at work on 'bot': 'weaver'" in answer.err
        head = s.thread.head
    assert store.thread("bot").refresh() == head
    assert program("rewind", "bot", "1", "--yes").out


def test_rewind_after_a_crash_is_allowed(program: Program) -> None:
    code = (
        "import everthread, os, signal, sys\n"
        "with everthread.open(sys.argv[1]) as store, store.session('bot') as s:\n"
        "    s.work.add_todo('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, program.url], env=program.environment(), check=False)
    assert program.json("status")["threads"][0]["session"] == "crashed"
    program("rewind", "bot", "1", "--yes")


def test_a_writer_who_was_first_is_told_of(program: Program, commits: Committer) -> None:
    thread = commits("bot", 2)
    asking = subprocess.Popen(
        program.command("rewind", "bot", "1"),
        env=program.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with asking:
        assert asking.stdin is not None
        assert asking.stderr is not None
        while (shown := asking.stderr.read(1)) not in (b"?", b""):
            pass
        assert shown == b"?"
        thread.state["n"] = 9
        thread.commit()
        asking.stdin.write(b"y\n")
        asking.stdin.close()
        told = asking.stderr.read().decode()
    assert (asking.returncode, "everthread: " in told) == (5, True)
    assert thread.refresh().seq == 3


def test_rewinding_to_the_head_changes_nothing(program: Program, commits: Committer) -> None:
    thread = commits("bot", 2)
    assert "nothing was changed" in program("rewind", "bot", "head").err
    assert program.json("rewind", "bot", "2")["version"] is None
    assert thread.refresh().seq == 2
