"""Nodes are plain data to their user: what is read, and what is assigned."""

from __future__ import annotations

import copy
import enum
import json
import pickle
import uuid
from collections.abc import MutableMapping, MutableSequence
from decimal import Decimal
from typing import Any

import pytest

from everthread.codec.values import lift
from everthread.errors import InvalidValueError
from everthread.history.ops import ADD, DELETE, SET, SPLICE
from everthread.threads.document import Document, TrackedDict, TrackedList
from everthread.values import Tagged
from tests.unit.threads.documents import Calls, check_replay, lower, make

# Reading


def test_reads_scalars_as_they_are_and_containers_as_the_same_node_each_time() -> None:
    state = make({"n": 1, "d": {"x": [1, 2]}, "l": [{}]}).root
    assert state["n"] == 1
    assert isinstance(state["d"], TrackedDict)
    assert isinstance(state["d"]["x"], TrackedList)
    assert state["d"] is state["d"]
    assert state["l"][0] is state["l"][-1]
    assert state["d"] is state.get("d")
    assert next(iter(state["l"])) is state["l"][0]
    assert next(reversed(state["l"])) is state["l"][0]


def test_nodes_are_abstract_containers_but_neither_dict_nor_list() -> None:
    state = make({"l": []}).root
    assert isinstance(state, MutableMapping)
    assert isinstance(state["l"], MutableSequence)
    assert not isinstance(state, dict)
    assert not isinstance(state["l"], list)


def test_missing_keys_and_items_raise_as_plain_data_does() -> None:
    state = make({"l": [1]}).root
    with pytest.raises(KeyError, match="nope"):
        state["nope"]
    with pytest.raises(KeyError, match="nope"):
        del state["nope"]
    with pytest.raises(KeyError):
        state[uuid.uuid4()]
    with pytest.raises(KeyError):
        state[object()]
    assert state.get("nope") is None
    assert state.get(object(), 3) == 3
    assert object() not in state
    with pytest.raises(TypeError):
        state[["unhashable"]]
    with pytest.raises(TypeError):
        state[["unhashable"]] = 1
    for index in (1, -2):
        with pytest.raises(IndexError):
            state["l"][index]
        with pytest.raises(IndexError):
            state["l"][index] = 0
        with pytest.raises(IndexError):
            state["l"].pop(index)
    with pytest.raises(TypeError):
        state["l"]["x"]
    with pytest.raises(IndexError):
        make({"l": []}).root["l"].pop()


def test_typed_values_come_back_fresh_each_time() -> None:
    document = make({})
    state = document.root
    state["price"] = Decimal("1.50")
    state["tags"] = {"a", "b"}
    assert isinstance(document.raw["price"], Tagged)
    assert state["price"] == Decimal("1.50")
    assert state["tags"] == {"a", "b"}
    assert state["tags"] is not state["tags"]
    assert state.plain() == {"price": Decimal("1.50"), "tags": {"a", "b"}}


def test_keys_of_other_types_are_found_and_given_back_as_they_were() -> None:
    ident, pair, big = uuid.UUID(int=7), (1, "a"), 2**70
    document = make({})
    state = document.root
    keys = [ident, pair, big, 3, True, None, 2.5, b"x", "ü"]
    for number, key in enumerate(keys):
        state[key] = number
    assert list(state) == keys
    assert list(reversed(state)) == keys[::-1]
    assert [state[key] for key in keys] == list(range(len(keys)))
    assert all(key in state for key in keys)
    assert dict(state.items()) == state.plain()
    assert (2, "a") not in state
    check_replay({}, document)
    document.mark_clean()
    del state[ident]
    state.increment(pair, 10)
    assert state.pop(big) == 2
    assert document.take_ops() == [
        (DELETE, (lower(ident),)),
        (ADD, (lower(pair),), 10),
        (DELETE, (lower(big),)),
    ]


def test_a_key_equal_to_a_plain_one_is_that_key() -> None:
    class Phase(enum.StrEnum):
        PLAN = "plan"

    class Name(str):
        __slots__ = ()

    document = make({"plan": {"x": 1}})
    document.root[Phase.PLAN]["x"] = 2
    document.root.get(Phase.PLAN)["x"] = 3
    ((_, path, _),) = document.take_ops()
    assert [type(key) for key in path] == [str, str]
    document = make({"plan": 1, 1: "one"})
    state = document.root
    for key in (Phase.PLAN, Name("plan")):
        assert key in state
        assert state[key] == 1
        assert state.get(key) == 1
    state[Phase.PLAN] = 2
    state[True] = "yes"
    assert state == {"plan": 2, 1: "yes"}
    assert [type(key) for key in document.raw] == [str, int]
    del state[Name("plan")]
    assert [type(op[1][0]) for op in document.take_ops()] == [bool, str]
    check_replay({"plan": 1, 1: "one"}, document)


