"""How many tokens a text has: an estimate that rather counts too many, or the caller's own tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from typing import Any

from everthread.errors import InvalidValueError

Counter = Callable[[str], int]

_LETTERS_PER_TOKEN = 4
_DIGITS_PER_TOKEN = 2
_RUNS = re.compile(
    r"(?P<letters>[A-Za-z]+)|(?P<digits>[0-9]+)|(?P<gap> (?=[0-9])| {2,})|(?P<other>[^A-Za-z0-9 ])"
)


def estimate(text: str) -> int:
    """About how many tokens ``text`` has, without a tokenizer: rather too many than too few.

    Four letters, two digits, one sign or line end, or a byte less than a character beyond ASCII takes, count
    as a token. A single blank is part of the word or sign that follows, as in the vocabularies of today.
    """
    tokens = 0
    for found in _RUNS.finditer(text):
        length = found.end() - found.start()
        match found.lastgroup:
            case "letters":
                tokens += -(-length // _LETTERS_PER_TOKEN)
            case "digits":
                tokens += -(-length // _DIGITS_PER_TOKEN)
            case "gap":
                tokens += 1
            case _:
                tokens += max(1, len(found[0].encode(errors="replace")) - 1)
    return tokens


def counter(tokenizer: Any = None) -> Counter:
    """The counting function for what a caller hands in.

    None: :func:`estimate`. A function from text to a number or to a list of tokens, or an object with
    ``encode(text)`` that gives one. Raises :class:`InvalidValueError` for anything else, and when the
    function returns something else.
    """
    if tokenizer is None:
        return estimate
    function = getattr(tokenizer, "encode", tokenizer)
    if isinstance(tokenizer, str | bytes) or not callable(function):
        raise InvalidValueError(
            "tokenizer must be a function from text to its number of tokens, or have encode()",
            path="tokenizer",
        )

    def count(text: str) -> int:
        answer = function(text)
        if isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0:
            return answer
        if isinstance(answer, Sized) and not isinstance(answer, str | bytes):
            return len(answer)
        raise InvalidValueError(
            f"the tokenizer returned a {type(answer).__name__}; expected a number or a list of tokens",
            path="tokenizer",
        )

    return count
