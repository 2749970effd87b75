"""Registers are replaced by compare-and-set; streams keep their numbers, whatever is trimmed or rewritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everthread.records.registers import StaleRegister
from everthread.stores.contract import NewEvent
from everthread.stores.interface import run
from tests.unit.records.conftest import Driver

SPACE = 3


def test_a_heartbeat_keeps_the_owner_token_and_a_take_over_replaces_it(driver: Driver) -> None:
    write = driver.records.registers.compare_and_set
    taken = run(write(SPACE, "lease", 0, b"run 1", 10))
    assert taken is not None
    beat = run(write(SPACE, "lease", taken.revision, b"run 1 again", 20, durable=False))
    assert beat is not None
    assert (beat.token, beat.nonce == taken.nonce) == (taken.token, False)
    other = run(write(SPACE, "lease", beat.revision, b"run 2", 30, take_over=True))
    assert other is not None
    assert other.token != taken.token
    assert run(driver.records.registers.get(SPACE, "lease")) == other


def test_a_stale_write_changes_nothing(driver: Driver, another: Callable[[], Driver]) -> None:
    write = driver.records.registers.compare_and_set
    first = run(write(SPACE, "x", 0, b"1", 10))
    assert first is not None
    second = run(write(SPACE, "x", first.revision, b"2", 20))
    for expected in (0, first.revision, first.revision + 7):
        with pytest.raises(StaleRegister) as stale:
            run(another().records.registers.compare_and_set(SPACE, "x", expected, b"3", 30))
        assert stale.value.actual == second


def test_a_revision_is_not_used_again_after_a_deletion(driver: Driver) -> None:
    write, seen = driver.records.registers.compare_and_set, set()
    for _ in range(5):
        made = run(write(SPACE, "x", 0, b"1", 10))
        assert made is not None
        again = run(write(SPACE, "x", made.revision, b"2", 10))
        assert again is not None
        seen |= {made.revision, again.revision}
        assert run(write(SPACE, "x", again.revision, None, 10)) is None
        assert run(driver.records.registers.get(SPACE, "x")) is None
    assert len(seen) == 10


def _event(number: int, at_us: int = 0, type: str = "t", agent: str | None = None) -> NewEvent:
    return NewEvent(at_us, type, agent, str(number).encode())


def test_numbers_continue_after_a_trim_and_in_another_process(
    driver: Driver, another: Callable[[], Driver]
) -> None:
    streams, stream = driver.records.streams, run(driver.records.streams.make(SPACE, "s"))
    assert run(streams.append(stream, [_event(1), _event(2)])) == 1
    assert run(streams.trim(stream, 99)) == 2
    assert run(streams.trim(stream, 99)) == 0
    assert run(streams.names(SPACE, "", None, 9)) == []
    other = another().records.streams
    assert run(other.make(SPACE, "s")) == stream
    assert run(other.append(stream, [_event(3)])) == 3
    assert [event.seq for event in run(streams.page(stream, 0, 9))] == [3]
    assert run(streams.names(SPACE, "", None, 9)) == [("s", 3)]


def test_events_are_found_by_time_type_and_agent(driver: Driver) -> None:
    streams, stream = driver.records.streams, run(driver.records.streams.make(SPACE, "s"))
    events = [_event(1, 30, "a"), _event(2, -5, "b", "x"), _event(3, 10, "a", "x"), _event(4, 30, "b")]
    run(streams.append(stream, events))
    assert run(streams.between(stream, None, None, None, 9)) == [(-5, 2), (10, 3), (30, 1), (30, 4)]
    assert run(streams.between(stream, 10, 30, (30, 1), 9)) == [(30, 4)]
    assert run(streams.between(stream, -5, 10, None, 1)) == [(-5, 2)]
    assert [event.seq for event in run(streams.page(stream, 0, 9, type="a"))] == [1, 3]
    assert [event.seq for event in run(streams.page(stream, 2, 9, agent="x"))] == [3]
    assert [event.seq for event in run(streams.page(stream, 0, 9, type="b", agent="x"))] == [2]
    found = run(streams.between_by_number(stream, 0, 9, since_us=10, until_us=1 << 70))
    assert [event.seq for event in found] == [1, 3, 4]


def test_a_rewrite_changes_bodies_and_brings_no_trimmed_event_back(driver: Driver) -> None:
    streams, stream = driver.records.streams, run(driver.records.streams.make(SPACE, "s"))
    run(streams.append(stream, [_event(number) for number in (1, 2, 3)]))
    run(streams.trim(stream, 1))
    assert run(streams.rewrite(stream, {1: b"back", 2: b"new", 9: b"none"})) == 1
    assert [(event.seq, event.body) for event in run(streams.page(stream, 0, 9))] == [(2, b"new"), (3, b"3")]
