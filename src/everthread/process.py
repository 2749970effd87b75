"""Whether this process is still the one that opened something, or a child that fork(2) made of it; and locks
that such a child finds free, whatever the other threads of its parent were doing."""

from __future__ import annotations

import os
import threading
import weakref
from time import monotonic
from typing import Any

#: How many forks lie between this process and the first that loaded this module. Whoever noted another number
#: is in a child now. Asking the kernel for the process id instead would cost a system call each time.
generation = 0

#: So long a fork waits for threads that are in the middle of changing something.
_WAIT_S = 2.0
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_steady: weakref.WeakSet[Any] = weakref.WeakSet()
#: What a thread that forks has taken, by thread.
_taken: dict[int, list[Any]] = {}


def fork_lock() -> threading.Lock:
    """A lock that is free in a child made by fork(2). For what no thread forks in the middle of."""
    made = threading.Lock()
    _locks.add(made)
    return made


def fork_rlock(*, steady: bool = False) -> Any:
    """The same, and its thread may take it again; in a child it is free unless the forking thread has it.

    ``steady``: what it guards must not be seen half changed in a child, so a fork waits for it. For what is
    held for moments only.
    """
    made = threading.RLock()
    _locks.add(made)
    if steady:
        _steady.add(made)
    return made


def _before() -> None:
    until_s = monotonic() + _WAIT_S
    _taken[threading.get_ident()] = [
        lock for lock in _all(_steady) if lock.acquire(timeout=max(until_s - monotonic(), 0.0))
    ]


def _all(locks: weakref.WeakSet[Any]) -> list[Any]:
    while True:
        try:
            return list(locks)
        except RuntimeError:
            # Another thread has just made one.
            continue


def _give_back() -> None:
    for lock in _taken.pop(threading.get_ident(), ()):
        lock.release()


def _in_child() -> None:
    global generation  # noqa: PLW0603 - it is this process that has one
    generation += 1
    _give_back()
    # Threads that were forking at the same moment are the parent's.
    _taken.clear()
    for lock in _all(_locks):
        # One that this very thread is in the middle of it gives back itself.
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()


os.register_at_fork(before=_before, after_in_parent=_give_back, after_in_child=_in_child)
