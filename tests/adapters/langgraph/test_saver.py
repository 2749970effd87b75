"""What EverthreadSaver promises beyond LangGraph's suite: exactness, cost, hostile input, encryption."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import langgraph.checkpoint.base as checkpoint_base
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.langgraph.names import parse_name, thread_name
from everthread.errors import InvalidNameError, InvalidValueError
from tests.adapters.langgraph.graphs import config, echo, talking

#: As filter keys and ids: what reached SQL text elsewhere (CVE-2025-67644).
HOSTILE = [
    "source') = 'x' OR 1=1 --",
    "a'; DROP TABLE line; --",
    '$."x"',
    "%' OR '1'='1",
    "../../etc/passwd",
    "x\ny",
    "*",
    "{root}",
    "ключ",
    "a/b#c%2Fd",
]


@dataclass
class Note:
    text: str


def put(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    parent: str | None,
    values: dict[str, Any],
    versions: dict[str, Any],
    new: dict[str, Any],
    *,
    namespace: str = "",
    checkpoint_id: str | None = None,
    **metadata: Any,
) -> str:
    checkpoint = {
        **empty_checkpoint(),
        "id": checkpoint_id or str(uuid6()),
        "channel_values": values,
        "channel_versions": versions,
    }
    at = config(thread_id, checkpoint_ns=namespace, **({"checkpoint_id": parent} if parent else {}))
    saver.put(at, checkpoint, {"source": "loop", "step": 1, **metadata}, new)  # type: ignore[arg-type,typeddict-item]
    return str(checkpoint["id"])


def shown(found: CheckpointTuple | None) -> Any:
    """A checkpoint without what a saver may choose, such as the order of keys."""
    assert found is not None
    return (
        found.config["configurable"]["checkpoint_id"],
        found.checkpoint["channel_values"],
        found.checkpoint["channel_versions"],
        found.metadata,
        found.parent_config,
        found.pending_writes,
    )


class World:
    """Random programs on two savers: every kind of value, every way to change one, any branch."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.states: dict[str, tuple[dict[str, Any], dict[str, int]]] = {}
        self.counter = 0

    def text(self, size: int = 5) -> str:
        return "".join(self.rng.choice("abcdefgh é") for _ in range(self.rng.randint(1, size)))

    def message(self) -> Any:
        made = uuid.UUID(int=self.rng.getrandbits(128)).hex
        kind = self.rng.choice([HumanMessage, AIMessage, SystemMessage, ToolMessage])
        more = {"tool_call_id": "c"} if kind is ToolMessage else {}
        if kind is AIMessage and self.rng.random() < 0.5:
            more["tool_calls"] = [{"name": "f", "args": {"x": 1}, "id": self.text(), "type": "tool_call"}]
        return kind(content=self.text(200), id=made, **more)

    def value(self, name: str) -> Any:
        rng = self.rng
        if name == "messages":
            return [self.message() for _ in range(rng.randint(0, 6))]
        if name == "numbers":
            return [rng.choice([0, 1, True, 1.0, "x", None]) for _ in range(rng.randint(0, 50))]
        if name == "text":
            return self.text(9000)
        if name == "tree":
            return {self.text(): [{"id": self.text(), "n": rng.randint(0, 3)} for _ in range(3)], "t": [1, 2]}
        return rng.choice(
            [
                Note("x"),
                {1, 2},
                float("inf"),
                b"\0\1",
                Send("n", {"x": 1}),
                {1: 2},
                None,
                [],
                {},
                2**70,
            ]
        )

    def changed(self, name: str, old: Any) -> Any:
        """As a reducer might: appended, replaced, removed, moved, trimmed, or something else altogether."""
        rng = self.rng
        if isinstance(old, list) and old and rng.random() < 0.8:
            new, at = old.copy(), rng.randrange(len(old))
            more = self.value(name)
            how = rng.randrange(6)
            if how == 0:
                return new + (more if isinstance(more, list) else [])
            if how == 1:
                new[at] = self.message() if name == "messages" else rng.randint(0, 9)
            elif how == 2:
                del new[at]
            elif how == 3:
                rng.shuffle(new)
            elif how == 4:
                new = new[at:]
            else:
                new.insert(at, new[at - 1])
            return new
        if isinstance(old, str) and rng.random() < 0.7:
            cut = rng.randrange(len(old))
            return rng.choice([old + self.text(3000), old[:cut] + self.text() + old[cut:], old[cut:] + "x"])
        return self.value(name)

    def step(self, savers: list[BaseCheckpointSaver[Any]]) -> None:
        rng = self.rng
        parent = rng.choice(
            [*list(self.states)[-3:], *rng.sample(list(self.states), min(1, len(self.states)))] or [None]
        )
        values, versions = self.states.get(parent, ({}, {})) if parent else ({}, {})
        values, versions, new = dict(values), dict(versions), {}
        names = ["messages", "numbers", "text", "tree", "odd"]
        for name in rng.sample(names, rng.randint(0, 4)):
            self.counter += 1
            versions[name] = new[name] = self.counter
            if name in values and rng.random() < 0.15:
                del values[name]
            else:
                values[name] = self.changed(name, values.get(name))
        made = str(uuid6())
        for saver in savers:
            given = {
                name: list(value) if isinstance(value, list) else value for name, value in values.items()
            }
            put(saver, "t", parent, given, versions, new, checkpoint_id=made, step=len(self.states))
        self.states[made] = (values, versions)


