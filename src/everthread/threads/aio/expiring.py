"""Threads whose time is over: absent for everybody, and removed by whoever needs the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.stores.contract import Found
from everthread.threads.aio import journals
from everthread.threads.lifetimes import left_s

if TYPE_CHECKING:
    from everthread.threads.aio.thread import AsyncThread


async def bury(thread: AsyncThread, name: str) -> bool:
    """Delete the thread of this name if it has expired; whether the name may be free now."""
    core = thread.core
    found = await core.backend.find(core.space, name)
    if found is None:
        return True
    if left_s(found, core.runtime.now_us()) > 0:
        return False
    await remove(thread, found)
    return True


async def remove(thread: AsyncThread, found: Found) -> bool:
    """Delete an expired thread, unless somebody has written to it meanwhile (by another clock)."""
    assert found.newest is not None
    core, line = thread.core, found.line
    if not await core.backend.delete(line, found.newest.hash):
        return False
    await journals.remove(thread, line)
    core.memos.slot(line.uid).forget()
    return True
