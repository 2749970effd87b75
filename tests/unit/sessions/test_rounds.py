"""Tasks that take the lock of a session go on a few at a time, so that an event loop is never kept long."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import everthread
from everthread.sessions.aio.fenced_thread import AsyncFencedThread
from everthread.sessions.locks import PER_ROUND, AsyncLock, next_round


class Rounds:
    """Counts the rounds of the running loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._next)

    def end(self) -> None:
        self._handle.cancel()


def test_only_a_few_tasks_take_their_locks_in_one_round() -> None:
    tasks = 5 * PER_ROUND + 1

    async def run() -> tuple[Counter[int], list[int]]:
        rounds, taken, order = Rounds(), Counter[int](), list[int]()

        async def take(number: int) -> None:
            async with AsyncLock():
                taken[rounds.number] += 1
                order.append(number)

        await asyncio.gather(*(take(number) for number in range(tasks)))
        rounds.end()
        return taken, order

    taken, order = asyncio.run(run())
    assert max(taken.values()) == PER_ROUND
    assert order == list(range(tasks))


def test_many_sessions_begin_only_a_few_writes_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = 4 * PER_ROUND
    begun = Counter[int]()

    async def run() -> None:
        rounds, look_again = Rounds(), AsyncFencedThread.look_again

        async def counting(thread: AsyncFencedThread) -> None:
            begun[rounds.number] += 1
            await look_again(thread)

        monkeypatch.setattr(AsyncFencedThread, "look_again", counting)
        async with everthread.open_async("memory:") as store:

            async def work(number: int, go: asyncio.Event) -> None:
                async with store.session(f"s{number}") as session:
                    await go.wait()
                    await session.messages.append({"n": number})
                    await session.work.add_todo("a")

            go = asyncio.Event()
            tasks: list[Any] = [asyncio.create_task(work(number, go)) for number in range(sessions)]
            await asyncio.sleep(0)
            go.set()
            await asyncio.gather(*tasks)
        rounds.end()

    asyncio.run(run())
    assert sum(begun.values()) >= 2 * sessions
    assert max(begun.values()) <= PER_ROUND


def test_whoever_holds_the_lock_takes_it_again_at_once() -> None:
    async def run() -> None:
        rounds, lock = Rounds(), AsyncLock()
        async with lock:
            began = rounds.number
            async with lock:
                assert rounds.number == began
        rounds.end()

    asyncio.run(run())


def test_tasks_that_were_cancelled_keep_nobody_waiting() -> None:
    async def run() -> None:
        waiting = [asyncio.create_task(next_round()) for _ in range(4 * PER_ROUND)]
        last = asyncio.create_task(next_round())
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait_for(last, 60)
        for task in waiting:
            with pytest.raises(asyncio.CancelledError):
                await task
        # And those that come later find their way too.
        await asyncio.wait_for(next_round(), 60)

    asyncio.run(run())


def test_each_event_loop_has_rounds_of_its_own() -> None:
    async def leave_somebody_waiting() -> None:
        task = asyncio.create_task(next_round())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave_somebody_waiting())
    asyncio.run(asyncio.wait_for(next_round(), 60))
