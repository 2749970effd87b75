"""What a dictionary records of its changes."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from everthread.errors import InvalidValueError
from everthread.history.ops import ADD, DELETE, SET, SPLICE, apply
from tests.unit.threads.documents import check_replay, make

# Tracking of dictionaries


def test_repeated_sets_of_a_key_are_one_op() -> None:
    document = make({"a": 0, "d": {}})
    for number in range(1, 100):
        document.root["a"] = number
        document.root["d"]["x"] = number
    for _ in range(2):
        assert document.take_ops() == [(SET, ("a",), 99), (SET, ("d", "x"), 99)]


def test_setting_the_same_scalar_is_no_change() -> None:
    document = make({"a": 1, "s": "x", "f": 0.0, "u": uuid.UUID(int=1), "l": [1, 0.0]})
    state = document.root
    state["a"] = 1
    state["s"] = "x"
    state["u"] = uuid.UUID(int=1)
    state["l"][0] = 1
    assert not document.dirty
    state["a"] = True
    state["f"] = -0.0
    state["l"][0] = 1.0
    assert [op[1] for op in document.take_ops()] == [("a",), ("f",), ("l", 0)]


def test_a_key_added_again_moves_to_the_end_also_on_replay() -> None:
    before = {"a": 1, "b": 2, "c": 3}
    document = make(before)
    state = document.root
    del state["a"]
    state["new"] = 0
    state["a"] = 1
    assert list(state) == ["b", "c", "new", "a"]
    assert document.take_ops() == [(SET, ("new",), 0), (DELETE, ("a",)), (SET, ("a",), 1)]
    check_replay(before, document)
    del state["new"]
    state["b"] = 5
    del state["a"]
    state["new"] = 1
    state["a"] = 2
    assert list(state) == ["b", "c", "new", "a"]
    check_replay(before, document)


def test_a_key_that_came_and_went_leaves_nothing() -> None:
    document = make({"d": {"x": {}}})
    inner = document.root["d"]["x"]
    inner["a"] = {"b": 1}
    inner["a"]["b"] = 2
    assert document.dirty
    del inner["a"]
    assert not document.dirty
    assert document.take_ops() == []
    inner["a"] = 1
    assert document.take_ops() == [(SET, ("d", "x", "a"), 1)]


def test_children_of_a_new_value_are_part_of_it() -> None:
    document = make({"d": {"old": {"x": 1}}})
    state = document.root
    state["d"]["old"]["x"] = 2
    state["d"]["fresh"] = {"y": [1]}
    state["d"]["fresh"]["y"].append(2)
    state["d"]["fresh"]["y"][0] = 0
    assert document.take_ops() == [(SET, ("d", "fresh"), {"y": [0, 2]}), (SET, ("d", "old", "x"), 2)]
    document.mark_clean()
    state["d"]["fresh"]["y"].append(3)
    assert document.take_ops() == [(SPLICE, ("d", "fresh", "y"), 2, 0, [3])]


def test_clear_and_update() -> None:
    before = {"a": 1, "b": {"c": 1}}
    document = make(before)
    document.root.clear()
    document.root.update({"b": 2}, z=3)
    document.root.update([("y", 4)])
    assert document.root == {"b": 2, "z": 3, "y": 4}
    check_replay(before, document)


def test_mark_clean_forgets_the_changes_and_keeps_the_nodes() -> None:
    document = make({"d": {"l": [1]}})
    held = document.root["d"]["l"]
    held.append(2)
    document.root["n"] = 1
    document.mark_clean()
    assert not document.dirty
    assert document.take_ops() == []
    assert document.root["d"]["l"] is held
    held.append(3)
    assert document.dirty
    assert document.take_ops() == [(SPLICE, ("d", "l"), 2, 0, [3])]


# Increments


def test_increments_are_recorded_as_additions() -> None:
    document = make({"n": 5, "d": {"m": 1.5}})
    state = document.root
    assert state.increment("n") == 6
    assert state.increment("n", 4) == 10
    assert state["d"].increment("m", -0.5) == 1.0
    assert document.take_ops() == [(ADD, ("n",), 5), (ADD, ("d", "m"), -0.5)]
    assert document.increments() == {("n",): 5, ("d", "m"): -0.5}
    check_replay({"n": 5, "d": {"m": 1.5}}, document)
    theirs = {"n": 100, "d": {"m": 0.0}}
    assert apply(theirs, document.take_ops()) == {"n": 105, "d": {"m": -0.5}}


def test_an_assignment_overrides_an_increment_and_absorbs_later_ones() -> None:
    document = make({"n": 5})
    state = document.root
    state.increment("n")
    state["n"] = 6
    assert document.take_ops() == [(SET, ("n",), 6)]
    state.increment("n")
    assert document.take_ops() == [(SET, ("n",), 7)]
    assert document.increments() == {}


def test_increment_of_a_missing_key_starts_at_zero() -> None:
    document = make({"gone": 3})
    state = document.root
    assert state.increment("n", 2) == 2
    assert state.increment("n", 2) == 4
    del state["gone"]
    assert state.increment("gone") == 1
    assert document.take_ops() == [(ADD, ("n",), 4), (DELETE, ("gone",)), (SET, ("gone",), 1)]


def test_float_increments_replay_to_the_very_same_number() -> None:
    document = make({"n": 0.1})
    for amount in (0.2, 0.3, 1e16, -1e16, 0.7):
        document.root.increment("n", amount)
    check_replay({"n": 0.1}, document)


def test_increments_that_cancel_out_leave_nothing() -> None:
    document = make({"n": 1, "f": -0.0})
    for key in ("n", "f"):
        document.root.increment(key, 3)
        document.root.increment(key, -3)
    assert not document.dirty
    assert repr(document.raw) == "{'n': 1, 'f': -0.0}"


def test_increments_beyond_64_bits_become_assignments() -> None:
    before = {"n": 2**64 - 1, "big": 2**70, "low": -(2**63)}
    document = make(before)
    state = document.root
    assert state.increment("n") == 2**64
    assert state.increment("n", -1) == 2**64 - 1
    assert state.increment("big") == 2**70 + 1
    state.increment("low", 2**64 - 1)
    assert state.increment("low", 1) == 2**63
    assert document.increments() == {}
    check_replay(before, document)


@pytest.mark.parametrize("wrong", [True, "1", None, Decimal(1)])
def test_only_ints_and_floats_are_added_up(wrong: Any) -> None:
    document = make({"d": {"x": wrong, "n": 1}})
    with pytest.raises(InvalidValueError) as caught:
        document.root["d"].increment("x")
    assert caught.value.path == "state.d.x"
    with pytest.raises(InvalidValueError):
        document.root["d"].increment("n", wrong)
    with pytest.raises(InvalidValueError):
        document.root["d"].increment("missing", wrong)
    assert not document.dirty


def test_an_increment_that_brought_its_key_replays_where_the_key_stands() -> None:
    before: dict[str, Any] = {"a": 1}
    document = make(before)
    state = document.root
    state.increment("n", 0)
    assert document.take_ops() == [(ADD, ("n",), 0)]
    state.increment("n", 2)
    state["later"] = 1
    state.increment("n", -2)
    assert list(state) == ["a", "n", "later"]
    check_replay(before, document)
    state["n"] = "text"
    assert document.take_ops() == [(SET, ("n",), "text"), (SET, ("later",), 1)]
    check_replay(before, document)
    del state["n"], state["later"]
    assert not document.dirty


def test_increments_count_inside_of_dictionaries_that_are_new_alone() -> None:
    document = make({"old": {"n": 5}, "kept": {"n": 5}})
    state = document.root
    state.setdefault("new", {}).increment("n", 2)
    state.setdefault("deep", {})["er"] = {}
    state["deep"]["er"].increment("n", 3)
    state["old"] = {}
    state["old"].increment("n")
    state["kept"].increment("n")
    assert document.increments() == {("new", "n"): 2, ("deep", "er", "n"): 3, ("kept", "n"): 1}
    check_replay({"old": {"n": 5}, "kept": {"n": 5}}, document)


def test_a_first_increment_beyond_64_bits_is_an_assignment() -> None:
    document = make({})
    assert document.root.increment("n", 2**70) == 2**70
    assert document.increments() == {}
    assert [op[0] for op in document.take_ops()] == [SET]
