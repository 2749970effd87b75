"""C: object checkpoints."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

import everthread
from everthread import Checkpointable, CheckpointManager, checkpoint, register_migration


class Memory(Checkpointable):
    def __init__(self) -> None:
        self.items: list[Any] = []
        self._lock = threading.Lock()


class MyAgent(Checkpointable):
    def __init__(self, name: str = "weaver") -> None:
        self.name = name
        self.step = 0
        self.memory = Memory()
        self._client = object()


@dataclasses.dataclass
class Invoice:
    number: int
    lines: list[str] = dataclasses.field(default_factory=list)


class Customer(pydantic.BaseModel):
    name: str
    tags: list[str] = []


class Phase(enum.Enum):
    PLAN = "plan"
    ACT = "act"


everthread.register(Invoice, tag="tests.features.Invoice")
everthread.register(Customer, tag="tests.features.Customer")
everthread.register(Phase, tag="tests.features.Phase")


@pytest.fixture(params=["memory", "file", "sqlite", "pickle", "postgres", "valkey"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointManager]:
    """Blocking on every store: a checkpoint is taken of a Python object that nobody may change meanwhile, and
    so isn't awaited. The decorator serves async functions (C4)."""
    if request.param == "memory":
        opened = CheckpointManager(backend="memory")
    elif request.param == "file":
        opened = CheckpointManager("file", path=tmp_path / "checkpoints")
    elif request.param == "sqlite":
        opened = CheckpointManager(f"sqlite:///{tmp_path}/agent.db")
    elif request.param == "postgres":
        opened = CheckpointManager(request.getfixturevalue("postgres_url"))
    elif request.param == "valkey":
        opened = CheckpointManager(request.getfixturevalue("valkey_lasting_url"))
    else:
        opened = CheckpointManager("file", path=tmp_path / "checkpoints", fmt="pickle")
    with opened:
        yield opened


# ── C1 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C1_the_state_is_the_public_fields_with_class_and_version() -> None:
    agent = MyAgent()
    agent.memory.items.append("note")
    assert agent.state_dict() == {
        "__version__": "1.0",
        "__class__": "MyAgent",
        "name": "weaver",
        "step": 0,
        "memory": {"__version__": "1.0", "__class__": "Memory", "items": ["note"]},
    }


def test_C1_a_state_is_loaded_and_nested_objects_stay_the_objects_they_are() -> None:
    source, agent = MyAgent("other"), MyAgent()
    source.step, source.memory.items = 7, [1, {"two": 2}]
    memory, client = agent.memory, agent._client
    state = source.state_dict()
    agent.load_state_dict(state)
    assert agent.state_dict() == state
    assert agent.memory is memory
    assert agent._client is client
    source.memory.items[1]["two"] = state["memory"]["items"][1]["two"] = 3
    assert agent.memory.items == [1, {"two": 2}]


def test_C1_fields_can_be_pinned() -> None:
    class Pinned(Checkpointable):
        def __init__(self) -> None:
            self.kept, self.left_out, self._private = 1, 2, 3

        def _checkpoint_fields(self) -> list[str]:
            return ["kept", "_private"]

    assert Pinned().state_dict() == {"__version__": "1.0", "__class__": "Pinned", "kept": 1, "_private": 3}
    other = Pinned()
    other.load_state_dict({**Pinned().state_dict(), "kept": 10, "_private": 30})
    assert (other.kept, other.left_out, other._private) == (10, 2, 30)


def test_C1_objects_in_containers_recurse(manager: CheckpointManager) -> None:
    class Team(Checkpointable):
        def __init__(self) -> None:
            self.members = [MyAgent("a"), MyAgent("b")]
            self.by_name = {"lead": MyAgent("c")}
            self.pair = (MyAgent("d"), 1)

    team, other = Team(), Team()
    team.members[1].memory.items.append("deep")
    team.by_name["lead"].step = 5
    team.pair[0].step = 6
    first = other.members[0]
    manager.save("team", team)
    manager.load("team", other)
    assert other.state_dict() == team.state_dict()
    assert other.members[0] is first
    assert other.members[1].memory.items == ["deep"]


