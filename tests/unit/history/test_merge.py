from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec.values import lower, same
from everthread.errors import InvalidValueError
from everthread.history.diff import copy_tree
from everthread.history.merge import (
    ABSENT,
    Conflict,
    Merged,
    merge_documents,
    merge_tails,
    resolve,
)
from everthread.values import Personal, Tagged

scalars = st.sampled_from(
    [None, True, 0, 1, 2, 1.0, -0.0, float("nan"), "a", "b", b"a", Tagged(10, b"u" * 16)]
)
keys = st.sampled_from(["a", "b", "c", "id", 1, True, None])
ids = st.sampled_from("abcdef")


def trees(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    identified = st.lists(st.tuples(ids, children), unique_by=lambda pair: pair[0], max_size=5).map(
        lambda pairs: [{"id": id, "v": value} for id, value in pairs]
    )
    return st.lists(children, max_size=4) | st.dictionaries(keys, children, max_size=4) | identified


values = st.recursive(scalars, trees, max_leaves=12)
documents = st.dictionaries(keys, values, max_size=4)


def merged(base: Any, ours: Any, theirs: Any, **options: Any) -> Any:
    found = merge_documents(base, ours, theirs, **options)
    assert found.conflicts == ()
    return found.document


def conflicts(base: Any, ours: Any, theirs: Any, **options: Any) -> list[tuple[str, Any, Any, Any]]:
    found = merge_documents(base, ours, theirs, **options)
    return [(c.where, c.base, c.ours, c.theirs) for c in found.conflicts]


@given(documents, documents)
def test_one_sided_changes_are_taken_whole(base: Any, changed: Any) -> None:
    assert same(merged(base, changed, base), changed)
    assert same(merged(base, base, changed), changed)
    assert same(merged(base, changed, changed), changed)


@given(documents, documents, documents)
def test_inputs_are_left_alone_and_not_shared(base: Any, ours: Any, theirs: Any) -> None:
    inputs = [base, ours, theirs]
    before = copy_tree(inputs)
    found = merge_documents(base, ours, theirs)
    assert same(inputs, before)
    taken = containers(inputs)
    for part in (found.document, list(found.sides), [[c.base, c.ours, c.theirs] for c in found.conflicts]):
        assert not containers(part) & taken
    assert not containers(found.document) & containers(list(found.sides))
    resolve(found, "theirs")
    assert same(inputs, before)


def containers(*nodes: Any) -> set[int]:
    found: set[int] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if type(node) is dict:
            found.add(id(node))
            pending.extend(node.values())
        elif type(node) in (list, tuple):
            if type(node) is list:
                found.add(id(node))
            pending.extend(node)
    return found


@given(documents, documents, documents)
def test_merges_commute_up_to_the_order_of_list_items(base: Any, ours: Any, theirs: Any) -> None:
    one, other = merge_documents(base, ours, theirs), merge_documents(base, theirs, ours)
    mirrored = [[base, theirs, ours] for base, ours, theirs in other.sides]
    assert sorted(canonical(list(sides)) for sides in one.sides) == sorted(map(canonical, mirrored))
    if not one.conflicts:
        assert same(unordered(one.document), unordered(other.document))


def unordered(node: Any) -> Any:
    if type(node) is dict:
        return {key: unordered(value) for key, value in node.items()}
    if type(node) is list:
        return sorted((unordered(value) for value in node), key=canonical)
    return node


def canonical(node: Any) -> str:
    """Equal for trees that are the same, whatever the order of their keys."""
    if type(node) is dict:
        return "{" + ",".join(sorted(f"{key!r}:{canonical(value)}" for key, value in node.items())) + "}"
    if type(node) is list:
        return "[" + ",".join(map(canonical, node)) + "]"
    return f"{node!r}{node.data!r}" if type(node) is Tagged else repr(node)


@given(documents, documents, documents)
def test_every_one_sided_change_survives(base: Any, ours: Any, theirs: Any) -> None:
    found = merge_documents(base, ours, theirs)
    if found.conflicts:
        return
    for key in {*base, *ours, *theirs}:
        before, mine, other = (side.get(key, ABSENT) for side in (base, ours, theirs))
        result = found.document.get(key, ABSENT)
        if is_same(before, other):
            assert is_same(result, mine)
        elif is_same(before, mine) or is_same(mine, other):
            assert is_same(result, other)


def is_same(a: Any, b: Any) -> bool:
    return a is b or (a is not ABSENT and b is not ABSENT and same(a, b))


@given(documents, documents, documents)
def test_conflicts_tell_the_truth_and_resolve_to_what_was_chosen(base: Any, ours: Any, theirs: Any) -> None:
    found = merge_documents(base, ours, theirs)
    for conflict in found.conflicts:
        assert not is_same(lowered(conflict.ours), lowered(conflict.theirs))
        assert not is_same(lowered(conflict.base), lowered(conflict.ours))
        assert not is_same(lowered(conflict.base), lowered(conflict.theirs))
    assert same(resolve(found, "ours"), found.document)
    assert same(resolve(found, lambda conflict: conflict.ours), found.document)
    assert same(resolve(found, lambda conflict: conflict.theirs), resolve(found, "theirs"))
    # Whoever settles in favour of the other side can do so from either side.
    mirrored = merge_documents(base, theirs, ours)
    assert same(unordered(resolve(mirrored, "theirs")), unordered(resolve(found, "ours")))


def lowered(value: Any) -> Any:
    return value if value is ABSENT else lower(value)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "c": 3, "b": 2}, id="two keys"),
        pytest.param(
            {"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2}, id="delete and change elsewhere"
        ),
        pytest.param({"a": 1}, {}, {}, {}, id="deleted on both"),
        pytest.param(
            {}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2, "x": 1}}, id="dicts without a base"
        ),
        pytest.param({"a": 7}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2, "x": 1}}, id="base no dict"),
        pytest.param({"l": [1]}, {"l": [1, 2]}, {"l": [1, 3]}, {"l": [1, 3, 2]}, id="both appended"),
        pytest.param({"l": []}, {"l": [1]}, {"l": [2]}, {"l": [2, 1]}, id="both appended to nothing"),
        pytest.param({"l": [1, 2]}, {"l": [2]}, {"l": [1, 2]}, {"l": [2]}, id="one list changed"),
        pytest.param(
            {"l": [{"id": 1, "x": 1, "y": 1}]},
            {"l": [{"id": 1, "x": 2, "y": 1}]},
            {"l": [{"id": 1, "x": 1, "y": 2}]},
            {"l": [{"id": 1, "x": 2, "y": 2}]},
            id="one item, two fields",
        ),
        pytest.param(
            {"l": [{"id": 1}, {"id": 2}, {"id": 3}]},
            {"l": [{"id": 1}, {"id": 3}, {"id": 4}]},
            {"l": [{"id": 5}, {"id": 1, "x": 1}, {"id": 2}, {"id": 3}]},
            {"l": [{"id": 1, "x": 1}, {"id": 3}, {"id": 5}, {"id": 4}]},
            id="items deleted, changed, added",
        ),
        pytest.param(
            {"l": [{"id": 1}, {"id": 2}]},
            {"l": [{"id": 2}, {"id": 1}]},
            {"l": [{"id": 1}, {"id": 2, "x": 1}]},
            {"l": [{"id": 2, "x": 1}, {"id": 1}]},
            id="reordered by ours alone",
        ),
        pytest.param(
            {"l": [{"id": 1}, {"id": 2}]},
            {"l": [{"id": 1}, {"id": 2, "x": 1}]},
            {"l": [{"id": 3}, {"id": 2}, {"id": 1}]},
            {"l": [{"id": 2, "x": 1}, {"id": 1}, {"id": 3}]},
            id="reordered by theirs alone",
        ),
        pytest.param(
            {},
            {"l": [{"id": 1, "x": 1}]},
            {"l": [{"id": 1, "y": 1}, {"id": 2}]},
            {"l": [{"id": 1, "y": 1, "x": 1}, {"id": 2}]},
            id="lists with ids without a base",
        ),
        pytest.param(
            {"l": [{"id": 1}]},
            {"l": [{"id": 1}, {"id": True}]},
            {"l": [{"id": 1}, {"id": "1"}]},
            {"l": [{"id": 1}, {"id": "1"}, {"id": True}]},
            id="an id that can't serve as one: joined as appended",
        ),
    ],
)
def test_what_merges(base: Any, ours: Any, theirs: Any, expected: Any) -> None:
    assert same(merged(base, ours, theirs), expected)


