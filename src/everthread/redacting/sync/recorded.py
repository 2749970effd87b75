# Generated from src/everthread/redacting/aio/recorded.py by tools/twin.py: change that, then run: make twin
"""What was ever redacted in a namespace, from the record that the store keeps of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everthread.redacting.places import Redaction
from everthread.threads.sync.companions import beside
from everthread.threads.sync.redactions import NAME
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_PAGE = 256


def recorded(core: Core) -> list[Redaction]:
    """The redactions, the oldest first, each with all that was done for it: also before it was cut short, and
    by whoever went on with it. Changes nothing."""
    thread = Thread(beside(core, NAME), NAME)
    thread._load()
    log, found = thread.log(NAME), dict[str, _Counting]()
    for start in range(0, len(log), _PAGE):
        for item in log.read(start, start + _PAGE):
            known = found.setdefault(item["redaction"], _Counting(item))
            known.places.update(_places(item))
    return [each.told() for each in found.values()]


def _places(item: Any) -> Iterator[tuple[Any, int]]:
    """What an entry is about: versions of a line, or events of a stream."""
    yield from ((item["line"], seq) for seq, *_ in item["versions"])
    yield from ((item["stream"], seq) for seq, *_ in item.get("events", ()))


class _Counting:
    """One redaction, counted. What was noted again after it was cut short counts once."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self.places: set[tuple[Any, int]] = set()

    def told(self) -> Redaction:
        # Lines are known by bytes, streams by name.
        versions = [line for line, _ in self.places if isinstance(line, bytes)]
        return Redaction(
            id=self._first["redaction"],
            at_us=self._first["at_us"],
            reason=self._first["reason"],
            threads=len(set(versions)),
            versions=len(versions),
            events=len(self.places) - len(versions),
        )
