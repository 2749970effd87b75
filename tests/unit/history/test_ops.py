"""Edits of a document: applied one by one, and composed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from everthread.codec.values import encode
from everthread.errors import StateCorruptedError
from everthread.history.ops import ADD, DELETE, SET, apply, compose


def test_an_addition_to_a_missing_key_begins_at_zero() -> None:
    assert apply({}, [[ADD, ["n"], 2], [ADD, ["n"], 0.5]]) == {"n": 2.5}
    assert apply({"d": {}}, [[ADD, ["d", "n"], 1]]) == {"d": {"n": 1}}
    for damaged in ({"n": "text"}, {"n": None}):
        with pytest.raises(StateCorruptedError):
            apply(damaged, [[ADD, ["n"], 1]])
    with pytest.raises(StateCorruptedError):
        apply({"l": []}, [[ADD, ["l", 0], 1]])
    with pytest.raises(StateCorruptedError):
        apply({}, [[ADD, ["d", "n"], 1]])


@pytest.mark.parametrize(
    "deltas",
    [
        [[[ADD, ["n"], 1]], [[SET, ["b"], 1]], [[SET, ["n"], 5]]],
        [[[ADD, ["n"], 1]], [[SET, ["b"], 1]], [[ADD, ["n"], 2]], [[ADD, ["n"], 0.5]]],
        [[[ADD, ["n"], 1]], [[DELETE, ["n"]]], [[SET, ["b"], 1]], [[ADD, ["n"], 3]]],
        [[[SET, ["d"], {}]], [[ADD, ["d", "n"], 1]], [[SET, ["b"], 1]], [[ADD, ["d", "n"], 1]]],
        [[[ADD, ["n"], 1]], [[ADD, ["b"], 1]], [[SET, ["n"], {"x": 1}]], [[SET, ["n", "x"], 2]]],
    ],
)
@pytest.mark.parametrize("before", [{}, {"n": 7}, {"b": 0, "n": 7}])
def test_composed_additions_do_what_they_do_one_by_one(before: Any, deltas: Any) -> None:
    expected = copy.deepcopy(before)
    for delta in copy.deepcopy(deltas):
        expected = apply(expected, delta)
    net = compose(copy.deepcopy(deltas))
    assert encode(apply(copy.deepcopy(before), net)) == encode(expected), "order of keys included"