def test_C1_diff_of_two_agents() -> None:
    one, two = MyAgent(), MyAgent()
    two.step = 3
    two.extra = "new"  # type: ignore[attr-defined]
    del two.name
    assert one.diff(two) == {
        "added": {"extra": "new"},
        "removed": {"name": "weaver"},
        "changed": {"step": (0, 3)},
    }
    assert one.diff(one) == {"added": {}, "removed": {}, "changed": {}}


# ── C2 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C2_save_load_list_and_history(manager: CheckpointManager) -> None:
    agent = MyAgent()
    before = time.time()
    ids = []
    for step in range(7):
        agent.step = step
        ids.append(manager.save("my-agent", agent))
    manager.save("../../x'; drop table", agent)
    fresh = MyAgent("fresh")
    assert manager.load("my-agent", fresh) is fresh
    assert fresh.state_dict() == agent.state_dict()
    assert manager.list_keys() == ["../../x'; drop table", "my-agent"]
    history = manager.history("my-agent", n=5)
    assert [entry["id"] for entry in history] == ids[:1:-1]
    assert before - 1 <= history[-1]["ts"] <= history[0]["ts"] <= time.time() + 1
    assert len(manager.history("my-agent")) == 5
    assert len(manager.history("my-agent", n=None)) == 7
    assert manager.load("my-agent", MyAgent(), checkpoint_id=ids[2]).step == 2


def test_C2_what_was_never_saved(manager: CheckpointManager) -> None:
    assert manager.list_keys() == []
    assert manager.history("nothing") == []
    with pytest.raises(everthread.StateNotFoundError, match="nothing"):
        manager.load("nothing", MyAgent())
    manager.save("key", MyAgent())
    with pytest.raises(everthread.NotFoundError):
        manager.load("key", MyAgent(), checkpoint_id="9-000000000000000000000000")


@pytest.mark.parametrize("fmt", ["json", "pickle"])
def test_C2_another_manager_on_the_same_folder_finds_it(tmp_path: Path, fmt: Any) -> None:
    folder = tmp_path / "not" / "there" / "with space %20?#ü"
    with CheckpointManager("file", path=folder, fmt=fmt) as first:
        agent = MyAgent()
        agent.step = 4
        first.save("k", agent)
    with CheckpointManager("file", path=str(folder), fmt=fmt) as second:
        assert second.list_keys() == ["k"]
        assert second.load("k", MyAgent()).step == 4


def test_C2_any_store_url_and_an_open_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with CheckpointManager(url) as by_url, everthread.open(url) as store:
        agent = MyAgent()
        by_url.save("k", agent)
        agent.step = 9
        by_store = CheckpointManager(store)
        by_store.save("k", agent)
        by_store.close()
        assert by_url.load("k", MyAgent()).step == 9
        # A thread of the same name is something else.
        store.thread("k").state["mine"] = True
        assert store.thread("k").head is None
        assert store.verify().ok


# ── C3 ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_C3_a_failing_block_is_rolled_back(manager: CheckpointManager, error: type[BaseException]) -> None:
    agent = MyAgent()
    agent.memory.items = [{"deep": [1]}]
    memory, items, deep = agent.memory, agent.memory.items, agent.memory.items[0]
    before = agent.state_dict()

    def work() -> None:
        with manager.rollback_context("k", agent) as same:
            assert same is agent
            agent.step = 99
            agent.name = "changed"
            agent.memory.items[0]["deep"].append(2)
            agent.memory.items.append("more")
            agent.added = True  # type: ignore[attr-defined]
            del agent.memory._lock
            agent.memory = Memory()
            raise error("inside")

    with pytest.raises(error, match="inside"):
        work()
    assert agent.state_dict() == before
    assert agent.memory is memory
    assert agent.memory.items is items
    assert agent.memory.items[0] is deep
    assert not hasattr(agent, "added")
    assert hasattr(agent.memory, "_lock")


def test_C3_blocks_nest_and_success_keeps_the_changes(manager: CheckpointManager) -> None:
    agent = MyAgent()

    def fail() -> None:
        with manager.rollback_context("k", agent):
            agent.step = 2
            raise ZeroDivisionError

    with manager.rollback_context("k", agent):
        agent.step = 1
        with pytest.raises(ZeroDivisionError):
            fail()
        assert agent.step == 1
        agent.step += 10
    assert agent.step == 11


