"""Async stores: opening, closing, event loops, processes, and objects of the wrong colour."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.errors import StoreClosedError, StoreUnavailableError, UsageError
from everthread.records import opening
from everthread.testing.faults import wrap_every_backend
from tests.unit.threads.tripwire import busy, run


@pytest.fixture(params=["memory:", "sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    places = {"sqlite": f"sqlite:///{tmp_path}/store.db", "file": f"file://{tmp_path}/store"}
    return places.get(request.param, request.param)


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("everthread")}


def _gone(*names: str) -> None:
    """Wait until no thread of the stores is left, nor of those that other tests have forgotten."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("everthread"):
            thread.join(30)
    assert _threads() <= set(names)


# ── opening and closing ──────────────────────────────────────────────────────────────────────────


def test_a_store_is_entered_or_awaited(url: str) -> None:
    async def main() -> None:
        async with e.open_async(url) as store:
            assert isinstance(store, e.AsyncStore)
            thread = await store.thread("a")
            thread.state["x"] = 1
            await thread.commit()
        with pytest.raises(StoreClosedError):
            await store.thread("a")
        awaited = await e.open_async(url)
        async with awaited as again:
            assert again is awaited
            found = await again.thread("a")
            assert ("x" in found.state) == again.capabilities.durable
        await again.close()

    run(main())


def test_without_a_url_it_opens_the_default_store() -> None:
    async def main() -> None:
        async with e.open_async() as store:
            thread = await store.thread("a")
            thread.state["x"] = 1
            await thread.commit()

    run(main())
    with e.open() as store:
        assert store.thread("a").state["x"] == 1


def test_what_cant_be_opened_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreUnavailableError):
            await e.open_async(f"sqlite:///{tmp_path}/nowhere/store.db")
        with pytest.raises(UsageError):
            await e.open_async("nonsense://x")
        with pytest.raises(UsageError):
            e.open_async("memory:", namespace="a\0b")
        with pytest.raises(e.InvalidNameError):
            async with e.open_async("memory:") as store:
                await store.thread("")

    run(main())
    _gone()


def test_options_are_those_of_open(tmp_path: Path) -> None:
    async def main() -> None:
        limits = e.Limits(depth_max=3)
        async with e.open_async(f"sqlite:///{tmp_path}/a.db", namespace="n", limits=limits) as store:
            assert store.namespace == "n"
            thread = await store.thread("a", schema={"type": "object", "required": ["x"]})
            with pytest.raises(e.LimitError):
                thread.state["deep"] = {"a": {"b": {"c": {}}}}
            thread.state["y"] = 1
            with pytest.raises(e.ValidationError):
                await thread.commit()
            thread.state["x"] = 1
            await thread.commit()

    run(main())
    with e.open(f"sqlite:///{tmp_path}/a.db", namespace="n") as store:
        assert store.thread("a").state.plain() == {"x": 1, "y": 1}


def test_cancelled_while_it_opens_it_leaves_nothing_open(tmp_path: Path) -> None:
    closed: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def slow(backend: Any) -> Any:
        close = backend.close

        def told() -> None:
            closed.append("closed")
            close()

        backend.close = told
        begun.set()
        assert go.wait(30)
        return backend

    async def main() -> None:
        task = asyncio.ensure_future(_open(f"sqlite:///{tmp_path}/store.db"))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == ["closed"]

    with wrap_every_backend(slow):
        run(main())
    _gone()
    assert opening.open_backend is not slow


async def _open(url: str) -> e.AsyncStore:
    return await e.open_async(url)


def test_closing_ends_the_threads_and_answers_who_waits(url: str) -> None:
    async def main() -> None:
        store = await e.open_async(url)
        threads = [await store.thread(f"t{number}") for number in range(20)]
        for thread in threads:
            thread.state["x"] = 1
        offloaded: Any = store.core.backend
        async with busy(offloaded._writer, 1):
            commits = [asyncio.ensure_future(thread.commit()) for thread in threads]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
            late = [asyncio.ensure_future(thread.commit("late")) for thread in threads[:3]]
            reads = [asyncio.ensure_future(store.thread("x")) for _ in range(3)]
            await asyncio.sleep(0)
        made = await asyncio.gather(*commits, return_exceptions=True)
        assert all(isinstance(version, e.Version) for version in made), "they came before the end"
        await closing
        for outcome in await asyncio.gather(*late, *reads, return_exceptions=True):
            assert isinstance(outcome, StoreClosedError | e.InvalidStateError), outcome
        thread = threads[-1]
        for verb in (thread.refresh, store.verify, lambda: store.thread("a"), lambda: thread.commit("x")):
            with pytest.raises(StoreClosedError):
                await verb()

    run(main())
    _gone()


