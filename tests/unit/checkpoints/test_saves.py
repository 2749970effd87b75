"""Saving over a store: what it costs, who else is there, and what is refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everthread
from everthread import Checkpointable, CheckpointManager, Erased, Personal, StoreUnavailableError
from everthread.keyring.keyring import open_keyring

SOURCE = Path(everthread.__file__).parents[1]


class Agent(Checkpointable):
    def __init__(self) -> None:
        self.step = 0
        self.messages: list[Any] = []


class Metered:
    """Counts the bytes and the sealed values that a store is given to write."""

    def __init__(self, store: Any) -> None:
        self._backend = store.core.backend
        self.bytes = self.sealed = self.rows = 0
        store.core.backend = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def append(self, line: int, row: Any) -> Any:
        self._note(row)
        return self._backend.append(line, row)

    def create(self, line: Any, row: Any, *rest: Any) -> Any:
        self._note(row)
        return self._backend.create(line, row, *rest)

    def _note(self, row: Any) -> None:
        self.rows += 1
        self.bytes += len(row.body) + sum(len(chunk.data) for chunk in row.chunks)
        self.sealed += len(row.sealed)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[everthread.Store]:
    with everthread.open(f"sqlite:///{tmp_path}/agent.db", durability="process") as opened:
        yield opened
        assert opened.verify().ok


def test_a_save_writes_what_changed(store: everthread.Store) -> None:
    agent = Agent()
    agent.messages = [{"content": f"{n} " + "x" * 1000, "tags": ["a", {"n": n}]} for n in range(1000)]
    agent.index = {f"k{n}": {"n": n} for n in range(1000)}  # type: ignore[attr-defined]
    warm = CheckpointManager(store)
    warm.save("k", agent)
    meter = Metered(store)
    # A second manager has nothing to compare with but what is in the store.
    for manager in (warm, CheckpointManager(store), warm):
        for _ in range(3):
            start = meter.bytes
            agent.messages.append({"content": "y" * 100})
            agent.messages[500]["tags"].append("late")
            agent.index["k7"]["n"] += 1  # type: ignore[attr-defined]
            agent.step += 1
            manager.save("k", agent)
            assert meter.bytes - start < 500
        assert vars(manager.load("k", Agent())) == vars(agent)
    start = meter.bytes
    del agent.messages[300]
    agent.messages.insert(0, "first")
    warm.save("k", agent)
    assert meter.bytes - start < 500
    assert vars(warm.load("k", Agent())) == vars(agent)


def test_a_save_without_a_change_is_a_checkpoint_too(store: everthread.Store) -> None:
    manager, agent = CheckpointManager(store), Agent()
    assert len({manager.save("k", agent) for _ in range(3)}) == 3
    assert len(manager.history("k")) == 3


def test_personal_values_are_sealed_once(store: everthread.Store, tmp_path: Path) -> None:
    manager, agent = CheckpointManager(store), Agent()
    meter = Metered(store)
    agent.mail = Personal("ann", "ann@example.org")  # type: ignore[attr-defined]
    agent.pair = (1, {"phone": Personal("ann", "12345")})  # type: ignore[attr-defined]
    for n in range(5):
        agent.messages.append({"content": Personal("ann", f"secret {n}")})
        manager.save("k", agent)
    assert meter.sealed == 2 + 5
    loaded = manager.load("k", Agent())
    assert [message["content"].value for message in loaded.messages] == [f"secret {n}" for n in range(5)]
    assert loaded.mail.value == "ann@example.org"  # type: ignore[attr-defined]
    assert loaded.pair[1]["phone"].value == "12345"  # type: ignore[attr-defined]
    # What was loaded keeps its seal when it is saved again, by whomever.
    loaded.step = 9
    CheckpointManager(store).save("k", loaded)
    assert meter.sealed == 2 + 5
    assert b"ann@example.org" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(everthread.InvalidValueError, match="Personal is not pickled"):
        CheckpointManager(store, fmt="pickle").save("k", agent)


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["a", "b", "__class__", "dict", "id"]),
                st.integers(0, 2),
                st.booleans(),
                st.tuples(st.integers(0, 2)),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
states = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "messages"]), values, max_size=4), min_size=2, max_size=5
)


class Bag(Checkpointable):
    pass


@settings(max_examples=150)
@given(states)
def test_every_checkpoint_comes_back_exactly(saved: list[dict[str, Any]]) -> None:
    with everthread.open("memory:") as store:
        managers = [CheckpointManager(store), CheckpointManager(store)]
        ids = []
        for n, fields in enumerate(saved):
            bag = Bag()
            vars(bag).update(fields)
            # One of them has seen the last save, the other one hasn't.
            ids.append(managers[n // 2 % 2].save("k", bag))
        for checkpoint_id, fields in zip(ids, saved, strict=True):
            loaded = managers[0].load("k", Bag(), checkpoint_id=checkpoint_id)
            assert {n: repr_of(v) for n, v in vars(loaded).items()} == {
                n: repr_of(v) for n, v in fields.items()
            }


def repr_of(value: Any) -> Any:
    """As ``repr``, but the order of keys doesn't count."""
    if isinstance(value, dict):
        return sorted((repr(key), repr(repr_of(item))) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value), [repr_of(item) for item in value]
    return repr(value)


