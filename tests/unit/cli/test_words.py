"""Text from a store never does anything to a terminal."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.arguments import counted
from everthread.cli.output import ago, cells, clean, pad, typed

JOINERS = "\u200c\u200d"
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("a\u200db", "a\\u200db"),
        ("👩‍💻", "👩‍💻"),
        ("漢字 é", "漢字 é"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(TEXTS)
def test_cleaned_text_is_printable_and_on_one_line(text: str) -> None:
    shown = clean(text)
    assert all(character.isprintable() or character in JOINERS for character in shown)


@given(TEXTS, st.integers(2, 20))
def test_cleaned_text_keeps_to_its_width(text: str, width: int) -> None:
    shown = clean(text, width)
    assert cells(shown) <= width
    assert len(shown) <= 4 * width
    if clean(text) != shown:
        assert shown.endswith("…")


def test_a_large_text_costs_what_its_beginning_costs() -> None:
    class Counting(str):
        __slots__ = ()
        taken: list[int] = []  # noqa: RUF012 - one test, one list

        def __getitem__(self, key: object) -> str:
            found = str.__getitem__(self, key)  # type: ignore[index]
            self.taken.append(len(found))
            return found

    assert clean(Counting("x" * 10_000_000), 20) == "x" * 19 + "…"
    assert Counting.taken == [80]


def test_marks_that_take_no_room_do_not_go_on_for_ever() -> None:
    assert len(clean("a" + "\u0301" * 100_000, 10)) <= 40


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("漢字", 4), ("é", 1), ("e\u0301", 1), ("\uff21\uff22", 4), ("", 0)]
)
def test_cells_are_columns_of_a_terminal(text: str, columns: int) -> None:
    assert cells(text) == columns
    assert cells(pad(text, 6)) == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s ago"),
        (0, "0 s ago"),
        (59.9, "59 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7199, "119 min ago"),
        (7200, "2 h ago"),
        (86_400 * 2, "2 d ago"),
        (86_400 * 400, "400 d ago"),
    ],
)
def test_ages(seconds: float, words: str) -> None:
    assert ago(0, int(seconds * 1e6)) == words


def test_counts_have_their_noun() -> None:
    assert [counted(n, "thread") for n in (0, 1, 2, 1234)] == [
        "0 threads",
        "1 thread",
        "2 threads",
        "1,234 threads",
    ]


@pytest.mark.parametrize(
    "name", ["plain", "with blank", "it's", "$(x) `y`", "-rf", "--help", "new\nline", "tab\t'\\", "é漢"]
)
def test_a_typed_name_reaches_the_program_as_it_is(name: str) -> None:
    given = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {typed(name)}"], capture_output=True, check=True
    ).stdout.decode()
    assert given.split("\0")[:-1] in ([name], ["--", name])
    assert ("--" in given.split("\0")) == name.startswith("-")