def test_keys_stand_in_base_order_then_theirs_then_ours() -> None:
    assert list(merged({"z": 1, "a": 1}, {"o": 1, "z": 1, "a": 1}, {"t": 1, "z": 1, "a": 1})) == [
        "z",
        "a",
        "t",
        "o",
    ]


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 3}, [("a", 1, 2, 3)], id="both changed"),
        pytest.param({}, {"a": 2}, {"a": 3}, [("a", ABSENT, 2, 3)], id="both added"),
        pytest.param({"a": 0}, {"a": 1}, {"a": True}, [("a", 0, 1, True)], id="types count"),
        pytest.param({"a": 1}, {}, {"a": 3}, [("a", 1, ABSENT, 3)], id="deleted, changed"),
        pytest.param(
            {"a": {"x": 1}}, {"a": {"x": 2}}, {}, [("a", {"x": 1}, {"x": 2}, ABSENT)], id="changed, deleted"
        ),
        pytest.param({}, {"l": [1]}, {"l": [2]}, [("l", ABSENT, [1], [2])], id="lists without a base"),
        pytest.param(
            {"l": [1, 2]}, {"l": [2]}, {"l": [1, 2, 3]}, [("l", [1, 2], [2], [1, 2, 3])], id="cut, appended"
        ),
        pytest.param({"a": 1}, {"a": [1]}, {"a": {"x": 1}}, [("a", 1, [1], {"x": 1})], id="list and dict"),
        pytest.param(
            {"l": [{"id": 1, "x": 1}]},
            {"l": [{"id": 1, "x": 2}]},
            {"l": []},
            [("l[0]", {"id": 1, "x": 1}, {"id": 1, "x": 2}, ABSENT)],
            id="item changed, deleted",
        ),
        pytest.param(
            {"l": [{"id": 0}, {"id": 1, "x": 1}]},
            {"l": [{"id": 1, "x": 2}]},
            {"l": [{"id": 0}, {"id": 1, "x": 3}]},
            [("l[0].x", 1, 2, 3)],
            id="the path is that of the merged document",
        ),
        pytest.param(
            {"l": [{"id": 1}, {"id": 2}, {"id": 3}]},
            {"l": [{"id": 2}, {"id": 1}, {"id": 3}]},
            {"l": [{"id": 1}, {"id": 3}, {"id": 2}]},
            [
                (
                    "l",
                    [{"id": 1}, {"id": 2}, {"id": 3}],
                    [{"id": 2}, {"id": 1}, {"id": 3}],
                    [{"id": 1}, {"id": 3}, {"id": 2}],
                )
            ],
            id="both reordered",
        ),
        pytest.param(
            {"d": {}},
            {"d": {1: "x"}},
            {"d": {True: "y"}},
            [("d", {}, {1: "x"}, {True: "y"})],
            id="keys that collide",
        ),
    ],
)
def test_what_conflicts(base: Any, ours: Any, theirs: Any, expected: Any) -> None:
    found = conflicts(base, ours, theirs)
    assert found == expected
    # Equality of plain values takes 1 for True.
    assert repr(found) == repr(expected)