def test_cancelling_close_closes_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        store = await e.open_async(f"sqlite:///{tmp_path}/store.db")
        thread = await store.thread("a")
        thread.state["x"] = 1
        await thread.commit()
        offloaded: Any = store.core.backend
        async with busy(offloaded._writer, 1):
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            assert not closing.done(), "it waits until it is done"
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(StoreClosedError):
            offloaded.blocking.find("", "a")

    run(main())
    _gone()


def test_a_store_that_nobody_closed_leaves_no_threads() -> None:
    async def main() -> None:
        store = await e.open_async("memory:")
        thread = await store.thread("a")
        thread.state["x"] = 1
        await thread.commit()
        # On threads of its own, for what is written blocking.
        assert (await store.resume("a")).thread == "a"
        gone.append(weakref.ref(store.core.backend))

    gone: list[Any] = []
    run(main())
    # The thread that gave the last answer may still hold it for a moment.
    for _ in range(1_000):
        gc.collect()
        if gone[0]() is None:
            break
        time.sleep(0.01)
    assert gone[0]() is None
    _gone()


# ── event loops and processes ────────────────────────────────────────────────────────────────────


def test_one_event_loop_after_another(url: str) -> None:
    async def opened() -> e.AsyncStore:
        return await e.open_async(url)

    async def step(store: e.AsyncStore, number: int) -> None:
        thread = await store.thread("a")
        assert thread.state.get("n", 0) == number
        thread.state["n"] = number + 1
        await thread.commit()

    store = asyncio.run(opened())
    for number in range(5):
        run(step(store, number))
    asyncio.run(store.close())
    _gone()


def test_event_loops_in_several_threads(url: str) -> None:
    store = asyncio.run(_open(url))
    failed: list[BaseException] = []

    async def work(number: int) -> None:
        async def one(task: int) -> None:
            own = await store.thread(f"own {number} {task}")
            shared = await store.thread("shared")
            for turn in range(5):
                own.messages.append({"id": f"{turn}"})
                await own.commit()
                await shared.update(_count)

        await asyncio.gather(*(one(task) for task in range(3)))

    def loop(number: int) -> None:
        try:
            run(work(number))
        except BaseException as error:
            failed.append(error)

    loops = [threading.Thread(target=loop, args=(number,)) for number in range(3)]
    for each in loops:
        each.start()
    for each in loops:
        each.join(60)
    assert failed == []

    async def look() -> None:
        async with store:
            assert (await store.thread("shared")).state["n"] == 45
            for number in range(3):
                for task in range(3):
                    own = await store.thread(f"own {number} {task}")
                    assert [item["id"] for item in await own.messages.read()] == list("01234")
            assert (await store.verify()).ok

    run(look())


def _count(draft: Any) -> None:
    draft["n"] = draft.get("n", 0) + 1


