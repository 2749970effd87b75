"""JSON, YAML and TSV are valid whatever is stored, and say the same."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from everthread import Erased, Personal
from everthread.briefing.facts import message_text
from everthread.cli.output import json_text, plain, tsv_text, yaml_text
from everthread.cli.render import _short

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(DATA)
def test_json_comes_back(data: Any) -> None:
    text = json_text(data)
    assert json.loads(text) == data
    assert all(line.isprintable() for line in text.split("\n"))


@given(DATA)
def test_yaml_comes_back(data: Any) -> None:
    text = yaml_text(data)
    assert yaml.safe_load(text) == data
    assert all(line.isprintable() for line in text.split("\n"))


@given(st.lists(st.lists(TEXTS, min_size=3, max_size=3), max_size=5))
def test_tsv_comes_back(rows: list[list[str]]) -> None:
    text = tsv_text(("a", "b", "c"), rows)
    head, *lines = text.split("\n")
    assert head == "a\tb\tc"
    assert all(cell.isprintable() for line in lines for cell in line.split("\t"))
    assert [[unescape(cell) for cell in line.split("\t")] for line in lines] == rows


def test_lone_surrogates_are_escaped() -> None:
    data = {"a\ud800": "\udfff"}
    assert json_text(data).isascii()
    assert json.loads(json_text(data)) == data
    assert tsv_text(("a",), [["\ud800"]]) == "a\n\\ud800"


def unescape(cell: str) -> str:
    """A cell as the guide says it is to be read: the escapes are those of JSON."""
    value: str = json.loads('"' + cell.replace('"', '\\"') + '"')
    return value


def test_numbers_that_json_does_not_have_become_texts() -> None:
    value = {"nan": math.nan, "inf": -math.inf, "big": 2**20_000, "int": 2**200}
    found = plain(value)
    assert found == {"nan": "nan", "inf": "-inf", "big": hex(2**20_000), "int": 2**200}
    assert json.loads(json_text(found)) == found


def test_both_of_two_keys_that_look_alike_are_kept() -> None:
    value = {1: "number", "1": "text", None: "none"}
    assert plain(value) == {"1 (int)": "number", "1": "text", "None": "none"}
    assert plain({(1, 2): "a", "[1, 2]": "b"}) == {"[1, 2] (tuple)": "a", "[1, 2]": "b"}


def test_values_of_other_types_are_readable() -> None:
    value = [
        (1, (2,)),
        {3, 1, 2},
        frozenset({"b", "a"}),
        b"\x00x",
        datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
        datetime.date(2024, 2, 29),
        decimal.Decimal("1.50"),
        uuid.UUID(int=1),
    ]
    assert plain(value) == [
        [1, [2]],
        [1, 2, 3],
        ["a", "b"],
        "b'\\x00x'",
        "2024-02-29T12:00:00+00:00",
        "2024-02-29",
        "1.50",
        "00000000-0000-0000-0000-000000000001",
    ]


def test_personal_values_stay_masked() -> None:
    shown = json_text(plain({"mail": Personal("ann", "ann@example.org"), "gone": Erased()}))
    assert "ann" not in shown
    assert "•••" in shown
    assert "(erased)" in shown


def test_what_isn_t_shown_looks_the_same_everywhere() -> None:
    """In the state, in its messages, in a diff, and in each format."""
    found = plain({"mail": Personal("ann", 1), "deep": [(Erased(),)]})
    assert found == {"mail": "•••", "deep": [["(erased)"]]} == plain(found)
    assert json.loads(json_text(found)) == found
    assert yaml.safe_load(yaml_text(found)) == found
    assert message_text({"role": "user", "content": Erased()}) == ("user", "(erased)")
    assert [_short(found["mail"], 20), _short(found["deep"][0][0], 20)] == ["•••", "(erased)"]
    assert [_short("•••", 20), _short(Erased(), 20)] == ['"•••"', "(erased)"]


@pytest.mark.parametrize("length", [900, 1_100, 5_000])
def test_long_keys_are_valid_yaml(length: int) -> None:
    data = {"k" * length: {"inner": [1, {"x": "y"}]}, "short": 1}
    text = yaml_text(data)
    assert yaml.safe_load(text) == data


def test_yaml_texts_that_look_like_something_else_stay_texts() -> None:
    data = {"yes": "no", "~": "null", "1": "0x1f", "a: b": "- c", "#": "# no comment", "float": 1e16}
    text = yaml_text(data)
    assert yaml.safe_load(text) == data
    assert "float: 1.0e+16" in text
