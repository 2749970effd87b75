"""Several states on one thread: what comes together, what collides, and what a save costs."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import ConflictError, MergeConflictError, Store, WorkingState
from everthread.hooks import SessionLifecycle
from everthread.records.opening import open_backend
from everthread.store import Store as OpenStore

SOURCE = Path(everthread.__file__).parents[1]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/agent.db"
    with everthread.open(url) as opened:
        yield opened


@pytest.fixture
def pair(store: Store) -> tuple[WorkingState, WorkingState]:
    """Two states on one thread that has a todo ("t") and a context item ("k")."""
    times = itertools.count(1_700_000_000_000_000)
    first = WorkingState(store=store, thread="both", ids=lambda: "t", clock=lambda: next(times))
    first.add_todo("shared")
    first.set_context("k", 0)
    first.save()
    clock = lambda: next(times)  # noqa: E731
    return (
        WorkingState(store=store, thread="both", clock=clock),
        WorkingState(store=store, thread="both", clock=clock),
    )


def saved(store: Store) -> WorkingState:
    return WorkingState(store=store, thread="both")


def test_different_items_come_together(store: Store, pair: tuple[WorkingState, WorkingState]) -> None:
    one, two = pair
    one.add_todo("one's")
    one.set_context("one", 1)
    two.add_todo("two's")
    two.complete_todo("t")
    two.set_intention("two's")
    assert one.save() == two.save()
    found = saved(store)
    assert [todo.content for todo in found.todos] == ["shared", "one's", "two's"]
    assert found.get_todo("t").status == "completed"
    assert list(found.context) == ["k", "one"]
    assert two.todos == found.todos, "whoever saved last sees all of it"


def test_different_fields_of_one_item_come_together(
    store: Store, pair: tuple[WorkingState, WorkingState]
) -> None:
    one, two = pair
    one.complete_todo("t")
    two.update_todo("t", priority="critical")
    latest = two.get_todo("t").updated_at
    one.save()
    two.save()
    todo = saved(store).get_todo("t")
    assert (todo.status, todo.priority, todo.updated_at) == ("completed", "critical", latest)


def test_the_same_change_twice_is_no_conflict(store: Store, pair: tuple[WorkingState, WorkingState]) -> None:
    one, two = pair
    for state in pair:
        state.complete_todo("t")
        state.set_context("k", "same")
        state.set_context("new", {"a": [1]})
    first = one.get_todo("t").completed_at
    one.save()
    two.save()
    found = saved(store)
    assert found.get_todo("t").completed_at == first, "it was completed when it first was"
    assert found.get_context("new") == {"a": [1]}


Change = Callable[[WorkingState], Any]
COLLISIONS: dict[str, tuple[Change, Change]] = {
    "status": (lambda s: s.complete_todo("t"), lambda s: s.cancel_todo("t")),
    "content": (lambda s: s.update_todo("t", content="a"), lambda s: s.update_todo("t", content="b")),
    "value": (lambda s: s.set_context("k", 1), lambda s: s.set_context("k", 2)),
    "new key": (lambda s: s.set_context("n", 1), lambda s: s.set_context("n", 2)),
    "list inside": (lambda s: s.set_context("k", [1, 2]), lambda s: s.set_context("k", [3])),
    "gone and changed": (lambda s: s.remove_todo("t"), lambda s: s.start_todo("t")),
    "changed and gone": (lambda s: s.start_todo("t"), lambda s: s.remove_todo("t")),
}


@pytest.mark.parametrize("kind", COLLISIONS)
def test_what_both_changed_is_a_conflict(
    store: Store, pair: tuple[WorkingState, WorkingState], kind: str
) -> None:
    one, two = pair
    COLLISIONS[kind][0](one)
    COLLISIONS[kind][1](two)
    two.add_todo("two's")
    one.save()
    mine = two.snapshot()
    with pytest.raises(ConflictError) as raised:
        two.save()
    assert isinstance(raised.value, MergeConflictError)
    assert raised.value.conflicts
    assert raised.value.expected.seq == 1
    assert raised.value.actual.seq == 2
    assert two.snapshot() == mine, "nothing of it is lost"
    assert two.status == "DIRTY"
    assert saved(store).snapshot() == one.snapshot(), "nor was anything written"
    two.reload()
    assert two.snapshot() == one.snapshot()


@pytest.mark.parametrize("kind", COLLISIONS)
@pytest.mark.parametrize("resolve", ["ours", "theirs"])
def test_resolving(store: Store, pair: tuple[WorkingState, WorkingState], kind: str, resolve: str) -> None:
    one, two = pair
    COLLISIONS[kind][0](one)
    COLLISIONS[kind][1](two)
    winner = (two if resolve == "ours" else one).snapshot()
    extra = two.add_todo("two's")
    one.save()
    two.save(resolve=resolve)
    found = saved(store)
    assert extra in found.todos, "what doesn't collide is kept in any case"
    found.remove_todo(extra)
    assert essence(found.snapshot()) == essence(winner)


def essence(snapshot: dict[str, Any]) -> Any:
    times = ("created_at", "updated_at", "completed_at")
    todos = [{name: value for name, value in todo.items() if name not in times} for todo in snapshot["todos"]]
    return todos, {key: item["value"] for key, item in snapshot["context"].items()}


def test_messages_come_together_too(store: Store, pair: tuple[WorkingState, WorkingState]) -> None:
    one, two = pair
    for state, name in ((one, "one"), (two, "two")):
        state.thread.messages.append({"role": "user", "content": name})
        state.add_todo(name)
        state.save()
    found = saved(store)
    assert [message["content"] for message in found.thread.messages] == ["one", "two"]
    assert len(found.todos) == 3


def test_a_conflict_outside_the_state_is_not_settled(
    store: Store, pair: tuple[WorkingState, WorkingState]
) -> None:
    one, two = pair
    one.thread.state["mine"] = 1
    two.thread.state["mine"] = 2
    one.save()
    with pytest.raises(ConflictError):
        two.save(resolve="ours")
    with pytest.raises(everthread.InvalidValueError):
        two.save(resolve="somehow")


def test_both_create_the_thread(store: Store) -> None:
    one, two = (WorkingState(store=store, thread="new") for _ in range(2))
    one.add_todo("one's")
    two.add_todo("two's")
    assert one.save() == two.save()
    assert len(WorkingState(store=store, thread="new").todos) == 2


def test_a_deleted_thread_is_not_brought_back(store: Store, pair: tuple[WorkingState, WorkingState]) -> None:
    one, two = pair
    one.thread.delete()
    two.add_todo("x")
    with pytest.raises(everthread.ThreadDeletedError):
        two.save()
    with pytest.raises(everthread.StateNotFoundError):
        WorkingState.load(two.id, store=store)


def test_random_writers_lose_nothing(store: Store, seed: int) -> None:
    """Three states on one thread, random changes and saves; every todo that was saved is there in the end."""
    rng = random.Random(seed)
    states = [WorkingState(store=store, thread="many") for _ in range(3)]
    unsaved: dict[int, set[str]] = {number: set() for number in range(3)}
    acknowledged: set[str] = set()
    for step in range(120):
        number = rng.randrange(3)
        state = states[number]
        if rng.random() < 0.6:
            unsaved[number].add(state.add_todo(f"{number}.{step}").id)
            state.set_context(f"of {number}", step)
        else:
            state.save()
            acknowledged |= unsaved[number]
            unsaved[number].clear()
    for state in states:
        state.save()
    found = {todo.id for todo in WorkingState(store=store, thread="many").todos}
    assert acknowledged <= found
    assert found == acknowledged.union(*unsaved.values())


@pytest.mark.parametrize("auto_save", [True, False])
def test_threads_share_one_object(store: Store, auto_save: bool) -> None:
    told: list[int] = []
    hooks = SessionLifecycle()
    hooks.register("on_save", lambda state: told.append(threading.get_ident()))
    state = WorkingState(store=store, auto_save=auto_save, hooks=hooks)
    failures: list[BaseException] = []
    # All of them at once, and none that ends before another begins: its number would be given again.
    together = threading.Barrier(4, timeout=60)

    def work(name: int) -> None:
        try:
            together.wait()
            for step in range(25):
                todo = state.add_todo(f"{name}.{step}")
                state.set_context(f"of {name}", step)
                state.complete_todo(todo)
                assert state.get_context(f"of {name}") == step
                assert len(state.todos) > step
                if step % 5 == 4:
                    state.save()
            together.wait()
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    state.save()
    found = WorkingState.load(state.id, store=store)
    assert len(found.todos) == 100
    assert all(todo.status == "completed" for todo in found.todos)
    if auto_save:
        assert len(set(told)) == 4


WRITER = """
import sys
from everthread import WorkingState
number, url = sys.argv[1], sys.argv[2]
state = WorkingState(store=url, thread="shared", auto_save=True)
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[3])):
    todo = state.add_todo(f"{number}.{step}")
    state.complete_todo(todo)
    print(todo.id, flush=True)
