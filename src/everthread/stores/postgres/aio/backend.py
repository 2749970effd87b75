"""The store contract on PostgreSQL."""

from __future__ import annotations

from everthread.stores.colours import ASYNC
from everthread.stores.contract import Backend, Capabilities
from everthread.stores.postgres.aio.connections import AsyncConnections
from everthread.stores.postgres.aio.knowledge import Shelves
from everthread.stores.postgres.lasting import Keeping
from everthread.stores.postgres.settings import Settings
from everthread.stores.signals import Probe, Signals

if ASYNC:
    from collections.abc import Callable
    from typing import Any

    from everthread.stores.workers import Aside


class AsyncPostgresBackend(Shelves):
    """Tables in one schema of a database. Safe for any number of tasks, processes and hosts at once.

    Making one connects to nothing: that happens when something is asked.
    """

    capabilities = Capabilities(durable=True, multi_process=True, backup=True, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.connections = AsyncConnections(settings)
        self.signals = Signals(lambda: _watcher(settings))
        #: What the server said about how it keeps what it acknowledges, when the store was opened.
        self.keeping: Keeping | None = None
        if ASYNC:
            self._blocking: Backend | None = None
            self._aside = Aside()

    @property
    def url(self) -> str:
        return self.settings.shown

    if ASYNC:

        @property
        def blocking(self) -> Backend:
            """For the one read that can't be awaited; it connects when that is done for the first time."""
            if self._blocking is None:
                from everthread.stores.postgres.sync.backend import PostgresBackend

                self._blocking = PostgresBackend(self.settings._replace(pool_max=2))
            return self._blocking

        async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
            return await self._aside.run(call, *args)

    async def close(self) -> None:
        await self.connections.close()
        if ASYNC and self._blocking is not None:
            self._blocking.close()
        self.signals.close()


def _watcher(settings: Settings) -> Probe:
    # Only who waits for others pays for the import.
    from everthread.stores.postgres.watching import Watcher

    return Watcher(settings)
