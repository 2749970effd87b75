"""Logs read from their end, and records that hold sealed values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from everthread.threads.twins import ASYNC

if TYPE_CHECKING:
    from everthread.threads.aio.core import Core
    from everthread.threads.aio.log import AsyncLogView

T = TypeVar("T")

#: Items read at a time.
_BATCH = 512


async def newest_first(log: AsyncLogView) -> AsyncIterator[Any]:
    """The items of a log, the newest first."""
    stop = len(log)
    while stop > 0:
        start = max(stop - _BATCH, 0)
        for item in reversed(await log.read(start, stop)):
            yield item
        stop = start


async def revealing(core: Core, make: Callable[..., T], *args: Any) -> T:
    """What ``make(*args)`` gives, which may open sealed values: that reads the store, and can't be awaited
    where it happens."""
    if ASYNC:
        made: T = await core.backend.aside(make, *args)
        return made
    return make(*args)
