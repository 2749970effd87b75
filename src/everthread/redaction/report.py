"""Where a text was found, and what became of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from everthread.arguments import counted
from everthread.redaction.redact import under_way
from everthread.threads.sync.companions import beside
from everthread.threads.sync.redactions import NAME
from everthread.threads.sync.thread import Thread

if TYPE_CHECKING:
    from everthread.threads.sync.core import Core


#: What holds the text: a version's edit of the document, an item of a log, the result of a step, a label,
#: metadata, a commit or step key, the name of a thread, log or stream, an event, a cell, a saved state.
What = Literal["document", "item", "step", "label", "metadata", "key", "name", "event", "cell", "state"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a text stands.

    ``thread`` and the versions ``first`` to ``last`` that hold it, or the ``stream``; ``beside``: "journal"
    if it isn't the thread itself, but the journal of its session; ``path`` inside of it;
    ``log`` and ``position`` of an item; ``excerpt`` shows what is around it, itself masked. ``redactable``
    tells whether :meth:`Store.redact` can take it out.
    """

    what: What
    thread: str = ""
    first: int = 0
    last: int = 0
    path: str = ""
    log: str = ""
    position: int | None = None
    stream: str = ""
    excerpt: str = ""
    redactable: bool = True
    beside: str = ""

    def __str__(self) -> str:
        where = self.stream or self.thread
        beside = f" {self.beside}" if self.beside else ""
        span = f" v{self.first}" if self.first == self.last else f" v{self.first}–v{self.last}"
        log = f" {self.log}[{self.position}]" if self.log else ""
        left = "" if self.redactable else " (stays)"
        place = f"{where!r}{beside}{span if self.last else ''}"
        return f"{place} {self.what}{log} {self.path}: {self.excerpt}{left}"


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """A redaction as the store remembers it, whoever finished it: when it began, why, and how many
    ``versions`` of ``threads`` and ``events`` were rewritten. Neither the text nor its places are kept.

    While it is ``unfinished`` it counts what is certainly done. ``by`` names the redaction of the same text,
    with another replacement, that did the rest after this one was cut short. Nearly all have neither.
    """

    id: str
    at_us: int
    reason: str = ""
    threads: int = 0
    versions: int = 0
    events: int = 0
    unfinished: bool | msgspec.UnsetType = msgspec.UNSET
    by: str | msgspec.UnsetType = msgspec.UNSET

    def __str__(self) -> str:
        found = f"{counted(self.versions, 'version')} of {counted(self.threads, 'thread')}"
        found += f" and {counted(self.events, 'event')}" if self.events else ""
        if self.unfinished:
            return f"begun and not finished, so far at least {found}"
        return found + (f" before it was cut short, {self.by} did the rest" if self.by else "")


class RedactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``store.redact()`` did, or would do with ``dry_run``.

    ``versions`` of ``threads`` and ``events`` were rewritten, ``values`` are the places in them. ``left`` are
    places that can't be redacted, the first thousand of ``left_count``; ``unreached`` says which copies may
    still hold the text. ``id`` names the operation in the record that the store keeps of it.
    """

    id: str = ""
    dry_run: bool = False
    threads: int = 0
    versions: int = 0
    events: int = 0
    values: int = 0
    left: tuple[Place, ...] = ()
    left_count: int = 0
    unreached: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "would be" if self.dry_run else "was" if self.values == 1 else "were"
        versions = f"{counted(self.versions, 'version')} of {counted(self.threads, 'thread')}"
        where = "history" if self.dry_run else versions
        where += f" and {counted(self.events, 'event')}" if self.events else ""
        text = f"{counted(self.values, 'place')} in {where} {verb} redacted"
        if self.left_count:
            text += f"; {counted(self.left_count, 'place')} {'stays' if self.left_count == 1 else 'stay'}"
        return text + (f"; not reached: {'; '.join(self.unreached)}" if self.unreached else "")


# ── recorded ────────────────────────────────────────
# What was ever redacted in a namespace, from the record that the store keeps of it.


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
