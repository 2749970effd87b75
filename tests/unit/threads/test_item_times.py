"""When each item of a log was written, whatever happened to the log since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everthread
from everthread import Store
from everthread.threads.runtime import Runtime
from everthread.threads.sync.item_times import item_times


class Clock:
    """Every look is a second later."""

    us = 1_800_000_000_000_000

    def __call__(self) -> int:
        self.us += 1_000_000
        return self.us


@pytest.fixture
def store() -> Store:
    return everthread.open("memory:", runtime=Runtime(now_us=Clock()))


def written(thread: everthread.Thread, *texts: str) -> int:
    for text in texts:
        thread.messages.append({"role": "user", "content": text})
    version = thread.commit()
    assert version is not None
    return version.at_us


def test_each_message_has_the_time_of_its_version(store: Store) -> None:
    thread = store.thread("bot")
    wanted = []
    for number in range(40):
        thread.state["n"] = number
        thread.commit()
        at_us = written(thread, *(f"{number}-{part}" for part in range(number % 3)) if number % 3 else ("x",))
        wanted += [at_us] * max(1, number % 3)
    assert item_times(thread, "messages", 0) == wanted
    assert item_times(thread, "messages", 50) == wanted[50:]
    assert item_times(thread, "elsewhere", 0) == []
    assert item_times(store.thread("nobody"), "messages", 0) == []


def test_a_message_that_took_the_place_of_another_has_its_own_time(store: Store) -> None:
    thread = store.thread("bot")
    first = written(thread, "a")
    written(thread, "b", "c")
    head = thread.head
    assert head is not None
    thread.rewind(1)
    again = written(thread, "B")
    assert item_times(thread, "messages", 0) == [first, again]
    fork = store.thread("bot").fork("other")
    assert item_times(fork, "messages", 0) == [first, again]
    later = written(fork, "d")
    assert item_times(fork, "messages", 0) == [first, again, later]
    thread.rewind(head)
    # Those that came back were written when they were written.
    assert item_times(thread, "messages", 0) == [first, head.at_us, head.at_us]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.data())
def test_any_history(counts: list[int], data: st.DataObject) -> None:
    with everthread.open("memory:", runtime=Runtime(now_us=Clock())) as store:
        thread = store.thread("bot")
        # By seq: the time of each item as it stands then.
        known: dict[int, list[int]] = {}
        now: list[int] = []
        for number, count in enumerate(counts):
            if known and data.draw(st.booleans()):
                seq = data.draw(st.sampled_from(sorted(known)))
                now = known[thread.rewind(seq).seq] = known[seq]
            thread.state["n"] = number
            at_us = written(thread, *(["x"] * count))
            assert thread.head is not None
            now = known[thread.head.seq] = [*now, *([at_us] * count)]
        assert item_times(thread, "messages", 0) == now
