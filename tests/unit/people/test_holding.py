"""Legal holds where several stores share a keyring."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import everthread
from everthread.errors import ErasedError, InvalidStateError, LegalHoldError, NotFoundError
from everthread.keyring.keyring import Keyring, MemoryKeyring, open_keyring
from everthread.people.holds import Holds
from everthread.people.lifetimes import Lifetimes
from everthread.threads.runtime import Runtime
from everthread.values import Personal

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
    keys = first.core.vault.keyring.key_ids("ann")
    assert keys, "not destroyed"
    first.release_hold("ann")
    second.gc()
    assert not first.core.vault.keyring.key_ids("ann")


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


class Clock:
    now_us = 1_800_000_000_000_000

    @property
    def runtime(self) -> Runtime:
        return Runtime(now_us=lambda: self.now_us)

    def after_a_minute(self) -> None:
        self.now_us += 61_000_000


@pytest.mark.parametrize("rotated", [False, True])
def test_a_hold_covers_single_values_with_a_time_of_their_own(opening: Opening, rotated: bool) -> None:
    clock = Clock()
    first, second = opening("first", runtime=clock.runtime), opening("second", runtime=clock.runtime)
    if rotated:
        # The hold is under the first key, and the value under the second.
        first.hold("ann", "case 16")
        first.rotate_keys("ann")
    for key in ("mail", "city"):
        first.users.set("ann", key, key.upper())
        first.users.expire("ann", 60, key=key)
    second.hold("ann", "case 17")
    clock.after_a_minute()
    assert first.gc(dry_run=True).subjects == first.users.sweep() == 0
    assert first.users.get("ann", "mail") is None, "kept, and yet shown to nobody"
    first.users.expire("ann", None, key="mail")
    assert first.users.get("ann", "mail") == "MAIL", "held: kept, and given more time"
    assert first.erasure_reports() == []
    second.release_hold("ann", "decided")
    if rotated:
        assert first.users.sweep() == 0
        first.release_hold("ann", "decided")
    assert first.gc(dry_run=True).subjects == 2
    assert first.users.sweep() == 2
    assert first.users.get("ann", "mail") == "MAIL"
    with pytest.raises(NotFoundError):
        first.users.expire("ann", None, key="city")


def test_a_value_is_covered_after_a_restored_backup_and_by_older_times(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    store = opening("first", runtime=clock.runtime)
    store.users.set("ann", "city", "Paris")
    store.users.expire("ann", 60, key="city")
    monkeypatch.setattr(Lifetimes, "_tell", _as_before)
    store.users.set("ann", "mail", "MAIL")
    store.users.expire("ann", 60, key="mail")
    monkeypatch.undo()
    store.backup(tmp_path / "backup")
    store.restore(tmp_path / "backup")
    store.hold("ann", "case 17")
    clock.after_a_minute()
    for _ in range(3):
        assert store.users.sweep() == 0
    trail = Holds(store.core).look(store.core.vault.keyring.key_ids("ann")).trail
    assert [each.what for each in trail] == ["held", "refused"], "once is enough in the record"
    store.release_hold("ann")
    assert store.users.sweep() == 2


def _as_before(self: Lifetimes, subject: str, key: str, until_us: int, of: str | None) -> None:
    """Whose a value is wasn't always noted."""
    told = {"until_us": until_us, "subject": Personal(subject, subject)}
    self.mark()
    self._loaded().update(lambda draft: draft.state.update({key: told}))


def test_nobody_s_name_outlives_them_with_the_time_of_a_value(opening: Opening) -> None:
    store = opening("first")
    store.users.set("ann", "mail", "MAIL")
    store.users.expire("ann", 60, key="mail")
    store.erase("ann")
    assert list(Lifetimes(store.core).kept().values()) == [None]


def test_a_store_knows_its_hold_after_keys_came_in(opening: Opening, tmp_path: Path) -> None:
    with everthread.open("memory:", keyring=MemoryKeyring()) as other:
        keep(other, "ann")
        other.export(tmp_path / "archive", keys="a passphrase that is long")
    store = opening("first")
    store.thread("own").update(lambda draft: draft.state.update(x=Personal("ann", "own")))
    store.hold("ann", "case 17")
    store.import_from(tmp_path / "archive", keys="a passphrase that is long")
    assert len(store.core.vault.keyring.key_ids("ann")) == 2
    assert store.erase("ann", dry_run=True).held == "case 17"
    with pytest.raises(LegalHoldError, match="case 17"):
        store.erase("ann")
    store.hold("ann", "case 18")
    store.release_hold("ann", "decided")
    assert store.erase("ann", dry_run=True).held is None
    assert store.erase("ann").complete


def test_holds_lists_what_is_in_force_and_names_nobody(opening: Opening) -> None:
    first, second = opening("first"), opening("second")
    assert first.holds() == []
    first.hold("ann", "case 1")
    first.hold("bob", "case 2")
    second.hold("bob", "case 3")
    with pytest.raises(LegalHoldError):
        first.erase("ann")
    own, of_bob, other = first.holds()
    assert (own.reason, own.refused, own.elsewhere) == ("case 1", 1, False)
    assert (of_bob.reason, of_bob.refused, other.elsewhere, other.reason) == ("case 2", 0, True, "")
    assert own.since is not None
    assert of_bob.key_id == other.key_id != own.key_id
    assert first.holds("ann") == [own]
    assert [hold.reason for hold in second.holds("bob")] == ["case 3", ""]
    assert first.holds("cid") == []
    assert "ann" not in repr(first.holds())
    first.release_hold("bob")
    assert [(hold.reason, hold.elsewhere) for hold in first.holds()] == [("case 1", False), ("", True)]
    first.release_hold("bob", everywhere=True)
    first.release_hold("ann")
    assert first.holds() == []
    assert [hold.reason for hold in second.holds()] == ["case 3"], "its own record is there to be released"


def test_an_async_store_lists_its_holds(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with everthread.open_async(f"sqlite:///{tmp_path}/a.db", keyring=MemoryKeyring()) as store:
            await store.hold("ann", "case 1")
            return [hold.reason for hold in await store.holds()]

    assert asyncio.run(main()) == ["case 1"]
