"""Blocking drivers for async callers: the threads that a store owns, and commits that share one sync.

One thread writes; what queues up while the disk is busy goes into the next transaction together. A few more
threads read. Cancelling a caller withdraws its job if it hasn't begun; one that has begun is waited for, so
that after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from everthread.errors import StoreClosedError

T = TypeVar("T")

#: Appends that share a transaction at most, and threads that read.
GROUP_MAX = 256
READERS_MAX = 4


class Job:
    """One call on its way through a thread. What isn't said otherwise is touched by the event loop only."""

    __slots__ = ("args", "call", "future", "loop", "over", "token", "waiter")

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.call = call
        self.args = args
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        #: Taken by whoever decides: the thread that begins the job, or the caller that withdraws it.
        self.token = [None]
        self.over = False
        self.waiter: asyncio.Future[None] | None = None

    def claim(self) -> bool:
        try:
            self.token.pop()
        except IndexError:
            return False
        return True

    def finish(self, result: Any, error: BaseException | None) -> None:
        """In the event loop: hand over what came of it."""
        self.over = True
        if not self.future.done():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Worker:
    """Threads that take jobs from one queue, started as they are needed."""

    def __init__(
        self, name: str, threads_max: int, group: Callable[[Sequence[Any]], list[Any]] | None = None
    ):
        self._name = name
        self._threads_max = threads_max
        self._group = group
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._pid = os.getpid()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call it on a thread and wait for the answer."""
        if self._pid != os.getpid():
            raise StoreClosedError("this store was opened before fork(2); open it again in the new process")
        job = Job(call, args, asyncio.get_running_loop())
        self._queue.put(job)
        if not self._idle and len(self._threads) < self._threads_max:
            self._start()
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not job.claim():
                await self._over(job)
            raise
        return result

    async def _over(self, job: Job) -> None:
        """Wait for the end of a job that has begun, whoever else wants to cancel that."""
        while not job.over:
            job.waiter = job.loop.create_future()
            try:
                await job.waiter
            except asyncio.CancelledError:
                continue

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while True:
            self._idle += 1
            job = self._queue.get()
            self._idle -= 1
            if job is None:
                # Also for the next thread.
                self._queue.put(None)
                return
            jobs = [job]
            while self._group is not None and len(jobs) < GROUP_MAX and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                jobs.append(more)
            self._do([job for job in jobs if job.claim()])

    def _do(self, jobs: list[Job]) -> None:
        done: list[tuple[Job, Any, BaseException | None]] = []
        at = 0
        while at < len(jobs):
            together = [jobs[at]]
            # Appends that follow each other share a transaction; the order of everything is kept.
            while self._group is not None and jobs[at].call is _APPEND and at + len(together) < len(jobs):
                following = jobs[at + len(together)]
                if following.call is not _APPEND:
                    break
                together.append(following)
            at += len(together)
            done.extend(self._outcomes(together))
        _deliver(done)

    def _outcomes(self, jobs: list[Job]) -> list[tuple[Job, Any, BaseException | None]]:
        try:
            if jobs[0].call is _APPEND:
                assert self._group is not None
                answers = self._group([job.args for job in jobs])
                return [(job, None, answer) for job, answer in zip(jobs, answers, strict=True)]
            return [(jobs[0], jobs[0].call(*jobs[0].args), None)]
        except BaseException as error:
            return [(job, None, error) for job in jobs]

    def stop(self) -> None:
        """Let the threads end when they have done what is queued."""
        if self._pid == os.getpid():
            self._queue.put(None)


def _APPEND(*args: Any) -> None:  # noqa: N802 - a mark, never called
    """Stands for the appends that go into a group."""


def _deliver(done: list[tuple[Job, Any, BaseException | None]]) -> None:
    """One wake-up per event loop, however many jobs it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Any, BaseException | None]]] = {}
    for outcome in done:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, outcomes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_finish_all, outcomes)
        except RuntimeError:
            # That loop has ended, and with it whoever waited.
            continue


def _finish_all(outcomes: list[tuple[Job, Any, BaseException | None]]) -> None:
    for job, result, error in outcomes:
        job.finish(result, error)


class Workers:
    """What the async form of a store runs on; the verbs themselves are generated (``offloaded``)."""

    def __init__(self, append_all: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._writer = Worker("everthread-writer", 1, append_all)
        self._readers = Worker("everthread-reader", READERS_MAX)

    async def _append(self, line: int, row: Any) -> None:
        await self._writer.run(_APPEND, line, row)

    def _stop(self) -> None:
        self._writer.stop()
        self._readers.stop()
