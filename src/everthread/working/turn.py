"""One task at a time: what a lock is to threads, for tasks of whichever event loops."""

from __future__ import annotations

from everthread.stores.colours import AsyncGate


class AsyncTurn:
    """Entered with ``async with``. Not to be taken again by the task that has it."""

    def __init__(self) -> None:
        self._gate = AsyncGate(1)

    async def __aenter__(self) -> None:
        await self._gate.enter(None)

    async def __aexit__(self, *error: object) -> None:
        self._gate.leave()
