"""From the columns of a query to the rows of the contract."""

from __future__ import annotations

from typing import Any

from everthread.codec.values import decode
from everthread.stores.contract import Found, Line, Row
from everthread.stores.sqlite import schema


def row_id(line: int, seq: int) -> int:
    return line << schema.SEQ_BITS | seq


_LINE_FIELDS = (
    "id",
    "uid",
    "space",
    "name",
    "root",
    "parent",
    "parent_seq",
    "parent_segment",
    "parent_hash",
    "start_hash",
)


def to_line(columns: tuple[Any, ...]) -> Line:
    *fields, counts, deleted = columns
    return Line(
        **dict(zip(_LINE_FIELDS, fields, strict=True)),
        counts=decode(counts) if counts else {},
        deleted=bool(deleted),
    )


def to_row(columns: tuple[Any, ...]) -> Row:
    return Row(columns[0] & schema.SEQ_MASK, *columns[1:])


def to_found(columns: tuple[Any, ...]) -> Found:
    return Found(to_line(columns[:12]), None if columns[12] is None else to_row(columns[12:19]), columns[19])
