"""Faults planted into the stores and the rules: the tests that promise to notice them do.

Each of these runs a test that passes on the code as it is, and expects it to fail on a faulty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.records.commits import LeaseLost
from everthread.records.registers import Registers
from everthread.records.rewrites import Rewrites
from everthread.records.tables import TABLES
from everthread.stores import interface
from everthread.stores.interface import Batch, Guard, run
from everthread.stores.memory_store import MemoryStore
from everthread.stores.sqlite import connection, ordered_store, tables
from tests.contract import test_contract, test_sqlite_crash
from tests.contract.stores import STORES
from tests.unit.records import test_agreement, test_commits, test_registers_and_streams, test_rewrites
from tests.unit.records.conftest import Driver

Patch = pytest.MonkeyPatch
Check = Callable[[Any], None]


@pytest.fixture
def open_store(kind: str, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Open a new, empty store of this kind, after the fault was planted."""
    opened: list[Any] = []

    def open_new() -> Any:
        place = tmp_path / str(len(opened))
        place.mkdir()
        opened.append(STORES[kind](place))
        return opened[-1]

    yield open_new
    for each in opened:
        run(each.close())


def passes_without_and_fails_with(
    plant: Callable[[Patch], None],
    check: Callable[[], None],
    monkeypatch: Patch,
    *failures: type[BaseException],
) -> None:
    check()
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, *failures)):
            check()


# ── a guard that is always true ──


def no_guard_is_checked(patch: Patch) -> None:
    def anything(guard: Guard, value: bytes | None) -> bool:
        return True

    patch.setattr(interface, "holds", anything)
    patch.setattr(ordered_store, "holds", anything)


def no_guard_of_the_hot_path_is_checked(patch: Patch) -> None:
    real = tables.Layout.commit_one

    def unguarded(self: tables.Layout, batch: Batch) -> tuple[Any, ...] | None:
        return (
            real(self, batch._replace(guards=[batch.guards[0]._replace(prefix=b"")]))
            if batch.guards
            else None
        )

    patch.setattr(tables.Layout, "commit_one", unguarded)


@pytest.mark.parametrize(
    "check",
    [
        test_contract.test_a_guard_compares_a_prefix_or_absence_or_presence,
        test_contract.test_the_first_failing_guard_is_reported_and_nothing_is_written,
        test_contract.test_a_guard_on_a_deleted_key_of_a_followed_table_finds_it_absent,
    ],
)
def test_a_guard_that_is_always_true_is_caught(
    check: Check, open_store: Callable[[], Any], monkeypatch: Patch
) -> None:
    passes_without_and_fails_with(no_guard_is_checked, lambda: check(open_store()), monkeypatch)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_guard_of_the_hot_path_that_is_always_true_is_caught(
    open_store: Callable[[], Any], monkeypatch: Patch
) -> None:
    def check() -> None:
        test_contract.test_the_hot_path_keeps_every_promise(open_store(), b"hash-0", None, None)

    passes_without_and_fails_with(no_guard_of_the_hot_path_is_checked, check, monkeypatch)


def test_lost_updates_of_threads_by_a_guard_that_is_always_true_are_caught(monkeypatch: Patch) -> None:
    def check() -> None:
        store = MemoryStore(TABLES)
        test_commits.test_only_one_of_two_commits_on_one_head_is_stored(Driver(store), lambda: Driver(store))

    # Nothing is refused, which is how the test fails.
    passes_without_and_fails_with(no_guard_is_checked, check, monkeypatch, pytest.fail.Exception)


# ── stamps that aren't unique ──


