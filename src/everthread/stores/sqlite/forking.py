"""Nothing of SQLite's goes through fork(2).

SQLite notes once for a whole process which locks it holds on a file, and where the memory is that it shares
with others. A child made by fork(2) inherits these notes, and none of the locks: it believes itself safe,
while its parent, closing what seems to be the last connection, deletes the log that the child writes to. So
all connections are closed before a fork, and both sides open theirs when they need them. A file that is in
use at that moment, for longer than can be waited, the child refuses to open.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from everthread.errors import StoreUnavailableError

#: So long a fork waits for whoever is at work.
_WAIT_S = 2.0


class Holder(Protocol):
    """Whoever has connections to a file."""

    @property
    def file(self) -> str: ...

    def hold(self, until_s: float) -> bool:
        """Keep the other threads from using any of them; whether that was possible in time."""

    def shut(self, until_s: float) -> bool:
        """Close all of them; whether that was possible in time. For who holds them."""

    def free(self) -> None:
        """Let the others go on."""

    def renew(self) -> None:
        """In a child: make locks anew that a thread of the parent may have held."""


class OneLock:
    """A holder whose connection is used under one lock."""

    _mutex: Any

    def hold(self, until_s: float) -> bool:
        # A thread that forks in the middle of using it can't wait for itself.
        if self._mutex._is_owned():
            return False
        return bool(self._mutex.acquire(timeout=max(until_s - monotonic(), 0.0)))

    def free(self) -> None:
        self._mutex.release()

    def renew(self) -> None:
        self._mutex = threading.RLock()


#: Held during a fork, and by who enters: nobody new opens anything meanwhile.
_registry = threading.RLock()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_resting: list[Holder] = []
_in_use: list[Holder] = []
#: Whether a fork that is about to be was told of.
_prepared = False
#: The files that were in use when this process was made, by device and number.
_inherited: set[tuple[int, int]] = set()


def enter(holder: Holder) -> None:
    """Before the first connection is opened: a fork closes what the holder has."""
    with _registry:
        _holders.add(holder)


def leave(holder: Holder) -> None:
    """It has none any more."""
    with _registry:
        _holders.discard(holder)


def check(path: str) -> None:
    """Before a connection is opened: raise if a fork came in the way of using this file here."""
    if _inherited:
        with suppress(OSError):
            if _identity(path) in _inherited:
                raise StoreUnavailableError(
                    f"{path} was in use at the moment when this process was forked, so that SQLite can't be "
                    "used on it here; fork when nobody is at work on it, or start processes by "
                    "multiprocessing's 'spawn' or 'forkserver'"
                )


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _before() -> None:
    global _prepared  # noqa: PLW0603 - a fork of this process
    _registry.acquire()
    _prepared = True
    until_s = monotonic() + _WAIT_S
    for holder in list(_holders):
        held = False
        try:
            held = holder.hold(until_s)
            closed = held and holder.shut(until_s)
        except Exception:
            # A fork can't be refused; the child refuses to open the file instead.
            closed = False
        if held and not closed:
            holder.free()
        (_resting if closed else _in_use).append(holder)


def _in_parent() -> None:
    global _prepared  # noqa: PLW0603 - it is the whole process that forks
    _prepared = False
    for holder in _resting:
        holder.free()
    _resting.clear()
    _in_use.clear()
    _registry.release()


def _in_child() -> None:
    global _registry  # noqa: PLW0603 - a thread of the parent may have had it
    if not _prepared:
        # By C code that told the interpreter afterwards only, as some servers do: nothing was closed.
        _registry = threading.RLock()
        _registry.acquire()
        _in_use.extend(_holders)
    for holder in _in_use:
        with suppress(OSError):
            _inherited.add(_identity(holder.file))
        holder.renew()
    _in_parent()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
