"""Healing: whatever the payload is, a usable state with every sound part comes out."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest

from everthread import Personal, WorkingState, register
from everthread.recovery import SelfHealer
from everthread.working.repair import VALUE_BYTES_MAX
from tests.unit.working import mutating
from tests.unit.working.mutating import LISTS, EvilStr, OddType, bomb, check, cycle, deep

#: ``python -m tests.torture.heal`` has as many as one likes.
BATCHES = 2
PER_BATCH = 2_500


@pytest.mark.parametrize("batch", range(BATCHES))
def test_thousands_of_damaged_payloads(batch: int, seed: int) -> None:
    first = (seed * BATCHES + batch) * PER_BATCH
    for number in range(first, first + PER_BATCH):
        try:
            check(number, save=number % 250 == 0)
        except BaseException:
            print(f"payload {number}; replay: mutating.check({number})")
            raise


def test_the_damages_reach_everything() -> None:
    """A test of the test: each kind of damage occurs, some lose something and some don't."""
    complete = 0
    reached: set[Any] = set()
    for number in range(400):
        _, payload, touched = mutating.mutated(random.Random(number))
        complete += SelfHealer.recover(payload).recovery.complete
        reached |= {place[:1] for place in touched}
    assert 20 < complete < 380
    assert {(), *((name,) for name in (*LISTS, "context"))} <= reached


def sound_state() -> WorkingState:
    state = WorkingState()
    state.add_todo("pay")
    state.set_context("branch", {"name": "main"})
    state.add_open_loop("ask", context=[1])
    state.set_intention("go")
    state.add_constraint("never")
    return state


def test_a_sound_snapshot_comes_back_whole() -> None:
    snapshot = sound_state().snapshot()
    healed = SelfHealer.recover(snapshot)
    assert healed.recovery.complete
    assert healed.recovery.warnings == ()
    assert healed.recovery.kept == {
        "todos": 1,
        "context": 1,
        "open_loops": 1,
        "intentions": 1,
        "constraints": 1,
    }
    assert healed.recovery.source_id == snapshot["id"] != healed.id
    assert {**healed.snapshot(), "id": snapshot["id"]} == snapshot
    assert healed.status == "DIRTY"


def test_the_document_of_a_thread_heals_as_well() -> None:
    state = sound_state()
    healed = SelfHealer.recover(state.thread.state)
    assert (healed.todos, healed.context, healed.constraints) == (
        state.todos,
        state.context,
        state.constraints,
    )
    assert SelfHealer.recover(state).todos == state.todos


def test_nothing_is_opened_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", "sqlite:////nowhere/at/all.db")
    state = SelfHealer.recover({"todos": ["old form"]})
    assert [todo.content for todo in state.todos] == ["old form"]


def test_version_0() -> None:
    report = SelfHealer.validate({"todos": ["pay", {"content": "ask"}], "context": {"branch": "main"}})
    assert report.valid
    assert len(report.warnings) == 3, "no version, and two todos without an id"
    state = SelfHealer.recover({"todos": ["pay"], "context": {"branch": {"value": 1, "unit": "m"}}})
    assert state.get_context("branch") == {"value": 1, "unit": "m"}, "a value that only looks like an item"
    assert state.todos[0].created_at is None, "unknown, not invented"


def test_a_newer_version_is_healed_as_far_as_it_is_understood() -> None:
    payload = {**sound_state().snapshot(), "schema_version": 99}
    assert not SelfHealer.validate(payload).valid
    state = SelfHealer.recover(payload)
    assert len(state.todos) == 1
    assert [loss.path for loss in state.recovery.lost] == ["schema_version"]


def test_unknown_fields_are_kept() -> None:
    payload = sound_state().snapshot()
    payload["todos"][0]["colour"] = "red"
    payload["mood"] = {"today": "good"}
    state = SelfHealer.recover(payload)
    assert state.recovery.complete
    assert state.snapshot()["todos"][0]["colour"] == "red"
    assert state.snapshot()["mood"] == {"today": "good"}
    state.complete_todo(state.todos[0])
    assert state.snapshot()["todos"][0]["colour"] == "red"


