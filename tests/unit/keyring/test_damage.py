"""Damaged and torn keyring files: every promised key is there, or the damage is named."""

from __future__ import annotations

import os

import pytest

from everthread.errors import KeyringError, SchemaVersionError
from everthread.keyring.format import Header, KeyTable, encode_record
from everthread.keyring.keyring import FileKeyring


@pytest.fixture(autouse=True)
def no_master_in_environment(monkeypatch):
    monkeypatch.delenv("EVERTHREAD_MASTER_KEY", raising=False)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "keyring"


@pytest.fixture
def no_real_sync(monkeypatch):
    """Where the machine stays up, waiting for its disk proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def three(directory):
    """A keyring with a destroyed key, a live one, and a last line; and the keys that were promised."""
    keyring = FileKeyring(directory)
    keyring.key_for("gone")
    keyring.destroy("gone")
    return {subject: keyring.key_for(subject) for subject in ("anna", "ben")}


def lines_of(directory):
    return (directory / "keys.jsonl").read_bytes().splitlines(keepends=True)


def put(directory, data):
    (directory / "keys.jsonl").write_bytes(data)


def test_every_truncation_of_the_last_line(directory, three, no_real_sync):
    *kept, last = lines_of(directory)
    for size in range(len(last)):
        put(directory, b"".join(kept) + last[:size])
        keyring = FileKeyring(directory)
        assert keyring.key_for("anna") == three["anna"]
        # Only with its last brace is the line whole; before, nobody was promised this key.
        whole = size == len(last) - 1
        assert (keyring.key_for("ben") == three["ben"]) is whole
        ben, cara = keyring.key_for("ben"), keyring.key_for("cara")
        again = FileKeyring(directory)
        assert [again.key_for(name) for name in ("anna", "ben", "cara")] == [three["anna"], ben, cara]
        assert len(lines_of(directory)) == len(kept) + 2


def test_a_running_process_reads_over_a_torn_line(directory, three):
    keyring = FileKeyring(directory)
    assert keyring.key_for("ben") == three["ben"]
    torn = lines_of(directory)[-1][:100]
    with open(directory / "keys.jsonl", "ab") as file:
        file.write(torn)
    assert keyring.key_for("anna") == three["anna"]
    cara = FileKeyring(directory).key_for("cara")
    assert keyring.key_for("cara") == cara
    assert keyring.key_for("ben") == three["ben"]


def test_a_missing_last_newline(directory, three):
    """As some editors leave it."""
    running = FileKeyring(directory)
    put(directory, b"".join(lines_of(directory)).rstrip(b"\n"))
    assert running.key_for("ben") == three["ben"]
    cara = FileKeyring(directory).key_for("cara")
    assert running.key_for("cara") == cara
    assert running.key_for("ben") == three["ben"]


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 300, b"\0" * 100 + b'"}\n', b"\0\n"])
def test_zeros_after_power_loss(directory, three, tail):
    put(directory, b"".join(lines_of(directory)) + tail)
    keyring = FileKeyring(directory)
    assert {subject: keyring.key_for(subject) for subject in three} == three
    cara = keyring.key_for("cara")
    assert FileKeyring(directory).key_for("cara") == cara


def test_every_bit_flip_is_named(directory, three):
    whole = b"".join(lines_of(directory))
    KeyTable("keys").read(whole)
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        line = 1 + whole[: bit // 8].count(b"\n")
        with pytest.raises(KeyringError, match=rf"keys: record {line} is damaged"):
            KeyTable("keys").read(bytes(altered))


@pytest.mark.parametrize("place", [0, 1, 100, 400, -300, -100, -2, -1])
def test_damage_is_named_before_any_key_is_used(directory, three, place):
    whole = bytearray(b"".join(lines_of(directory)))
    line = 1 + whole[:place].count(b"\n")
    whole[place] ^= 1
    put(directory, whole)
    for call in (FileKeyring.key_for, FileKeyring.key_ids, FileKeyring.destroy):
        with pytest.raises(KeyringError, match=rf"keys\.jsonl: record {line} is damaged"):
            call(FileKeyring(directory), "anna")


def test_damaged_files_are_left_as_they_are(directory, three):
    header, *rest = lines_of(directory)
    for data in (
        b"",
        b"\n",
        b"\0" * 500,
        header[:50],
        b"".join(rest),
        header + header + b"".join(rest),
        header + b"\n" + b"".join(rest),
        header + b"".join(rest) + rest[-1],
        header + b"".join(rest) + b"{}\n",
        header + rest[0][:40] + b"\n" + rest[-1],
        header + b'{"sum":"0000000000000000"}' + rest[0],
    ):
        put(directory, data)
        for call in (FileKeyring.key_for, FileKeyring.destroy):
            with pytest.raises(KeyringError, match=r"record \d is damaged"):
                call(FileKeyring(directory), "anna")
        assert (directory / "keys.jsonl").read_bytes() == data


def test_lines_of_another_keyring_dont_fit(directory, three, tmp_path):
    other = FileKeyring(tmp_path / "other")
    stranger = other.key_for("anna")
    put(directory, b"".join(lines_of(directory)) + lines_of(tmp_path / "other")[-1])
    with pytest.raises(KeyringError, match="damaged"):
        FileKeyring(directory).key(stranger.key_id)
    assert FileKeyring(directory).key_for("ben") == three["ben"]


def test_a_newer_format_is_left_alone(directory, three):
    header, *rest = lines_of(directory)
    newer = encode_record(Header(format=2, id="", epoch=1, master="file", token_key="", signing_key=""))
    put(directory, newer + b"".join(rest))
    for call in (FileKeyring.key_for, FileKeyring.destroy):
        with pytest.raises(SchemaVersionError):
            call(FileKeyring(directory), "anna")
    assert lines_of(directory) == [newer, *rest]
    assert header not in lines_of(directory)


def test_lost_keys_are_never_replaced(directory):
    keyring = FileKeyring(directory)
    keyring.key_for("anna")
    (directory / "keys.jsonl").unlink()
    for one in (keyring, FileKeyring(directory)):
        for _ in range(2):
            with pytest.raises(KeyringError, match=r"keys\.jsonl is gone"):
                one.key_for("anna")
    assert not (directory / "keys.jsonl").exists()
