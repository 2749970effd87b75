"""Writers of one SQLite file take the lock in turn, and never wait for the dead or the slow."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.sqlite import connection
from everthread.stores.sqlite.write_lock import WriteLock

MINUTE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def locks(path: str) -> Iterator[list[WriteLock]]:
    """Several processes as far as the lock file knows."""
    made = [WriteLock(path) for _ in range(4)]
    yield made
    for lock in made:
        lock.close()


def test_one_at_a_time(locks: list[WriteLock]) -> None:
    first, second, *_ = locks
    assert first.acquire()
    assert not second.acquire(0.0)
    assert not second.held
    first.release()
    assert second.acquire()


def test_a_wait_given_up_leaves_nothing_behind(locks: list[WriteLock]) -> None:
    first, second, third, _ = locks
    assert first.acquire()
    for _ in range(3):
        assert not second.acquire(0.01)
    assert not third.acquire(0.01)
    third.close()
    first.release()
    assert second.acquire(MINUTE_S)
    second.release()
    assert first.acquire(MINUTE_S), "nobody else holds it"
    first.release()
    assert third.acquire(MINUTE_S)


def test_everybody_comes_to_its_turn(locks: list[WriteLock]) -> None:
    counts = [0] * len(locks)
    inside = 0

    def work(number: int) -> None:
        nonlocal inside
        for _ in range(50):
            assert locks[number].acquire(MINUTE_S)
            inside += 1
            assert inside == 1
            counts[number] += 1
            inside -= 1
            locks[number].release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(locks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [50] * len(locks)


def test_a_killed_holder_frees_it(path: str, locks: list[WriteLock]) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        lock = WriteLock(path)
        lock.reserve()
        os.write(writing, b"x")
        signal.pause()
    assert os.read(reading, 1) == b"x"
    assert not locks[0].acquire(0.0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert locks[0].acquire(0.0)
    os.close(reading)
    os.close(writing)


def test_a_commit_does_not_wait_for_somebody_who_holds_it_and_does_not_write(path: str) -> None:
    with everthread.open(f"sqlite:///{path}?busy_timeout_ms=0") as store:
        other = WriteLock(path)
        assert other.acquire()
        thread = store.thread("a")
        thread.state["n"] = 1
        assert thread.commit().seq == 1
        other.close()


def test_a_write_uses_and_frees_a_reserved_lock(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RESERVED_S", MINUTE_S)
    with everthread.open(f"sqlite:///{path}") as store:
        backend: Any = store.core.backend
        thread = store.thread("a")
        other = WriteLock(path)
        assert backend.reserve()
        assert not other.acquire(0.0), "kept from reading to writing"
        thread.state["n"] = 1
        thread.commit()
        assert other.acquire(0.0)
        other.release()
        assert backend.reserve()
        backend.release()
        assert other.acquire(0.0)
        other.close()


def test_an_update_that_thinks_long_holds_up_nobody(path: str) -> None:
    """Others write while the function of a reserved update() runs; it is run again then."""
    with everthread.open(f"sqlite:///{path}") as store, everthread.open(f"sqlite:///{path}") as elsewhere:
        thread, other = store.thread("a"), elsewhere.thread("a")
        thread.state["count"] = 0
        thread.commit()
        thread.handle.contention = 16
        reserved: list[bool] = []

        def change(draft: Any) -> None:
            reserved.append(store.core.backend._connections._lock.reserved)  # type: ignore[attr-defined]
            if len(reserved) == 1:
                # Would wait for ever, if it had to wait for this function.
                other.update(lambda theirs: theirs.state.__setitem__("count", 10))
            draft.state["count"] += 1

        thread.update(change)
        assert reserved[0], "asked for"
        assert len(reserved) == 2
        assert thread.state["count"] == 11
        assert not store.core.backend._connections._lock.held  # type: ignore[attr-defined]


def test_a_function_that_raises_frees_the_lock(path: str) -> None:
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("a")
        thread.state["count"] = 0
        thread.commit()
        thread.handle.contention = 16
        other = WriteLock(path)
        with pytest.raises(ZeroDivisionError):
            thread.update(lambda draft: draft.state.__setitem__("count", 1 // 0))
        assert other.acquire(0.0)
        other.release()
        # Without a change there is nothing to write either.
        thread.update(lambda draft: None)
        assert other.acquire(0.0)
        other.close()


def _count_up(path: str, times: int) -> None:
    def change(draft: Any) -> None:
        draft.state["count"] += 1

    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("hot")
        for _ in range(times):
            thread.update(change)


def test_processes_that_update_one_thread_lose_nothing(path: str) -> None:
    with everthread.open(f"sqlite:///{path}", durability="process") as store:
        thread = store.thread("hot")
        thread.state["count"] = 0
        thread.commit()
    pids = []
    for _ in range(4):
        pids.append(os.fork())
        if pids[-1] == 0:
            status = 1
            try:
                _count_up(path, 50)
                status = 0
            finally:
                os._exit(status)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    with everthread.open(f"sqlite:///{path}") as store:
        assert store.thread("hot").state["count"] == 200


def _in_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def _put(store: everthread.Store, number: int) -> None:
    thread = store.thread("a")
    thread.state["n"] = number
    thread.commit()


def test_a_child_made_by_fork_opens_the_store_again(path: str) -> None:
    url = f"sqlite:///{path}"
    with everthread.open(url) as store:
        _put(store, 1)

        def child() -> None:
            with pytest.raises(everthread.EverthreadError):
                _put(store, 2)
            with everthread.open(url) as own:
                for number in range(3, 30):
                    _put(own, number)
            store.close()

        _in_child(child)
        assert store.thread("a").state["n"] == 29
        _put(store, 30)
        assert store.verify()
    with everthread.open(url) as store:
        assert store.thread("a").state["n"] == 30


def test_a_parent_that_closes_takes_nothing_from_its_child(path: str) -> None:
    url = f"sqlite:///{path}"
    reading, writing = os.pipe()
    store = everthread.open(url)
    _put(store, 1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own = everthread.open(url)
            _put(own, 2)
            os.read(reading, 1)
            _put(own, 3)
            # Killed, as far as SQLite knows.
            status = 0
        finally:
            os._exit(status)
    while store.thread("a").state["n"] != 2:
        time.sleep(0.01)
    store.close()
    os.write(writing, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    with everthread.open(url) as store:
        assert store.thread("a").state["n"] == 3
        assert store.verify()
    os.close(reading)
    os.close(writing)


def test_a_file_in_use_at_a_fork_is_refused_in_the_child(path: str) -> None:
    url = f"sqlite:///{path}"
    with everthread.open(url) as store:
        _put(store, 1)

        def child() -> None:
            with pytest.raises(everthread.StoreUnavailableError, match="forked"):
                everthread.open(url)

        with store.core.backend._connections:  # type: ignore[attr-defined]
            _in_child(child)
        _put(store, 2)
        assert store.verify()


def test_a_symbolic_link_leads_to_the_same_lock(path: str, tmp_path: Path) -> None:
    Path(path).touch()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    locks = [WriteLock(path), WriteLock(str(link))]
    assert locks[0].acquire()
    assert not locks[1].acquire(0.0)
    locks[0].release()
    assert locks[1].acquire()
    for lock in locks:
        lock.close()
    assert not (tmp_path / "link.db-lock").exists()
