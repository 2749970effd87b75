"""What a search answers: where something was found, and an excerpt of it."""

from __future__ import annotations

import msgspec

from everthread.search.words import Question, places, words_of

#: How much of a text an excerpt shows, and how much of that comes before the first word that was found.
EXCERPT_CHARACTERS = 160
_BEFORE = 48


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One place at which a question was answered, in the newest version of a thread.

    ``kind`` is ``message``, ``todo``, ``decision``, ``open_loop``, ``intention``, ``constraint``,
    ``context``, ``task``, or ``item`` for other logs; ``id`` is that of the message or item, a
    context key, or empty. ``log`` and ``index`` say where in which log it stands. ``marks`` are the found
    words in ``excerpt``, as (start, stop). Scores can be compared within one answer only.
    """

    thread: str
    kind: str
    id: str
    excerpt: str
    marks: tuple[tuple[int, int], ...]
    score: float = 0.0
    log: str | None = None
    index: int | None = None


def excerpt(text: str, question: Question) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The part of a text that shows best why it was found, on one line, and the found words in it."""
    words = list(words_of(text))
    found = sorted({place for term in question.terms for place in places(words, term)})
    start, stop = _window(text, found)
    head, tail = "…" if start else "", "…" if stop < len(text) else ""
    # One character for another, so that the marks stay where they are.
    shown = "".join(" " if character.isspace() else character for character in text[start:stop])
    shift = len(head) - start
    marks = tuple((a + shift, b + shift) for a, b in found if start <= a and b <= stop)
    return head + shown + tail, marks


def _window(text: str, found: list[tuple[int, int]]) -> tuple[int, int]:
    """The stretch that holds most of the found words, begun at the beginning of a word."""
    if len(text) <= EXCERPT_CHARACTERS:
        return 0, len(text)
    best = start = ahead = 0
    for at, (first, _) in enumerate(found):
        while ahead < len(found) and found[ahead][1] <= first + EXCERPT_CHARACTERS - _BEFORE:
            ahead += 1
        if ahead - at > best:
            best, start = ahead - at, first
    start = max(0, start - _BEFORE)
    space = text.rfind(" ", max(0, start - _BEFORE), start)
    if space >= 0:
        start = space + 1
    return start, min(len(text), start + EXCERPT_CHARACTERS)


class Hits(tuple[Hit, ...]):
    """Hits, the best first. ``skipped`` names the threads that could not be looked at: they are damaged, or
    in a cold archive that the store wasn't opened with."""

    skipped: tuple[str, ...] = ()
