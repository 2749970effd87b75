"""Counting tokens: by an estimate, or by what the caller hands in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread import InvalidValueError
from everthread.briefing.selection import counter, estimate

# Texts with the numbers that the vocabulary cl100k of OpenAI's models gives them.
KNOWN = {
    "Hello, world!": 4,
    "The quick brown fox jumps over the lazy dog.": 10,
    "tiktoken is great!": 6,
    "antidisestablishmentarianism": 6,
    "2 + 2 = 4": 7,
    "お誕生日おめでとう": 9,
}


@pytest.mark.parametrize("text", KNOWN)
def test_the_estimate_rather_counts_too_many(text: str) -> None:
    assert KNOWN[text] <= estimate(text) <= 2 * KNOWN[text]


@given(st.text(), st.text())
def test_lines_add_up(first: str, second: str) -> None:
    assert estimate(f"{first}\n{second}") == estimate(first) + 1 + estimate(second)
    assert estimate(first) <= len(first.encode(errors="replace"))


def test_every_character_beyond_blanks_counts() -> None:
    assert estimate("") == 0
    assert [estimate(text) for text in ("a", "7", "-", "\n", "é", "日", "🙂", "\ud800")] == [
        1,
        1,
        1,
        1,
        1,
        2,
        3,
        1,
    ]


class Encoding:
    """As the libraries of tokenizers have it."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize("tokenizer", [len, list, Encoding(), str.__len__])
def test_a_tokenizer_of_the_caller(tokenizer: Any) -> None:
    assert counter(tokenizer)("seven77") == 7


@pytest.mark.parametrize("tokenizer", ["gpt-4", 7, b"x", object()])
def test_what_is_no_tokenizer(tokenizer: Any) -> None:
    with pytest.raises(InvalidValueError, match="tokenizer must be"):
        counter(tokenizer)


@pytest.mark.parametrize("answer", [None, -1, True, 1.5, "7"])
def test_a_tokenizer_that_returns_something_else(answer: Any) -> None:
    with pytest.raises(InvalidValueError, match="the tokenizer returned"):
        counter(lambda text: answer)("x")
