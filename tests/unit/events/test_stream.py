"""Streams of events: append, replay, and what comes back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import everthread
from everthread import Event, EventStream
from everthread.errors import (
    InvalidNameError,
    InvalidValueError,
    LimitError,
    SealError,
    StateCorruptedError,
    StoreClosedError,
)
from everthread.events.aio import stream as stream_module_async
from everthread.events.sync import stream as stream_module
from everthread.testing.driver import open_driven
from everthread.threads.runtime import Runtime

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Clock:
    """A second later each time it is asked."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        self.now += dt.timedelta(seconds=1)
        return int(self.now.timestamp() * 1_000_000)


@pytest.fixture(params=["memory:", "sqlite", "memory: async", "sqlite async"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[everthread.Store]:
    url = "memory:" if request.param.startswith("memory:") else f"sqlite:///{tmp_path}/store.db"
    runtime = Runtime(now_us=Clock())
    open_ = open_driven if request.param.endswith("async") else everthread.open
    with open_(url, durability="process", keyring="memory:", runtime=runtime) as opened:
        yield opened


@pytest.fixture
def tasks(store: everthread.Store) -> EventStream:
    return store.events("tasks")


def seqs(events: Any) -> list[int]:
    return [event.seq for event in events]


# ── appending ────────────────────────────────────────────────────────────────────────────────────


def test_an_event_comes_back_as_it_was_appended(store: everthread.Store, tasks: EventStream) -> None:
    given = {"id": 1, "tags": {"a", "b"}, "at": START, 7: (1, 2.5), "bytes": b"\0\xff", "none": None}
    made = tasks.append("task_created", given, agent="planner")
    given["id"] = "changed later"
    assert made == Event(1, "task_created", {**given, "id": 1}, "planner", made.at_us)
    assert made.at == START + dt.timedelta(seconds=1)
    assert list(tasks.replay()) == list(tasks) == [made] == list(store.events("tasks").replay())
    assert hash(made) == hash(next(iter(tasks)))
    made.data["id"] = "mine alone"
    assert next(iter(tasks)).data["id"] == 1
    with pytest.raises(AttributeError):
        made.seq = 2  # type: ignore[misc]


def test_data_may_be_anything_that_can_be_stored(tasks: EventStream) -> None:
    assert tasks.append("nothing").data == {}
    for data in ([1, [2]], "text", 0, False, 1.5, {"deep": {"er": [None]}}):
        assert tasks.append("t", data).data == data
    assert [event.data for event in tasks.replay(limit=3)] == [{}, [1, [2]], "text"]


def test_extend_is_all_or_nothing(tasks: EventStream) -> None:
    first = tasks.append("first", {"n": 0}, agent="a")
    made = tasks.extend([("second", {"n": 1}), ("third", {"n": 2}, "b"), first])
    assert [(e.seq, e.type, e.data, e.agent) for e in made] == [
        (2, "second", {"n": 1}, None),
        (3, "third", {"n": 2}, "b"),
        (4, "first", {"n": 0}, "a"),
    ]
    assert tasks.extend([]) == []
    assert list(tasks) == [first, *made]
    for bad in (("type",), ["type", {}], "type", None, ("t", {}, "a", 1)):
        with pytest.raises(InvalidValueError, match=r"events\[1\]") as caught:
            tasks.extend([("fine", {}), bad])  # type: ignore[list-item]
        assert caught.value.path == "events[1]"
    with pytest.raises(InvalidValueError) as caught:
        tasks.extend([("fine", {}), ("bad", {"list": [0, object()]})])
    assert caught.value.path == "events[1].data.list[1]"
    assert len(tasks) == 4


def test_what_cant_be_stored_is_refused_by_its_place(store: everthread.Store, tasks: EventStream) -> None:
    with pytest.raises(InvalidValueError) as caught:
        tasks.append("t", {"a": [1, {"b": object()}]})
    assert caught.value.path == "data.a[1].b"
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(LimitError):
        tasks.append("t", deep)
    for name in ("", "a\0b", "\ud800", "x" * 2000, None, 7):
        with pytest.raises(InvalidNameError):
            tasks.append(name, {})  # type: ignore[arg-type]
        with pytest.raises(InvalidNameError):
            store.events(name)  # type: ignore[arg-type]
        if name is not None:
            with pytest.raises(InvalidNameError):
                tasks.append("t", {}, agent=name)  # type: ignore[arg-type]
    assert len(tasks) == 0
    assert tasks.last is None


def test_limits_are_the_stores() -> None:
    limits = everthread.Limits(payload_bytes_max=1000)
    with everthread.open("memory:", limits=limits) as store:
        events = store.events("s")
        events.append("t", "x" * 900)
        with pytest.raises(LimitError, match="payload_bytes_max"):
            events.append("t", "x" * 1100)
        assert len(events) == 1


def test_odd_names_are_only_names(store: everthread.Store) -> None:
    names = ["'; drop table event--", "../../x", "a/b", "é\U0001f9f5", "x" * 1024, "a", "a/projection/b"]
    for number, name in enumerate(names):
        store.events(name).append(name, {"n": number}, agent=name)
    for number, name in enumerate(names):
        assert [event.data["n"] for event in store.events(name).replay(type=name, agent=name)] == [number]
    assert store.verify()


def test_a_closed_store_has_no_events(store: everthread.Store, tasks: EventStream) -> None:
    tasks.append("t")
    store.close()
    for call in (
        lambda: tasks.append("t"),
        lambda: list(tasks),
        lambda: len(tasks),
        lambda: store.events("x"),
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_namespaces_keep_events_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url, namespace="one") as one, everthread.open(url, namespace="two") as two:
        one.events("s").append("t", 1)
        two.events("s").extend([("t", 2), ("t", 3)])
        assert [event.data for event in one.events("s")] == [1]
        two.events("s").projection("p", _total)
        two.events("s").consumer("c").commit(2)
        assert one.events("s").projection("p", _total).state == 1
        assert one.events("s").consumer("c").position() == 0


def _total(state: Any, event: Event) -> Any:
    return (state or 0) + event.data


# ── replaying ────────────────────────────────────────────────────────────────────────────────────


def test_replay_by_everything(tasks: EventStream) -> None:
    for number in range(30):
        tasks.append("even" if number % 2 == 0 else "odd", number, agent="abc"[number % 3])
    at = [event.at for event in tasks]
    assert seqs(tasks.replay(type="odd"))[:3] == [2, 4, 6]
    assert seqs(tasks.replay(agent="c", type="even")) == [3, 9, 15, 21, 27]
    assert seqs(tasks.replay(since=at[10], until=at[12])) == [11, 12, 13]
    assert seqs(tasks.replay(since=at[25], type="even")) == [27, 29]
    assert seqs(tasks.replay(until=at[2])) == [1, 2, 3]
    elsewhere = dt.timezone(dt.timedelta(hours=-7))
    assert seqs(tasks.replay(since=at[28].astimezone(elsewhere))) == [29, 30]
    assert seqs(tasks.replay(after=27)) == seqs(tasks.replay(after=list(tasks)[26])) == [28, 29, 30]
    assert seqs(tasks.replay(after=3, limit=2)) == [4, 5]
    assert (
        seqs(tasks.replay(type="nobody")) == seqs(tasks.replay(limit=0)) == seqs(tasks.replay(after=99)) == []
    )
    assert tasks.last is not None
    assert tasks.last.data == 29


def test_a_wrong_question_is_refused_at_once(tasks: EventStream) -> None:
    naive = dt.datetime(2026, 1, 1)  # noqa: DTZ001
    wrong: list[dict[str, Any]] = [
        {"since": naive},
        {"until": naive},
        {"since": 5},
        {"limit": -1},
        {"limit": "x"},
        {"after": -1},
        {"after": True},
        {"after": None},
        {"type": ""},
        {"agent": 7},
    ]
    for query in wrong:
        with pytest.raises((InvalidValueError, InvalidNameError)):
            tasks.replay(**query)


def test_replay_is_lazy_and_reads_pages(tasks: EventStream, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_module, stream_module_async):
        monkeypatch.setattr(module, "_FIRST_PAGE_EVENTS", 10)
        monkeypatch.setattr(module, "_PAGE_EVENTS", 40)
        monkeypatch.setattr(module, "_PAGE_BYTES", 20_000)
    tasks.extend([("small", number) for number in range(200)])
    tasks.extend([("large", "x" * 5000) for _ in range(60)])
    backend: Any = tasks.core.backend
    # Beneath an async store there is a blocking one.
    backend = getattr(backend, "blocking", backend)
    asked: list[int] = []
    read = backend.events

    def counted(space: str, name: str, after: int, limit: int, **query: Any) -> Any:
        asked.append(limit)
        return read(space, name, after, limit, **query)

    monkeypatch.setattr(backend, "events", counted)
    replay = tasks.replay()
    assert asked == []
    assert next(replay).seq == 1
    assert asked == [10]
    assert seqs(replay) == list(range(2, 261))
    assert asked[1] == 40, "small events come in large pages"
    assert asked[-1] <= 4, "large events come in small pages"
    asked.clear()
    assert len(list(tasks.replay(limit=15))) == 15
    assert asked == [10, 5], "no more is read than asked for"


def test_what_is_appended_meanwhile_is_seen_or_not_but_never_out_of_order(tasks: EventStream) -> None:
    tasks.extend([("t", number) for number in range(250)])
    found = []
    for event in tasks.replay():
        found.append(event.seq)
        if event.seq % 100 == 0 and event.seq < 400:
            tasks.extend([("t", 0)] * 10)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 250


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────


def test_delete_empties_and_numbers_go_on(tasks: EventStream) -> None:
    assert not tasks.delete()
    tasks.extend([("t", number) for number in range(5)])
    consumer = tasks.consumer("c")
    consumer.commit(3)
    assert tasks.delete()
    assert (len(tasks), tasks.last, list(tasks)) == (0, None, [])
    assert consumer.poll() == []
    assert tasks.append("t", "new").seq == 6
    assert (len(tasks), [event.data for event in consumer.poll()]) == (1, ["new"])


# ── events that change ───────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Price:
    amount: int


def test_old_events_look_new_through_upcasters(store: everthread.Store) -> None:
    old = store.events("tasks")
    old.append("created", {"title": "a", "unknown": [1]})
    old.append("other", {"title": "b"})

    def current(data: dict[str, Any]) -> dict[str, Any]:
        return {"priority": "medium", **data}

    new = store.events("tasks", upcast={"created": current})
    assert new.append("created", {"title": "c", "priority": "high"}).data["priority"] == "high"
    assert [event.data for event in new] == [
        {"priority": "medium", "title": "a", "unknown": [1]},
        {"title": "b"},
        {"title": "c", "priority": "high"},
    ]
    assert next(iter(old)).data == {"title": "a", "unknown": [1]}, "what is stored stays as it is"
    with pytest.raises(InvalidValueError, match="created"):
        store.events("tasks", upcast={"created": "no function"})  # type: ignore[dict-item]


def test_a_type_that_this_process_doesnt_know_survives(store: everthread.Store) -> None:
    from everthread.codec import types

    everthread.register(Price, tag="tests.events.Price")
    shape = types.shape_for_tag("tests.events.Price")
    events = store.events("s")
    events.append("priced", {"price": Price(7)})
    assert next(iter(events)).data == {"price": Price(7)}
    tag = "tests.events.Price"
    forgotten = [table for table in vars(types).values() if isinstance(table, dict) and tag in table]
    for table in forgotten:
        del table["tests.events.Price"]
    try:
        opaque = next(iter(events)).data["price"]
        assert isinstance(opaque, everthread.Opaque)
        events.append("priced", {"price": opaque})
    finally:
        for table in forgotten:
            table["tests.events.Price"] = shape
    assert [event.data for event in events] == [{"price": Price(7)}] * 2


# ── personal values ──────────────────────────────────────────────────────────────────────────────


def test_personal_values_are_sealed(store: everthread.Store, tasks: EventStream, tmp_path: Path) -> None:
    made = tasks.append("mailed", {"to": everthread.Personal("ann", "ann@example.org")})
    assert made.data["to"].value == "ann@example.org"
    read = next(iter(tasks))
    assert repr(read.data["to"]) == "Personal(•••)"
    assert read.data["to"].value == "ann@example.org"
    again = tasks.append("forwarded", read.data)
    assert again.data["to"].sealed == read.data["to"].sealed, "a copy keeps its seal"
    for path in tmp_path.iterdir():
        assert b"ann@example" not in path.read_bytes()
    store.core.vault.keyring.destroy("ann")
    assert [event.data["to"] for event in tasks] == [everthread.Erased()] * 2
    with pytest.raises(SealError):
        tasks.append("again", read.data)
    assert len(tasks) == 2
    assert store.verify()


# ── wrong bytes ──────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_byte_is_noticed(tmp_path: Path) -> None:
    """Each column altered as a program with access would: indexes follow."""
    path = tmp_path / "store.db"
    alterations = [
        "UPDATE event SET body = flipped(body) WHERE id & 15 = 3",
        "UPDATE event SET body = x'' WHERE id & 15 = 3",
        "UPDATE event SET type = 'other' WHERE id & 15 = 3",
        "UPDATE event SET agent = 'other' WHERE id & 15 = 3",
        "UPDATE event SET at_us = at_us + 1 WHERE id & 15 = 3",
        "UPDATE event SET id = id + (1 << 36) WHERE id & 15 = 3",
        "DELETE FROM event WHERE id & 15 = 3",
        "DELETE FROM event WHERE id & 15 = 5",
        "UPDATE event SET peak_us = peak_us - 1 WHERE id & 15 = 3",
        "UPDATE event SET stream = 2 WHERE id & 15 = 3",
        "UPDATE stream SET last = last - 1 WHERE name = 's'",
        "UPDATE stream SET last = last + 1 WHERE name = 's'",
        "UPDATE stream SET first = first + 1 WHERE name = 's'",
        "UPDATE stream SET peak_us = peak_us + 1 WHERE name = 's'",
        "UPDATE stream SET late_us = late_us - 1 WHERE name = 's'",
        "UPDATE stream SET name = 'renamed' WHERE name = 's'",
    ]
    for number, alteration in enumerate(alterations):
        url = f"sqlite:///{path}{number}"
        clock = iter([5, 9, 7, 20, 30, 40, 50])
        runtime = Runtime(now_us=lambda clock=clock: next(clock))  # type: ignore[misc]
        with everthread.open(url, durability="process", runtime=runtime) as store:
            store.events("s").extend([("t", {"n": n, "x": "y" * 20}, "a") for n in range(5)])
            assert store.core.backend.check() == []
            store.events("next").extend([("t", {"n": n}, "a") for n in range(2)])
            assert store.verify()
        db = apsw.Connection(f"{path}{number}")
        db.create_scalar_function("flipped", lambda body: body[:9] + bytes([body[9] ^ 1]) + body[10:])
        db.execute(alteration)
        assert db.changes() >= 1
        db.close()
        with everthread.open(url) as store:
            report = store.verify()
            assert not report, alteration
            if "last - 1" in alteration:
                with pytest.raises(StateCorruptedError, match="behind its last"):
                    store.events("s").append("t")
            if any(column in alteration for column in ("body", "type", "agent", "SET at_us")):
                with pytest.raises(StateCorruptedError, match="event 3"):
                    list(store.events("s"))
                assert seqs(store.events("s").replay(after=3)) == [4, 5], "the others are still there"


def test_the_bytes_are_as_documented(tmp_path: Path) -> None:
    """docs/internals/format.md, followed by hand."""
    with everthread.open(f"sqlite:///{tmp_path}/store.db") as store:
        events = store.events("täsks")
        made = events.extend([("created", {"n": 1}, "planner"), ("done", [None])])
        events.projection("sum", lambda state, event: {"count": state.get("count", 0) + 1}, version=2)
        events.consumer("mailer").commit(2)
    db = apsw.Connection(f"{tmp_path}/store.db")
    ((number, first, last),) = db.execute(
        "SELECT id, first, last FROM stream WHERE name = 'täsks'"
    ).fetchall()
    assert (first, last) == (1, 2)
    rows = db.execute("SELECT id, type, agent, at_us, body FROM event ORDER BY id").fetchall()
    for event, (place, type_, agent, at_us, body) in zip(made, rows, strict=True):
        data, checksum = msgspec.msgpack.decode(_unframed(body))
        assert place == number << 36 | event.seq
        assert (type_, agent, at_us, data) == (event.type, event.agent, event.at_us, event.data)
        assert checksum == zlib.crc32(msgspec.msgpack.encode(["täsks", type_, agent, at_us]))
    kept = dict(db.execute("SELECT name, value FROM cell").fetchall())
    db.close()
    assert {name: msgspec.msgpack.decode(_unframed(value)[1:]) for name, value in kept.items()} == {
        "events/consumer/5:täsks/6:mailer": [2],
        "events/projection/5:täsks/3:sum/1:2": [1, 2, {"count": 2}],
    }


def _unframed(data: bytes) -> bytes:
    assert data[:1] == b"\x01"
    assert int.from_bytes(data[1:5], "little") == zlib.crc32(data[:1] + data[5:])
    return data[5:]
