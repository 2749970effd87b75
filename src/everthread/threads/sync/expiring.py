# Generated from src/everthread/threads/aio/expiring.py by tools/twin.py: change that, then run: make twin
"""Threads whose time is over: absent for everybody, and removed by whoever needs the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.stores.contract import Found
from everthread.threads.lifetimes import left_s
from everthread.threads.sync import journals

if TYPE_CHECKING:
    from everthread.threads.sync.thread import Thread


def bury(thread: Thread, name: str) -> bool:
    """Delete the thread of this name if it has expired; whether the name may be free now."""
    core = thread.core
    found = core.backend.find(core.space, name)
    if found is None:
        return True
    if left_s(found, core.runtime.now_us()) > 0:
        return False
    remove(thread, found)
    return True


def remove(thread: Thread, found: Found) -> bool:
    """Delete an expired thread, unless somebody has written to it meanwhile (by another clock)."""
    assert found.newest is not None
    core, line = thread.core, found.line
    if not core.backend.delete(line, found.newest.hash):
        return False
    journals.remove(thread, line)
    core.memos.slot(line.uid).forget()
    return True
