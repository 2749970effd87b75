"""Waking whoever waits for something new in a line.

A commit of this store object rings at once. Where other processes write too, somebody has to look: one thread
for all who wait, which exists only while anybody does, and looks less and less often while nothing happens. A
signal says that there *may* be something new; who is woken goes and reads.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

from everthread.errors import EverthreadError, StoreClosedError

#: How long the looking thread pauses: shortly after something happened, and at most.
PAUSE_MIN_S = 0.005
PAUSE_MAX_S = 0.25
_PAUSE_GROWTH = 1.5
#: The thread ends when nobody has waited for so long.
_LINGER_S = 2.0

#: All of this process: in a child made by fork(2) nobody waits, and no thread looks.
_EVERY: weakref.WeakSet[Signals] = weakref.WeakSet()


class Probe(Protocol):
    """Looks whether other processes have written. Used by one thread only, the one that made it.

    One with a true attribute ``waits`` is told of changes and waits a little for them by itself: it is asked
    again at once.
    """

    def changed(self, lines: Sequence[Any]) -> Collection[Any] | None:
        """Those of these lines that may have changed since the last time; ``None`` if all of them may.

        The first time that is all: whatever came before may have gone unnoticed.
        """

    def close(self) -> None: ...


class Signals:
    """The waiters of one store object, by line. Line 0 stands for lines that don't exist yet."""

    def __init__(self, probe: Callable[[], Probe] | None = None) -> None:
        self._probe = probe
        self.closed = False
        #: How often the thread has looked: what waiting costs while nothing happens.
        self.looks = 0
        self._forget()
        _EVERY.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        #: Whom to wake, by line. Empty: nobody waits, and nobody need ring.
        self.awaited: dict[Hashable, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        #: Set to let the thread look, or end, at once; there is none before there is a thread.
        self._stir: threading.Event | None = None

    # ── ringing ──────────────────────────────────────────────────────────────────────────────

    def ring(self, *lines: Hashable) -> None:
        """These lines may have something new."""
        if self.awaited:
            with self._lock:
                wakes = [wake for line in lines for wake in self.awaited.get(line, ())]
            for wake in wakes:
                wake()

    def ring_all(self) -> None:
        """Any line may have something new."""
        if self.awaited:
            self.ring(*list(self.awaited))

    def close(self) -> None:
        """Nothing will ever come; whoever waits is woken and finds the store closed."""
        self.closed = True
        self.ring_all()
        thread = self._thread
        if self._stir is not None:
            self._stir.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        _EVERY.discard(self)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def listening(self, line: Hashable, wake: Callable[[], None]) -> Iterator[None]:
        """Within the block ``wake`` is called, from any thread, whenever the line may have something new."""
        with self._lock:
            self.awaited.setdefault(line, []).append(wake)
            if self._probe is not None and self._thread is None and not self.closed:
                stir = self._stir = self._stir or threading.Event()
                self._thread = threading.Thread(
                    target=self._look, args=(stir,), name="everthread-watcher", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                waiting = self.awaited.get(line, [])
                # A child made by fork(2) has forgotten them all.
                with suppress(ValueError):
                    waiting.remove(wake)
                if not waiting:
                    self.awaited.pop(line, None)

    def wait(self, line: int, timeout_s: float, newer: Callable[[], bool]) -> bool:
        """Wait until ``newer()`` is true, or for so long; what it says in the end. Line 0: until woken."""
        return self.wait_any((line,), timeout_s, newer, until_woken=line == 0)

    def wait_any(
        self,
        keys: Collection[Hashable],
        timeout_s: float,
        changed: Callable[[], bool],
        *,
        until_woken: bool = False,
    ) -> bool:
        """Wait until ``changed()`` returns True; it is called first and whenever one of the keys is rung.

        Returns False after ``timeout_s``. With ``until_woken`` the first signal ends the wait.
        """
        woken = threading.Event()
        deadline = time.monotonic() + timeout_s
        with ExitStack() as listening:
            for key in keys:
                listening.enter_context(self.listening(key, woken.set))
            while True:
                self._check()
                if changed():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or not woken.wait(left):
                    return False
                woken.clear()
                if until_woken:
                    self._check()
                    return True

    async def wait_async(self, line: int, timeout_s: float, newer: Callable[[], Awaitable[bool]]) -> bool:
        """The same for a task: no thread waits for it."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            # The loop may have ended, and with it whoever waited.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        deadline = loop.time() + timeout_s
        with self.listening(line, wake):
            while True:
                self._check()
                if await newer():
                    return True
                left = deadline - loop.time()
                if left <= 0:
                    return False
                try:
                    # Not wait_for(): a cancellation that comes together with the wake-up must not be lost.
                    async with asyncio.timeout(left):
                        await woken.wait()
                except TimeoutError:
                    return False
                woken.clear()
                if line == 0:
                    self._check()
                    return True

    def _check(self) -> None:
        if self.closed:
            raise StoreClosedError("this store is closed; open it again")

    # ── looking ──────────────────────────────────────────────────────────────────────────────

    def _look(self, stir: threading.Event) -> None:
        """The thread that looks for the commits of others."""
        probe: Probe | None = None
        pause_s, needed = PAUSE_MIN_S, time.monotonic()
        while True:
            stir.wait(pause_s)
            with self._lock:
                lines = list(self.awaited)
                if lines:
                    needed = time.monotonic()
                if self.closed or time.monotonic() - needed > _LINGER_S:
                    self._thread = None
                    break
            changed: Collection[Any] | None = ()
            if lines and self._probe is not None:
                self.looks += 1
                try:
                    probe = probe or self._probe()
                    changed = probe.changed(lines)
                except EverthreadError:
                    # Whoever waits looks for himself, and meets the error himself.
                    changed = None
                    pause_s = PAUSE_MAX_S
                    _close(probe)
                    probe = None
            if changed is None:
                self.ring_all()
            elif changed:
                self.ring(*changed)
            idle = changed is not None and not changed
            pause_s = min(pause_s * _PAUSE_GROWTH, PAUSE_MAX_S) if idle or probe is None else PAUSE_MIN_S
            if lines and getattr(probe, "waits", False):
                pause_s = 0.0
        _close(probe)


def _close(probe: Probe | None) -> None:
    if probe is not None:
        with suppress(EverthreadError):
            probe.close()


def _in_child() -> None:
    for signals in list(_EVERY):
        signals._forget()


os.register_at_fork(after_in_child=_in_child)
