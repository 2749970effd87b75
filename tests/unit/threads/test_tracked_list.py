"""What a list records of its changes, and how it searches."""

from __future__ import annotations

from decimal import Decimal

import pytest

from everthread.history.ops import SET, SPLICE
from tests.unit.threads.documents import check_replay, make


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
