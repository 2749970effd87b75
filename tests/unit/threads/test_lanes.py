"""Who updates a thread beside others comes to its turn, however long it takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import ConflictError
from everthread.threads.aio import lanes as async_lanes
from everthread.threads.sync import lanes


def add_one(draft: Any) -> None:
    draft["n"] = draft.get("n", 0) + 1


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_a_slow_update_among_quick_ones(kind: str, tmp_path: Path) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "file": f"file://{tmp_path}/f"}
    stop = threading.Event()
    quick, slow = [0] * 4, 0
    with everthread.open(urls[kind], durability="process") as store:

        def work(number: int) -> None:
            thread = store.thread("t")
            while not stop.is_set():
                thread.update(add_one)
                quick[number] += 1

        def slowly(draft: Any) -> None:
            nonlocal slow
            slow += 1
            add_one(draft)
            # Long enough for all the others to write.
            time.sleep(0.005)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        thread = store.thread("t")
        try:
            for _ in range(10):
                thread.update(slowly)
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        assert slow <= 2 * 10, "a conflict or two until the line stands"
        assert store.thread("t").state["n"] == 10 + sum(quick)
        assert not store._core.lanes.busy("t")


def test_slow_updates_and_steps_among_quick_tasks(tmp_path: Path) -> None:
    calls = rebased = 0

    async def main() -> None:
        nonlocal calls, rebased
        async with await everthread.open_async(f"sqlite:///{tmp_path}/s.db", durability="process") as store:
            stop = False

            async def work() -> int:
                thread = await store.thread("t")
                done = 0
                while not stop:
                    await thread.update(add_one)
                    done += 1
                return done

            async def slowly(draft: Any) -> None:
                nonlocal calls
                calls += 1
                add_one(draft)
                await asyncio.sleep(0.005)

            tasks = [asyncio.create_task(work()) for _ in range(4)]
            thread = await store.thread("t")
            own = thread.rebase

            async def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal rebased
                rebased += 1
                return await own(*arguments, **options)

            thread.rebase = counted  # type: ignore[method-assign]
            for number in range(10):
                await thread.update(slowly)
                async with thread.step(("k", number)) as step:
                    await asyncio.sleep(0.005)
                    step.result = number
            stop = True
            done = sum(await asyncio.gather(*tasks))
            await thread.refresh()
            assert thread.state["n"] == 10 + done
            assert not store._core.lanes.busy("t")

    asyncio.run(main())
    assert calls <= 2 * 10
    assert rebased <= 2 * 10


def test_an_update_within_an_update_of_the_same_thread_ends() -> None:
    with everthread.open("memory:") as store:
        thread, other = store.thread("t"), store.thread("t")
        thread.update(add_one)

        def within(draft: Any) -> None:
            other.update(add_one)
            add_one(draft)

        with pytest.raises(ConflictError, match=r"changed it 3 times.*more tries=") as caught:
            thread.update(within, tries=3)
        assert caught.value.actual.seq == 4
        assert thread.state["n"] == 3, "its changes were dropped"
        thread.refresh()
        assert thread.state["n"] == 4


def test_in_the_order_of_coming() -> None:
    line = lanes.Lanes()
    assert line.enter("t")
    came: list[int] = []

    def come(number: int) -> None:
        assert line.enter("t")
        came.append(number)
        line.leave("t")

    workers = [threading.Thread(target=come, args=(number,)) for number in range(5)]
    for number, worker in enumerate(workers, 1):
        worker.start()
        while len(line._lanes["t"][1]) < number:
            time.sleep(0.001)
    assert line.enter("another")
    line.leave("t")
    for worker in workers:
        worker.join()
    assert came == [0, 1, 2, 3, 4]
    assert not line.busy("t")
    assert line.busy("another")


def test_who_has_waited_for_long_goes_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that takes long, or that an interrupt kept from leaving."""
    monkeypatch.setattr(lanes, "_PATIENCE_S", 0.01)
    line = lanes.Lanes()
    assert line.enter("t")
    assert not line.enter("t"), "who is at it already doesn't wait for itself"
    entered, done = threading.Event(), threading.Event()

    def come() -> None:
        assert line.enter("t")
        entered.set()
        assert done.wait(60)
        line.leave("t")

    worker = threading.Thread(target=come)
    worker.start()
    assert entered.wait(60)
    line.leave("t")
    assert line.busy("t"), "it isn't the first one's any more"
    done.set()
    worker.join()
    assert not line.busy("t")


def test_a_child_made_by_fork_finds_no_line() -> None:
    line = lanes.Lanes()
    line._lanes["t"] = "a thread of the parent", deque()
    line._generation -= 1
    assert line.enter("t")
    line.leave("t")
    line.leave("t")
    assert not line.busy("t")


@pytest.mark.parametrize("when", ["waiting", "called"])
def test_who_is_cancelled_lets_the_next_one_go(when: str) -> None:
    async def main() -> None:
        line = async_lanes.Lanes()

        async def come() -> bool:
            entered = await line.enter("t")
            line.leave("t")
            return entered

        assert await line.enter("t")
        first, second = asyncio.create_task(come()), asyncio.create_task(come())
        await asyncio.sleep(0.01)
        if when == "waiting":
            first.cancel()
            line.leave("t")
        else:
            # Called, and cancelled before it can go.
            line.leave("t")
            first.cancel()
        assert await second
        assert first.cancelled()
        assert not line.busy("t")

    asyncio.run(main())
