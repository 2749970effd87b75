"""Trimming and retention of streams: what goes, what stays, and what readers are told."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Event, EventStream, Personal
from everthread.errors import EventsTrimmedError, InvalidValueError, StateCorruptedError
from everthread.events.saved import cell_name
from everthread.testing.driver import open_driven
from everthread.threads.runtime import Runtime

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1_000_000)

    def forward(self, **span: float) -> None:
        self.now += dt.timedelta(**span)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory:", "sqlite", "files", "memory: async", "sqlite async"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[everthread.Store]:
    urls = {
        "memory:": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
        "files": f"file://{tmp_path}/store",
    }
    open_ = open_driven if request.param.endswith("async") else everthread.open
    url = urls[request.param.removesuffix(" async")]
    with open_(url, durability="process", keyring="memory:", runtime=Runtime(now_us=clock)) as opened:
        yield opened


@pytest.fixture
def tasks(store: everthread.Store) -> EventStream:
    stream = store.events("tasks")
    stream.extend([("t", {"n": n}) for n in range(1, 11)])
    return stream


def seqs(events: Any) -> list[int]:
    return [event.seq for event in events]


def total(state: dict[str, int], event: Event) -> dict[str, int]:
    return {"sum": state.get("sum", 0) + event.data["n"]}


def test_trimming_by_seq_event_and_number(tasks: EventStream) -> None:
    assert tasks.trim(before=4) == 3
    assert seqs(tasks) == list(range(4, 11))
    assert tasks.trim(before=4) == tasks.trim(before=1) == tasks.trim(keep=7) == 0
    assert tasks.trim(before=next(iter(tasks.replay(after=4)))) == 1
    assert tasks.trim(keep=2) == 4
    assert seqs(tasks) == [9, 10]
    assert len(tasks) == 2
    assert tasks.trim(before=99) == 2
    assert len(tasks) == 0
    assert tasks.append("t", {"n": 11}).seq == 11, "numbers never repeat"
    assert tasks.trim(keep=0) == 1


def test_trimming_by_time_goes_up_to_the_first_that_is_not_older(
    store: everthread.Store, clock: Clock
) -> None:
    stream = store.events("clocks")
    for hour in (0, 2, 1, 3):
        clock.now = START + dt.timedelta(hours=hour)
        stream.append("t", {"hour": hour})
    assert stream.trim(before=START + dt.timedelta(hours=1, minutes=30)) == 1
    assert seqs(stream) == [2, 3, 4], "a late one behind a younger one stays"
    assert stream.trim(before=START + dt.timedelta(days=9)) == 3
    assert stream.append("t").seq == 5


def test_what_is_asked_for_wrongly_changes_nothing(tasks: EventStream) -> None:
    for wrong in ({}, {"before": 2, "keep": 2}, {"keep": -1}, {"keep": "x"}, {"before": "x"}):
        with pytest.raises(InvalidValueError):
            tasks.trim(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        tasks.trim(before=START.replace(tzinfo=None))
    for wrong in ({"ttl": 0}, {"ttl": -1}, {"ttl": "x"}, {"keep": 0}):
        with pytest.raises(InvalidValueError):
            tasks.retain(**wrong)  # type: ignore[arg-type]
    assert len(tasks) == 10


def test_readers_behind_the_trim_point_are_told(tasks: EventStream) -> None:
    tasks.trim(before=6)
    assert (
        seqs(tasks.replay()) == seqs(tasks.replay(after=0)) == seqs(tasks.replay(after=5)) == [6, 7, 8, 9, 10]
    )
    assert seqs(tasks.watch(after=0, timeout=0)) == seqs(tasks.watch(after=5, timeout=0)) == [6, 7, 8, 9, 10]
    for read in (
        lambda: tasks.replay(after=3),
        lambda: tasks.replay(after=3, type="t"),
        lambda: tasks.replay(after=3, agent="nobody"),
        lambda: tasks.watch(after=3, timeout=0),
    ):
        with pytest.raises(EventsTrimmedError, match="events 4 to 5 of the stream 'tasks'") as caught:
            list(read())
        assert (caught.value.stream, caught.value.first) == ("tasks", 6)
    tasks.trim(keep=0)
    with pytest.raises(EventsTrimmedError) as caught:
        list(tasks.replay(after=3))
    assert caught.value.first == 11
    assert seqs(tasks.replay(after=10)) == seqs(tasks.replay()) == []


def test_whoever_reads_while_it_is_trimmed_misses_nothing_in_silence(store: everthread.Store) -> None:
    stream = store.events("long")
    stream.extend([("t", {"n": n}) for n in range(300)])
    reading = iter(stream.replay())
    assert next(reading).seq == 1
    stream.trim(keep=50)
    with pytest.raises(EventsTrimmedError):
        list(reading)


def test_project_until_a_moment_that_was_trimmed(tasks: EventStream, clock: Clock) -> None:
    clock.forward(hours=1)
    tasks.append("t", {"n": 100})
    tasks.trim(before=6)
    assert tasks.project(total) == {"sum": 6 + 7 + 8 + 9 + 10 + 100}
    assert tasks.project(total, until=7) == {"sum": 13}
    assert tasks.project(total, until=0) == {}
    for until in (5, 1):
        with pytest.raises(EventsTrimmedError):
            tasks.project(total, until=until)
    tasks.trim(before=11)
    with pytest.raises(EventsTrimmedError):
        tasks.project(total, until=START)
    assert tasks.project(total, until=clock.now) == {"sum": 100}


def test_a_projection_that_came_as_far_goes_on(store: everthread.Store, tasks: EventStream) -> None:
    board = tasks.projection("board", total)
    tasks.trim(before=8)
    tasks.append("t", {"n": 11})
    assert board.refresh() == {"sum": 66}
    assert store.events("tasks").projection("board", total).state == {"sum": 66}
    tasks.trim(keep=0)
    assert store.events("tasks").projection("board", total).state == {"sum": 66}
    tasks.append("t", {"n": 4})
    assert board.refresh() == {"sum": 70}
    assert tasks.projection("board", total, version=2).state == {"sum": 4}, (
        "a new one begins with what is kept"
    )


def test_a_projection_that_did_not_come_as_far_is_told(store: everthread.Store, tasks: EventStream) -> None:
    board = tasks.projection("board", total)
    tasks.extend([("t", {"n": 1})] * 5)
    tasks.trim(keep=2)
    with pytest.raises(EventsTrimmedError, match="new version of a projection"):
        board.refresh()
    with pytest.raises(EventsTrimmedError):
        store.events("tasks").projection("board", total)
    assert tasks.projection("board", total, version=2).state == {"sum": 2}


def test_a_deleted_stream_is_no_trimmed_one(tasks: EventStream) -> None:
    board = tasks.projection("board", total)
    tasks.trim(before=5)
    assert tasks.delete()
    tasks.append("t", {"n": 3})
    assert seqs(tasks.replay(after=2)) == [11]
    assert board.refresh() == {"sum": 3}, "it begins anew"


def test_a_damaged_projection_of_trimmed_events_is_not_made_again(
    store: everthread.Store, tasks: EventStream
) -> None:
    tasks.projection("board", total)
    tasks.trim(before=5)
    core = store.core
    name = cell_name("projection", "tasks", "board", "1")
    cell = core.backend.cell(core.space, name, 0)
    core.backend.swap(core.space, name, cell.revision, b"damaged", 0)
    with pytest.raises(StateCorruptedError, match="higher version"):
        store.events("tasks").projection("board", total)


def test_consumers_and_groups_are_told_and_go_on_with_seek(tasks: EventStream) -> None:
    mailer = tasks.consumer("mailer")
    mailer.commit(3)
    workers = tasks.group("workers")
    assert seqs(workers.poll("w", limit=3)) == [1, 2, 3]
    tasks.trim(before=8)
    for reader in (mailer.poll, lambda: workers.poll("w")):
        with pytest.raises(EventsTrimmedError) as caught:
            reader()
        assert caught.value.first == 8
    mailer.seek(7)
    workers.seek(7)
    assert seqs(mailer.poll()) == seqs(workers.poll("w")) == [8, 9, 10]
    assert seqs(tasks.consumer("new").poll()) == [8, 9, 10]
    tasks.trim(keep=0)
    with pytest.raises(EventsTrimmedError):
        mailer.poll()
    mailer.seek(10)
    assert mailer.poll() == []
    tasks.append("t")
    assert seqs(mailer.poll()) == [11]


def test_retention_by_time_goes_with_gc(store: everthread.Store, tasks: EventStream, clock: Clock) -> None:
    assert store.gc().events == 0
    tasks.retain(ttl=dt.timedelta(days=1))
    clock.forward(hours=20)
    tasks.append("t", {"n": 1})
    assert store.gc().events == 0
    clock.forward(hours=5)
    assert store.gc(dry_run=True).events == 10
    assert len(tasks) == 11, "a dry run changes nothing"
    report = store.gc()
    assert report.events == 10
    assert "10 events" in str(report)
    assert seqs(tasks) == [11]
    clock.forward(days=9)
    assert store.gc().events == 1
    tasks.retain()
    tasks.append("t")
    clock.forward(days=9)
    assert store.gc().events == 0, "without a retention events stay"


def test_retention_holds_without_gc(tasks: EventStream) -> None:
    tasks.retain(keep=20)
    tasks.extend([("t", {})] * 900)
    assert len(tasks) == 910
    tasks.extend([("t", {})] * 100)
    assert seqs(tasks) == list(range(991, 1011))
    tasks.delete()
    tasks.extend([("t", {})] * 1000)
    assert len(tasks) == 20, "a stream that was deleted keeps its retention"


def test_a_trimmed_stream_is_sound_and_moves_as_it_is(store: everthread.Store, tmp_path: Path) -> None:
    stream = store.events("tasks")
    for n in range(1, 11):
        stream.append("t", {"n": n, "who": Personal("ada", "Ada")})
    stream.consumer("mailer").commit(2)
    stream.retain(keep=6)
    assert store.gc().events == 4
    assert store.verify()
    store.export(tmp_path / "archive.everthread")
    url = f"sqlite:///{tmp_path}/copy.db"
    with everthread.open(url, durability="process", keyring="memory:") as other:
        other.import_from(tmp_path / "archive.everthread")
        there = other.events("tasks")
        assert seqs(there) == [5, 6, 7, 8, 9, 10]
        with pytest.raises(EventsTrimmedError):
            there.consumer("mailer").poll()
        assert other.verify()
        other.import_from(tmp_path / "archive.everthread")
        there.trim(keep=3)
        stream.append("t", {"n": 11})
        store.export(tmp_path / "later.everthread")
        other.import_from(tmp_path / "later.everthread")
        assert seqs(there) == [8, 9, 10, 11], "what was trimmed there doesn't come again"
        assert there.append("t").seq == 12
    assert store.erase("ada").sealed_values
    assert all(event.data.get("who") in (None, everthread.Erased()) for event in stream)
    assert store.verify()


def test_the_retention_of_a_stream_can_be_looked_up(store: everthread.Store, tasks: EventStream) -> None:
    def kept() -> tuple[Any, Any, str]:
        found = store.events("tasks").retention
        return found.ttl, found.keep, str(found)

    assert kept() == (None, None, "for ever")
    tasks.retain(ttl=90)
    assert kept() == (dt.timedelta(seconds=90), None, "90 s")
    tasks.retain(ttl=dt.timedelta(hours=36), keep=5_000)
    assert kept() == (dt.timedelta(hours=36), 5_000, "36 h, the newest 5,000")
    tasks.delete()
    assert kept()[1] == 5_000, "a stream that was deleted keeps its retention"
    tasks.retain(keep=7)
    assert kept() == (None, 7, "the newest 7")
    tasks.retain()
    assert kept() == (None, None, "for ever")
