"""The threads beneath an async store."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.errors import StoreClosedError, StoreUnavailableError
from everthread.stores.group_commit import GroupCommitter, _Append
from everthread.stores.offload import Worker, run_in_thread
from tests.unit.threads.tripwire import busy, run


def test_jobs_are_done_in_their_order_and_answered_each() -> None:
    async def main() -> None:
        worker, done = Worker("everthread-test", 1), []
        answers = await asyncio.gather(
            *(worker.run(lambda n: done.append(n) or n * n, number) for number in range(100))
        )
        assert done == list(range(100))
        assert answers == [number * number for number in range(100)]
        worker.stop()

    run(main())


def test_an_exception_goes_to_whoever_asked() -> None:
    async def main() -> None:
        worker = Worker("everthread-test", 1)
        for error in (ZeroDivisionError("x"), KeyError(1), StopAsyncIteration()):

            def fail(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)):
                await worker.run(fail)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await worker.run(next, iter(()))
        assert await worker.run(int, "7") == 7
        worker.stop()

    run(main())


def test_threads_are_started_as_they_are_needed() -> None:
    async def main() -> None:
        worker = Worker("everthread-counted", 4)
        for _ in range(50):
            await worker.run(int)
        assert _count("everthread-counted") == 1, "one after the other needs one thread"
        async with busy(worker, 3):
            assert _count("everthread-counted") == 3
            assert await worker.run(int) == 0, "a busy thread is in nobody's way"
            assert _count("everthread-counted") == 4
        worker.stop()

    run(main())


def _count(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_a_job_put_while_all_are_busy_waits_for_the_first_that_is_free() -> None:
    async def main() -> None:
        worker = Worker("everthread-test", 2)
        async with busy(worker, 2):
            waiting = asyncio.ensure_future(worker.run(int))
            await asyncio.sleep(0)
            assert not waiting.done()
        assert await waiting == 0
        worker.stop()

    run(main())


def test_a_cancelled_job_that_hasnt_begun_is_never_done() -> None:
    async def main() -> None:
        worker, done = Worker("everthread-test", 1), []
        async with busy(worker, 1):
            tasks = [asyncio.ensure_future(worker.run(done.append, number)) for number in range(10)]
            await asyncio.sleep(0)
            for task in tasks[:5]:
                task.cancel()
            await asyncio.wait(tasks[:5])
            assert all(task.cancelled() for task in tasks[:5]), "at once, however long the others take"
        await asyncio.gather(*tasks[5:])
        assert done == [5, 6, 7, 8, 9]
        worker.stop()

    run(main())


def test_timeouts_that_meet_a_job_that_has_begun() -> None:
    """Two of them, one within the other: each is told by its own, when the job is over."""

    async def main() -> None:
        worker, go, done = Worker("everthread-test", 1), threading.Event(), []

        async def both() -> str:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(None) as outer:
                    try:
                        async with asyncio.timeout(None) as inner:

                            def run_out() -> None:
                                outer.reschedule(loop.time() + 0.01)
                                inner.reschedule(loop.time() + 0.02)
                                loop.call_later(0.05, go.set)

                            def work() -> None:
                                # However late a worker begins: only then time runs.
                                loop.call_soon_threadsafe(run_out)
                                assert go.wait(30)
                                done.append(1)

                            await worker.run(work)
                    except TimeoutError:
                        return "inner"
            except TimeoutError:
                return "outer"
            return "none"

        assert await both() == "outer"
        assert done == [1]
        assert await worker.run(int) == 0
        worker.stop()

    run(main())


def test_after_a_stop_what_is_queued_is_done_and_the_rest_refused() -> None:
    async def main() -> None:
        worker = Worker("everthread-stopped", 3)
        async with busy(worker, 3):
            queued = [asyncio.ensure_future(worker.run(int, number)) for number in range(6)]
            await asyncio.sleep(0)
            worker.stop()
            worker.stop()
            with pytest.raises(StoreClosedError):
                await worker.run(int)
        assert await asyncio.gather(*queued) == list(range(6))
        with pytest.raises(StoreClosedError):
            await worker.run(int)

    run(main())
    for thread in threading.enumerate():
        if thread.name == "everthread-stopped":
            thread.join(30)
    assert _count("everthread-stopped") == 0


def test_without_any_thread_it_says_so_and_with_one_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        worker = Worker("everthread-test", 2)
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        done: list[Any] = []
        with pytest.raises(StoreUnavailableError, match="thread"):
            await worker.run(done.append, 1)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert await worker.run(int) == 0
        assert done == [], "what was refused isn't done later"
        async with busy(worker, 1):
            monkeypatch.setattr(threading.Thread, "start", refuse)
            later = asyncio.ensure_future(worker.run(int))
            await asyncio.sleep(0)
        monkeypatch.undo()
        assert await later == 0
        worker.stop()

    run(main())


def test_a_save_is_one_hop_and_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job for the writing thread, one wake-up of the event loop, one suspension of the task."""

    async def main() -> None:
        counted: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        put, wake = Worker.submit, loop.call_soon_threadsafe

        def putting(self: Worker, job: Any) -> Any:
            counted["jobs"] += 1
            return put(self, job)

        def waking(*args: Any, **options: Any) -> Any:
            counted["wake-ups"] += 1
            return wake(*args, **options)

        async with e.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            thread = await store.thread("t")
            for number in range(3):
                thread.state["n"] = number
                thread.messages.append({"content": "x"})
                await thread.commit()
            monkeypatch.setattr(Worker, "submit", putting)
            monkeypatch.setattr(loop, "call_soon_threadsafe", waking)
            thread.state["n"] = 17
            thread.messages.append({"content": "y"})
            waits = 0
            saving = thread.commit(label="counted").__await__()
            with contextlib.suppress(StopIteration):
                while True:
                    awaited = saving.send(None)
                    waits += 1
                    over = asyncio.Event()
                    awaited.add_done_callback(lambda _, over=over: over.set())
                    await over.wait()
            assert (counted, waits) == ({"jobs": 1, "wake-ups": 1}, 1)
            assert thread.head.label == "counted"
            monkeypatch.undo()

    run(main())


