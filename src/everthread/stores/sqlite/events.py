"""Streams of events in SQLite.

Events are found by time although clocks disagree: each keeps the latest time up to it (``peak_us``), which
only grows along a stream, and the stream how far any event's time lies below that (``late_us``). An event
between two times is then between two seqs that an index finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from everthread.errors import LimitError, StateCorruptedError
from everthread.stores.contract import EVENT_SEQ_MAX, NewEvent, StoredEvent

#: An event's id is stream << 36 | seq, so that a stream's events are neighbours, in order.
SEQ_BITS = 36
STREAM_MAX = (1 << 63 - SEQ_BITS) - 1

_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1

CREATE = "INSERT INTO stream (space, name) VALUES (?1, ?2)"
STREAM = "SELECT id, first, last, peak_us, late_us FROM stream WHERE space = ?1 AND name = ?2"
STREAMS = """
    SELECT name, last FROM stream
    WHERE space = ?1 AND name >= ?2 AND name > ?3 AND last >= first ORDER BY name LIMIT ?4
"""
GROW = "UPDATE stream SET last = ?2, peak_us = ?3, late_us = ?4 WHERE id = ?1"
EMPTY = "UPDATE stream SET first = last + 1, peak_us = NULL, late_us = 0 WHERE id = ?1"

ADD = "INSERT INTO event (id, stream, type, agent, at_us, peak_us, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
DELETE = "DELETE FROM event WHERE id BETWEEN ?1 AND ?2"
REWRITE = "UPDATE event SET body = ?2 WHERE id = ?1"

#: The first event that can have a time of ?2 or later; the last one that can have ?2 or earlier.
SINCE = """
    SELECT id FROM event INDEXED BY event_peak WHERE stream = ?1 AND peak_us >= ?2
    ORDER BY peak_us, id LIMIT 1
"""
UNTIL = """
    SELECT id FROM event INDEXED BY event_peak WHERE stream = ?1 AND peak_us <= ?2
    ORDER BY peak_us DESC, id DESC LIMIT 1
"""
EVENTS = """
    SELECT id & 0xfffffffff, at_us, type, agent, body FROM event
    WHERE id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5
"""
EVENTS_OF_TYPE = """
    SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_type
    WHERE type = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5
"""
EVENTS_OF_AGENT = """
    SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_agent
    WHERE agent = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?5
"""
EVENTS_OF_TYPE_AND_AGENT = """
    SELECT id & 0xfffffffff, at_us, type, agent, body FROM event INDEXED BY event_type
    WHERE type = ?6 AND id BETWEEN ?1 AND ?2 AND at_us BETWEEN ?3 AND ?4 AND agent = ?7 ORDER BY id LIMIT ?5
"""

#: What streams say about their events and isn't so; events that aren't where their stream is.
WRONG_STREAMS = """
    SELECT s.name FROM stream s LEFT JOIN (
        SELECT stream, count(*) AS count, min(id) AS first, max(id) AS last, max(at_us) AS peak_us,
               max(peak_us - at_us) AS late_us
        FROM event GROUP BY stream
    ) e ON e.stream = s.id
    WHERE coalesce(e.count, 0) <> s.last - s.first + 1
       OR e.peak_us IS NOT s.peak_us OR coalesce(e.late_us, 0) > s.late_us
       OR e.first <> s.id << 36 | s.first OR e.last <> s.id << 36 | s.last
"""
#: Events whose latest time so far isn't the latest so far: a search by time would miss some.
WRONG_PEAKS = """
    SELECT s.name, e.id & 0xfffffffff FROM (
        SELECT id, stream, peak_us, max(at_us) OVER (PARTITION BY stream ORDER BY id) AS true_us FROM event
    ) e JOIN stream s ON s.id = e.stream WHERE e.peak_us <> e.true_us LIMIT 100
