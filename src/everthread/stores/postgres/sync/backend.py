# Generated from stores/postgres/aio/backend.py by tools/twin.py: change that, then run: make twin
"""The store contract on PostgreSQL."""

from __future__ import annotations

from everthread.stores.contract import Capabilities
from everthread.stores.postgres.lasting import Keeping
from everthread.stores.postgres.settings import Settings
from everthread.stores.postgres.sync.connections import Connections
from everthread.stores.postgres.sync.knowledge import Shelves
from everthread.stores.signals import Probe, Signals


class PostgresBackend(Shelves):
    """Tables in one schema of a database. Safe for any number of tasks, processes and hosts at once.

    Making one connects to nothing: that happens when something is asked.
    """

    capabilities = Capabilities(durable=True, multi_process=True, backup=True, texts=True, cold=True)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.connections = Connections(settings)
        self.signals = Signals(lambda: _watcher(settings))
        #: What the server said about how it keeps what it acknowledges, when the store was opened.
        self.keeping: Keeping | None = None

    @property
    def url(self) -> str:
        return self.settings.shown

    def close(self) -> None:
        self.connections.close()
        self.signals.close()


def _watcher(settings: Settings) -> Probe:
    # Only who waits for others pays for the import.
    from everthread.stores.postgres.watching import Watcher

    return Watcher(settings)
