"""How a thread tells an event loop that something is done.

asyncio's own way, ``call_soon_threadsafe``, makes a handle, sends a byte through a pair of sockets and reads
until there is none: several system calls, each of which a commit waits for. Where the system has event
counters (Linux), each loop gets one instead, which takes one call to ring and one to read.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Calls a function with its arguments in the event loop, soon. From any thread; what is told to a loop that
#: has ended is lost, or raises RuntimeError: nobody waits for it any more.
Tell = Callable[..., object]


class Waker:
    """The counter of one event loop, and what is to be called when it is rung."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            loop.add_reader(self._counter, self._answer)
        except BaseException:
            os.close(self._counter)
            raise
        # Not before: a thread may ring it at any time. Nor later: a number that is free is soon somebody's.
        weakref.finalize(loop, os.close, self._counter).atexit = False

    def tell(self, call: Callable[..., object], *args: object) -> None:
        # In this order: who is rung finds it.
        self._calls.append((call, args))
        os.eventfd_write(self._counter, 1)

    def _answer(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._counter)
        calls = self._calls
        try:
            # What is told meanwhile has its turn later: timers and others shall have theirs in between.
            for _ in range(len(calls)):
                call, args = calls.popleft()
                call(*args)
        finally:
            # An interrupt met one of them: the others have their turn all the same.
            if calls:
                os.eventfd_write(self._counter, 1)


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Tell] = weakref.WeakKeyDictionary()
#: The loop that was asked for last: mostly there is one.
_last: list[tuple[weakref.ref[asyncio.AbstractEventLoop], Tell]] = []


def telling(loop: asyncio.AbstractEventLoop) -> Tell:
    """How to tell the running event loop something from another thread."""
    for known, tell in _last:
        if known() is loop:
            return tell
    found = _wakers.get(loop)
    if found is None:
        try:
            found = Waker(loop).tell
        except (AttributeError, OSError, NotImplementedError):
            # No counter to be had here, or a loop that can't wait for one.
            return loop.call_soon_threadsafe
        _wakers[loop] = found
    _last[:] = [(weakref.ref(loop), found)]
    return found
