"""Cancelling a task at a chosen call of the store, at a chosen moment of that call.

Moments: ``before`` the call has begun; ``queued``, while it waits for a thread of the store; ``begun``, while
a thread is at work on it (and once more, to see that the task waits for the thread all the same); ``after``,
when it is done and the task hasn't got the answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import everthread as e
from everthread.records.opening import open_backend
from everthread.store_async import AsyncStore
from everthread.stores.offload import READERS_MAX, Worker
from everthread.stores.offloaded import Offloaded
from everthread.testing.faults import VERBS

MOMENTS = ("before", "queued", "begun", "after")


class Tripwire:
    """An async backend that cancels whoever makes the ``nth`` call from :meth:`arm` on."""

    def __init__(self, real: Offloaded) -> None:
        self._wrapped = real
        self._left = 0
        self._moment = ""
        self._task: asyncio.Task[Any] | None = None
        #: The call that was cut, as ``verb:moment``.
        self.cut: str | None = None

    def arm(self, nth: int, moment: str, task: asyncio.Task[Any]) -> None:
        self._left, self._moment, self._task, self.cut = nth, moment, task, None

    def disarm(self) -> None:
        self._left = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name not in VERBS or name in ("every_line", "close"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            if asyncio.current_task() is self._task:
                self._left -= 1
                if self._left == 0:
                    self.cut = f"{name}:{self._moment}"
                    cut = cast("Callable[..., Awaitable[Any]]", getattr(self, f"_cut_{self._moment}"))
                    return await cut(name, found, args, options)
            return await found(*args, **options)

        return call

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _cut_before(self, name: str, verb: Any, args: Any, options: Any) -> Any:
        self._cancel()
        await asyncio.sleep(0)
        raise AssertionError("not cancelled")

    async def _cut_after(self, name: str, verb: Any, args: Any, options: Any) -> Any:
        # A refusal is an answer too.
        with suppress(Exception):
            await verb(*args, **options)
        self._cancel()
        await asyncio.sleep(0)
        raise AssertionError("not cancelled")

    async def _cut_queued(self, name: str, verb: Any, args: Any, options: Any) -> Any:
        async with busy(self._wrapped._writer, 1), busy(self._wrapped._readers, READERS_MAX):
            asyncio.get_running_loop().call_soon(self._cancel)
            return await verb(*args, **options)

    async def _cut_begun(self, name: str, verb: Any, args: Any, options: Any) -> Any:
        loop = asyncio.get_running_loop()
        driver: Any = self._wrapped.blocking
        # Waiting isn't done on a thread, looking whether to wait is.
        verb_below = "newer" if name == "wait" else name
        work, go, over = getattr(driver, verb_below), threading.Event(), threading.Event()

        def cancel_twice() -> None:
            self._cancel()
            loop.call_soon(self._cancel)
            loop.call_soon(loop.call_soon, go.set)

        def held(*args: Any, **options: Any) -> Any:
            loop.call_soon_threadsafe(cancel_twice)
            assert go.wait(30)
            try:
                return work(*args, **options)
            finally:
                over.set()

        setattr(driver, verb_below, held)
        try:
            return await verb(*args, **options)
        finally:
            delattr(driver, verb_below)
            assert over.is_set(), f"{name} goes on behind the back of whoever was cancelled"


@asynccontextmanager
async def busy(worker: Worker, threads: int) -> AsyncIterator[None]:
    """Within the block all threads of a worker are at work on something else."""
    loop, go = asyncio.get_running_loop(), threading.Event()
    begun = asyncio.Semaphore(0)

    def hold() -> None:
        loop.call_soon_threadsafe(begun.release)
        assert go.wait(30)

    holding = [asyncio.ensure_future(worker.run(hold)) for _ in range(threads)]
    try:
        for _ in holding:
            await begun.acquire()
        yield
    finally:
        go.set()
        for each in holding:
            # Shielded from the cancellation that this is about.
            while not each.done():
                try:
                    await asyncio.shield(each)
                except asyncio.CancelledError:
                    continue


async def cancelled_at(
    tripwire: Tripwire, nth: int, moment: str, verb: Callable[[], Coroutine[Any, Any, Any]]
) -> bool:
    """Run ``verb``, cancelling it at its ``nth`` call. False if it has fewer, and so came to its end."""
    task = asyncio.ensure_future(verb())
    tripwire.arm(nth, moment, task)
    await asyncio.wait([task])
    tripwire.disarm()
    if tripwire.cut is None:
        task.result()
        return False
    assert task.cancelled(), f"{tripwire.cut}: {task!r}"
    return True


class Suspensions:
    """Awaits a coroutine, and cancels its task as soon as it is suspended for the ``nth`` time."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], nth: int) -> None:
        self._inner = coroutine
        self._left = nth
        self.cut = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        resume: Callable[[], Any] = partial(self._inner.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as stop:
                return stop.value
            self._left -= 1
            if self._left == 0:
                self.cut = True
                loop.call_soon(task.cancel)
            try:
                yield awaited
            except BaseException as error:
                resume = partial(self._inner.throw, error)
            else:
                resume = partial(self._inner.send, None)


async def cancelled_when_suspended(nth: int, verb: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
    """Run ``verb``, cancelling it when it waits for the ``nth`` time, whatever for. False if it doesn't."""
    suspensions = Suspensions(verb(), nth)

    async def wait() -> None:
        await suspensions

    task = asyncio.ensure_future(wait())
    await asyncio.wait([task])
    if not suspensions.cut:
        task.result()
        return False
    assert task.cancelled(), repr(task)
    return True


async def open_tripped(url: str, **options: Any) -> tuple[AsyncStore, Tripwire]:
    """As :func:`everthread.open_async`, and the wire."""
    tripwire = Tripwire(Offloaded(open_backend(url, "process")))
    return e.AsyncStore(cast("Any", tripwire), **options), tripwire


def run(main: Coroutine[Any, Any, Any]) -> None:
    """As :func:`asyncio.run`, and fail if anything went wrong that nobody was told of."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        await main

    asyncio.run(watched())
    assert problems == [], problems
