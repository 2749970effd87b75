"""Legal holds where several stores share a keyring."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import everthread
from everthread.errors import ErasedError, InvalidStateError, LegalHoldError
from everthread.model.values import Personal
from everthread.stores.keyring import Keyring, MemoryKeyring, open_keyring
from everthread.threads.runtime import Runtime

Opening = Callable[..., everthread.Store]


@pytest.fixture(params=["memory", "file", "sqlite"])
def keyring(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Keyring]:
    if request.param == "memory":
        yield MemoryKeyring()
        return
    spec = str(tmp_path / "keys") if request.param == "file" else f"sqlite:///{tmp_path}/keys.db"
    found = open_keyring(spec)
    yield found
    found.close()


@pytest.fixture
def opening(keyring: Keyring, tmp_path: Path) -> Iterator[Opening]:
    opened: list[everthread.Store] = []

    def open_it(name: str, **options: object) -> everthread.Store:
        url = f"sqlite:///{tmp_path}/{name}.db" if name != "files" else f"file://{tmp_path}/files"
        store = everthread.open(url, keyring=keyring, durability="process", **options)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


def keep(store: everthread.Store, *subjects: str) -> everthread.Thread:
    thread = store.thread("t")
    for subject in subjects:
        thread.state[subject] = Personal(subject, f"evidence of {subject}")
    thread.commit()
    return thread


def test_a_hold_counts_in_every_store_on_the_keyring(opening: Opening) -> None:
    first, second = opening("first"), opening("files")
    thread = keep(first, "ann", "bob")
    keep(second, "ann")
    first.hold("ann", "case 17")
    assert second.erase("ann", dry_run=True).held == "placed through another store on the same keyring"
    with pytest.raises(LegalHoldError, match="another store"):
        second.erase("ann")
    # Others go, the lines of the keyring are written anew, and the hold stays.
    assert second.erase("bob")
    second.rotate_keys()
    second.rotate_keys("ann")
    with pytest.raises(LegalHoldError):
        second.erase("ann")
    assert thread.state["ann"].value == "evidence of ann"
    with pytest.raises(InvalidStateError, match="another store"):
        second.release_hold("ann")
    first.release_hold("ann", "decided")
    assert second.erase("ann")
    with pytest.raises(InvalidStateError, match="no legal hold"):
        first.release_hold("ann")


def test_each_store_releases_its_own(opening: Opening) -> None:
    first, second, third = opening("first"), opening("second"), opening("files")
    for store in (first, second, third):
        keep(store, "ann")
    first.hold("ann", "case 1")
    second.hold("ann", "case 2")
    first.hold("ann", "case 1, still")
    first.release_hold("ann")
    for store in (first, third):
        with pytest.raises(LegalHoldError, match="another store"):
            store.erase("ann")
    with pytest.raises(LegalHoldError, match="case 2"):
        second.erase("ann")
    second.release_hold("ann")
    assert third.erase("ann")


def test_a_hold_of_a_store_that_is_gone_can_be_released(opening: Opening) -> None:
    keep(gone := opening("gone"), "ann")
    gone.hold("ann", "case 3")
    gone.close()
    keep(store := opening("files"), "ann")
    with pytest.raises(LegalHoldError):
        store.erase("ann")
    store.release_hold("ann", "the court says so", everywhere=True)
    assert store.erase("ann")


def test_a_time_that_is_over_erases_nobody_who_is_held_elsewhere(opening: Opening) -> None:
    now_us = [1_800_000_000_000_000]
    runtime = Runtime(now_us=lambda: now_us[0])
    first, second = opening("first", runtime=runtime), opening("second", runtime=runtime)
    keep(first, "ann")
    keep(second, "ann")
    first.hold("ann", "case 4")
    second.users.expire("ann", datetime.timedelta(seconds=1))
    now_us[0] += 5_000_000
    second.gc()
    keys = first._core.vault.keyring.key_ids("ann")
    assert keys, "not destroyed"
    first.release_hold("ann")
    second.gc()
    assert not first._core.vault.keyring.key_ids("ann")


def test_a_hold_that_comes_after_an_erasure_elsewhere(
    opening: Opening, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opening("first"), opening("second")
    keep(first, "ann")
    keep(second, "ann")
    original = type(keyring).set_hold

    def erased_just_before(self: Keyring, key_id: bytes, by: bytes, *, on: bool) -> bool:
        monkeypatch.undo()
        assert second.erase("ann")
        return original(self, key_id, by, on=on)

    monkeypatch.setattr(type(keyring), "set_hold", erased_just_before)
    with pytest.raises(ErasedError, match="too late"):
        first.hold("ann", "case 5")


def test_a_release_at_the_same_moment_leaves_a_keyring_that_can_be_read(
    opening: Opening, keyring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, second = opening("first"), opening("second")
    keep(store, "ann")
    original = type(keyring).set_hold

    def released_just_before(self: Keyring, key_id: bytes, by: bytes, *, on: bool) -> bool:
        monkeypatch.undo()
        store.release_hold("ann")
        return original(self, key_id, by, on=on)

    monkeypatch.setattr(type(keyring), "set_hold", released_just_before)
    store.hold("ann", "case 7")
    # Whichever came last: where it is doubtful the hold stays, and can be ended.
    with pytest.raises(LegalHoldError):
        second.erase("ann")
    second.release_hold("ann", everywhere=True)
    assert second.erase("ann")


def test_an_async_store_keeps_it_too(opening: Opening, keyring: Keyring, tmp_path: Path) -> None:
    keep(opening("first"), "ann")

    async def run() -> None:
        url = f"sqlite:///{tmp_path}/async.db"
        async with await everthread.open_async(url, keyring=keyring, durability="process") as store:
            await store.hold("ann", "case 6")
            with pytest.raises(LegalHoldError):
                opening("first").erase("ann")
            await store.release_hold("ann", "decided")

    asyncio.run(run())
    assert opening("first").erase("ann")
