"""Streams of events on their way into a store, under the numbers that they had."""

from __future__ import annotations

from everthread.codec import records
from everthread.codec.archive import EventsEntry
from everthread.codec.values import decode, encode_stored
from everthread.errors import ConflictError, StateCorruptedError
from everthread.events.event import event_sum, pack_event
from everthread.stores.contract import NewEvent, SealedRow, StoredEvent
from everthread.threads.sync.core import Core
from everthread.transfer.incoming import Incoming
from everthread.transfer.taking import last_seq

#: What holds the place of events that were deleted, for the moment that it takes to delete it as well.
_GAP = "everthread.gap"
_GAP_EVENTS = 4096

#: What an archive says of an event.
Told = tuple[int, str, str | None, bytes]

DIVERGED = "another stream has this name"


class StreamPutting:
    """One stream. ``name`` is its own, ``under`` the name that it gets here."""

    def __init__(self, core: Core, space: str, name: str, under: str, *, dry: bool) -> None:
        self._core = core
        self._backend = core.backend
        self._dry = dry
        self._last = 0
        self.space = space
        self.name = name
        self.under = under
        self.made = 0
        self.diverged = False

    def begin(self) -> None:
        self._last = last_seq(self._backend, self.space, self.under)
        if self._last and not self._dry:
            page = self._backend.events(self.space, self.under, self._last - 1, 1)
            if page and page[0].type == _GAP:
                # Cut short in the middle of :meth:`_skip`.
                self._backend.drop_stream(self.space, self.under)
                self._last = 0

    def add(self, entry: EventsEntry, values: Incoming) -> None:
        """Go on with these events; those that are here already must be the same."""
        if self.diverged:
            return
        known = max(0, min(self._last - entry.first + 1, len(entry.events)))
        if known:
            there = self._backend.events(self.space, self.under, entry.first - 1, known)
            if [_told(event) for event in there] != [self._named(each) for each in entry.events[:known]]:
                self.diverged = True
                return
        if 0 < self._last < entry.first - 1 and not self._is_try(entry.events[0]):
            self.diverged = True
            return
        new = entry.events[known:]
        self.made += len(new)
        if not new or self._dry:
            return
        first = entry.first + known
        what = f"an event of {self.name!r}"
        sealed = values.needed([records.unframe(body, what) for *_, body in new])
        events = [NewEvent(*self._named(each)) for each in new]
        if self._last < first - 1:
            self._line_up(first, events[0], sealed)
            # The one that was tried may have found its place.
            known, first = (1, first + 1) if self._last == first else (0, first)
            new, events = new[known:], events[known:]
        got = self._backend.emit(self.space, self.under, events, sealed) if events else first
        if got != first:
            raise ConflictError(
                f"somebody wrote to the stream {self.under!r} while it was being brought here; run it again"
            )
        self._last = first + len(new) - 1

    def _named(self, told: Told) -> Told:
        """An event as it is stored here: its checksum covers the name of the stream."""
        if self.under == self.name:
            return told
        at_us, type_, agent, body = told
        parts = decode(records.unframe(body, f"an event of {self.name!r}"))
        if type(parts) is not list or len(parts) < 2:
            raise StateCorruptedError(f"an event of the stream {self.name!r} can't be decoded")
        parts[1] = event_sum(self.under, type_, agent, at_us)
        return at_us, type_, agent, records.frame(encode_stored(parts))

    def _is_try(self, first: Told) -> bool:
        """Whether all that is here is what :meth:`_line_up` tried when it was cut short."""
        there = self._backend.events(self.space, self.under, 0, 2)
        return [_told(event) for event in there] == [self._named(first)]

    def _line_up(self, first: int, event: NewEvent, sealed: tuple[SealedRow, ...]) -> None:
        """Let the next event get the number ``first``, in a stream that begins later than with 1.

        How far the numbering of an empty stream has come is seen only by writing to it: so the first event
        itself is tried, and taken back if it gets another number.
        """
        if self._last:
            # Such a try, cut short.
            self._backend.drop_stream(self.space, self.under)
        got = self._backend.emit(self.space, self.under, [event], sealed)
        if got == first:
            self._last = got
            return
        self._backend.drop_stream(self.space, self.under)
        self._last = 0
        if got > first:
            raise ConflictError(
                f"there was a longer stream {self.under!r} here, which was deleted; "
                "bring it under another name: on_conflict='rename'"
            )
        self._skip(got, first - 1)

    def _skip(self, reached: int, seq: int) -> None:
        """Let the numbering of a stream that holds nothing go on after ``seq``."""
        gap = pack_event(self.under, _GAP, None, None, 0, self._core.limits)
        while reached < seq:
            count = min(seq - reached, _GAP_EVENTS)
            reached = self._backend.emit(self.space, self.under, [gap] * count) + count - 1
            self._backend.drop_stream(self.space, self.under)

    def catch_up(self, position: int) -> None:
        """Let a stream that holds nothing go on after what a consumer of it has seen, or later."""
        if not self._last and position > 0 and not self._dry:
            self._skip(0, position)


def _told(event: StoredEvent) -> Told:
    return event.at_us, event.type, event.agent, event.body
