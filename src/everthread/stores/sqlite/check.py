"""What only the SQLite store can say about its own soundness: its pages, its tables, the sums of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import apsw

from everthread.errors import StateCorruptedError
from everthread.stores.contract import Line
from everthread.stores.sqlite import sealed
from everthread.stores.sqlite.connection import Reading
from everthread.stores.sqlite.events import damaged_streams
from everthread.stores.sqlite.rows import chunk_fits, tag_fits, tagged_seq, to_line
from everthread.stores.sqlite.schema import MIGRATIONS, SQL

#: As many findings of one kind are told; more say nothing new.
_TOLD_MAX = 100


def misled(db: apsw.Connection, space: str, name: str) -> bool:
    """Whether the search for a name that wasn't found passed a damaged entry of the index.

    The entry that should have been found stands where the search ended, whatever it says now.
    """
    found: list[Any] = db.execute(SQL["names_around"], (space, name)).fetchall()
    return any(columns[:2] != columns[2:] for columns in found)


def check(db: apsw.Connection) -> list[str]:
    """Everything that is wrong, in words. Goes on after each failure."""
    found: list[str] = []
    for part in (
        _pages,
        _definitions,
        _lines,
        _seals,
        _homeless,
        _chunks,
        _tags,
        sealed.damaged,
        damaged_streams,
    ):
        told = 0
        try:
            for problem in part(db):
                told += 1
                if told > _TOLD_MAX:
                    found.append("… and more of the same")
                    break
                found.append(problem)
        except (apsw.Error, AttributeError, TypeError, ValueError, OverflowError) as error:
            # From a damaged page any column may come as any type, whatever the table says.
            if not told:
                found.append(str(error))
    return found


def _pages(db: apsw.Connection) -> Iterator[str]:
    for (text,) in db.execute(SQL["integrity"]).fetchall():
        if text != "ok":
            yield str(text)


def _definitions(db: apsw.Connection) -> Iterator[str]:
    """A flipped bit in the definition of a table or index changes what every later statement means."""
    fresh = apsw.Connection(":memory:")
    try:
        for migration in MIGRATIONS:
            fresh.execute(migration)
        expected = set(fresh.execute(SQL["definitions"]).fetchall())
    finally:
        fresh.close()
    for kind, name, _ in expected.symmetric_difference(db.execute(SQL["definitions"]).fetchall()):
        yield f"the definition of {kind} {name!r} isn't the one it was made with"


def _lines(db: apsw.Connection) -> Iterator[str]:
    for columns in db.execute(SQL["all_lines"]):
        try:
            to_line(columns)
        except StateCorruptedError as error:
            yield str(error)


def _seals(db: apsw.Connection) -> Iterator[str]:
    for (line,) in db.execute(SQL["wrong_seals"]):
        yield f"line {line} is marked as deleted and isn't sealed, or the other way round"


def _homeless(db: apsw.Connection) -> Iterator[str]:
    for line, seq in db.execute(SQL["records_without_line"]):
        yield f"version {seq} belongs to line {line}, which doesn't exist"


def _chunks(db: apsw.Connection) -> Iterator[str]:
    for number, line, log, *columns in db.execute(SQL["all_chunks"]):
        placed, printed = chunk_fits(line, log, tuple(columns))
        if not placed:
            yield f"chunk {number} of log {log!r} of line {line} isn't where it belongs"
        elif not printed:
            yield f"the fingerprints of chunk {number} of log {log!r} of line {line} fail their checksum"


def _tags(db: apsw.Connection) -> Iterator[str]:
    for line, found, untagged, newest in db.execute(SQL["tagged_lines"]):
        covered = tagged_seq(line, found)
        if (found and not covered) or (newest or 0) < covered or (not untagged and (newest or 0) > covered):
            yield f"up to which version the metadata of line {line} is indexed isn't known"
    for line, name, value, found in db.execute(SQL["all_tags"]):
        if not tag_fits(line, name, value, found):
            yield f"the index of the metadata {name!r} of line {line} fails its checksum"


#: So many numbers are tried where the table of lines can't be read; a damaged one may be any.
_NUMBERS_MAX = 100_000


def every_line(reading: Callable[[], Reading]) -> Iterator[Line]:
    """All lines, by id, without those that are damaged: :func:`check` names these."""
    after = 0
    while True:
        try:
            with reading() as db:
                rows: list[Any] = db.execute(SQL["every_line"], (after,)).fetchall()
            if not rows:
                return
        except StateCorruptedError:
            # A page of the table can't be read: whatever is on others is found one by one.
            with reading() as db:
                ever: Any = db.execute(SQL["lines_ever"]).fetchall()[0][0]
            break
        yield from _intact(rows)
        # In a damaged table they needn't be in order: then what comes next has been there already.
        if rows[-1][0] <= after:
            return
        after = rows[-1][0]
    for number in range(after + 1, min(ever or 0, after + _NUMBERS_MAX) + 1):
        with suppress(StateCorruptedError):
            with reading() as db:
                rows = db.execute(SQL["line"], (number,)).fetchall()
            yield from _intact(rows)


def unreadable_lines(reading: Callable[[], Reading]) -> list[str]:
    """What :func:`every_line` leaves out."""
    try:
        with reading() as db:
            return list(_lines(db))
    except StateCorruptedError as error:
        return [str(error)]


def _intact(rows: list[Any]) -> Iterator[Line]:
    for columns in rows:
        with suppress(StateCorruptedError):
            yield to_line(columns)
