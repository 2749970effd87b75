from __future__ import annotations

import copy
import datetime
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec.values import lift, lower, same
from everthread.errors import InvalidValueError
from everthread.history import ops
from everthread.history.diff import Diff, LogChange, copy_tree, diff_documents
from everthread.values import Opaque, Personal, Tagged

MINUS = "\N{MINUS SIGN}"

# Few and easily confused values, so that generated trees have much in common and differ in type alone.
scalars = st.sampled_from(
    [None, True, False, 0, 1, 2, 0.0, -0.0, 1.0, float("nan"), "", "a", "1", b"a", Tagged(10, b"u" * 16)]
)
keys = st.sampled_from(["a", "b", "id", "odd key", "1", 0, 1, True, 1.0, None, b"a", Tagged(10, b"k" * 16)])
identified = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), scalars), unique_by=lambda pair: pair[0], max_size=8
).map(lambda pairs: [{"id": id, "v": value} for id, value in pairs])


def trees(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(children, max_size=6) | st.dictionaries(keys, children, max_size=4)


values = st.recursive(scalars | identified, trees, max_leaves=20)
documents = st.dictionaries(keys, values, max_size=5)


def applied(old: Any, new: Any) -> Any:
    return ops.apply(copy_tree(old), copy_tree(diff_documents(old, new)))


@given(documents, documents)
def test_applying_a_diff_gives_the_new_document(old: Any, new: Any) -> None:
    before = copy_tree(old), copy_tree(new)
    assert same(applied(old, new), new)
    assert same(old, before[0])
    assert same(new, before[1])


@given(st.data(), documents)
def test_small_edits_of_one_document(data: st.DataObject, old: Any) -> None:
    """Independent trees share little; here the new one is the old one with a few places edited."""
    new = copy_tree(old)
    for _ in range(data.draw(st.integers(1, 4))):
        edit(data, new)
    assert same(applied(old, new), new)
    assert bool(diff_documents(old, new)) is not same(old, new)


def edit(data: st.DataObject, node: Any) -> None:
    while True:
        places = list(node) if type(node) is dict else list(range(len(node)))
        inner = [place for place in places if type(node[place]) in (dict, list)]
        if not inner or data.draw(st.booleans()):
            break
        node = node[data.draw(st.sampled_from(inner))]
    if type(node) is dict:
        if len(places) > 0 and data.draw(st.booleans()):
            del node[data.draw(st.sampled_from(places))]
        else:
            node[data.draw(keys)] = data.draw(values)
        return
    at = data.draw(st.integers(0, len(node)))
    what = data.draw(st.sampled_from(["insert", "remove", "replace", "move"]))
    if what == "insert":
        node.insert(at, data.draw(values))
    elif what == "move" and node:
        node.insert(at, node.pop())
    else:
        node[at : at + 1] = [] if what == "remove" else [data.draw(values)]


@given(identified, identified, st.randoms(use_true_random=False))
def test_lists_with_ids_survive_edits_and_reordering(old: Any, new: Any, random: Any) -> None:
    random.shuffle(new)
    assert same(applied({"l": old}, {"l": new}), {"l": new})


@given(documents)
def test_nothing_changed(document: Any) -> None:
    again = copy_tree(document)
    assert diff_documents(document, again) == []
    diff = Diff.between(document, again)
    assert not diff
    assert diff.summary() == "no changes"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({"a": 1, "b": 2}, {"a": 1, "b": 3}, [(ops.SET, ("b",), 3)], id="one key"),
        pytest.param({"a": 1}, {}, [(ops.DELETE, ("a",))], id="deleted key"),
        pytest.param(
            {"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, [(ops.SET, ("a", "b", "c"), 2)], id="deep"
        ),
        pytest.param({"a": {}}, {"a": []}, [(ops.SET, ("a",), [])], id="other type"),
        pytest.param({"a": 1}, {"a": True}, [(ops.SET, ("a",), True)], id="type only"),
        pytest.param(
            {1: "x"},
            {True: "x"},
            [(ops.DELETE, (1,)), (ops.SET, (True,), "x")],
            id="key differs in type only",
        ),
        pytest.param({"l": [1, 2]}, {"l": [1, 2, 3]}, [(ops.SPLICE, ("l",), 2, 0, [3])], id="append"),
        pytest.param({"l": [1, 2, 3]}, {"l": [1, 3]}, [(ops.SPLICE, ("l",), 1, 1, [])], id="remove"),
        pytest.param({"l": [1, 1]}, {"l": [1]}, [(ops.SPLICE, ("l",), 1, 1, [])], id="remove one of two"),
        pytest.param({"l": [1]}, {"l": [1, 1]}, [(ops.SPLICE, ("l",), 1, 0, [1])], id="double"),
        pytest.param({"l": [1, 3]}, {"l": [1, 2, 3]}, [(ops.SPLICE, ("l",), 1, 0, [2])], id="insert"),
        pytest.param(
            {"l": [1, 2, 3, 4]},
            {"l": [0, 2, 5, 6]},
            [(ops.SPLICE, ("l",), 0, 1, [0]), (ops.SPLICE, ("l",), 2, 2, [5, 6])],
            id="elements in place",
        ),
        pytest.param(
            {"l": [{"x": 1, "y": 1}, 0, {"x": 2}]},
            {"l": [{"x": 1, "y": 2}, 0, {"x": 3}]},
            [(ops.SET, ("l", 0, "y"), 2), (ops.SET, ("l", 2, "x"), 3)],
            id="pairs of dicts",
        ),
        pytest.param(
            {"l": [{"id": "a"}, {"id": "b", "n": 1}, {"id": "c"}]},
            {"l": [{"id": "z"}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]},
            [
                (ops.SPLICE, ("l",), 0, 1, [{"id": "z"}]),
                (ops.SET, ("l", 1, "n"), 2),
                (ops.SET, ("l", 2, "n"), 3),
            ],
            id="by id",
        ),
        pytest.param([1, 2], [1, 3], [(ops.SET, (), [1, 3])], id="a list as root can't be spliced"),
    ],
)
def test_ops_are_the_few_one_expects(old: Any, new: Any, expected: list[Any]) -> None:
    assert diff_documents(old, new) == expected
    assert same(applied(old, new), new)


