# Generated from src/everthread/threads/aio/item_times.py by tools/twin.py: change that, then run: make twin
"""Which versions brought the items of a log, and when."""

from __future__ import annotations

import datetime
import sys
from typing import TYPE_CHECKING

from everthread.codec import records
from everthread.errors import DamageError
from everthread.stores.contract import DELTA, PACK, Row
from everthread.threads.sync.reader import Reader

if TYPE_CHECKING:
    from everthread.threads.sync.handle import Handle
    from everthread.threads.sync.thread import Thread

#: As many rows are read at most: what isn't folded yet, and some packs.
_ROWS_MAX = 72


def item_times(thread: Thread, log: str, start: int) -> list[int]:
    """For each item of a log from index ``start`` on, as the head has it, when its version was committed, in
    µs since 1970. For one that came before the versions that are looked at, some hundreds, the time of the
    oldest of these: it is at least as old."""
    if thread.head is None:
        return []
    found, oldest = _look(thread.handle, log, _positions(thread.handle, log, start), _ROWS_MAX)
    return [oldest if brought is None else brought[1] for brought in found]


def item_versions(thread: Thread, log: str, start: int) -> list[int | None]:
    """For each item the seq of the version that brought it; ``None`` for one that came before those that are
    looked at."""
    if thread.head is None:
        return []
    found, _ = _look(thread.handle, log, _positions(thread.handle, log, start), _ROWS_MAX)
    return [None if brought is None else brought[0] for brought in found]


def times_at(handle: Handle, log: str, positions: list[int]) -> list[datetime.datetime | None]:
    """Return when the version that brought each of these stored items was committed; None if it isn't
    committed, or that version was deleted. Reads back as far as it must."""
    if handle.head is None:
        return [None] * len(positions)
    found, _ = _look(handle, log, positions, sys.maxsize)
    return [None if brought is None else _moment(brought[1]) for brought in found]


def _moment(at_us: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=at_us)


def _positions(handle: Handle, log: str, start: int) -> list[int]:
    """Return where the items from index ``start`` on are stored, as the head has them."""
    _, head = handle.require()
    state = head.logs.get(log)
    if state is None:
        return []
    return [p for first, last in state.ranges(start, state.length) for p in range(first, last)]


def _look(
    handle: Handle, log: str, positions: list[int], rows_max: int
) -> tuple[list[tuple[int, int] | None], int]:
    """Seq and time of the version that brought each item, and the time of the oldest that was looked at."""
    line, head = handle.require()
    oldest = head.version.at_us
    reader, seq, left = handle.core.reader, head.seq, rows_max
    brought: dict[int, tuple[int, int]] = {}
    missing = set(positions)
    while seq > 0 and left > 0 and missing:
        line = reader.owner(line, seq)
        rows = reader.backend.scan(line.id, seq, min(left, _ROWS_MAX))
        if not rows:
            break
        left -= len(rows)
        for row in rows:
            for made, at_us, first, count in reversed(_brought(reader, row, log, seq)):
                oldest = min(oldest, at_us)
                brought.update(dict.fromkeys(range(first, first + count), (made, at_us)))
        missing.difference_update(brought)
        seq = rows[-1].first - 1
    return [brought.get(position) for position in positions], oldest


def _brought(reader: Reader, row: Row, log: str, last: int) -> list[tuple[int, int, int, int]]:
    """What the versions of a row up to ``last`` brought into a log: seq, time, first position and count of
    each. Nothing if they can't be read: damage, or pruned."""
    found: list[tuple[int, int, int, int]] = []
    if row.kind not in (DELTA, PACK):
        return found
    try:
        if row.kind == PACK:
            body = reader.pack(row)
            parts = list(zip(body.heads, body.changes, strict=True))[: last - row.first + 1]
        else:
            header, change, _ = records.read_record(row.body)
            parts = [(header, change)]
        for seq, (header, change) in enumerate(parts, row.first):
            at_us = records.read_head(header).at_us
            found.append((seq, at_us, 0, 0))
            for name, _, _, count, first, *_ in records.read_change(change).logs:
                if name == log:
                    found.append((seq, at_us, first, count))
    except DamageError:
        return []
    return found
