"""What runs did to the world, and what somebody says about it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import everthread
from tests.unit.cli.calling import Committer, Program


def broken() -> None:
    raise OSError("the line went dead")


@pytest.fixture
def doubtful(store: everthread.Store) -> everthread.Store:
    """A store whose session "bot" has called one effect, and doesn't know of another."""
    with store.session("bot", agent="weaver") as s:
        s.call("pay-1", lambda: "receipt 1")
        with pytest.raises(OSError, match="dead"):
            s.call("pay-2", broken)
    return store


def test_effects_are_listed_those_in_doubt_first(program: Program, doubtful: everthread.Store) -> None:
    told = program("effects", "bot", code=4)
    first, second = told.out.splitlines()
    assert first.startswith("in doubt")
    assert "pay-2 (broken): OSError" in first
    assert "pay-1" in second
    assert "receipt 1" in second
    assert f"everthread settle bot pay-2 --store {program.url} --done or --not-done" in told.err
    resumed = program("resume", "bot", code=4).err
    assert f"everthread settle bot pay-2 --store {program.url} --done or --not-done" in resumed
    found = program.json("effects", "bot", "--open", code=4)
    assert [effect["key"] for effect in found["effects"]] == ["pay-2"]
    assert found["settled"] == 1


def test_effects_of_a_thread_without_any(program: Program, commits: Committer) -> None:
    commits("quiet", 1)
    assert program.json("effects", "quiet", code=3)["effects"] == []
    assert program.json("runs", "quiet", code=3)["runs"] == []
    program("effects", "nobody", code=3)


def test_runs_are_listed_newest_first(program: Program, doubtful: everthread.Store) -> None:
    with doubtful.session("bot") as s, s.turn():
        pass
    told = program("runs", "bot").out.splitlines()
    assert told[0].startswith("run 2 completed, ended ")
    assert "1 turn" in told[0]
    assert "weaver" in told[1]
    assert [run["number"] for run in program.json("runs", "bot", "--limit", "1")["runs"]] == [2]


def test_settled_as_done_it_is_never_called_again(program: Program, doubtful: everthread.Store) -> None:
    told = program("settle", "bot", "pay-2", "--done", "--result", '{"receipt": 2}')
    assert "pay-2: broken: done" in told.out
    with doubtful.session("bot") as s:
        assert s.call("pay-2", broken) == {"receipt": 2}
    program("settle", "bot", "pay-2", "--done", code=3)


def test_settled_as_not_done_it_is_called_again(program: Program, doubtful: everthread.Store) -> None:
    program("settle", "bot", "pay-2", "--not-done")
    program("effects", "bot")
    with doubtful.session("bot") as s, pytest.raises(OSError, match="dead"):
        s.call("pay-2", broken)


def test_settling_is_refused_while_the_run_lives(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as s:
        with pytest.raises(OSError, match="dead"):
            s.call("pay-2", broken)
        assert "a run is at work on 'bot'" in program("settle", "bot", "pay-2", "--done", code=5).err
        assert [effect.key for effect in s.in_doubt()] == ["pay-2"]


def test_a_key_whose_records_were_lost_can_be_settled(program: Program, store: everthread.Store) -> None:
    copy = str(program.folder / "copy")
    with store.session("bot") as s:
        s.call("pay-1", lambda: "receipt 1")
    store.backup(copy)
    with store.session("bot") as s:
        s.call("pay-2", lambda: "receipt 2")
        s.call("pay-3", lambda: "receipt 3")
    program("restore", copy, "--yes")
    told = program("resume", "bot", code=6).err
    assert f"everthread settle bot KEY --store {program.url} --done or --not-done" in told
    program("settle", "bot", "pay-2", "--done", "--result", '"receipt 2"')
    program("settle", "bot", "pay-3", "--not-done")
    runs = len(store.session_records("bot").runs())
    program("settle", "bot", "pay-1", "--done", code=3)
    program("settle", "bot", "pay-2", "--not-done", code=3)
    assert len(store.session_records("bot").runs()) == runs, "what isn't in doubt begins no run"
    with store.session("bot") as s:
        assert s.call("pay-2", broken) == "receipt 2"
        assert s.call("pay-3", lambda: "receipt 4") == "receipt 4"


_KILLED = """if True:
    import everthread, os, signal, sys

    def broken():
        os.kill(os.getpid(), signal.SIGKILL)

    with everthread.open(sys.argv[1]) as store, store.session("bot", run="job 7") as s:
        s.call("pay-2", broken)
"""


def test_what_a_dead_process_of_a_named_run_left_is_settled_within_that_run(
    program: Program, store: everthread.Store
) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, program.url], env=program.environment(), check=False)
    assert program.json("settle", "bot", "pay-2", "--done", "--result", "12")["effect"]["run"] == "job 7"
    holder = store.session_records("bot").holder
    assert holder is not None
    assert (holder.run, holder.shared) == ("job 7", True), "the run stays open"
    with store.session("bot", run="job 7") as s:
        assert s.call("pay-2", broken) == 12


