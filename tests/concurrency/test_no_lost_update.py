"""Thousands of transactions by many sessions at once on a server: losers are told, an order explains all."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.concurrency.histories import OK, REFUSED, anomalies
from tests.concurrency.writers import final_lists, write, write_in_processes

#: Of each server; half by 64 tasks of one process, half by 8 processes with 8 tasks each.
#: ``python -m tests.torture.history`` makes as many as one likes.
OPERATIONS = 10_000
THREADS = 40


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_no_lost_update(server: str, request: pytest.FixtureRequest, seed: int) -> None:
    url: str = request.getfixturevalue(f"{server}_url")
    if server == "postgres":
        url += "?pool_max=8"
    base = seed % 1_000_000 + 1
    history = asyncio.run(write(url, 64, OPERATIONS // 2, THREADS, base))
    history += write_in_processes(url, 8, 8, OPERATIONS // 16, THREADS, base)
    counts = Counter(transaction.outcome for transaction in history)
    assert sum(counts.values()) >= OPERATIONS - 16
    assert counts[OK] > OPERATIONS // 10
    assert counts[REFUSED] > 0, "nobody was in anybody's way: that shows nothing"
    assert set(counts) <= {OK, REFUSED}
    assert anomalies(history, final_lists(url, THREADS)) == []
