"""Blocking drivers for async callers: the threads that a store owns, and commits that share one sync.

One thread writes; what queues up while the disk is busy goes into the next transaction together. A few more
threads read. Cancelling a caller withdraws its job if it hasn't begun; one that has begun is waited for, so
that after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from everthread.errors import StoreClosedError, StoreUnavailableError
from everthread.stores.contract import Backend, NewRow

T = TypeVar("T")

#: Appends that share a transaction at most, and threads that read.
GROUP_MAX = 256
READERS_MAX = 4

#: Takes the arguments of several appends, answers with what each would have raised or ``None``.
Group = Callable[[Sequence[Any]], list[Any]]


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


Outcome = tuple[Job, Any, BaseException | None]


class Worker:
    """Threads that take jobs from one queue. A child made by fork(2) gets threads of its own."""

    def __init__(self, name: str, threads_max: int, group: Group | None = None) -> None:
        self._make = partial(_Crew, name, threads_max, group)
        self._crew = self._make()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call it on a thread and wait for the answer. Raises :class:`StoreClosedError` after a stop."""
        job = self._put(call, args)
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not job.claim():
                await _over(job)
            raise
        return result

    async def run_surely(self, call: Callable[[], object]) -> None:
        """As :meth:`run`, but a cancellation doesn't withdraw it: it waits until the call is done."""
        job = self._put(call, ())
        try:
            await job.future
        except asyncio.CancelledError:
            await _over(job)
            raise

    def _put(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Job:
        crew = self._crew
        if crew.pid != os.getpid():
            # The threads, and whatever they were doing, belong to the parent.
            stopped = crew.stopped
            crew = self._crew = self._make()
            crew.stopped = stopped
        job = Job(call, args, asyncio.get_running_loop())
        crew.put(job)
        return job

    def stop(self) -> None:
        """Let the threads end when they have done what is queued."""
        if self._crew.pid == os.getpid():
            self._crew.stop()
        else:
            self._crew.stopped = True


async def _over(job: Job) -> None:
    """Wait for the end of a job that can't be withdrawn, whoever else wants to cancel that."""
    while not job.over:
        job.waiter = job.loop.create_future()
        try:
            await job.waiter
        except asyncio.CancelledError:
            continue


class _Crew:
    """The threads of a worker in one process, started as they are needed."""

    def __init__(self, name: str, threads_max: int, group: Group | None) -> None:
        self.pid = os.getpid()
        self.stopped = False
        self._name = name
        self._threads_max = threads_max
        self._group = group
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        #: Jobs that were put and aren't done.
        self._open = 0

    def put(self, job: Job) -> None:
        with self._lock:
            if self.stopped:
                raise StoreClosedError("this store is closed; open it again")
            # More open jobs than threads: none of the threads would come to this one at once.
            if self._open >= self._threads and self._threads < self._threads_max:
                self._start()
            self._open += 1
            self._queue.put(job)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError as error:
            # With at least one thread everything is done, if later.
            if not self._threads:
                raise StoreUnavailableError(f"no thread can be started: {error}; try again later") from error
            return
        self._threads += 1

    def stop(self) -> None:
        with self._lock:
            if not self.stopped:
                self.stopped = True
                for _ in range(self._threads):
                    self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while self._group is not None and len(jobs) < GROUP_MAX and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    self._queue.put(None)
                    break
                jobs.append(more)
            self._do(jobs)

    def _do(self, jobs: list[Job]) -> None:
        """All of them, in their order. Appends that follow each other share a transaction."""
        done: list[Outcome] = []
        at = 0
        while at < len(jobs):
            together = [jobs[at]]
            at += 1
            if together[0].call is _APPEND:
                while at < len(jobs) and jobs[at].call is _APPEND:
                    together.append(jobs[at])
                    at += 1
            elif done:
                # Whatever this takes: those who are served needn't wait for it.
                self._deliver(done)
                done = []
            claimed = [job for job in together if job.claim()]
            if claimed:
                done.extend(self._outcomes(claimed))
            self._close_jobs(len(together) - len(claimed))
        self._deliver(done)

    def _deliver(self, done: list[Outcome]) -> None:
        # Before the answers go out: who gets one may put the next job at once.
        self._close_jobs(len(done))
        _deliver(done)

    def _close_jobs(self, count: int) -> None:
        if count:
            with self._lock:
                self._open -= count

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        try:
            if jobs[0].call is _APPEND:
                assert self._group is not None
                answers = self._group([job.args for job in jobs])
                return [(job, None, answer) for job, answer in zip(jobs, answers, strict=True)]
            return [(jobs[0], jobs[0].call(*jobs[0].args), None)]
        except StopIteration as error:
            # The one exception that no future takes.
            return [(job, None, RuntimeError(f"{error!r} from a store")) for job in jobs]
        except BaseException as error:
            return [(job, None, error) for job in jobs]


def _APPEND(*args: Any) -> None:  # noqa: N802 - a mark, never called
    """Stands for the appends that go into a group."""


def _deliver(done: list[Outcome]) -> None:
    """One wake-up per event loop, however many jobs it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in done:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, outcomes in by_loop.items():
        try:
            loop.call_soon_threadsafe(_finish_all, outcomes)
        except RuntimeError:
            # That loop has ended, and with it whoever waited.
            continue


def _finish_all(outcomes: list[Outcome]) -> None:
    for job, result, error in outcomes:
        job.finish(result, error)


class Workers:
    """What the async form of a store runs on; the verbs themselves are generated (``offloaded``)."""

    def __init__(self, driver: Backend) -> None:
        self._writer = Worker("everthread-writer", 1, partial(_append_all, driver))
        self._readers = Worker("everthread-reader", READERS_MAX)
        # A store that nobody closed: its threads must not outlive it.
        weakref.finalize(self, _stop, self._writer, self._readers).atexit = False

    def stop(self) -> None:
        """Take no more jobs, and let the threads end. For who closes the driver itself."""
        _stop(self._writer, self._readers)

    async def _append(self, line: int, row: NewRow) -> None:
        await self._writer.run(_APPEND, line, row)

    async def _close(self, close: Callable[[], None]) -> None:
        """After all that was written: close, and take no more jobs. A cancellation doesn't hinder it."""
        try:
            await self._writer.run_surely(close)
        finally:
            _stop(self._writer, self._readers)


def _append_all(driver: Backend, rows: Sequence[tuple[int, NewRow]]) -> list[Exception | None]:
    # Looked up at each call: tests put other functions in its place.
    return driver.append_all(rows)


def _stop(*workers: Worker) -> None:
    for worker in workers:
        worker.stop()
