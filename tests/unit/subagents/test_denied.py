"""Subagents of a fork in which no effects are to be made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import everthread
from everthread import EffectsDeniedError, Store
from everthread.subagents import Subagent, Task

MODES: tuple[Literal["new", "continue", "fork", "parent"], ...] = ("new", "continue", "fork", "parent")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/agent.db", durability="process") as opened:
        yield opened


def pay(store: Store, task: Task, ran: list[str]) -> str:
    """What a child does: one effect for each call, in its session, or in a step of its parent's thread."""
    if task.mode == "parent":
        with store.thread(task.thread).step(("pay", task.call), run=task.key) as step:
            step.call(f"pay {task.call}", ran.append, task.call)
        return "done"
    with store.session(task.thread, agent=task.name) as child:
        child.call(f"pay {task.call}", ran.append, task.call)
    return "done"


@pytest.mark.parametrize("mode", MODES)
def test_a_subagent_of_a_fork_without_effects_makes_none(store: Store, mode: Any) -> None:
    ran: list[str] = []
    helper = Subagent("helper", lambda task: pay(store, task, ran), thread=mode)
    parent = store.thread("writer")
    parent.messages.append({"id": "m", "role": "user", "content": "write"})
    parent.commit()
    assert helper.call(parent, "first", "work").error is None
    assert ran == ["first"]
    fork = store.thread("writer").fork("what if", effects="deny")
    for call in ("second", "third"):
        outcome = helper.call(fork, call, "work")
        assert "EffectsDeniedError" in str(outcome.error), "also the next one, which goes on from there"
    assert ran == ["first"]
    # The thread that was forked goes on with its own children, which know nothing of the fork.
    assert helper.call(store.thread("writer"), "fourth", "work").error is None
    assert ran == ["first", "fourth"]


@pytest.mark.parametrize("mode", ["new", "continue", "fork"])
def test_a_subagent_of_a_run_on_such_a_fork_makes_none(store: Store, mode: Any) -> None:
    ran: list[str] = []
    helper = Subagent("helper", lambda task: pay(store, task, ran), thread=mode)
    with store.session("writer") as session:
        session.messages.append({"id": "m", "role": "user", "content": "write"})
    store.thread("writer").fork("what if", effects="deny")
    with store.session("what if") as session:
        outcome = helper.call(session, "call", "work")
    assert "EffectsDeniedError" in str(outcome.error)
    assert outcome.thread is not None
    assert store.thread(outcome.thread).effects == "deny", "also if it is opened without its parent"
    assert ran == []


def test_the_same_holds_for_async_stores(tmp_path: Path) -> None:
    async def work() -> None:
        url = f"sqlite:///{tmp_path}/agent.db"
        async with everthread.open_async(url, durability="process") as store:

            async def child(task: Task) -> str:
                async with store.session(task.thread) as session:
                    await session.call("pay", pytest.fail)
                return "done"

            parent = await store.thread("writer")
            await parent.commit(label="begun")
            fork = await parent.fork("what if", effects="deny")
            for mode in MODES[:3]:
                outcome = await Subagent(f"helper {mode}", child, thread=mode).call(fork, "call", "work")
                assert "EffectsDeniedError" in str(outcome.error), mode
            async with store.session("what if") as session:
                with pytest.raises(EffectsDeniedError):
                    async with store.session("child", parent=session) as inner:
                        await inner.call("pay", pytest.fail)

    asyncio.run(work())


def test_a_session_of_a_parent_without_effects_makes_none(store: Store) -> None:
    for name in ("writer", "known"):
        store.thread(name).commit(label="begun")
    store.thread("writer").fork("what if", effects="deny")
    with store.session("what if") as parent:
        forked = {"name": "fork", "mode": "fork", "source": "known"}
        for options in ({"name": "new"}, {"name": "known"}, forked):
            with store.session(parent=parent, **options) as child:
                with pytest.raises(EffectsDeniedError):
                    child.call("pay", pytest.fail)
                below = store.session(f"{options['name']} below", parent=child)
                with below, pytest.raises(EffectsDeniedError):
                    below.call("pay", pytest.fail)
    for made in ("new", "fork", "new below", "known below"):
        assert store.thread(made).effects == "deny", made
    with store.session("known") as session:
        assert session.call("pay", lambda: "paid") == "paid", "a thread of its own, which worked for it once"
