"""A connection for reading, for the length of a ``with`` block, and the rows a version is rebuilt from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import apsw

from everthread.stores.contract import DELTA, REWIND, SEAL_SEQ, Row
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.connections import Connections
from everthread.stores.sqlite.failing import translated
from everthread.stores.sqlite.rows import damaged_row, row_id, to_row

if TYPE_CHECKING:
    from types import TracebackType


#: Rows downwards from ?1 to above ?2.
_FROM = """
    SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) THEN x'' ELSE body END, net, keyframe, key, sum
    FROM record WHERE id <= ?1 AND id > ?2 ORDER BY id DESC
"""
#: The same from the row that holds ?1, if none ends there; ?2 is the end of the line, ?3 the floor. A pack
#: that ends above ?1 is read inside, so its body comes along.
_WITHIN = """
    SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) AND id <= ?1 THEN x'' ELSE body END,
           net, keyframe, key, sum
    FROM record
    WHERE id <= (SELECT min(id) FROM record WHERE id BETWEEN ?1 AND ?2) AND id > ?3
    ORDER BY id DESC
"""
_Columns = tuple[Any, ...]


class Reading:
    """A reader for the length of a ``with`` block, in one snapshot if ``together``."""

    __slots__ = ("apart", "connection", "pool", "together")

    def __init__(self, pool: Connections, together: bool, apart: bool) -> None:
        self.pool = pool
        self.together = together
        self.apart = apart

    def __enter__(self) -> apsw.Connection:
        self.connection = self.pool.reader(apart=self.apart)
        if self.together:
            try:
                self.connection.execute("BEGIN")
            except apsw.Error as error:
                self._give_up(error)
        return self.connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.together:
            try:
                self.connection.execute("COMMIT")
            except apsw.Error as failure:
                error = failure
        if error is None:
            self.pool.done(self.connection)
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """The connection isn't used again; raises the typed error for an engine's one."""
        self.pool.spoilt(self.connection)
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            raise translated(error, self.pool.settings.path) from error


def replay(db: apsw.Connection, line: int, seq: int, floor: int) -> list[Row]:
    """As the contract says."""
    wanted, last = row_id(line, seq), row_id(line, floor)
    cursor: Any = db.execute(_FROM, (wanted, last))
    newest = cursor.fetchone()
    if newest is None or newest[0] != wanted:
        # No row ends there: which one holds it has to be found.
        cursor.close(True)
        cursor = db.execute(_WITHIN, (wanted, row_id(line, SEAL_SEQ - 1), last))
        rows = _to_rows(line, seq, cursor)
    else:
        rows = _to_rows(line, seq, chain((newest,), cursor))
    cursor.close(True)
    return rows


def _to_rows(line: int, seq: int, found: Iterator[_Columns]) -> list[Row]:
    """The rows for replaying version ``seq``, as far as that needs them."""
    rows: list[Row] = []
    for columns in found:
        id_, first, kind, digest, body, net, keyframe, _, _ = columns
        if kind == DELTA and keyframe is None and net is None and type(body) is bytes:
            # As to_row(), of what there is most of.
            row = Row(id_ & schema.SEQ_MASK, first, kind, digest, body)
            rows.append(row if id_ >> schema.SEQ_BITS == line else damaged_row(row))
            continue
        row = to_row(line, columns)
        rows.append(row)
        if (row.keyframe is not None and row.seq <= seq) or row.kind == REWIND:
            break
    return rows
