"""Keyrings in a store of their own: apart from the stores that use them, safe without a lock."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal
from everthread.errors import KeyringError
from everthread.keyring.keyring import Keyring, MemoryKeyring, StoreKeyring
from everthread.keyring.store import SPACE, StoreMedium
from tests.servers.valkey import ValkeyServer

MASTER = bytes(range(32)).hex()


class Killed(BaseException):
    """The process is gone: no handler of ours catches this."""


@pytest.fixture(autouse=True)
def master_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_MASTER_KEY", MASTER)


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/keys.db"
    name = "postgres_url" if request.param == "postgres" else "valkey_lasting_url"
    found: str = request.getfixturevalue(name)
    return found


def cells(keyring: Keyring) -> list[str]:
    medium: Any = keyring._medium
    return [name for name, _ in medium._opened().cells(SPACE, "", None, 1000)]


# A keyring and the stores that use it


def use(url: str, keyring: str) -> None:
    with everthread.open(url, keyring=keyring, durability="process") as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("ann", 1)))


def test_the_database_of_the_store_is_refused(url: str) -> None:
    everthread.open(url, durability="process").close()
    with pytest.raises(KeyringError, match="same place"):
        everthread.open(url, keyring=url, durability="process")
    assert cells(StoreKeyring(url)) == [], "nothing was written"


def test_a_symbolic_link_to_the_store_is_refused(tmp_path: Path) -> None:
    use(f"sqlite:///{tmp_path}/store.db", str(tmp_path / "keys"))
    (tmp_path / "link.db").symlink_to(tmp_path / "store.db")
    for store, keys in (("store", "link"), ("link", "store")):
        with pytest.raises(KeyringError, match="same place"):
            everthread.open(f"sqlite:///{tmp_path}/{store}.db", keyring=f"sqlite:///{tmp_path}/{keys}.db")


def test_the_folder_of_a_file_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match="same place"):
        use(f"file://{tmp_path}/store", f"{tmp_path}/store")
    use(f"file://{tmp_path}/store", f"{tmp_path}/store/../keys")


@pytest.mark.filterwarnings("ignore:.*holds sealed values, and the keyring .* is new")
def test_the_same_database_under_another_url_is_refused(postgres_url: str) -> None:
    use(postgres_url, "memory:")
    name = "127.0.0.1" if "localhost" in postgres_url else "localhost"
    other = postgres_url.replace("localhost", "\0").replace("127.0.0.1", "\0").replace("\0", name)
    assert other != postgres_url
    mark = "&" if "?" in other else "?"
    for keyring in (other, f"{other}{mark}schema=keys_apart"):
        with pytest.raises(KeyringError, match="same place"):
            use(postgres_url, keyring)


def test_the_same_data_set_under_another_url_is_refused(own_valkey: ValkeyServer) -> None:
    url = own_valkey.url
    name = "127.0.0.1" if "localhost" in url else "localhost"
    other = url.replace("localhost", "\0").replace("127.0.0.1", "\0").replace("\0", name)
    assert other != url
    for keyring in (other, f"{other}?prefix=keys"):
        with pytest.raises(KeyringError, match="same place"):
            use(url, keyring)
    assert url.endswith("/0")
    use(url, f"{other[:-1]}1")


async def _open_async(url: str, keyring: str) -> None:
    async with everthread.open_async(url, keyring=keyring, durability="process"):
        pass


def test_an_async_store_refuses_too(url: str) -> None:
    import asyncio

    everthread.open(url, durability="process").close()
    with pytest.raises(KeyringError, match="same place"):
        asyncio.run(_open_async(url, url))


def test_a_keyring_object_is_kept_apart_too(tmp_path: Path) -> None:
    keyring = StoreKeyring(f"sqlite:///{tmp_path}/a.db")
    key = keyring.key_for("ann")
    with (
        everthread.open(f"sqlite:///{tmp_path}/a.db", keyring=keyring) as store,
        pytest.raises(KeyringError, match="same place"),
    ):
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("ann", 1)))
    with everthread.open(f"sqlite:///{tmp_path}/b.db", keyring=keyring) as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("ann", 1)))
    assert StoreKeyring(f"sqlite:///{tmp_path}/a.db").key_for("ann") == key


def test_a_server_that_may_lose_keys_is_refused(own_valkey: ValkeyServer) -> None:
    for setting in ("everysec", "no"):
        own_valkey.ask("CONFIG", "SET", "appendfsync", setting)
        with pytest.raises(KeyringError, match="appendfsync always"):
            StoreKeyring(own_valkey.url).key_for("ann")
    own_valkey.ask("CONFIG", "SET", "appendfsync", "always")
    StoreKeyring(own_valkey.url).key_for("ann")


def test_no_export_copy_or_search_has_the_keyring_of_another_store(url: str, tmp_path: Path) -> None:
    keyring = StoreKeyring(url)
    keyring.key_for("ann")
    traces = keyring.traces(keyring.key_ids("ann"))
    assert keyring._medium.residues(traces).hits, "control"
    with everthread.open(url, keyring="memory:", durability="process") as store:
        store.thread("a").update(lambda draft: draft.messages.append({"role": "user", "content": "text"}))
        store.export(tmp_path / "archive", every_namespace=True)
        with everthread.open(f"sqlite:///{tmp_path}/copy.db") as target:
            store.copy_to(target, every_namespace=True)
            assert target.core.backend.cells(SPACE, "", None, 10) == []
            assert not target.core.backend.residues(traces).hits
        assert len(list(store.search("text"))) == 1
        assert [info.name for info in store.threads()] == ["a"]
    with everthread.open(f"sqlite:///{tmp_path}/imported.db") as target:
        target.import_from(tmp_path / "archive", every_namespace=True)
        assert target.core.backend.cells(SPACE, "", None, 10) == []


# Several at once, without a lock


def opened(url: str) -> StoreKeyring:
    """What SQLite has a lock for, besides, must hold without it."""
    keyring = StoreKeyring(url)
    medium: Any = keyring._medium
    medium._lock = None
    return keyring


def test_whoever_comes_too_late_begins_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of one meets a change of the other between its records and the head."""
    first, second = opened(url), opened(url)
    keys = {name: first.key_for(name) for name in ("ann", "bob", "cid")}
    move_head, others = (
        StoreMedium._move_head,
        iter([lambda: second.key_for("dan"), lambda: second.destroy("ann"), second.rotate_master] * 3),
    )

    def meanwhile(medium: StoreMedium, generation: str, size: int) -> None:
        if medium is first._medium and (other := next(others, None)) is not None:
            other()
        move_head(medium, generation, size)

    monkeypatch.setattr(StoreMedium, "_move_head", meanwhile)
    eve = first.key_for("eve")
    assert first.set_hold(eve.key_id, b"h" * 16, on=True)
    first.set_times({eve.key_id: 7})
    assert first.destroy("bob") == [keys["bob"].key_id]
    for keyring in (first, second, opened(url)):
        assert keyring.key_for("eve", lambda: 0) == eve
        assert keyring.key_for("dan") == first.key_for("dan")
        assert keyring.key_for("cid") == keys["cid"]
        assert keyring.destroyed() == {keys["ann"].key_id, keys["bob"].key_id}
        assert keyring.times() == {eve.key_id: 7}
        assert keyring.holds([eve.key_id]) == {b"h" * 16}
        assert keyring.alive() == 3
    first.destroy("dan")
    assert len({name.partition("/")[0] for name in cells(first)} - {"head"}) == 1, "the others were removed"


