"""The rows that rebuilding a version takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

from everthread.errors import StateCorruptedError
from everthread.stores.contract import DAMAGED, DELTA, REWIND, SEAL_SEQ, Found, Row
from everthread.stores.sqlite import schema
from everthread.stores.sqlite.rows import checked_row, damaged_row, row_id, to_line, to_row

if TYPE_CHECKING:
    import apsw

_NAMED = """
    SELECT id, uid, space, name, root, parent, parent_seq, parent_segment, parent_hash, start_hash,
           counts, deleted, sum
    FROM line WHERE space = ?1 AND name = ?2 AND deleted = 0
"""
_FROM = """
    SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) THEN x'' ELSE body END, net, keyframe, key, sum
    FROM record WHERE id <= ?1 AND id > ?2 ORDER BY id DESC
"""
_WITHIN = """
    SELECT id, first, kind, hash, CASE WHEN kind IN (1, 5) AND id <= ?1 THEN x'' ELSE body END,
           net, keyframe, key, sum
    FROM record
    WHERE id <= (SELECT min(id) FROM record WHERE id BETWEEN ?1 AND ?2) AND id > ?3
    ORDER BY id DESC
"""
#: So many names are known as seen.
_SEEN_MAX = 1000
#: So long may rows lie that were read along with a name: who opens it asks for them at once.
_KEPT_S = 0.02

_Columns = tuple[Any, ...]


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


class Ahead:
    """Reads, when a name is seen for the first time, what will be asked for next: its newest version's rows.

    Two plain statements, where finding and replaying take one that is long to prepare and a second one.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._kept: dict[int, tuple[float, list[Row]]] = {}

    def find(self, db: apsw.Connection, space: str, name: str) -> Found | bool:
        """The line and its newest row; ``False`` if there is none. ``True``: ask in the ordinary way, because
        the name isn't new here or there is anything out of the ordinary about it.

        As of one moment, though read in two: the entry of a line that lives never changes, and if it was
        deleted in between, its rows are as they were before, or gone.
        """
        self._kept.clear()
        if (space, name) in self._seen:
            return True
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add((space, name))
        named: Any = db.execute(_NAMED, (space, name)).fetchone()
        if named is None:
            return False
        try:
            line = to_line(named)
        except StateCorruptedError:
            return True
        cursor: Any = db.execute(_FROM, (row_id(line.id, SEAL_SEQ - 1), row_id(line.id, 0) - 1))
        newest: Any = cursor.fetchone()
        if newest is None or newest[2] != DELTA or newest[6] is not None:
            cursor.close(True)
            return True
        second: Any = cursor.fetchone()
        rest = chain((newest,), () if second is None else (second,), cursor)
        rows = _to_rows(line.id, newest[0] & schema.SEQ_MASK, rest)
        cursor.close(True)
        found = Found(line, checked_row(line.id, newest), None if second is None else second[3])
        if found.newest is not None and found.newest.kind != DAMAGED:
            self._kept[line.id] = monotonic() + _KEPT_S, rows
        return found

    def take(self, line: int, seq: int, floor: int) -> list[Row] | None:
        """What was read along, once: it is as good as what would be read now."""
        kept = self._kept.pop(line, None) if self._kept else None
        if kept is None or kept[1][0].seq != seq or monotonic() > kept[0]:
            return None
        rows = kept[1]
        return rows if rows[-1].seq > floor else [row for row in rows if row.seq > floor]
