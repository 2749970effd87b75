"""Groups of consumers: each event to one worker, and again to another if that one doesn't come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import InvalidNameError, InvalidValueError, Store
from everthread.events.aio import group as source
from everthread.events.sync import group as module
from everthread.testing.driver import open_driven


@pytest.fixture(params=["memory", "sqlite", "valkey", "valkey async"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param.startswith("valkey"):
        url = request.getfixturevalue("valkey_url")
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/agent.db"
    open_ = open_driven if request.param.endswith("async") else everthread.open
    with open_(url, durability="process") as opened:
        opened.events("s").extend([("t", {"n": n}) for n in range(1, 13)])
        yield opened


def test_each_event_goes_to_one_worker(store: Store) -> None:
    group = store.events("s").group("g")
    first, second = group.poll("a", limit=4), group.poll("b", limit=3)
    assert [event.seq for event in first] == [1, 2, 3, 4]
    assert [event.seq for event in second] == [5, 6, 7]
    assert group.position() == 7
    assert [(each.seq, each.worker, each.times) for each in group.pending()] == [
        (1, "a", 1),
        (2, "a", 1),
        (3, "a", 1),
        (4, "a", 1),
        (5, "b", 1),
        (6, "b", 1),
        (7, "b", 1),
    ]
    assert group.ack(*first, 5) == 5
    assert group.ack(first[0]) == 0, "once is enough"
    assert [each.seq for each in group.pending()] == [6, 7]
    other = store.events("s").group("other")
    assert [event.seq for event in other.poll("a", limit=2)] == [1, 2], "groups are apart"


def test_what_isnt_acknowledged_goes_to_another(store: Store) -> None:
    patient = store.events("s").group("g", redeliver_after=3600)
    taken = patient.poll("a", limit=2)
    assert [event.seq for event in patient.poll("b", limit=1)] == [3]
    hasty = store.events("s").group("g", redeliver_after=0.000_001)
    again = hasty.poll("b", limit=4)
    assert [event.seq for event in again] == [1, 2, 3, 4]
    assert [(each.worker, each.times) for each in patient.pending()] == [
        ("b", 2),
        ("b", 2),
        ("b", 2),
        ("b", 1),
    ]
    assert patient.ack(*taken) == 2, "done is done, whoever did it"


def test_too_much_undone_holds_up_new_ones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PENDING_MAX", 5)
    monkeypatch.setattr(module, "PENDING_MAX", 5)
    group = store.events("s").group("g")
    taken = group.poll("a", limit=10)
    assert len(taken) == 5
    assert group.poll("b") == []
    group.ack(*taken[:2])
    assert [event.seq for event in group.poll("b")] == [6, 7]


def test_a_deleted_stream_leaves_nothing_to_do(store: Store) -> None:
    group = store.events("s").group("g", redeliver_after=0.000_001)
    group.poll("a")
    store.events("s").delete()
    assert group.poll("b") == []
    assert group.pending() == []
    store.events("s").append("t", {"n": 13})
    assert [event.seq for event in group.poll("b")] == [13], "what comes later isn't missed"


def test_many_workers_at_once_share_everything(store: Store) -> None:
    found: list[int] = []

    def work(name: str) -> None:
        group = store.events("s").group("g")
        while events := group.poll(name, limit=1):
            found.append(events[0].seq)
            group.ack(*events)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 13))


def test_bad_input_is_refused(store: Store) -> None:
    stream = store.events("s")
    with pytest.raises(InvalidNameError):
        stream.group("")
    for patience in (0, -1, "1", 10**9):
        with pytest.raises(InvalidValueError):
            stream.group("g", redeliver_after=patience)
    with pytest.raises(InvalidNameError):
        stream.group("g").poll("a\0b")
    with pytest.raises(InvalidValueError):
        stream.group("g").poll("a", limit=0)