def test_the_merged_document_holds_ours_where_they_conflict_and_both_elsewhere() -> None:
    found = merge_documents({"a": 1, "b": 1}, {"a": 2, "b": 1, "o": 1}, {"a": 3, "b": 5})
    assert found.document == {"a": 2, "b": 5, "o": 1}
    assert [c.path for c in found.conflicts] == [("a",)]


def test_increments_add_up() -> None:
    assert merged({"n": 5}, {"n": 7}, {"n": 6}, increments={("n",): 2}) == {"n": 8}
    # Both added one: two changes, although they look the same.
    assert merged({"n": 5}, {"n": 6}, {"n": 6}, increments={("n",): 1}) == {"n": 7}
    assert merged({"d": {"n": 5}}, {"d": {"n": 6}}, {"d": {"n": 6}}, increments={("d", "n"): 1}) == {
        "d": {"n": 7}
    }
    assert merged({"n": 5}, {"n": 7}, {"n": 5}, increments={("n",): 2}) == {"n": 7}
    assert merged({"n": 1.5}, {"n": 2.0}, {"n": 10}, increments={("n",): 0.5}) == {"n": 10.5}


def test_first_increments_add_up() -> None:
    assert merged({}, {"n": 1}, {"n": 1}, increments={("n",): 1}) == {"n": 2}
    assert merged({}, {"d": {"n": 1}}, {"d": {"n": 1}}, increments={("d", "n"): 1}) == {"d": {"n": 2}}
    assert merged({}, {"n": 2}, {}, increments={("n",): 2}) == {"n": 2}
    # Ours has set it to 5 before: whether theirs is that 5 as well can't be told.
    assert conflicts({}, {"n": 6}, {"n": 9}, increments={("n",): 1}) == [("n", ABSENT, 6, 9)]


