"""All rules over one open store."""

from __future__ import annotations

import os
from collections.abc import Callable

from everthread.records.agreement import Agreement
from everthread.records.branches import Branches
from everthread.records.checked import CheckedStore
from everthread.records.commits import Commits
from everthread.records.deletion import Deletion
from everthread.records.entries import Entries
from everthread.records.erasures import Erasures
from everthread.records.logs import Logs
from everthread.records.namespaces import Namespaces
from everthread.records.numbers import Numbers
from everthread.records.registers import Registers
from everthread.records.rewrites import Rewrites
from everthread.records.rows import Rows
from everthread.records.sealed import Sealed
from everthread.records.streams import Streams
from everthread.records.threads import Threads
from everthread.stores.interface import Store


class Records:
    """The rules, one object for each noun, and what they share. Safe for several threads."""

    def __init__(self, store: Store, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self.store = CheckedStore(store)
        numbers = Numbers(self.store)
        self.namespaces = Namespaces(self.store, numbers)
        self.branches = Branches(self.store, random_bytes)
        self.rows = Rows(self.store)
        self.logs = Logs(self.store, numbers)
        self.erasures = Erasures(self.store)
        self.sealed = Sealed(self.store)
        self.commits = Commits(
            self.store, numbers, self.namespaces, self.branches, self.rows, self.logs, self.erasures
        )
        self.rewrites = Rewrites(self.store, self.branches, self.rows, self.logs)
        self.deletion = Deletion(self.store, self.namespaces, self.branches, self.commits)
        self.threads = Threads(self.store)
        self.entries = Entries(self.store)
        self.agreement = Agreement(self.store, self.namespaces)
        self.registers = Registers(self.store, random_bytes)
        self.streams = Streams(self.store, numbers)

    def forget(self) -> None:
        """Forget everything that was read, because the whole content has been replaced."""
        for each in (self.namespaces, self.branches, self.logs, self.commits, self.streams):
            each.forget()
