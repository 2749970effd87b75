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

    capabilities = Capabilities(durable=True, multi_process=True, backup=True, cold=True)

    def __init__(self, calls: Calls, keeping: Keeping) -> None:
        super().__init__(calls)
        #: What the server said, when the store was opened, about how it keeps what it acknowledged.
        self.keeping = keeping

    @property
    def url(self) -> str:
        return self._settings.url

    def close(self) -> None:
        self._calls.close()
        self.signals.close()
