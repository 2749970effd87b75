"""Cells in SQLite: small registers that are replaced by compare-and-set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from everthread.stores.contract import Cell, PutCell, StaleCell
from everthread.stores.sqlite.connection import Connections, Reading, Settings, synchronous
from everthread.stores.sqlite.schema import SQL


class CellVerbs:
    """The contract's verbs for cells."""

    _settings: Settings
    _connections: Connections

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        with Reading(self._connections) as db:
            return _read(db, space, name, now_us)

    def swap(
        self,
        space: str,
        name: str,
        expected: int,
        value: bytes | None,
        now_us: int,
        durable: bool = True,
    ) -> int:
        with self._connections as db:
            if durable:
                return _swap(db, space, name, expected, value, now_us)
            synchronous(db, "process")
            try:
                return _swap(db, space, name, expected, value, now_us)
            finally:
                if not db.in_transaction:
                    synchronous(db, self._settings.durability)

    def cells(
        self, space: str, prefix: str, after: str | None, limit: int, now_us: int = 0
    ) -> list[tuple[str, Cell]]:
        with Reading(self._connections) as db:
            bounds = max(prefix, after or ""), after or ""
            rows: list[Any] = db.execute(SQL["cells"], (space, *bounds, limit)).fetchall()
        return [(name, _to_cell(columns, now_us)) for name, *columns in rows if name.startswith(prefix)]


def _read(db: apsw.Connection, space: str, name: str, now_us: int) -> Cell | None:
    found: list[Any] = db.execute(SQL["cell"], (space, name)).fetchall()
    return _to_cell(found[0], now_us) if found else None


def _to_cell(columns: Sequence[Any], now_us: int) -> Cell:
    value, revision, written_us = columns
    return Cell(value, revision, written_us, now_us)


def _swap(db: apsw.Connection, space: str, name: str, expected: int, value: bytes | None, now_us: int) -> int:
    """The compare-and-set, on a connection that is allowed to write and has no transaction open."""
    if value is None:
        revision = 0 if _remove(db, space, name, expected) else None
    elif expected:
        # One statement is one transaction: a heartbeat needs no more.
        db.execute(SQL["replace_cell"], (space, name, expected, value, now_us))
        revision = expected + 1 if db.changes() else None
    else:
        made: list[Any] = db.execute(SQL["create_cell"], (space, name, value, now_us)).fetchall()
        revision = made[0][0] if made else None
    if revision is None:
        raise StaleCell(_read(db, space, name, now_us))
    return revision


def _remove(db: apsw.Connection, space: str, name: str, expected: int) -> bool:
    if not expected:
        return _read(db, space, name, 0) is None
    db.execute("BEGIN IMMEDIATE")
    db.execute(SQL["remove_cell"], (space, name, expected))
    removed = bool(db.changes())
    if removed:
        db.execute(SQL["raise_cell_floor"], (expected,))
    db.execute("COMMIT")
    return removed


def highest_revision(db: apsw.Connection) -> int:
    found: list[Any] = db.execute(SQL["highest_revision"]).fetchall()
    return int(found[0][0])


def raise_revisions(db: apsw.Connection, highest: int) -> None:
    """After another content has replaced this one: no cell may come to a revision that it had before.

    Inside a transaction of the caller's.
    """
    highest = max(highest, highest_revision(db))
    db.execute(SQL["raise_revisions"], (highest,))
    db.execute(SQL["raise_cell_floor"], (highest,))


def put_cells(db: apsw.Connection, cells: Sequence[PutCell]) -> None:
    """Let these stand there, after :func:`raise_revisions`, inside the same transaction."""
    db.executemany(SQL["put_cell"], [(cell.space, cell.name, cell.value, cell.written_us) for cell in cells])