def stamps_repeat(patch: Patch) -> None:
    real: Any = MemoryStore._change

    def change(self: Any, *key_and_value: Any, **rest: Any) -> None:
        # Two changes share a stamp.
        if self._stamp % 2:
            self._stamp -= 1
        real(self, *key_and_value, **rest)

    patch.setattr(MemoryStore, "_change", change)
    followed = tables._SQL["followed"]
    patch.setitem(followed, "create", followed["create"].replace("UNIQUE INDEX", "INDEX"))
    patch.setitem(
        followed,
        "put",
        followed["put"]
        .replace("max(stamp) + 1", "max(stamp)")
        .replace("max(stamp), 0) + 1", "max(stamp), 1)"),
    )


@pytest.mark.parametrize(
    "check",
    [
        test_contract.test_the_feed_holds_each_key_once_under_its_newest_stamp,
        test_contract.test_pages_of_one_over_a_write_of_many_batches_miss_nothing,
        test_contract.test_stamps_never_repeat,
    ],
)
def test_a_stamp_that_is_not_unique_is_caught(
    check: Check, open_store: Callable[[], Any], monkeypatch: Patch
) -> None:
    passes_without_and_fails_with(stamps_repeat, lambda: check(open_store()), monkeypatch)


def test_verify_names_threads_that_share_a_stamp(monkeypatch: Patch) -> None:
    def check() -> None:
        assert test_agreement.Planted(Driver(MemoryStore(TABLES))).problems() == []

    passes_without_and_fails_with(stamps_repeat, check, monkeypatch)


# ── a skipped sync ──


def no_commit_is_synced(patch: Patch) -> None:
    real = connection.synchronous

    def weaker(db: Any, durability: str) -> None:
        real(db, "process")

    patch.setattr(connection, "synchronous", weaker)
    patch.setattr(ordered_store, "synchronous", weaker)


def test_a_skipped_sync_is_caught(tmp_path: Path, monkeypatch: Patch) -> None:
    places = iter((tmp_path / "sound", tmp_path / "faulty"))

    def check() -> None:
        place = next(places)
        place.mkdir()
        test_sqlite_crash.test_a_power_cut_loses_nothing_that_was_acknowledged(place, failing=False)

    passes_without_and_fails_with(no_commit_is_synced, check, monkeypatch)


# ── a heartbeat that changes the owner token ──


def every_write_takes_over(patch: Patch) -> None:
    real: Any = Registers.compare_and_set

    def compare_and_set(self: Any, *args: Any, **options: Any) -> Any:
        return real(self, *args, **options | {"take_over": True})

    patch.setattr(Registers, "compare_and_set", compare_and_set)


def test_a_heartbeat_that_changes_the_token_is_caught(monkeypatch: Patch) -> None:
    def keeps_token() -> None:
        test = test_registers_and_streams.test_a_heartbeat_keeps_the_owner_token_and_a_take_over_replaces_it
        test(Driver(MemoryStore(TABLES)))

    def keeps_lease() -> None:
        store = MemoryStore(TABLES)
        test = test_commits.test_a_commit_under_a_lease_lands_after_heartbeats_and_not_after_a_take_over
        test(Driver(store), lambda: Driver(store))

    passes_without_and_fails_with(every_write_takes_over, keeps_token, monkeypatch)
    passes_without_and_fails_with(every_write_takes_over, keeps_lease, monkeypatch, LeaseLost)


# ── a prune that doesn't name the span of its versions ──


def only_the_rows_seen_are_replaced(patch: Patch) -> None:
    real: Any = Rewrites._apply

    def apply(self: Any, batch: Batch) -> Any:
        if not batch.derived:
            # Only the last number of the span, under which the pack was stored.
            batch = batch._replace(deletes=[span._replace(start=span.stop - 1) for span in batch.deletes])  # type: ignore[operator]
        return real(self, batch)

    patch.setattr(Rewrites, "_apply", apply)


def test_a_prune_without_its_span_is_caught(monkeypatch: Patch) -> None:
    check = test_rewrites.test_versions_that_were_pruned_do_not_come_back_in_a_store_rebuilt_without_packs
    passes_without_and_fails_with(only_the_rows_seen_are_replaced, check, monkeypatch)