def test_a_loop_that_ends_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """Somebody stops the loop and closes it while a thread of the store is at work for it."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = asyncio.run(_open(url))
    offloaded: Any = store.core.backend
    driver, go, begun = offloaded.blocking, threading.Event(), threading.Event()
    append = driver.append

    def held(*args: Any) -> None:
        begun.set()
        assert go.wait(30)
        append(*args)

    async def prepare() -> e.AsyncThread:
        thread = await store.thread("a")
        thread.state["x"] = 1
        await thread.commit()
        thread.state["x"] = 2
        return thread

    loop = asyncio.new_event_loop()
    thread = loop.run_until_complete(prepare())
    driver.append = held
    task = loop.create_task(thread.commit())
    loop.run_until_complete(asyncio.to_thread(begun.wait, 30))
    loop.run_until_complete(loop.shutdown_default_executor())
    # Its end is what this is about: no complaint that the task was pending.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    go.set()
    del driver.append

    async def after() -> None:
        async with store:
            again = await store.thread("a")
            assert again.state["x"] in (1, 2)
            # That commit is still under way, or done: nobody can tell.
            await again.update(_count)
            assert (await store.verify()).ok

    run(after())
    _gone()


def test_asyncio_run_that_is_left_with_commits_under_way(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    commits: list[asyncio.Task[Any]] = []

    async def main() -> None:
        store = await e.open_async(url, durability="process")
        for number in range(30):
            thread = await store.thread(f"t{number}")
            thread.state["x"] = 1
            commits.append(asyncio.ensure_future(thread.commit()))
        await asyncio.sleep(0)

    run(main())
    assert all(task.done() for task in commits)
    with e.open(url) as store:
        there = {info.name for info in store.threads()}
        assert store.verify().ok
    for number, task in enumerate(commits):
        if not task.cancelled():
            assert f"t{number}" in there, "acknowledged"


def test_a_child_made_by_fork_is_told_to_open_the_store_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def write(store: e.AsyncStore, name: str) -> None:
        thread = await store.thread(name)
        thread.state["pid"] = os.getpid()
        await thread.commit()

    store = asyncio.run(_open(url))
    run(write(store, "before"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                asyncio.run(write(store, "child"))
            except e.StoreClosedError as error:
                status = 0 if "open it again" in str(error) else 2
        finally:
            os._exit(status)
    run(write(store, "parent"))
    assert os.waitpid(child, 0)[1] == 0

    async def look() -> None:
        async with store:
            pids = {name: (await store.thread(name)).state["pid"] for name in ("before", "parent")}
            assert pids == {"before": os.getpid(), "parent": os.getpid()}
            assert (await store.thread("child")).head is None
            assert (await store.verify()).ok

    run(look())


def test_closed_before_fork_is_closed_after_it() -> None:
    store = asyncio.run(_open("memory:"))
    asyncio.run(store.close())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            core: Any = store.core
            with pytest.raises(StoreClosedError):
                asyncio.run(core.backend.find("", "a"))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


# ── the wrong colour ─────────────────────────────────────────────────────────────────────────────


def _raises(what: Callable[[], Any], naming: str) -> None:
    with pytest.raises(UsageError, match=naming):
        what()


def test_an_async_object_taken_for_a_blocking_one_names_the_blocking_opener() -> None:
    opening = e.open_async("memory:")
    with pytest.raises(UsageError, match=r"everthread\.open\(\)"), opening:
        """Never reached."""
    _raises(lambda: opening.thread("a"), "await everthread.open_async")
    assert not hasattr(opening, "__wrapped__")

    async def main() -> None:
        async with opening as store:
            with pytest.raises(UsageError, match=r"everthread\.open\(\)"), store:
                """Never reached."""
            thread = await store.thread("a")
            thread.messages.append({"id": "1"})
            await thread.commit()
            for log in (thread.messages, (await thread.at(1)).messages):
                _raises(lambda log=log: list(log), "async for")  # type: ignore[misc]
                _raises(lambda log=log: log[0], "await log.read")  # type: ignore[misc]
                _raises(lambda log=log: log[-20:], "await log.read")  # type: ignore[misc]
                _raises(lambda log=log: reversed(log), "await log.read")  # type: ignore[misc]
            with pytest.raises(UsageError, match=r"everthread\.open\(\)"), thread.step("s"):
                """Never reached."""
            async with thread.step("s") as step:
                _raises(lambda: step.messages[0], "await")
            stream = store.events("s")
            _raises(lambda: list(stream), "async for")
            _raises(lambda: len(stream), "await stream.count")
            assert stream
            with pytest.raises(TypeError):
                iter(store.threads())  # type: ignore[call-overload]

    run(main())


def test_a_blocking_object_taken_for_an_async_one_names_the_async_opener() -> None:
    async def main() -> None:
        with e.open("memory:") as store:
            with pytest.raises(UsageError, match="open_async"):
                async with store:
                    """Never reached."""
            with pytest.raises(UsageError, match="open_async"):
                await store
            thread = store.thread("a")
            with pytest.raises(UsageError, match="open_async"):
                await thread
            thread.messages.append({"id": "1"})
            thread.commit()
            for log in (thread.messages, thread.at(1).messages):
                with pytest.raises(UsageError, match="open_async"):
                    await _each(log)
            with pytest.raises(UsageError, match="open_async"):
                async with thread.step("s"):
                    """Never reached."""
            with pytest.raises(UsageError, match="open_async"):
                await thread.at(1)
            with pytest.raises(UsageError, match="open_async"):
                await _each(store.events("s"))

    run(main())


async def _each(items: Any) -> list[Any]:
    return [item async for item in items]


def test_threads_of_two_colours_dont_merge(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def main() -> None:
        async with e.open_async(url) as store:
            mine = await store.thread("a")
            mine.state["x"] = 1
            await mine.commit()
            with e.open(url) as blocking, pytest.raises(UsageError):
                await mine.merge(blocking.thread("a"))  # type: ignore[arg-type]

    run(main())


def test_a_store_that_was_forgotten_after_folds_leaves_no_thread(tmp_path: Path) -> None:
    async def main() -> None:
        store = await e.open_async(f"sqlite:///{tmp_path}/store.db", durability="process")
        store.core.folder.records_max = 2
        thread = await store.thread("a")
        for number in range(8):
            thread.state["n"] = number
            await thread.commit()

    run(main())
    gc.collect()
    _gone()
