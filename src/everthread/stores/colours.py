"""What differs by colour in the drivers of network stores: the few things that can't be written once.

Such a driver is written by hand in ``stores/<name>/aio``; ``stores/<name>/sync`` is generated from it by
``tools/twin.py``, which takes the branch that fits of every ``if ASYNC:`` and drops ``Async`` from names and
``_async`` from those of the functions here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: True in the source; a branch on it is resolved when the twin is generated.
ASYNC: Final = True


async def pause_async(seconds: float) -> None:
    # Only who is async pays for the import.
    import asyncio

    await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    time.sleep(seconds)


async def aside_async(call: Callable[..., T], *args: Any) -> T:
    """What a blocking call returns, made on a thread of its own."""
    from everthread.stores.offload import run_in_thread

    return await run_in_thread(call, *args)


def aside(call: Callable[..., T], *args: Any) -> T:
    return call(*args)


class Gate:
    """Lets so many through at a time; the others wait in line."""

    def __init__(self, places: int) -> None:
        # Every commit goes through here: a queue of places is quicker than a semaphore, which is Python code.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(places):
            self._free.put(None)

    def enter(self, timeout_s: float) -> bool:
        """Wait for a place. False if none came free for so long."""
        try:
            self._free.get(timeout=timeout_s)
        except Empty:
            return False
        return True

    def leave(self) -> None:
        self._free.put(None)


class AsyncGate:
    """The same for tasks, in whichever event loops they run."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def enter(self, timeout_s: float | None) -> bool:
        import asyncio

        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, turn))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(turn)
        except BaseException as error:
            with self._lock:
                kept = [entry for entry in self._waiting if entry[1] is not turn]
                given = len(kept) == len(self._waiting)
                self._waiting = deque(kept)
            if given:
                # The place was handed over at the same moment: somebody else shall have it.
                self.leave()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def leave(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    return
                loop, turn = self._waiting.popleft()
            try:
                loop.call_soon_threadsafe(_hand_over, turn)
            except RuntimeError:
                # That loop has ended, and with it whoever waited.
                continue
            return


def _hand_over(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
