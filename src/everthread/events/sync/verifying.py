# Generated from src/everthread/events/aio/verifying.py by tools/twin.py: change that, then run: make twin
"""Checking every event of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from everthread.errors import EverthreadError
from everthread.events.event import read_event
from everthread.threads.reports import Damage
from everthread.values import Opaque

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_PAGE = 500


def damaged_events(core: Core) -> Iterator[Damage]:
    """What isn't as it was written, in all streams of this store's namespace. Reads everything."""
    after: str | None = None
    while streams := core.backend.streams(core.space, "", after, _PAGE):
        for name, _ in streams:
            yield from _damaged(core, name)
        after = streams[-1][0]


def _damaged(core: Core, stream: str) -> Iterator[Damage]:
    what = f"events {stream}"
    seq = None
    while page := core.backend.events(core.space, stream, seq or 0, _PAGE):
        for stored in page:
            if seq is not None and stored.seq != seq + 1:
                yield Damage(what, seq + 1, stored.seq - 1, "events are missing")
            seq = stored.seq
            try:
                # Sealed values stay sealed: whether they are sound is their keys' business.
                read_event(stream, stored, Opaque)
            except EverthreadError as error:
                yield Damage(what, seq, seq, str(error))
    # Asked now, when nothing more came: what was added or removed meanwhile is no damage.
    for name, last in core.backend.streams(core.space, stream, None, 1):
        behind = name == stream and (seq or 0) < last
        if behind and not core.backend.events(core.space, stream, seq or 0, 1):
            yield Damage(what, (seq or 0) + 1, last, "events are missing")
