"""Keyrings: one live key per subject, shared by processes, gone for good when destroyed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from everthread.codec.seal import SubjectKey
from everthread.errors import (
    InvalidNameError,
    KeyringError,
    StoreClosedError,
    UnsupportedError,
)
from everthread.keyring.keyring import FileKeyring, MemoryKeyring, StoreKeyring, open_keyring

MASTER = bytes(range(32))

# Written down once: the format of keyrings. Every kind of record is in it.
PINNED_MASTER = bytes.fromhex("4a" * 32)
PINNED_KEYS = (
    b'{"sum":"a33cc137831af37e","kind":"header","format":1,"id":"77777777777777777777777777777777","e'
    b'poch":17,"master":"file","token_key":"0101010101010101010101014bfaa651834411a4dc0ce379bb4a0d6e7'
    b'03c09613c759a05139e6986fe50de304a52247062c75f730f9df618b36173ea","signing_key":"030303030303030'
    b"303030303cd9e349daedeee3e4802485607ae5a95fc46b22bac93bb6c67430a3b856dcb01fe5860b24dbeb402436183"
    b'a6dd1d2445"}\n'
    b'{"sum":"e46c56b027ff2baf","kind":"destroyed","id":"dddddddddddddddddddddddddddddddd"}\n'
    b'{"sum":"b5bf2e69d963b45c","kind":"key","id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","token":"129c098'
    b'18eca63aa49a75d419d3449de5fc1f11c07d291d1a446032e87bb7b06","key":"020202020202020202020202351f5'
    b'3633cf83aed72f06d23dfd9e9f0ce89a4f4727d8ec3a67674e6d808c07b27e29fb3ea1dc1fb7e8295e5e315c4ff"}\n'
    b'{"sum":"bc256b45a5413df9","kind":"until","id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","us":189345600'
    b"0000000}\n"
    b'{"sum":"1735ec944b7b37a7","kind":"hold","id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","by":"555555555'
    b'55555555555555555555555"}\n'
    b'{"sum":"deb7989f34f0c2b1","kind":"hold","id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","by":"666666666'
    b'66666666666666666666666"}\n'
    b'{"sum":"eac4cf624b33d436","kind":"hold","id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","by":"666666666'
    b'66666666666666666666666","on":false}\n'
)


class Service:
    """A key management service that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def wrap(self, key: bytes) -> bytes:
        self.calls.append("wrap")
        return b"service:" + bytes(byte ^ 0x5A for byte in key)

    def unwrap(self, wrapped: bytes) -> bytes:
        self.calls.append("unwrap")
        return bytes(byte ^ 0x5A for byte in wrapped.removeprefix(b"service:"))


@pytest.fixture(autouse=True)
def no_master_in_environment(monkeypatch):
    monkeypatch.delenv("EVERTHREAD_MASTER_KEY", raising=False)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "keyring"


KINDS = [
    "memory",
    "file",
    "env",
    "service",
    "sqlite",
    "sqlite and env",
    "sqlite and service",
    "postgres",
    "valkey",
]


@pytest.fixture(params=KINDS)
def keyring(request, directory, monkeypatch):
    if request.param == "memory":
        return MemoryKeyring()
    if "env" in request.param or request.param in ("postgres", "valkey"):
        monkeypatch.setenv("EVERTHREAD_MASTER_KEY", MASTER.hex())
    service = Service() if "service" in request.param else None
    if request.param == "postgres":
        return StoreKeyring(request.getfixturevalue("postgres_url"))
    if request.param == "valkey":
        return StoreKeyring(request.getfixturevalue("valkey_lasting_url"))
    if "sqlite" in request.param:
        return StoreKeyring(f"sqlite:///{directory}/keys.db", service)
    return FileKeyring(directory, service)


