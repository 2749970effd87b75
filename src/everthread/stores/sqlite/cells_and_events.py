"""Cells and streams of events in SQLite. Cells are small registers, replaced by compare-and-set.

Events are found by time although clocks disagree: each keeps the latest time up to it (``peak_us``), which
only grows along a stream, and the stream how far any event's time lies below that (``late_us``). An event
between two times is then between two seqs that an index finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from everthread.errors import LimitError, StateCorruptedError
from everthread.stores.contract import (
    EVENT_SEQ_MAX,
    Cell,
    NewEvent,
    PutCell,
    SealedRow,
    StaleCell,
    StoredEvent,
)
from everthread.stores.sqlite.connection import Connections, Reading, Settings, synchronous
from everthread.stores.sqlite.schema import SQL
from everthread.stores.sqlite.sealed import add_sealed, refusal


class CellVerbs:
    """The contract's verbs for cells."""

    _settings: Settings
    _connections: Connections

    def cell(self, space: str, name: str, now_us: int) -> Cell | None:
        with Reading(self._connections) as db:
            return _read_cell(db, space, name, now_us)

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


def _read_cell(db: apsw.Connection, space: str, name: str, now_us: int) -> Cell | None:
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
        raise StaleCell(_read_cell(db, space, name, now_us))
    return revision


def _remove(db: apsw.Connection, space: str, name: str, expected: int) -> bool:
    if not expected:
        return _read_cell(db, space, name, 0) is None
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


# ── streams of events ──────────────────────────────────────────────────────────────────────────────


