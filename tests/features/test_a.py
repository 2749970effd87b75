"""A: three lifetimes of state."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from everthread import (
    AgentSession,
    InvalidStateError,
    InvalidValueError,
    SessionBusyError,
    Store,
    ThreadNotFoundError,
    UserStore,
)
from tests.servers.colours import Url


def test_A1_working_state_is_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{tmp_path}/a1.db")
    session = AgentSession(session_id="s1", user_id="u1")
    session.set_working("tool", {"secret": "never-on-disk"})
    assert session.get_working("tool") == {"secret": "never-on-disk"}
    assert session.get_working("absent") is None
    assert session.get_working("absent", 7) == 7
    assert session.scratch["tool"] is session.get_working("tool")
    session.scratch["more"] = object()
    session.clear_working()
    assert session.get_working("tool") is None
    session.set_working("tool", "never-on-disk")
    session.close()
    session.close()
    assert session.get_working("tool") is None
    with pytest.raises(InvalidStateError, match="has ended"):
        session.set_working("tool", 1)
    assert not any(b"never-on-disk" in file.read_bytes() for file in tmp_path.iterdir())


def test_A2_a_checkpoint_promotes_what_is_named(store: Store) -> None:
    with store.session("a2") as session:
        session.scratch.update(tool={"rows": [1, 2]}, note="x", handle=object())
        first = session.checkpoint("fetched", include_keys=["tool", "note"])
        assert isinstance(first, str)
        assert session.get_checkpoint("fetched") == {"tool": {"rows": [1, 2]}, "note": "x"}
        with pytest.raises(InvalidValueError, match="'typo'"):
            session.checkpoint("fetched", include_keys=["tool", "typo"])
        with pytest.raises(InvalidValueError, match="handle"):
            session.checkpoint("everything")
        assert len(session.list_checkpoints()) == 1
        del session.scratch["handle"]
        session.scratch["note"] = "y"
        second = session.checkpoint("everything")
        assert second != first
        assert session.get_checkpoint("everything") == {"tool": {"rows": [1, 2]}, "note": "y"}
        session.checkpoint("boundary", include_keys=[])
        assert session.get_checkpoint("boundary") == {}
        # What was promoted is a copy of that moment.
        session.scratch["tool"]["rows"].append(3)
        assert session.get_checkpoint("fetched") == {"tool": {"rows": [1, 2]}, "note": "x"}


@pytest.mark.blocking("AgentSession() opens the default store itself; async code has store.session()")
def test_A3_checkpoints_outlive_the_run(url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", url)
    with AgentSession(session_id="s1", user_id="u1") as session:
        for number in range(3):
            session.set_working("n", number)
            session.checkpoint("odd" if number % 2 else "even")
    with AgentSession.restore("s1") as restored:
        assert restored.user_id == "u1"
        assert restored.get_working("n") is None
        assert restored.get_checkpoint("even") == {"n": 2}
        assert restored.get_checkpoint("odd") == {"n": 1}
        assert restored.get_checkpoint("never") is None
        listed = restored.list_checkpoints()
        assert [point.label for point in listed] == ["even", "odd", "even"]
        assert [point["id"] for point in listed] == [point.id for point in listed]
        assert listed[0]["label"] == "even"
        with pytest.raises(KeyError):
            listed[0]["nothing"]
        assert [point.at for point in listed] == sorted(point.at for point in listed)
        # A checkpoint is a version: one can go back to it.
        restored.state["later"] = True
        restored.rewind_to_checkpoint("odd")
        assert [point.label for point in restored.list_checkpoints()] == ["even", "odd"]
        assert "later" not in restored.state
    with pytest.raises(ThreadNotFoundError):
        AgentSession.restore("never")
    with everthread.open() as store:
        assert "never" not in [thread.name for thread in store.threads()]


def test_A4_user_store(store: Store, tmp_path: Path) -> None:
    users = store.users
    users.set("u1", "email", "ann@example.org")
    users.set("u1", "prefs", {"lang": "de", "tags": ["a"]})
    users.set("u2", "email", "bob@example.org")
    assert users.get("u1", "email") == "ann@example.org"
    assert users.get("u1", "prefs") == {"lang": "de", "tags": ["a"]}
    assert users.get("u1", "absent") is None
    assert users.get("u1", "absent", "d") == "d"
    assert users.get("nobody", "email", "d") == "d"
    assert users.keys("u1") == ["email", "prefs"]
    users.set("u1", "email", "new@example.org")
    assert users.get("u1", "email") == "new@example.org"
    with store.session("s", user_id="u1") as session:
        session.scratch["k"] = 1
        session.checkpoint("point")
    assert users.delete_user("u1") == 2
    assert users.delete_user("u1") == 0
    assert users.delete_user("nobody") == 0
    assert users.get("u1", "email") is None
    assert users.keys("u1") == []
    assert users.get("u2", "email") == "bob@example.org"
    with store.session("s") as session:
        assert session.get_checkpoint("point") == {"k": 1}
    # A key space of its own, and nobody's name or value in clear.
    assert [thread.name for thread in store.threads()] == ["s"]
    users.set("u1", "email", "again@example.org")
    assert users.keys("u1") == ["email"]
    for file in tmp_path.glob("agent.db*"):
        assert b"@example.org" not in file.read_bytes()


def test_A4_user_store_on_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{tmp_path}/a4.db")
    with UserStore() as users:
        users.set("u1", "n", None)
        assert users.get("u1", "n", "d") is None
        assert users.remove("u1", "n")
        assert not users.remove("u1", "n")
    with UserStore() as users, everthread.open() as store:
        users.set("u1", "n", 1)
        assert store.users.get("u1", "n") == 1


def test_A5_a_second_live_session_is_refused(store: Store) -> None:
    with store.session("a5", agent="first") as first:
        with pytest.raises(SessionBusyError) as busy:
            store.session("a5")
        assert busy.value.holder.agent == "first"
        assert busy.value.holder.pid == os.getpid()
        assert busy.value.expires > first.run.started_at
        # Others on other threads are free, and so is whoever only reads or writes the thread itself.
        with store.session("other"):
            pass
        assert store.session_records("a5").status == "running"
    with store.session("a5") as second:
        assert second.found.last_run is not None
        assert second.found.last_run.status == "completed"


def test_A5_a_session_that_was_forgotten_is_free_again(store: Store) -> None:
    session = store.session("a5")
    session.state["x"] = 1
    session.save()
    del session
    gc.collect()
    with store.session("a5") as second:
        assert second.state["x"] == 1
        assert second.found.last_run is not None
        assert second.found.last_run.status == "crashed"


HOLDING = """
import sys, everthread
store = everthread.open(sys.argv[1])
session = store.session("a5", agent="victim")
session.state["x"] = 1
session.save()
with session.turn():
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_A5_the_session_of_a_dead_process_is_taken_over_at_once(url: Url) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with url.open() as store:
            with pytest.raises(SessionBusyError) as busy:
                store.session("a5")
            assert busy.value.holder.pid == process.pid
            assert store.session_records("a5").status == "running"
            os.kill(process.pid, signal.SIGKILL)
            # Nobody has fetched its exit code: the process is dead all the same.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert store.session_records("a5").status == "crashed"
            with store.session("a5") as session:
                found = session.found.last_run
                assert found is not None
                assert (found.status, found.agent, found.turn) == ("crashed", "victim", 1)
                assert session.state["x"] == 1
            runs = store.session_records("a5").runs()
            assert [run.status for run in runs] == ["completed", "crashed"]
