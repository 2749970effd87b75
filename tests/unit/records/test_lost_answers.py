"""A version whose answer was lost is neither stored twice nor reported as lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from everthread.errors import StorageWriteError, StoreUnavailableError
from everthread.records.commits import StaleHead
from everthread.records.heads import Head
from everthread.records.tables import HEAD, ROW
from everthread.stores.interface import Batch, Outcome, Query, Store, run
from tests.unit.records.conftest import Driver, digest


class Faulty:
    """A store whose next commit of a version meets a fault."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.info = store.info
        #: Called with the write that carries a row.
        self.fault: Callable[[Sequence[Batch]], Any] | None = None
        self.unavailable = False
        self.durable_heads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, queries: Sequence[Query], *rest: Any) -> Any:
        if self.unavailable:
            raise StoreUnavailableError("the server is away")
        return await self._store.read(queries, *rest)

    async def write(self, batches: Sequence[Batch]) -> list[Outcome]:
        puts = [key[0] for batch in batches for key, _ in batch.puts]
        fault = self.fault
        if fault is not None and HEAD.number in puts:
            self.fault = None
            fault(batches)
            raise StorageWriteError("the connection was cut before the answer came")
        if HEAD.number in puts and ROW.number not in puts:
            self.durable_heads += all(batch.durable for batch in batches)
        return await self._store.write(batches)


@pytest.fixture
def faulty(store: Store) -> Faulty:
    return Faulty(store)


@pytest.fixture
def writer(faulty: Faulty) -> Driver:
    store: Any = faulty
    return Driver(store)


def hashes(driver: Driver, branch: int) -> list[bytes]:
    return [row.hash for row in run(driver.records.rows.scan(branch, 99, 99))]


def test_a_stored_version_is_acknowledged_after_its_head_was_put_again_durably(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    branch = writer.create("a")
    faulty.fault = lambda batches: run(store.write(batches))
    stored = writer.commit(branch, metadata={"who": b"Ann"})
    assert faulty.durable_heads == 1
    assert Driver(store).head(branch) == stored
    assert writer.commit(branch).seq == 3
    assert len(hashes(writer, branch.number)) == 3
    assert run(writer.records.agreement.check()) == []


def test_a_version_that_is_not_stored_is_reported_and_can_be_committed_again(
    writer: Driver, faulty: Faulty
) -> None:
    branch = writer.create("a")
    before = writer.head(branch)
    version = writer.version(before.hash, 2)
    faulty.fault = lambda batches: None
    with pytest.raises(StorageWriteError):
        run(writer.records.commits.commit(branch.number, version))
    assert writer.head(branch) == before
    assert run(writer.records.commits.commit(branch.number, version)).hash == version.hash
    assert faulty.durable_heads == 0


def test_a_version_that_another_one_follows_is_acknowledged(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    branch, other = writer.create("a"), Driver(store)

    def overtaken(batches: Sequence[Batch]) -> None:
        run(store.write(batches))
        other.commit(branch)

    faulty.fault = overtaken
    stored = writer.commit(branch)
    assert other.head(branch).seq == stored.seq + 1
    assert hashes(writer, branch.number)[1] == stored.hash
    assert writer.head(branch) == other.head(branch)


def test_a_version_that_lost_against_another_one_is_not_acknowledged(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    branch, other = writer.create("a"), Driver(store)
    version = writer.version(writer.head(branch).hash, 2)

    def lost(batches: Sequence[Batch]) -> None:
        other.commit(branch)
        run(store.write(batches))

    faulty.fault = lost
    with pytest.raises(StorageWriteError):
        run(writer.records.commits.commit(branch.number, version))
    assert version.hash not in hashes(writer, branch.number)
    with pytest.raises(StaleHead):
        run(writer.records.commits.commit(branch.number, version))


def test_of_several_versions_exactly_those_that_are_stored_are_acknowledged(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    first, second = writer.create("a"), writer.create("b")
    chain = [writer.version(writer.head(first).hash, 2)]
    chain.append(writer.version(chain[0].hash, 3))
    lone = writer.version(writer.head(second).hash, 2)
    faulty.fault = lambda batches: run(store.write(batches[:2]))
    commits = [(first.number, chain[0]), (first.number, chain[1]), (second.number, lone)]
    results = run(writer.records.commits.commit_all(commits))
    assert [type(result) for result in results] == [Head, Head, StorageWriteError]
    assert writer.head(first).hash == chain[1].hash
    assert writer.head(second).seq == 1


def test_a_thread_whose_creation_lost_its_answer_exists_once(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    faulty.fault = lambda batches: run(store.write(batches))
    branch = writer.create("a")
    assert writer.commit(branch).seq == 2
    faulty.fault = lambda batches: None
    with pytest.raises(StorageWriteError):
        writer.create("b")
    assert run(writer.records.threads.find(writer.space(), "b")) is None
    writer.create("b")
    faulty.fault = lambda batches: Driver(store).create("c")
    with pytest.raises(StorageWriteError):
        writer.create("c", body=digest("another"))
    assert run(writer.records.agreement.check()) == []


def test_a_store_that_can_not_be_read_either_leaves_the_outcome_unknown(
    writer: Driver, faulty: Faulty, store: Store
) -> None:
    branch = writer.create("a")
    version = writer.version(writer.head(branch).hash, 2)

    def away(batches: Sequence[Batch]) -> None:
        run(store.write(batches))
        faulty.unavailable = True

    faulty.fault = away
    with pytest.raises(StorageWriteError, match="before the answer came"):
        run(writer.records.commits.commit(branch.number, version))
    faulty.unavailable = False
    assert writer.head(branch).hash == version.hash
