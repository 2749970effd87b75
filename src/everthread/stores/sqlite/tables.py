"""Tables and statements of the SQLite store, made from the declared tables.

There are three shapes, described in ``tables.sql``: a rowid table for each numbered one, one table for all
named ones, and one with stamps and tombstones for each followed one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from everthread.stores.interface import Batch, Table, check_key
from everthread.stores.resources import read_sections
from everthread.stores.sqlite.schema import Schema

#: The first version of this layout. Files of version 1 have one table for each kind of record.
FIRST_VERSION = 2
STAMP_MAX = 2**63 - 1
#: Greater than every name: a longer run of the greatest byte.
_AFTER_NAMES = b"\xff" * 1_200


#: Every statement of ``tables.sql``, by the shape of its table and its own name.
_SQL: dict[str, dict[str, str]] = {}
for _section, _text in read_sections(__package__, "tables.sql").items():
    _shape, _name = _section.split()
    _lines = (line for line in _text.splitlines() if line and not line.startswith("--"))
    _SQL.setdefault(_shape, {})[_name] = "\n".join(_lines)

COMMIT_ONE = _SQL["commit_one"]["insert"]
_NONE = (None,) * 4


class Statements(NamedTuple):
    """The statements of one table. Those that its shape doesn't need are empty."""

    create: str
    get: str
    put: str
    page: str
    page_back: str
    walk: str
    size: str
    size_all: str
    #: Not for followed tables: their deleted keys are put without a value.
    delete: str = ""
    #: The highest number of an owner, or the highest stamp of all.
    highest: str = ""
    newest: str = ""
    feed: str = ""
    feed_back: str = ""
    live: str = ""
    trim: str = ""
    keep_floor: str = ""
    renumber: str = ""
    every_key: str = ""


def fill(template: str, *tables: Table) -> str:
    """Put the names of declared tables into a statement: the only place where SQL is composed."""
    for table in tables:
        if not re.fullmatch("[a-z][a-z_]*", table.name):
            raise ValueError(f"table name {table.name!r} must consist of lower-case letters and underscores")
    return template.format(*(table.name for table in tables))


class TableSql:
    """A declared table with its statements and the parameters that they take."""

    def __init__(self, table: Table) -> None:
        self.table, self.numbered, self.bits = table, table.numbered, table.bits
        self.named = not table.numbered and not table.followed
        shape = _SQL["numbered" if table.numbered else "followed" if table.followed else "named"]
        self.sql = Statements(**{name: fill(text, table) for name, text in shape.items()})

    def key(self, owner: int, at: Any) -> tuple[Any, ...]:
        if self.numbered:
            outside = at < 0 or at >> self.bits or owner < 0 or owner >> 63 - self.bits
            return (None if outside else owner << self.bits | at,)
        return (self.table.number, owner, at) if self.named else (owner, at)

    def bounds(self, owner: int, start: Any, stop: Any) -> tuple[Any, ...]:
        """Return the parameters for ``start <= at < stop``; None means no bound."""
        if self.numbered:
            end = 1 << self.bits
            if owner < 0 or owner >> 63 - self.bits:
                return 1, 0
            low, high = min(max(start or 0, 0), end), end if stop is None else min(max(stop, 0), end)
            first = owner << self.bits
            return (first + low, first + high - 1) if low < high else (1, 0)
        span = owner, start or b"", _AFTER_NAMES if stop is None else stop
        return (self.table.number, *span) if self.named else span

    def walk_from(self, after: tuple[int, Any] | None) -> tuple[Any, ...]:
        if self.numbered:
            return (-1 if after is None else after[0] << self.bits | after[1],)
        owner, at = after if after is not None else (-1, b"")
        return (self.table.number, owner, at) if self.named else (owner, at)

    def split(self, id_: int) -> tuple[int, int]:
        """Return owner and number of a numbered table's id."""
        return id_ >> self.bits, id_ & (1 << self.bits) - 1


class Layout:
    """All declared tables, and the commit that is one statement.

    That one is for the first followed and the first numbered table of the declaration.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = {table.number: TableSql(table) for table in tables}
        self._head = next(table for table in tables if table.followed)
        self._row = next(table for table in tables if table.numbered)
        self.followed = [each for each in self.tables.values() if each.table.followed]
        creates = [each.sql.create for each in self.tables.values() if not each.named]
        commit = fill(_SQL["commit_one"]["create"], self._head, self._row)
        self.schema = Schema(FIRST_VERSION, ("\n".join([*creates, _SQL["named"]["create"], commit]),))

    def check(self, batch: Batch) -> None:
        for (table, owner, at), _ in batch.puts:
            check_key(self.tables[table].table, owner, at)

    def commit_one(self, batch: Batch) -> tuple[Any, ...] | None:
        """Return the parameters of :data:`COMMIT_ONE`, or None if the batch is more than it can express."""
        guards, puts = batch.guards, batch.puts
        if (
            not (1 <= len(guards) <= 2 and 2 <= len(puts) <= 3)
            or batch.deletes
            or batch.trims
            or batch.append is not None
        ):
            return None
        (head, value), (row, body), head_guard = puts[0], puts[1], guards[0]
        if head_guard.prefix is None or head_guard.key != head:
            return None
        if head[0] != self._head.number or row[0] != self._row.number:
            return None
        guard: tuple[Any, ...] = _NONE
        entry: tuple[Any, ...] = _NONE
        if len(guards) == 2:
            if not self.tables[guards[1].key[0]].named:
                return None
            guard = (*guards[1].key, guards[1].prefix)
        if len(puts) == 3:
            if not self.tables[puts[2][0][0]].named:
                return None
            entry = (*puts[2][0], puts[2][1])
        id_: Any = row[1] << self._row.bits | row[2]  # type: ignore[operator]
        return (head[1], head[2], head_guard.prefix, value, id_, body, *guard, *entry)


def stamp_number(stamp: bytes) -> int:
    return min(int.from_bytes(stamp, "big"), STAMP_MAX)


def stamp_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")
