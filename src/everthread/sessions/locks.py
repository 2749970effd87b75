"""What sessions of async callers need instead of thread locks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from everthread.errors import UsageError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

# asyncio is loaded by those who are async: whoever uses a blocking store doesn't pay for it.


#: How many tasks take a lock in one round of an event loop.
PER_ROUND: Final = 8


class _Rounds:
    """Lets the tasks of one event loop go on in the order in which they came, a few in each round."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_admitting = False

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_admitting:
            self._is_admitting = True
            loop.call_soon(self._admit, loop)
        await waiter

    def _admit(self, loop: asyncio.AbstractEventLoop) -> None:
        admitted = 0
        while self._waiting and admitted < PER_ROUND:
            waiter = self._waiting.popleft()
            # Else its task was cancelled.
            if not waiter.done():
                waiter.set_result(None)
                admitted += 1
        self._is_admitting = bool(self._waiting)
        if self._is_admitting:
            loop.call_soon(self._admit, loop)


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, _Rounds] = WeakKeyDictionary()


async def next_round() -> None:
    """Go on in a later round of the event loop, in which only a few others do so.

    Commits that shared a sync end at the same moment: without this all of their tasks would begin what they
    do next in one round, and whatever else waits would wait for all of them.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    rounds = _rounds.get(loop)
    if rounds is None:
        rounds = _rounds[loop] = _Rounds()
    await rounds.wait(loop)


class AsyncLock:
    """A lock that belongs to a task, which may take it again. The first time it waits for its round.

    ``with lock:`` is for what doesn't await, and does nothing: no other task runs meanwhile.
    """

    def __init__(self) -> None:
        import asyncio

        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._depth = 0

    async def __aenter__(self) -> None:
        import asyncio

        me = asyncio.current_task()
        if self._owner is None or self._owner is not me:
            await next_round()
            await self._lock.acquire()
            self._owner = me
        self._depth += 1

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> None:
        """Nothing: see above."""

    def __exit__(self, *error: object) -> None:
        """Nothing: see above."""


class AsyncSignal:
    """Given once, for tasks of one event loop."""

    def __init__(self) -> None:
        import asyncio

        self._event = asyncio.Event()

    def give(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait for it, at most so long."""
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Signal:
    """The same for threads."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def give(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for it, at most so long."""
        self._event.wait(seconds)


class Entering(Generic[T]):
    """What an async verb gives that is awaited, or entered with ``async with``."""

    def __init__(self, made: Coroutine[Any, Any, T]) -> None:
        self._made = made
        self._entered: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._made.__await__()

    async def __aenter__(self) -> T:
        self._entered = await self._made
        entered: T = await self._entered.__aenter__()
        return entered

    async def __aexit__(self, *error: Any) -> Any:
        return await self._entered.__aexit__(*error)

    def __enter__(self) -> NoReturn:
        self._made.close()
        raise UsageError("this belongs to an async store and is entered with: async with")

    def __exit__(self, *error: object) -> None:
        """Never reached."""