def test_C3_the_newest_checkpoint_is_the_one_from_before(manager: CheckpointManager) -> None:
    agent = MyAgent()
    saved_inside = []

    def work() -> None:
        with manager.rollback_context("k", agent):
            agent.step = 5
            saved_inside.append(manager.save("k", agent))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert manager.load("k", MyAgent()).step == 0
    assert manager.load("k", MyAgent(), checkpoint_id=saved_inside[0]).step == 5


# ── C4 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C4_every_fifth_call_saves(manager: CheckpointManager) -> None:
    @checkpoint(manager, key="run", every=5)
    def advance(by: int, agent: MyAgent, *, other: MyAgent | None = None) -> int:
        """Go on."""
        agent.step += by
        return agent.step

    agent = MyAgent()
    for _ in range(4):
        advance(1, agent, other=MyAgent("no"))
    assert manager.list_keys() == []
    assert advance(1, agent) == 5
    for _ in range(7):
        advance(1, agent=agent)
    assert len(manager.history("run")) == 2
    assert manager.load("run", MyAgent()).step == 10
    assert (advance.__name__, advance.__doc__) == ("advance", "Go on.")


def test_C4_async_functions_and_methods(manager: CheckpointManager) -> None:
    class Walker(Checkpointable):
        def __init__(self) -> None:
            self.step = 0

        @checkpoint(manager, key="walk", every=5)
        async def walk(self) -> int:
            await asyncio.sleep(0)
            self.step += 1
            return self.step

    async def run(walker: Walker, times: int) -> None:
        for _ in range(times):
            await walker.walk()

    walker = Walker()
    asyncio.run(run(walker, 4))
    assert manager.list_keys() == []
    asyncio.run(run(walker, 8))
    assert walker.step == 12
    assert len(manager.history("walk")) == 2
    fresh = Walker()
    assert manager.load("walk", fresh).step == 10


# ── C5 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C5_diff_with_an_agent_and_between_checkpoints(manager: CheckpointManager) -> None:
    key = "k"
    agent = MyAgent()
    agent.old = 1  # type: ignore[attr-defined]
    a = manager.save(key, agent)
    del agent.old  # type: ignore[attr-defined]
    agent.step, agent.new = 2, [1]  # type: ignore[attr-defined]
    agent.memory.items.append("x")
    expected = {
        "added": {"new": [1]},
        "removed": {"old": 1},
        "changed": {
            "step": (0, 2),
            "memory": (
                {"__version__": "1.0", "__class__": "Memory", "items": []},
                {"__version__": "1.0", "__class__": "Memory", "items": ["x"]},
            ),
        },
    }
    assert manager.diff(key, agent=agent) == expected
    b = manager.save(key, agent)
    assert manager.diff(key, checkpoint_id_a=a, checkpoint_id_b=b) == expected
    assert manager.diff(key, checkpoint_id_a=a) == expected
    assert manager.diff(key, agent=agent) == {"added": {}, "removed": {}, "changed": {}}
    assert manager.diff(key, agent=agent, checkpoint_id_a=a) == expected


# ── C6 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C6_migrations_run_in_order_until_current(manager: CheckpointManager) -> None:
    class Growing(Checkpointable):
        version = "1.0"

        def __init__(self) -> None:
            self.trail: list[str] = []

        def _checkpoint_version(self) -> str:
            return self.version

    manager.save("k", Growing())

    def step(name: str, leads_to: str | None = None) -> Any:
        def migrate(state: dict[str, Any]) -> dict[str, Any]:
            state["trail"].append(name)
            return state if leads_to is None else {**state, "__version__": leads_to}

        return migrate

    # Registered in any order; 1.10 comes after 1.9.
    register_migration("Growing", from_version="1.10", fn=step("1.10", "2.0"))
    register_migration("Growing", from_version="1.0", fn=step("1.0"))
    register_migration("Growing", from_version="1.9", fn=step("1.9", "1.10"))
    register_migration("Growing", from_version="2.0", fn=step("2.0"))
    Growing.version = "2.0"
    assert manager.load("k", Growing()).trail == ["1.0", "1.9", "1.10"]
    Growing.version = "3.0"
    assert manager.load("k", Growing()).trail == ["1.0", "1.9", "1.10", "2.0"]
    # What is in the store stays as it was saved.
    assert manager.history("k")[0]["id"].startswith("1-")


# ── C7 ───────────────────────────────────────────────────────────────────────────────────────────