def test_every_state_of_every_branch_comes_back(store: everthread.Store, seed: int) -> None:
    world = World(random.Random(seed))
    saver = EverthreadSaver(store, on_conflict="fork")
    for number in range(60):
        if number % 15 == 14:
            # Another process, which remembers nothing.
            saver = EverthreadSaver(store, on_conflict="fork")
        if number % 7 == 6:
            saver.get_tuple(config("t"))
        world.step([saver])
    for current in (saver, EverthreadSaver(store)):
        for made, (values, versions) in world.states.items():
            found = current.get_tuple(config("t", checkpoint_id=made))
            assert found is not None
            assert found.checkpoint["channel_versions"] == versions
            got = dict(found.checkpoint["channel_values"])
            assert got == values
            assert [type(each) for each in got.get("numbers", [])] == [
                type(each) for each in values.get("numbers", [])
            ]
        listed = [each.config["configurable"]["checkpoint_id"] for each in current.list(config("t"))]
        assert listed == sorted(world.states, reverse=True)


def test_pending_writes_are_those_of_the_saver_in_memory(store: everthread.Store, seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = EverthreadSaver(store), InMemorySaver()
    ids = [str(uuid6()) for _ in range(3)]
    for saver in (ours, theirs):
        for made in ids:
            put(saver, "t", None, {"a": 1}, {"a": 1}, {"a": 1}, checkpoint_id=made)
    tasks = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(3)]
    for _ in range(40):
        made, task, path = rng.choice(ids), rng.choice(tasks), rng.choice(["", "~1", "~2"])
        channels = rng.sample(
            ["a", "b", "__error__", "__interrupt__", "__resume__", "__scheduled__"], rng.randint(1, 4)
        )
        writes = [(channel, {"n": rng.randint(0, 99)}) for channel in channels]
        for each in (ours, theirs):
            each.put_writes(config("t", checkpoint_ns="", checkpoint_id=made), writes, task, path)
    for made in ids:
        at = config("t", checkpoint_ns="", checkpoint_id=made)
        mine, stock = (each.get_tuple(at).pending_writes for each in (ours, theirs))  # type: ignore[union-attr]
        # Before writes had an order that all savers keep, the one in memory gave them as they had come.
        assert sorted(mine, key=str) == sorted(stock, key=str)  # type: ignore[arg-type]
        if hasattr(checkpoint_base, "writes_sort_key"):
            assert mine == stock


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_are_only_names(store: everthread.Store, hostile: str) -> None:
    saver = EverthreadSaver(store)
    made = put(
        saver,
        hostile,
        None,
        {hostile: "x"},
        {hostile: 1},
        {hostile: 1},
        namespace=hostile,
        **{hostile: hostile},
    )
    other = put(saver, "other", None, {}, {}, {})
    saver.put_writes(
        config(hostile, checkpoint_ns=hostile, checkpoint_id=made), [(hostile, hostile)], hostile, hostile
    )
    for filter, wanted in (
        ({hostile: hostile}, [made]),
        ({hostile: None}, [other]),
        ({hostile: {"$gt": ""}}, []),
        ({"source": hostile}, []),
    ):
        assert [each.checkpoint["id"] for each in saver.list(None, filter=filter)] == wanted
    (found_one,) = saver.list(config(hostile))
    assert found_one.config["configurable"]["checkpoint_ns"] == hostile
    assert found_one.pending_writes == [(hostile, hostile, hostile)]
    saver.delete_thread(hostile)
    assert [each.checkpoint["id"] for each in saver.list(None)] == [other]


