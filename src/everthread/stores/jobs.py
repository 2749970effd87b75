"""Calls on their way through a thread of a store, and how their callers get the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

from everthread.stores.wakers import telling


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


def outcome_of(job: Job) -> Outcome:
    try:
        return job, job.call(*job.args), None
    except StopIteration as error:
        # The one exception that no future takes.
        return job, None, RuntimeError(f"{error!r} from a store")
    except BaseException as error:
        return job, None, error


def deliver(done: list[Outcome]) -> None:
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
