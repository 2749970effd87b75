"""Versions land on the head that they build on and on no other, with everything they are found by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everthread.records.commits import LeaseLost, StaleHead
from everthread.records.entries import Entry
from everthread.records.heads import HEAD_MAX, Head, decode_head, digest_metadata, encode_head, with_digests
from everthread.records.registers import lease_guard
from everthread.records.rewrites import Replacement
from everthread.records.tables import BRANCH, COUNTER, HEAD, MARK, NAMESPACE, TABLES, UID
from everthread.stores.contract import (
    DELTA,
    NOTED,
    PRUNED,
    REWIND,
    ErasedKey,
    KeyErased,
    KeyKnown,
    NameTaken,
    Row,
    SourceGone,
    VersionGone,
)
from everthread.stores.interface import Store, run
from tests.unit.records.conftest import SPACE, Driver, digest

Another = Callable[[], Driver]
KEY = b"k" * 16


def test_a_head_starts_with_its_hash_and_revision_and_is_short() -> None:
    head = Head(digest("x"), 7, 12, 5_000, 60, 3)
    stored = encode_head(head)
    assert stored.startswith(digest("x") + (3).to_bytes(8, "big"))
    assert decode_head(stored) == head
    many = {f"name {number}": digest(str(number))[:16] for number in range(200)}
    long, puts = with_digests(head, many)
    assert len(encode_head(long)) <= HEAD_MAX
    assert len(puts) == 1
    assert decode_head(encode_head(long)) == long


def test_only_one_of_two_commits_on_one_head_is_stored(driver: Driver, another: Another) -> None:
    branch, other = driver.create("a"), another()
    head = other.head(branch)
    stored = driver.commit(branch)
    with pytest.raises(StaleHead) as stale:
        run(other.records.commits.commit(branch.number, other.version(head.hash, 2)))
    assert stale.value.head == stored
    assert next(row.hash for row in run(driver.records.rows.scan(branch.number, 9, 9))) == stored.hash


def test_a_commit_keeps_metadata_that_was_indexed_meanwhile(driver: Driver, another: Another) -> None:
    """A redaction replaces an index value without a new version. A writer with the head of before must not
    bring the old value back."""
    branch, other = driver.create("a", metadata={"who": b"Ann"}), another()
    head = other.head(branch)
    redacted = digest_metadata("who", b"***")
    run(driver.records.commits.index(branch, 1, {"who": redacted}))
    assert driver.head(branch).hash == head.hash
    stored = run(other.records.commits.commit(branch.number, other.version(head.hash, 2)))
    assert run(driver.records.commits.digests(stored)) == {"who": redacted}
    find = driver.records.threads.with_metadata
    assert run(find(driver.space(), [digest_metadata("who", b"Ann")], None, 9)) == []
    assert driver.names(run(find(driver.space(), [redacted], None, 9))) == ["a"]


def test_versions_of_one_branch_in_one_write_count_in_their_order(driver: Driver, another: Another) -> None:
    branch, second = driver.create("a"), driver.create("b")
    first = driver.version(driver.head(branch).hash, 2)
    chain = [first, driver.version(first.hash, 3)]
    lone, stale = driver.version(driver.head(second).hash, 2), driver.version(digest("nothing"), 2)
    versions = [(branch.number, chain[0]), (second.number, stale), (branch.number, chain[1])]
    results = run(driver.records.commits.commit_all([*versions, (second.number, lone)]))
    assert [type(result) for result in results] == [Head, StaleHead, Head, Head]
    assert driver.head(branch).hash == chain[1].hash
    assert driver.head(second).hash == lone.hash


def test_versions_that_follow_a_replanned_one_are_replanned_with_it(driver: Driver, another: Another) -> None:
    branch, other = driver.create("a"), another()
    head = other.head(branch)
    run(driver.records.commits.index(branch, 1, {"x": digest_metadata("x", b"1")}))
    first = other.version(head.hash, 2)
    second = other.version(first.hash, 3)
    results = run(other.records.commits.commit_all([(branch.number, first), (branch.number, second)]))
    assert [result.hash for result in results if isinstance(result, Head)] == [first.hash, second.hash]


def test_versions_of_one_write_know_what_the_earlier_ones_indexed(driver: Driver) -> None:
    long = {f"name {number}": b"1" for number in range(100)}
    branch = driver.create("a", metadata=long)
    first = driver.version(driver.head(branch).hash, 2, metadata={"name 1": b"2"}, key=KEY)
    second = driver.version(first.hash, 3, metadata={"name 1": b"3"}, key=KEY)
    run(driver.records.commits.commit_all([(branch.number, first), (branch.number, second)]))
    find, space = driver.records.threads.with_metadata, driver.space()
    found = [run(find(space, [digest_metadata("name 1", value)], None, 9)) for value in (b"1", b"2", b"3")]
    assert [driver.names(heads) for heads in found] == [[], [], ["a"]]
    expected = [(branch.number, 2), (branch.number, 3)]
    assert run(driver.records.commits.find_commit_key([(branch.number, 9)], KEY)) == expected


def test_a_name_is_free_again_after_a_deletion_only(driver: Driver) -> None:
    branch = driver.create("a")
    with pytest.raises(NameTaken):
        driver.create("a")
    assert run(driver.records.deletion.delete(branch))
    assert not run(driver.records.deletion.delete(branch))
    again = driver.create("a")
    with pytest.raises(StaleHead) as stale:
        run(driver.records.commits.commit(branch.number, driver.version(digest("x"), 2)))
    assert stale.value.head is None
    assert again.number != branch.number


def test_a_key_that_must_be_new_is_refused_in_the_branch_and_its_forks(driver: Driver) -> None:
    branch = driver.create("a", key=KEY, key_is_new=True)
    with pytest.raises(KeyKnown):
        driver.commit(branch, key=KEY, key_is_new=True)
    fork = driver.fork(branch, 1, "fork")
    with pytest.raises(KeyKnown):
        driver.commit(fork, key=KEY, key_is_new=True)
    driver.commit(fork, key=KEY)
    late = b"l" * 16
    driver.commit(branch, key=late, key_is_new=True)
    driver.commit(fork, key=late, key_is_new=True)
    find = driver.records.commits.find_commit_key
    assert run(find([(fork.number, 9), (branch.number, 1)], KEY)) == [(fork.number, 2), (branch.number, 1)]


def test_a_commit_under_a_lease_lands_after_heartbeats_and_not_after_a_take_over(
    driver: Driver, another: Another
) -> None:
    branch = driver.create("a")
    registers, space = driver.records.registers, driver.space()
    taken = run(registers.compare_and_set(space, "lease", 0, b"run 1", 10))
    assert taken is not None
    lease = lease_guard(space, "lease", taken.token)
    beat = run(registers.compare_and_set(space, "lease", taken.revision, b"run 1, alive", 20))
    assert beat is not None
    stored = driver.commit(branch, lease=lease)
    run(another().records.registers.compare_and_set(space, "lease", beat.revision, b"2", 30, take_over=True))
    with pytest.raises(LeaseLost):
        driver.commit(branch, lease=lease)
    assert driver.head(branch) == stored


def test_nothing_is_sealed_under_an_erased_key(driver: Driver) -> None:
    branch = driver.create("a")
    run(driver.records.erasures.note([ErasedKey(key_id=KEY, phase=NOTED)]))
    before = driver.head(branch)
    with pytest.raises(KeyErased) as erased:
        driver.commit(branch, sealed=((b"v" * 16, KEY, b"ciphertext"),))
    assert erased.value.key_ids == {KEY}
    assert driver.head(branch) == before
    assert run(driver.records.sealed.get([b"v" * 16])) == {}


def test_a_pruned_version_can_be_neither_forked_nor_rewound_to(driver: Driver) -> None:
    branch = driver.create("a")
    driver.commit(branch)
    old = run(driver.records.rows.between(branch.number, 1, 1))
    stub = Row(1, 1, PRUNED, old[0].hash, b"tombstone", b"net")
    pruning = Replacement(old=old, rows=[stub], seen=[(branch.number, 2)])
    assert run(driver.records.rewrites.replace(branch.number, pruning))
    with pytest.raises(VersionGone):
        driver.fork(branch, 1, "fork")
    with pytest.raises(VersionGone):
        driver.commit(branch, kind=REWIND, source=(branch.number, 1))
    driver.fork(branch, 2, "fork")
    driver.commit(branch, kind=REWIND, source=(branch.number, 2))


def test_a_deleted_thread_can_not_be_forked(driver: Driver, another: Another) -> None:
    branch, other = driver.create("a"), another()
    assert other.head(branch)
    assert run(other.records.branches.get(branch.number)) == branch
    run(driver.records.deletion.delete(branch))
    with pytest.raises(SourceGone):
        other.fork(branch, 1, "fork")


def test_a_replacement_is_refused_after_a_fork_a_rewind_or_a_compaction(driver: Driver) -> None:
    branch = driver.create("a")
    for _ in range(3):
        driver.commit(branch)

    def pruning(seen: int) -> Replacement:
        old = run(driver.records.rows.between(branch.number, 1, 1))
        stub = Row(1, 1, PRUNED, old[0].hash, b"tombstone", b"net")
        return Replacement(old=old, rows=[stub], seen=[(branch.number, seen)])

    plan = pruning(4)
    driver.fork(branch, 2, "fork")
    assert not run(driver.records.rewrites.replace(branch.number, plan))
    driver.commit(branch, kind=REWIND, source=(branch.number, 2))
    assert not run(driver.records.rewrites.replace(branch.number, plan))
    kinds = [row.kind for row in run(driver.records.rows.scan(branch.number, 9, 9))]
    assert kinds == [REWIND, DELTA, DELTA, DELTA, DELTA]


def test_entries_come_and_go_with_versions_and_leave_with_the_thread(driver: Driver) -> None:
    branch, other = driver.create("a"), driver.create("b")
    question = Entry("decision", 5, "a", b"id 1", b"which colour?")
    later = Entry("decision", 9, "a", b"id 2", b"which size?")
    foreign = Entry("decision", 7, "b", b"id 3")
    driver.commit(branch, entries=[question, later])
    driver.commit(other, entries=[foreign, Entry("decisions", 1, "b")])
    page = driver.records.entries.page
    space = driver.space()
    assert run(page(space, "decision", limit=9)) == [question, foreign, later]
    assert run(page(space, "decision", limit=9, reverse=True)) == [later, foreign, question]
    assert run(page(space, "decision", limit=1, after=question)) == [foreign]
    driver.commit(branch, closed_entries=[question])
    assert run(page(space, "decision", limit=9)) == [foreign, later]
    run(driver.records.deletion.delete(branch))
    assert run(page(space, "decision", limit=9)) == [foreign]


def test_expired_threads_are_listed_without_reading_others(driver: Driver) -> None:
    driver.create("never")
    soon, late = driver.create("soon", at_us=100, ttl_us=50), driver.create("late", at_us=100, ttl_us=500)
    expired = driver.records.entries.expired
    assert run(expired(driver.space(), 149, 9)) == []
    assert run(expired(driver.space(), 150, 9)) == ["soon"]
    assert run(expired(driver.space(), 600, 9)) == ["soon", "late"]
    driver.commit(soon, at_us=120, ttl_us=1_000)
    driver.commit(late, at_us=120)
    assert run(expired(driver.space(), 5_000, 9)) == ["soon"]
    run(driver.records.deletion.delete(soon))
    assert run(expired(driver.space(), 5_000, 9)) == []


def test_a_deletion_leaves_nothing_but_the_identity(driver: Driver, store: Store) -> None:
    branch = driver.create("a", metadata={"who": b"Ann"}, key=KEY, ttl_us=9)
    driver.commit(branch, entries=[Entry("decision", 5, "a")], metadata={"x" * 900: b"long"})
    fork = driver.fork(branch, 1, "fork")
    driver.commit(fork, key=KEY)
    assert run(driver.records.deletion.delete(branch))
    # Its history is the fork's.
    assert [row.seq for row in run(driver.records.rows.scan(branch.number, 9, 9))] == [2, 1]
    assert run(driver.records.deletion.delete(fork))
    assert run(driver.records.rows.scan(branch.number, 9, 9)) == []
    kept = {BRANCH.number, UID.number, MARK.number, NAMESPACE.number, COUNTER.number}
    left = {
        table.name: run(store.walk(table.number, None, 9)) for table in TABLES if table.number not in kept
    }
    assert {name: found for name, found in left.items() if found} == {}
    assert [change.head for change in run(driver.records.threads.changes(driver.space(), b"", 9))] == [
        None
    ] * 2


def test_long_metadata_is_found_by_all_its_values(driver: Driver) -> None:
    metadata = {f"name {number}": str(number).encode() for number in range(100)}
    branch = driver.create("a", metadata=metadata)
    driver.create("b", metadata={"name 7": b"7"})
    (content,) = run(driver.records.store.get((HEAD.number, driver.space(), b"a")))
    assert content is not None
    assert len(content) <= HEAD_MAX
    find = driver.records.threads.with_metadata
    wanted = [digest_metadata(name, value) for name, value in metadata.items()]
    assert driver.names(run(find(driver.space(), wanted, None, 9))) == ["a"]
    driver.commit(branch, metadata={"name 7": b"seven"})
    assert run(find(driver.space(), wanted, None, 9)) == []
    assert driver.names(run(find(driver.space(), wanted[7:8], None, 9))) == ["b"]


def test_changes_come_once_each_oldest_first_with_deletions(driver: Driver) -> None:
    a, b = driver.create("a"), driver.create("b")
    threads, space = driver.records.threads, driver.space()
    assert [change.name for change in run(threads.changes(space, b"", 9))] == ["a", "b"]
    driver.commit(a)
    page = run(threads.changes(space, b"", 9))
    assert [change.name for change in page] == ["b", "a"]
    assert page[1].head == driver.head(a)
    cursor = page[0].cursor
    run(driver.records.deletion.delete(b))
    assert [(c.name, c.head is None) for c in run(threads.changes(space, cursor, 9))] == [
        ("a", False),
        ("b", True),
    ]
    assert run(threads.changes(space, run(threads.changes(space, b"", 9))[-1].cursor, 9)) == []
    driver.create("c")
    assert [change.name for change in run(threads.recent(space, b"", 1))] == ["c"]
    assert [change.name for change in run(threads.recent(space, b"", 9))] == ["c", "a"]


def test_numbers_are_given_out_once(driver: Driver, another: Another) -> None:
    drivers = [driver, another(), another()]
    made = [each.create(f"{index} {turn}") for turn in range(50) for index, each in enumerate(drivers)]
    assert len({branch.number for branch in made}) == len(made)
    assert {run(each.records.namespaces.find(SPACE)) for each in drivers} == {driver.space()}
    assert run(driver.records.namespaces.names()) == [SPACE]
