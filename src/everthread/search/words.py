"""Words: how a text and a question are taken apart, so that the one is found by the other. Pure.

Case and accents don't count, and neither does the form in which a character was typed. A question is a list
of words, all of which must occur; words between double quotes must stand one after the other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from everthread.errors import InvalidValueError, LimitError

#: Longer ones are keys, hashes and encoded files: nobody looks for them by typing.
WORD_CHARACTERS_MAX = 64
QUESTION_CHARACTERS_MAX = 1_000
TERMS_MAX = 32

#: Letters and digits, and the accents that some keyboards put after a letter.
_WORD = re.compile("[^\\W_](?:[^\\W_]|[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff])*")
_PART = re.compile(r'"([^"]*)"|([^\s"]+)')


class Word(NamedTuple):
    """A word in its plain form, and where it stands in the text."""

    plain: str
    start: int
    stop: int


class Question(msgspec.Struct, frozen=True):
    """What is looked for: ``terms``, each of one word or of several that follow each other."""

    terms: tuple[tuple[str, ...], ...]


def plain_form(word: str) -> str:
    """A word without case and accents."""
    if word.isascii():
        return word.lower()
    spread = unicodedata.normalize("NFKD", word.casefold())
    return "".join(character for character in spread if not unicodedata.combining(character))


def words_of(text: str) -> Iterator[Word]:
    """The words of a text, in order."""
    for found in _WORD.finditer(text):
        if found.end() - found.start() <= WORD_CHARACTERS_MAX:
            yield Word(plain_form(found[0]), found.start(), found.end())


def ask(text: str) -> Question:
    """The question that somebody typed. Raises :class:`InvalidValueError` if it holds no word."""
    if not isinstance(text, str):
        raise InvalidValueError(f"search for text, not {type(text).__name__}", path="text")
    if len(text) > QUESTION_CHARACTERS_MAX:
        raise LimitError(
            f"a search of {len(text):,} characters; at most {QUESTION_CHARACTERS_MAX:,} are allowed",
            path="text",
        )
    terms: dict[tuple[str, ...], None] = {}
    for phrase, single in _PART.findall(text):
        # What is one word to its writer may be several here ("invoice-bot"): then they follow each other.
        words = tuple(word.plain for word in words_of(phrase or single))
        if words:
            terms[words] = None
    if not terms:
        raise InvalidValueError("search for one word at least; signs alone aren't looked for", path="text")
    if len(terms) > TERMS_MAX:
        raise LimitError(f"a search for {len(terms)} words; at most {TERMS_MAX} are allowed", path="text")
    return Question(tuple(terms))


def places(words: Sequence[Word], term: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Where in the text a term stands, as (start, stop) in characters."""
    first, rest = term[0], len(term)
    for at, word in enumerate(words):
        if word.plain == first and tuple(each.plain for each in words[at : at + rest]) == term:
            yield word.start, words[at + rest - 1].stop
