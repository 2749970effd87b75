"""Blocking drivers for async callers: the threads that a store owns, and commits that share one sync.

One thread writes; what queues up while the disk is busy goes into the next transaction together. A few more
threads read. Cancelling a caller withdraws its job if it hasn't begun; one that has begun is waited for, so
that after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from everthread.errors import StoreClosedError, StoreUnavailableError
from everthread.model import process
from everthread.stores.contract import Backend, NewRow
from everthread.stores.wakers import telling

T = TypeVar("T")

#: Appends that share a transaction at most, and threads that read.
GROUP_MAX = 256
READERS_MAX = 4

#: Takes the arguments of several appends, answers with what each would have raised or ``None``.
Group = Callable[[Sequence[Any]], list[Any]]


class Job:
    """One call on its way through a thread, and what its caller awaits.

    A future with what a store needs of one. When the answer is there the task goes on at once, not with the
    next turn of the event loop; and cancelling a job that has begun waits for its end. What isn't said
    otherwise is touched by the event loop only.
    """

    __slots__ = (
        "_asyncio_future_blocking", "_cancelled", "_error", "_value", "_waiting",
        "args", "call", "loop", "over", "tell", "token",
    )  # fmt: skip

    def __init__(
        self, call: Callable[..., Any], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.call = call
        self.args = args
        self.loop = loop
        #: How its event loop is told from a thread.
        self.tell = telling(loop)
        #: Taken by whoever decides: the thread that begins the job, or the caller that withdraws it.
        self.token = [None]
        self.over = False
        self._value: Any = None
        self._error: BaseException | None = None
        #: What there is to raise for whoever cancelled it.
        self._cancelled: asyncio.CancelledError | None = None
        self._waiting: tuple[Callable[[Job], object], Context | None] | None = None
        self._asyncio_future_blocking = False

    def claim(self) -> bool:
        try:
            self.token.pop()
        except IndexError:
            return False
        return True

    def finish(self, value: Any, error: BaseException | None) -> None:
        """In the event loop: hand over what came of it, and let the caller go on."""
        self.over, self._value, self._error = True, value, error
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            callback, context = waiting
            if context is None:
                callback(self)
            else:
                context.run(callback, self)

    def finish_soon(self, value: Any, error: BaseException | None) -> None:
        """As :meth:`finish`, but the caller goes on with the next turn of the loop."""
        self.over, self._value, self._error = True, value, error
        self._wake_soon()

    def _wake_soon(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.loop.call_soon(waiting[0], self, context=waiting[1])

    # ── what a task asks of what it awaits ───────────────────────────────────────────────────

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.over:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def add_done_callback(self, callback: Callable[[Job], object], *, context: Context | None = None) -> None:
        self._waiting = (callback, context)
        if self.over:
            self._wake_soon()

    def cancel(self, msg: object = None) -> bool:
        """Withdraw it; if it has begun, let it come to its end and then tell the caller of this instead."""
        if self.over:
            return False
        self._note_cancelled(msg)
        if self.claim():
            self.over = True
            self._wake_soon()
        return True

    def _note_cancelled(self, msg: object) -> None:
        self._cancelled = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)

    def result(self) -> Any:
        error = self._cancelled or self._error
        if error is None:
            return self._value
        try:
            raise error
        finally:
            # Else it would hold the job that holds it, by its traceback.
            del error, self


class SureJob(Job):
    """One that is done whether or not its caller is cancelled."""

    __slots__ = ()

    def cancel(self, msg: object = None) -> bool:
        if self.over:
            return False
        self._note_cancelled(msg)
        return True


class AppendJob(Job):
    """One that shares a transaction with others of its kind, if they come together."""

    __slots__ = ()


Outcome = tuple[Job, Any, BaseException | None]


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

    def put(self, job: Job) -> None:
        with self._lock:
            if self.stopped:
                raise StoreClosedError("this store is closed; open it again")
            # More open jobs than threads: none of the threads would come to this one at once.
            if self._threads < self._threads_max and self._open >= self._threads:
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
        self._do(jobs)
        return True

    def _do_one(self, job: Job) -> None:
        if not job.claim():
            self._close_jobs(1)
            return
        _, value, error = _outcome(job)
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
        _deliver(done)

    def _close_jobs(self, count: int) -> None:
        # With all its threads started nobody asks how many jobs are open.
        if count and self._threads_max > 1:
            with self._lock:
                self._open -= count

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        if len(jobs) == 1 or self._group is None:
            return [_outcome(job) for job in jobs]
        try:
            answers = self._group([job.args for job in jobs])
            return [(job, None, answer) for job, answer in zip(jobs, answers, strict=True)]
        except BaseException as error:
            return [(job, None, error) for job in jobs]


def _outcome(job: Job) -> Outcome:
    try:
        return job, job.call(*job.args), None
    except StopIteration as error:
        # The one exception that no future takes.
        return job, None, RuntimeError(f"{error!r} from a store")
    except BaseException as error:
        return job, None, error


def _deliver(done: list[Outcome]) -> None:
    """One wake-up per event loop, however many jobs it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in done:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for outcomes in by_loop.values():
        try:
            outcomes[0][0].tell(_finish_all, outcomes)
        except RuntimeError:
            # That loop has ended, and with it whoever waited.
            continue


def _finish_all(outcomes: list[Outcome]) -> None:
    waiting = iter(outcomes)
    try:
        for job, result, error in waiting:
            job.finish(result, error)
    finally:
        # An interrupt met the task of one of them: the others get their answers all the same.
        for job, result, error in waiting:
            job.finish_soon(result, error)


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
