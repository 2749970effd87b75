"""Effects that are being called in this process just now: the same key at once runs once."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any

from everthread import process
from everthread.errors import UsageError

#: How long one waits for another before looking whether it is still there.
WAIT_S = 0.5


class Claim:
    """One call that works on a key."""

    def __init__(self) -> None:
        self.owner: tuple[int, Any] | None = None
        self.ended: Future[None] = Future()
        # So that a waiter who is cancelled doesn't cancel it for the others.
        self.ended.set_running_or_notify_cancel()
        self._plan: weakref.ref[Generator[Any, Any, Any]] | None = None

    def follow(self, plan: Generator[Any, Any, Any]) -> None:
        """The plan that this is the claim of: it is over when that is, even if an interrupt kept it from
        saying so."""
        self._plan = weakref.ref(plan)

    @property
    def over(self) -> bool:
        plan = self._plan() if self._plan is not None else None
        return self.ended.done() or plan is None or getgeneratorstate(plan) == GEN_CLOSED


class Claims:
    """The claims of a session, by key."""

    def __init__(self) -> None:
        # May be taken again by its thread: an interrupt, which only the main thread gets, may leave it taken.
        self._mutex = process.fork_rlock()
        self._held: dict[str, Claim] = {}

    def take(self, key: str, mine: Claim) -> Claim | None:
        """Claim a key; ``None`` if that worked, else the claim to wait for. Raises :class:`UsageError` if
        this very call holds it already."""
        mine.owner = _whoami()
        with self._mutex:
            other = self._held.get(key)
            if other is None or other.over:
                self._held[key] = mine
                return None
        if other.owner == mine.owner:
            raise UsageError(f"the effect {key!r} is being called from within itself")
        return other

    def drop(self, key: str, mine: Claim) -> None:
        mine.ended.set_result(None)
        with self._mutex:
            if self._held.get(key) is mine:
                del self._held[key]

    def holds(self, key: str) -> bool:
        """Whether an effect is being called just now."""
        with self._mutex:
            claim = self._held.get(key)
            return claim is not None and not claim.over


def _whoami() -> tuple[int, Any]:
    """The thread and, inside an event loop, the task."""
    task = None
    if (asyncio := sys.modules.get("asyncio")) is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
    return threading.get_ident(), task
