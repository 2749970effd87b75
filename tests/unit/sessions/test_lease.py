"""Leases: who holds a session, and how one tells."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everthread
from everthread import InvalidStateError, SessionBusyError, SessionFencedError, Store
from everthread.process import Place, here, is_gone
from everthread.sessions import lease as leases
from everthread.sessions.sync.lease import lease_space
from everthread.threads.runtime import Runtime
from tests.unit.sessions.clock import Clock
from tests.unit.sessions.faulty import faulty_store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    runtime = Runtime(now_us=clock)
    with everthread.open(f"sqlite:///{tmp_path}/l.db", durability="process", runtime=runtime) as store:
        yield store


def _elsewhere(store: Store, name: str, **changes: Any) -> None:
    """Make the lease of a session look as if a process elsewhere held it."""
    core, thread = store.core, store.thread(name)
    assert thread.head is not None
    uid = thread.uid
    assert uid is not None
    space = lease_space(core)
    cell = core.backend.cell(space, uid, core.runtime.now_us())
    place = Place("elsewhere", "another machine", 7, "1")
    fields: dict[str, Any] = {"run": "r", "agent": "far", "place": place, "ttl_us": 60_000_000}
    holder = leases.Holder(**{**fields, **changes})
    core.backend.swap(
        space,
        uid,
        cell.revision if cell else 0,
        msgspec.msgpack.encode(holder),
        core.runtime.now_us(),
    )


def test_a_holder_on_another_machine_is_waited_for_until_it_expires(store: Store, clock: Clock) -> None:
    with store.session("s"):
        pass
    _elsewhere(store, "s")
    with pytest.raises(SessionBusyError, match="'far', process 7 on elsewhere") as busy:
        store.session("s")
    assert busy.value.expires.tzinfo is datetime.UTC
    clock.go(59)
    with pytest.raises(SessionBusyError):
        store.session("s")
    clock.go(1)
    with store.session("s"):
        pass


def test_a_clock_that_was_set_back_blocks_nobody_for_long(store: Store, clock: Clock) -> None:
    with store.session("s"):
        pass
    _elsewhere(store, "s")
    clock.go(-86_400)
    with store.session("s"):
        pass


def test_a_lease_that_cant_be_read_expires(store: Store, clock: Clock) -> None:
    with store.session("s") as session:
        uid = session.thread.uid
    assert uid is not None
    core = store.core
    cell = core.backend.cell(lease_space(core), uid, clock())
    assert cell is not None
    core.backend.swap(lease_space(core), uid, cell.revision, b"\xff garbage", clock())
    with pytest.raises(SessionBusyError):
        store.session("s")
    clock.go(301)
    with store.session("s"):
        pass


def test_writing_renews_and_looking_does_not(store: Store, clock: Clock) -> None:
    with store.session("s", lease_ttl=60) as session:
        first = store.session_records("s").heartbeat_us
        assert first is not None
        clock.go(10)
        session.messages.append({})
        assert store.session_records("s").heartbeat_us == first
        clock.go(15)
        session.messages.append({})
        second = store.session_records("s").heartbeat_us
        assert second is not None
        assert second > first
        clock.go(45)
        assert len(session.messages) == 2
        session.add_usage(tokens=1)
        assert (store.session_records("s").heartbeat_us or 0) > second
        session.heartbeat()
        clock.go(61)
        assert store.session_records("s").status == "crashed"
        # Nobody challenged it: it may go on.
        session.messages.append({})
        assert store.session_records("s").status == "running"


def test_a_renewal_that_fails_does_not_fail_the_write(tmp_path: Path) -> None:
    for landing in (False, True):
        store, faulty = faulty_store(tmp_path / f"{landing}.db")
        with store, store.session("s", lease_ttl=0.000_003) as session:
            for _ in range(3):
                faulty.fail(0, landing=landing, only=frozenset({"swap"}))
                session.messages.append({})
            assert len(store.thread("s").messages) == 3


def test_a_session_is_of_one_process(store: Store) -> None:
    session = store.session("s")
    session.messages.append({"id": "parent"})
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(InvalidStateError, match="belongs to the process that began it"):
                session.messages.append({"id": "child"})
            # Ending it here ends nothing.
            session.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    session.messages.append({"id": "more"})
    with pytest.raises(SessionBusyError):
        store.session("s")
    session.close()
    assert [message["id"] for message in store.thread("s").messages] == ["parent", "more"]


def test_a_store_that_was_restored_fences_its_sessions(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/l.db") as store:
        with store.session("s") as session:
            session.messages.append({"id": "before"})
        store.backup(tmp_path / "backup.db")
        session = store.session("s")
        store.restore(tmp_path / "backup.db")
        with pytest.raises(SessionFencedError):
            session.messages.append({"id": "lost"})
        with store.session("s") as again:
            assert [message["id"] for message in again.messages] == ["before"]


# ── processes ────────────────────────────────────────────────────────────────────────────────


def test_this_process_is_here() -> None:
    place = here()
    assert place.pid == os.getpid()
    assert place.machine
    assert not is_gone(place)
    # The same number, started at another time: another process.
    assert is_gone(msgspec.structs.replace(place, started="1"))


def test_dead_waiting_and_living_processes() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        place = msgspec.structs.replace(here(), pid=process.pid, started=started)
        assert not is_gone(place)
        assert is_gone(msgspec.structs.replace(place, started="12"))
        # Without a start time nobody can tell it from another one.
        assert not is_gone(msgspec.structs.replace(place, started=""))
        os.kill(process.pid, signal.SIGSTOP)
        assert not is_gone(place)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(place)
    assert is_gone(place)


def test_what_is_elsewhere_is_never_known_to_be_gone() -> None:
    for machine in ("another", ""):
        assert not is_gone(msgspec.structs.replace(here(), machine=machine, pid=2**22 + 5))
    for pid in (2**40, 2**70, 1):
        assert is_gone(msgspec.structs.replace(here(), pid=pid)) in (True, False)
