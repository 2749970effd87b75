"""Appends of many tasks at once to a server, sent together.

A few are under way at a time, each alone as long as nobody waits; what comes meanwhile waits, and goes
together then: one round trip and one flush for all of them. Each row is taken or refused on its own terms.

Cancelling a caller takes its row back if that hasn't been sent; one that was sent is waited for, so that
after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from everthread.stores.contract import NewRow

#: What goes together at most.
ROWS_MAX = 64
BYTES_MAX = 1 << 20
#: A request that takes longer holds up nobody else: it waits for a lock, or the server is away.
LANE_S = 0.05

Place = tuple[int, NewRow]
#: Appends one row, and says what the server answered.
One = Callable[[int, NewRow], Awaitable[Any]]
#: The same with several: an answer for each, or what is to be raised.
Many = Callable[[Sequence[Place]], Awaitable[Sequence[Any]]]


class _Waiting:
    """A row on its way, and who waits for its answer."""

    __slots__ = ("answer", "begun", "over", "place", "waiter")

    def __init__(self, place: Place, answer: asyncio.Future[Any]) -> None:
        self.place = place
        self.answer = answer
        self.begun = self.over = False
        self.waiter: asyncio.Future[None] | None = None

    def finish(self, answer: Any) -> None:
        self.over = True
        if not self.answer.done():
            if isinstance(answer, asyncio.CancelledError):
                self.answer.cancel()
            elif isinstance(answer, BaseException):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class Gatherings:
    """The appends of a store. Tasks of one event loop share requests, of which ``lanes`` are under way."""

    def __init__(self, lanes: int, one: One, many: Many) -> None:
        self._lanes = lanes
        self._one, self._many = one, many
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering] = WeakKeyDictionary()

    async def append(self, line: int, row: NewRow) -> Any:
        """What the server answered. Raises what ``one`` would have raised."""
        loop = asyncio.get_running_loop()
        gathering = self._of_loops.get(loop)
        if gathering is None:
            gathering = self._of_loops[loop] = _Gathering(self._lanes, self._one, self._many)
        return await gathering.append(line, row)


class _Gathering:
    """The appends of one event loop. ``lanes``: so many requests are under way at a time."""

    def __init__(self, lanes: int, one: One, many: Many) -> None:
        self._lanes, self._one, self._many = lanes, one, many
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._sending: set[asyncio.Task[None]] = set()

    async def append(self, line: int, row: NewRow) -> Any:
        if self._under_way < self._lanes:
            lane = _Lane(self)
            try:
                return await self._one(line, row)
            finally:
                lane.leave()
        entry = _Waiting((line, row), asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            if entry.begun:
                await _over(entry)
            else:
                self._waiting.remove(entry)
            raise

    def enter(self) -> None:
        self._under_way += 1

    def leave(self) -> None:
        """A lane is free: those who wait go."""
        self._under_way -= 1
        if self._waiting:
            task = asyncio.get_running_loop().create_task(self._send(self._next(), _Lane(self)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _next(self) -> list[_Waiting]:
        together: list[_Waiting] = []
        size = 0
        while self._waiting and len(together) < ROWS_MAX:
            size += len(self._waiting[0].place[1].body)
            if together and size > BYTES_MAX:
                break
            entry = self._waiting.popleft()
            entry.begun = True
            together.append(entry)
        return together

    async def _send(self, together: list[_Waiting], lane: _Lane) -> None:
        answers: Sequence[Any] = ()
        try:
            if len(together) == 1:
                answers = (await self._one(*together[0].place),)
            else:
                answers = await self._many([entry.place for entry in together])
        except BaseException as error:
            answers = [error] * len(together)
            if not isinstance(error, Exception):
                raise
        finally:
            for entry, answer in zip(together, answers, strict=True):
                entry.finish(answer)
            lane.leave()


class _Lane:
    """A request under way, until it is answered or has taken long."""

    __slots__ = ("_gathering", "_timer")

    def __init__(self, gathering: _Gathering) -> None:
        gathering.enter()
        self._gathering: _Gathering | None = gathering
        self._timer = asyncio.get_running_loop().call_later(LANE_S, self.leave)

    def leave(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            self._timer.cancel()
            gathering.leave()


async def _over(entry: _Waiting) -> None:
    """Wait for the end of what was sent, whoever else wants to cancel that."""
    while not entry.over:
        entry.waiter = asyncio.get_running_loop().create_future()
        try:
            await entry.waiter
        except asyncio.CancelledError:
            continue
