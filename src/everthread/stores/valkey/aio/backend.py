"""The contract on Valkey."""

from __future__ import annotations

from everthread.stores.colours import ASYNC
from everthread.stores.contract import Capabilities
from everthread.stores.valkey.aio.calls import AsyncCalls
from everthread.stores.valkey.aio.copies import Copies
from everthread.stores.valkey.aio.texts import NoTexts
from everthread.stores.valkey.lasting import Keeping

if ASYNC:
    from collections.abc import Callable
    from typing import Any

    from everthread.stores.contract import Backend
    from everthread.stores.workers import Aside


class AsyncValkeyBackend(Copies, NoTexts):
    """One server, or a cluster. Safe for several threads, tasks, processes and hosts at once."""

    #: The server does nothing else while it takes rows: so many bytes keep it busy for a quarter of a second.
    capabilities = Capabilities(
        durable=True, multi_process=True, backup=True, cold=True, cold_rows_max=1 << 26
    )

    def __init__(self, calls: AsyncCalls, keeping: Keeping) -> None:
        super().__init__(calls)
        self.keeping = keeping
        if ASYNC:
            self._blocking: Backend | None = None
            self._aside = Aside()

    @property
    def url(self) -> str:
        return self._settings.url

    if ASYNC:

        @property
        def blocking(self) -> Backend:
            """The blocking driver, for the one read that can't be awaited. Connects when it is first used."""
            if self._blocking is None:
                from everthread.stores.valkey.sync.backend import ValkeyBackend
                from everthread.stores.valkey.sync.calls import Calls

                calls = Calls(self._settings)
                calls.follow(self._calls.places)
                self._blocking = ValkeyBackend(calls, self.keeping)
            return self._blocking

        async def aside(self, call: Callable[..., Any], *args: Any) -> Any:
            return await self._aside.run(call, *args)

    async def close(self) -> None:
        self._calls.close()
        if ASYNC and self._blocking is not None:
            self._blocking.close()
        self.signals.close()