def test_equality_is_that_of_plain_data() -> None:
    state = make({"a": [1, {"b": 2.0}], "c": {"d": []}}).root
    plain = {"a": [1, {"b": 2.0}], "c": {"d": []}}
    assert state == plain
    assert plain == state
    assert state == make(plain).root
    assert state["a"] == [1.0, {"b": 2}]
    assert [1, {"b": 2}] == state["a"]  # noqa: SIM300
    assert state["a"] != (1, {"b": 2})
    assert state["a"] != [1, {"b": 3}]
    assert state["c"] != {"d": [], "e": 1}
    assert state != 3
    assert {"wrapped": state["c"]} == {"wrapped": {"d": []}}
    assert [*state["a"]] == [1, {"b": 2}]


def test_lists_are_ordered_as_plain_lists_are() -> None:
    state = make({"a": [1, 2], "b": [1, 3]}).root
    assert state["a"] < state["b"]
    assert state["a"] <= [1, 2]
    assert [9] > state["b"]  # noqa: SIM300
    assert state["b"] >= state["a"]
    assert max(state["a"], state["b"]) is state["b"]
    with pytest.raises(TypeError):
        state["a"] < 3  # noqa: B015


def test_looks_like_plain_data() -> None:
    state = make({"a": [1, {"b": None}], "e": {}}).root
    assert repr(state) == "{'a': [1, {'b': None}], 'e': {}}"
    assert str(state["a"]) == "[1, {'b': None}]"
    assert len(state) == 2
    assert bool(state) is True
    assert bool(state["e"]) is False
    assert list(state) == ["a", "e"]
    assert list(state.keys()) == ["a", "e"]
    assert list(state.values()) == [[1, {"b": None}], {}]
    for node in (state, state["a"]):
        with pytest.raises(TypeError):
            hash(node)
        with pytest.raises(AttributeError):
            node.attribute = 1


def test_copies_and_pickles_are_plain_and_independent() -> None:
    document = make({"a": [1, {"b": 2}]})
    state = document.root
    for copied in (
        state.plain(),
        state.copy(),
        copy.copy(state),
        copy.deepcopy(state),
        pickle.loads(pickle.dumps(state)),
    ):
        assert type(copied) is dict
        assert type(copied["a"]) is list
        assert type(copied["a"][1]) is dict
        copied["a"][1]["b"] = 99
    items = state["a"]
    for copied in (items.copy(), copy.copy(items), copy.deepcopy(items), pickle.loads(pickle.dumps(items))):
        assert type(copied) is list
        copied[1]["b"] = 99
    assert state == {"a": [1, {"b": 2}]}
    assert not document.dirty
    with pytest.raises(TypeError):
        json.dumps(state)
    assert json.loads(json.dumps(state.plain())) == {"a": [1, {"b": 2}]}


def test_operators_give_plain_data() -> None:
    state = make({"d": {"a": 1}, "l": [1, [2]]}).root
    for merged in (state["d"] | {"b": 2}, {"b": 2, "a": 0} | state["d"]):
        assert type(merged) is dict
        assert merged == {"a": 1, "b": 2}
    for joined in (state["l"] + [3], state["l"] + make({"l": [3]}).root["l"]):
        assert type(joined) is list
        assert joined == [1, [2], 3]
    assert [0] + state["l"] == [0, 1, [2]]
    assert state["l"] * 2 == 2 * state["l"] == [1, [2], 1, [2]]
    with pytest.raises(TypeError):
        state["l"] + (3,)
    with pytest.raises(TypeError):
        state["d"] | [("a", 1)]


def test_slices_are_lists_of_live_items() -> None:
    document = make({"l": [0, {"a": 1}, 2, 3]})
    items = document.root["l"]
    part = items[1:3]
    assert type(part) is list
    assert part == [{"a": 1}, 2]
    assert items[::-2] == [3, {"a": 1}]
    part[0]["a"] = 99
    assert items[1] == {"a": 99}, "as with plain data, an edit through a slice is not lost"
    assert document.dirty
    part.append("only here")
    assert len(items) == 4


def test_wrapping_is_lazy() -> None:
    document = make({"l": [{"x": {}} for _ in range(100)]})
    assert not document.root._children
    document.root["l"][50]["x"]
    assert len(document.root["l"]._children) == 1


# Assigning


def test_assignment_copies_in() -> None:
    state = make({}).root
    mine = {"x": [1]}
    state["a"] = mine
    mine["x"].append(2)
    assert state["a"] == {"x": [1]}
    state["a"]["x"].append(3)
    assert mine == {"x": [1, 2]}


def test_assigning_a_node_copies_its_content() -> None:
    document = make({"a": {"x": [1]}, "l": []})
    state = document.root
    state["b"] = state["a"]
    state["l"].append(state["a"]["x"])
    state["l"].extend([state["a"], state["a"]])
    state["wrapped"] = {"inner": [state["a"], (state["a"]["x"],)]}
    state["a"]["x"].append(2)
    assert state.plain() == {
        "a": {"x": [1, 2]},
        "l": [[1], {"x": [1]}, {"x": [1]}],
        "b": {"x": [1]},
        "wrapped": {"inner": [{"x": [1]}, ([1],)]},
    }
    state["self"] = state
    assert state["self"]["b"] == {"x": [1]}
    check_replay({"a": {"x": [1]}, "l": []}, document)


