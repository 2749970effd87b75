"""What differs by colour in the drivers of network stores: the few things that can't be written once.

Such a driver is written by hand in ``stores/<name>/aio``; ``stores/<name>/sync`` is generated from it by
``tools/twin.py``, which takes the branch that fits of every ``if ASYNC:`` and drops ``Async`` from names and
``_async`` from those of the functions here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: True in the source; a branch on it is resolved when the twin is generated.
ASYNC: Final = True


async def pause_async(seconds: float) -> None:
    # Only who is async pays for the import.
    import asyncio

    await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    time.sleep(seconds)


async def aside_async(call: Callable[..., T], *args: Any) -> T:
    """What a blocking call returns, made on a thread of its own."""
    from everthread.stores.offload import run_in_thread

    return await run_in_thread(call, *args)


def aside(call: Callable[..., T], *args: Any) -> T:
    return call(*args)
