"""The four modes on the drivers of servers, in both colours: threads, sessions and links go through each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import everthread
from everthread.subagents import Subagent, Task, subagents_of
from tests.unit.subagents.agents import (
    PARENT,
    AsyncWorker,
    Worker,
    answered,
    asking,
    contents,
    require_sound,
)

MODES: tuple[Any, ...] = ("new", "continue", "fork", "parent")
CALLS = [(mode, f"{mode}-{number}") for mode in MODES for number in (1, 2)]
#: What each child is when all of them are done: its thread, and the call that it did last.
CHILDREN = [
    ("new", "boss/new/new-1", "new-1"),
    ("new", "boss/new/new-2", "new-2"),
    ("continue", "boss/continue/continue-1", "continue-2"),
    ("fork", "boss/fork/fork-1", "fork-1"),
    ("fork", "boss/fork/fork-2", "fork-2"),
    ("parent", "boss", "parent-2"),
]


@pytest.fixture(params=["postgres", "valkey"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def test_four_modes_of_a_blocking_store(url: str) -> None:
    with everthread.open(url, durability="process", keyring="memory:") as store:
        worker = Worker(store)

        def work_here(task: Task) -> str:
            parent.log(task.log).append({"id": task.key, "role": "assistant", "content": task.prompt})
            return "done here"

        helpers = {
            mode: Subagent(mode, work_here if mode == "parent" else worker, thread=mode) for mode in MODES
        }
        with store.session(PARENT) as parent:
            for mode, call in CALLS:
                parent.messages.append(asking(call))
                outcome = helpers[mode].call(parent, call, f"do {call}")
                assert outcome.ok, outcome
                parent.messages.append(answered(call, outcome))
    _check(url)


def test_four_modes_of_an_async_store(url: str) -> None:
    asyncio.run(_four_modes(url))
    _check(url)


async def _four_modes(url: str) -> None:
    async with everthread.open_async(url, durability="process", keyring="memory:") as store:
        worker = AsyncWorker(store)

        async def work_here(task: Task) -> str:
            item = {"id": task.key, "role": "assistant", "content": task.prompt}
            await parent.log(task.log).append(item)
            return "done here"

        helpers = {
            mode: Subagent(mode, work_here if mode == "parent" else worker, thread=mode) for mode in MODES
        }
        async with store.session(PARENT) as parent:
            for mode, call in CALLS:
                await parent.messages.append(asking(call))
                outcome = await helpers[mode].call(parent, call, f"do {call}")
                assert outcome.ok, outcome
                await parent.messages.append(answered(call, outcome))
            # Several at once, on threads of their own.
            calls = ("at-once-1", "at-once-2", "at-once-3")
            made = await asyncio.gather(*(helpers["new"].call(parent, call, call) for call in calls))
            assert [outcome.value for outcome in made] == [{"messages": 1}] * 3


def _check(url: str) -> None:
    """Whoever opens the store next finds parent and children as they were left."""
    with everthread.open(url, durability="process", keyring="memory:") as store:
        parent = store.thread(PARENT)
        require_sound(parent.messages)
        children = [child for child in subagents_of(parent) if not child.call.startswith("at-once")]
        assert [(child.name, child.thread, child.call) for child in children] == CHILDREN
        assert {child.status for child in children} == {"completed"}
        assert [child.usage.get("tokens") for child in children] == [3, 3, 3, 3, 3, 0]
        assert contents(parent.log("subagent/parent")) == ["do parent-1", "do parent-2"]
        talk = ["do continue-1", "done: do continue-1", "do continue-2", "done: do continue-2"]
        assert contents(store.thread("boss/continue/continue-1").messages) == talk
        # The second fork goes on from the first, which began with what the parent held before it asked.
        asked = contents(parent.messages)[:8]
        first = [*asked, "do fork-1", "done: do fork-1"]
        assert contents(store.thread("boss/fork/fork-1").messages) == first
        second = [*first, "do fork-2", "done: do fork-2"]
        assert contents(store.thread("boss/fork/fork-2").messages) == second
        # A call that was answered is never made again.
        with store.session(PARENT) as session:
            again = Subagent("new", _nobody).call(session, "new-2", "do new-2")
            assert again.value == {"messages": 1}
        assert store.verify()


def _nobody(task: Task) -> Any:
    raise AssertionError(f"{task.key} was answered already")
