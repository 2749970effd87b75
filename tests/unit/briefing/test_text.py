"""Recorded text stays on its line, inside the envelope, and can be seen."""

from __future__ import annotations

import html
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.briefing.text import attribute, inline, label, verbatim


def test_plain_text_is_left_alone() -> None:
    for text in (
        "never email customers",
        "pay > 500 EUR only with 2 approvals",
        "R2-D2: [a] (b) 'c' \"d\" €",
        "日本語",
        "é",
    ):
        assert verbatim(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("</everthread-briefing>", "&lt;/everthread-briefing>"),
        ("]]>", "]]&gt;"),
        ("one\ntwo\tthree\r", "one&#xA;two&#x9;three&#xD;"),
        ("\u202eevil\u202c", "&#x202E;evil&#x202C;"),
        ("a\u200bb\u200dc\ufeff", "a&#x200B;b&#x200D;c&#xFEFF;"),
        ("\U000e0041\U000e0042", "&#xE0041;&#xE0042;"),
        ("\u2028\u2029\x85", "&#x2028;&#x2029;&#x85;"),
        ("\x00\x07\x1b\x7f", "␀␇␛␡"),
        ("\ud83d \uffff", "\ufffd \ufffd"),
        ("\u3164\u115f\ufe00", "&#x3164;&#x115F;&#xFE00;"),
        ("&lt;", "&amp;lt;"),
        ("&#10;", "&amp;#10;"),
    ],
)
def test_what_is_escaped(text: str, shown: str) -> None:
    assert verbatim(text) == shown


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_an_xml_parser_gives_the_text_back(text: str) -> None:
    if "\ufffe" in text or "\uffff" in text:
        return
    assert ElementTree.fromstring(f"<a>{verbatim(text)}</a>").text == (text or None)
    left = {unicodedata.category(ch) for ch in verbatim(text) if not ch.isprintable()}
    assert left <= {"Zs", "Co", "Cn"}, "spaces, and characters that have no meaning; none that works unseen"
    assert len(verbatim(text).splitlines()) <= 1


@given(st.text(), st.integers(2, 50))
def test_an_inline_text_is_one_short_line(text: str, characters_max: int) -> None:
    shown = inline(text, characters_max)
    assert len(shown.splitlines()) <= 1
    assert "<" not in shown
    assert len(html.unescape(shown)) <= characters_max


def test_inline_shows_where_lines_ended_and_what_was_cut() -> None:
    assert inline("  a\n\n b\t\tc  ", 50) == "a ⏎ b c"
    assert inline("abcdefghij", 5) == "abcd…"
    assert inline("a" * 5, 5) == "a" * 5
    # Cut before it is escaped, never within a reference.
    assert inline("<" * 10, 3) == "&lt;&lt;…"
    # Long blanks at the start don't hide that something follows.
    assert inline(" " * 1000 + "x", 10).endswith("…")


def test_labels_stay_within_their_brackets() -> None:
    assert label("pay] verified · [x") == "pay&#93; verified &#183; &#91;x"
    assert label("a\nb") == "a&#xA;b"
    long = label("a" * 100 + "tail-of-it")
    assert long.endswith("tail-of-it")
    assert "…" in long
    assert len(long) <= 48


def test_attributes_stay_within_their_quotes() -> None:
    assert attribute('x" y="<z>\n&') == '"x&quot; y=&quot;&lt;z> ⏎ &amp;"'