def test_C7_clone_is_deep_and_independent() -> None:
    agent = MyAgent()
    agent.memory.items = shared = [{"a": 1}]
    agent.alias = shared  # type: ignore[attr-defined]
    twin = agent.clone()
    assert type(twin) is MyAgent
    assert twin.state_dict() == agent.state_dict()
    twin.memory.items[0]["a"] = 2
    twin.step = 5
    assert agent.memory.items == [{"a": 1}]
    assert agent.step == 0
    assert twin.memory is not agent.memory
    assert twin.memory.items is twin.alias  # type: ignore[attr-defined]
    # A lock can't be copied, and isn't part of the state.
    assert twin.memory._lock is agent.memory._lock


# ── C8 ───────────────────────────────────────────────────────────────────────────────────────────

VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63, 2**200],
    "floats": [0.5, -0.0, float("inf")],
    "text": "ünïcode ✓",
    "listed": [1, [2, [3]]],
    "mapped": {"a": {"b": [1]}},
    "tupled": (1, ("x", [2])),
    "a_set": {1, 2, 3},
    "frozen": frozenset({"a"}),
    "keys": {1: "int", (1, 2): "tuple", None: "none", True and 2.5: "float", b"k": "bytes"},
    "raw": b"\x00\xff",
    "moment": dt.datetime(2024, 2, 29, 12, 30, 15, 250, tzinfo=dt.UTC),
    "day": dt.date(2024, 2, 29),
    "span": dt.timedelta(days=1, seconds=2),
    "money": decimal.Decimal("12.30"),
    "id": uuid.UUID(int=5),
    "invoice": Invoice(1, ["a"]),
    "customer": Customer(name="Ann", tags=["x"]),
    "phase": Phase.ACT,
    "looks_like_a_state": {"__class__": "MyAgent", "__version__": "1.0", "name": "x"},
    "deep_look": [{"__class__": None, "dict": {"a": 1}}, {"__class__": 5}],
}


class Bag(Checkpointable):
    pass


def test_C8_every_type_comes_back_as_it_was(manager: CheckpointManager) -> None:
    bag = Bag()
    vars(bag).update(VALUES)
    manager.save("k", bag)
    loaded = manager.load("k", Bag())
    for name, value in VALUES.items():
        found = getattr(loaded, name)
        assert (type(found), repr(found)) == (type(value), repr(value)), name
        assert found == value
    assert manager.diff("k", agent=loaded) == {"added": {}, "removed": {}, "changed": {}}


def test_C8_numpy_arrays(manager: CheckpointManager) -> None:
    arrays = {
        "vector": np.arange(5, dtype=np.float32),
        "matrix": np.arange(6).reshape(2, 3).T,
        "big_endian": np.array([1, 2], dtype=">i4"),
        "empty": np.zeros((0, 3)),
        "scalar_array": np.array(3.5),
        "texts": np.array(["a", "bcd"]),
        "times": np.array(["2024-02-29T12:00"], dtype="datetime64[ms]"),
        "flags": np.array([True, False]),
        "complex": np.array([1 + 2j]),
        "records": np.array([(1, 2.5, [1, 2])], dtype=[("a", "<i4"), ("b", "<f8"), ("c", "<u2", (2,))]),
        "objects": np.array([{"a": 1}, None, (1, 2)], dtype=object),
    }
    scalars = {
        "f4": np.float32(0.1),
        "i8": np.int64(-3),
        "b": np.bool_(True),
        "t": np.datetime64("2024-01-01"),
    }
    bag = Bag()
    vars(bag).update(arrays, nested=[{"a": arrays["vector"]}], **scalars)
    manager.save("k", bag)
    loaded = vars(manager.load("k", Bag()))
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype, name
        assert loaded[name].shape == array.shape
        assert repr(loaded[name].tolist()) == repr(array.tolist())
    for name, scalar in scalars.items():
        assert (type(loaded[name]), loaded[name]) == (type(scalar), scalar)
    loaded["vector"][0] = 9
    assert loaded["nested"][0]["a"].tolist() == [0, 1, 2, 3, 4]


class Arbitrary:
    def __init__(self) -> None:
        self.x = [1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arbitrary) and self.x == other.x

    __hash__ = None  # type: ignore[assignment]


