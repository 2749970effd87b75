"""``store.stats()``: what threads take up, from what the store says of their lines."""

from __future__ import annotations

from everthread.errors import EverthreadError
from everthread.stores.contract import SEAL_SEQ, Line
from everthread.threads.aio.core import Core
from everthread.threads.reports import Progress
from everthread.threads.sizes import Counting, StoreStats


async def measure(core: Core, limit: int, progress: Progress | None) -> StoreStats:
    """Looks at each line of the namespace once, at its newest version and not at any other."""
    counting = Counting(core.runtime.now_us(), limit)
    total = 0
    if progress is not None:
        async for _ in core.backend.every_line():
            total += 1
    left = total
    async for line in core.backend.every_line():
        if line.space == core.space or line.space.startswith(f"{core.space}\0"):
            public = line.space == core.space and not line.deleted
            usage = await core.backend.usage(line.id)
            counting.add(line.name if public else None, await _updated_us(core, line), usage)
        left = max(left - 1, 0)
        if progress is not None:
            progress(total - left, total)
    return counting.stats(await core.backend.totals())


async def _updated_us(core: Core, line: Line) -> int:
    try:
        rows = await core.backend.scan(line.id, SEAL_SEQ - 1, 1)
        if rows:
            return core.reader.head(rows[0], rows[0].seq).at_us
        return (await core.reader.version(line, line.parent_seq))[0].at_us
    except EverthreadError:
        # Damaged, or gone: how old it is nobody knows.
        return 0
