"""The tracked tree: plain data to its user, a short list of ops to the history."""

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

from everthread.codec import values
from everthread.codec.values import lift
from everthread.errors import InvalidStateError, InvalidValueError
from everthread.history.ops import ADD, DELETE, SET, SPLICE, apply
from everthread.model.values import Tagged
from everthread.threads.document import Document, TrackedDict, TrackedList


def lower(value: Any, where: str = "state") -> Any:
    return values.lower(value, root=where)


def make(content: dict[Any, Any], *, writable: bool = True) -> Document:
    return Document(lower(content), lower=lower, lift=lift, writable=writable)


class Calls:
    """Counts what a document asks of the codec."""

    def __init__(self) -> None:
        self.lowered: list[str] = []

    def lower(self, value: Any, where: str) -> Any:
        self.lowered.append(where)
        return lower(value, where)


def check_replay(before: dict[Any, Any], document: Document) -> None:
    """The pending ops turn ``before`` into the present document, order of keys included."""
    replayed = apply(lower(before), copy.deepcopy(document.take_ops()))
    assert repr(replayed) == repr(document.raw)


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


def test_slices_are_plain_copies() -> None:
    document = make({"l": [0, {"a": 1}, 2, 3]})
    items = document.root["l"]
    part = items[1:3]
    assert type(part) is list
    assert type(part[0]) is dict
    assert part == [{"a": 1}, 2]
    assert items[::-2] == [3, {"a": 1}]
    part[0]["a"] = 99
    assert items[1] == {"a": 1}


def test_finds_items_by_equality() -> None:
    items = make({"l": [1, {"a": (1, 2)}, [3], 1.0, {"a": (1, 2)}]}).root["l"]
    assert items.index({"a": (1, 2)}) == 1
    assert items.index(items[4], 2) == 4
    assert items.index([3], -3, -1) == 2
    assert items.count(1) == 2
    assert [3] in items
    assert items[1] in items
    assert "x" not in items
    with pytest.raises(ValueError, match="not in list"):
        items.index([3], 3)


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


# Tracking of dictionaries


def test_repeated_sets_of_a_key_are_one_op() -> None:
    document = make({"a": 0, "d": {}})
    for number in range(1, 100):
        document.root["a"] = number
        document.root["d"]["x"] = number
    assert document.take_ops() == [(SET, ("a",), 99), (SET, ("d", "x"), 99)]
    assert document.take_ops() == document.take_ops()


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
    assert document.take_ops() == [(SET, ("n",), 4), (DELETE, ("gone",)), (SET, ("gone",), 1)]


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


# Tracking of lists


def test_appends_are_one_splice() -> None:
    document = make({"l": [0]})
    items = document.root["l"]
    items.append(1)
    items.extend([2, 3])
    items += [4]
    assert document.take_ops() == [(SPLICE, ("l",), 1, 0, [1, 2, 3, 4])]
    items.pop()
    items[2] = 22
    assert document.take_ops() == [(SPLICE, ("l",), 1, 0, [1, 22, 3])]


def test_setting_one_item_is_a_set() -> None:
    document = make({"l": [0, 1, 2, 3, 4]})
    document.root["l"][-2] = "x"
    document.root["l"][0] = "y"
    assert document.take_ops() == [(SET, ("l", 0), "y"), (SET, ("l", 3), "x")]


def test_edits_that_cancel_out_leave_nothing() -> None:
    document = make({"d": {"l": [1, 2, 3]}})
    items = document.root["d"]["l"]
    items.append({"x": 1})
    items[3]["x"] = 2
    items.insert(1, 9)
    items.extend([])
    assert document.dirty
    del items[1]
    items.pop()
    assert not document.dirty
    assert document.take_ops() == []
    items.sort()
    items *= 1
    assert not document.dirty


def test_splices_are_emitted_from_the_left_where_the_items_are_now() -> None:
    before = {"l": list(range(10))}
    document = make(before)
    items = document.root["l"]
    del items[8]
    items.insert(4, "four")
    items[1:3] = ["a", "b", "c"]
    items.insert(0, "first")
    assert document.take_ops() == [
        (SPLICE, ("l",), 0, 0, ["first"]),
        (SPLICE, ("l",), 2, 2, ["a", "b", "c"]),
        (SPLICE, ("l",), 6, 0, ["four"]),
        (SPLICE, ("l",), 11, 1, []),
    ]
    check_replay(before, document)


def test_children_edited_in_place_are_emitted_at_their_final_index() -> None:
    before = {"l": [{"n": 0}, {"n": 1}, {"n": 2}]}
    document = make(before)
    items = document.root["l"]
    held = items[2]
    held["n"] = "edited"
    items.insert(0, {"fresh": 0})
    items[0]["fresh"] = 1
    del items[1]
    items.insert(0, 5)
    assert items[3] is held
    assert document.take_ops() == [
        (SPLICE, ("l",), 0, 1, [5, {"fresh": 1}]),
        (SET, ("l", 3, "n"), "edited"),
    ]
    check_replay(before, document)


