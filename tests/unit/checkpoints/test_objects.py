"""Checkpointable: what is a field, what is refused, and how nested objects are found."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest

import everthread
from everthread import Checkpointable, CheckpointManager


class Tool(Checkpointable):
    def __init__(self, name: str = "") -> None:
        self.name = name


class Team(Checkpointable):
    def __init__(self, *names: str) -> None:
        self.tools = [Tool(name) for name in names]


class Making(Team):
    def _checkpoint_new(self, class_name: str) -> Checkpointable | None:
        return Tool() if class_name == "Tool" else None


def test_a_state_survives_json() -> None:
    team = Team("a", "b")
    state = json.loads(json.dumps(team.state_dict()))
    other = Team("x", "y")
    other.load_state_dict(state)
    assert [tool.name for tool in other.tools] == ["a", "b"]
    assert all(isinstance(tool, Tool) for tool in other.tools)


def test_nothing_is_built_by_a_name_found_in_data() -> None:
    other = Team("x")
    with pytest.raises(everthread.InvalidStateError, match=r"Team\.tools is a Tool.*_checkpoint_new"):
        other.load_state_dict(Team("a", "b").state_dict())
    assert [tool.name for tool in other.tools] == ["x"]


def test_missing_objects_are_made_by_the_owner() -> None:
    making = Making("x")
    first = making.tools[0]
    making.load_state_dict({**Team("a", "b", "c").state_dict(), "__class__": "Making"})
    assert [tool.name for tool in making.tools] == ["a", "b", "c"]
    assert making.tools[0] is first
    making.load_state_dict(Making("z").state_dict())
    assert [tool.name for tool in making.tools] == ["z"]


def test_an_object_of_another_class_is_not_loaded_into() -> None:
    class Other(Checkpointable):
        pass

    team = Team("a")
    team.tools = [Other()]  # type: ignore[list-item]
    with pytest.raises(everthread.InvalidStateError, match="state of a Tool"):
        team.load_state_dict(Team("b").state_dict())
    with pytest.raises(everthread.InvalidStateError, match="state of a Tool"):
        team.load_state_dict(Tool().state_dict())


def test_a_subclass_loads_what_its_base_saved() -> None:
    class Better(Tool):
        pass

    better = Better()
    better.load_state_dict(Tool("x").state_dict())
    assert better.name == "x"
    with pytest.raises(everthread.InvalidStateError):
        Tool().load_state_dict(better.state_dict())


def test_fields_that_the_state_does_not_have_stay() -> None:
    tool = Tool("x")
    tool.added_later = 5  # type: ignore[attr-defined]
    tool.load_state_dict({"name": "y"})
    assert vars(tool) == {"name": "y", "added_later": 5}


@pytest.mark.parametrize(
    "field", ["__dict__", "__init__", "state_dict", "_checkpoint_version", 5, "__reduce__"]
)
def test_no_state_changes_what_an_object_is(field: Any) -> None:
    tool = Tool("x")
    with pytest.raises(everthread.InvalidValueError, match="can't be a field"):
        tool.load_state_dict({"name": "y", field: {}})
    assert vars(tool) == {"name": "x"}


def test_a_field_may_be_called_as_a_method_is() -> None:
    tool = Tool("x")
    tool.diff = "+1 -1"  # type: ignore[method-assign, assignment]
    other = Tool()
    other.load_state_dict(tool.state_dict())
    assert other.diff == "+1 -1"


def test_a_state_is_a_dictionary() -> None:
    with pytest.raises(everthread.InvalidValueError, match="dictionary"):
        Tool().load_state_dict([1])  # type: ignore[arg-type]


def test_a_pinned_field_must_be_there() -> None:
    class Pinned(Checkpointable):
        def _checkpoint_fields(self) -> list[str]:
            return ["gone"]

    with pytest.raises(everthread.InvalidStateError, match="gone"):
        Pinned().state_dict()


def test_pins_may_add_to_the_default() -> None:
    class More(Checkpointable):
        def __init__(self) -> None:
            self.a, self._b = 1, 2

        def _checkpoint_fields(self) -> list[str]:
            return [*super()._checkpoint_fields(), "_b"]

    assert More().state_dict() == {"__version__": "1.0", "__class__": "More", "a": 1, "_b": 2}


def test_an_object_that_contains_itself_is_refused() -> None:
    tool = Tool()
    tool.owner = [tool]  # type: ignore[attr-defined]
    with pytest.raises(everthread.LimitError, match="contains itself"):
        tool.state_dict()
    twin = tool.clone()
    assert twin.owner[0] is twin  # type: ignore[attr-defined]
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(everthread.LimitError):
        tool.__class__.state_dict(_with(endless))


def _with(value: Any) -> Tool:
    tool = Tool()
    tool.value = value  # type: ignore[attr-defined]
    return tool


def test_what_can_not_be_copied_is_named() -> None:
    with pytest.raises(
        everthread.InvalidValueError, match=r"Tool\.value can't be copied.*underscore"
    ) as caught:
        _with([threading.Lock()]).state_dict()
    assert caught.value.path == "Tool.value"
    with pytest.raises(TypeError):
        _with(threading.Lock()).clone()


def test_a_built_in_value_is_no_base() -> None:
    with pytest.raises(TypeError, match="keep that in an attribute"):

        class Listed(Checkpointable, list):  # type: ignore[type-arg]
            pass


def test_dataclasses_and_slots() -> None:
    @dataclasses.dataclass
    class Data(Checkpointable):
        x: int
        items: list[int] = dataclasses.field(default_factory=list)

    class Slotted(Checkpointable):
        __slots__ = ("_y", "x")

        def __init__(self) -> None:
            self.x, self._y = 1, 2

    data, slotted = Data(1, [2]), Slotted()
    assert data.state_dict() == {"__version__": "1.0", "__class__": "Data", "x": 1, "items": [2]}
    assert slotted.state_dict() == {"__version__": "1.0", "__class__": "Slotted", "x": 1}
    twin = data.clone()
    twin.items.append(3)
    assert data == Data(1, [2])
    other = slotted.clone()
    other.load_state_dict({"x": 9})
    assert (other.x, other._y, slotted.x) == (9, 2, 1)


def test_a_clone_copies_what_is_private_where_it_can() -> None:
    tool = Tool()
    tool._cache, tool._lock = [tool], threading.Lock()  # type: ignore[attr-defined]
    tool._both = [tool._cache, tool._lock]  # type: ignore[attr-defined]
    twin: Any = tool.clone()
    assert twin._cache[0] is twin
    assert twin._lock is tool._lock  # type: ignore[attr-defined]
    assert twin._both is tool._both  # type: ignore[attr-defined]


def test_diff_takes_another_object() -> None:
    with pytest.raises(everthread.UsageError):
        Tool().diff({})  # type: ignore[arg-type]


def test_shared_objects_are_saved_twice_and_loaded_once_each() -> None:
    class Pair(Checkpointable):
        def __init__(self) -> None:
            self.a = self.b = Tool("shared")

    with CheckpointManager() as manager:
        manager.save("k", Pair())
        pair = Pair()
        pair.a.name = "changed"
        manager.load("k", pair)
        assert pair.a is pair.b
        assert pair.a.name == "shared"
