"""Projections and consumers: saved positions, and reading only what is new."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Event
from everthread.errors import (
    InvalidNameError,
    InvalidStateError,
    InvalidValueError,
    StateCorruptedError,
)
from everthread.events.aio import projection as projection_module_async
from everthread.events.saved import cell_name
from everthread.events.sync import projection as projection_module
from everthread.testing.driver import open_driven

Opening = Callable[..., everthread.Store]


@pytest.fixture(params=["memory:", "sqlite", "memory: async", "sqlite async"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[everthread.Store]:
    url = "memory:" if request.param.startswith("memory:") else f"sqlite:///{tmp_path}/any.db"
    open_ = open_driven if request.param.endswith("async") else everthread.open
    with open_(url, durability="process", keyring="memory:") as opened:
        yield opened


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    stores = []

    def open_(**options: Any) -> everthread.Store:
        url = f"sqlite:///{tmp_path}/store.db"
        stores.append(everthread.open(url, **{"durability": "process", "keyring": "memory:", **options}))
        return stores[-1]

    yield open_
    for each in stores:
        each.close()


class Counting:
    """Counts events by type, and notes which ones it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, state: dict[str, int], event: Event) -> dict[str, int]:
        self.seen.append(event.seq)
        state[event.type] = state.get(event.type, 0) + 1
        return state


def _listed(state: list[Any], event: Event) -> list[Any]:
    return [*state, event.data]


# ── project ──────────────────────────────────────────────────────────────────────────────────────


def test_project_goes_through_everything(store: everthread.Store) -> None:
    events = store.events("s")
    assert events.project(Counting()) == {}
    events.extend([("a", 1), ("b", 2), ("a", 3)])
    assert events.project(Counting()) == {"a": 2, "b": 1}
    initial = {"a": 10}
    assert (
        events.project(Counting(), initial)
        == events.project(Counting(), initial=initial)
        == {"a": 12, "b": 1}
    )
    assert initial == {"a": 10}, "the caller's own is left alone"
    assert events.project(_listed, []) == [1, 2, 3]
    with pytest.raises(InvalidValueError, match="returned None for event 1"):
        events.project(lambda state, event: state.update(x=1))


# ── projections ──────────────────────────────────────────────────────────────────────────────────


def test_a_projection_goes_on_where_it_was(store: everthread.Store) -> None:
    events = store.events("s")
    counting = Counting()
    empty = events.projection("p", counting)
    assert (empty.state, empty.position) == ({}, 0)
    events.extend([("a", 1), ("b", 2)])
    first = events.projection("p", counting)
    assert (first.state, first.position, counting.seen) == ({"a": 1, "b": 1}, 2, [1, 2])
    events.append("a")
    second = store.events("s").projection("p", counting)
    assert (second.state, second.position, counting.seen) == ({"a": 2, "b": 1}, 3, [1, 2, 3])
    assert first.state == {"a": 1, "b": 1}
    assert first.refresh() == second.state
    assert second.refresh() == second.state
    assert counting.seen == [1, 2, 3, 3]
    other = Counting()
    assert events.projection("q", other).state == second.state
    assert other.seen == [1, 2, 3], "each name has its own"


def test_another_version_starts_anew(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("a", 1)] * 5)
    old, new = Counting(), Counting()
    events.projection("p", old)
    assert events.projection("p", new, version=2).state == {"a": 5}
    assert new.seen == [1, 2, 3, 4, 5]
    events.append("a")
    events.projection("p", new, 2)
    assert new.seen == [1, 2, 3, 4, 5, 6]
    # Old code may still run somewhere; it must not undo the work of the new.
    events.projection("p", old)
    events.append("a")
    events.projection("p", old)
    events.projection("p", new, version=2)
    assert new.seen == [1, 2, 3, 4, 5, 6, 7]
    assert old.seen == [1, 2, 3, 4, 5, *range(1, 7), 7]
    backend = store.core.backend
    assert len(backend.cells("", "events/", None, 9)) == 2
    events.projection("p", Counting(), version=3)
    assert len(backend.cells("", "events/", None, 9)) == 1, "what older versions kept is gone"


