"""What the index covers of a thread, and the keys under which its texts stand there. Pure.

Positions of a log never come to hold another item, so that a key of a position stays true for ever. A text of
the document stands under a key that holds its digest: a text that changed is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from everthread.history.logs import LogState
from everthread.history.spans import Spans
from everthread.search.texts import Entry
from everthread.search.words import words_of

#: Of what is indexed, and how. Another number, and everything is indexed anew.
FORMAT = 2


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """The version that is covered, whether all of it is, the positions of each log that stand in the index
    for this thread, and those that it has borrowed, by whose they are there."""

    format: int = FORMAT
    version: str | None = None
    complete: bool = False
    logs: dict[str, list[tuple[int, int]]] = {}
    borrowed: dict[bytes, dict[str, list[tuple[int, int]]]] = {}

    def holds(self, log: str, position: int) -> bool:
        """Whether the thread has an item there, by itself or borrowed."""
        every = (self.logs, *self.borrowed.values())
        return any(first <= position <= last for logs in every for first, last in logs.get(log, ()))

    def stands(self, marks: Mapping[bytes, Mark]) -> bool:
        """Whether the others still have what was borrowed from them."""
        for uid, logs in self.borrowed.items():
            lender = marks.get(uid)
            for log, spans in logs.items():
                held = Spans(lender.logs.get(log, ())) if lender is not None else Spans()
                if not all(held.covers(*span) for span in spans):
                    return False
        return True


def read_mark(packed: bytes | None) -> Mark:
    """What is covered; nothing, if that is all that can be said."""
    if packed is not None:
        try:
            mark = msgspec.msgpack.decode(packed, type=Mark)
        except (msgspec.DecodeError, ValueError):
            return Mark()
        if mark.format == FORMAT:
            return mark
    return Mark()


def spans_of(state: LogState) -> Spans:
    """The positions that a log holds."""
    return Spans((first, last - 1) for first, last in state.pieces)


def parted(spans: Spans, others: Spans) -> tuple[Spans, list[range]]:
    """What both hold, and what only the first one does."""
    shared = Spans()
    alone = []
    for span in spans:
        for first, last, inside in others.split(*span):
            if inside:
                shared.add(first, last)
            else:
                alone.append(range(first, last + 1))
    return shared, alone


def position_key(log: str, position: int) -> str:
    return f"{position}:{log}"


def read_position(key: str) -> tuple[str, int]:
    position, _, log = key.partition(":")
    return log, int(position)


def entry_key(entry: Entry) -> str:
    digest = sha256(entry.text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{entry.kind}:{digest}:{entry.id}"


def plain_words(text: str) -> str:
    """A text as the index takes it."""
    return " ".join(word.plain for word in words_of(text))
