"""Who is at an erasure: one at a time. Whoever comes second waits for what the first one comes to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from everthread.people.holding import SPACE
from everthread.process import Place as Process
from everthread.process import here, is_gone
from everthread.stores.contract import Cell, StaleCell
from everthread.threads.colours import pause

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

#: Another process that is at it, on a machine that can't be looked at, is given so long.
_SILENCE_US = 600_000_000
#: What waits for readers isn't tried again at every open.
_AGAIN_US = 60_000_000
#: So often is looked whether whoever is at it is done.
_PAUSE_S = 0.02

#: What this process is at: another thread of it may have come first, or an earlier call may have failed.
_RUNNING: set[bytes] = set()


class _Work(msgspec.Struct, frozen=True):
    """Who is at an erasure, in which call, and whether nobody is because it waits for readers."""

    who: Process
    waiting: bool = False
    run: bytes = b""


class Claim:
    """The right to go on with an erasure, in a cell that is changed by compare-and-set."""

    def __init__(self, core: Core, erasure: str) -> None:
        self._core = core
        self._name = f"erasing/{erasure}"
        self._run = b""

    def is_free(self) -> bool:
        """Whether nobody is at it, as far as can be told, nor was until a moment ago."""
        cell = self._cell()
        if cell is None:
            return True
        if msgspec.msgpack.decode(cell.value, type=_Work).waiting:
            return cell.read_us - cell.written_us >= _AGAIN_US
        return _is_left(cell)

    def take(self, timeout_s: float) -> bool:
        """Wait until nobody else is at it, and say that this call is. False if that takes too long."""
        until = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= until:
                return False
            pause(_PAUSE_S)
        return True

    def leave(self, *, waiting: bool) -> None:
        """Let others go on with it, if it isn't done; at once, or not before a while."""
        cell = self._cell()
        if cell is not None and msgspec.msgpack.decode(cell.value, type=_Work).run == self._run:
            value = msgspec.msgpack.encode(_Work(here(), waiting=True)) if waiting else None
            self._swap(cell, value)

    def end(self) -> None:
        """Whatever became of it, this call isn't at it any more."""
        _RUNNING.discard(self._run)

    def _try(self) -> bool:
        cell = self._cell()
        if cell is not None and not _is_left(cell):
            return False
        self._run = self._core.runtime.random_bytes(16)
        # Before it is seen: another thread would take it for one that failed.
        _RUNNING.add(self._run)
        taken = False
        try:
            taken = self._swap(cell, msgspec.msgpack.encode(_Work(here(), run=self._run)))
        finally:
            if not taken:
                self.end()
        return taken

    def _cell(self) -> Cell | None:
        return self._core.backend.cell(SPACE, self._name, self._core.runtime.now_us())

    def _swap(self, cell: Cell | None, value: bytes | None) -> bool:
        revision, now_us = cell.revision if cell is not None else 0, self._core.runtime.now_us()
        try:
            self._core.backend.swap(SPACE, self._name, revision, value, now_us, False)
        except StaleCell:
            return False
        return True


def _is_left(cell: Cell) -> bool:
    """Whether whoever was at it isn't any more."""
    work = msgspec.msgpack.decode(cell.value, type=_Work)
    if work.waiting or is_gone(work.who) or cell.read_us - cell.written_us >= _SILENCE_US:
        return True
    return work.who == here() and work.run not in _RUNNING