@pytest.mark.parametrize("change", ["key", "destroy"])
@pytest.mark.parametrize("moment", ["before the head", "after the head"])
def test_a_kill_loses_no_key_and_keeps_none(
    url: str, monkeypatch: pytest.MonkeyPatch, change: str, moment: str
) -> None:
    keyring = opened(url)
    keys = {name: keyring.key_for(name) for name in ("ann", "bob")}
    traces = keyring.traces([keys["ann"].key_id])
    move_head = StoreMedium._move_head

    def killed(medium: StoreMedium, generation: str, size: int) -> None:
        if moment == "after the head":
            move_head(medium, generation, size)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StoreMedium, "_move_head", killed)
        with pytest.raises(Killed):
            keyring.key_for("cid") if change == "key" else keyring.destroy("ann")
    other = opened(url)
    cid = other.key_for("cid")
    assert other.key_for("bob") == keys["bob"]
    assert opened(url).key_for("cid") == cid
    if change == "destroy":
        # Whoever goes on with an erasure destroys by id, and then looks.
        assert other.destroy_keys([keys["ann"].key_id]) == (
            [] if moment == "after the head" else [keys["ann"].key_id]
        )
        assert other.is_destroyed(keys["ann"].key_id)
        assert other.residues(traces).hits == ()
        assert other.residues(traces).looked


