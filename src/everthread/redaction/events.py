"""Taking a text out of the data of events. Their types, agents, times and places in the stream stay.

Events have no chain of hashes: the record that the store keeps holds the digests of what they were and of
what they are, written first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from everthread.codec import records
from everthread.codec.values import decode, encode_stored
from everthread.history.redaction import Needle
from everthread.threads.sync.core import Core

_PAGE = 200
#: As many bytes of events are rewritten at once, about.
_BATCH_BYTES = 1024 * 1024

#: (space, stream, [(seq, digest before, digest after)]).
Note = Callable[[str, str, list[tuple[int, bytes, bytes]]], Awaitable[None]]


class EventsRedacting:
    """All streams of a namespace."""

    def __init__(self, core: Core, needle: Needle, note: Any) -> None:
        self._backend = core.backend
        self._space = core.space
        self._needle = needle
        self._note: Note = note

    def run(self) -> int:
        """How many events were rewritten."""
        spaces = {self._space: None}
        for line in self._backend.every_line():
            if line.space.partition("\0")[0] == self._space:
                spaces[line.space] = None
        rewritten = 0
        for space in spaces:
            after: str | None = None
            while page := self._backend.streams(space, "", after, _PAGE):
                for stream, _ in page:
                    rewritten += self._stream(space, stream)
                after = page[-1][0]
        return rewritten

    def _stream(self, space: str, stream: str) -> int:
        rewritten, seq, size = 0, 0, 0
        bodies: dict[int, bytes] = {}
        noted: list[tuple[int, bytes, bytes]] = []
        while events := self._backend.events(space, stream, seq, _PAGE):
            for event in events:
                body = self._redacted(event.body) if self._needle.within(event.body) else event.body
                if body != event.body:
                    bodies[event.seq] = body
                    noted.append((event.seq, sha256(event.body).digest(), sha256(body).digest()))
                    size += len(body)
            seq = events[-1].seq
            if size >= _BATCH_BYTES:
                rewritten += self._rewrite(space, stream, bodies, noted)
                bodies, noted, size = {}, [], 0
        return rewritten + (self._rewrite(space, stream, bodies, noted) if bodies else 0)

    def _redacted(self, body: bytes) -> bytes:
        parts = decode(records.unframe(body, "an event"))
        parts[0] = self._needle.replaced(parts[0])
        return records.frame(encode_stored(parts))

    def _rewrite(
        self, space: str, stream: str, bodies: dict[int, bytes], noted: list[tuple[int, bytes, bytes]]
    ) -> int:
        # The name may hold the text itself, and stays: what is kept of it here doesn't.
        self._note(space, self._needle.replaced(stream), noted)
        return self._backend.rewrite_events(space, stream, bodies)
