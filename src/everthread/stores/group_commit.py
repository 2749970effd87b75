"""Group commit: what many tasks write at once shares one sync, or one round trip.

:class:`GroupCommitter` is the thread that writes for a blocking driver. :class:`RequestGroups` does the same
for drivers that are async themselves. Either way each row is taken or refused on its own terms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from everthread.stores.contract import Backend, NewRow
from everthread.stores.offload import Job, Worker

#: Appends that share a transaction at most.
GROUP_MAX = 256

#: Rows and bytes that one request to a server holds at most.
ROWS_MAX = 64
BYTES_MAX = 1 << 20
#: A request that takes longer than this doesn't count as under way: it waits for a lock, or the server is
#: gone, and others needn't wait for it.
SLOW_S = 0.05


# ── one thread that writes ──


class _Append(Job):
    """An append: it shares a transaction with those that come right before and after it."""


class GroupCommitter(Worker):
    """The thread that writes. What queues up while the disk is busy goes into the next transaction."""

    def __init__(self, name: str, driver: Backend) -> None:
        super().__init__(name, 1)
        self._driver = driver

    async def append(self, line: int, row: NewRow) -> None:
        await self.submit(_Append(self._driver.append, (line, row))).result_async()

    def _serve(self, job: Job | None) -> bool:
        if job is None or self._queue.empty():
            return super()._serve(job)
        jobs = [job]
        while len(jobs) < GROUP_MAX and not self._queue.empty():
            following = self._queue.get()
            if following is None:
                self._queue.put(None)
                break
            jobs.append(following)
        for appends, group in groupby(jobs, lambda one: isinstance(one, _Append)):
            if appends:
                self._append_all(list(group))
            else:
                for one in group:
                    super()._serve(one)
        return True

    def _append_all(self, jobs: list[Job]) -> None:
        claimed = [job for job in jobs if job.set_running_or_notify_cancel()]
        answers: Sequence[BaseException | None] = ()
        try:
            if claimed:
                answers = self._driver.append_all([job.args for job in claimed])
        except BaseException as error:
            answers = [error] * len(claimed)
        self._ended(len(jobs))
        for job, answer in zip(claimed, answers, strict=True):
            job.finish(None, answer)


# ── requests to a server ──

Place = tuple[int, NewRow]
#: Appends one row, and returns what the server answered.
One = Callable[[int, NewRow], Awaitable[Any]]
#: The same with several: an answer for each, or what is to be raised.
Many = Callable[[Sequence[Place]], Awaitable[Sequence[Any]]]


class RequestGroups:
    """The appends of a store on a server.

    Tasks of one event loop share requests, of which ``requests_max`` are under way at a time. A request holds
    one row as long as nobody waits; what comes meanwhile waits, and goes together then.

    Cancelling a caller takes its row back if that hasn't been sent. One that was sent is waited for, so that
    after a cancellation nothing goes on behind the caller's back.
    """

    def __init__(self, requests_max: int, one: One, many: Many) -> None:
        self._requests_max = requests_max
        self._one, self._many = one, many
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopGroups] = WeakKeyDictionary()

    async def append(self, line: int, row: NewRow) -> Any:
        """What the server answered. Raises what ``one`` would have raised."""
        loop = asyncio.get_running_loop()
        groups = self._by_loop.get(loop)
        if groups is None:
            groups = self._by_loop[loop] = _LoopGroups(self._requests_max, self._one, self._many)
        return await groups.append(line, row)


class _Waiting:
    """A row that waits for a request, and whoever waits for its answer."""

    __slots__ = ("answer", "ended", "place", "sent", "waiter")

    def __init__(self, place: Place, answer: asyncio.Future[Any]) -> None:
        self.place = place
        self.answer = answer
        self.sent = self.ended = False
        self.waiter: asyncio.Future[None] | None = None

    def finish(self, answer: Any) -> None:
        self.ended = True
        if not self.answer.done():
            if isinstance(answer, asyncio.CancelledError):
                self.answer.cancel()
            elif isinstance(answer, BaseException):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def until_ended(self) -> None:
        """Wait for the end of a request that was sent, however often the caller is cancelled."""
        while not self.ended:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            except asyncio.CancelledError:
                continue


class _LoopGroups:
    """The appends of one event loop."""

    def __init__(self, requests_max: int, one: One, many: Many) -> None:
        self._requests_max, self._one, self._many = requests_max, one, many
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, line: int, row: NewRow) -> Any:
        if self._under_way < self._requests_max:
            request = _Request(self)
            try:
                return await self._one(line, row)
            finally:
                request.end()
        entry = _Waiting((line, row), asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            return await entry.answer
        except asyncio.CancelledError:
            if entry.sent:
                await entry.until_ended()
            else:
                self._waiting.remove(entry)
            raise

    def begin(self) -> None:
        self._under_way += 1

    def end(self) -> None:
        """A request has ended: the rows that wait go with the next one."""
        self._under_way -= 1
        if self._waiting:
            task = asyncio.get_running_loop().create_task(self._send(self._next(), _Request(self)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < ROWS_MAX:
            size += len(self._waiting[0].place[1].body)
            if group and size > BYTES_MAX:
                break
            entry = self._waiting.popleft()
            entry.sent = True
            group.append(entry)
        return group

    async def _send(self, group: list[_Waiting], request: _Request) -> None:
        answers: Sequence[Any] = ()
        try:
            if len(group) == 1:
                answers = (await self._one(*group[0].place),)
            else:
                answers = await self._many([entry.place for entry in group])
        except BaseException as error:
            answers = [error] * len(group)
            if not isinstance(error, Exception):
                raise
        finally:
            for entry, answer in zip(group, answers, strict=True):
                entry.finish(answer)
            request.end()


class _Request:
    """A request under way, until it is answered or has taken long."""

    __slots__ = ("_groups", "_timer")

    def __init__(self, groups: _LoopGroups) -> None:
        groups.begin()
        self._groups: _LoopGroups | None = groups
        self._timer = asyncio.get_running_loop().call_later(SLOW_S, self.end)

    def end(self) -> None:
        groups, self._groups = self._groups, None
        if groups is not None:
            self._timer.cancel()
            groups.end()
