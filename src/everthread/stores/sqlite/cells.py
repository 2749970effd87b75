"""Cells in SQLite: small registers that are replaced by compare-and-set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from everthread.stores.contract import Cell, PutCell, StaleCell

READ = "SELECT value, revision, written_us FROM cell WHERE space = ?1 AND name = ?2"
LIST = """
    SELECT name, value, revision, written_us FROM cell
    WHERE space = ?1 AND name >= ?2 AND name > ?3 ORDER BY name LIMIT ?4
"""
REPLACE = """
    UPDATE cell SET value = ?4, revision = revision + 1, written_us = ?5
    WHERE space = ?1 AND name = ?2 AND revision = ?3
"""
#: A new cell begins above every revision that a removed one had, so that none repeats for a name.
CREATE = """
    INSERT INTO cell (space, name, revision, written_us, value)
    SELECT ?1, ?2, revision + 1, ?4, ?3 FROM cell_floor WHERE true
    ON CONFLICT DO NOTHING RETURNING revision
"""
#: Where other content takes the place of this one: no revision that any cell had before.
PUT = """
    INSERT INTO cell (space, name, revision, written_us, value)
    SELECT ?1, ?2, revision + 1, ?4, ?3 FROM cell_floor WHERE true
    ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, written_us = excluded.written_us
"""
REMOVE = "DELETE FROM cell WHERE space = ?1 AND name = ?2 AND revision = ?3"
RAISE_FLOOR = "UPDATE cell_floor SET revision = max(revision, ?1)"

#: The highest revision that any cell of the store has or had.
HIGHEST = "SELECT max(f.revision, coalesce((SELECT max(revision) FROM cell), 0)) FROM cell_floor f"
RAISE_ALL = "UPDATE cell SET revision = ?1 + 1"


def read_cell(db: apsw.Connection, space: str, name: str, now_us: int) -> Cell | None:
    found: list[Any] = db.execute(READ, (space, name)).fetchall()
    return _cell(found[0], now_us) if found else None


def _cell(columns: Sequence[Any], now_us: int) -> Cell:
    value, revision, written_us = columns
    return Cell(value, revision, written_us, now_us)


def list_cells(
    db: apsw.Connection, space: str, prefix: str, after: str | None, limit: int, now_us: int
) -> list[tuple[str, Cell]]:
    rows: list[Any] = db.execute(LIST, (space, prefix, after or "", limit)).fetchall()
    return [(name, _cell(columns, now_us)) for name, *columns in rows if name.startswith(prefix)]


def swap_cell(
    db: apsw.Connection, space: str, name: str, expected: int, value: bytes | None, now_us: int
) -> int:
    """The compare-and-set, on a connection that is allowed to write and has no transaction open."""
    if value is None:
        revision = 0 if _removed(db, space, name, expected) else None
    elif expected:
        # One statement is one transaction: a heartbeat needs no more.
        db.execute(REPLACE, (space, name, expected, value, now_us))
        revision = expected + 1 if db.changes() else None
    else:
        made: list[Any] = db.execute(CREATE, (space, name, value, now_us)).fetchall()
        revision = made[0][0] if made else None
    if revision is None:
        raise StaleCell(read_cell(db, space, name, now_us))
    return revision


def _removed(db: apsw.Connection, space: str, name: str, expected: int) -> bool:
    if not expected:
        return read_cell(db, space, name, 0) is None
    db.execute("BEGIN IMMEDIATE")
    db.execute(REMOVE, (space, name, expected))
    removed = bool(db.changes())
    if removed:
        db.execute(RAISE_FLOOR, (expected,))
    db.execute("COMMIT")
    return removed


def highest_revision(db: apsw.Connection) -> int:
    found: list[Any] = db.execute(HIGHEST).fetchall()
    return int(found[0][0])


def raise_revisions(db: apsw.Connection, highest: int) -> None:
    """After another content has replaced this one: no cell may come to a revision that it had before.

    Inside a transaction of the caller's.
    """
    highest = max(highest, highest_revision(db))
    db.execute(RAISE_ALL, (highest,))
    db.execute(RAISE_FLOOR, (highest,))


def put_cells(db: apsw.Connection, cells: Sequence[PutCell]) -> None:
    """Let these stand there, after :func:`raise_revisions`, inside the same transaction."""
    db.executemany(PUT, [(cell.space, cell.name, cell.value, cell.written_us) for cell in cells])
