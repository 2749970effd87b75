"""Forks while another thread holds a lock: the child must not wait for a thread that it doesn't have."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import everthread
from everthread import process, verifiers
from everthread.adapters.langgraph.sync.lane import Lanes
from everthread.errors import StoreClosedError
from everthread.sessions.sync.effects import Claim, Claims
from everthread.store_async import WorkerStore
from everthread.stores.memory import MemoryBackend
from everthread.verifiers import registry

#: Longer than any of these takes; a child that hangs is ended then.
PATIENCE_S = 20.0


def in_child(work: Callable[[], Any]) -> None:
    """Fork; the child does ``work`` and ends. Fails if it raises, or hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert status == 0
            break
        time.sleep(0.01)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the child hangs")


@contextmanager
def held(lock: Any, for_s: float | None = None) -> Any:
    """Another thread has the lock: for the length of the block, or for so long."""
    taken, give = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            give.wait(for_s)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        give.set()
        thread.join()


def worker_store() -> tuple[Any, Callable[[], Any]]:
    made = WorkerStore(lambda: everthread.open("memory:"))

    def use() -> None:
        # Its threads are the parent's: a child is told so, and doesn't wait for them.
        with suppress(StoreClosedError):
            asyncio.run(made.run(lambda store: store))

    return made._lock, use


def claims() -> tuple[Any, Callable[[], Any]]:
    made = Claims()
    return made._mutex, lambda: made.take("pay", Claim())


def session() -> tuple[Any, Callable[[], Any]]:
    made = everthread.open("memory:", durability="process").session("bot")
    # It is the parent's, and says so or answers; it doesn't hang.
    return made._thread.lock, made.incomplete_decisions


def working_state() -> tuple[Any, Callable[[], Any]]:
    made = everthread.WorkingState(store=everthread.open("memory:", durability="process"), thread="bot")
    made.add_todo("count")
    return made._backing.lock, lambda: made.add_todo("count again")


def verifier() -> tuple[Any, Callable[[], Any]]:
    return registry._lock, lambda: verifiers.register("test_process", lambda value: True)


def lanes() -> tuple[Any, Callable[[], Any]]:
    made = Lanes(everthread.open("memory:", durability="process"))
    lane = made.lane("a")
    lane.lock.acquire()
    parent = os.getpid()

    def use() -> None:
        if os.getpid() == parent:
            lane.lock.release()
        with made.lane("a").lock:
            made.make_room(made.lane("a"))

    return made._lock, use


@pytest.mark.parametrize(
    "make", [worker_store, claims, session, working_state, verifier, lanes], ids=lambda f: f.__name__
)
def test_a_child_finds_the_lock_free(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> None:
    lock, use = make()
    with held(lock):
        in_child(use)
    # The parent goes on, too.
    use()


def memory_store() -> tuple[Any, Callable[[], Any]]:
    store = everthread.open("memory:", durability="process")

    def commit() -> None:
        thread = store.thread("bot")
        thread.state["n"] = os.getpid()
        thread.commit()

    commit()
    assert isinstance(store.core.backend, MemoryBackend)
    return store.core.backend._lock, commit


@pytest.mark.parametrize("make", [memory_store], ids=lambda f: f.__name__)
@pytest.mark.parametrize("for_s", [0.05, None], ids=["for a moment", "too long"])
def test_what_is_in_memory(make: Callable[[], tuple[Any, Callable[[], Any]]], for_s: float | None) -> None:
    lock, use = make()
    with held(lock, for_s):
        in_child(use)
    use()


def test_a_fork_waits_for_a_change_under_way() -> None:
    lock = process.fork_rlock(steady=True)
    halves = [0, 0]
    begun = threading.Event()

    def change() -> None:
        with lock:
            halves[0] += 1
            begun.set()
            time.sleep(0.1)
            halves[1] += 1

    thread = threading.Thread(target=change)
    thread.start()
    begun.wait()

    def check() -> None:
        assert halves == [1, 1]

    in_child(check)
    thread.join()


def test_a_thread_that_forks_while_it_has_a_lock_gives_it_back_on_both_sides() -> None:
    for lock in (process.fork_rlock(), process.fork_rlock(steady=True)):

        def free(lock: Any = lock) -> None:
            lock.release()
            with held(lock):
                assert not lock._is_owned()

        lock.acquire()
        in_child(free)
        free()


def test_forks_of_many_threads_at_once() -> None:
    locks = [process.fork_rlock(steady=True) for _ in range(3)]

    def work() -> None:
        for lock in locks:
            assert lock.acquire(timeout=PATIENCE_S)

    failed: list[BaseException] = []

    def fork() -> None:
        try:
            for _ in range(5):
                in_child(work)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=fork) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    work()


def test_locks_that_nobody_has_any_more_are_forgotten() -> None:
    gc.collect()
    before = len(process._locks)
    made = [process.fork_lock() for _ in range(100)]
    assert len(process._locks) == before + 100
    del made
    gc.collect()
    assert len(process._locks) <= before