def test_C8_arbitrary_objects_only_where_pickle_was_chosen(tmp_path: Path) -> None:
    bag = Bag()
    bag.thing = {"inside": Arbitrary()}  # type: ignore[attr-defined]
    with CheckpointManager("file", path=tmp_path / "c") as plain:
        with pytest.raises(everthread.InvalidValueError, match=r"Bag\.thing\.inside.*Arbitrary"):
            plain.save("k", bag)
        assert plain.list_keys() == []
    with CheckpointManager("file", path=tmp_path / "c", fmt="pickle") as pickling:
        pickling.save("k", bag)
        assert pickling.load("k", Bag()).thing == {"inside": Arbitrary()}  # type: ignore[attr-defined]
    with (
        CheckpointManager("file", path=tmp_path / "c") as plain,
        pytest.raises(everthread.InvalidStateError, match="fmt="),
    ):
        plain.load("k", Bag())


# ── C9 ───────────────────────────────────────────────────────────────────────────────────────────


class Strict(Checkpointable):
    def __init__(self) -> None:
        self.level = 1
        self.inner = Inner()
        self.log: list[str] = ["begun"]
        self.kind = "strict"

    @property
    def level(self) -> int:
        return self._level

    @level.setter
    def level(self, value: int) -> None:
        if value < 0:
            raise ValueError("negative")
        self._level = value

    def _checkpoint_fields(self) -> list[str]:
        return ["log", "inner", "kind", "level"]


class Inner(Checkpointable):
    def __init__(self) -> None:
        self.items = [1, 2]
        self.total = 3

    def load_state_dict(self, state: Any) -> None:
        self.items.clear()
        self.items.extend(state["items"])
        self.seen = True
        if state["total"] != sum(state["items"]):
            raise ValueError("doesn't add up")
        super().load_state_dict(state)


def _breakages() -> dict[str, Any]:
    def nested(state: dict[str, Any]) -> None:
        state["inner"]["total"] = 0

    def setter(state: dict[str, Any]) -> None:
        state["level"] = -1

    def field(state: dict[str, Any]) -> None:
        state["__dict__"] = {}

    def other_class(state: dict[str, Any]) -> None:
        state["__class__"] = "Another"

    def newer(state: dict[str, Any]) -> None:
        state["__version__"] = "9.0"

    def missing(state: dict[str, Any]) -> None:
        del state["inner"]["items"]

    return {f.__name__: f for f in (nested, setter, field, other_class, newer, missing)}


@pytest.mark.parametrize("how", _breakages())
def test_C9_a_failing_load_leaves_everything_as_it_was(how: str) -> None:
    saved = Strict()
    saved.log, saved.kind = ["saved"], "other"
    saved.inner.items, saved.inner.total = [5, 6], 11
    state = saved.state_dict()
    _breakages()[how](state)
    target = Strict()
    inner, items, log = target.inner, target.inner.items, target.log
    before = target.state_dict()
    with pytest.raises((ValueError, KeyError, everthread.EverthreadError)):
        target.load_state_dict(state)
    assert target.state_dict() == before
    assert (target.inner, target.inner.items, target.log) == (inner, items, log)
    assert target.inner is inner
    assert target.inner.items is items
    assert not hasattr(inner, "seen")


def test_C9_also_through_a_manager_and_with_a_failing_migration(manager: CheckpointManager) -> None:
    saved = Strict()
    saved.inner.items, saved.inner.total = [5], 0
    manager.save("broken", saved)
    target = Strict()
    inner = target.inner
    before = target.state_dict()
    with pytest.raises(ValueError, match="doesn't add up"):
        manager.load("broken", target)
    assert target.state_dict() == before
    assert target.inner is inner

    class Newer(Checkpointable):
        def _checkpoint_version(self) -> str:
            return "2.0"

    def fail(state: dict[str, Any]) -> dict[str, Any]:
        state["x"] = "changed"
        raise LookupError("half way")

    register_migration("Newer", from_version="1.0", fn=fail)
    newer = Newer()
    newer.x = [1]  # type: ignore[attr-defined]
    state = {"__class__": "Newer", "__version__": "1.0", "x": "old"}
    with pytest.raises(LookupError) as caught:
        newer.load_state_dict(state)
    assert caught.value.__notes__ == ["while migrating a state of Newer from version 1.0"]
    assert newer.x == [1]  # type: ignore[attr-defined]
    assert state["x"] == "old"
