"""Words as PostgreSQL's full-text types take them, without its parser: each word is one lexeme, as it is."""

from __future__ import annotations

from collections.abc import Sequence

#: What a vector can hold. Of longer texts the first words are found; of longer words none.
_POSITION_MAX = 16_383
_POSITIONS_MAX = 255
_WORD_BYTES_MAX = 2_000
_VECTOR_BYTES_MAX = 700_000


def vector(words: str) -> str:
    """A ``tsvector`` of words that are divided by spaces, with their positions."""
    places: dict[str, list[int]] = {}
    size = 0
    for position, word in enumerate(words.split(), 1):
        if word not in places:
            length = len(word.encode()) + 16
            size += length
            if size > _VECTOR_BYTES_MAX:
                break
            if length > _WORD_BYTES_MAX:
                continue
            places[word] = []
        if len(places[word]) < _POSITIONS_MAX:
            places[word].append(min(position, _POSITION_MAX))
    return " ".join(f"{_quoted(word)}:{','.join(map(str, at))}" for word, at in places.items())


def query(terms: Sequence[Sequence[str]]) -> str:
    """A ``tsquery`` for terms that must all occur, each of words that follow each other."""
    return " & ".join("(" + " <-> ".join(_quoted(word) for word in term) + ")" for term in terms)


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"
