"""Keys that travel in an archive, by choice: under a secret, found by name, and never those of the erased."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

import everthread
from everthread import Erased, Personal
from everthread.codec.archive import KeysEntry
from everthread.errors import InvalidValueError, KeyringError, SealError
from everthread.keyring.keyring import Keyring, MemoryKeyring, open_keyring
from everthread.keyring.parcel import ParcelSecret
from everthread.transfer.archive_file import ArchiveReader
from tests.properties.erasure import files_in

SECRET = "correct horse battery"


def open_store(folder: Path, name: str, keyring: str = "") -> everthread.Store:
    keys = keyring or str(folder / f"{name}-keys")
    return everthread.open(f"sqlite:///{folder}/{name}.db", keyring=keys, durability="process")


def fill(store: everthread.Store) -> None:
    thread = store.thread("a")
    thread.state["ann"] = Personal("ann", "ann's")
    thread.state["bob"] = Personal("bob", "bob's")
    thread.messages.append({"content": Personal(["ann", "bob"], "of both")})
    thread.commit()
    store.rotate_keys("ann")
    thread.state["newer"] = Personal("ann", "under a second key")
    thread.commit()
    store.users.set("ann", "city", "Paris")
    store.users.set("cat", "city", "Rome")
    store.events("e").append("x", {"who": Personal("dan", 5)})


def check(store: everthread.Store) -> None:
    thread = store.thread("a")
    assert [thread.state[k].value for k in ("ann", "bob", "newer")] == [
        "ann's",
        "bob's",
        "under a second key",
    ]
    assert thread.messages[0]["content"].value == "of both"
    assert store.users.get("ann", "city") == "Paris"
    assert store.users.get("cat", "city") == "Rome"
    assert [event.data["who"].value for event in store.events("e").replay()] == [5]


KEYRINGS = ["directory", "sqlite", "memory"]


@pytest.mark.parametrize("kind", KEYRINGS)
@pytest.mark.parametrize("secret", [SECRET, b"k" * 32])
def test_with_its_keys_everything_opens_elsewhere(tmp_path: Path, kind: str, secret: str | bytes) -> None:
    where = {"sqlite": f"sqlite:///{tmp_path}/keys.db", "memory": "memory:"}.get(kind, "")
    with open_store(tmp_path, "one") as store:
        fill(store)
        told = store.export(tmp_path / "archive", keys=secret)
        assert told.keys == 5
        assert "5 keys" in str(told)
    with open_store(tmp_path, "two", where) as other:
        brought = other.import_from(tmp_path / "archive", keys=secret)
        assert (brought.keys, brought.keys_missing) == (5, 0)
        check(other)
        again = other.import_from(tmp_path / "archive", keys=secret)
        assert (again.keys, again.keys_missing) == (0, 0)
        # By name: who comes with their keys is erased like anybody else, and others stay.
        other.thread("a").update(lambda draft: draft.state.update({"own": Personal("ann", "here")}))
        assert other.thread("a").state["own"].value == "here"
        report = other.erase("ann")
        assert report
        assert report.sealed_values == 5
        assert isinstance(other.thread("a").state["ann"], Erased)
        assert isinstance(other.thread("a").state["own"], Erased)
        assert other.thread("a").state["bob"].value == "bob's"
        assert other.users.get("cat", "city") == "Rome"
        assert other.users.get("ann", "city") is None
        # Erased here, for good: the archive brings neither the values nor the keys back.
        once_more = other.import_from(tmp_path / "archive", keys=secret)
        assert once_more.keys == 0
        assert isinstance(other.thread("a").state["ann"], Erased)
        assert other.core.vault.keyring.key_ids("ann") == []
        assert other.verify()


def test_keys_of_the_erased_come_into_no_keyring(tmp_path: Path) -> None:
    """Erased in the store that is imported into, or through another one with the same keyring."""
    with open_store(tmp_path, "one") as store:
        fill(store)
        store.export(tmp_path / "archive", keys=SECRET)
        shutil.copytree(tmp_path / "one-keys", tmp_path / "old-keys")
        assert store.erase("ann")
        assert store.import_from(tmp_path / "archive", keys=SECRET).keys == 0
        assert isinstance(store.thread("a").state["ann"], Erased)
    with open_store(tmp_path, "third", str(tmp_path / "one-keys")) as third:
        brought = third.import_from(tmp_path / "archive", keys=SECRET)
        assert (brought.keys, brought.keys_missing) == (0, 0)
        assert isinstance(third.thread("a").state["ann"], Erased)
        assert third.thread("a").state["bob"].value == "bob's"
    # The ledger of the store holds, if an old copy of the keyring was put back.
    with open_store(tmp_path, "one", str(tmp_path / "old-keys")) as store:
        store.import_from(tmp_path / "archive", keys=SECRET)
        assert isinstance(store.thread("a").state["ann"], Erased)
        assert store.thread("a").state["bob"].value == "bob's"


def test_without_them_it_says_that_they_are_missing(tmp_path: Path) -> None:
    with open_store(tmp_path, "one") as store:
        fill(store)
        assert store.export(tmp_path / "plain").keys == 0
        store.export(tmp_path / "with", keys=SECRET)
    for number, archive in enumerate(("plain", "with")):
        with open_store(tmp_path, f"two{number}") as other:
            brought = other.import_from(tmp_path / archive)
            assert (brought.keys, brought.keys_missing) == (0, 5)
            assert "can't be opened" in str(brought)
            value = other.thread("a").state["ann"]
            assert isinstance(value, Personal), "not passed off as erased"
            with pytest.raises(SealError, match=r"isn't in this keyring.*everthread keyring restore FILE"):
                _ = value.value
            # They may come later.
            assert other.import_from(tmp_path / "with", keys=SECRET).keys == 5
            check(other)


def test_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, "one") as store:
        fill(store)
        store.export(tmp_path / "plain")
        store.export(tmp_path / "with", keys=SECRET)
        for bad in ("short", b"short", b"x" * 33, 5):
            with pytest.raises(InvalidValueError):
                store.export(tmp_path / "bad", keys=bad)  # type: ignore[arg-type]
        assert not (tmp_path / "bad").exists()
    with open_store(tmp_path, "two") as other:
        for archive, secret in (("with", "another passphrase"), ("with", b"k" * 32), ("plain", SECRET)):
            with pytest.raises(KeyringError, match="Nothing was changed"):
                other.import_from(tmp_path / archive, keys=secret)
        assert list(other.threads()) == []
        assert not (tmp_path / "two-keys").exists()


def test_no_key_and_no_name_stands_in_clear(tmp_path: Path) -> None:
    with open_store(tmp_path, "one") as store:
        fill(store)
        keyring = store.core.vault.keyring
        keys = [keyring.key(key_id) for name in ("ann", "bob") for key_id in keyring.key_ids(name)]
        secrets = [key.key for key in keys if key is not None]
        tokens = [keyring.token(name) for name in ("ann", "bob")]
        assert len(secrets) == 3
        store.export(tmp_path / "archive", keys=SECRET)
    with open_store(tmp_path, "two") as other:
        other.import_from(tmp_path / "archive", keys=SECRET)
    with ArchiveReader(str(tmp_path / "archive")) as archive:
        entries = [entry for entry in archive if isinstance(entry, KeysEntry)]
        bound = archive.header.id
    for path in files_in(tmp_path):
        data = path.read_bytes()
        for secret in secrets:
            assert secret not in data
            assert secret.hex().encode() not in data
    for entry in entries:
        assert not [part for part in (*secrets, *tokens, b"ann") if part in entry.data]
        # Bound to its archive: it opens nowhere else.
        assert ParcelSecret(SECRET).open(entry, bound).keys
        with pytest.raises(KeyringError):
            ParcelSecret(SECRET).open(entry, bytes(16))
    assert SECRET not in repr(ParcelSecret(SECRET))


@pytest.mark.parametrize("kind", KEYRINGS)
def test_keys_go_on_from_keyring_to_keyring(tmp_path: Path, kind: str) -> None:
    """Through a second keyring into a third; each still finds them by name, after rotating everything too."""
    places = {"sqlite": "sqlite:///{}/k{}.db", "memory": "memory:"}

    def made(number: int) -> Keyring:
        return open_keyring(places.get(kind, "{}/k{}").format(tmp_path, number))

    one, two, three = made(1), made(2), made(3)
    ids = [one.key_for("ann").key_id, one.rotate("ann"), one.key_for("bob").key_id]
    assert two.take_in(one.lend(ids)) == 3
    own = two.rotate("ann")
    assert two.key_ids("ann") == [*ids[:2], own]
    assert two.key_for("ann").key_id == own, "what is sealed from now on is under a key of its own"
    assert two.key_for("bob").key_id == ids[2]
    two.rotate_master()
    assert three.take_in(two.lend([*ids, own])) == 4
    assert sorted(three.key_ids("ann")) == sorted([*ids[:2], own])
    assert [three.key(key_id) for key_id in ids] == [one.key(key_id) for key_id in ids]
    assert three.destroy("bob") == [ids[2]]
    assert three.take_in(one.lend(ids)) == 0, "destroyed is destroyed"
    assert three.key_ids("bob") == []
    if not isinstance(one, MemoryKeyring):
        assert made(3).key_ids("ann") == three.key_ids("ann"), "after opening it again"
        # Home again: there it is one of its own.
        fresh = one.rotate("eve")
        parcels = one.lend([fresh])
        one.destroy("ann")
        assert one.take_in(parcels) == 0
        assert one.key_ids("eve") == [fresh]
    for keyring in (one, two, three):
        keyring.close()


def test_async_stores_take_them_too(tmp_path: Path) -> None:
    async def moved() -> None:
        url, keys = "sqlite:///{}/{}.db", "{}/{}-keys"
        async with everthread.open_async(
            url.format(tmp_path, "one"), keyring=keys.format(tmp_path, "one")
        ) as store:
            thread = await store.thread("a")
            thread.state["ann"] = Personal("ann", "ann's")
            await thread.commit()
            assert (await store.export(tmp_path / "archive", keys=SECRET)).keys == 1
        async with everthread.open_async(
            url.format(tmp_path, "two"), keyring=keys.format(tmp_path, "two")
        ) as store:
            assert (await store.import_from(tmp_path / "archive", keys=SECRET)).keys == 1
            assert (await store.thread("a")).state["ann"].value == "ann's"

    asyncio.run(moved())


def test_a_hostile_cost_is_refused(tmp_path: Path) -> None:
    entry = KeysEntry(1, os.urandom(16), 40, os.urandom(12), os.urandom(100))
    with pytest.raises(KeyringError):
        ParcelSecret(SECRET).open(entry, bytes(16))
