"""The tracked tree as a whole: its ops, nodes that left it, other states."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import InvalidStateError
from everthread.history.ops import ADD, DELETE, SET, SPLICE
from tests.unit.threads.documents import check_replay, lower, make

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
    ]:
        with pytest.raises((KeyError, IndexError)):
            document.apply([op])
    assert not document.dirty
    with pytest.raises(InvalidStateError):
        make({}, writable=False).apply([(SET, ("a",), 1)])
