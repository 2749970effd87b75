"""Every disagreement between a thread and what it is looked up by is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from everthread.records.backend import RecordsBackend
from everthread.records.branches import Branch, put_branch
from everthread.records.commits import commit_key
from everthread.records.entries import Entry, delete_entry, put_entry
from everthread.records.heads import digest_metadata, encode_head, expiry_at, head_key, metadata_at
from everthread.records.keys import Put, only
from everthread.records.tables import EXPIRY, HEAD, METADATA, ROW, TABLES
from everthread.stores.interface import Batch, Feed, Query, Span, Store, run
from everthread.stores.memory_store import MemoryStore
from tests.unit.records.conftest import Driver, digest

KEY = b"k" * 16
DECISION = Entry("decision", 5, "a", b"1", b"red or blue?")
WHO = digest_metadata("who", b"Ann")


class Planted:
    """A store with two threads, a fork and a deleted thread, and ways to damage what they are found by."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.records = driver, driver.records
        fields: dict[str, Any] = {"metadata": {"who": b"Ann"}, "ttl_us": 1_000, "entries": [DECISION]}
        self.branch = driver.create("a", key=KEY, **fields)
        driver.commit(self.branch, ttl_us=1_000)
        driver.create("long", metadata={f"name {number}": b"1" for number in range(100)})
        self.fork = driver.fork(self.branch, 1, "fork")
        run(driver.records.deletion.delete(driver.create("deleted", **fields | {"entries": []})))
        self.space = driver.space()

    def write(self, puts: list[Put] = [], deletes: list[Span] = []) -> None:  # noqa: B006 - never changed
        run(self.records.store.write([Batch(puts=puts, deletes=deletes)]))

    def put_head(self, **fields: Any) -> None:
        head = msgspec.structs.replace(self.driver.head(self.branch), **fields)
        self.write([(head_key(self.space, "a"), encode_head(head))])

    def put_branch(self, branch: Branch, **fields: Any) -> None:
        self.write(put_branch(msgspec.structs.replace(branch, **fields)))

    def problems(self) -> list[str]:
        return run(self.records.agreement.check())


@pytest.fixture
def planted(driver: Driver) -> Planted:
    return Planted(driver)


def no_metadata_entry(planted: Planted) -> None:
    planted.write(deletes=[only(METADATA, planted.space, metadata_at(WHO, "a"))])


def metadata_entry_of_another_value(planted: Planted) -> None:
    planted.write([((METADATA.number, planted.space, metadata_at(b"?" * 16, "long")), b"")])


def metadata_entry_of_no_thread(planted: Planted) -> None:
    planted.write([((METADATA.number, planted.space, metadata_at(WHO, "deleted")), b"")])


def no_expiry_entry(planted: Planted) -> None:
    at = expiry_at(planted.driver.head(planted.branch), "a")
    assert at is not None
    planted.write(deletes=[only(EXPIRY, planted.space, at)])


def second_expiry_entry(planted: Planted) -> None:
    planted.write([((EXPIRY.number, planted.space, (77).to_bytes(8, "big") + b"a"), b"")])


def no_entry(planted: Planted) -> None:
    planted.write(deletes=delete_entry(planted.space, planted.branch.number, DECISION)[:1])


def entry_without_reference(planted: Planted) -> None:
    planted.write(deletes=delete_entry(planted.space, planted.branch.number, DECISION)[1:])


def entry_of_no_thread(planted: Planted) -> None:
    planted.write(put_entry(planted.space, 99, DECISION._replace(thread="deleted"))[:1])


def commit_key_of_no_version(planted: Planted) -> None:
    planted.write([(commit_key(planted.branch.number, b"x" * 16), msgspec.msgpack.encode([1, 9]))])


def head_behind_its_rows(planted: Planted) -> None:
    planted.put_head(seq=1)


def head_with_another_hash(planted: Planted) -> None:
    planted.put_head(hash=digest("another"))


def newest_row_lost(planted: Planted) -> None:
    planted.write(deletes=[only(ROW, planted.branch.number, 2)])


def head_of_no_branch(planted: Planted) -> None:
    planted.put_head(branch=4_000)


def head_of_a_deleted_branch(planted: Planted) -> None:
    planted.put_branch(planted.branch, deleted=True)


def branch_of_another_name(planted: Planted) -> None:
    planted.put_branch(planted.branch, name="fork")


def name_lost(planted: Planted) -> None:
    planted.write(deletes=[only(HEAD, planted.space, b"fork")])


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (no_metadata_entry, ["thread 'a' isn't found by its metadata 'who': the entry is missing"]),
        (metadata_entry_of_another_value, ["thread 'long' is found by metadata that it doesn't have (3f3f"]),
        (metadata_entry_of_no_thread, ["thread 'deleted' is found by metadata that it doesn't have"]),
        (no_expiry_entry, ["thread 'a' isn't found by its expiry: the entry is missing"]),
        (second_expiry_entry, ["thread 'a' has an expiry entry of another time than its own"]),
        (no_entry, ["thread 'a' isn't found by its entry of kind 'decision': the entry is missing"]),
        (entry_without_reference, ["an entry of kind 'decision' of thread 'a' isn't listed with the thread"]),
        (entry_of_no_thread, ["an entry of kind 'decision' belongs to thread 'deleted', which"]),
        (commit_key_of_no_version, [f"commit key {'78' * 16} names version 9 of branch 1"]),
        (head_behind_its_rows, ["thread 'a' has version 2 as its newest, but its head says 1"]),
        (head_with_another_hash, ["thread 'a' has another hash in its head than in its newest version 2"]),
        (newest_row_lost, ["thread 'a' has version 1 as its newest, but its head says 2"]),
        (
            head_of_no_branch,
            ["thread 'a' is branch 4000, which doesn't exist", "the name 'a' leads to branch 4000, not to 1"],
        ),
        (head_of_a_deleted_branch, ["the name 'a' leads to branch 1, which was deleted"]),
        (branch_of_another_name, ["the name 'a' leads to branch 1, which has the name 'fork'"]),
        (name_lost, ["thread 'fork' isn't found by its name: branch"]),
    ],
)
def test_a_planted_disagreement_is_named(
    planted: Planted, plant: Callable[[Planted], None], words: list[str], store: Store
) -> None:
    assert planted.problems() == []
    plant(planted)
    problems = planted.problems()
    for expected in words:
        assert any(problem.startswith(expected) for problem in problems), problems
    assert RecordsBackend(store).check() == problems


class _Feeds(MemoryStore):
    """A store whose feed can be made wrong."""

    def __init__(self, store: MemoryStore, wrong: Callable[[list[Any]], list[Any]]) -> None:
        self.__dict__.update(store.__dict__)
        self.wrong = wrong

    def _answer(self, query: Query) -> list[Any]:
        found = super()._answer(query)
        return self.wrong(found) if isinstance(query, Feed) and not query.after else found


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda page: page[1:], "thread 'a' is missing from the feed"),
        (lambda page: [page[1], page[0], *page[2:]], "the feed repeats or goes back at thread 'a'"),
        (lambda page: [page[0], (page[0][0], *page[1][1:]), *page[2:]], "the feed repeats or goes back at"),
    ],
    ids=["missing", "out of order", "stamp not unique"],
)
def test_a_wrong_feed_is_named(wrong: Callable[[list[Any]], list[Any]], words: str) -> None:
    store = MemoryStore(TABLES)
    planted = Planted(Driver(store))
    assert planted.problems() == []
    problems = run(Driver(_Feeds(store, wrong)).records.agreement.check())
    assert any(problem.startswith(words) for problem in problems), problems
