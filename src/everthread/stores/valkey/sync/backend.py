# Generated from stores/valkey/aio/backend.py by tools/twin.py: change that, then run: make twin
"""The contract on Valkey."""

from __future__ import annotations

from everthread.stores.contract import Capabilities
from everthread.stores.valkey.lasting import Keeping
from everthread.stores.valkey.sync.calls import Calls
from everthread.stores.valkey.sync.copies import Copies
from everthread.stores.valkey.sync.texts import NoTexts


class ValkeyBackend(Copies, NoTexts):
    """One server, or a cluster. Safe for several threads, tasks, processes and hosts at once."""

    #: The server does nothing else while it takes rows: so many bytes keep it busy for a quarter of a second.
    capabilities = Capabilities(
        durable=True, multi_process=True, backup=True, cold=True, cold_rows_max=1 << 26
    )

    def __init__(self, calls: Calls, keeping: Keeping) -> None:
        super().__init__(calls)
        self.keeping = keeping

    @property
    def url(self) -> str:
        return self._settings.url

    def close(self) -> None:
        self._calls.close()
        self.signals.close()