def test_who_was_erased_stays_erased(store: everthread.Store) -> None:
    manager, agent = CheckpointManager(store), Agent()
    agent.mail = Personal("ann", "ann@example.org")  # type: ignore[attr-defined]
    agent.other = Personal("bob", "bob@example.org")  # type: ignore[attr-defined]
    manager.save("k", agent)
    open_keyring(None).destroy("ann")
    # The object still has the value in memory. Nothing of it is written again.
    agent.step = 1
    manager.save("k", agent)
    for by in (manager, CheckpointManager(store)):
        loaded = by.load("k", Agent())
        assert (loaded.step, loaded.mail, loaded.other.value) == (1, Erased(), "bob@example.org")  # type: ignore[attr-defined]
        loaded.messages.append("on")
        by.save("k", loaded)
    agent.copy = [agent.mail]  # type: ignore[attr-defined]
    agent.mail = None  # type: ignore[attr-defined]
    manager.save("k", agent)  # a person who returns gets a new key
    assert manager.load("k", Agent()).copy[0].value == "ann@example.org"  # type: ignore[attr-defined]


def test_many_threads_share_a_manager(store: everthread.Store) -> None:
    manager = CheckpointManager(store)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            agent = Agent()
            for n in range(20):
                agent.step, agent.messages = number, [number] * n
                manager.save("shared", agent)
                loaded = manager.load("shared", Agent())
                assert set(loaded.messages) <= {loaded.step}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(manager.history("shared", n=None)) == 80


def test_a_forked_child_is_told_to_open_its_own_store(tmp_path: Path) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/agent.db") as manager:
        agent = Agent()
        manager.save("k", agent)
        child = os.fork()
        if child == 0:
            status = 2
            try:
                manager.save("k", agent)
            except StoreUnavailableError as error:
                status = int("open the store again" not in str(error))
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        agent.step = 2
        manager.save("k", agent)
        assert manager.load("k", Agent()).step == 2
        assert [entry["id"].split("-")[0] for entry in manager.history("k")] == ["2", "1"]


