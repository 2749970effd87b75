"""One event, and how it becomes bytes."""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from everthread.codec.records import frame, unframe
from everthread.codec.values import Open, decode_plain, encode, encode_stored
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.limits import Limits
from everthread.stores.contract import NewEvent, StoredEvent

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


class Event(msgspec.Struct, frozen=True):
    """Something that happened. Immutable, safe to share and to keep.

    ``seq`` is its place in the stream: 1, 2, 3 … in the order in which events were stored. ``at`` is when,
    by its writer's clock; the order never depends on it. ``data`` is a copy of its own.
    """

    seq: int
    type: str
    data: Any
    agent: str | None
    at_us: int

    @property
    def at(self) -> datetime.datetime:
        """When it was appended, by the writer's clock (UTC)."""
        return _EPOCH + self.at_us * _MICROSECOND

    def __hash__(self) -> int:
        return hash((self.seq, self.type, self.at_us))


class StreamRetention(msgspec.Struct, frozen=True):
    """How long a stream keeps events: for ever, unless ``ttl`` or ``keep`` says otherwise."""

    ttl: datetime.timedelta | None = None
    keep: int | None = None

    def __str__(self) -> str:
        bounds = [] if self.ttl is None else [_duration(self.ttl)]
        if self.keep is not None:
            bounds.append(f"the newest {self.keep:,}")
        return ", ".join(bounds) or "for ever"


def _duration(span: datetime.timedelta) -> str:
    seconds = span.total_seconds()
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % unit_s == 0:
            return f"{seconds / unit_s:,.0f} {unit}"
    return f"{seconds:,g} s"


Upcast = Callable[[Any], Any]


def pack_event(
    stream: str, type: str, lowered: Any, agent: str | None, at_us: int, limits: Limits
) -> NewEvent:
    """An event to store. Raises :class:`LimitError` if its data takes too many bytes."""
    check = event_sum(stream, type, agent, at_us)
    return NewEvent(at_us, type, agent, frame(encode([lowered, check], limits)))


def read_event(stream: str, stored: StoredEvent, open_: Open) -> Event:
    """An event as it was appended. Raises :class:`StateCorruptedError` if it isn't what was written."""
    where = f"event {stored.seq} of the stream {stream!r}"
    parts = decode_plain(unframe(stored.body, where), open_)
    # What a later version adds behind these is left alone.
    if type(parts) is not list or len(parts) < 2:
        raise StateCorruptedError(f"{where} can't be decoded", where=where)
    if parts[1] != event_sum(stream, stored.type, stored.agent, stored.at_us):
        raise StateCorruptedError(f"type, agent or time of {where} aren't what was written", where=where)
    return Event(stored.seq, stored.type, parts[0], stored.agent, stored.at_us)


def event_sum(stream: str, type: str, agent: str | None, at_us: int) -> int:
    """Over what stands beside the body, where a store can search for it."""
    return zlib.crc32(encode_stored([stream, type, agent, at_us]))


def microseconds(at: datetime.datetime, what: str) -> int:
    """A time as events keep it. Raises for one without a time zone: whose midnight is it?"""
    if not isinstance(at, datetime.datetime) or at.tzinfo is None:
        raise InvalidValueError(
            f"{what} must be a datetime with a time zone, such as datetime.now(UTC)", path=what
        )
    return (at - _EPOCH) // _MICROSECOND


def seq_of(event: Event | int, what: str) -> int:
    """The seq of an event that is given by itself or by number."""
    seq = event.seq if isinstance(event, Event) else event
    if type(seq) is not int or seq < 0:
        raise InvalidValueError(f"{what} must be an event or its seq", path=what)
    return seq