def test_settling_is_refused_while_a_process_of_a_named_run_calls_the_effect(
    program: Program, store: everthread.Store
) -> None:
    def pay() -> str:
        told = program("settle", "bot", "pay-2", "--done", code=5).err
        assert "'pay-2' of 'bot' is being called by the run 'job 7'" in told
        return "paid"

    with store.session("bot", run="job 7") as s:
        assert s.call("pay-2", pay) == "paid"


def test_settling_needs_an_answer_and_json(program: Program, doubtful: everthread.Store) -> None:
    assert "say --done or --not-done" in program("settle", "bot", "pay-2", code=2).err
    assert "goes with --done" in program("settle", "bot", "pay-2", "--not-done", "--result", "1", code=2).err
    assert "must be JSON" in program("settle", "bot", "pay-2", "--done", "--result", "{", code=2).err
    assert "those that are: pay-2" in program("settle", "bot", "pay-3", "--done", code=3).err
    assert [effect.key for effect in doubtful.session_records("bot").open_effects()] == ["pay-2"]


def test_settling_is_no_run_and_the_last_one_stays_what_a_briefing_tells_of(
    program: Program, store: everthread.Store
) -> None:
    killed = _KILLED.replace(', run="job 7"', "")
    subprocess.run([sys.executable, "-c", killed, program.url], env=program.environment(), check=False)
    before = program.json("resume", "bot", code=4)["report"]
    assert before["status"] == "crashed"
    program("settle", "bot", "pay-2", "--not-done")
    after = program.json("resume", "bot")["report"]
    assert after["status"] == "crashed", "how the agent's run ended is no other for that"
    assert after["heard_us"] == before["heard_us"], "nor was it heard of since"
    (run,) = store.session_records("bot").runs()
    assert (run.number, run.status) == (1, "crashed")
    assert store.session_records("bot").holder is None, "whoever settles gives the session back"
    with store.session("bot") as s:
        told = str(s.briefing())
        assert "Last: run 1 crashed" in told
        assert "pay-2" in told
        assert s.run.number == 2


def test_a_fork_without_a_run_is_settled_too(program: Program, doubtful: everthread.Store) -> None:
    doubtful.thread("bot").fork("copy")
    program("settle", "copy", "pay-2", "--not-done")
    assert doubtful.session_records("copy").open_effects() == []
    assert [effect.key for effect in doubtful.session_records("bot").open_effects()] == ["pay-2"]


def test_a_briefing_counts_no_call_twice_that_was_settled_as_not_done(
    program: Program, doubtful: everthread.Store
) -> None:
    program("settle", "bot", "pay-2", "--not-done")
    with doubtful.session("bot") as s:
        assert s.call("pay-2", lambda: "receipt 2") == "receipt 2"
        told = str(s.briefing())
    assert "pay-2" in told
    assert "Not shown" not in told, "every call is listed: none may have been made beside them"


def test_after_settling_a_named_run_that_had_ended_can_still_go_on(
    program: Program, store: everthread.Store
) -> None:
    """A workflow that waits for a person, who settles what it left in doubt."""
    with store.session("bot", run="job 7") as s:
        with pytest.raises(OSError, match="dead"):
            s.call("pay-2", broken)
        s.wait_for_input()
    program("settle", "bot", "pay-2", "--not-done")
    (run,) = store.session_records("bot").runs()
    assert (run.id, run.status) == ("job 7", "waiting_for_input")
    with store.session("bot", run="job 7") as s:
        assert s.call("pay-2", lambda: "receipt 2") == "receipt 2"
        s.complete()
    assert [(run.id, run.status) for run in store.session_records("bot").runs()] == [("job 7", "completed")]
