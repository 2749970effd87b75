"""Blocking drivers for async callers: the threads that a store owns, and commits that share one sync.

One thread writes; what queues up while the disk is busy goes into the next transaction together. A few more
threads read. Cancelling a caller withdraws its job if it hasn't begun; one that has begun is waited for, so
that after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from everthread import process
from everthread.errors import StoreClosedError, StoreUnavailableError
from everthread.stores.contract import Backend, NewRow
from everthread.stores.jobs import AppendJob, Job, Outcome, SureJob, deliver, outcome_of

T = TypeVar("T")

#: Appends that share a transaction at most, and threads that read.
GROUP_MAX = 256
READERS_MAX = 4

#: With so many appends queued, the event loop lets the thread that writes take them before it goes on, if
#: that comes soon. Else that thread, which needs Python's lock to begin, would wait until the loop has
#: nothing more to do, and the one would always rest while the other works.
HANDOVER = 16
_HANDOVERS = frozenset(range(HANDOVER, 4 * HANDOVER + 1, HANDOVER))
_HANDOVER_S = 0.0002

#: Takes the arguments of several appends, answers with what each would have raised or ``None``.
Group = Callable[[Sequence[Any]], list[Any]]


class Worker:
    """Threads that take jobs from one queue. A child made by fork(2) gets threads of its own."""

    def __init__(self, name: str, threads_max: int, group: Group | None = None) -> None:
        self._make = partial(_Crew, name, threads_max, group)
        self._crew = self._make()

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call it on a thread and wait for the answer. Raises :class:`StoreClosedError` after a stop."""
        job = Job(call, args, asyncio.get_running_loop())
        self._put(job)
        result: T = await job
        return result

    async def run_surely(self, call: Callable[[], object]) -> None:
        """As :meth:`run`, but a cancellation doesn't withdraw it: it waits until the call is done."""
        job = SureJob(call, (), asyncio.get_running_loop())
        self._put(job)
        await job

    def _put(self, job: Job) -> None:
        crew = self._crew
        if crew.generation != process.generation:
            # The threads, and whatever they were doing, belong to the parent.
            stopped = crew.stopped
            crew = self._crew = self._make()
            crew.stopped = stopped
        crew.put(job)

    def stop(self) -> None:
        """Let the threads end when they have done what is queued."""
        if self._crew.generation == process.generation:
            self._crew.stop()
        else:
            self._crew.stopped = True


class _Crew:
    """The threads of a worker in one process, started as they are needed."""

    def __init__(self, name: str, threads_max: int, group: Group | None) -> None:
        self.generation = process.generation
        self.stopped = False
        self._name = name
        self._threads_max = threads_max
        self._group = group
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        #: Jobs that were put and aren't done.
        self._open = 0
        #: Released when many were taken from the queue, for who waits for just that.
        self._taken = threading.Lock()
        self._taken.acquire()

    def put(self, job: Job) -> None:
        with self._lock:
            if self.stopped:
                raise StoreClosedError("this store is closed; open it again")
            # More open jobs than threads: none of the threads would come to this one at once.
            if self._threads < self._threads_max and self._open >= self._threads:
                self._start()
            self._open += 1
            self._queue.put(job)
        # With many more of them queued that thread is at work, and comes when it is done.
        if self._queue.qsize() in _HANDOVERS and self._group is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        # What is left of an earlier time doesn't count.
        self._taken.acquire(blocking=False)
        self._taken.acquire(timeout=_HANDOVER_S)

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
        # Nothing is held here while it waits: a job may lead to a store that nobody else remembers.
        while self._serve(self._queue.get()):
            pass

    def _serve(self, job: Job | None) -> bool:
        """Do a job, and in a group what has come meanwhile; ``False`` if there are to be no more."""
        if job is None:
            return False
        queue = self._queue
        if self._group is None or queue.empty():
            self._do_one(job)
            return True
        jobs = [job]
        while len(jobs) < GROUP_MAX and not queue.empty():
            more = queue.get()
            if more is None:
                queue.put(None)
                break
            jobs.append(more)
        if len(jobs) >= HANDOVER and self._taken.locked():
            self._taken.release()
        self._do(jobs)
        return True

    def _do_one(self, job: Job) -> None:
        if not job.claim():
            self._close_jobs(1)
            return
        _, value, error = outcome_of(job)
        self._close_jobs(1)
        try:
            job.tell(job.finish, value, error)
        except RuntimeError:
            # That loop has ended, and with it whoever waited.
            return

    def _do(self, jobs: list[Job]) -> None:
        """All of them, in their order. Appends that follow each other share a transaction."""
        done: list[Outcome] = []
        at = 0
        while at < len(jobs):
            together = [jobs[at]]
            at += 1
            if isinstance(together[0], AppendJob):
                while at < len(jobs) and isinstance(jobs[at], AppendJob):
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
        deliver(done)

    def _close_jobs(self, count: int) -> None:
        # With all its threads started nobody asks how many jobs are open.
        if count and self._threads_max > 1:
            with self._lock:
                self._open -= count

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        if len(jobs) == 1 or self._group is None:
            return [outcome_of(job) for job in jobs]
        try:
            answers = self._group([job.args for job in jobs])
            return [(job, None, answer) for job, answer in zip(jobs, answers, strict=True)]
        except BaseException as error:
            return [(job, None, error) for job in jobs]


class Aside:
    """For a driver that is async itself: a thread for what would hold up the event loop.

    It ends when it has nothing more to do, so that nobody needs to see to that.
    """

    def __init__(self) -> None:
        self._lock = process.fork_lock()
        self._worker: Worker | None = None
        self._users = 0
        self._generation = process.generation

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            if self._generation != process.generation:
                # Those who use it are in the parent.
                self._generation, self._worker, self._users = process.generation, None, 0
            worker = self._worker = self._worker or Worker("everthread-aside", 1)
            self._users += 1
        try:
            return await worker.run(call, *args)
        finally:
            with self._lock:
                if self._worker is worker:
                    self._users -= 1
                    if not self._users:
                        self._worker = None
                        worker.stop()


class Workers:
    """What the async form of a store runs on; the verbs themselves are generated (``offloaded``)."""

    def __init__(self, blocking: Backend) -> None:
        self.blocking = blocking
        self._writer = Worker("everthread-writer", 1, partial(_append_all, blocking))
        self._readers = Worker("everthread-reader", READERS_MAX)
        # A store that nobody closed: its threads must not outlive it.
        weakref.finalize(self, _stop, self._writer, self._readers).atexit = False

    def stop(self) -> None:
        """Take no more jobs, and let the threads end. For who closes the driver itself."""
        _stop(self._writer, self._readers)

    async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._readers.run(call, *args)

    async def append(self, line: int, row: NewRow) -> None:
        # As run(), without a call more: this is on the way of every commit.
        job = AppendJob(self.blocking.append, (line, row), asyncio.get_running_loop())
        self._writer._put(job)
        await job

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
