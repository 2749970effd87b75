"""Sessions for async callers: begun, ended and looked at on threads, so that no event loop waits for a disk.

What a session does in between is its own, blocking code: a twin of it would have to be awaited at every step,
and its calls take no longer than a small write.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from everthread import process
from everthread.errors import UsageError
from everthread.stores.workers import Worker

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.sessions.session import AgentSession

S = TypeVar("S")
T = TypeVar("T")

_THREADS_MAX = 4


class Aside(Generic[S]):
    """A blocking store beside an async one, on the same driver: made when it is first needed."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._worker = Worker("everthread-sessions", _THREADS_MAX)
        self._lock = process.fork_lock()
        self._made: S | None = None
        # Of a store that nobody closed: its threads must not outlive it.
        weakref.finalize(self, self._worker.stop).atexit = False

    async def run(self, call: Callable[[S], T]) -> T:
        """Call it with the store, on a thread. What has begun is finished before a cancellation is told."""
        return await self._worker.run(lambda: call(self._store()))

    async def run_surely(self, call: Callable[[], object]) -> None:
        """Call it on a thread, also if the caller is cancelled."""
        await self._worker.run_surely(call)

    def _store(self) -> S:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def stop(self) -> None:
        """Take no more calls; the driver is closed by the store that it belongs to."""
        self._worker.stop()


class BeginningSession:
    """A run that is about to begin: ``async with store.session(name) as s``, or awaited, and closed."""

    def __init__(self, aside: Aside[Any], name: str | None, options: dict[str, Any]) -> None:
        self._aside = aside
        self._name = name
        self._options = options
        self._session: AgentSession | None = None

    def __await__(self) -> Generator[Any, None, AgentSession]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AgentSession:
        begun: list[AgentSession] = []
        name, options = self._name, self._options
        try:
            # The thread may remember this call for long: neither this object nor the session is part of it
            # then, so that a session that was forgotten ends.
            await self._aside.run(lambda store: begun.append(store.session(name, **options)))
        except BaseException as error:
            # Cancelled while it began: then it has begun now, and nobody else will ever end it.
            for session in begun:
                await self._aside.run_surely(partial(session.close, error=error))
            raise
        session = self._session = begun.pop()
        return session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        session = self._session
        assert session is not None, "left what was entered"
        swallowed: list[bool] = []
        await self._aside.run_surely(lambda: swallowed.append(session.__exit__(kind, error, trace)))
        return swallowed[0]

    def __enter__(self) -> NoReturn:
        raise UsageError("a session of an async store is entered with: async with")

    def __exit__(self, *error: object) -> None:
        """Never reached."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            # Python itself looks for these, and takes absence for an answer.
            raise AttributeError(name)
        raise UsageError(
            f"the session hasn't begun, and has no {name!r} yet: async with store.session(…) as s"
        )
