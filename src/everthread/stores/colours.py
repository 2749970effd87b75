"""What differs by colour in the drivers of network stores: the few things that can't be written once.

Such a driver is written by hand in ``stores/<name>/aio``; ``stores/<name>/sync`` is generated from it by
``tools/twin.py``, which takes the branch that fits of every ``if ASYNC:`` and drops ``Async`` from names and
``_async`` from that of the pause.
"""

from __future__ import annotations

import time
from typing import Final

#: True in the source; a branch on it is resolved when the twin is generated.
ASYNC: Final = True


async def pause_async(seconds: float) -> None:
    # Only who is async pays for the import.
    import asyncio

    await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    time.sleep(seconds)
