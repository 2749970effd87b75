# Generated from src/everthread/events/aio/trim.py by tools/twin.py: change that, then run: make twin
"""Trimming: the oldest events of a stream go, by hand or as its retention says.

A stream that was trimmed and one that was deleted look alike: both begin later than they did. Whoever comes
back to a stream must tell them apart, so trimming keeps a record of itself in a cell, beside the retention.
"""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import TYPE_CHECKING

from everthread.arguments import check_count
from everthread.errors import EventsTrimmedError, InvalidValueError, UnsupportedError
from everthread.events.event import Event, StreamRetention, microseconds, seq_of
from everthread.events.saved import Trimming, cell_name, pack_trimming, read_trimming
from everthread.stores.contract import Cell, StaleCell
from everthread.threads.lifetimes import Lifetime, ttl_us

if TYPE_CHECKING:
    from everthread.events.sync.stream import EventStream

#: A stream with a retention is trimmed whenever so many events have come to it.
RETAIN_EVERY = 1000


def trim(stream: EventStream, up_to: int) -> int:
    """Remove the events up to this one; how many there were."""
    core = stream.core
    first, last = stream._first_seq(), stream._last_seq()
    up_to = min(up_to, last)
    if not first or up_to < first:
        return 0
    while True:
        cell, known = trimming(stream)
        if up_to <= known.up_to:
            break
        try:
            # First, so that nobody takes the stream for one that was deleted.
            _write(stream, cell, known._replace(origin=known.origin or first, up_to=up_to))
            break
        except StaleCell:
            continue
    if core.backend.cells(core.space, cell_name("projection", stream.name) + "/", None, 1):
        # What a projection made of these events can't be made again: it must be there for good before they
        # go.
        with suppress(UnsupportedError):
            core.backend.persist()
    return core.backend.trim_stream(core.space, stream.name, up_to)


def bound(stream: EventStream, before: Event | int | datetime.datetime | None, keep: int | None) -> int:
    """The seq up to which events go. Raises :class:`InvalidValueError` unless one of the two is given."""
    if (before is None) == (keep is None):
        raise InvalidValueError("trim() takes either before= or keep=", path="before")
    if keep is not None:
        return stream._last_seq() - check_count(keep, "keep", least=0)
    if isinstance(before, datetime.datetime):
        return _last_before(stream, microseconds(before, "before"))
    assert before is not None
    return seq_of(before, "before") - 1


def _last_before(stream: EventStream, at_us: int) -> int:
    """The seq before the first event that isn't older than this; later ones that are don't count."""
    core = stream.core
    # Asked first: what comes after that is younger, or at least nobody has looked at it.
    last = stream._last_seq()
    page = core.backend.events(core.space, stream.name, 0, 1, since_us=at_us)
    return page[0].seq - 1 if page else last


def retain(stream: EventStream, ttl: Lifetime, keep: int | None) -> None:
    """Set the retention of a stream."""
    chosen = {"ttl_us": ttl_us(ttl), "keep": 0 if keep is None else check_count(keep, "keep", least=1)}
    while True:
        cell, known = trimming(stream)
        try:
            _write(stream, cell, known._replace(**chosen))
            return
        except StaleCell:
            continue


def retention(stream: EventStream) -> StreamRetention:
    """The retention of a stream."""
    _, known = trimming(stream)
    ttl = datetime.timedelta(microseconds=known.ttl_us) if known.ttl_us else None
    return StreamRetention(ttl, known.keep or None)


def due(stream: EventStream) -> int:
    """The seq up to which events go by the retention of a stream; 0 if none do."""
    _, known = trimming(stream)
    up_to = 0
    if known.keep:
        up_to = stream._last_seq() - known.keep
    if known.ttl_us:
        up_to = max(up_to, _last_before(stream, stream.core.runtime.now_us() - known.ttl_us))
    return max(up_to, 0)


def forget(stream: EventStream) -> None:
    """After a stream was deleted: it begins anew, and keeps its retention."""
    while True:
        cell, known = trimming(stream)
        if not known.origin:
            return
        try:
            _write(stream, cell, known._replace(origin=0, up_to=0))
            return
        except StaleCell:
            continue


def check_reached(stream: EventStream, after: int) -> None:
    """Raises :class:`EventsTrimmedError` if the event after this one was trimmed. Nobody has seen any before
    the first, so 0 is never too early."""
    if after < 1:
        return
    _, known = trimming(stream)
    if not known.origin or after + 1 < known.origin:
        return
    first = stream._first_seq() or known.up_to + 1
    if after + 1 < first:
        raise EventsTrimmedError(
            f"events {after + 1} to {first - 1} of the stream {stream.name!r} were trimmed. To go on with "
            f"the first that is kept: after={first - 1}, seek({first - 1}), or a new version of a projection",
            stream=stream.name,
            first=first,
        )


def trimming(stream: EventStream) -> tuple[Cell | None, Trimming]:
    """What is recorded of the trimming of a stream, with its cell."""
    core = stream.core
    cell = core.backend.cell(core.space, cell_name("trim", stream.name), core.runtime.now_us())
    where = f"the record of trimming of {stream.name!r}"
    return cell, Trimming() if cell is None else read_trimming(cell.value, where)


def _write(stream: EventStream, cell: Cell | None, record: Trimming) -> None:
    core = stream.core
    value = pack_trimming(record) if record != Trimming() else None
    if cell is None and value is None:
        return
    revision = 0 if cell is None else cell.revision
    name = cell_name("trim", stream.name)
    core.backend.swap(core.space, name, revision, value, core.runtime.now_us())
