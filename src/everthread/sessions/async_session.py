"""Sessions for async callers: begun, ended and looked at on threads, so that no event loop waits for a disk.

What a session does in between is its own, blocking code: a twin of it would have to be awaited at every step,
and its calls take no longer than a small write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from everthread.errors import UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from everthread.sessions.session import AgentSession


class WorkerThreads(Protocol):
    """Where a session begins and ends: the blocking store and the threads of an async one."""

    async def run_whole(self, call: Callable[[Any], Any]) -> Any:
        """Call it with the store; what has begun is finished before a cancellation is raised."""

    async def run_surely(self, call: Callable[[], object]) -> None:
        """Call it, also if the caller is cancelled."""


class PendingSession:
    """A run that is about to begin: ``async with store.session(name) as s``, or awaited, and closed."""

    def __init__(self, workers: WorkerThreads, name: str | None, options: dict[str, Any]) -> None:
        self._workers = workers
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
            await self._workers.run_whole(lambda store: begun.append(store.session(name, **options)))
        except BaseException as error:
            # Cancelled while it began: then it has begun now, and nobody else will ever end it.
            for session in begun:
                await self._workers.run_surely(partial(session.close, error=error))
            raise
        session = self._session = begun.pop()
        return session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        session = self._session
        assert session is not None, "left what was entered"
        swallowed: list[bool] = []
        await self._workers.run_surely(lambda: swallowed.append(session.__exit__(kind, error, trace)))
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
