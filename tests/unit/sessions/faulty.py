"""A backend whose n-th write fails, before or after it has been done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everthread import StorageWriteError, Store
from everthread.records.opening import open_backend

WRITES = frozenset({"append", "append_all", "create", "swap", "restore"})


class Faulty:
    def __init__(self, backend: Any) -> None:
        self._backend = backend
        #: Writes left until one fails; ``None``: none does. ``landing``: it fails after it was done.
        self.left: int | None = None
        self.landing = False
        self.only: frozenset[str] = WRITES
        self.writes = 0

    def fail(self, after: int, *, landing: bool, only: frozenset[str] = WRITES) -> None:
        self.left, self.landing, self.only = after, landing, only

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if name not in WRITES:
            return method

        def write(*args: Any, **kwargs: Any) -> Any:
            self.writes += 1
            if name in self.only and self.left is not None:
                self.left -= 1
                if self.left < 0:
                    self.left = None
                    if self.landing:
                        method(*args, **kwargs)
                    raise StorageWriteError("the disk says no")
            return method(*args, **kwargs)

        return write


def faulty_store(path: Path) -> tuple[Store, Faulty]:
    backend = Faulty(open_backend(f"sqlite:///{path}", "process"))
    return Store(backend, keyring="memory:"), backend
