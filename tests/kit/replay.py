"""A durable engine as small as can be: it keeps what was asked and answered in order, and replays it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any


class Killed(BaseException):
    """The process is gone: nothing that is asked from here on happens."""


class NotTheSame(BaseException):
    """Replayed, the code asked for something else than before."""


class Replay:
    """Answers are given one at a time, in the order in which they were given before; then in a random one."""

    def __init__(self, seed: int = 0) -> None:
        #: Which call, what it was, and what became of it.
        self.events: list[tuple[int, str, Any, BaseException | None]] = []
        #: What was really done, replays apart.
        self.done: list[str] = []
        self._random = random.Random(seed)
        self._begin()

    def _begin(self) -> None:
        self._asked: list[str] = []
        self._open: dict[int, tuple[asyncio.Future[Any], Callable[[], Awaitable[Any]]]] = {}
        self._dead = False

    def durable(self, name: str, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The function, as a workflow calls it."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._dead:
                raise Killed(name)
            index = len(self._asked)
            self._asked.append(f"{name}{args}{sorted(kwargs.items())}")
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._open[index] = (answer, lambda: function(*args, **kwargs))
            try:
                return await answer
            finally:
                self._open.pop(index, None)

        return call

    async def play(
        self, workflow: Callable[[], Awaitable[Any]], *, dies_at: int = -1, before: bool = False
    ) -> Any:
        """Run a workflow to its end. At the given event it is killed: before that is done, or after, when
        nobody has heard of it yet."""
        self._begin()
        task = asyncio.ensure_future(workflow())
        at = 0
        while True:
            await _settle()
            if task.done():
                return task.result()
            if at < len(self.events):
                index, asked, value, error = self.events[at]
                if index >= len(self._asked) or self._asked[index] != asked:
                    await self._kill(task)
                    raise NotTheSame(f"{self._asked[index : index + 1]} instead of {asked}")
            else:
                if not self._open:
                    await self._kill(task)
                    raise NotTheSame("the workflow waits for nothing")
                index = self._random.choice(sorted(self._open))
                if at == dies_at and before:
                    return await self._kill(task)
                value, error = await self._do(index)
                if at == dies_at:
                    return await self._kill(task)
                self.events.append((index, self._asked[index], value, error))
            at += 1
            answer, _ = self._open.get(index, (None, None))
            if answer is not None and not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(value)

    async def _do(self, index: int) -> tuple[Any, BaseException | None]:
        self.done.append(self._asked[index])
        try:
            return await self._open[index][1](), None
        except Exception as error:
            return None, error

    async def _kill(self, task: asyncio.Future[Any]) -> None:
        self._dead = True
        task.cancel()
        for answer, _ in list(self._open.values()):
            if not answer.done():
                answer.set_exception(Killed())
        with suppress(Killed, asyncio.CancelledError):
            await task


async def _settle() -> None:
    """Until the code has run as far as it can without an answer."""
    for _ in range(30):
        await asyncio.sleep(0)