def test_only_so_much_is_remembered(store: everthread.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.checkpoints.saves._BYTES_MAX", 5_000)
    manager = CheckpointManager(store)
    for n in range(10):
        agent = Agent()
        agent.messages = ["x" * 1000, n]
        manager.save(f"k{n}", agent)
    assert sum(line.size for line in manager._open_keys.values()) < 6_500
    agent.messages = ["y" * 100_000]
    manager.save("big", agent)
    manager.save("small", Agent())
    assert list(manager._open_keys) == ["small"]
    assert [len(manager.load(f"k{n}", Agent()).messages) for n in range(10)] == [2] * 10


def test_a_deleted_key_begins_anew(store: everthread.Store) -> None:
    manager, agent = CheckpointManager(store), Agent()
    manager.save("k", agent)
    store.thread("checkpoint:k").delete()
    assert manager.list_keys() == []
    agent.step = 3
    manager.save("k", agent)
    assert manager.load("k", Agent()).step == 3
    assert len(manager.history("k")) == 1


def test_a_thread_that_is_no_checkpoint_is_left_alone(store: everthread.Store) -> None:
    manager = CheckpointManager(store)
    thread = store.thread("checkpoint:mine")
    thread.state["mine"] = True
    thread.commit()
    with pytest.raises(everthread.InvalidStateError, match="left as it is"):
        manager.save("mine", Agent())
    with pytest.raises(everthread.InvalidStateError, match="left as it is"):
        manager.load("mine", Agent())
    assert store.thread("checkpoint:mine").state == {"mine": True}
    manager.save("newer", Agent())
    thread = store.thread("checkpoint:newer")
    thread.state["checkpoint"] = 2
    thread.commit()
    with pytest.raises(everthread.SchemaVersionError):
        manager.save("newer", Agent())
    with pytest.raises(everthread.SchemaVersionError):
        manager.load("newer", Agent())


def test_keys_are_any_names(store: everthread.Store) -> None:
    manager = CheckpointManager(store)
    keys = ["k" * 1024, "é" * 512, "#odd", "checkpoint:x", "\n", "%_*?[a]", "'; drop table threads"]
    for number, key in enumerate(keys):
        agent = Agent()
        agent.step = number
        manager.save(key, agent)
    assert manager.list_keys() == sorted(keys)
    for number, key in enumerate(keys):
        assert manager.load(key, Agent()).step == number
    stranger = store.thread("checkpoint:#stranger")
    stranger.state["key"] = "k"
    stranger.commit()
    assert manager.list_keys() == sorted(keys)
    for bad in ("", "a\0b", "k" * 1025, "\ud800", 5):
        with pytest.raises(everthread.InvalidNameError):
            manager.save(bad, Agent())  # type: ignore[arg-type]


def test_forks_and_rewinds_of_the_thread_are_checkpoints(store: everthread.Store) -> None:
    manager, agent = CheckpointManager(store), Agent()
    first = manager.save("k", agent)
    agent.step = 1
    manager.save("k", agent)
    store.thread("checkpoint:k").fork("checkpoint:other", at=first)
    store.thread("checkpoint:k").rewind(first)
    assert manager.list_keys() == ["k", "other"]
    assert manager.load("k", Agent()).step == manager.load("other", Agent()).step == 0
    agent.step = 2
    manager.save("k", agent)
    assert manager.load("k", Agent()).step == 2


@dataclasses.dataclass
class Passing:
    x: int


def test_a_class_that_is_not_registered_where_it_is_loaded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    everthread.register(Passing, tag="tests.checkpoints.Passing")
    with CheckpointManager(url) as manager:
        agent = Agent()
        agent.messages = [Passing(1)]
        manager.save("k", agent)
    code = """
import sys, everthread
class Agent(everthread.Checkpointable):
    def __init__(self): self.step, self.messages = 5, ["own"]
agent = Agent()
with everthread.CheckpointManager(sys.argv[1]) as manager:
    try:
        manager.load("k", agent)
    except everthread.InvalidStateError as error:
        print(vars(agent), "register" in str(error))
"""
    assert run(code, url) == "{'step': 5, 'messages': ['own']} True\n"


def test_numpy_is_used_only_where_it_is_imported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    with CheckpointManager(url) as manager:
        agent = Agent()
        manager.save("plain", agent)
        agent.messages = [np.arange(3)]
        manager.save("array", agent)
    code = """
import sys, everthread
class Agent(everthread.Checkpointable):
    pass
with everthread.CheckpointManager(sys.argv[1]) as manager:
    agent = manager.load("plain", Agent())
    manager.save("plain", agent)
    try:
        manager.load("array", Agent())
    except everthread.InvalidStateError as error:
        print("import numpy" in str(error), "numpy" in sys.modules, "pickle" in sys.modules)
    import numpy
    print(manager.load("array", Agent()).messages)
"""
    assert run(code, url) == "True False False\n[array([0, 1, 2])]\n"


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_can_not_be_stored_names_its_place(store: everthread.Store) -> None:
    manager, agent = CheckpointManager(store), Agent()
    agent.messages = [{"a": [object()]}]
    with pytest.raises(everthread.InvalidValueError) as caught:
        manager.save("k", agent)
    assert caught.value.path == "Agent.messages[0].a[0]"
    assert manager.list_keys() == []
    agent.messages = []
    manager.save("k", agent)
    agent.messages = [threading.Lock()]
    with pytest.raises(everthread.InvalidValueError) as caught:
        manager.save("k", agent)
    assert caught.value.path == "Agent.messages"
    assert len(manager.history("k")) == 1


def test_wrong_calls_say_what_is_right(tmp_path: Path, store: everthread.Store) -> None:
    with pytest.raises(everthread.UsageError, match="path=…"):
        CheckpointManager("file")
    with pytest.raises(everthread.UsageError, match="path=…"):
        CheckpointManager("memory", path=tmp_path)
    with pytest.raises(everthread.InvalidValueError, match="fmt"):
        CheckpointManager("memory", fmt="yaml")  # type: ignore[arg-type]
    with pytest.raises(everthread.UnsupportedError):
        CheckpointManager("sqlite")
    with pytest.raises(everthread.UsageError, match=r"everthread\.open"):
        CheckpointManager(5)  # type: ignore[arg-type]
    manager = CheckpointManager(store)
    with pytest.raises(everthread.UsageError, match="Checkpointable"):
        manager.save("k", object())  # type: ignore[arg-type]
    with pytest.raises(everthread.UsageError, match="Checkpointable"):
        manager.load("k", {})  # type: ignore[type-var]
    with pytest.raises(everthread.UsageError, match="Checkpointable"):
        manager.rollback_context("k", {})  # type: ignore[type-var]
    with pytest.raises(everthread.UsageError, match="checkpoint_id_a"):
        manager.diff("k")
    with pytest.raises(everthread.InvalidValueError, match="negative"):
        manager.history("k", n=-1)


def test_an_override_may_leave_out_class_and_version(store: everthread.Store) -> None:
    class Custom(Checkpointable):
        def __init__(self) -> None:
            self.n = 0

        def state_dict(self) -> dict[str, Any]:
            return {"number": self.n}

        def load_state_dict(self, state: Any) -> None:
            self.n = state["number"]

    manager, custom = CheckpointManager(store), Custom()
    custom.n = 4
    manager.save("k", custom)
    assert manager.load("k", Custom()).n == 4
