"""Blocking verbs of an async store: on a thread, abortable, with progress on the caller's side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store, StoreClosedError

SPAN: ContextVar[str] = ContextVar("SPAN", default="")


def to_its_end(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agent.db"}[request.param]


def read_until_aborted(store: Store, begun: threading.Event, cleaned: list[str]) -> None:
    """Uses the store for ever, and once more on the way out."""
    try:
        while True:
            list(store.threads())
            begun.set()
    finally:
        cleaned += [info.name for info in store.threads()]


async def prepare(store: everthread.AsyncStore) -> None:
    thread = await store.thread("a")
    thread.state["x"] = 1
    await thread.commit()


@to_its_end
async def test_it_runs_on_another_thread_in_the_context_of_the_caller(url: str) -> None:
    async with everthread.open_async(url) as store:
        await prepare(store)
        SPAN.set("mine")
        thread, span, state = await store._run(
            lambda blocking: (threading.get_ident(), SPAN.get(), dict(blocking.thread("a").state))
        )
        assert thread != threading.get_ident()
        assert (span, state) == ("mine", {"x": 1})


@to_its_end
async def test_cancelled_it_ends_before_the_next_verb_and_may_clean_up(url: str) -> None:
    begun, cleaned = threading.Event(), list[str]()
    async with everthread.open_async(url) as store:
        await prepare(store)
        task = asyncio.create_task(store._run(read_until_aborted, begun, cleaned))
        await asyncio.to_thread(begun.wait, 20)
        assert begun.is_set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Nothing goes on behind the caller's back.
        assert cleaned == ["a"]


@to_its_end
async def test_cancelled_before_it_began_it_never_runs(url: str) -> None:
    go_on, ran = threading.Event(), list[int]()
    async with everthread.open_async(url) as store:
        busy = [asyncio.create_task(store._run(lambda _: go_on.wait(20))) for _ in range(4)]
        await asyncio.sleep(0.05)
        late = asyncio.create_task(store._run(lambda _: ran.append(1)))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        go_on.set()
        assert all(await asyncio.gather(*busy))
        assert not ran


@to_its_end
async def test_closing_the_store_ends_what_is_at_work(url: str) -> None:
    begun = threading.Event()
    store = await everthread.open_async(url)
    await prepare(store)
    task = asyncio.create_task(store._run(read_until_aborted, begun, []))
    await asyncio.to_thread(begun.wait, 20)
    await store.close()
    with pytest.raises(StoreClosedError):
        await task
    with pytest.raises(StoreClosedError):
        await store._run(lambda _: None)


def counting(store: Store, upto: int, done: list[int], progress: Callable[[int, int], None]) -> int:
    for number in range(upto):
        progress(number, upto)
        done.append(number)
    return upto


@to_its_end
async def test_progress_arrives_on_the_callers_side(url: str) -> None:
    heard: list[tuple[int, int, int]] = []
    async with everthread.open_async(url) as store:
        verb: Any = counting
        assert (
            await store._run(verb, 3, [], progress=lambda n, of: heard.append((n, of, threading.get_ident())))
            == 3
        )
    assert heard == [(n, 3, threading.get_ident()) for n in range(3)]


@to_its_end
async def test_progress_that_raises_ends_the_work_right_there(url: str) -> None:
    done: list[int] = []

    def enough(number: int, of: int) -> None:
        if number == 2:
            raise KeyError("enough")

    async with everthread.open_async(url) as store:
        verb: Any = counting
        with pytest.raises(KeyError, match="enough"):
            await store._run(verb, 9, done, progress=enough)
    assert done == [0, 1]


@to_its_end
async def test_cancelled_by_its_progress(url: str) -> None:
    done: list[int] = []
    async with everthread.open_async(url) as store:
        verb: Any = counting
        task: asyncio.Task[Any] = asyncio.create_task(
            store._run(verb, 9, done, progress=lambda number, of: number == 4 and task.cancel())
        )
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(done) in (4, 5)


def many(store: Store, upto: int, made: list[int]) -> Iterator[int]:
    try:
        for number in range(upto):
            made.append(number)
            yield number
        raise KeyError("at the end")
    finally:
        made.append(-1)


@to_its_end
async def test_a_stream_comes_in_batches_and_is_closed(url: str) -> None:
    made: list[int] = []
    async with everthread.open_async(url) as store:
        found: list[int] = []

        async def read() -> None:
            async for number in store._worker.stream(many, 150, made):
                found.append(number)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(KeyError, match="at the end"):
            await read()
        assert found == list(range(150))

        made.clear()
        stream: Any = store._worker.stream(many, 10_000, made)
        async for number in stream:
            if number == 3:
                break
        await stream.aclose()
        # A bounded number was made ahead, and the generator has ended.
        assert len(made) < 200
        assert made[-1] == -1
