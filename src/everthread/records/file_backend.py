"""The old store contract over the rules, for a store in files: with backups and a text index."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from everthread.records.backend import RecordsBackend
from everthread.records.restoring import Snapshot, carry_over
from everthread.stores.contract import PutCell
from everthread.stores.interface import Batch, Store
from everthread.stores.text_index import IndexedTexts, TextIndex


class FileStore(Store, Protocol):
    """A store in files, with its optional operations."""

    @property
    def text_index(self) -> TextIndex: ...

    def reserve(self) -> bool: ...

    def release(self) -> None: ...

    async def vacuum(self) -> None: ...

    async def backup(self, path: str) -> None: ...

    async def restore(
        self, path: str, keep: Callable[[Snapshot, Snapshot], Coroutine[Any, Any, Batch]]
    ) -> None: ...


class FileRecordsBackend(IndexedTexts, RecordsBackend):
    """Over a store in files, which has backups, a text index, and free space to give back."""

    def __init__(self, store: FileStore) -> None:
        super().__init__(store)
        self.capabilities = msgspec.structs.replace(self.capabilities, texts=True)
        self._texts = store.text_index
        self._files = store

    def reserve(self) -> bool:
        """Keep other processes from writing until this one has, for a short time."""
        return self._files.reserve()

    def release(self) -> None:
        self._files.release()

    def compact(self) -> None:
        self._run(self._files.vacuum())

    def backup(self, path: str) -> None:
        self._run(self._files.backup(path))

    def restore(self, path: str, cells: Sequence[PutCell] = ()) -> None:
        def keep(present: Snapshot, restored: Snapshot) -> Coroutine[Any, Any, Batch]:
            return carry_over(
                present, restored, cells, clock_us=time.time_ns() // 1_000, random_bytes=os.urandom
            )

        self._run(self._files.restore(path, keep))
        self.records.forget()
        self.signals.ring_all()
