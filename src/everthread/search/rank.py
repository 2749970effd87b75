"""Which of several texts fits a question best: BM25, for stores that have no index of their own. Pure."""

from __future__ import annotations

import math
from heapq import heappush, heappushpop
from typing import Generic, NamedTuple, TypeVar

from everthread.search.text import Question, places, words_of

#: How soon repeating a word stops to count, and how much long texts are held back: the usual values.
_SATURATION = 1.2
_LENGTH = 0.75

Key = TypeVar("Key")


#: How many texts are kept to choose from. Beyond that the better ones so far stay.
CANDIDATES_MAX = 10_000


class Weight(NamedTuple):
    """How often each term occurs in a text, and how many words the text has."""

    counts: list[int]
    length: int


class Ranking(Generic[Key]):
    """Weighs texts one by one, keeps those that hold every term, and puts them in order at the end."""

    def __init__(self, question: Question) -> None:
        self._terms = question.terms
        self._texts = 0
        self._words = 0
        #: In how many texts each term occurs, whether or not the others do.
        self._spread = [0] * len(question.terms)
        #: A heap, the worst so far first: (score so far, order of arrival reversed, weight, key).
        self._kept: list[tuple[float, int, Weight, Key]] = []

    def weigh(self, text: str) -> Weight | None:
        """What a text weighs, or ``None`` if it doesn't hold every term."""
        words = list(words_of(text))
        counts = [sum(1 for _ in places(words, term)) for term in self._terms]
        self._texts += 1
        self._words += len(words)
        for at, count in enumerate(counts):
            self._spread[at] += count > 0
        return Weight(counts, len(words)) if all(counts) else None

    def keep(self, weight: Weight, key: Key) -> None:
        entry = (self._score(weight), -self._texts, weight, key)
        if len(self._kept) < CANDIDATES_MAX:
            heappush(self._kept, entry)
        else:
            heappushpop(self._kept, entry)

    def best(self, limit: int) -> list[tuple[float, Key]]:
        """The best ones, with their scores, best first; equal ones in the order in which they came."""
        scored = [(self._score(weight), order, key) for _, order, weight, key in self._kept]
        scored.sort(key=lambda each: each[:2], reverse=True)
        return [(score, key) for score, _, key in scored[:limit]]

    def _score(self, weight: Weight) -> float:
        average = self._words / self._texts
        long = 1 - _LENGTH + _LENGTH * weight.length / average
        score = 0.0
        for count, spread in zip(weight.counts, self._spread, strict=True):
            rarity = math.log(1 + (self._texts - spread + 0.5) / (spread + 0.5))
            score += rarity * count * (_SATURATION + 1) / (count + _SATURATION * long)
        return score
