"""Comparing states, and bringing differences into others."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread import (
    InvalidValueError,
    LimitError,
    MergeConflictError,
    Personal,
    SchemaVersionError,
    WorkingState,
)
from everthread.diff import StateDiffer
from everthread.working.config import Config


def state_with(*todos: str, **context: Any) -> WorkingState:
    state = WorkingState()
    for content in todos:
        state.add_todo(content)
    for key, value in context.items():
        state.set_context(key, value)
    return state


def test_every_collection_is_compared() -> None:
    old, new = WorkingState(), WorkingState()
    new.add_todo("t")
    new.set_context("k", 1)
    new.add_open_loop("l")
    new.set_intention("i")
    new.add_constraint("c")
    new.thread.state["mine"] = 7
    diff = StateDiffer.diff(old, new)
    summary = "+1 todos, +1 context items, +1 open loops, +1 intentions, +1 constraints, +1 other fields"
    assert diff.summary() == str(diff) == summary
    assert diff
    back = StateDiffer.diff(new, old)
    assert back.summary() == summary.replace("+", "-")
    assert diff.added["todos"][0]["content"] == "t"
    assert diff.added["context"][0]["key"] == "k"
    assert diff.added["other"] == ({"key": "mine", "value": 7},)


def test_times_of_noting_and_ids_do_not_count() -> None:
    one, two = state_with("x", k=1), state_with("x", k=1)
    assert not StateDiffer.diff(one, two)
    two.set_context("k", 1)
    two.mark_verified("k")
    assert not StateDiffer.diff(one, two)


def test_equal_items_pair_up_one_by_one() -> None:
    old, new = state_with("x", "x", "y"), state_with("x", "x", "x", "y")
    assert StateDiffer.diff(old, new).summary() == "+1 todos"
    assert StateDiffer.diff(new, old).summary() == "-1 todos"


def test_an_event_counts_but_not_when_it_was() -> None:
    old, new = WorkingState(), WorkingState()
    for state in (old, new):
        state.resolve_open_loop(state.add_open_loop("l"))
    assert not StateDiffer.diff(old, new)
    new.add_open_loop("m")
    old.add_open_loop("m")
    new.resolve_open_loop(new.open_loops[1])
    diff = StateDiffer.diff(old, new)
    assert diff.summary() == "~1 open loops"
    assert list(diff.changed["open_loops"][0].fields) == ["resolved_at"]


def test_an_item_with_another_text_under_the_same_id_was_changed() -> None:
    old = state_with("x")
    new = copy.deepcopy(old.snapshot())
    new["todos"][0]["content"] = "y"
    assert StateDiffer.diff(old, new).changed["todos"][0].fields == {"content": ("x", "y")}


def test_values_are_compared_by_type_and_content() -> None:
    assert StateDiffer.diff(state_with(k=1), state_with(k=True)).summary() == "~1 context items"
    assert not StateDiffer.diff(state_with(k=float("nan")), state_with(k=float("nan")))
    assert not StateDiffer.diff(state_with(k={"a": 1, "b": 2}), state_with(k={"b": 2, "a": 1}))
    assert not StateDiffer.diff(state_with(k=Personal("a", 1)), state_with(k=Personal("a", 1)))
    assert StateDiffer.diff(state_with(k=Personal("a", 1)), state_with(k=Personal("a", 2)))


def test_older_forms_and_documents_are_compared_as_well() -> None:
    state = state_with("x", k=1)
    assert not StateDiffer.diff({"todos": ["x"], "context": {"k": 1}}, state)
    assert not StateDiffer.diff(state.thread.state.plain(), state)
    assert not StateDiffer.diff(state.thread.state, state)


@pytest.mark.parametrize("wrong", [None, 7, [], {"todos": 7}, {"todos": [7]}, {"schema_version": 99}])
def test_what_is_no_state_is_refused(wrong: Any) -> None:
    with pytest.raises((InvalidValueError, SchemaVersionError)):
        StateDiffer.diff(wrong, {})
    with pytest.raises(InvalidValueError):
        StateDiffer.merge({}, wrong)


# ── bringing differences in ──────────────────────────────────────────────────────────────────


def test_merge_finds_items_by_content() -> None:
    old, new, third = state_with("x", "y"), state_with("x", "y"), state_with("y", "x")
    new.complete_todo(new.todos[0])
    new.remove_todo(new.todos[1])
    third = StateDiffer.merge(third, StateDiffer.diff(old, new))
    assert [(todo.content, todo.status) for todo in third.todos] == [("x", "completed")]


def test_merge_does_not_repeat_what_is_there() -> None:
    old, new = state_with(), state_with("x", k=1)
    third = state_with("x", k=1)
    third.apply(StateDiffer.diff(old, new))
    assert len(third.todos) == 1
    assert third.save()
    third.apply(StateDiffer.diff(old, new))
    assert third.status == "LOADED", "nothing was changed"


def collision() -> tuple[WorkingState, Any]:
    old, new, third = state_with("x", k=0), state_with("x", k=1), state_with("x", k=2)
    new.cancel_todo(new.todos[0])
    third.complete_todo(third.todos[0])
    return third, StateDiffer.diff(old, new)


def test_conflicts_are_told_and_change_nothing() -> None:
    state, diff = collision()
    before = state.snapshot()
    with pytest.raises(MergeConflictError) as raised:
        StateDiffer.merge(state, diff)
    found = {(conflict.path[0], conflict.path[2]): conflict for conflict in raised.value.conflicts}
    assert set(found) == {("todos", "status"), ("context", "value")}
    assert (found["context", "value"].base, found["context", "value"].ours) == (0, 2)
    assert found["todos", "status"].theirs == "cancelled"
    assert state.snapshot() == before


@pytest.mark.parametrize(
    ("resolve", "status", "value"), [("ours", "completed", 2), ("theirs", "cancelled", 1)]
)
def test_conflicts_are_settled_on_request(resolve: str, status: str, value: int) -> None:
    state, diff = collision()
    merged = StateDiffer.merge(state, diff, resolve=resolve)
    assert (merged.todos[0].status, merged.get_context("k")) == (status, value)
    state.apply(diff, resolve=resolve)
    assert (state.todos[0].status, state.get_context("k")) == (status, value)


def test_added_differently_on_both_sides() -> None:
    old, new, third = state_with(), state_with(k=1), state_with(k=2)
    diff = StateDiffer.diff(old, new)
    with pytest.raises(MergeConflictError, match="1 change of the diff doesn't fit this state"):
        StateDiffer.merge(third, diff)
    assert StateDiffer.merge(third, diff, resolve="ours").get_context("k") == 2
    assert StateDiffer.merge(third, diff, resolve="theirs").get_context("k") == 1
    with pytest.raises(InvalidValueError):
        StateDiffer.merge(third, diff, resolve="both")


def test_removed_here_and_changed_there() -> None:
    old = state_with("x")
    new, third = (StateDiffer.merge(state_with(), StateDiffer.diff(state_with(), old)) for _ in range(2))
    new.complete_todo(new.todos[0])
    third.remove_todo(third.todos[0])
    diff = StateDiffer.diff(old, new)
    with pytest.raises(MergeConflictError):
        StateDiffer.merge(third, diff)
    assert StateDiffer.merge(third, diff, resolve="ours").todos == []
    assert StateDiffer.merge(third, diff, resolve="theirs").todos[0].status == "completed"


def test_a_patch_wants_an_exact_fit() -> None:
    old, new = state_with("x", k=1), state_with("x", "y", k=2)
    diff = StateDiffer.diff(old, new)
    assert not StateDiffer.diff(StateDiffer.patch(old, diff), new)
    for other in (new, state_with(k=1), state_with("x", k=3)):
        before = other.snapshot()
        if other.get_context("k") != 1:
            with pytest.raises(MergeConflictError):
                StateDiffer.patch(other, diff)
            assert other.snapshot() == before
    removal = StateDiffer.diff(new, state_with("x", k=1))
    with pytest.raises(MergeConflictError):
        StateDiffer.patch(state_with("x", k=2), removal)


def test_a_merge_keeps_to_the_limits() -> None:
    state = WorkingState(Config(max_context_entries=1))
    state.set_context("a", 1)
    before = state.snapshot()
    with pytest.raises(LimitError):
        StateDiffer.merge(state, StateDiffer.diff(state_with(), state_with("x", b=1)))
    with pytest.raises(LimitError):
        state.apply(StateDiffer.diff(state_with(), state_with("x", b=1)))
    assert state.snapshot() == before
    bad = StateDiffer.diff({}, {"todos": [{"id": "a", "content": "fine"}, {"id": "b", "content": object()}]})
    with pytest.raises(InvalidValueError):
        state.apply(bad)
    assert state.snapshot() == before, "all of it or nothing"


def test_a_merge_is_saved_and_told_like_any_change() -> None:
    state = state_with()
    state.apply(StateDiffer.diff(state_with(), state_with("x", k=1)))
    assert state.status == "DIRTY"
    loaded = WorkingState.load(state.save())
    assert (loaded.todos, loaded.context) == (state.todos, state.context)
    past = state.at(1)
    with pytest.raises(Exception, match="read only"):
        past.apply(StateDiffer.diff(state_with(), state_with("y")))
    with pytest.raises(Exception, match="read only"):
        StateDiffer.patch(past, StateDiffer.diff(state_with(), state_with("y")))


def random_state(rng: random.Random, start: dict[str, Any] | None = None) -> dict[str, Any]:
    """A snapshot grown from another one by random changes."""
    state = WorkingState()
    if start is not None:
        state = StateDiffer.merge(state, StateDiffer.diff({}, start))
    for _ in range(rng.randint(0, 8)):
        choice = rng.randrange(6)
        if choice == 0 or (choice < 3 and not state.todos):
            state.add_todo(f"todo {rng.randrange(4)}", priority=rng.choice(["low", "high"]))
        elif choice == 1:
            rng.choice([state.start_todo, state.complete_todo, state.remove_todo])(rng.choice(state.todos))
        elif choice == 2:
            state.update_todo(rng.choice(state.todos), content=f"todo {rng.randrange(4)}")
        elif choice == 3:
            state.set_context(f"key {rng.randrange(3)}", rng.choice([1, "x", [1, {"a": 2}]]))
        elif choice == 4 and state.context:
            state.remove_context(rng.choice(list(state.context)))
        else:
            state.add_constraint(f"constraint {rng.randrange(2)}")
    return state.snapshot()


@given(st.integers(0, 10**9))
def test_a_patch_turns_old_into_new(number: int) -> None:
    rng = random.Random(number)
    old = random_state(rng)
    new = random_state(rng, old if rng.random() < 0.7 else None)
    kept = copy.deepcopy(old)
    diff = StateDiffer.diff(old, new)
    assert not StateDiffer.diff(StateDiffer.patch(old, diff), new)
    assert old == kept
    state = WorkingState()
    state.apply(StateDiffer.diff({}, old))
    assert not StateDiffer.diff(state, old)
    StateDiffer.patch(state, diff)
    assert not StateDiffer.diff(state, new)
    assert not StateDiffer.diff(StateDiffer.merge(state, diff), new), "once more changes nothing"
