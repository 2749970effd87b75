"""``Place`` and ``RedactionReport``: where a text was found, and what was done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from everthread.arguments import counted

if TYPE_CHECKING:
    pass


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