def test_only_the_unsound_part_of_a_value_is_lost() -> None:
    payload = sound_state().snapshot()
    payload["context"]["branch"]["value"] = {
        "name": "main",
        "lock": object(),
        "deep": deep(500),
        "n": [1, len, 2],
    }
    state = SelfHealer.recover(payload)
    value = state.get_context("branch")
    assert (value["name"], value["n"]) == ("main", [1, 2])
    assert {loss.path.split(".d")[0] for loss in state.recovery.lost} >= {
        "context.branch.value.lock",
        "context.branch.value.n[1]",
    }


def test_what_contains_itself_or_explodes_costs_nothing_else() -> None:
    payload = sound_state().snapshot()
    for number in range(50):
        payload["context"][f"cycle {number}"] = {"value": cycle()}
        payload["context"][f"bomb {number}"] = {"value": bomb()}
    tracemalloc.start()
    try:
        state = SelfHealer.recover(payload)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert state.get_context("branch") == {"name": "main"}
    assert len(state.todos) == 1
    assert state.recovery.lost_count >= 100


def test_what_is_too_large_is_lost_and_the_rest_can_be_saved() -> None:
    payload = sound_state().snapshot()
    for number in range(6):
        payload["context"][f"huge {number}"] = {"value": "x" * (VALUE_BYTES_MAX - 100)}
    payload["context"]["too huge"] = {"value": "x" * (VALUE_BYTES_MAX + 1)}
    payload["constraints"].append({"id": "c", "text": "kept"})
    state = SelfHealer.recover(payload)
    assert "too huge" not in state.context
    assert 1 <= sum(key.startswith("huge") for key in state.context) < 6
    assert WorkingState.load(state.save()).todos == state.todos


def test_personal_values_and_registered_ones_stay_what_they_are() -> None:
    payload = sound_state().snapshot()
    payload["todos"].append({"id": "p", "content": Personal("ann", "call Ann")})
    payload["context"]["who"] = {"value": Personal("ann", {"phone": 7})}
    payload["context"]["bad"] = {"value": Personal("ann", object())}
    payload["context"]["point"] = {"value": Point(1, 2)}
    state = SelfHealer.recover(payload)
    assert [loss.path for loss in state.recovery.lost] == ["context.bad.value"]
    loaded = WorkingState.load(state.save())
    assert loaded.todos[1].content == Personal("ann", "call Ann")
    assert loaded.get_context("who").value == {"phone": 7}
    assert loaded.get_context("point") == Point(1, 2)


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)


register(Point, tag="tests.working.Point", to_data=lambda p: [p.x, p.y], from_data=lambda data: Point(*data))


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        [],
        "{",
        "[1]",
        b"\xff\xfe",
        object(),
        OddType(),
        OddType,
        {OddType(): 1},
        {EvilStr("todos"): [1]},
        {"todos": OddType()},
        {"todos": [OddType()], "context": {"k": OddType()}},
        {"todos": [{EvilStr("content"): "x"}]},
        {"todos": [{"content": EvilStr("x"), "status": EvilStr("pending")}]},
        {"todos": {("a",): {"content": "x"}}},
        deep(100_000),
        cycle(),
        "[" * 100_000,
        '{"todos": ' + "9" * 5_000 + "}",
    ],
    ids=lambda payload: type.__dict__["__name__"].__get__(type(payload)),
)
def test_hostile(payload: Any) -> None:
    state = SelfHealer.recover(payload)
    SelfHealer.validate(payload)
    state.add_todo("usable")
    assert state.todos[-1].content == "usable"


def test_json_text_is_read() -> None:
    state = SelfHealer.recover('{"todos": ["from a file"], "schema_version": 0}')
    assert [todo.content for todo in state.todos] == ["from a file"]


def test_many_losses_are_counted_and_some_told() -> None:
    state = SelfHealer.recover({"schema_version": 1, "todos": [7] * 5_000})
    assert state.recovery.lost_count == 5_000
    assert len(state.recovery.lost) == 1_000
    assert SelfHealer.validate({"todos": [7] * 5_000}).errors[-1] == "and 4,000 more"
    assert "kept nothing; 5,000 losses" in str(state.recovery)