def test_an_increment_is_taken_back_from_a_number_that_went_on() -> None:
    """As redoing a step does: ours is the state before the increment, theirs what became of it since."""
    assert merged({"n": 1}, {}, {"n": 3}, increments={("n",): -1}) == {"n": 2}
    assert merged({"n": 1}, {}, {"n": 1}, increments={("n",): -1}) == {}


def test_increments_inside_list_items_go_by_the_index_in_ours() -> None:
    base = {"l": [{"id": 1, "n": 0}, {"id": 2, "n": 0}]}
    ours = {"l": [{"id": 2, "n": 3}]}
    theirs = {"l": [{"id": 1, "n": 0}, {"id": 2, "n": 4}]}
    assert merged(base, ours, theirs, increments={("l", 0, "n"): 3}) == {"l": [{"id": 2, "n": 7}]}


@pytest.mark.parametrize("theirs", [{}, {"n": "text"}, {"n": True}, {"n": 2**64 - 1}])
def test_increments_of_what_is_no_number_any_more_conflict(theirs: Any) -> None:
    found = conflicts({"n": 1}, {"n": 3}, theirs, increments={("n",): 2})
    assert found == [("n", 1, 3, theirs.get("n", ABSENT))]


def test_increments_in_a_list_that_cannot_be_aligned_conflict() -> None:
    """Both made 6 of 5; whether that is one change or two can't be told from positions alone."""
    assert conflicts({"l": [5]}, {"l": [6]}, {"l": [6]}, increments={("l", 0): 1}) == [("l", [5], [6], [6])]


def test_conflicts_hold_values_of_the_caller() -> None:
    found = merge_documents(lower({"a": (1,)}), lower({"a": {2}}), lower({"a": (3, 4)}))
    assert [(c.base, c.ours, c.theirs) for c in found.conflicts] == [((1,), {2}, (3, 4))]
    assert same(resolve(found, lambda c: c.theirs), lower({"a": (3, 4)}))


def test_trees_as_deep_as_the_codec_allows() -> None:
    base: Any = {"n": 0}
    ours: Any = {"n": 0, "o": 1}
    theirs: Any = {"n": 0, "t": 1}
    expected: Any = {"n": 0, "t": 1, "o": 1}
    for level in range(499):
        wrap = (lambda x: {"k": x}) if level % 2 else (lambda x: [{"id": 1, "k": x}])
        base, ours, theirs, expected = wrap(base), wrap(ours), wrap(theirs), wrap(expected)
    assert same(merged({"r": base}, {"r": ours}, {"r": theirs}), {"r": expected})


ITEMS = {"l": [{"id": i, "x": 0} for i in range(4)]}
#: Ours deleted 0 and 2 and changed 1 and 3; theirs changed all of them but deleted 3.
OURS = {"l": [{"id": 1, "x": 1}, {"id": 3, "x": 1}]}
THEIRS = {"l": [{"id": 0, "x": 2}, {"id": 1, "x": 2}, {"id": 2, "x": 2}]}


def test_resolving_puts_items_where_they_belong() -> None:
    found = merge_documents(ITEMS, OURS, THEIRS)
    assert [c.where for c in found.conflicts] == ["l[0]", "l[0].x", "l[1]", "l[1]"]
    assert resolve(found, "ours") == OURS
    assert resolve(found, "theirs") == THEIRS
    assert found.document == OURS


def test_a_resolver_is_asked_in_order_and_may_answer_anything() -> None:
    asked: list[Conflict] = []
    answers = iter([{"id": 0, "x": (1, 2)}, 9, ABSENT, ABSENT])

    def resolver(conflict: Conflict) -> Any:
        asked.append(conflict)
        return next(answers)

    found = merge_documents(ITEMS, OURS, THEIRS)
    assert same(resolve(found, resolver), {"l": [{"id": 0, "x": lower((1, 2))}, {"id": 1, "x": 9}]})
    assert asked == list(found.conflicts)


def test_a_resolver_may_edit_what_it_was_shown() -> None:
    found = merge_documents({}, {"l": [1]}, {"l": [2]})

    def both(conflict: Conflict) -> Any:
        conflict.ours.extend(conflict.theirs)
        return conflict.ours

    assert resolve(found, both) == {"l": [1, 2]}
    assert resolve(found, "ours") == {"l": [1]}


def test_a_resolver_may_return_words() -> None:
    found = merge_documents({"a": 1}, {"a": 2}, {"a": 3})
    assert resolve(found, lambda conflict: "theirs") == {"a": "theirs"}


def test_a_resolver_may_delete_or_restore_a_key() -> None:
    found = merge_documents({"a": 1, "b": 1}, {"a": 2}, {"a": 3, "b": 3})
    assert resolve(found, lambda conflict: ABSENT) == {}
    assert resolve(found, lambda conflict: conflict.base) == {"a": 1, "b": 1}


