"""What was ever redacted in a namespace, from the record that the store keeps of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from everthread.redaction.places import Redaction
from everthread.redaction.resuming import under_way
from everthread.threads.sync.journals import beside
from everthread.threads.sync.redactions import NAME
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core

_PAGE = 256


def recorded(core: Core) -> list[Redaction]:
    """The redactions, the oldest first, each with all that was done for it: also before it was cut short, and
    by whoever went on with it. Changes nothing."""
    # Asked first: one that ends meanwhile is told as unfinished, and not the other way round.
    begun = under_way(core)
    thread = Thread(beside(core, NAME), NAME)
    thread._load()
    log, found = thread.log(NAME), dict[str, _Counting]()
    for start in range(0, len(log), _PAGE):
        for item in log.read(start, start + _PAGE):
            found.setdefault(item["redaction"], _Counting(item)).add(item)
    for id_, each in found.items():
        each.settle(id_ not in begun, _rest_of(id_, found))
    return [each.told() for each in found.values() if each.places or not each.by]


def _places(item: Any) -> Iterator[tuple[Any, int]]:
    """What an entry is about: versions of a line, or events of a stream."""
    yield from ((item["line"], seq) for seq, *_ in item["versions"])
    yield from ((item["stream"], seq) for seq, *_ in item.get("events", ()))


def _rest_of(id_: str, found: dict[str, _Counting]) -> set[tuple[Any, int]]:
    """What redactions of the same text had to do after this one was cut short: the last of them ended all."""
    last, ids = found[id_].by, list(found)
    later = [(each, found[each]) for each in ids[ids.index(id_) + 1 :]] if last else []
    return set[tuple[Any, int]]().union(*(one.noted for each, one in later if last in (each, one.by)))


class _Counting:
    """One redaction, counted. What was noted again after it was cut short counts once."""

    def __init__(self, first: Any) -> None:
        self._first = first
        self._last: set[tuple[Any, int]] = set()
        self._finished = True
        #: What was to be rewritten, and what of that was.
        self.noted: set[tuple[Any, int]] = set()
        self.places: set[tuple[Any, int]] = set()
        #: The redaction that did the rest.
        self.by = ""

    def add(self, item: Any) -> None:
        self.by = item.get("by", self.by)
        self._last = set(_places(item))
        self.noted |= self._last

    def settle(self, finished: bool, rest: Collection[tuple[Any, int]]) -> None:
        """Leave out what was noted and not done. It is noted before it is done, and nothing else before that
        is: so only the last entry of one that isn't finished may speak of what isn't there. If another one
        did the rest, that is what it has noted."""
        self._finished = finished
        self.places = self.noted.difference(rest, () if finished else self._last)

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
            unfinished=True if not self._finished else msgspec.UNSET,
            by=self.by or msgspec.UNSET,
        )