def test_the_task_goes_on_in_its_own_context_and_says_why_it_was_cancelled() -> None:
    async def main() -> None:
        worker, variable = Worker("everthread-test", 1), contextvars.ContextVar("variable", default="none")

        async def ask(name: str) -> tuple[str, str, asyncio.Task[Any] | None]:
            variable.set(name)
            answer = await worker.run(str.upper, name)
            return answer, variable.get(), asyncio.current_task()

        tasks = [asyncio.ensure_future(ask(name)) for name in ("a", "b", "c")]
        assert [await task for task in tasks] == [
            (n.upper(), n, t) for n, t in zip("abc", tasks, strict=True)
        ]
        assert variable.get() == "none"
        async with busy(worker, 1):
            task = asyncio.ensure_future(worker.run(int))
            await asyncio.sleep(0)
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError, match="enough"):
                await task
        with pytest.raises(ZeroDivisionError) as caught:
            await worker.run(divmod, 1, 0)
        assert caught.value.__traceback__ is not None
        worker.stop()

    run(main())


class _Driver:
    """Takes every append."""

    def append(self, line: int, row: Any) -> None:
        pytest.fail("these come together")

    def append_all(self, rows: Any) -> list[None]:
        return [None] * len(rows)


def test_an_interrupt_of_one_task_leaves_the_others_their_answers() -> None:
    """Answers that come together are handed on together."""
    answers: list[Any] = []

    async def main() -> None:
        worker = GroupCommitter("everthread-test", _Driver())

        async def ask(number: int) -> None:
            await worker.submit(_Append(int, (number,))).result_async()
            if number == 1:
                raise KeyboardInterrupt
            answers.append(number)

        async with busy(worker, 1):
            tasks = [asyncio.ensure_future(ask(number)) for number in range(5)]
            await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert isinstance(tasks[1].exception(), KeyboardInterrupt)
        worker.stop()

    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    # Whoever goes on with the same loop finds everybody served.
    loop.run_until_complete(task)
    loop.close()
    assert sorted(answers) == [0, 2, 3, 4]


def test_what_is_done_aside_leaves_no_thread() -> None:
    named = "everthread-aside"

    def work(number: int) -> str:
        if number == 2:
            raise ValueError("two")
        return threading.current_thread().name

    async def main() -> None:
        for _ in range(3):
            done = await asyncio.gather(
                *(run_in_thread(work, number) for number in range(4)), return_exceptions=True
            )
            assert [done[0], done[1], done[3]] == [named] * 3
            assert repr(done[2]) == repr(ValueError("two"))

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == named:
            thread.join(30)
    assert named not in {thread.name for thread in threading.enumerate()}


def test_a_loop_doesnt_wait_for_a_thread_that_is_at_work() -> None:
    async def main() -> None:
        worker = GroupCommitter("everthread-test", _Driver())
        begun, go_on = threading.Event(), threading.Event()
        first = asyncio.ensure_future(worker.run(lambda: begun.set() or go_on.wait(60)))
        await asyncio.sleep(0)
        assert begun.wait(60)
        jobs = [worker.submit(_Append(pytest.fail, ())) for _ in range(100)]
        # Here, although the thread has taken none of them.
        assert worker._queue.qsize() == 100
        go_on.set()
        assert await first
        for job in jobs:
            await job.result_async()
        worker.stop()

    run(main())
