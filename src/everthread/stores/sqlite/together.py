"""The versions of many threads with one statement, which is a transaction of its own.

The statement runs, and waits for the disk, without holding up the threads of this process that have other
things to do: between two statements they would all take their turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import apsw

from everthread.stores.contract import NewRow
from everthread.stores.sqlite.rows import record_columns

#: So many rows have a statement: it is prepared once, and the places that are left over hold nothing.
_SIZES = (4, 8, 16, 32, 64, 128, 256)
_PLACE = (None,) * 7

#: As schema.APPEND, but if one of the rows can't be added none is: its hash is missing, or its place taken.
_APPEND = """
    WITH new (id, kind, hash, key, body, previous, sum) AS (VALUES {})
    INSERT INTO record (id, kind, first, hash, key, body, sum)
    SELECT id, kind, id & 0xffffffff, CASE WHEN previous = coalesce(
        (SELECT newest.hash FROM record AS newest
            WHERE newest.id BETWEEN (new.id >> 32) << 32 AND new.id | 0xffffffff
            ORDER BY newest.id DESC LIMIT 1),
        (SELECT start_hash FROM line WHERE line.id = new.id >> 32)
    ) THEN hash END, key, body, sum FROM new WHERE id NOT NULL
"""


def fits(rows: Sequence[tuple[int, NewRow]]) -> bool:
    """Whether each is a version and nothing else, and none goes on from another."""
    for _, row in rows:
        if row.sealed or row.chunks or row.guard or row.source is not None:
            return False
    return len(rows) <= _SIZES[-1] and len({line for line, _ in rows}) == len(rows)


def append_together(db: apsw.Connection, rows: Sequence[tuple[int, NewRow]]) -> bool:
    """Add them all, or none if any of them lost."""
    size = next(size for size in _SIZES if size >= len(rows))
    values: list[Any] = []
    for line, row in rows:
        values += record_columns(line, row)
    values += _PLACE * (size - len(rows))
    try:
        db.execute(_statement(size), values)
    except apsw.ConstraintError:
        return False
    return True


@cache
def _statement(size: int) -> str:
    return _APPEND.format(", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * size))
