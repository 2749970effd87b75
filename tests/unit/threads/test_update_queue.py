"""Who updates a thread beside others comes to its turn, however long it takes."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import ConflictError
from everthread.threads.aio import update as async_update
from everthread.threads.sync import update


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
        assert slow <= 2 * 10, "a conflict or two until the queue stands"
        assert store.thread("t").state["n"] == 10 + sum(quick)
        assert not store.core.update_queue.busy("t")


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
            assert not store.core.update_queue.busy("t")

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


def test_in_the_order_of_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "_PATIENCE_S", 60.0)
    queue = update.UpdateQueue()
    first = queue.enter("t")
    assert first is not None
    came: list[int] = []

    def come(number: int) -> None:
        place = queue.enter("t")
        assert place is not None
        came.append(number)
        queue.leave(place)

    workers = [threading.Thread(target=come, args=(number,)) for number in range(5)]
    for worker in workers:
        last = queue._last["t"]
        worker.start()
        while queue._last["t"] is last:
            time.sleep(0.001)
    assert queue.enter("another")
    queue.leave(first)
    for worker in workers:
        worker.join()
    assert came == [0, 1, 2, 3, 4]
    assert not queue.busy("t")
    assert queue.busy("another")


def test_who_has_waited_for_long_goes_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that takes long, or that an interrupt kept from leaving."""
    monkeypatch.setattr(update, "_PATIENCE_S", 0.01)
    queue = update.UpdateQueue()
    first = queue.enter("t")
    assert first is not None
    assert queue.enter("t") is None, "who is at it already doesn't wait for itself"
    entered, done = threading.Event(), threading.Event()

    def come() -> None:
        place = queue.enter("t")
        assert place is not None
        entered.set()
        assert done.wait(60)
        queue.leave(place)

    worker = threading.Thread(target=come)
    worker.start()
    assert entered.wait(60)
    queue.leave(first)
    assert queue.busy("t"), "it isn't the first one's any more"
    done.set()
    worker.join()
    assert not queue.busy("t")


def test_an_interrupt_anywhere_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it comes, the next one goes on, when its patience is over at the latest, without an error."""
    monkeypatch.setattr(update, "_PATIENCE_S", 0.05)
    for stop_at in range(40):
        queue = update.UpdateQueue()
        calls = 0

        def interrupt(frame: Any, event: str, argument: Any, stop_at: int = stop_at) -> None:
            nonlocal calls
            if frame.f_code.co_filename == update.__file__ and event in ("c_return", "return", "call"):
                calls += 1
                if calls == stop_at:
                    raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            place = queue.enter("t")
            assert place is not None
            queue.leave(place)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        entered: list[Any] = []

        def come(queue: update.UpdateQueue = queue, entered: list[Any] = entered) -> None:
            for _ in range(2):
                place = queue.enter("t")
                entered.append(place)
                assert place is not None
                queue.leave(place)

        worker = threading.Thread(target=come)
        worker.start()
        worker.join(60)
        assert len(entered) == 2, stop_at
        assert not queue.busy("t"), stop_at
    assert calls < 40, "all places were tried"


def test_an_update_in_a_signal_handler() -> None:
    with everthread.open("memory:") as store:
        handles = [store.thread("t") for _ in range(3)]
        handles[0].update(add_one)
        before = signal.signal(signal.SIGUSR1, lambda *_: handles[2].update(add_one))
        fired: list[int] = []
        tries: list[int] = []

        def change(draft: Any) -> None:
            if not tries:
                tries.append(1)
                handles[1].update(add_one)
            add_one(draft)

        def raise_signal(frame: Any, event: str, argument: Any) -> None:
            if len(fired) < 5 and event == "c_call" and frame.f_code.co_filename == update.__file__:
                fired.append(1)
                signal.raise_signal(signal.SIGUSR1)

        sys.setprofile(raise_signal)
        try:
            handles[0].update(change)
        finally:
            sys.setprofile(None)
            signal.signal(signal.SIGUSR1, before)
        assert len(fired) == 5
        assert store.thread("t").state["n"] == 3 + 5
        assert not store.core.update_queue.busy("t")


def test_several_event_loops_at_once() -> None:
    """In debug mode, which refuses what isn't safe among threads."""
    store = asyncio.run(open_memory())
    spent: list[float] = []

    async def work() -> None:
        thread = await store.thread("t")
        for _ in range(30):
            began = time.monotonic()
            await thread.update(add_one)
            spent.append(time.monotonic() - began)

    workers = [
        threading.Thread(target=lambda: asyncio.run(work(), debug=True), name=f"loop {n}") for n in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(spent) == 90
    assert sorted(spent)[45] < 0.5, "nobody waits until its patience is over"

    async def look() -> int:
        thread = await store.thread("t")
        count: int = thread.state["n"]
        await store.close()
        return count

    assert asyncio.run(look()) == 90


async def open_memory() -> everthread.AsyncStore:
    return await everthread.open_async("memory:")


@pytest.mark.parametrize("role", ["first", "waiting"])
def test_an_event_loop_that_ended_holds_nobody_up(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_update, "_PATIENCE_S", 0.01)
    queue = async_update.UpdateQueue()
    kept: list[Any] = []

    async def come() -> None:
        task = asyncio.ensure_future(queue.enter("t"))
        kept.append(task)
        await asyncio.sleep(0.01)

    async def main() -> None:
        if role == "waiting":
            own = await queue.enter("t")
        await asyncio.to_thread(in_a_loop_of_its_own)
        if role == "waiting":
            assert own is not None
            queue.leave(own)
        place = await asyncio.wait_for(queue.enter("t"), 10)
        assert place is not None
        queue.leave(place)
        assert not queue.busy("t")

    def in_a_loop_of_its_own() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(come())
        loop.close()

    asyncio.run(main())


@pytest.mark.parametrize("when", ["waiting", "called"])
def test_who_is_cancelled_lets_the_next_one_go(when: str) -> None:
    async def main() -> None:
        queue = async_update.UpdateQueue()

        async def come() -> bool:
            place = await queue.enter("t")
            assert place is not None
            queue.leave(place)
            return True

        own = await queue.enter("t")
        assert own is not None
        first, second = asyncio.create_task(come()), asyncio.create_task(come())
        await asyncio.sleep(0.01)
        if when == "waiting":
            first.cancel()
            queue.leave(own)
        else:
            # Called, and cancelled before it can go.
            queue.leave(own)
            first.cancel()
        assert await second
        assert first.cancelled()
        assert not queue.busy("t")

    asyncio.run(main())


def test_however_many_are_cancelled_the_next_one_waits_for_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_update, "_PATIENCE_S", 60.0)

    async def main() -> None:
        queue = async_update.UpdateQueue()
        own = await queue.enter("t")
        assert own is not None
        tasks = [asyncio.create_task(queue.enter("t")) for _ in range(2000)]
        last = asyncio.create_task(queue.enter("t"))
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)
        assert not last.done()
        queue.leave(own)
        ticket = await last
        assert ticket is not None
        queue.leave(ticket)
        assert not queue.busy("t")

    asyncio.run(main())