#: An event's id is stream << 36 | seq, so that a stream's events are neighbours, in order.
EVENT_BITS = 36
STREAM_MAX = (1 << 63 - EVENT_BITS) - 1

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class EventVerbs:
    """The contract's verbs for streams of events."""

    _connections: Connections

    def emit(
        self, space: str, stream: str, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            if erased := refusal(db, sealed):
                raise erased
            first = _add(db, space, stream, events)
            add_sealed(db, sealed)
            db.execute("COMMIT")
        return first

    def events(
        self,
        space: str,
        stream: str,
        after: int,
        limit: int,
        *,
        type: str | None = None,
        agent: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[StoredEvent]:
        with Reading(self._connections) as db:
            return _read_events(db, space, stream, after, limit, type, agent, since_us, until_us)

    def streams(self, space: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, int]]:
        with Reading(self._connections) as db:
            bounds = max(prefix, after or ""), after or ""
            rows: list[Any] = db.execute(SQL["streams"], (space, *bounds, limit)).fetchall()
        return [(name, last) for name, last in rows if name.startswith(prefix)]

    def trim_stream(self, space: str, stream: str, up_to: int) -> int:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            trimmed = _trim(db, space, stream, up_to)
            db.execute("COMMIT")
        return trimmed

    def rewrite_events(self, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
        with self._connections as db:
            db.execute("BEGIN IMMEDIATE")
            rewritten = _rewrite(db, space, stream, bodies)
            db.execute("COMMIT")
        return rewritten


def _add(db: apsw.Connection, space: str, stream: str, events: Sequence[NewEvent]) -> int:
    """Inside a transaction of the caller's: whoever holds it is alone, so seqs have no gaps."""
    assert events, "at least one event"
    found = _stream(db, space, stream)
    if found is None:
        db.execute(SQL["create_stream"], (space, stream))
        found = db.last_insert_rowid(), 1, 0, None, 0
    number, _, last, peak, late = found
    if number > STREAM_MAX:
        raise LimitError("this store holds as many streams as it can; go on in another store")
    if last + len(events) > EVENT_SEQ_MAX:
        raise LimitError(f"the stream {stream!r} is full; go on in another one")
    peak = events[0].at_us if peak is None else peak
    rows = []
    for seq, event in enumerate(events, last + 1):
        peak = max(peak, event.at_us)
        late = max(late, peak - event.at_us)
        rows.append(
            (number << EVENT_BITS | seq, number, event.type, event.agent, event.at_us, peak, event.body)
        )
    try:
        db.executemany(SQL["add_event"], rows)
    except apsw.ConstraintError as error:
        where = f"the stream {stream!r}"
        raise StateCorruptedError(
            f"{where} holds events behind its last one; run store.verify()", where=where
        ) from error
    db.execute(SQL["grow_stream"], (number, last + len(events), peak, min(late, _TIME_MAX)))
    return last + 1


def _rewrite(db: apsw.Connection, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
    """Inside a transaction of the caller's: other bodies for events that are there; how many these were."""
    found = _stream(db, space, stream)
    rewritten = 0
    for seq, body in bodies.items() if found is not None else ():
        db.execute(SQL["rewrite_event"], (found[0] << EVENT_BITS | seq, body) if found else ())
        rewritten += db.changes()
    return rewritten


def _stream(db: apsw.Connection, space: str, stream: str) -> tuple[int, int, int, int | None, int] | None:
    """Number, first and last seq, latest time and greatest lateness of a stream."""
    found: list[Any] = db.execute(SQL["stream"], (space, stream)).fetchall()
    return found[0] if found else None


def _read_events(
    db: apsw.Connection,
    space: str,
    stream: str,
    after: int,
    limit: int,
    type: str | None,
    agent: str | None,
    since_us: int | None,
    until_us: int | None,
) -> list[StoredEvent]:
    found = _stream(db, space, stream)
    if found is None or after >= found[2]:
        return []
    number, first, last, _, late = found
    start, stop = max(after + 1, first), last
    if since_us is not None:
        start = max(start, _seq(db, SQL["first_event_since"], number, since_us, last + 1))
    if until_us is not None:
        stop = min(stop, _seq(db, SQL["last_event_until"], number, until_us + late, 0))
    if start > stop:
        return []
    base = number << EVENT_BITS
    common = (
        base | start,
        base | stop,
        _TIME_MIN if since_us is None else _in_range(since_us),
        _TIME_MAX if until_us is None else _in_range(until_us),
        limit,
    )
    if type is not None and agent is not None:
        cursor = db.execute(SQL["events_of_type_and_agent"], (*common, type, agent))
    elif type is not None:
        cursor = db.execute(SQL["events_of_type"], (*common, type))
    elif agent is not None:
        cursor = db.execute(SQL["events_of_agent"], (*common, agent))
    else:
        cursor = db.execute(SQL["events"], common)
    rows: list[Any] = cursor.fetchall()
    return [StoredEvent(*columns) for columns in rows]


def _seq(db: apsw.Connection, bound: str, number: int, at_us: int, otherwise: int) -> int:
    found: list[Any] = db.execute(bound, (number, _in_range(at_us))).fetchall()
    return int(found[0][0]) & EVENT_SEQ_MAX if found else otherwise


def _in_range(at_us: int) -> int:
    return min(max(at_us, _TIME_MIN), _TIME_MAX)


def _trim(db: apsw.Connection, space: str, stream: str, up_to: int) -> int:
    """Inside a transaction of the caller's. The stream itself stays, so that its seqs never repeat."""
    found = _stream(db, space, stream)
    if found is None:
        return 0
    number, first, last, *_ = found
    up_to = min(up_to, last)
    if up_to < first:
        return 0
    db.execute(SQL["delete_events"], (number << EVENT_BITS | first, number << EVENT_BITS | up_to))
    db.execute(SQL["trim_stream"], (number, up_to))
    return up_to - first + 1


def damaged_streams(db: apsw.Connection) -> list[str]:
    """Where streams and events contradict each other. Reads every event."""
    streams: list[Any] = db.execute(SQL["wrong_streams"]).fetchall()
    peaks: list[Any] = db.execute(SQL["wrong_peaks"]).fetchall()
    return [
        *(f"the stream {name!r} isn't what its events say" for (name,) in streams),
        *(f"event {seq} of the stream {name!r} isn't found by its time" for name, seq in peaks),
    ]
