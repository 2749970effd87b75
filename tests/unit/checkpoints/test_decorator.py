"""The decorator: counting, choosing, and saving in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import everthread
from everthread import Checkpointable, CheckpointManager, checkpoint


class Agent(Checkpointable):
    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.step = 0


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager() as opened:
        yield opened


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "5"])
def test_every_is_a_number_of_calls(manager: CheckpointManager, every: Any) -> None:
    with pytest.raises(everthread.InvalidValueError, match="every"):
        checkpoint(manager, key="k", every=every)


def test_a_call_that_raises_counts_and_saves_nothing(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=2)
    def work(agent: Agent, fail: bool) -> None:
        agent.step += 1
        if fail:
            raise ValueError

    agent = Agent()
    work(agent, False)
    with pytest.raises(ValueError):  # noqa: PT011
        work(agent, True)
    assert manager.list_keys() == []
    work(agent, False)
    work(agent, False)
    assert manager.load("k", Agent()).step == 4


def test_the_first_checkpointable_argument_is_saved(manager: CheckpointManager) -> None:
    @checkpoint(manager, key=lambda agent: f"agent {agent.name}")
    def work(text: str, one: Agent, *rest: Agent, **named: Any) -> None:
        pass

    work("x", Agent("one"), Agent("two"), other=Agent("three"))
    work(text="x", named=Agent("four"), one=Agent("five"))
    assert manager.list_keys() == ["agent four", "agent one"]


def test_a_call_without_an_agent_is_refused_before_it_runs(manager: CheckpointManager) -> None:
    calls = []

    @checkpoint(manager, key="k", every=100)
    def work(value: Any) -> None:
        calls.append(value)

    with pytest.raises(everthread.UsageError, match="without a Checkpointable"):
        work(5)
    assert not calls


def test_generators_are_refused(manager: CheckpointManager) -> None:
    def numbers(agent: Agent) -> Iterator[int]:
        yield 1

    async def later(agent: Agent) -> AsyncIterator[int]:
        yield 1

    for function in (numbers, later):
        with pytest.raises(everthread.UsageError, match="generator"):
            checkpoint(manager, key="k")(function)


def test_async_saves_follow_each_other_and_leave_the_loop_free(manager: CheckpointManager) -> None:
    saved_in: list[int] = []
    plain = manager._save_state

    def noting(key: str, state: Any) -> str:
        saved_in.append(threading.get_ident())
        return plain(key, state)

    manager._save_state = noting  # type: ignore[method-assign]

    @checkpoint(manager, key="k")
    async def work(agent: Agent) -> int:
        await asyncio.sleep(0)
        agent.step += 1
        return agent.step

    async def run(agent: Agent) -> list[int]:
        return await asyncio.gather(*(work(agent) for _ in range(20)))

    agent = Agent()
    assert sorted(asyncio.run(run(agent))) == list(range(1, 21))
    asyncio.run(run(agent))  # another event loop, the same function
    assert threading.get_ident() not in saved_in
    steps = [manager.load("k", Agent(), entry["id"]).step for entry in manager.history("k", n=None)]
    assert len(steps) == 40
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 40


def test_calls_from_many_threads_are_counted_once_each(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="k", every=5)
    def work(agent: Agent) -> None:
        pass

    def call() -> None:
        for _ in range(25):
            work(Agent())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(manager.history("k", n=None)) == 20
