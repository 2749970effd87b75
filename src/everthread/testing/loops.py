"""Event loops for blocking callers: each call runs on one that nobody else uses meanwhile."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["aside", "run"]

T = TypeVar("T")

Request = tuple[Callable[[], Any], asyncio.Future[Any]]

_requests: contextvars.ContextVar[list[Request]] = contextvars.ContextVar("requests")


class _Loop:
    """An event loop, and what went wrong in it without reaching anybody."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.problems: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        requests: list[Request] = []
        context = contextvars.copy_context()
        context.run(_requests.set, requests)
        task = self.loop.create_task(coroutine, context=context)
        task.add_done_callback(lambda _: self.loop.stop())
        try:
            while not task.done():
                self.loop.run_forever()
                while requests:
                    _answer(*requests.pop())
        finally:
            self._leave(task)
        if self.problems:
            problems, self.problems = self.problems, []
            raise AssertionError(f"went wrong in an event loop, and nobody was told: {problems}")
        return task.result()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        """Whatever interrupted this call: let nothing of it be left in the loop."""
        if not task.done():
            task.cancel()
            while not task.done():
                self.loop.run_forever()
        if not task.cancelled():
            task.exception()

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _answer(function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)


class _Pool:
    """The loops that nobody uses at the moment."""

    def __init__(self) -> None:
        self._idle: list[_Loop] = []
        self._abandoned: list[_Loop] = []
        self._pid = os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            # After fork(2): those are the parent's. Closing them here would disturb it.
            self._pid, self._abandoned, self._idle = os.getpid(), self._idle, []
        try:
            loop = self._idle.pop()
        except IndexError:
            loop = _Loop()
        try:
            return loop.run(coroutine)
        finally:
            self._idle.append(loop)

    def close(self) -> None:
        while self._pid == os.getpid() and self._idle:
            self._idle.pop().close()


_pool = _Pool()
atexit.register(_pool.close)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return what it returns, from any thread.

    Raises :class:`AssertionError` if something went wrong in the loop that reached nobody.
    """
    return _pool.run(coroutine)


async def aside(function: Callable[[], T]) -> T:
    """Within a coroutine that :func:`run` runs: call a function outside of the loop, where it may block or
    run coroutines in its turn."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    _requests.get().append((function, answer))
    loop.stop()
    return await answer
