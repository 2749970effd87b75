"""Words, questions, ranking, excerpts: pure rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.errors import InvalidValueError, LimitError
from everthread.search.query import EXCERPT_CHARACTERS, excerpt
from everthread.search.text import CANDIDATES_MAX, Question, Ranking, ask, places, words_of


def plain(text: str) -> list[str]:
    return [word.plain for word in words_of(text)]


def test_case_accents_and_forms_dont_count() -> None:
    assert plain("Müller MÜLLER muller Mu\u0308ller") == ["muller"] * 4
    assert plain("ﬁnance Straße") == ["finance", "strasse"]
    assert plain("pay_17, twice") == ["pay", "17", "twice"]


def test_keys_and_hashes_are_no_words() -> None:
    assert plain("a " + "f" * 65 + " b") == ["a", "b"]


def test_a_question() -> None:
    assert ask('Pay "March  Invoices" invoice-bot pay').terms == (
        ("pay",),
        ("march", "invoices"),
        ("invoice", "bot"),
    )
    assert ask('unfinished "quote here').terms == (("unfinished",), ("quote",), ("here",))


@pytest.mark.parametrize("text", ["", "  ", "?!", '""', "_", "'; --"])
def test_a_question_without_words_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="one word"):
        ask(text)


def test_a_question_has_limits() -> None:
    with pytest.raises(LimitError):
        ask("a" * 1001)
    with pytest.raises(LimitError):
        ask(" ".join(f"w{n}" for n in range(33)))
    with pytest.raises(InvalidValueError, match="int"):
        ask(7)  # type: ignore[arg-type]


@given(st.text(max_size=400), st.text(alphabet="ab ", min_size=1, max_size=6))
def test_an_excerpt_is_part_of_the_text_and_marks_are_the_terms(text: str, term: str) -> None:
    words = tuple(word.plain for word in words_of(term))
    if not words:
        return
    text = f"{text} {term} {text}"
    shown, marks = excerpt(text, Question((words,)))
    assert len(shown) <= EXCERPT_CHARACTERS + 2
    assert marks
    for start, stop in marks:
        assert tuple(word.plain for word in words_of(shown[start:stop])) == words


def test_an_excerpt_shows_where_most_of_it_is() -> None:
    text = "first march. " + "filler words here " * 40 + "then the invoices of march are paid " + "more " * 60
    shown, marks = excerpt(text, ask("march invoices"))
    assert "invoices of march" in shown
    assert [shown[start:stop] for start, stop in marks] == ["invoices", "march"]
    assert shown.startswith("…")
    assert shown.endswith("…")


def test_excerpts_of_a_text_full_of_hits_take_a_moment() -> None:
    shown, marks = excerpt("pay " * 25_000, ask("pay"))
    assert len(marks) == shown.count("pay")


def test_rare_words_short_texts_and_repetition_count() -> None:
    ranking: Ranking[str] = Ranking(ask("march invoices"))
    texts = {
        "both, short": "march invoices",
        "both, long": "march and then, after a very long while, there were some invoices to look at",
        "one": "march march march",
        "none": "april",
    }
    for key, text in texts.items():
        weight = ranking.weigh(text)
        if weight is not None:
            ranking.keep(weight, key)
    assert [key for _, key in ranking.best(5)] == ["both, short", "both, long"]


def test_equal_texts_come_in_the_order_in_which_they_were_met() -> None:
    ranking: Ranking[int] = Ranking(ask("x"))
    for number in range(10):
        weight = ranking.weigh("x y")
        assert weight is not None
        ranking.keep(weight, number)
    assert [key for _, key in ranking.best(4)] == [0, 1, 2, 3]


def test_candidates_are_bounded_and_the_best_stays() -> None:
    ranking: Ranking[int] = Ranking(ask("x"))
    for number in range(CANDIDATES_MAX + 500):
        weight = ranking.weigh("x" if number == 7 else "x y z")
        assert weight is not None
        ranking.keep(weight, number)
    assert len(ranking._kept) == CANDIDATES_MAX
    assert ranking.best(1)[0][1] == 7


def test_places_of_a_phrase() -> None:
    words = list(words_of("a b a b b"))
    assert list(places(words, ("a", "b"))) == [(0, 3), (4, 7)]
