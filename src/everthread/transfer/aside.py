"""Where the files of archives are read and written: for async callers not in the way of their event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class AsyncAside:
    """On a thread of its own."""

    def __init__(self) -> None:
        # Only who is async pays for the import.
        from everthread.stores.workers import Worker

        self._worker = Worker("everthread-archive", 1)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await self._worker.run(call, *args)

    def stop(self) -> None:
        self._worker.stop()


class Aside:
    """Right here."""

    def run(self, call: Callable[..., T], *args: Any) -> T:
        return call(*args)

    def stop(self) -> None:
        """Nothing to stop."""