def test_a_node_of_another_document_goes_through_the_codec() -> None:
    calls = Calls()
    target = Document({}, lower=calls.lower, lift=lift).root
    target["a"] = make({"x": {"price": Decimal(1)}}).root["x"]
    assert calls.lowered == ["state.a"]
    assert target == {"a": {"price": Decimal(1)}}


def test_assigning_a_node_to_where_it_is_changes_nothing() -> None:
    document = make({"a": {"x": 1}, "l": [[1]]})
    state = document.root
    held = state["a"]
    state["a"] = state["a"]
    state["l"][0] = state["l"][0]
    state.update(a=held)
    assert not document.dirty
    held["x"] = 2
    assert state["a"] == {"x": 2}


def test_augmented_assignment_edits_in_place() -> None:
    document = make({"d": {"a": 1}, "l": [1], "n": 1})
    state = document.root
    held = state["l"]
    state["l"] += [2]
    state["l"] += (3,)
    state["d"] |= {"b": 2}
    state["n"] += 1
    assert held == [1, 2, 3]
    assert document.take_ops() == [
        (SET, ("n",), 2),
        (SPLICE, ("l",), 1, 0, [2, 3]),
        (SET, ("d", "b"), 2),
    ]
    state["l"] *= 2
    assert held == [1, 2, 3, 1, 2, 3]
    held *= 0
    assert state["l"] == []


def test_a_filtered_list_of_nodes_can_be_assigned_back() -> None:
    document = make({"todos": [{"n": 1}, {"n": 2}, {"n": 3}]})
    state = document.root
    state["todos"] = [todo for todo in state["todos"] if todo["n"] != 2]
    assert state["todos"] == [{"n": 1}, {"n": 3}]
    state["todos"][:] = sorted(state["todos"], key=lambda todo: -todo["n"])
    assert state["todos"] == [{"n": 3}, {"n": 1}]
    check_replay({"todos": [{"n": 1}, {"n": 2}, {"n": 3}]}, document)


def test_what_cannot_be_stored_is_refused_at_assignment_naming_the_path() -> None:
    document = make({"todos": [{"x": 1}], "keep": 1})
    state = document.root
    with pytest.raises(InvalidValueError) as caught:
        state["todos"][0]["content"] = object()
    assert caught.value.path == "state.todos[0].content"
    with pytest.raises(InvalidValueError) as caught:
        state["todos"].extend([1, 2, object()])
    assert caught.value.path == "state.todos[3]"
    with pytest.raises(InvalidValueError):
        state.update(keep=2, other=object())
    with pytest.raises(InvalidValueError):
        state["todos"][:] = [object()]
    with pytest.raises(InvalidValueError):
        state["todos"][0:1:1] = [object()]
    with pytest.raises(InvalidValueError):
        state["lone \ud800"] = 1
    with pytest.raises(InvalidValueError):
        state["keep"] = "lone \ud800"
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidValueError):
        state["keep"] = loop
    assert state == {"todos": [{"x": 1}], "keep": 1}
    assert not document.dirty


def test_short_scalars_and_keys_need_no_call_of_the_codec() -> None:
    calls = Calls()
    state = Document({}, lower=calls.lower, lift=lift).root
    state["a"] = "text"
    state[3] = 4
    state["b"] = 2.5
    state["c"] = None
    state["c"] = True
    assert state["a"] == "text"
    assert "nope" not in state
    assert calls.lowered == []
    state["d"] = "ü"
    state["e"] = float("inf")
    state["f"] = 2**64
    assert calls.lowered == ["state.d", "state.e", "state.f"]


def test_setdefault_returns_the_node() -> None:
    document = make({})
    state = document.root
    mine: list[int] = []
    items = state.setdefault("l", mine)
    items.append(1)
    assert mine == []
    assert state.setdefault("l", "other") is items
    assert state == {"l": [1]}
    assert state.setdefault("none") is None


def test_taking_out_gives_plain_data() -> None:
    document = make({"a": {"x": [1]}, "b": 2, "l": [{"y": 1}, 2]})
    state = document.root
    assert type(state.pop("a")) is dict
    assert state.pop("a", None) is None
    with pytest.raises(KeyError):
        state.pop("a")
    assert type(state["l"].pop(0)) is dict
    assert state["l"].pop() == 2
    key, value = state.popitem()
    assert (key, value) == ("l", [])
    assert type(value) is list
    assert state.popitem() == ("b", 2)
    with pytest.raises(KeyError):
        state.popitem()
    check_replay({"a": {"x": [1]}, "b": 2, "l": [{"y": 1}, 2]}, document)