def test_names_are_unambiguous() -> None:
    pairs = [
        ("a/b", ""),
        ("a", "b"),
        ("a", "b/c"),
        ("a/b", "c"),
        ("a%2Fb", ""),
        ("a#1", ""),
        ("", "a"),
        ("a", ""),
    ]
    names = [thread_name(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    assert [parse_name(name) for name in names] == pairs
    assert thread_name("x" * 5000, "") != thread_name("x" * 5001, "")


def test_ids_that_are_too_long_or_impossible(saver: EverthreadSaver) -> None:
    long = "ü" * 3000
    made = put(saver, long, None, {"a": 1}, {"a": 1}, {"a": 1}, namespace="n" * 2000)
    (found,) = saver.list(config(long))
    assert found.config["configurable"] == {
        "thread_id": long,
        "checkpoint_ns": "n" * 2000,
        "checkpoint_id": made,
    }
    assert len(list(saver.list(None))) == 1
    saver.delete_thread(long)
    assert list(saver.list(None)) == []
    with pytest.raises(InvalidNameError):
        put(saver, "nul\0", None, {}, {}, {})
    with pytest.raises(InvalidValueError, match="thread_id"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(InvalidValueError, match="strategy"):
        saver.prune(["t"], strategy="everything")


def test_growing_channels_cost_what_is_added(tmp_path: Path) -> None:
    """Whatever the reducer: each state is whole, what is written is the change."""
    with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
        saver = EverthreadSaver(store)
        parent, versions = None, {}
        values: dict[str, Any] = {"messages": [], "plain": [], "text": "", "files": {}, "still": "x" * 50_000}
        sizes = []
        for step in range(1, 201):
            values = {
                **values,
                "messages": [*values["messages"], HumanMessage("m" * 500, id=str(step))],
                "plain": [*values["plain"], {"n": step}],
                "text": values["text"] + "t" * 100,
                "files": {**values["files"], f"file {step}": "f" * 200},
            }
            new = {name: step for name in values if name != "still" or step == 1}
            versions = {**versions, **new}
            parent = put(saver, "t", parent, values, versions, new)
            row = store.core.backend.find("", "langgraph/t")
            assert row is not None
            assert row.newest is not None
            sizes.append(len(row.newest.body))
        assert max(sizes[33:]) < 1_500
        found = EverthreadSaver(store).get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == values


class Rot(CipherProtocol):
    """Enough to see what goes through it, and different each time."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        # Never 0x5A, which would hide nothing.
        salt = bytes([random.randrange(0x5A)])
        return "rot", salt + bytes(byte ^ salt[0] ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ ciphertext[0] ^ 0x5A for byte in ciphertext[1:])


def test_an_encrypting_serializer_hides_values_and_metadata(tmp_path: Path) -> None:
    serde = EncryptedSerializer(Rot())
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        saver = EverthreadSaver(store, serde=serde)
        graph = talking(echo).compile(checkpointer=saver)
        for turn in range(3):
            state = graph.invoke(
                {"messages": [HumanMessage(f"marmalade {turn}", id=f"h{turn}")], "steps": ["marmalade"]},
                {**config("t"), "metadata": {"topic": "marmalade"}},
            )
        assert graph.get_state(config("t")).values == state
        assert len(list(saver.list(config("t"), filter={"topic": "marmalade"}))) == 9
        grown = saver.thread("t")
        assert len(grown.messages) == 6
    for path in tmp_path.iterdir():
        assert b"marmalade" not in path.read_bytes()


def test_no_pickle_unless_the_serializer_says_so(saver: EverthreadSaver, store: everthread.Store) -> None:
    class Odd:
        def __reduce__(self) -> Any:
            return (str, ("unpickled",))

    with pytest.raises(TypeError):
        put(saver, "t", None, {"odd": Odd()}, {"odd": 1}, {"odd": 1})
    assert saver.get_tuple(config("t")) is None
    made = put(saver, "t", None, {"fine": 1}, {"fine": 1}, {"fine": 1})
    assert saver.get_tuple(config("t")).checkpoint["id"] == made  # type: ignore[union-attr]
    strict = EverthreadSaver(store, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    put(strict, "s", None, {"note": Note("x")}, {"note": 1}, {"note": 1})
    assert strict.get_tuple(config("s")).checkpoint["channel_values"]["note"] != Note("x")  # type: ignore[union-attr]
    allowed = strict.with_allowlist([(Note.__module__, "Note")])
    assert allowed is not strict
    assert isinstance(allowed, EverthreadSaver)


def test_a_person_can_be_erased_from_every_checkpoint(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        saver = EverthreadSaver(store)
        person = everthread.Personal("u1", "Ada of 7 Elm Street")
        values = {"who": person, "seen": [{"by": person}, *({"n": n} for n in range(40))]}
        first = put(saver, "t", None, values, {"who": 1, "seen": 1}, {"who": 1, "seen": 1})
        grown = {**values, "seen": [*values["seen"], {"n": 41}]}  # type: ignore[misc]
        put(saver, "t", first, grown, {"who": 1, "seen": 2}, {"seen": 2})
        held = saver.get_tuple(config("t")).checkpoint["channel_values"]  # type: ignore[union-attr]
        assert held["who"].value == "Ada of 7 Elm Street"
        store.core.vault.keyring.destroy("u1")
        for at in (config("t"), config("t", checkpoint_id=first)):
            gone = saver.get_tuple(at).checkpoint["channel_values"]  # type: ignore[union-attr]
            assert not gone["who"]
            assert not gone["seen"][0]["by"]
            assert gone["seen"][1] == {"n": 0}


def test_pruning_gives_the_space_back(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process") as store:
        saver = EverthreadSaver(store)
        parent, values = None, {"blob": ""}
        for step in range(1, 150):
            values = {"blob": random.Random(step).randbytes(2_000).hex()}
            parent = put(saver, "t", parent, values, {"blob": step}, {"blob": step})
        before = store.stats().threads["langgraph/t"].bytes
        saver.prune(["t"])
        assert store.stats().threads["langgraph/t"].bytes < before / 10
        (left,) = saver.list(config("t"))
        assert left.checkpoint["channel_values"] == values
        assert saver._engine.entry("t").gone == {}  # type: ignore[union-attr]
        parent = put(saver, "t", parent, {"blob": "new"}, {"blob": 200}, {"blob": 200})
        assert next(saver.list(config("t"))).checkpoint["id"] == parent
        assert store.verify()


def test_ids_out_of_order(saver: EverthreadSaver) -> None:
    """The latest is the one with the highest id, whenever it was stored."""
    ids = sorted(str(uuid6()) for _ in range(4))
    for place in (2, 0, 3, 1):
        put(saver, "t", None, {"n": place}, {"n": 1}, {"n": 1}, checkpoint_id=ids[place])
    assert saver.get_tuple(config("t")).checkpoint["id"] == ids[3]  # type: ignore[union-attr]
    assert [each.checkpoint["id"] for each in saver.list(config("t"))] == ids[::-1]
    assert [
        each.checkpoint["id"]
        for each in saver.list(config("t"), before=config("t", checkpoint_id=ids[2]), limit=1)
    ] == [ids[1]]
    # Stored once more: the newer content counts.
    put(saver, "t", None, {"n": "again"}, {"n": 2}, {"n": 2}, checkpoint_id=ids[0])
    assert saver.get_tuple(config("t", checkpoint_id=ids[0])).checkpoint["channel_values"] == {"n": "again"}  # type: ignore[union-attr]
    assert len(list(saver.list(config("t")))) == 4


def test_text_that_is_no_unicode_is_stored_as_langgraph_does(saver: EverthreadSaver) -> None:
    put(saver, "t", None, {"a": "x\ud800", "b": ["\ud800"]}, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert saver.get_tuple(config("t")).checkpoint["channel_values"] == {"a": "x?", "b": ["?"]}  # type: ignore[union-attr]


def test_versions_of_other_savers_go_on() -> None:
    with everthread.open("memory:") as store:
        saver = EverthreadSaver(store)
        assert saver.get_next_version(None) == 1
        assert saver.get_next_version(3) == 4
        stock = InMemorySaver().get_next_version(None, None)
        assert saver.get_next_version(stock) > stock
        assert saver.get_next_version(saver.get_next_version(stock)) > saver.get_next_version(stock)
