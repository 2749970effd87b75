"""The texts of documents and logs that can be searched, their words, and which fits a question best. Pure."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from heapq import heappush, heappushpop
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from everthread.errors import InvalidValueError, LimitError
from everthread.messages.model import Message, ToolCall, Unknown
from everthread.messages.view import readable, texts
from everthread.sessions.sync.decisions import LOG as DECISIONS
from everthread.sessions.tasks import TASKS
from everthread.values import Personal
from everthread.working.items import CONSTRAINTS, CONTEXT, CONTEXT_ITEMS, INTENTIONS, OPEN_LOOPS, TODOS

MESSAGES: Final = "messages"
#: How much of one message or item is looked at, and how deep.
TEXT_CHARACTERS_MAX = 100_000
_DEPTH_MAX = 16
#: What can be looked for, in the order in which it is told.
KINDS: Final = tuple("message todo decision open_loop intention constraint context task item".split())
#: Fields that name, type or encode something rather than say it.
_NO_WORDS: Final = frozenset(
    """id ids role type kind status tool_call_id tool_use_id call_id decision_id about run at at_us created_at
    updated_at completed_at resolved_at verified_at verify signature encrypted_content thought_signature data
    media_type mime_type cache_control url image_url file_id model""".split()
)
#: Collections of the document: the kind of their items, and the fields that hold words.
_COLLECTIONS: Final = {
    TODOS.key: ("todo", ("content",)),
    OPEN_LOOPS.key: ("open_loop", ("description", "context")),
    INTENTIONS.key: ("intention", ("text",)),
    CONSTRAINTS.key: ("constraint", ("text",)),
    CONTEXT_ITEMS.key: ("context", ("value", "metadata")),
    TASKS: ("task", ("subject", "description")),
}
#: Kinds whose texts stand in the document.
DOCUMENT_KINDS: Final = tuple(kind for kind, _ in _COLLECTIONS.values())
#: Longer ones are keys, hashes and encoded files: nobody looks for them by typing.
WORD_CHARACTERS_MAX = 64
QUESTION_CHARACTERS_MAX = 1_000
TERMS_MAX = 32
#: Letters and digits, and the accents that some keyboards put after a letter.
_WORD = re.compile("[^\\W_](?:[^\\W_]|[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff])*")
_PART = re.compile(r'"([^"]*)"|([^\s"]+)')


class Entry(msgspec.Struct, frozen=True):
    """A text of the document and whose it is."""

    kind: str
    id: str
    text: str


def kind_of_log(log: str) -> str:
    return {MESSAGES: "message", DECISIONS: "decision"}.get(log, "item")


def item_text(item: Any, log: str) -> str:
    """The words of a log item: of a message what it says, whichever framework wrote it."""
    if log == MESSAGES and (messages := readable(item)) is not None:
        return _joined([_message_words(message) for message in messages])
    return _joined(item)


def _message_words(message: Message) -> list[Any]:
    found: list[Any] = []
    for block in message.blocks:
        if isinstance(block, ToolCall) and block.arguments is not None:
            # Their values; names of arguments are the tool's.
            found += [block.name, block.arguments]
        elif isinstance(block, Unknown):
            found.append(block.raw)
        else:
            found += texts(message.with_blocks((block,)))
    return found


def item_id(item: Any) -> str:
    """What names an item to its reader."""
    if not isinstance(item, Mapping):
        return ""
    found = item.get("decision_id", item.get("about", item.get("id")))
    return found if isinstance(found, str) else ""


def document_entries(document: Mapping[Any, Any]) -> Iterator[Entry]:
    """The texts of a document's collections, whatever stands there."""
    for name, (kind, fields) in _COLLECTIONS.items():
        items = document.get(name)
        if not isinstance(items, Mapping):
            continue
        for id_, item in items.items():
            if not isinstance(id_, str) or not isinstance(item, Mapping):
                continue
            parts = [item.get(field) for field in fields]
            text = _joined([id_, *parts] if name == CONTEXT else parts)
            if text:
                yield Entry(kind, id_, text)


def _joined(value: Any) -> str:
    parts: list[str] = []
    room = TEXT_CHARACTERS_MAX
    for part in _leaves(value, _DEPTH_MAX):
        parts.append(part[:room])
        room -= len(part) + 1
        if room <= 0:
            break
    return "\n".join(parts)


def _leaves(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif depth == 0 or isinstance(value, Personal | bytes | bytearray):
        return
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _NO_WORDS:
                yield from _leaves(part, depth - 1)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _leaves(part, depth - 1)
    elif isinstance(value, Set):
        yield from sorted(part for part in value if isinstance(part, str))


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────


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


# ── which of several texts fits a question best (BM25), for stores without an index ────────────────


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