def test_slices_can_be_set_and_deleted() -> None:
    before = {"l": list(range(12))}
    document = make(before)
    items, model = document.root["l"], list(range(12))
    for edit in (
        lambda x: x.__setitem__(slice(2, 4), "abc"),
        lambda x: x.__setitem__(slice(None, None, 3), [-1] * len(range(0, len(x), 3))),
        lambda x: x.__delitem__(slice(-1, 0, -2)),
        lambda x: x.__setitem__(slice(5, 2), ["in between"]),
        lambda x: x.__setitem__(slice(2, 0, -1), ["r", "s"]),
        lambda x: x.__delitem__(slice(2, 0, -1)),
        lambda x: x.__delitem__(slice(3, 1)),
        lambda x: x.__delitem__(slice(-3, None)),
        lambda x: x.__setitem__(slice(None), [*x, *x]),
    ):
        edit(items)
        edit(model)
        assert items == model
        check_replay(before, document)
    with pytest.raises(ValueError, match="extended slice"):
        items[::2] = [1]
    assert items == model


def test_sort_and_reverse_keep_the_nodes() -> None:
    before = {"l": [{"n": 2}, {"n": 3}, {"n": 1}, {"n": 1, "second": True}]}
    document = make(before)
    items = document.root["l"]
    held = items[1]
    held["edited"] = True
    items.sort(key=lambda item: item["n"])
    assert [item["n"] for item in items] == [1, 1, 2, 3]
    assert "second" in items[1]
    assert items[3] is held
    held["again"] = True
    check_replay(before, document)
    items.reverse()
    assert items[0] is held
    check_replay(before, document)
    document.mark_clean()
    held["n"] = 9
    assert document.take_ops() == [(SET, ("l", 0, "n"), 9)]


def test_sort_orders_values_as_plain_lists_do() -> None:
    state = make(
        {"n": [3, 1, 2.5], "l": [[2], [1, 5], [1]], "d": [{}, {}], "u": [Decimal(2), Decimal(1)]}
    ).root
    state["n"].sort(reverse=True)
    state["l"].sort()
    state["u"].sort()
    assert state["n"] == [3, 2.5, 1]
    assert state["l"] == [[1], [1, 5], [2]]
    assert state["u"] == [Decimal(1), Decimal(2)]
    with pytest.raises(TypeError):
        state["d"].sort()


def test_a_list_changed_by_its_sort_key_is_noticed() -> None:
    items = make({"l": [2, 1]}).root["l"]
    with pytest.raises(ValueError, match="modified during sort"):
        items.sort(key=lambda value: items.append(value) or value)


def test_remove_and_clear() -> None:
    before = {"l": [1, {"a": 1}, 2, {"a": 1}]}
    document = make(before)
    items = document.root["l"]
    items.remove({"a": 1})
    assert items == [1, 2, {"a": 1}]
    with pytest.raises(ValueError, match="not in list"):
        items.remove("x")
    check_replay(before, document)
    items.clear()
    assert document.take_ops() == [(SPLICE, ("l",), 0, 4, [])]


def test_many_scattered_edits_stay_separate() -> None:
    before = {"l": list(range(1000))}
    document = make(before)
    for index in range(0, 1000, 10):
        document.root["l"][index] = "x"
    ops = document.take_ops()
    assert len(ops) == 100
    assert all(op[0] == SET for op in ops)
    check_replay(before, document)


def test_scattered_insertions_and_removals_are_put_together_beyond_a_bound() -> None:
    before = {"l": [{"n": number} for number in range(6001)]}
    document = make(before)
    items = document.root["l"]
    held = items[4]
    for index in range(6000, 0, -3):
        if index % 2:
            del items[index]
        else:
            items.insert(index, index)
    held["edited"] = True
    items[-1]["edited"] = True
    assert len(document.take_ops()) < 1100
    check_replay(before, document)


# Cost


def test_taking_ops_visits_only_what_was_touched() -> None:
    document = make({"l": [{"n": {"x": 0}} for _ in range(500)]})
    for item in document.root["l"]:
        item["n"]["x"]
    document.root["l"][250]["n"]["x"] = 1
    assert len(document.root["l"]._touched) == 1
    assert document.take_ops() == [(SET, ("l", 250, "n", "x"), 1)]


# Detached and read-only nodes


@pytest.mark.parametrize(
    "remove",
    [
        lambda s: s.__delitem__("a"),
        lambda s: s.__setitem__("a", {"x": [{"y": 1}]}),
        lambda s: s.pop("a"),
        lambda s: s.update(a=1),
        lambda s: s.clear(),
        lambda s: s["a"].__delitem__("x"),
        lambda s: s["a"]["x"].__delitem__(0),
        lambda s: s["a"]["x"].__delitem__(slice(None, None, 2)),
        lambda s: s["a"]["x"].__setitem__(0, {"y": 1}),
        lambda s: s["a"]["x"].__setitem__(slice(None), []),
        lambda s: s["a"]["x"].pop(0),
        lambda s: s["a"]["x"].clear(),
        lambda s: s["a"]["x"].remove({"y": [1]}),
    ],
)
def test_a_node_that_left_the_document_refuses_changes_but_can_be_read(remove: Any) -> None:
    document = make({"a": {"x": [{"y": [1]}, 2, 3]}})
    held = document.root["a"]["x"][0]
    held["y"].append(2)
    held["y"].pop()
    remove(document.root)
    after = repr(document.raw)
    ops = document.take_ops()
    assert held == {"y": [1]}
    for change in (lambda: held.update(y=2), lambda: held["y"].append(2), held.clear):
        with pytest.raises(InvalidStateError, match="deleted or replaced"):
            change()
    assert repr(document.raw) == after
    assert document.take_ops() == ops


