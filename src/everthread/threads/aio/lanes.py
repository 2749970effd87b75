"""Those who change one thread through the same store at once go one after another, in the order of coming.

Compare-and-set alone is kept by whoever is quickest: beside some that read and write in a millisecond, one
that takes five never comes to its turn, and of many each reads in vain most of the time. So who has met
somebody else waits in line, and so does who comes while a line stands.

It is a courtesy and nothing more: who has waited for long goes ahead of the one in front, which may be
waiting for it. What keeps the data right is compare-and-set.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from everthread.model import process
from everthread.threads.colours import ASYNC

#: Nobody waits for longer.
_PATIENCE_S = 1.0

if ASYNC:
    import asyncio


class _Waiter:
    """One that waits to be called."""

    def __init__(self) -> None:
        if ASYNC:
            self._called = asyncio.get_running_loop().create_future()
        else:
            self._called = threading.Event()

    async def wait(self) -> None:
        if ASYNC:
            await asyncio.wait((self._called,), timeout=_PATIENCE_S)
        else:
            self._called.wait(_PATIENCE_S)

    @property
    def called(self) -> bool:
        if ASYNC:
            return self._called.done()
        return self._called.is_set()

    def call(self) -> None:
        if ASYNC:
            self._called.set_result(None)
        else:
            self._called.set()


class Lanes:
    """The lines before the threads of one store, by name."""

    def __init__(self) -> None:
        self._mutex = process.fork_lock()
        self._generation = process.generation
        #: Where there is an entry somebody is at it: who, and those who wait.
        self._lanes: dict[str, tuple[Any, deque[_Waiter]]] = {}

    def busy(self, name: str) -> bool:
        return name in self._lanes

    async def enter(self, name: str) -> bool:
        """Wait in line. False for who is at it already: it doesn't wait for itself."""
        me = _me()
        with self._mutex:
            if self._generation != process.generation:
                # Those who stood here are in the process that this one was forked from.
                self._generation, self._lanes = process.generation, {}
            if name not in self._lanes:
                self._lanes[name] = me, deque()
                return True
            owner, waiting = self._lanes[name]
            if owner == me:
                return False
            waiter = _Waiter()
            waiting.append(waiter)
        try:
            await waiter.wait()
        except BaseException:
            self._step_out(name, waiter, waiting)
            raise
        with self._mutex:
            if not waiter.called:
                # The one in front takes long, or was interrupted on its way out.
                waiting.remove(waiter)
            self._lanes[name] = me, waiting
        return True

    def _step_out(self, name: str, waiter: _Waiter, waiting: deque[_Waiter]) -> None:
        """Wait no longer; if it was called just now, the next one is."""
        with self._mutex:
            if not waiter.called:
                waiting.remove(waiter)
            elif name in self._lanes and self._lanes[name] == (None, waiting):
                self._call_next(name, waiting)

    def leave(self, name: str) -> None:
        """Let the next one go ahead."""
        with self._mutex:
            owner, waiting = self._lanes.get(name, (None, deque()))
            # Unless another one did, having waited for long.
            if owner == _me():
                self._call_next(name, waiting)

    def _call_next(self, name: str, waiting: deque[_Waiter]) -> None:
        if waiting:
            # Nobody's until the one that is called notes itself.
            self._lanes[name] = None, waiting
            waiting.popleft().call()
        else:
            del self._lanes[name]


def _me() -> Any:
    if ASYNC:
        return asyncio.current_task()
    return threading.get_ident()
