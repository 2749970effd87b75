# Generated from src/everthread/sessions/aio/logs.py by tools/twin.py: change that, then run: make twin
"""Logs read from their end, and records that hold sealed values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core
    from everthread.threads.sync.log import LogView

T = TypeVar("T")

#: Items read at a time.
_BATCH = 512


def newest_first(log: LogView) -> Iterator[Any]:
    """The items of a log, the newest first."""
    stop = len(log)
    while stop > 0:
        start = max(stop - _BATCH, 0)
        yield from reversed(log.read(start, stop))
        stop = start


def revealing(core: Core, make: Callable[..., T], *args: Any) -> T:
    """What ``make(*args)`` gives, which may open sealed values: that reads the store, and can't be awaited
    where it happens."""
    return make(*args)
