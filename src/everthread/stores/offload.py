"""Blocking drivers for async callers: threads that a store owns, and how their callers wait.

Cancelling a caller withdraws its call if that hasn't begun. A call that has begun is waited for, so that
after a cancellation nothing goes on behind the caller's back.

``apsw.aio`` isn't used: it awaits each statement of a connection, while a verb of the contract is a whole
transaction, and commits of several tasks share one.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from everthread import process
from everthread.errors import StoreClosedError, StoreUnavailableError
from everthread.stores.contract import Backend, NewRow

T = TypeVar("T")

#: Threads that read.
READERS_MAX = 4


class Job(Future[Any]):
    """A call for another thread, and the future of its result."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.call = call
        self.args = args

    def run(self) -> None:
        """Make the call, unless its caller has withdrawn it."""
        if self.set_running_or_notify_cancel():
            self.finish(*self.outcome())

    def outcome(self) -> tuple[Any, BaseException | None]:
        """What the call returns, or raises."""
        try:
            return self.call(*self.args), None
        except BaseException as error:
            return None, error

    def finish(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.set_result(value)
        elif isinstance(error, StopIteration):
            # asyncio's futures refuse this one, and the caller would wait for ever.
            self.set_exception(RuntimeError(f"{error!r} from a store"))
        else:
            self.set_exception(error)

    async def result_async(self) -> Any:
        """Wait for the result. A cancellation withdraws the call, or waits until it has ended."""
        try:
            return await asyncio.wrap_future(self)
        except asyncio.CancelledError:
            if not self.cancel():
                await self.ended()
            raise

    async def ended(self) -> None:
        """Wait until the call has ended, however often the caller is cancelled meanwhile."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        self.add_done_callback(lambda _: loop.call_soon_threadsafe(event.set))
        while not event.is_set():
            with suppress(asyncio.CancelledError):
                await event.wait()


class Worker:
    """Threads that take calls from one queue; started when they are needed."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        #: Calls that were submitted and haven't ended.
        self._pending = 0
        self._stopped = False
        self._generation = process.generation

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call it on a thread and wait for the answer. Raises :class:`StoreClosedError` after a stop."""
        result: T = await self.submit(Job(call, args)).result_async()
        return result

    async def run_surely(self, call: Callable[[], object]) -> None:
        """As :meth:`run`, but a cancellation doesn't withdraw it: it waits until the call has ended."""
        job = self.submit(Job(call, ()))
        try:
            await asyncio.shield(asyncio.wrap_future(job))
        except asyncio.CancelledError:
            await job.ended()
            raise

    def submit(self, job: Job) -> Job:
        # The threads aren't in a child, where the call would wait for ever.
        process.check_not_forked(self._generation)
        with self._lock:
            if self._stopped:
                raise StoreClosedError("this store is closed; open it again")
            # More pending calls than threads: none of the threads would take this one at once.
            if self._threads < self._threads_max and self._pending >= self._threads:
                self._start()
            self._pending += 1
            self._queue.put(job)
        return job

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError as error:
            # With at least one thread every call is made, if later.
            if not self._threads:
                raise StoreUnavailableError(f"no thread can be started: {error}; try again later") from error
            return
        self._threads += 1

    def stop(self) -> None:
        """Take no more calls; the threads end when the queue is empty."""
        if self._generation != process.generation:
            return
        with self._lock:
            if not self._stopped:
                self._stopped = True
                for _ in range(self._threads):
                    self._queue.put(None)

    def _work(self) -> None:
        # No call is kept in a local variable here while the thread waits: it may hold the last reference to
        # a store.
        while self._serve(self._queue.get()):
            pass

    def _serve(self, job: Job | None) -> bool:
        """Make one call; ``False`` if the thread is to end."""
        if job is None:
            return False
        if job.set_running_or_notify_cancel():
            outcome = job.outcome()
            # First: the caller that gets the answer may submit its next call at once.
            self._ended(1)
            job.finish(*outcome)
        else:
            self._ended(1)
        return True

    def _ended(self, calls: int) -> None:
        with self._lock:
            self._pending -= calls


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a call on a thread of its own: for async drivers, which have no threads otherwise."""
    job = Job(call, args)
    try:
        threading.Thread(target=job.run, name="everthread-aside", daemon=True).start()
    except RuntimeError as error:
        raise StoreUnavailableError(f"no thread can be started: {error}; try again later") from error
    result: T = await job.result_async()
    return result


class Offload:
    """What the async form of a store runs on; the verbs themselves are generated (``offloaded``)."""

    def __init__(self, blocking: Backend) -> None:
        from everthread.stores.group_commit import GroupCommitter

        self.blocking = blocking
        self._writer = GroupCommitter("everthread-writer", blocking)
        self._readers = Worker("everthread-reader", READERS_MAX)
        # If nobody closes the store, its threads must still end with it.
        weakref.finalize(self, _stop, self._writer, self._readers).atexit = False

    def stop(self) -> None:
        """Take no more calls, and let the threads end. For whoever closes the driver itself."""
        _stop(self._writer, self._readers)

    async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._readers.run(call, *args)

    async def append(self, line: int, row: NewRow) -> None:
        await self._writer.append(line, row)

    async def _close(self, close: Callable[[], None]) -> None:
        """Close after everything that was written before, even if cancelled, and take no more calls."""
        try:
            await self._writer.run_surely(close)
        finally:
            self.stop()


def _stop(*workers: Worker) -> None:
    for worker in workers:
        worker.stop()