def test_the_content_of_a_detached_node_can_be_assigned_again() -> None:
    document = make({"a": {"x": 1}})
    held = document.root["a"]
    del document.root["a"]
    document.root["b"] = held
    document.root["b"]["x"] = 2
    assert document.root == {"b": {"x": 2}}
    assert held == {"x": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.__setitem__("n", 1),
        lambda s: s.__delitem__("n"),
        lambda s: s.update(),
        lambda s: s.pop("missing", None),
        lambda s: s.popitem(),
        lambda s: s.clear(),
        lambda s: s.setdefault("new", 1),
        lambda s: s.increment("n"),
        lambda s: s.__ior__({}),
        lambda s: s["l"].append(1),
        lambda s: s["l"].extend([]),
        lambda s: s["l"].insert(0, 1),
        lambda s: s["l"].pop(),
        lambda s: s["l"].remove(1),
        lambda s: s["l"].clear(),
        lambda s: s["l"].sort(),
        lambda s: s["l"].reverse(),
        lambda s: s["l"].__setitem__(0, 1),
        lambda s: s["l"].__delitem__(0),
        lambda s: s["l"].__delitem__(slice(0)),
        lambda s: s["l"].__iadd__([]),
        lambda s: s["l"].__imul__(1),
        lambda s: s["l"][2].__setitem__("deep", 1),
    ],
)
def test_a_read_only_document_refuses_every_change(change: Any) -> None:
    content = {"n": 1, "l": [1, 2, {"deep": 0}]}
    document = make(content, writable=False)
    with pytest.raises(InvalidStateError, match=r"read only; fork .* rewind"):
        change(document.root)
    assert document.root == content
    assert not document.dirty


def test_iterating_while_changing_behaves_as_plain_data() -> None:
    state = make({"a": 1, "b": 2, "l": [1, 2, 3]}).root
    keys = iter(state)
    state[next(keys) + "x"] = 1
    with pytest.raises(RuntimeError, match="changed size"):
        next(keys)
    seen = []
    for item in state["l"]:
        seen.append(item)
        if item == 1:
            state["l"].remove(2)
        if item == 3:
            state["l"].append(4)
    assert seen == [1, 3, 4]
    backwards = []
    for item in reversed(state["l"]):
        backwards.append(item)
        state["l"].clear()
    assert backwards == [4]


# Another state, and changes made elsewhere


def test_reset_keeps_the_root_and_detaches_what_is_below() -> None:
    document = make({"a": {"x": 1}})
    root, held = document.root, document.root["a"]
    held["x"] = 2
    document.reset({"a": {"x": 5}})
    assert document.root is root
    assert not document.dirty
    assert root["a"] == {"x": 5}
    assert held == {"x": 2}
    with pytest.raises(InvalidStateError):
        held["x"] = 3
    root["a"]["x"] = 6
    assert document.take_ops() == [(SET, ("a", "x"), 6)]


def test_apply_makes_tracked_changes() -> None:
    before = {"a": {"x": 1, "n": 2}, "l": [1, {"y": 1}, 3]}
    document = make(before)
    value = {"deep": [1]}
    document.apply(
        [
            (SET, ("a", "v"), value),
            (DELETE, ("a", "x")),
            [DELETE, ["a", "absent"]],
            (ADD, ("a", "n"), 3),
            (SPLICE, ("l",), 0, 1, []),
            (SET, ("l", 0, "y"), 2),
            (SET, ("l", 1), 4),
            (ADD, ("l", 1), 5),
            (SET, ("a", "big"), lower(2**70)),
            (ADD, ("a", "big"), 1),
        ]
    )
    value["deep"].append(2)
    assert document.root == {"a": {"n": 5, "v": {"deep": [1]}, "big": 2**70 + 1}, "l": [{"y": 2}, 9]}
    assert document.increments() == {("a", "n"): 3}
    check_replay(before, document)
    document.apply([(SET, (), {"all": "new"})])
    assert document.root == {"all": "new"}
    check_replay(before, document)


def test_apply_refuses_ops_that_do_not_fit() -> None:
    document = make({"l": [1], "d": {}})
    for op in [
        (SET, ("nope", "x"), 1),
        (SPLICE, ("l",), 1, 1, []),
        (SPLICE, ("d",), 0, 0, []),
        (SET, ("l", 1), 1),
        (ADD, ("d", "nope"), 1),
    ]:
        with pytest.raises((KeyError, IndexError)):
            document.apply([op])
    assert not document.dirty
    with pytest.raises(InvalidStateError):
        make({}, writable=False).apply([(SET, ("a",), 1)])