def test_what_cant_be_a_projection_is_refused(store: everthread.Store) -> None:
    events = store.events("s")
    events.append("a")
    for name in ("", None, "a\0b"):
        with pytest.raises(InvalidNameError):
            events.projection(name, Counting())  # type: ignore[arg-type]
    for version in (-1, "1", None, True):
        with pytest.raises(InvalidValueError, match="version"):
            events.projection("p", Counting(), version=version)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError) as caught:
        events.projection("p", lambda state, event: {"x": object()})
    assert caught.value.path == "state.x"
    with pytest.raises(InvalidValueError, match="personal"):
        events.projection("p", lambda state, event: {"x": everthread.Personal("ann", 1)})


def test_states_of_every_kind(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("a", number) for number in range(4)])
    assert events.projection("list", _listed, initial=[]).state == [0, 1, 2, 3]
    events.append("a", 4)
    assert events.projection("list", _listed).state == [0, 1, 2, 3, 4]
    as_set = events.projection("set", lambda state, event: state | {event.data}, initial=set())
    assert as_set.refresh() == {0, 1, 2, 3, 4}
    assert events.projection("sum", lambda state, event: state + event.data, initial=0).state == 10
    assert events.projection("sum", lambda state, event: state + event.data, initial=0).state == 10


def test_a_projector_that_raises_spoils_nothing(
    store: everthread.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (projection_module, projection_module_async):
        monkeypatch.setattr(module, "_SAVE_EVENTS", 3)
    events = store.events("s")
    counting = Counting()
    events.extend([("a", 0)] * 2)
    failing = False

    def half(state: dict[str, int], event: Event) -> dict[str, int]:
        counting(state, event)
        if failing and event.seq == 7:
            raise ZeroDivisionError
        return state

    projection = events.projection("p", half)
    events.extend([("a", 0)] * 6)
    failing = True
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            projection.refresh()
        with pytest.raises(InvalidStateError, match="refresh"):
            _ = projection.state
    assert counting.seen == [1, 2, 3, 4, 5, 6, 7, 6, 7], "what was saved on the way is kept"
    failing = False
    assert projection.refresh() == {"a": 8}
    assert projection.state == {"a": 8}


def test_a_deleted_stream_begins_its_projections_anew(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("old", 0)] * 3)
    held = events.projection("p", Counting())
    slow = events.projection("q", Counting())
    events.delete()
    assert store.core.backend.cells("", "events/projection/", None, 9) == []
    assert events.projection("p", Counting()).state == {}
    # One that a slow process saves after the deletion, of what it had read before.
    slow._save()
    events.append("new")
    assert events.projection("p", Counting()).state == {"new": 1}
    assert held.refresh() == {"new": 1}
    assert events.projection("q", Counting()).state == {"new": 1}


def test_a_damaged_projection_is_made_again(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("a", 0)] * 3)
    events.projection("p", Counting())
    backend = store.core.backend
    name = cell_name("projection", "s", "p", "1")
    good = backend.cell("", name, 0)
    assert good is not None
    for bad in (b"", b"nonsense", good.value[:-1], good.value[:9] + b"\xff" + good.value[10:]):
        backend.swap("", name, backend.cell("", name, 0).revision, bad, 0)  # type: ignore[union-attr]
        counting = Counting()
        assert events.projection("p", counting).state == {"a": 3}
        assert counting.seen == [1, 2, 3]
        assert events.projection("p", counting).state == {"a": 3}
        assert counting.seen == [1, 2, 3], "saved again"


def test_several_at_once_agree(store: everthread.Store) -> None:
    events = store.events("s")
    problems: list[BaseException] = []
    written = threading.Event()

    def follow() -> None:
        try:
            last = False
            while not last:
                last = written.is_set()
                state = events.projection("p", Counting()).state
            assert state == {"a": 60}
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            events.append("a")
    finally:
        written.set()
        for thread in threads:
            thread.join()
    assert problems == []
    counting = Counting()
    assert events.projection("p", counting).state == {"a": 60}
    assert counting.seen == []