"""


def start(number: int, url: str, steps: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(number), url, str(steps)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_on_one_thread_lose_nothing(tmp_path: Path) -> None:
    """Three of them add and complete todos on one state; one is killed at some point."""
    url = f"sqlite:///{tmp_path}/agent.db"
    writers = [start(number, url, 12) for number in range(3)]
    for writer in writers:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]
    victim = writers[0]
    told = [victim.stdout.readline().strip() for _ in range(5)]  # type: ignore[union-attr]
    victim.send_signal(signal.SIGKILL)
    # Not communicate(): it knows nothing of lines that were read ahead.
    told += victim.stdout.read().split()  # type: ignore[union-attr]
    victim.communicate()
    for writer in writers[1:]:
        told += writer.communicate()[0].split()
        assert writer.returncode == 0
    # The victim may have been killed while it wrote a line.
    acknowledged = {id for id in told if len(id) == 12}
    with everthread.open(url) as store:
        state = WorkingState(store=store, thread="shared")
        by_id = {todo.id: todo for todo in state.todos}
        assert acknowledged <= by_id.keys()
        assert all(by_id[id].status == "completed" for id in acknowledged)
        assert len(by_id) - len(acknowledged) <= 1
        assert store.verify().ok


# ── a store that fails ───────────────────────────────────────────────────────────────────────


class Failing:
    """A store that fails once, at the n-th thing that is asked of it, before doing it or after."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.fail_at, self.after = 0, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def failing(*args: Any, **kw: Any) -> Any:
            self.fail_at -= 1
            if self.fail_at == 0 and not self.after:
                raise everthread.StorageWriteError(f"before {name}")
            result = found(*args, **kw)
            if self.fail_at == 0:
                raise everthread.StorageWriteError(f"after {name}")
            return result

        return failing


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("resolve", [None, "ours", "theirs"])
def test_a_failure_at_any_point_of_a_save_loses_nothing(after: bool, resolve: str | None) -> None:
    """Also while the changes of two are brought together: save again, and both are there."""
    failures = 0
    for fail_at in range(1, 40):
        backend = Failing(open_backend("memory:", "full"))
        with OpenStore(backend) as store:
            first = WorkingState(store=store, thread="both", ids=lambda: "t")
            first.add_todo("shared")
            first.set_context("k", 0)
            first.save()
            one, two = (WorkingState(store=store, thread="both") for _ in range(2))
            one.complete_todo("t")
            one.add_todo("one's")
            two.complete_todo("t")
            two.add_todo("two's")
            if resolve:
                one.set_context("k", 1)
                two.set_context("k", 2)
            one.save()
            backend.fail_at, backend.after = fail_at, after
            try:
                two.save(resolve=resolve)
            except everthread.StorageWriteError:
                failures += 1
                assert two.get_todo("t").status == "completed"
                assert "two's" in [todo.content for todo in two.todos]
                if resolve != "theirs":
                    assert two.get_context("k") == (2 if resolve else 0)
            backend.fail_at = 0
            two.save(resolve=resolve)
            found = saved(store)
            assert [todo.content for todo in found.todos] == ["shared", "one's", "two's"]
            assert found.get_todo("t").status == "completed"
            assert found.get_context("k") == {None: 0, "ours": 2, "theirs": 1}[resolve]
            assert store.verify().ok
    assert failures >= 3