"""


def add_events(db: apsw.Connection, space: str, stream: str, events: Sequence[NewEvent]) -> int:
    """Inside a transaction of the caller's: whoever holds it is alone, so seqs have no gaps."""
    assert events, "at least one event"
    found = _stream(db, space, stream)
    if found is None:
        db.execute(CREATE, (space, stream))
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
            (number << SEQ_BITS | seq, number, event.type, event.agent, event.at_us, peak, event.body)
        )
    try:
        db.executemany(ADD, rows)
    except apsw.ConstraintError as error:
        where = f"the stream {stream!r}"
        raise StateCorruptedError(
            f"{where} holds events behind its last one; run store.verify()", where=where
        ) from error
    db.execute(GROW, (number, last + len(events), peak, min(late, _TIME_MAX)))
    return last + 1


def rewrite(db: apsw.Connection, space: str, stream: str, bodies: Mapping[int, bytes]) -> int:
    """Inside a transaction of the caller's: other bodies for events that are there; how many these were."""
    found = _stream(db, space, stream)
    rewritten = 0
    for seq, body in bodies.items() if found is not None else ():
        db.execute(REWRITE, (found[0] << SEQ_BITS | seq, body) if found else ())
        rewritten += db.changes()
    return rewritten


def _stream(db: apsw.Connection, space: str, stream: str) -> tuple[int, int, int, int | None, int] | None:
    """Number, first and last seq, latest time and greatest lateness of a stream."""
    found: list[Any] = db.execute(STREAM, (space, stream)).fetchall()
    return found[0] if found else None


def read_events(
    db: apsw.Connection,
    space: str,
    stream: str,
    after: int,
    limit: int,
    *,
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
        start = max(start, _seq(db, SINCE, number, since_us, last + 1))
    if until_us is not None:
        stop = min(stop, _seq(db, UNTIL, number, until_us + late, 0))
    if start > stop:
        return []
    base = number << SEQ_BITS
    common = (
        base | start,
        base | stop,
        _TIME_MIN if since_us is None else _in_range(since_us),
        _TIME_MAX if until_us is None else _in_range(until_us),
        limit,
    )
    if type is not None and agent is not None:
        cursor = db.execute(EVENTS_OF_TYPE_AND_AGENT, (*common, type, agent))
    elif type is not None:
        cursor = db.execute(EVENTS_OF_TYPE, (*common, type))
    elif agent is not None:
        cursor = db.execute(EVENTS_OF_AGENT, (*common, agent))
    else:
        cursor = db.execute(EVENTS, common)
    rows: list[Any] = cursor.fetchall()
    return [StoredEvent(*columns) for columns in rows]


def _seq(db: apsw.Connection, bound: str, number: int, at_us: int, otherwise: int) -> int:
    found: list[Any] = db.execute(bound, (number, _in_range(at_us))).fetchall()
    return int(found[0][0]) & EVENT_SEQ_MAX if found else otherwise


def _in_range(at_us: int) -> int:
    return min(max(at_us, _TIME_MIN), _TIME_MAX)


def list_streams(
    db: apsw.Connection, space: str, prefix: str, after: str | None, limit: int
) -> list[tuple[str, int]]:
    rows: list[Any] = db.execute(STREAMS, (space, prefix, after or "", limit)).fetchall()
    return [(name, last) for name, last in rows if name.startswith(prefix)]


def empty_stream(db: apsw.Connection, space: str, stream: str) -> bool:
    """Inside a transaction of the caller's. The stream itself stays, so that its seqs never repeat."""
    found = _stream(db, space, stream)
    if found is None or found[2] < found[1]:
        return False
    number, first, last, *_ = found
    db.execute(DELETE, (number << SEQ_BITS | first, number << SEQ_BITS | last))
    db.execute(EMPTY, (number,))
    return True


def damaged_streams(db: apsw.Connection) -> list[str]:
    """Where streams and events contradict each other. Reads every event."""
    streams: list[Any] = db.execute(WRONG_STREAMS).fetchall()
    peaks: list[Any] = db.execute(WRONG_PEAKS).fetchall()
    return [
        *(f"the stream {name!r} isn't what its events say" for (name,) in streams),
        *(f"event {seq} of the stream {name!r} isn't found by its time" for name, seq in peaks),
    ]
