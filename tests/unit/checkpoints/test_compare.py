"""Two states compared: for people by fields, for the store by edits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.checkpoints.compare import changes, differences, equal
from everthread.codec.values import lower, same
from everthread.history import ops

scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.floats(), st.sampled_from(["a", "b"]))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.one_of(st.sampled_from(["a", "b", "id"]), st.integers(0, 1)), inner, max_size=3),
    ),
    max_leaves=12,
)


@st.composite
def edited(draw: st.DrawFn) -> tuple[Any, Any]:
    """A tree, and one that came from it by a few edits."""
    items = draw(st.lists(trees, max_size=8))
    old = {"items": items, "more": draw(trees)}
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(new["items"])))
        what = draw(st.sampled_from(["insert", "delete", "replace", "move", "within"]))
        if what == "insert":
            new["items"].insert(at, draw(trees))
        elif at < len(new["items"]):
            item = new["items"][at]
            if what == "delete":
                del new["items"][at]
            elif what == "replace":
                new["items"][at] = draw(trees)
            elif what == "move":
                new["items"].append(new["items"].pop(at))
            elif isinstance(item, list):
                item.append(draw(trees))
            elif isinstance(item, dict):
                item["b"] = draw(trees)
    return old, new


@settings(max_examples=300)
@given(edited())
def test_the_edits_lead_from_one_to_the_other(pair: tuple[Any, Any]) -> None:
    old, new = lower(pair[0]), lower(pair[1])
    found = ops.apply(copy.deepcopy(old), copy.deepcopy(changes(old, new)))
    assert same(found, new)
    assert not changes(old, copy.deepcopy(old))


def written(old: Any, new: Any) -> int:
    """How many items and values the edits carry."""
    total = 0
    for edit in changes({"l": old}, {"l": new}):
        total += len(edit[4]) if edit[0] == ops.SPLICE else 1
    return total


@pytest.mark.parametrize("with_ids", [False, True])
def test_an_edit_costs_its_size(with_ids: bool) -> None:
    old = [{"n": n, "tags": ["x", n], **({"id": n} if with_ids else {})} for n in range(200)]

    def after(edit: Any) -> list[Any]:
        new = copy.deepcopy(old)
        edit(new)
        return new

    def many(new: list[Any]) -> None:
        new.append({"n": "new"})
        new[100]["tags"].append("late")
        del new[50]
        new.insert(0, {"n": "first"})

    assert written(old, after(lambda new: new.append({"n": 1}))) == 1
    assert written(old, after(lambda new: new.pop(100))) == 0
    assert written(old, after(lambda new: new.insert(7, "x"))) == 1
    assert written(old, after(many)) == 3
    assert written(old, after(lambda new: new.reverse())) <= 200


def test_neighbours_are_replaced_together() -> None:
    edits = changes({"l": [0.5] * 100}, {"l": [float(n) for n in range(100)]})
    assert len(edits) == 1


def test_types_count_and_nan_is_itself() -> None:
    nan = float("nan")
    assert equal(nan, float("nan"))
    assert equal({"a": [1, (2,)]}, {"a": [1, (2,)]})
    assert equal(np.array([1.0, nan]), np.array([1.0, nan]))
    assert equal(np.array([{"a": np.arange(2)}], dtype=object), np.array([{"a": np.arange(2)}], dtype=object))
    different = [
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        (0.0, -0.0),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
    ]
    different += [
        (np.arange(3), np.arange(3.0)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.arange(2), [0, 1]),
    ]
    for a, b in different:
        assert not equal(a, b), (a, b)


def test_what_refuses_to_be_compared_counts_as_different() -> None:
    class Stubborn:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    assert not equal(Stubborn(), Stubborn())
    assert differences({"x": Stubborn()}, {"x": Stubborn()})["changed"].keys() == {"x"}