def test_ops_start_at_the_path_given() -> None:
    assert diff_documents([1], [1, 2], ("todos", 3)) == [(ops.SPLICE, ("todos", 3), 1, 0, [2])]


def test_a_moved_item_is_all_that_moves() -> None:
    items = [{"id": str(i), "text": "x" * 50} for i in range(100)]
    moved = [*items[1:50], items[0], *items[50:]]
    found = diff_documents({"l": items}, {"l": moved})
    assert found == [(ops.SPLICE, ("l",), 0, 1, []), (ops.SPLICE, ("l",), 49, 0, [items[0]])]


def test_new_keys_keep_their_order() -> None:
    new = {"z": 1, "b": 2, "a": 3}
    assert list(applied({}, new)) == list(new)


@pytest.mark.parametrize("shape", ["front", "reversed", "fresh ids", "no ids", "shorter"])
def test_long_lists_cost_a_few_comparisons_an_item(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 10_000
    old: list[Any] = [{"id": str(i), "v": i} for i in range(count)]
    new: list[Any] = copy_tree(old)
    if shape == "front":
        new.insert(0, {"id": "new"})
        new.append({"id": "newer"})
    elif shape == "reversed":
        new.reverse()
    elif shape == "fresh ids":
        new = [{**item, "id": "new" + item["id"]} for item in new]
    else:
        old = [item["v"] for item in old]
        new = [-1 - value for value in old][: count if shape == "no ids" else count - 1]
    compared = 0

    def counting(a: Any, b: Any) -> bool:
        nonlocal compared
        compared += 1
        return same(a, b)

    monkeypatch.setattr("everthread.history.diff.same", counting)
    found = diff_documents({"l": old}, {"l": new})
    assert compared <= 5 * count
    assert same(ops.apply({"l": old}, found), {"l": new})


def test_trees_as_deep_as_the_codec_allows() -> None:
    old: Any = 1
    new: Any = 2
    path: tuple[Any, ...] = ()
    for level in range(500):
        key: Any = 0 if level % 2 else "k"
        old, new = ([old], [new]) if level % 2 else ({"k": old}, {"k": new})
        path = (key, *path)
    assert diff_documents({"r": old}, {"r": new}) == [(ops.SET, ("r", *path), 2)]
    assert same(copy_tree(old), old)


def test_the_report_names_every_place() -> None:
    old = {"title": "x", "gone": 1, "todos": [{"id": 1, "done": False}, {"id": 2}], "tags": ["a", "b"]}
    new = {
        "title": "y",
        "todos": [{"id": 3}, {"id": 1, "done": True}],
        "tags": ["a", "c"],
        "odd key": {"n": 1},
    }
    diff = Diff.between(old, new)
    assert diff.added == {"todos[0]": {"id": 3}, '["odd key"]': {"n": 1}}
    assert diff.removed == {"gone": 1, "todos[1]": {"id": 2}}
    assert diff.changed == {"title": ("x", "y"), "todos[1].done": (False, True), "tags[1]": ("b", "c")}
    assert diff.summary() == f'+2 ~3 {MINUS}2 in gone, ["odd key"], title, todos, tags'
    assert diff


def test_list_items_without_ids_that_come_and_go() -> None:
    diff = Diff.between({"l": [1, 2, 3]}, {"l": [1, 4, 5, 3]})
    assert diff.added == {"l[1]": 4, "l[2]": 5}
    assert diff.removed == {"l[1]": 2}
    assert not diff.changed


def test_values_in_the_report_are_the_callers_own() -> None:
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    diff = Diff.between(lower({"a": (1, 2)}), lower({"a": {3}, "when": when}))
    assert diff.changed == {"a": ((1, 2), {3})}
    assert diff.added == {"when": when}


def test_long_keys_that_look_the_same_are_all_reported() -> None:
    new = {"k" * 40 + middle + "k" * 100: middle for middle in ("x" * 60, "y" * 60, "z" * 60)}
    diff = Diff.between({}, new)
    assert list(diff.added.values()) == list(new.values())
    assert same(diff.apply({}), new)


def test_logs_are_counted() -> None:
    logs = {
        "messages": LogChange(added=3, kept=7, added_items=({"id": "m8"},)),
        "events": LogChange(added=1, removed=2),
        "quiet": LogChange(kept=4),
    }
    diff = Diff.between({"todos": 1}, {"todos": 2}, logs)
    assert diff.summary() == f"~1 in todos; messages +3; events +1 {MINUS}2"
    assert diff.logs == logs
    assert Diff.between({}, {}, logs).summary() == f"messages +3; events +1 {MINUS}2"
    assert Diff.between({}, {}, logs)
    assert not Diff.between({}, {}, {"quiet": LogChange(kept=4)})
    assert Diff.between({}, {}, {"quiet": LogChange(kept=4)}).summary() == "no changes"
    # By its name, unless that could be taken for more than a name.
    named = {name: LogChange(added=1) for name in ("session/decisions", "turn-1", "a; b +5")}
    assert Diff.between({}, {}, named).summary() == 'session/decisions +1; turn-1 +1; ["a; b +5"] +1'


def test_a_summary_stays_one_short_line() -> None:
    diff = Diff.between({}, {f"key{i}": i for i in range(1000)} | {"line\nbreak": 1})
    assert diff.summary() == "+1001 in key0, key1, key2, key3, key4 and 996 more"
    assert "\n" not in Diff.between({}, {"line\nbreak": 1}, {"a\nlog": LogChange(added=1)}).summary()


def test_a_diff_is_frozen_and_on_its_own() -> None:
    old: dict[str, Any] = {"l": [{"id": 1}], "gone": {"x": [1]}}
    new: dict[str, Any] = {"l": [{"id": 1}, {"id": 2, "deep": [1]}], "set": {"x": [1]}}
    expected = copy.deepcopy(new)
    diff = Diff.between(old, new)
    with pytest.raises(AttributeError):
        diff.ops = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        diff.added["x"] = 1  # type: ignore[index]
    new["l"][1]["deep"].append(2)
    new["set"]["x"].append(2)
    old["gone"]["x"].append(2)
    assert diff.removed == {"gone": {"x": [1]}}
    first = diff.apply({"l": [{"id": 1}], "gone": 0})
    assert first == expected
    first["l"][1]["deep"].append(3)
    first["set"]["x"].append(3)
    assert diff.apply({"l": [{"id": 1}], "gone": 0}) == expected


@given(documents, documents)
def test_apply_works_on_plain_documents(old: Any, new: Any) -> None:
    plain = lift(old)
    assert same(lower(Diff.between(old, new).apply(plain)), new)
    assert same(lower(plain), old)


def test_apply_to_another_document_edits_the_same_places() -> None:
    diff = Diff.between({"a": {"x": 1}, "b": 1}, {"a": {"x": 2}})
    other = {"a": {"x": 7, "y": (1, 2)}, "c": 3}
    assert diff.apply(other) == {"a": {"x": 2, "y": (1, 2)}, "c": 3}
    assert other == {"a": {"x": 7, "y": (1, 2)}, "c": 3}


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ({}, "state.a.l"),
        ({"a": 7}, "state.a.l"),
        ({"a": {"l": {}}}, "state.a.l"),
        ({"a": {"l": "text"}}, "state.a.l"),
        ({"a": {"l": [1]}}, "state.a.l"),
    ],
)
def test_apply_says_where_it_does_not_fit(other: Any, where: str) -> None:
    diff = Diff.between({"a": {"l": [1, 2, 3]}}, {"a": {"l": [1, 5, 3]}})
    before = copy.deepcopy(other)
    with pytest.raises(InvalidValueError) as raised:
        diff.apply(other)
    assert raised.value.path == where
    assert where in str(raised.value)
    assert other == before