def test_a_key_that_somebody_relies_on_is_in_no_dead_generation(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died before the head; whoever finds the key there makes it count, before a destruction that
    hasn't seen it."""
    first, second = opened(url), opened(url)
    first.key_for("ann")
    move_head = StoreMedium._move_head

    def killed(medium: StoreMedium, generation: str, size: int) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StoreMedium, "_move_head", killed)
        with pytest.raises(Killed):
            first.key_for("bob")
    found = []

    def meanwhile(medium: StoreMedium, generation: str, size: int) -> None:
        if medium is second._medium and not found:
            found.append(opened(url).key_for("bob"))
        move_head(medium, generation, size)

    monkeypatch.setattr(StoreMedium, "_move_head", meanwhile)
    second.destroy("ann")
    assert found == [second.key_for("bob")] == [opened(url).key_for("bob")]


def test_threads_and_keyrings_agree(url: str) -> None:
    keyrings = [opened(url) for _ in range(3)]
    start, found = threading.Barrier(6), []

    def ask(keyring: StoreKeyring) -> None:
        start.wait()
        found.append([keyring.key_for(f"s{number}") for number in range(8)])

    threads = [threading.Thread(target=ask, args=[keyring]) for keyring in keyrings * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(keys == found[0] for keys in found)


CHURN = """
import sys
from everthread.keyring.keyring import StoreKeyring
keyring, prefix = StoreKeyring(sys.argv[1]), sys.argv[2]
for number in range(12):
    name = f"{prefix}-{number}"
    key = keyring.key_for(name)
    print(name, key.key_id.hex(), key.key.hex(), flush=True)
    if number % 4 == 3:
        keyring.destroy(name)
"""


def test_processes_that_make_and_destroy_keys_lose_none(url: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", CHURN, url, str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    made = [line.split() for process in processes for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(made) == 36
    keyring = opened(url)
    for name, key_id, key in made:
        gone = int(name.partition("-")[2]) % 4 == 3
        assert keyring.is_destroyed(bytes.fromhex(key_id)) == gone
        found = keyring.key(bytes.fromhex(key_id))
        assert (found is None) if gone else (found is not None and found.key.hex() == key)


def test_many_keys_take_many_cells(tmp_path: Path) -> None:
    source = MemoryKeyring()
    keys = [source.key_for(f"s{number}").key_id for number in range(400)]
    keyring = StoreKeyring(f"sqlite:///{tmp_path}/keys.db")
    assert keyring.take_in(source.lend(keys)) == 400
    keyring.destroy("s7")
    assert len(cells(keyring)) > 3
    again = StoreKeyring(f"sqlite:///{tmp_path}/keys.db")
    assert again.alive() == 399
    assert all(again.key(key_id) == source.key(key_id) for key_id in keys if key_id != keys[7])
