"""Streams: events in commit order without gaps, with entries by time, type and agent.

A stream that was trimmed keeps its highest number as an empty event, so that numbers are never used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everthread.errors import LimitError, StateCorruptedError
from everthread.records.checked import CheckedStore
from everthread.records.keys import (
    Put,
    decode_name,
    decode_number,
    encode_name,
    encode_number,
    end_of_prefix,
    only,
    start_after,
)
from everthread.records.numbers import Numbers
from everthread.records.sealed import guard_sealed, put_sealed
from everthread.records.tables import EVENT, EVENT_INDEX, STREAM
from everthread.stores.contract import EVENT_SEQ_MAX, NewEvent, SealedRow, StoredEvent
from everthread.stores.interface import Append, Batch, Guard, Page, Refused, Span

_END = EVENT_SEQ_MAX + 1
_PAGE = 500
_ZERO = 1 << 63
_TIME, _TYPE, _AGENT = b"t", b"y", b"a"

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(tuple[int, str, str | None, bytes]).decode


def _by_time(at_us: int) -> bytes:
    """Return the name for a time, in the order of times; before 1970 they are negative."""
    return _TIME + encode_number(min(max(at_us + _ZERO, 0), 2 * _ZERO - 1))


def _by_type(type: str) -> bytes:
    return _TYPE + encode_name(type) + b"\0"


def _by_agent(agent: str) -> bytes:
    return _AGENT + encode_name(agent) + b"\0"


def _index_names(event: NewEvent | StoredEvent) -> list[bytes]:
    names = [_by_time(event.at_us), _by_type(event.type)]
    return names if event.agent is None else [*names, _by_agent(event.agent)]


def _content(event: NewEvent | StoredEvent) -> bytes:
    return _encode((event.at_us, event.type, event.agent, event.body))


def _read(seq: int, content: bytes) -> StoredEvent:
    try:
        return StoredEvent(seq, *_decode(content))
    except (msgspec.MsgspecError, ValueError) as error:
        raise StateCorruptedError(f"event {seq} can't be decoded", where="event") from error


class Streams:
    """Appends, reads, trims and rewrites events."""

    def __init__(self, store: CheckedStore, numbers: Numbers) -> None:
        self._store = store
        self._numbers = numbers
        self._known: dict[tuple[int, str], int] = {}

    def forget(self) -> None:
        """Forget what was read, because the whole content has been replaced."""
        self._known.clear()

    async def find(self, namespace: int, stream: str) -> int:
        """Return the number of a stream, 0 if it has never had an event."""
        number = self._known.get((namespace, stream), 0)
        if not number:
            (value,) = await self._store.get((STREAM.number, namespace, encode_name(stream)))
            if value is not None:
                number = self._known[namespace, stream] = decode_number(value)
        return number

    async def make(self, namespace: int, stream: str) -> int:
        """Return the number of a stream; assign one if it has none."""
        while not (number := await self.find(namespace, stream)):
            key = STREAM.number, namespace, encode_name(stream)
            value = encode_number(await self._numbers.next())
            await self._store.write_one(Batch([Guard(key, None)], [(key, value)], durable=False))
        return number

    async def append(
        self, stream: int, events: Sequence[NewEvent], sealed: Sequence[SealedRow] = ()
    ) -> int | Refused:
        """Append events, all or none, durably; return the number of the first.

        Any number of writers may append at once. Refused if a value is sealed under an erased key. Raises
        ``LimitError`` if the stream is full. Don't repeat it blindly: it has no guard of its own.
        """
        values = [_content(event) for event in events]
        names = [_index_names(event) for event in events]
        append = Append(EVENT.number, stream, values, EVENT_INDEX.number, names)
        batch = Batch(guard_sealed(sealed), put_sealed(sealed), append=append)
        try:
            return await self._store.write_one(batch)
        except LimitError as error:
            raise LimitError("the stream is full: it has had 2**36 - 1 events; use another stream") from error

    # ── reading ──

    async def page(
        self, stream: int, after: int, limit: int, *, type: str | None = None, agent: str | None = None
    ) -> list[StoredEvent]:
        """Return up to ``limit`` events with a higher number than ``after``, of this type and agent."""
        found: list[StoredEvent] = []
        while len(found) < limit:
            wanted = limit - len(found)
            if type is None and agent is None:
                page = await self._store.page(EVENT.number, stream, after + 1, _END, wanted)
                events = [_read(seq, content) for seq, content in page if content]
                seqs = [seq for seq, _ in page]
            else:
                seqs = await self._indexed(stream, after, wanted, type, agent)
                events = await self._get(stream, seqs)
            found += [event for event in events if _matches(event, type, agent)]
            if len(seqs) < wanted:
                break
            after = seqs[-1]
        return found

    async def _indexed(
        self, stream: int, after: int, limit: int, type: str | None, agent: str | None
    ) -> list[int]:
        """Return the numbers of events of a type, or of an agent if no type is given."""
        name = _by_agent(agent or "") if type is None else _by_type(type)
        start, stop = name + encode_number(after + 1), end_of_prefix(name)
        found = await self._store.page(EVENT_INDEX.number, stream, start, stop, limit)
        return [decode_number(at[-8:]) for at, _ in found]

    async def between(
        self,
        stream: int,
        since_us: int | None,
        until_us: int | None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[int, int]]:
        """Return ``(time, number)`` of up to ``limit`` events by time, both ends included, after this one."""
        start = _TIME if since_us is None else _by_time(since_us)
        if after is not None:
            start = max(start, _by_time(after[0]) + encode_number(after[1] + 1))
        stop = end_of_prefix(_TIME if until_us is None else _by_time(until_us))
        if start >= stop:
            return []
        found = await self._store.page(EVENT_INDEX.number, stream, start, stop, limit)
        return [(decode_number(at[1:9]) - _ZERO, decode_number(at[9:])) for at, _ in found]

    async def between_by_number(
        self,
        stream: int,
        after: int,
        limit: int,
        *,
        since_us: int | None,
        until_us: int | None,
        type: str | None = None,
        agent: str | None = None,
    ) -> list[StoredEvent]:
        """Return up to ``limit`` events of a time range in order of their numbers.

        Reads an index entry for every event in the range: :meth:`between` doesn't.
        """
        seqs: list[int] = []
        place: tuple[int, int] | None = None
        while page := await self.between(stream, since_us, until_us, place, _PAGE):
            seqs += [seq for _, seq in page if seq > after]
            place = page[-1]
        seqs.sort()
        found: list[StoredEvent] = []
        for first in range(0, len(seqs), _PAGE):
            events = await self._get(stream, seqs[first : first + _PAGE])
            found += [event for event in events if _matches(event, type, agent)]
            if len(found) >= limit:
                break
        return found[:limit]

    async def _get(self, stream: int, seqs: Sequence[int]) -> list[StoredEvent]:
        contents = await self._store.get(*((EVENT.number, stream, seq) for seq in seqs))
        return [_read(seq, content) for seq, content in zip(seqs, contents, strict=True) if content]

    async def names(
        self, namespace: int, prefix: str, after: str | None, limit: int
    ) -> list[tuple[str, int]]:
        """Return up to ``limit`` streams that hold events, by name, with their highest number."""
        found: list[tuple[str, int]] = []
        start, stop = start_after(prefix, after), end_of_prefix(encode_name(prefix))
        while len(found) < limit:
            page = await self._store.page(STREAM.number, namespace, start, stop, limit)
            numbers = [decode_number(content) for _, content in page]
            newest: list[Any] = await self._store.read(
                [Page(EVENT.number, number, 1, _END, 1, True) for number in numbers]
            )
            for (at, _), last in zip(page, newest, strict=True):
                if last and last[0][1]:
                    found.append((decode_name(at), last[0][0]))
            if len(page) < limit:
                break
            start = page[-1][0] + b"\0"
        return found[:limit]

    # ── replacing ──

    async def trim(self, stream: int, up_to: int) -> int:
        """Delete the events up to this number, oldest first; return how many there were.

        Interrupted, it has deleted some of them; repeating it finishes it.
        """
        count = 0
        while True:
            query = Page(EVENT.number, stream, 1, min(up_to, EVENT_SEQ_MAX) + 1, _PAGE)
            page, newest = await self._store.read([query, Page(EVENT.number, stream, 1, _END, 1, True)])
            events = [_read(seq, content) for seq, content in page if content]
            if not events:
                return count
            last = page[-1][0]
            deletes = [Span(EVENT.number, stream, 1, last + 1)]
            for event in events:
                number = encode_number(event.seq)
                deletes += [only(EVENT_INDEX, stream, name + number) for name in _index_names(event)]
            is_newest = newest[0][0] == last
            puts: list[Put] = [((EVENT.number, stream, last), b"")] if is_newest else []
            await self._store.write_one(Batch((), puts, deletes))
            count += len(events)

    async def rewrite(self, stream: int, bodies: Mapping[int, bytes]) -> int:
        """Replace the bodies of events by number, all at once, durably; return how many there were."""
        while True:
            events = await self._get(stream, sorted(bodies))
            guards = [Guard((EVENT.number, stream, event.seq), _content(event)) for event in events]
            puts: list[Put] = []
            for event in events:
                new = msgspec.structs.replace(event, body=bodies[event.seq])
                puts.append(((EVENT.number, stream, event.seq), _content(new)))
            if not isinstance(await self._store.write_one(Batch(guards, puts)), Refused):
                return len(events)


def _matches(event: StoredEvent, type: str | None, agent: str | None) -> bool:
    return type in (None, event.type) and agent in (None, event.agent)