def test_apply_takes_documents_only() -> None:
    with pytest.raises(InvalidValueError):
        Diff.between({}, {}).apply([1])  # type: ignore[arg-type]


def test_plain_is_json_for_any_value() -> None:
    old = {"gone": {1: b"x", None: float("nan")}, "n": 1}
    new = lower(
        {
            "n": float("inf"),
            "set": {2, 1},
            "when": datetime.date(2026, 1, 2),
            "uid": uuid.UUID(int=7),
            "unknown": Opaque(Tagged(99, b"?")),
        }
    )
    logs = {
        "messages": LogChange(added=1, kept=2, added_items=({"id": "m", "at": datetime.date(2026, 1, 2)},))
    }
    plain = Diff.between(old, new, logs).plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["summary"] == Diff.between(old, new, logs).summary()
    assert plain["changed"] == {"n": {"old": 1, "new": "inf"}}
    assert plain["added"]["set"] == [1, 2]
    assert plain["added"]["when"] == "2026-01-02"
    assert plain["removed"] == {"gone": {"1": "b'x'", "None": "nan"}}
    assert plain["logs"]["messages"] == {
        "added": 1,
        "removed": 0,
        "kept": 2,
        "added_items": [{"id": "m", "at": "2026-01-02"}],
        "removed_items": [],
    }


def test_personal_values_stay_masked() -> None:
    sealed = Tagged(30, b"reference")

    def opened(node: Any) -> Any:
        return Personal.from_sealed(node, lambda: "a secret") if type(node) is Tagged else node

    diff = Diff.between({"p": 1}, {"p": sealed}, lift=opened)
    assert diff.changed["p"][1].value == "a secret"
    assert "a secret" not in json.dumps(diff.plain(), ensure_ascii=False) + repr(diff) + diff.summary()
