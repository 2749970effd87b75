"""One task at a time: what a lock is to threads."""

from __future__ import annotations

import asyncio


class AsyncTurn:
    """Entered with ``async with``. Not to be taken again by the task that has it. It belongs to the event
    loop that runs: in a later one it is free, whatever an earlier one left behind."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock = loop, asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()
