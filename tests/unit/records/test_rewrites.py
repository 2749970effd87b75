"""What replaces versions depends on nothing that a store may lose and rebuild."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from everthread.history.packs import Pack
from everthread.records.rewrites import Compaction, Replacement
from everthread.records.tables import KEYFRAME, PAST, ROW, TABLES
from everthread.stores.contract import PRUNED, Row
from everthread.stores.interface import Batch, Outcome, Refused, run
from everthread.stores.memory_store import MemoryStore
from tests.unit.records.conftest import Driver


class Journalled(MemoryStore):
    """A store that also journals what can't be rebuilt from earlier writes."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        self.journal: list[Batch] = []

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        outcomes = await super().write(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if not isinstance(outcome, Refused) and not batch.derived:
                self.journal.append(batch._replace(guards=()))
        return outcomes


def test_versions_that_were_pruned_do_not_come_back_in_a_store_rebuilt_without_packs() -> None:
    store = Journalled()
    driver = Driver(store)
    branch = driver.create("a")
    for _ in range(7):
        driver.commit(branch)
    rows = run(driver.records.rows.between(branch.number, 1, 6))
    compaction = Compaction(Pack(1, 6, b"versions inside", b"net", []), rows[-1].hash, b"keyframe")
    assert run(driver.records.rewrites.compact(branch.number, compaction))
    old = run(driver.records.rows.between(branch.number, 1, 6))
    assert [row.seq for row in old] == [6]
    stub = Row(6, 1, PRUNED, old[0].hash, b"tombstone", b"net")
    pruning = Replacement(old=old, rows=[stub], seen=[(branch.number, 8)])
    assert run(driver.records.rewrites.replace(branch.number, pruning))
    rebuilt = MemoryStore(TABLES)
    run(rebuilt.write(store.journal))
    for table in (ROW, PAST, KEYFRAME):
        assert run(rebuilt.walk(table.number, None, 99)) == run(store.walk(table.number, None, 99))
    assert [row.seq for row in run(Driver(rebuilt).records.rows.scan(branch.number, 9, 9))] == [8, 7, 6]


class Interleaved(MemoryStore):
    """A store in which something happens right after the next read."""

    def __init__(self) -> None:
        super().__init__(TABLES)
        self.after_read: list[Callable[[], object]] = []

    async def read(self, *arguments: Any, **options: Any) -> Any:
        answers = await super().read(*arguments, **options)
        if self.after_read:
            self.after_read.pop()()
        return answers


@pytest.mark.parametrize("read", ["scan", "replay"])
def test_a_compaction_between_two_reads_hides_no_version(read: str) -> None:
    store = Interleaved()
    driver = Driver(store)
    branch = driver.create("a")
    for _ in range(170):
        driver.commit(branch)
    rows = run(driver.records.rows.between(branch.number, 1, 100))
    pack = Compaction(Pack(1, 100, b"versions inside", b"net", []), rows[-1].hash, None)
    store.after_read.append(lambda: run(driver.records.rewrites.compact(branch.number, pack)))
    if read == "scan":
        found = run(driver.records.rows.scan(branch.number, 60, 200))
    else:
        found = run(driver.records.rows.replay(branch.number, 170, 0))
    assert (found[-1].first, found[0].seq) == (1, 100 if read == "scan" else 170)
    assert all(later.first == earlier.seq + 1 for later, earlier in pairwise(found))
