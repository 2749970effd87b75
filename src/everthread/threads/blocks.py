"""Blocks of log items: whether they hold what is wanted, and which part of each."""

from __future__ import annotations

from everthread.codec import records
from everthread.threads.memo import Block

#: Blocks up to this size are put together before they are decoded.
_SMALL_BYTES = 16 * 1024


def covers(blocks: list[Block], start: int, stop: int) -> bool:
    """Whether these blocks, in order, hold every position of ``[start, stop)``."""
    for position, count, _ in blocks:
        if position > start:
            return False
        start = max(start, position + count)
        if start >= stop:
            return True
    return start >= stop


def gap(blocks: list[Block], start: int, stop: int) -> tuple[int, int]:
    """The first positions of ``[start, stop)`` that none of these blocks holds."""
    for position, count, _ in blocks:
        if position > start:
            return start, min(position, stop)
        start = max(start, position + count)
    return start, stop


def joined(blocks: list[tuple[Block, slice]]) -> list[tuple[Block, slice]]:
    """The same items in fewer blocks: small ones that are wanted whole become one, which decodes faster."""
    joined: list[tuple[Block, slice]] = []
    run: list[tuple[int, bytes]] = []
    for (position, count, block), part in blocks:
        if len(block) <= _SMALL_BYTES and part.start == 0 and part.stop >= count:
            run.append((count, block))
            continue
        if run:
            joined.append(_one(run))
            run = []
        joined.append(((position, count, block), part))
    if run:
        joined.append(_one(run))
    return joined


def _one(run: list[tuple[int, bytes]]) -> tuple[Block, slice]:
    total = sum(count for count, _ in run)
    return (0, total, records.join(run)), slice(0, total)


def cut(blocks: list[Block], start: int, stop: int) -> list[tuple[Block, slice]]:
    """Which part of each block to take so that every position of ``[start, stop)`` comes once."""
    parts = []
    for block in blocks:
        position, count, _ = block
        end = min(stop, position + count)
        if end > start:
            parts.append((block, slice(start - position, end - position)))
            start = end
    return parts