def test_personal_values_keep_their_seals() -> None:
    seals = [Tagged(30, bytes([i])) for i in range(3)]

    def opened(node: Any) -> Any:
        return Personal.from_sealed(node, lambda: "a secret")

    found = merge_documents(*({"p": seal} for seal in seals), lift=opened)
    assert "a secret" not in repr(found.conflicts)
    assert resolve(found, lambda conflict: conflict.theirs) == {"p": seals[2]}
    assert resolve(found, lambda conflict: conflict.base) == {"p": seals[0]}


@pytest.mark.parametrize("choices", ["mine", "", None, 7, {"a": 1}])
def test_other_choices_are_refused(choices: Any) -> None:
    with pytest.raises(InvalidValueError):
        resolve(merge_documents({"a": 1}, {"a": 2}, {"a": 3}), choices)


def test_an_answer_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidValueError):
        resolve(merge_documents({"a": 1}, {"a": 2}, {"a": 3}), lambda conflict: object())


def test_conflicts_about_the_whole_document() -> None:
    found = merge_documents({"a": 1}, [1], "text")
    assert [c.path for c in found.conflicts] == [()]
    assert resolve(found, "theirs") == "text"
    assert resolve(found, lambda conflict: {"b": 1}) == {"b": 1}
    with pytest.raises(InvalidValueError):
        resolve(found, lambda conflict: ABSENT)


def test_absent_is_one_and_falsy() -> None:
    assert not ABSENT
    assert repr(ABSENT) == "ABSENT"
    assert copy.deepcopy(ABSENT) is ABSENT
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT


def test_conflicts_are_frozen() -> None:
    conflict = Conflict(("todos", 3, "content"), 1, 2, 3)
    assert conflict.where == "todos[3].content"
    with pytest.raises(AttributeError):
        conflict.ours = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Merged({}).document = 1  # type: ignore[misc]


def test_tails_give_theirs_then_ours_once_each() -> None:
    found = merge_tails(
        [("a", {"n": 1}), (None, {"n": 2}), ("b", {"n": 3})], [("b", {"n": 3}), (None, {"n": 2}), ("c", 4)]
    )
    assert found.items == (("a", {"n": 1}), (None, {"n": 2}), ("b", {"n": 3}), (None, {"n": 2}), ("c", 4))
    assert found.conflicts == ()


def test_tails_with_an_id_of_two_contents_conflict() -> None:
    found = merge_tails([("a", {"n": 1}), ("b", 0)], [("a", {"n": True})], path=("messages",))
    assert found.items == (("a", {"n": True}), ("b", 0))
    (conflict,) = found.conflicts
    assert (conflict.path, conflict.base) == (("messages", "a"), ABSENT)
    assert (conflict.theirs, conflict.ours) == ({"n": 1}, {"n": True})


def test_tails_compare_as_they_are_told() -> None:
    found = merge_tails([("a", 1)], [("a", 2)], equal=lambda a, b: True)
    assert found.items == (("a", 1),)
    assert found.conflicts == ()


def test_ids_of_different_types_are_different_ids() -> None:
    assert len(merge_tails([("1", "x")], [(1, "y"), (b"1", "z")]).items) == 3


tails = st.lists(st.tuples(st.none() | ids, scalars), max_size=6)


@given(tails, tails)
def test_tails_lose_nothing(theirs: list[Any], ours: list[Any]) -> None:
    # A log holds an id once; what it holds is taken as it is.
    theirs = [item for at, item in enumerate(theirs) if item[0] is None or item[0] not in dict(theirs[:at])]
    found = merge_tails(theirs, ours)
    named = [id for id, _ in found.items[len(theirs) :] if id is not None]
    assert len(named) == len(set(named))
    assert [id for id, _ in found.items[: len(theirs)]] == [id for id, _ in theirs], "theirs stays as it is"
    every = {id for id, _ in found.items if id is not None}
    assert every == {id for id, _ in theirs + ours if id is not None}
    unnamed = [content for id, content in found.items if id is None]
    assert same(unnamed, [content for id, content in theirs + ours if id is None])
    if not found.conflicts:
        by_id = dict(found.items)
        assert all(same(by_id[id], content) for id, content in theirs + ours if id is not None)


def test_tails_share_nothing() -> None:
    content = {"n": [1]}
    found = merge_tails([("a", content)], [])
    found.items[0][1]["n"].append(2)
    assert content == {"n": [1]}
