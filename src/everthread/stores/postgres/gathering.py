"""Appends of many tasks at once, sent together.

A few are under way at a time, each alone as long as nobody waits; what comes meanwhile waits, and goes
together then: one round trip, one transaction, one flush for all of them. Each row is taken or refused on its
own terms.

Cancelling a caller takes its row back if that hasn't been sent; one that was sent is waited for, so that
after a cancellation nothing goes on behind the caller's back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakKeyDictionary

import psycopg

from everthread.errors import EverthreadError
from everthread.stores.contract import NewRow

#: What goes together at most. Whoever is held up by a lock holds up those that it was sent with.
ROWS_MAX = 32
BYTES_MAX = 1 << 20
LANES_MAX = 3

Place = tuple[int, NewRow]
#: Appends one row and says what became of it; told whether it may have landed already.
One = Callable[[int, NewRow, bool], Awaitable[int]]
#: The same with several, in one transaction: if it raises, none of them landed, or nobody knows.
Many = Callable[[Sequence[Place]], Awaitable[Sequence[int]]]


class _Waiting:
    """A row on its way, and who waits for its answer."""

    __slots__ = ("answer", "begun", "over", "place", "waiter")

    def __init__(self, place: Place, answer: asyncio.Future[int]) -> None:
        self.place = place
        self.answer = answer
        self.begun = self.over = False
        self.waiter: asyncio.Future[None] | None = None

    def finish(self, answer: int | BaseException) -> None:
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
    """The appends of a store. Tasks of one event loop share requests."""

    def __init__(self, connections_max: int, one: One, many: Many) -> None:
        # Some connections are left for whoever reads.
        self._lanes = max(1, min(connections_max // 2, LANES_MAX))
        self._one, self._many = one, many
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering] = WeakKeyDictionary()

    async def append(self, line: int, row: NewRow) -> int:
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

    async def append(self, line: int, row: NewRow) -> int:
        if self._under_way < self._lanes:
            self._under_way += 1
            try:
                return await self._one(line, row, False)
            finally:
                self._go_on()
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

    def _go_on(self) -> None:
        """One lane is free: those who wait go."""
        self._under_way -= 1
        if self._waiting:
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._send(self._next()))
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

    async def _send(self, together: list[_Waiting]) -> None:
        answers: Sequence[int | BaseException] = ()
        try:
            answers = await self._answers([entry.place for entry in together])
        except BaseException as error:
            answers = [error] * len(together)
            if not isinstance(error, Exception):
                raise
        finally:
            for entry, answer in zip(together, answers, strict=True):
                entry.finish(answer)
            self._go_on()

    async def _answers(self, places: Sequence[Place]) -> Sequence[int | BaseException]:
        if len(places) == 1:
            return (await self._one(*places[0], False),)
        try:
            return await self._many(places)
        except EverthreadError as error:
            if not isinstance(error.__cause__, psycopg.Error):
                raise
        # Each by itself: nobody is refused because of another, and what landed is recognised.
        alone = (self._one(*place, True) for place in places)
        return await asyncio.gather(*alone, return_exceptions=True)


async def _over(entry: _Waiting) -> None:
    """Wait for the end of what was sent, whoever else wants to cancel that."""
    while not entry.over:
        entry.waiter = asyncio.get_running_loop().create_future()
        try:
            await entry.waiter
        except asyncio.CancelledError:
            continue
