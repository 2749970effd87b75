"""Forks while another thread holds a lock: the child must not wait for a thread that it doesn't have."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import pytest

import everthread
from everthread import process
from everthread.adapters.langgraph.sync.lane import Lanes
from everthread.errors import StoreClosedError
from everthread.records.backend import RecordsBackend
from everthread.sessions.sync.effects import Claim, Claims
from everthread.store_async import WorkerStore
from everthread.stores.memory_store import MemoryStore
from everthread.threads.head_cache import HeadCache

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


def refused_beside(parent: int) -> AbstractContextManager[Any]:
    """What a child gets; its parent goes on."""
    return nullcontext() if os.getpid() == parent else pytest.raises(StoreClosedError, match="open it again")


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
    return made._thread.mutex, made.incomplete_decisions


def working_state() -> tuple[Any, Callable[[], Any]]:
    made = everthread.WorkingState(store=everthread.open("memory:", durability="process"), thread="bot")
    made.add_todo("count")
    parent = os.getpid()

    def use() -> None:
        made.add_todo("count again")
        with refused_beside(parent):
            made.save()

    return made._backing.lock, use


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


def memory_store() -> tuple[Any, Callable[[], Any]]:
    store = everthread.open("memory:", durability="process")

    parent = os.getpid()

    def commit() -> None:
        with (
            nullcontext() if os.getpid() == parent else pytest.raises(StoreClosedError, match="open it again")
        ):
            thread = store.thread("bot")
            thread.state["n"] = 1
            thread.commit()

    commit()
    assert isinstance(store.core.backend, RecordsBackend)
    memory = store.core.backend.records.store.store
    assert isinstance(memory, MemoryStore)
    return memory._changed, commit


def heads() -> tuple[Any, Callable[[], Any]]:
    made = HeadCache()
    return made._lock, lambda: made.slot(b"line")


@pytest.mark.parametrize(
    "make",
    [worker_store, claims, session, working_state, lanes, memory_store, heads],
    ids=lambda f: f.__name__,
)
def test_a_child_waits_for_no_lock_of_its_parent(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> None:
    lock, use = make()
    with held(lock):
        in_child(use)
    # The parent goes on, too.
    use()


def test_a_thread_that_forks_while_it_has_a_lock_gives_it_back_in_the_parent() -> None:
    lock = process.ProcessLock()

    def leave() -> None:
        lock.__exit__()

    with lock:
        in_child(leave)
    with held(lock):
        pass
