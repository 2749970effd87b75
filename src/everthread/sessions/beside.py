"""What stands beside a thread: the one place here that knows the inside of a store.

A *journal* is a companion of a thread (see ``threads/companions``): a rewind of the thread doesn't move it, a
fork takes it along as it stands, and a thread that is created anew under an old name gets a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.errors import StateCorruptedError, ThreadNotFoundError
from everthread.threads.sync.companions import LEASE, beside

if TYPE_CHECKING:
    from everthread.stores.contract import Line
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.store import ThreadStore
    from everthread.threads.sync.thread import Thread

__all__ = ["LEASE", "beside", "core_of", "core_under", "is_unheard_of", "lease_space", "sources_of", "uid_of"]


def core_of(store: ThreadStore) -> Core:
    """The core of an open store. Raises :class:`StoreClosedError` if it is closed."""
    store._check()
    return store.core


def core_under(thread: Thread) -> Core:
    """The core that a handle works on."""
    return thread.core


def lease_space(core: Core) -> str:
    """Where the leases of a store's threads are: no public name reaches it."""
    return beside(core, LEASE).space


def sources_of(thread: Thread) -> Iterator[Line]:
    """The lines that a thread was forked from, the nearest first."""
    core, line = thread.core, thread._line
    while line is not None and line.parent:
        line = core.backend.line(line.parent)
        if line is not None:
            yield line


def is_unheard_of(core: Core, uid: bytes) -> bool:
    """Whether there is no trace of a line, not even that it was deleted."""
    with suppress(StateCorruptedError):
        return core.backend.line_by_uid(uid) is None
    return False


def uid_of(thread: Thread) -> str:
    """What names this incarnation of a thread. Raises :class:`ThreadNotFoundError` if there is none yet."""
    uid = thread.uid if thread.head is not None else None
    if uid is None:
        raise ThreadNotFoundError(f"there is no thread {thread.name!r} yet: it exists from its first commit")
    return uid
