"""The lock of a thread: blocks that run once, one after the other, over handles, stores and processes."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import msgspec

from everthread.errors import FencedError, MergeConflictError, StoreBusyError, UsageError
from everthread.store import Store
from everthread.testing.rules.expectations import OpenStore, commit, needs, raises
from everthread.testing.rules.processes import Child
from everthread.threads.sync.journals import space_beside
from everthread.threads.sync.lock import LOCK, Queue

_SOON_S = 60.0


class LockRules:
    def test_a_lock_runs_its_block_once_and_makes_one_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.lock(timeout_s=_SOON_S) as draft:
            draft["n"] = 1
            draft.state["n"] += 1
            draft.messages.append({"content": "x"})
        assert (_seq(thread), thread.state["n"], len(thread.messages)) == (1, 2, 1)
        with thread.lock(timeout_s=_SOON_S):
            pass
        assert _seq(store.thread("a")) == 1, "nothing changed, nothing written"
        assert _waiting(store) == 0, "whoever leaves leaves nothing behind"

    def test_a_lock_waits_its_turn_over_processes_and_runs_once(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        count = 12

        def work(opened: Store, who: str) -> int:
            ran = 0
            for _ in range(count):
                with opened.thread("a").lock(timeout_s=_SOON_S) as draft:
                    ran += 1
                    seen = draft.get("n", 0)
                    draft["by"] = who
                    draft["n"] = seen + 1
            return ran

        def child() -> Any:
            again = open_store()
            ran = work(again, "child")
            again.close()
            return ran

        with Child(child) as running:
            mine = work(store, "parent")
            assert (mine, running.answer()) == (count, count)
        thread = store.thread("a")
        assert (thread.state["n"], _seq(thread)) == (2 * count, 2 * count)

    def test_a_lock_is_given_in_the_order_in_which_it_was_asked_for(self, open_store: OpenStore) -> None:
        store = open_store()
        order: list[int] = []

        def wait(number: int) -> None:
            with store.thread("a").lock(timeout_s=_SOON_S) as draft:
                order.append(number)
                draft["last"] = number

        waiting = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
        with store.thread("a").lock(timeout_s=_SOON_S):
            for number, each in enumerate(waiting):
                each.start()
                while _waiting(store) < number + 2:
                    time.sleep(0.001)
        for each in waiting:
            each.join()
        assert order == [0, 1, 2]

    def test_a_lock_that_is_held_is_refused_in_time(self, open_store: OpenStore) -> None:
        store = open_store()
        with store.thread("a").lock(timeout_s=0) as draft:
            draft["n"] = 1
            with raises(StoreBusyError) as caught, store.thread("a").lock(timeout_s=0.01):
                raise AssertionError("the block must not run")
            assert str(os.getpid()) in str(caught[0])
            with store.thread("b").lock(timeout_s=0) as other:
                other["n"] = 1
        assert (_seq(store.thread("a")), _seq(store.thread("b"))) == (1, 1)
        assert _waiting(store) == 0

    def test_an_exception_takes_the_changes_of_the_block_back(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["n"] = 1
        first = commit(thread)
        with raises(ZeroDivisionError), thread.lock(timeout_s=_SOON_S) as draft:
            draft["n"] = 2
            _ = 1 // 0
        assert (thread.state["n"], thread.dirty, thread.head) == (1, False, first)
        with store.thread("a").lock(timeout_s=0) as draft:
            draft["n"] += 1
        assert store.thread("a").state["n"] == 2

    def test_a_holder_that_dies_frees_its_lock(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")

        def die() -> None:
            again = open_store()
            with again.thread("a").lock(timeout_s=_SOON_S) as draft:
                draft["from"] = "the dead"
                os._exit(3)

        with Child(die):
            pass
        thread = store.thread("a")
        with thread.lock(timeout_s=_SOON_S) as draft:
            draft["from"] = "the living"
        assert (_seq(thread), thread.state["from"]) == (1, "the living")

    def test_a_holder_whose_lease_ran_out_is_fenced_off(self, open_store: OpenStore) -> None:
        store = open_store()
        for exists in (False, True):
            slow, name = store.thread(f"a {exists}"), f"a {exists}"
            if exists:
                slow.state["n"] = 0
                commit(slow)
            with raises(FencedError), slow.lock(timeout_s=_SOON_S, lease_s=0.001) as late:
                late["n"] = "late"
                with store.thread(name).lock(timeout_s=_SOON_S) as draft:
                    draft["n"] = "in time"
            assert not slow.dirty
            assert store.thread(name).state["n"] == "in time"
            # It can't commit while the next one is still at work, either.
            again, after = store.thread(name), store.thread(name)
            holding = again.lock(timeout_s=_SOON_S, lease_s=0.001)
            holding.__enter__()["n"] = "late"
            with after.lock(timeout_s=_SOON_S) as draft:
                with raises(FencedError):
                    holding.__exit__(None, None, None)
                draft["n"] = "after"
            assert store.thread(name).state["n"] == "after"
            assert _waiting(store) == 0

    def test_a_lease_that_ran_out_is_good_until_somebody_takes_it(self, open_store: OpenStore) -> None:
        thread = open_store().thread("a")
        with thread.lock(timeout_s=_SOON_S, lease_s=0.001) as draft:
            time.sleep(0.01)
            draft["n"] = 1
        assert (thread.state["n"], _seq(thread)) == (1, 1)

    def test_what_others_write_without_the_lock_is_brought_together(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.lock(timeout_s=_SOON_S) as draft:
            draft["mine"] = 1
            store.thread("a").update(lambda other: other.update(theirs=1))
        assert store.thread("a").state.plain() == {"mine": 1, "theirs": 1}
        with raises(MergeConflictError), thread.lock(timeout_s=_SOON_S) as draft:
            draft["mine"] = 2
            store.thread("a").update(lambda other: other.update(mine=3))
        assert thread.dirty, "the work of the block is still there"
        thread.rebase(resolve="ours")
        thread.commit()
        assert store.thread("a").state["mine"] == 2
        assert _waiting(store) == 0

    def test_a_lock_is_for_one_block_on_a_clean_handle(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        lock = thread.lock(timeout_s=_SOON_S)
        with lock:
            pass
        with raises(UsageError), lock:
            pass
        thread.state["n"] = 1
        with raises(UsageError), thread.lock(timeout_s=_SOON_S):
            pass
        for options in ({"timeout_s": "x"}, {"lease_s": 0}, {"lease_s": -1}):
            with raises(UsageError):
                thread.lock(**options)
        assert thread.state["n"] == 1


def _waiting(store: Store) -> int:
    """How many hold the lock of a thread or wait for it."""
    core = store.core
    space = space_beside(core.space, LOCK)
    cells = core.backend.cells(space, "", None, 100, core.runtime.now_us())
    return sum(len(msgspec.msgpack.decode(cell.value, type=Queue).entries) for _, cell in cells)


def _seq(thread: Any) -> int:
    return 0 if thread.head is None else int(thread.head.seq)
