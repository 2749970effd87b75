"""What verbs yield one by one: read in its own colour as ever, with words for who takes it for another."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from types import AsyncGeneratorType, GeneratorType
from typing import Any

import pytest

import everthread
from everthread import UsageError

VERBS: dict[str, Callable[[Any, Any], Any]] = {
    "threads": lambda store, thread: store.threads(),
    "history": lambda store, thread: thread.history(),
    "watch": lambda store, thread: thread.watch(after=0, timeout=0),
    "replay": lambda store, thread: store.events("tasks").replay(),
    "scan": lambda store, thread: store.scan("needle"),
}


def blocking() -> tuple[Any, Any]:
    store = everthread.open("memory:")
    thread = store.thread("bot")
    thread.state["text"] = "a needle"
    thread.commit()
    store.events("tasks").append("made", {})
    return store, thread


async def awaited() -> tuple[Any, Any]:
    store = await everthread.open_async("memory:")
    thread = await store.thread("bot")
    thread.state["text"] = "a needle"
    await thread.commit()
    await store.events("tasks").append("made", {})
    return store, thread


@pytest.mark.parametrize("verb", VERBS)
def test_of_a_blocking_store(verb: str) -> None:
    store, thread = blocking()
    call = VERBS[verb]

    async def mistaken() -> None:
        async for _ in call(store, thread):
            pass

    with pytest.raises(UsageError, match="read with: for;"):
        asyncio.run(mistaken())
    assert len(list(call(store, thread))) == 1
    found = call(store, thread)
    next(found)
    with pytest.raises(StopIteration):
        next(found)
    with contextlib.closing(call(store, thread)) as early:
        next(early)
    # A loop works on what is beneath, and nothing takes it for something to be awaited.
    assert isinstance(iter(call(store, thread)), GeneratorType)
    assert not inspect.isawaitable(found)
    store.close()


@pytest.mark.parametrize("verb", VERBS)
def test_of_an_async_store(verb: str) -> None:
    call = VERBS[verb]

    async def work() -> None:
        store, thread = await awaited()
        for mistaken in (list, tuple, sorted, set):
            with pytest.raises(UsageError, match="read with: async for;"):
                mistaken(call(store, thread))
        with pytest.raises(TypeError):
            # As everybody expects who only tries.
            iter(call(store, thread))
        assert len([each async for each in call(store, thread)]) == 1
        found = call(store, thread)
        await anext(found)
        with pytest.raises(StopAsyncIteration):
            await anext(found)
        async with contextlib.aclosing(call(store, thread)) as early:
            await anext(early)
        assert isinstance(aiter(call(store, thread)), AsyncGeneratorType)
        assert not inspect.isawaitable(found)
        await store.close()

    asyncio.run(work())
