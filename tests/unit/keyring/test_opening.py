"""How a keyring is named, where its master key comes from, and who has to wait."""

from __future__ import annotations

import base64
import errno
import fcntl
import os
from pathlib import Path

import pytest

import everthread
from everthread.errors import KeyringError, StoreBusyError, StoreClosedError, UnsupportedError
from everthread.keyring.keyring import FileKeyring, MemoryKeyring, open_keyring

MASTER = bytes(range(200, 232))
VARIABLE = "EVERTHREAD_MASTER_KEY"


class Service:
    """A key management service that counts its calls."""

    def __init__(self, mask: int = 0x5A) -> None:
        self.mask = mask
        self.calls: list[str] = []

    def wrap(self, key: bytes) -> bytes:
        self.calls.append("wrap")
        return b"service:" + bytes(byte ^ self.mask for byte in key)

    def unwrap(self, wrapped: bytes) -> bytes:
        self.calls.append("unwrap")
        return bytes(byte ^ self.mask for byte in wrapped.removeprefix(b"service:"))


@pytest.fixture(autouse=True)
def no_master_in_environment(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "keyring"


def test_the_default_follows_home(tmp_path, monkeypatch):
    for name in ("one", "two"):
        monkeypatch.setenv("HOME", str(tmp_path / name))
        keyring = open_keyring(None)
        assert not (tmp_path / name).exists(), "opening creates nothing"
        keyring.key_for("anna")
        assert (tmp_path / name / ".everthread" / "keyring" / "keys.jsonl").exists()


def test_paths_and_urls(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "with space"
    for spec in (directory, str(directory), "with space", directory.as_uri(), f"file://localhost{directory}"):
        opened = open_keyring(spec)
        assert isinstance(opened, FileKeyring)
        assert opened.directory == directory
    for spec in ("~/keys", Path("~/keys")):
        assert open_keyring(spec).directory == tmp_path / "home" / "keys"


def test_a_relative_path_means_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keyring = open_keyring("keys")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    keyring.key_for("anna")
    assert (tmp_path / "keys" / "keys.jsonl").exists()


def test_objects_are_handed_back():
    keyring = MemoryKeyring()
    assert open_keyring(keyring) is keyring
    assert isinstance(open_keyring("memory:"), MemoryKeyring)


@pytest.mark.parametrize("spec", ["mysql://host/db", "s3://host", "http://x", "file+x:///a"])
def test_other_schemes_say_what_is_available(spec):
    with pytest.raises(UnsupportedError, match="available are a directory"):
        open_keyring(spec)


@pytest.mark.parametrize("spec", ["", "file://", "file://otherhost/a", "file:///a?b", "file:///a#b", "a\0b"])
def test_what_names_no_directory(spec):
    with pytest.raises(UnsupportedError, match="available are a directory"):
        open_keyring(spec)


@pytest.mark.parametrize(
    "text",
    [
        MASTER.hex(),
        MASTER.hex().upper(),
        base64.b64encode(MASTER).decode(),
        base64.b64encode(MASTER).decode().rstrip("="),
        base64.urlsafe_b64encode(MASTER).decode(),
        f"  {MASTER.hex()}\n",
    ],
)
def test_a_master_key_from_the_environment(directory, monkeypatch, text):
    monkeypatch.setenv(VARIABLE, MASTER.hex())
    keyring = FileKeyring(directory)
    key = keyring.key_for("anna")
    assert not (directory / "master.key").exists()
    assert not keyring.rotates_master
    monkeypatch.setenv(VARIABLE, text)
    again = FileKeyring(directory)
    assert again.key_for("anna") == key
    other = again.key_for("ben")
    assert again.destroy("anna") == [key.key_id]
    assert FileKeyring(directory).key_for("ben") == other
    assert MASTER not in (directory / "keys.jsonl").read_bytes()


@pytest.mark.parametrize(
    "text", ["x", "0" * 63, "0" * 66, "g" * 64, "!" * 43, base64.b64encode(bytes(31)).decode()]
)
def test_a_malformed_master_key_is_refused_unseen(directory, monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(KeyringError, match="32 bytes") as caught:
        FileKeyring(directory).key_for("anna")
    assert len(text) < 3 or text not in str(caught.value)
    assert not (directory / "keys.jsonl").exists()


def test_another_master_key_in_the_environment(directory, monkeypatch):
    monkeypatch.setenv(VARIABLE, MASTER.hex())
    FileKeyring(directory).key_for("anna")
    monkeypatch.setenv(VARIABLE, bytes(32).hex())
    with pytest.raises(KeyringError, match="not the one"):
        FileKeyring(directory).key_for("anna")


def test_a_keyring_stays_with_its_source(tmp_path, monkeypatch):
    FileKeyring(tmp_path / "file").key_for("anna")
    FileKeyring(tmp_path / "hook", Service()).key_for("anna")
    monkeypatch.setenv(VARIABLE, MASTER.hex())
    FileKeyring(tmp_path / "env").key_for("anna")
    with pytest.raises(KeyringError, match="without EVERTHREAD_MASTER_KEY"):
        FileKeyring(tmp_path / "file").key_for("anna")
    with pytest.raises(KeyringError, match="master= object"):
        FileKeyring(tmp_path / "hook").key_for("anna")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(KeyringError, match="set EVERTHREAD_MASTER_KEY"):
        FileKeyring(tmp_path / "env").key_for("anna")
    with pytest.raises(KeyringError, match="without master="):
        FileKeyring(tmp_path / "file", Service()).key_for("anna")


def test_a_changed_environment_changes_no_source(tmp_path, monkeypatch):
    by_file = FileKeyring(tmp_path / "file")
    kept = [by_file.key_for("anna"), by_file.key_for("ben")]
    monkeypatch.setenv(VARIABLE, MASTER.hex())
    by_env = FileKeyring(tmp_path / "env")
    kept.append(by_env.key_for("ben"))
    by_env.key_for("anna")
    monkeypatch.setenv(VARIABLE, bytes(32).hex())
    for keyring in (by_file, by_env):
        keyring.destroy("anna")
    assert (by_file.rotates_master, by_env.rotates_master) == (True, False)
    monkeypatch.setenv(VARIABLE, MASTER.hex())
    assert FileKeyring(tmp_path / "env").key_for("ben") == kept[2]
    monkeypatch.delenv(VARIABLE)
    assert FileKeyring(tmp_path / "file").key_for("ben") == kept[1]


def test_a_service_is_asked_once_per_keyring(directory):
    making = Service()
    keyring = FileKeyring(directory, making)
    keys = [keyring.key_for(f"s{number}") for number in range(20)]
    assert making.calls == ["wrap", "unwrap"]
    assert not keyring.rotates_master
    reading = Service()
    again = FileKeyring(directory, reading)
    assert [again.key(key.key_id) for key in keys] == keys
    assert reading.calls == ["unwrap"]
    assert again.destroy("s0") == [keys[0].key_id]
    assert reading.calls == ["unwrap", "wrap"]
    assert keyring.key_for("s1") == keys[1]


def test_a_service_that_fails(directory):
    class Broken(Service):
        def unwrap(self, wrapped):
            raise ConnectionError("no route")

    class Strange(Service):
        def unwrap(self, wrapped):
            return b"short"

    with pytest.raises(KeyringError, match="no route"):
        FileKeyring(directory, Broken()).key_for("anna")
    key = FileKeyring(directory, Service()).key_for("anna")
    for service, message in ((Broken(), "no route"), (Strange(), "no key"), (Service(1), "not the one")):
        with pytest.raises(KeyringError, match=message):
            FileKeyring(directory, service).key(key.key_id)
    assert FileKeyring(directory, Service()).key_for("anna") == key


def test_waiting_for_the_lock_has_an_end(directory):
    keyring = FileKeyring(directory, lock_timeout_ms=0)
    key = keyring.key_for("anna")
    with open(directory / "lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with pytest.raises(StoreBusyError):
            keyring.key_for("ben")
        with pytest.raises(StoreBusyError):
            keyring.destroy("anna")
        assert keyring.key_for("anna") == key, "what is known needs no lock"
        assert FileKeyring(directory, lock_timeout_ms=0).key_for("anna") == key, "readers share it"
    assert keyring.key_for("ben") != key


def test_a_forked_child_opens_its_own(directory):
    keyring = FileKeyring(directory)
    key = keyring.key_for("anna")
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: keyring.key_for("anna"), lambda: keyring.is_closed(key.key_id, lambda: 0)):
                with pytest.raises(StoreClosedError, match="forked"):
                    call()
            os._exit(0 if FileKeyring(directory).key_for("anna") == key else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_places_where_no_keyring_can_be(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(KeyringError, match="can't be used"):
            FileKeyring(directory).key_for("anna")
    assert (tmp_path / "file").read_text() == "not a directory"


def test_a_full_disk_loses_nothing(directory, monkeypatch):
    keyring = FileKeyring(directory)
    key = keyring.key_for("anna")
    before = (directory / "keys.jsonl").read_bytes()
    pwrite = os.pwrite

    def full(fd, data, offset):
        pwrite(fd, bytes(data)[:10], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(KeyringError, match="No space left"):
            keyring.key_for("ben")
    assert (directory / "keys.jsonl").read_bytes() == before
    assert keyring.key_for("anna") == key
    assert keyring.key_for("ben") == FileKeyring(directory).key_for("ben")


# ── at the door of a store ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [5, b"keys", True, [], object(), 1.5])
def test_a_store_refuses_what_is_no_keyring_before_anything_is_opened(tmp_path: Path, wrong: object) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"
    for opener in (everthread.open, everthread.open_async):
        with pytest.raises(everthread.InvalidValueError, match=r"keyring must be .*available are a dir"):
            opener(url, keyring=wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["https://keys", "s3://host", "", "a\0b"])
def test_a_store_refuses_a_place_where_no_keyring_can_be(tmp_path: Path, wrong: str) -> None:
    for opener in (everthread.open, everthread.open_async):
        with pytest.raises(everthread.UnsupportedError, match="available are a directory"):
            opener(f"sqlite:///{tmp_path}/agent.db", keyring=wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "good",
    [
        "{}/keys",
        "file://{}/keys",
        "sqlite:///{}/keys.db",
        "postgresql://nobody@[::1]:1/x",
        "valkey://[::1]:1",
    ],
)
def test_opening_a_store_neither_makes_nor_reads_a_keyring(tmp_path: Path, good: str) -> None:
    with everthread.open("memory:", keyring=good.format(tmp_path), durability="process") as store:
        thread = store.thread("bot")
        thread.state["n"] = 1
        thread.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_path_and_a_keyring_object_open_a_store(tmp_path: Path) -> None:
    for good in (tmp_path / "keys", MemoryKeyring(), None):
        everthread.open("memory:", keyring=good, durability="process").close()
    assert list(tmp_path.iterdir()) == []
