"""Iterating over a log fetches more at a time as it goes on, unless that would take much room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.threads.twins import SequenceReads


class Fetched(SequenceReads):
    """A log that notes how much is asked for at a time."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def read(self, start: int = 0, stop: int | None = None) -> list[Any]:
        found = self.items[start:stop]
        self.sizes.append(len(found))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[everthread.Store]:
    with everthread.open(f"sqlite:///{tmp_path}/store.db", durability="process") as opened:
        yield opened


def test_small_items_are_fetched_in_growing_numbers() -> None:
    log = Fetched([{"n": n} for n in range(9000)])
    assert list(log) == log.items
    assert log.sizes == [512, 1024, 2048, 2048, 2048, 1320]


def test_large_items_are_not() -> None:
    log = Fetched([{"content": "x" * 10_000}] * 2000)
    assert list(log) == log.items
    assert log.sizes == [512, 512, 512, 464]


def test_a_log_of_many_commits_comes_back_whole(store: everthread.Store) -> None:
    thread = store.thread("a")
    for start in range(0, 5000, 70):
        thread.messages.extend({"id": f"m{n}", "n": n} for n in range(start, start + 70))
        thread.commit()
    past = thread.at(40)
    assert [item["n"] for item in thread.messages] == list(range(5040))
    assert [item["n"] for item in past.messages] == list(range(2800))
    assert [item["n"] for item in reversed(past.messages)] == list(range(2799, -1, -1))
