"""A stream of events as its user sees it."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from everthread.arguments import check_function, check_mapping, check_name, check_seconds, check_several
from everthread.codec.values import lower
from everthread.errors import EventsTrimmedError, EverthreadError, InvalidValueError, UsageError
from everthread.events.aio import trim as trims
from everthread.events.aio.consumer import AsyncConsumer
from everthread.events.aio.group import AsyncConsumerGroup
from everthread.events.aio.projection import AsyncProjection, Projector, advance
from everthread.events.event import (
    Event,
    StreamRetention,
    Upcast,
    microseconds,
    pack_event,
    read_event,
    seq_of,
)
from everthread.events.saved import cell_name
from everthread.stores.contract import EVENT_SEQ_MAX, KeyErased, StaleCell, StoredEvent
from everthread.threads.aio.core import Core
from everthread.threads.lifetimes import Lifetime
from everthread.threads.sealing import SealedRow, erased_meanwhile
from everthread.threads.twins import ASYNC, StreamedFace, streamed

#: How much a page of events should hold: enough to be quick, too little to fill the memory.
_PAGE_BYTES = 4 * 1024 * 1024
_PAGE_EVENTS = 1000
_FIRST_PAGE_EVENTS = 100
_CELLS = 1000
#: A watch looks at the stream again after so long, later and later while nothing comes.
_WATCH_S_MIN, _WATCH_S_MAX = 0.02, 1.0

#: An event to append: an :class:`Event`, or its type, data and perhaps agent.
Appendable = Event | tuple[str, Any] | tuple[str, Any, str | None]


class AsyncEventStream(StreamedFace):
    """Events in the order in which they were stored. Many writers, no conflicts, nothing is ever changed.

    It keeps nothing in memory and is safe to share between threads. ``upcast`` maps a type of event to a
    function that brings the data of old ones up to date when they are read; what is stored stays as it is.
    """

    def __init__(self, core: Core, name: str, upcast: Mapping[str, Upcast] | None = None) -> None:
        self.core = core
        self.name = check_name(name, "stream name")
        if upcast is not None:
            check_mapping(upcast, "upcast")
        self._upcast = dict(upcast or {})
        for type_, function in self._upcast.items():
            if not callable(function):
                raise InvalidValueError(
                    f"upcast: what is given for {type_!r} isn't a function", path="upcast"
                )

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    async def append(self, type: str, data: Any = None, *, agent: str | None = None) -> Event:
        """Store one event, durably; it is returned as it will be read. Without data it has ``{}``.

        Raises :class:`InvalidValueError` or :class:`LimitError`, naming the place, for data that can't be
        stored, :class:`SealError` for a personal value whose key was destroyed. After a
        :class:`StorageWriteError` it is there or not: look before you append it again.
        """
        (event,) = await self._append([(type, data, agent)], ["data"])
        return event

    async def extend(self, events: Iterable[Appendable]) -> list[Event]:
        """Store several events, one right after the other, all of them or none.

        Each is a tuple ``(type, data)`` or ``(type, data, agent)``, or an :class:`Event`, of which type, data
        and agent are taken.
        """
        check_several(events, "events", "events")
        entries = [_entry(event, f"events[{number}]") for number, event in enumerate(events)]
        if not entries:
            return []
        return await self._append(entries, [f"events[{number}].data" for number in range(len(entries))])

    async def _append(self, entries: list[tuple[Any, Any, Any]], roots: list[str]) -> list[Event]:
        core = self.core
        pending: dict[bytes, SealedRow] = {}
        made = []
        for (type_, data, agent), root in zip(entries, roots, strict=True):
            type_ = check_name(type_, "event type")
            agent = None if agent is None else check_name(agent, "agent")
            if core.screen is not None:
                data = core.screen(data, root)
            lowered = lower(
                {} if data is None else data,
                limits=core.limits,
                seal=lambda personal: core.vault.seal(personal, pending),
                root=root,
            )
            made.append(pack_event(self.name, type_, lowered, agent, core.runtime.now_us(), core.limits))
        if pending:
            core.vault.check_pending(pending)
        try:
            first = await core.backend.emit(core.space, self.name, made, list(pending.values()))
        except KeyErased:
            raise erased_meanwhile() from None
        if (first - 1) // trims.RETAIN_EVERY != (first - 1 + len(made)) // trims.RETAIN_EVERY:
            # The events are stored: what fails here is done by one of the next, or by gc().
            with suppress(EverthreadError):
                await trims.trim(self, await trims.due(self))
        return [
            self._read(StoredEvent(seq, new.at_us, new.type, new.agent, new.body))
            for seq, new in enumerate(made, first)
        ]

    async def delete(self) -> bool:
        """Remove all events and what projections kept of them. False if there are none.

        The numbering goes on, so that consumers, which keep their positions, miss nothing that comes later.
        """
        core = self.core
        deleted = await core.backend.trim_stream(core.space, self.name, EVENT_SEQ_MAX) > 0
        await trims.forget(self)
        # Projections would notice by themselves: this only frees the space.
        kept = await core.backend.cells(core.space, cell_name("projection", self.name) + "/", None, _CELLS)
        for name, cell in kept:
            with suppress(StaleCell):
                await core.backend.swap(core.space, name, cell.revision, None, core.runtime.now_us())
        return deleted

    async def trim(self, *, before: Event | int | datetime | None = None, keep: int | None = None) -> int:
        """Remove the oldest events for good: those before ``before`` (an event, its seq, or a time), or all
        but the newest ``keep``. How many went.

        A stream is trimmed from its beginning: with a time, up to the first event that isn't older. Seqs go
        on as they were. Whoever comes back to a place from which events are missing gets an
        :class:`EventsTrimmedError`; projections that have come as far keep what they have.
        """
        return await trims.trim(self, await trims.bound(self, before, keep))

    async def retain(self, *, ttl: Lifetime = None, keep: int | None = None) -> None:
        """How long this stream keeps events, from now on and for everybody: ``ttl`` (a ``timedelta`` or
        seconds) after they were appended, and the newest ``keep`` at most. Without either they stay for ever.

        What is over goes with one of the next thousand events, or with ``store.gc()``, as by :meth:`trim`.
        """
        await trims.retain(self, ttl, keep)

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @streamed
    def replay(
        self,
        *,
        type: str | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: Event | int = 0,
        limit: int | None = None,
    ) -> AsyncIterator[Event]:
        """The events in order, lazily: of this type, by this agent, between these times (both inclusive),
        after this one, at most ``limit``. Holds a page of them in memory at a time. Raises
        :class:`EventsTrimmedError` if what comes right after ``after`` was trimmed.
        """
        query: dict[str, Any] = {
            "type": None if type is None else check_name(type, "event type"),
            "agent": None if agent is None else check_name(agent, "agent"),
            "since_us": None if since is None else microseconds(since, "since"),
            "until_us": None if until is None else microseconds(until, "until"),
        }
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidValueError("limit must be a number that isn't negative", path="limit")
        return self._replay(seq_of(after, "after"), EVENT_SEQ_MAX if limit is None else limit, query)

    async def _replay(self, after: int, left: int, query: dict[str, Any]) -> AsyncIterator[Event]:
        core = self.core
        size = _FIRST_PAGE_EVENTS
        while left:
            wanted = min(size, left)
            page = await core.backend.events(core.space, self.name, after, wanted, **query)
            if after and not (page and page[0].seq == after + 1):
                await trims.check_reached(self, after)
            for stored in page:
                yield self._read(stored)
            if len(page) < wanted:
                return
            left -= len(page)
            after = page[-1].seq
            size = _page_size(page)

    @streamed
    def watch(
        self,
        after: Event | int | None = None,
        *,
        type: str | None = None,
        agent: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """The events that come after ``after`` (by default: after the newest when the first is asked for), as
        they come, whoever appends them: in order, without a gap.

        ``after=0`` begins with the first one that there is. Waits for ever, or ends when nothing has come for
        ``timeout`` seconds. Looks at the stream again and again, at least once a second. Raises
        :class:`StoreClosedError` when the store is closed, :class:`EventsTrimmedError` if events were trimmed
        before it came to them.
        """
        query: dict[str, Any] = {
            "type": None if type is None else check_name(type, "event type"),
            "agent": None if agent is None else check_name(agent, "agent"),
        }
        if timeout is not None:
            timeout = check_seconds(timeout, "timeout")
        return self._watch(None if after is None else seq_of(after, "after"), query, timeout)

    async def _watch(
        self, after: int | None, query: dict[str, Any], timeout_s: float | None
    ) -> AsyncIterator[Event]:
        last = await self._last_seq() if after is None else after
        idle_s, pause_s = 0.0, _WATCH_S_MIN
        while True:
            # Events of other types and agents are passed over for good, but only those that were there.
            reached = max(last, await self._last_seq())
            async for event in self._replay(last, EVENT_SEQ_MAX, query):
                idle_s, pause_s = 0.0, _WATCH_S_MIN
                last = event.seq
                yield event
            last = max(last, reached)
            if timeout_s is not None:
                if idle_s >= timeout_s:
                    return
                pause_s = min(pause_s, timeout_s - idle_s)
            began = time.monotonic()
            if ASYNC:
                await asyncio.sleep(pause_s)
            else:
                time.sleep(pause_s)  # noqa: ASYNC251 - only the twin has this branch
            idle_s += time.monotonic() - began
            pause_s = min(_WATCH_S_MAX, max(_WATCH_S_MIN, pause_s * 1.5))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.replay()

    if ASYNC:

        async def last(self) -> Event | None:
            """The newest event, or ``None``."""
            return await self._newest()

        async def count(self) -> int:
            """How many events there are."""
            return await self._count()

        async def retention(self) -> StreamRetention:
            """How long events are kept, as :meth:`retain` said: ``ttl`` and ``keep``, ``None`` where there is
            no such bound."""
            return await trims.retention(self)

        def __len__(self) -> NoReturn:
            raise UsageError(
                "how many events a stream of an async store holds is asked with: await stream.count()"
            )

    else:

        @property
        def last(self) -> Event | None:
            """The newest event, or ``None``. Asks the store."""
            return self._newest()

        @property
        def retention(self) -> StreamRetention:
            """How long events are kept, as :meth:`retain` said: ``ttl`` and ``keep``, ``None`` where there is
            no such bound. Asks the store."""
            return trims.retention(self)

        def __len__(self) -> int:
            """How many events there are. Asks the store."""
            return self._count()

    async def _newest(self) -> Event | None:
        core = self.core
        seq = await self._last_seq()
        page = await core.backend.events(core.space, self.name, seq - 1, 1) if seq else []
        return self._read(page[0]) if page else None

    async def _count(self) -> int:
        first = await self._first_seq()
        return await self._last_seq() - first + 1 if first else 0

    def __bool__(self) -> bool:
        """A stream is something also while it is empty."""
        return True

    async def _first_seq(self) -> int:
        core = self.core
        page = await core.backend.events(core.space, self.name, 0, 1)
        return page[0].seq if page else 0

    async def _last_seq(self) -> int:
        core = self.core
        # A name comes before all longer ones that begin with it.
        found = await core.backend.streams(core.space, self.name, None, 1)
        return found[0][1] if found and found[0][0] == self.name else 0

    def _read(self, stored: StoredEvent) -> Event:
        event = read_event(self.name, stored, lambda tagged: self.core.vault.open(tagged, {}))
        upcast = self._upcast.get(event.type)
        if upcast is None:
            return event
        return Event(event.seq, event.type, upcast(event.data), event.agent, event.at_us)

    # ── projecting and consuming ─────────────────────────────────────────────────────────────

    async def project(
        self, projector: Projector, initial: Any = None, *, until: datetime | Event | int | None = None
    ) -> Any:
        """The state that all events lead to: ``projector(state, event)`` gives the next state, beginning with
        a copy of ``initial``, ``{}`` by default. Reads every event up to ``until``, which is the last one
        that counts: a time, an event or its seq. Of a stream that was trimmed it begins with the first that
        is kept; raises :class:`EventsTrimmedError` if ``until`` lies before that."""
        check_function(projector, "projector")
        state = {} if initial is None else copy.deepcopy(initial)
        at = until if isinstance(until, datetime) else None
        last = EVENT_SEQ_MAX if until is None or at is not None else seq_of(until, "until")  # type: ignore[arg-type]
        is_empty = True
        async for event in self.replay(until=at):
            if event.seq > last:
                break
            state = await advance(projector, state, event)
            is_empty = False
        if is_empty and until is not None and last:
            await self._check_not_trimmed(last)
        return state

    async def _check_not_trimmed(self, last: int) -> None:
        """After nothing was found up to this seq: whether that is because it was trimmed."""
        _, known = await trims.trimming(self)
        if known.origin and last >= known.origin:
            first = await self._first_seq() or known.up_to + 1
            raise EventsTrimmedError(
                f"the events of the stream {self.name!r} up to then were trimmed: "
                f"the first that is kept is {first}",
                stream=self.name,
                first=first,
            )

    async def projection(
        self, name: str, fn: Projector, version: int = 1, initial: Any = None
    ) -> AsyncProjection:
        """As :meth:`project`, with position and state saved under a name: only events that came since then
        are read. Raise ``version`` when ``fn`` changes, and it starts anew.

        The state must be something that can be stored. What ``fn`` raises comes through; what was saved until
        then stays.
        """
        projection = AsyncProjection(self, name, fn, version, initial)
        await projection.refresh()
        return projection

    def consumer(self, name: str) -> AsyncConsumer:
        """Reads on where it left off: see :class:`AsyncConsumer`."""
        return AsyncConsumer(self, name)

    def group(self, name: str, redeliver_after: float = 60.0) -> AsyncConsumerGroup:
        """Workers that share the events among them: see :class:`AsyncConsumerGroup`."""
        return AsyncConsumerGroup(self, name, redeliver_after)

    def __repr__(self) -> str:
        return f"<events {self.name!r}>"


def _entry(event: Any, where: str) -> tuple[Any, Any, Any]:
    if isinstance(event, Event):
        return event.type, event.data, event.agent
    if type(event) is tuple and 2 <= len(event) <= 3:
        return event[0], event[1], event[2] if len(event) == 3 else None
    raise InvalidValueError(f"{where} must be (type, data), (type, data, agent) or an Event", path=where)


def _page_size(page: list[StoredEvent]) -> int:
    """How many events to ask for next, judging by these."""
    average = sum(len(stored.body) for stored in page) // len(page) + 1
    return max(1, min(_PAGE_EVENTS, _PAGE_BYTES // average))
