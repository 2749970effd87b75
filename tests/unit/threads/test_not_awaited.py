"""Async functions where nobody awaits them: refused, never taken for one that did its work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import everthread
from everthread.errors import UsageError


async def given(*args: Any) -> Any:
    return args[0]


@pytest.fixture
def thread() -> everthread.Thread:
    found = everthread.open("memory:").thread("a")
    found.state["n"] = 1
    found.messages.append({"role": "user", "content": "hello"})
    found.commit()
    return found


@pytest.mark.parametrize(
    "call",
    [
        lambda thread: thread.update(given),
        lambda thread: thread.fork("b", prepare=given),
        lambda thread: thread.fork("b", transform=given),
    ],
)
def test_async_functions_are_refused(
    thread: everthread.Thread, call: Callable[[everthread.Thread], Any]
) -> None:
    with pytest.raises(UsageError, match="async function"):
        call(thread)
    assert (thread.head.seq, thread.dirty) == (1, False)  # type: ignore[union-attr]
    assert thread.update(lambda draft: draft.state.update(n=2)).seq == 2  # type: ignore[union-attr]


def test_a_schema_that_nobody_awaits_accepts_nothing() -> None:
    store = everthread.open("memory:")
    thread = store.thread("a", schema=given)
    thread.state["n"] = 1
    with pytest.raises(UsageError, match="the schema is an async function"):
        thread.commit()
    assert store.thread("a").head is None


def test_a_projector_that_nobody_awaits() -> None:
    store = everthread.open("memory:")
    store.events("s").append("made", {"n": 1})
    with pytest.raises(UsageError, match="the projector is an async function"):
        store.events("s").project(given)
    with pytest.raises(UsageError, match="the projector is an async function"):
        store.events("s").projection("p", given)


def test_async_stores_await_what_they_can() -> None:
    async def work() -> None:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("a")

            async def change(draft: Any) -> None:
                draft.state["n"] = 1

            assert (await thread.update(change)).seq == 1  # type: ignore[union-attr]
            thread.messages.append({"role": "user", "content": "hello"})
            await thread.commit()
            for hook in ("prepare", "transform"):
                with pytest.raises(UsageError, match=f"{hook} is an async function"):
                    await thread.fork("b", **{hook: given})  # type: ignore[arg-type]
            checked = await store.thread("c", schema=given)
            checked.state["n"] = 1
            with pytest.raises(UsageError, match="the schema is an async function"):
                await checked.commit()

    asyncio.run(work())