# ── what a save costs ────────────────────────────────────────────────────────────────────────


class Counting:
    """A store that counts what is asked of it, and the bytes of the rows that it is to write."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def counted(*args: Any, **kw: Any) -> Any:
            self.calls[name] += 1
            for arg in (*args, *kw.values()):
                self.bytes += len(getattr(arg, "body", b""))
            return found(*args, **kw)

        return counted

    def reset(self) -> None:
        self.calls.clear()
        self.bytes = 0


def cost_of_one_more_todo(backend: Counting, state: WorkingState) -> tuple[int, dict[str, int]]:
    """The most bytes of a save among several, and what was asked of the store for all of them."""
    most, calls = 0, Counter[str]()
    for _ in range(5):
        backend.reset()
        state.add_todo("one more todo, as long as they usually are", priority="high")
        state.save()
        most = max(most, backend.bytes)
        calls += backend.calls
    return most, dict(calls)


def test_a_save_costs_the_same_however_large_the_state_is(tmp_path: Path) -> None:
    backend = Counting(open_backend(f"sqlite:///{tmp_path}/agent.db", "process"))
    with OpenStore(backend) as store:
        empty = WorkingState(store=store, thread="empty")
        empty.save()
        small = cost_of_one_more_todo(backend, empty)

        large = WorkingState(store=store, thread="large")
        for number in range(10_000):
            large.add_todo(f"todo {number}")
        messages = large.thread.messages
        for start in range(0, 50_000, 5_000):
            messages.extend(
                {"id": f"m{n}", "role": "user", "content": "x"} for n in range(start, start + 5_000)
            )
            large.save()
        cost_of_one_more_todo(backend, large)
        # Read anew, as after a restart.
        again = WorkingState(store=store, thread="large")
        assert len(again.todos) == 10_005
        # The first save of an object says once more that the thread is a state.
        again.save("opened")
        big = cost_of_one_more_todo(backend, again)
        assert big[1] == small[1] == {"append": 5}, "one row, and nothing is read"
        assert big[0] <= small[0] + 8
        backend.reset()
        again.complete_todo(again.todos[5_000])
        again.save()
        assert backend.bytes < 400