def test_a_projection_keeps_seals_and_forgets_the_erased(store: everthread.Store) -> None:
    events = store.events("s")
    events.append("a", {"who": everthread.Personal("ann", "Ann")})
    events.append("b", {"who": everthread.Personal("bob", "Bob")})

    def names(state: dict[str, Any], event: Event) -> dict[str, Any]:
        return {**state, event.type: event.data.get("who")}

    assert events.projection("names", names).state["a"].value == "Ann"
    again = events.projection("names", names)
    assert again.state["a"].value == "Ann"
    cell = store.core.backend.cell("", cell_name("projection", "s", "names", "1"), 0)
    assert cell is not None
    assert b"Ann" not in cell.value
    store.core.vault.keyring.destroy("ann")
    events.append("c", {})
    # What was read before the erasure can't be stored again: it isn't saved, and nothing fails.
    assert again.refresh()["c"] is None
    after = events.projection("names", names).state
    assert (after["a"], after["b"].value) == (everthread.Erased(), "Bob")


# ── consumers ────────────────────────────────────────────────────────────────────────────────────


def test_a_consumer_gets_each_event_at_least_once(opening: Opening) -> None:
    store = opening()
    events = store.events("s")
    consumer = events.consumer("c")
    assert (consumer.poll(), consumer.position()) == ([], 0)
    events.extend([("a", number) for number in range(250)])
    assert [event.seq for event in consumer.poll()] == list(range(1, 101))
    assert [event.seq for event in consumer.poll(3)] == [1, 2, 3], "again, until one is committed"
    consumer.commit(consumer.poll(2)[-1])
    assert [event.seq for event in consumer.poll(2)] == [3, 4]
    consumer.ack(2)
    consumer.commit(1)
    assert consumer.position() == 2, "never back"
    store.close()
    later = opening().events("s").consumer("c")
    assert [event.seq for event in later.poll(limit=1)] == [3], "also after a restart"
    later.commit(120)
    later.seek(0)
    assert [event.seq for event in later.poll(1)] == [1]
    assert opening().events("s").consumer("other").position() == 0
    for wrong in (251, -1, None, "3", True):
        with pytest.raises(InvalidValueError):
            later.commit(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError):
            later.seek(wrong)  # type: ignore[arg-type]


def test_workers_under_one_name_never_move_back(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("a", number) for number in range(40)])
    problems: list[BaseException] = []

    def work(start: int) -> None:
        try:
            consumer = events.consumer("c")
            for seq in range(start, 41, 4):
                consumer.commit(seq)
                assert consumer.position() >= seq
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert events.consumer("c").position() == 40


def test_a_damaged_position_is_told_and_can_be_set(store: everthread.Store) -> None:
    events = store.events("s")
    events.extend([("a", number) for number in range(5)])
    consumer = events.consumer("c")
    consumer.commit(2)
    backend = store.core.backend
    name = cell_name("consumer", "s", "c")
    backend.swap("", name, backend.cell("", name, 0).revision, b"nonsense", 0)  # type: ignore[union-attr]
    with pytest.raises(StateCorruptedError, match="seek"):
        consumer.poll()
    consumer.seek(2)
    assert [event.seq for event in consumer.poll()] == [3, 4, 5]


def test_names_of_cells_never_collide() -> None:
    parts = ["a", "a/b", "1:a", "a/1:b", "/", ":", "2:a/"]
    names = [cell_name("k", one, two) for one in parts for two in parts]
    assert len(set(names)) == len(names)
    for one in parts:
        others = {cell_name("k", other, "x") for other in parts if other != one}
        assert not [name for name in others if name.startswith(cell_name("k", one) + "/")]


# ── how much is read ─────────────────────────────────────────────────────────────────────────────


class Rows:
    """Counts the rows that SQLite hands out."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.row_trace = self._row

    def _row(self, cursor: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        self.count += 1
        return row


def test_only_new_events_are_read(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    apsw.connection_hooks.append(rows.watch)
    try:
        counts = []
        for size in (100, 50_000):
            store = opening()
            events = store.events(f"s{size}")
            for _ in range(size // 10_000 or 1):
                events.extend([("a", 1)] * min(size, 10_000))
            assert events.projection("p", Counting()).state == {"a": size}
            consumer = events.consumer("c")
            consumer.commit(size)
            store.close()
            events = opening().events(f"s{size}")
            events.extend([("b", 2)] * 3)
            before = rows.count
            assert events.projection("p", Counting()).state == {"a": size, "b": 3}
            assert len(events.consumer("c").poll()) == 3
            assert len(events) == size + 3
            assert events.last is not None
            counts.append(rows.count - before)
        assert counts[0] == counts[1] < 40, counts
    finally:
        apsw.connection_hooks.remove(rows.watch)
