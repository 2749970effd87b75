"""Where a text was found, and what became of it."""

from __future__ import annotations

from typing import Literal

import msgspec

#: What holds the text: a version's edit of the document, an item of a log, the result of a step, a label,
#: metadata, a commit or step key, the name of a thread, log or stream, an event, a cell, a saved state.
What = Literal["document", "item", "step", "label", "metadata", "key", "name", "event", "cell", "state"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a text stands.

    ``thread`` and the versions ``first`` to ``last`` that hold it, or the ``stream``; ``path`` inside of it;
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

    def __str__(self) -> str:
        where = self.stream or self.thread
        span = f" v{self.first}" if self.first == self.last else f" v{self.first}–v{self.last}"
        log = f" {self.log}[{self.position}]" if self.log else ""
        left = "" if self.redactable else " (stays)"
        return f"{where!r}{span if self.last else ''} {self.what}{log} {self.path}: {self.excerpt}{left}"


class RedactionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``store.redact()`` did, or would do with ``dry_run``.

    ``threads`` and ``versions`` were rewritten, ``values`` are the places in them. ``left`` are places that
    can't be redacted, the first thousand of ``left_count``; ``unreached`` says which copies may still hold
    the text. ``id`` names the operation in the record that the store keeps of it.
    """

    id: str = ""
    dry_run: bool = False
    threads: int = 0
    versions: int = 0
    values: int = 0
    left: tuple[Place, ...] = ()
    left_count: int = 0
    unreached: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "would be" if self.dry_run else "were"
        where = f"{self.versions:,} versions of {self.threads:,} threads" if not self.dry_run else "history"
        text = f"{self.values:,} places in {where} {verb} redacted"
        if self.left_count:
            text += f"; {self.left_count:,} places stay"
        return text + "".join(f"; {each}" for each in self.unreached)