@pytest.fixture
def another(keyring):
    """Opens the same keyring again, as another process would; a memory keyring is its only one."""

    def open_it():
        if isinstance(keyring, MemoryKeyring):
            return keyring
        if isinstance(keyring, StoreKeyring):
            return StoreKeyring(keyring._medium._url, keyring._masters._hook)
        return FileKeyring(keyring.directory, keyring._masters._hook)

    return open_it


def everything_in(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def test_one_key_per_subject(keyring):
    anna, ben = keyring.key_for("anna"), keyring.key_for("ben")
    assert isinstance(anna, SubjectKey)
    assert keyring.key_for("anna") == anna
    assert anna.key_id != ben.key_id
    assert anna.key != ben.key
    assert keyring.key(anna.key_id) == anna
    assert keyring.key_ids("anna") == [anna.key_id]
    assert not keyring.is_destroyed(anna.key_id)


def test_unknown_subjects_and_keys(keyring):
    for _ in range(2):
        assert keyring.key(b"k" * 16) is None
        assert not keyring.is_destroyed(b"k" * 16)
        assert keyring.key_ids("nobody") == []
        assert keyring.destroy("nobody") == []
        keyring.key_for("anna")


def test_destroying(keyring):
    anna, ben = keyring.key_for("anna"), keyring.key_for("ben")
    epoch = keyring.epoch
    keyring.key_for("cara")
    assert keyring.epoch == epoch, "a new key leaves the others as they are"
    assert keyring.destroy("anna") == [anna.key_id]
    assert keyring.epoch != epoch
    assert keyring.key(anna.key_id) is None
    assert keyring.is_destroyed(anna.key_id)
    assert keyring.key_ids("anna") == []
    assert keyring.destroy("anna") == []
    assert keyring.key_for("ben") == ben
    assert keyring.key(ben.key_id) == ben


def test_who_returns_gets_a_new_key(keyring):
    first = keyring.key_for("anna")
    keyring.destroy("anna")
    second = keyring.key_for("anna")
    assert second.key_id != first.key_id
    assert second.key != first.key
    assert keyring.destroy("anna") == [second.key_id]
    assert keyring.is_destroyed(first.key_id)
    assert keyring.is_destroyed(second.key_id)


@pytest.mark.parametrize("subject", ["", "a\0b", "\ud800", "x" * 1025, None, b"anna"])
def test_names_of_subjects_are_checked(keyring, subject):
    for call in (keyring.key_for, keyring.key_ids, keyring.destroy):
        with pytest.raises(InvalidNameError):
            call(subject)


@pytest.mark.parametrize("subject", ["../../x", "'; drop table keys", "a\nb", '"}', "Zoë", "x" * 1024])
def test_hostile_subjects(keyring, subject):
    key = keyring.key_for(subject)
    assert keyring.key_for(subject) == key
    assert keyring.key_for(subject[:-1] + "?") != key
    assert keyring.destroy(subject) == [key.key_id]


def test_closing(keyring):
    key = keyring.key_for("anna")
    keyring.close()
    keyring.close()
    for call in (
        lambda: keyring.epoch,
        lambda: keyring.key_for("anna"),
        lambda: keyring.key_ids("anna"),
        lambda: keyring.key(key.key_id),
        lambda: keyring.is_destroyed(key.key_id),
        lambda: keyring.destroy("anna"),
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_threads_agree_on_one_key(keyring):
    start, found = threading.Barrier(8), []

    def ask():
        start.wait()
        found.append([keyring.key_for(f"s{number}") for number in range(10)])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(keys == found[0] for keys in found)


def test_nothing_is_created_before_the_first_key(directory):
    keyring = FileKeyring(directory)
    assert keyring.epoch == 0
    assert keyring.key(b"k" * 16) is None
    assert keyring.key_ids("anna") == []
    assert keyring.destroy("anna") == []
    assert not keyring.is_destroyed(b"k" * 16)
    assert not directory.exists()
    keyring.key_for("anna")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {"keys.jsonl": 0o600, "master.key": 0o600, "lock": 0o600}
    assert len((directory / "master.key").read_bytes()) == 32


def test_new_parents_are_for_the_owner_alone(tmp_path):
    umask = os.umask(0)
    try:
        FileKeyring(tmp_path / "a" / "b" / "keyring").key_for("anna")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b" / "keyring" / "keys.jsonl").stat().st_mode) == 0o600


def test_keys_outlive_the_object(directory):
    keys = [FileKeyring(directory).key_for(f"s{number}") for number in range(5)]
    again = FileKeyring(directory)
    assert [again.key_for(f"s{number}") for number in range(5)] == keys
    assert [again.key(key.key_id) for key in keys] == keys


def test_secrets_and_names_are_not_on_disk(directory):
    keyring = FileKeyring(directory)
    subject = "anna.example@example.org"
    key = keyring.key_for(subject)
    keyring.key_for("ben")
    for _ in range(2):
        found = everything_in(directory)
        for secret in (subject.encode(), key.key):
            for form in (secret, secret.hex().encode(), base64.b64encode(secret)):
                assert form not in found
        keyring.destroy("ben")


@pytest.mark.parametrize("more", [0, 1, 5])
def test_other_objects_see_a_destruction_at_once(directory, more):
    ours, theirs = FileKeyring(directory), FileKeyring(directory)
    anna, ben = ours.key_for("anna"), ours.key_for("ben")
    assert theirs.key_for("anna") == anna
    epoch = theirs.epoch
    ours.destroy("anna")
    added = [ours.key_for(f"s{number}") for number in range(more)]
    assert theirs.epoch != epoch
    assert [theirs.key(key.key_id) for key in added] == added
    assert theirs.key(anna.key_id) is None
    assert theirs.is_destroyed(anna.key_id)
    assert theirs.key_for("anna") != anna
    assert theirs.key_for("ben") == ben
    assert ours.key_for("anna") == theirs.key_for("anna")


def test_destruction_leaves_nothing_to_open_with(directory, tmp_path):
    keyring = FileKeyring(directory)
    anna, ben = keyring.key_for("anna"), keyring.key_for("ben")
    shutil.copytree(directory, tmp_path / "copy")
    old_lines = (directory / "keys.jsonl").read_text().splitlines()
    old_master = (directory / "master.key").read_bytes()
    assert keyring.rotates_master
    keyring.destroy("anna")
    found = everything_in(directory)
    assert old_master not in found
    for line in old_lines[1:]:
        assert line.split('"key":"')[1][:120].encode() not in found, "survivors are wrapped anew"
    assert found.count(anna.key_id.hex().encode()) == 1
    assert sorted(path.name for path in directory.iterdir()) == ["keys.jsonl", "lock", "master.key"]
    # An older copy of the keys, under the master key of today, opens nothing and creates nothing.
    shutil.copy(tmp_path / "copy" / "keys.jsonl", directory / "keys.jsonl")
    restored = FileKeyring(directory)
    with pytest.raises(KeyringError, match="master key"):
        restored.key(anna.key_id)
    with pytest.raises(KeyringError, match="master key"):
        restored.key_for("anna")
    # Only who also kept the old master key has the key: that copy was never ours to destroy.
    assert FileKeyring(tmp_path / "copy").key(ben.key_id) == ben


def test_a_replaced_file_is_overwritten(directory):
    keyring = FileKeyring(directory)
    keyring.key_for("anna")
    with open(directory / "keys.jsonl", "rb") as keys, open(directory / "master.key", "rb") as master:
        keyring.destroy("anna")
        assert set(keys.read()) == {0}
        assert set(master.read()) == {0}


def test_an_older_copy_that_goes_on_has_another_epoch(directory, tmp_path):
    keyring = FileKeyring(directory)
    for subject in ("anna", "ben"):
        keyring.key_for(subject)
    shutil.copytree(directory, tmp_path / "copy")
    copy = FileKeyring(tmp_path / "copy")
    keyring.destroy("anna")
    copy.destroy("ben")
    assert keyring.epoch != copy.epoch


def test_the_pinned_keyring_opens(directory):
    directory.mkdir(mode=0o700)
    for name, data in (("keys.jsonl", PINNED_KEYS), ("master.key", PINNED_MASTER)):
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)
    keyring = FileKeyring(directory)
    until_us = 1_893_456_000_000_000
    assert keyring.epoch == 17
    assert keyring.is_destroyed(b"\xdd" * 16)
    assert keyring.times() == {b"\xaa" * 16: until_us}
    assert keyring.key_for("Zoë", lambda: until_us - 1) == SubjectKey(b"\xaa" * 16, b"\xbb" * 32)
    assert keyring.is_closed(b"\xaa" * 16, lambda: until_us)
    assert keyring.holds([b"\xaa" * 16]) == {b"\x55" * 16}, "the other one was released"
    public = Ed25519PrivateKey.from_private_bytes(b"\x22" * 32).public_key().public_bytes_raw()
    assert keyring.sign(b"x")[0] == public
    assert (directory / "keys.jsonl").read_bytes() == PINNED_KEYS


def test_holds_are_for_all(keyring, another):
    first, second = keyring.key_for("anna").key_id, keyring.key_for("bert").key_id
    assert not keyring.holds([first, second])
    assert keyring.set_hold(first, b"1" * 16, on=True)
    assert keyring.set_hold(first, b"1" * 16, on=True), "twice is once"
    assert another().set_hold(first, b"2" * 16, on=True)
    assert keyring.holds([second, first]) == {b"1" * 16, b"2" * 16}
    assert not keyring.holds([second])
    keyring.set_times({first: 5})
    keyring.rotate_master()
    keyring.destroy("bert")
    assert another().set_hold(first, b"1" * 16, on=False)
    assert another().holds([first]) == {b"2" * 16}
    assert keyring.times() == {first: 5}
    assert not keyring.set_hold(second, b"1" * 16, on=True), "there is no such key any more"
    if not isinstance(keyring, MemoryKeyring):
        with pytest.raises(KeyringError, match="16 bytes"):
            keyring.set_hold(first, b"", on=True)
        assert another().holds([first]) == {b"2" * 16}, "nothing was written"
    keyring.destroy("anna")
    assert not another().holds([first, second])


def test_a_reader_written_from_the_documentation(directory):
    """Reads the files as docs/internals/sealing.md tells them, without any code of ours."""
    keyring = FileKeyring(directory)
    expected = {subject: keyring.key_for(subject) for subject in ("anna", "Zoë")}
    keyring.destroy("anna")
    master = AESGCM((directory / "master.key").read_bytes())
    records = []
    for line in (directory / "keys.jsonl").read_bytes().splitlines():
        record = json.loads(line)
        assert line.startswith(b'{"sum":"%s"' % hashlib.sha256(line[25:]).hexdigest()[:16].encode())
        records.append({name: value for name, value in record.items() if name != "sum"})
    header, destroyed, live = records
    assert (header["kind"], header["format"], header["master"]) == ("header", 1, "file")
    assert destroyed == {"kind": "destroyed", "id": expected["anna"].key_id.hex()}
    bound = b"everthread keyring\0\x01" + bytes.fromhex(header["id"])
    wrapped = bytes.fromhex(header["token_key"])
    token_key = master.decrypt(wrapped[:12], wrapped[12:], bound + b"token key\0")
    assert live["token"] == hmac.digest(token_key, "Zoë".encode(), "sha256").hex()
    key_id, token, wrapped = (bytes.fromhex(live[name]) for name in ("id", "token", "key"))
    key = master.decrypt(wrapped[:12], wrapped[12:], bound + b"subject key\0" + key_id + token)
    assert SubjectKey(key_id, key) == expected["Zoë"]


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_randomness_that_repeats_itself_does_no_harm(directory, kind):
    keyring = MemoryKeyring(bytes) if kind == "memory" else FileKeyring(directory, random_bytes=bytes)
    key = keyring.key_for("anna")
    for _ in range(2):
        with pytest.raises(KeyringError, match="repeats itself"):
            keyring.key_for("ben")
    assert keyring.key_for("anna") == key
    keyring.destroy("anna")
    with pytest.raises(KeyringError, match="repeats itself"):
        keyring.key_for("anna")


def test_a_keyring_without_its_lock_file_can_be_read(directory, tmp_path):
    key = FileKeyring(directory).key_for("anna")
    (directory / "lock").unlink()
    assert FileKeyring(directory).key(key.key_id) == key


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
@pytest.mark.parametrize("name", ["keys.jsonl", "master.key"])
def test_files_open_to_others_are_refused(directory, name, mode):
    key = FileKeyring(directory).key_for("anna")
    path = directory / name
    path.chmod(mode)
    with pytest.raises(KeyringError, match=f"chmod 600 {path}"):
        FileKeyring(directory).key_for("anna")
    path.chmod(0o600)
    assert FileKeyring(directory).key_for("anna") == key


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(KeyringError, match="chmod 700"):
        FileKeyring(directory).key_for("anna")
    assert not (directory / "keys.jsonl").exists()
    directory.chmod(0o755)
    key = FileKeyring(directory).key_for("anna")
    directory.chmod(mode)
    with pytest.raises(KeyringError, match="chmod 700"):
        FileKeyring(directory).key(key.key_id)


def test_a_wrong_master_key(directory):
    key = FileKeyring(directory).key_for("anna")
    before = (directory / "keys.jsonl").read_bytes()
    for wrong in (os.urandom(32), b"", b"short", bytes(33)):
        (directory / "master.key").write_bytes(wrong)
        keyring = FileKeyring(directory)
        for call in (
            lambda keyring=keyring: keyring.key_for("anna"),
            lambda keyring=keyring: keyring.key_for("someone new"),
            lambda keyring=keyring: keyring.key(key.key_id),
            lambda keyring=keyring: keyring.destroy("anna"),
        ):
            with pytest.raises(KeyringError, match="master key"):
                call()
        # What needs no key still answers.
        assert keyring.epoch > 0
        assert not keyring.is_destroyed(key.key_id)
        assert (directory / "keys.jsonl").read_bytes() == before
        assert (directory / "master.key").read_bytes() == wrong


def test_a_lost_master_key_is_never_replaced(directory):
    key = FileKeyring(directory).key_for("anna")
    kept = (directory / "master.key").read_bytes()
    (directory / "master.key").unlink()
    for _ in range(2):
        with pytest.raises(KeyringError, match=r"master\.key is missing"):
            FileKeyring(directory).key_for("someone new")
    assert not (directory / "master.key").exists()
    (directory / "master.key").write_bytes(kept)
    (directory / "master.key").chmod(0o600)
    assert FileKeyring(directory).key_for("anna") == key


# ── rotation ─────────────────────────────────────────────────────────────────────────────────────


def test_a_rotated_key_opens_and_no_longer_seals(keyring, another):
    first = keyring.key_for("anna")
    ben = keyring.key_for("ben")
    assert another().key_for("anna") == first
    epoch = keyring.epoch
    new = keyring.rotate("anna")
    assert keyring.epoch == epoch, "nothing was destroyed"
    for ring in (keyring, another()):
        assert ring.key_for("anna").key_id == new != first.key_id
        assert ring.key_ids("anna") == [first.key_id, new]
        assert ring.key(first.key_id) == first
        assert ring.key_for("ben") == ben
    third = another().rotate("anna")
    assert keyring.key_ids("anna") == [first.key_id, new, third]
    assert keyring.alive() == 4
    assert sorted(keyring.destroy("anna")) == sorted([first.key_id, new, third])
    assert another().key_ids("anna") == []
    assert another().alive() == 1
    assert all(another().is_destroyed(key_id) for key_id in (first.key_id, new, third))


def test_rotating_somebody_unknown_makes_the_first_key(keyring):
    new = keyring.rotate("anna")
    assert keyring.key_ids("anna") == [new] == [keyring.key_for("anna").key_id]


def test_a_rotated_master_key_opens_all(keyring, another):
    keys = {name: keyring.key_for(name) for name in ("anna", "ben", "cara")}
    keyring.destroy("cara")
    public = keyring.sign(b"x")[0]
    epoch, traces = keyring.epoch, keyring.traces([keys["anna"].key_id])
    keyring.rotate_master()
    for ring in (keyring, another()):
        assert ring.epoch != epoch, "others drop what they had opened"
        assert ring.key_for("anna") == keys["anna"]
        assert ring.key(keys["ben"].key_id) == keys["ben"]
        assert ring.is_destroyed(keys["cara"].key_id)
        assert ring.sign(b"x")[0] == public
        assert set(ring.traces([keys["anna"].key_id])) != set(traces) or not traces
    wrapped = [trace for trace in traces if trace not in keyring.traces([keys["anna"].key_id])]
    assert keyring.residues(wrapped).hits == ()


def test_rotating_nothing_makes_nothing(directory):
    FileKeyring(directory).rotate_master()
    assert not directory.exists()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_new_master_key_in_the_environment(directory, monkeypatch, kind):
    def ring():
        return FileKeyring(directory) if kind == "file" else StoreKeyring(f"sqlite:///{directory}/keys.db")

    monkeypatch.setenv("EVERTHREAD_MASTER_KEY", MASTER.hex())
    anna = ring().key_for("anna")
    monkeypatch.setenv("EVERTHREAD_MASTER_KEY", "ab" * 32)
    with pytest.raises(KeyringError, match="doesn't open"):
        ring().key_for("anna")
    monkeypatch.setenv("EVERTHREAD_MASTER_KEY_PREVIOUS", MASTER.hex())
    assert ring().key_for("anna") == anna
    ring().rotate_master()
    monkeypatch.delenv("EVERTHREAD_MASTER_KEY_PREVIOUS")
    assert ring().key_for("anna") == anna
    monkeypatch.setenv("EVERTHREAD_MASTER_KEY", MASTER.hex())
    with pytest.raises(KeyringError, match="doesn't open"):
        ring().key_for("anna")


# ── what an erasure needs ────────────────────────────────────────────────────────────────────────


def test_keys_are_destroyed_by_id(keyring, another):
    anna, ben = keyring.key_for("anna"), keyring.key_for("ben")
    assert keyring.destroy_keys([anna.key_id, b"?" * 16]) == [anna.key_id]
    epoch = keyring.epoch
    assert keyring.destroy_keys([anna.key_id, b"?" * 16]) == []
    assert keyring.epoch == epoch, "nothing was left to do"
    for ring in (keyring, another()):
        # Also one that it never had: a copy of this keyring from before may have made it.
        assert ring.destroyed() == {anna.key_id, b"?" * 16}
        assert ring.key(anna.key_id) is None
        assert ring.key_for("ben") == ben
    assert keyring.key_for("anna") != anna


def test_traces_are_found_before_and_gone_after(keyring):
    anna, ben = keyring.key_for("anna"), keyring.key_for("ben")
    traces, others = keyring.traces([anna.key_id]), keyring.traces([ben.key_id])
    assert len(traces) == 2
    if isinstance(keyring, MemoryKeyring):
        assert keyring.residues(traces).unreached, "who can't look says so"
        return
    assert keyring.residues(traces[:1]).hits == (), "the token is alive, and not looked for"
    found = sum(times for _, times in keyring._medium.residues(traces).hits)
    assert found == 2 or (found > 2 and isinstance(keyring, StoreKeyring)), (
        "control; a store is asked for parts"
    )
    keyring.destroy("anna")
    assert keyring.residues(traces).hits == ()
    assert keyring.residues(traces).looked
    assert keyring.traces([anna.key_id]) == []
    assert keyring.key_for("ben") == ben
    assert set(keyring.traces([ben.key_id])) & set(others), "the token stays, the wrapped key is another"


def test_signatures(keyring, another):
    public, signature = keyring.sign(b"report")
    Ed25519PublicKey.from_public_bytes(public).verify(signature, b"report")
    keyring.key_for("anna")
    keyring.destroy("anna")
    assert another().sign(b"other")[0] == public, "the same key for ever"


def test_a_fleet_needs_a_master_key_from_elsewhere(postgres_url):
    keyring = StoreKeyring(postgres_url)
    with pytest.raises(KeyringError, match="EVERTHREAD_MASTER_KEY"):
        keyring.key_for("anna")
    assert "@" not in keyring.where


def test_keyrings_by_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_keyring("sqlite:///keys.db").path == tmp_path / "keys.db"
    assert open_keyring(f"sqlite:///{tmp_path}/a%20b.db").path == tmp_path / "a b.db"
    for url in ("postgresql://me:secret@host/keys", "valkey://:secret@host/3", "rediss://host"):
        opened = open_keyring(url)
        assert isinstance(opened, StoreKeyring)
        assert "secret" not in opened.where
    assert isinstance(open_keyring("memory:"), MemoryKeyring)
    for wrong in ("sqlite://keys.db", "sqlite:///", "mysql://localhost"):
        with pytest.raises(UnsupportedError):
            open_keyring(wrong)
    assert list(tmp_path.iterdir()) == [], "nothing is created yet"


# ── what is asked of the disk ────────────────────────────────────────────────────────────────────


def test_a_destroyed_key_shows_though_the_file_got_another_name(tmp_path: Path) -> None:
    """As many names as before: one more was given, and the first one went with the file."""
    mine, theirs = FileKeyring(tmp_path / "keys"), FileKeyring(tmp_path / "keys")
    key = mine.key_for("ann")
    assert not mine.is_closed(key.key_id, lambda: 0)
    os.link(tmp_path / "keys" / "keys.jsonl", tmp_path / "copy")
    theirs.destroy("ann")
    assert mine.is_closed(key.key_id, lambda: 0)


def test_another_folder_in_its_place_shows_at_once(tmp_path: Path) -> None:
    mine, folder = FileKeyring(tmp_path / "keys"), tmp_path / "keys"
    key = mine.key_for("ann")
    assert not mine.is_closed(key.key_id, lambda: 0)
    folder.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", folder)
    assert FileKeyring(folder).destroy("ann") == [key.key_id]
    assert mine.is_closed(key.key_id, lambda: 0)


def test_a_removed_keyring_shows_at_once(tmp_path: Path) -> None:
    mine = FileKeyring(tmp_path / "keys")
    key = mine.key_for("ann")
    for _ in range(3):
        assert not mine.is_closed(key.key_id, lambda: 0)
    shutil.rmtree(tmp_path / "keys")
    for _ in range(3):
        with pytest.raises(KeyringError, match="gone"):
            mine.is_closed(key.key_id, lambda: 0)


def test_what_others_do_shows_at_once(keyring, another) -> None:
    mine, theirs = keyring, another()
    keys = [mine.key_for(name) for name in ("ann", "bob", "cat")]
    for number, key in enumerate(keys):
        for _ in range(3):
            assert not mine.is_closed(key.key_id, lambda: 0)
        if number == 1:
            theirs.rotate_master()
            assert not mine.is_closed(key.key_id, lambda: 0)
        theirs.destroy_keys([key.key_id])
        assert mine.is_closed(key.key_id, lambda: 0)


def test_what_others_destroyed_shows_to_who_just_asked(keyring, another) -> None:
    """Sealing may take the key unasked for a moment; committing never does."""
    mine, theirs = keyring, another()
    for number in range(10):
        key = mine.key_for(f"s{number}")
        assert not mine.is_closed(key.key_id, lambda: 0)
        theirs.destroy(f"s{number}")
        assert mine.is_closed(key.key_id, lambda: 0)
