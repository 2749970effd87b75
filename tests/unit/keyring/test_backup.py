"""A keyring in one file: what it holds, who can read it, and that nobody comes back by it."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest

import everthread
from everthread.errors import (
    InvalidValueError,
    KeyringError,
    NotAStoreError,
    NotFoundError,
    SchemaVersionError,
    StateCorruptedError,
    UnsupportedError,
    UsageError,
)
from everthread.keyring.keyring import FileKeyring, MemoryKeyring, StoreKeyring

PASSPHRASE = "correct horse battery"
SOURCE = Path(everthread.__file__).parent


@pytest.fixture
def keyring(tmp_path):
    return FileKeyring(tmp_path / "one")


def test_keys_times_and_holds_come_back(tmp_path, keyring):
    key = keyring.key_for("ann")
    other = keyring.key_for("bob")
    keyring.set_times({other.key_id: 4_000_000_000_000_000})
    keyring.set_hold(key.key_id, b"h" * 16, on=True)
    report = keyring.backup(tmp_path / "copy", PASSPHRASE)
    assert (report.keys, report.destroyed, report.keyring) == (2, 0, str(tmp_path / "one"))
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    for target in (
        FileKeyring(tmp_path / "two"),
        StoreKeyring(f"sqlite:///{tmp_path}/k.db"),
        MemoryKeyring(),
    ):
        assert target.restore(tmp_path / "copy", PASSPHRASE).keys == 2
        assert target.key(key.key_id) == key
        assert target.key_ids("ann") == [key.key_id], "found by the name of its subject"
        assert target.times() == {other.key_id: 4_000_000_000_000_000}
        assert target.holds([key.key_id]) == {b"h" * 16}
        again = target.restore(tmp_path / "copy", PASSPHRASE)
        assert (again.keys, again.present, again.refused) == (0, 2, 0)
        target.close()


def test_neither_keys_nor_names_stand_in_it_in_clear(tmp_path, keyring):
    key = keyring.key_for("ann of nowhere")
    keyring.backup(tmp_path / "copy", PASSPHRASE)
    data = (tmp_path / "copy").read_bytes()
    for secret in (key.key, key.key_id, b"ann of nowhere", PASSPHRASE.encode(), key.key.hex().encode()):
        assert secret not in data


def test_destroyed_keys_never_come_back(tmp_path, keyring):
    key = keyring.key_for("ann")
    keyring.key_for("bob")
    keyring.backup(tmp_path / "before", PASSPHRASE)
    keyring.destroy("ann")
    report = keyring.backup(tmp_path / "after", PASSPHRASE)
    assert (report.keys, report.destroyed) == (1, 1)
    # Into the keyring that destroyed it, and into one that learnt of it from a newer backup.
    assert keyring.restore(tmp_path / "before", PASSPHRASE).refused == 1
    other = FileKeyring(tmp_path / "two")
    assert other.restore(tmp_path / "after", PASSPHRASE).keys == 1
    assert other.restore(tmp_path / "before", PASSPHRASE).refused == 1
    # One that has it already loses it, and so does one that holds nothing else.
    late = FileKeyring(tmp_path / "three")
    late.restore(tmp_path / "before", PASSPHRASE)
    assert late.restore(tmp_path / "after", PASSPHRASE).destroyed == 1
    for each in (keyring, other, late):
        assert each.key(key.key_id) is None
        assert each.is_destroyed(key.key_id)


def test_a_backup_of_destroyed_keys_alone_is_remembered(tmp_path, keyring):
    key = keyring.key_for("ann")
    keyring.backup(tmp_path / "before", PASSPHRASE)
    keyring.destroy("ann")
    keyring.backup(tmp_path / "after", PASSPHRASE)
    other = FileKeyring(tmp_path / "two")
    other.restore(tmp_path / "after", PASSPHRASE)
    assert other.restore(tmp_path / "before", PASSPHRASE).keys == 0
    assert other.key(key.key_id) is None


def test_a_legal_hold_keeps_a_key_that_was_destroyed_elsewhere(tmp_path, keyring):
    key = keyring.key_for("ann")
    keyring.backup(tmp_path / "before", PASSPHRASE)
    keyring.destroy("ann")
    keyring.backup(tmp_path / "after", PASSPHRASE)
    other = FileKeyring(tmp_path / "two")
    other.restore(tmp_path / "before", PASSPHRASE)
    other.set_hold(key.key_id, b"h" * 16, on=True)
    report = other.restore(tmp_path / "after", PASSPHRASE)
    assert (report.destroyed, report.held) == (0, 1)
    assert other.key(key.key_id) == key


def test_those_who_a_store_erased_stay_away(tmp_path, keyring):
    key = keyring.key_for("ann")
    keyring.key_for("bob")
    keyring.backup(tmp_path / "copy", PASSPHRASE)
    other = FileKeyring(tmp_path / "two")
    report = other.restore(tmp_path / "copy", PASSPHRASE, erased=[key.key_id])
    assert (report.keys, report.refused) == (1, 1)
    assert other.key(key.key_id) is None


def test_a_wrong_passphrase_changes_nothing_and_says_so(tmp_path, keyring):
    keyring.key_for("ann")
    keyring.backup(tmp_path / "copy", PASSPHRASE)
    other = FileKeyring(tmp_path / "two")
    for wrong in ("another passphrase", b"x" * 32):
        with pytest.raises(KeyringError, match="Nothing was changed"):
            other.restore(tmp_path / "copy", wrong)
    with pytest.raises(InvalidValueError, match="12 characters"):
        other.restore(tmp_path / "copy", "short")
    assert not (tmp_path / "two").exists()


def test_what_is_damaged_newer_or_something_else_is_told_apart(tmp_path, keyring):
    keyring.key_for("ann")
    keyring.backup(tmp_path / "copy", PASSPHRASE)
    whole = (tmp_path / "copy").read_bytes()
    broken = tmp_path / "broken"
    for data in (
        whole[:-1],
        whole[:60],
        whole[:40] + b"\x00" + whole[41:],
        whole + b"x",
        b"everthread keyring\n",
    ):
        broken.write_bytes(data)
        with pytest.raises(StateCorruptedError, match="damaged"):
            keyring.restore(broken, PASSPHRASE)
    from hashlib import sha256

    newer = bytearray(whole[:-32])
    assert newer[20] == 1, "the number of the format"
    newer[20] = 2
    broken.write_bytes(bytes(newer) + sha256(newer).digest())
    with pytest.raises(SchemaVersionError, match="newer"):
        keyring.restore(broken, PASSPHRASE)
    broken.write_bytes(b"something else")
    with pytest.raises(NotAStoreError, match="isn't a keyring backup"):
        keyring.restore(broken, PASSPHRASE)
    with pytest.raises(NotFoundError):
        keyring.restore(tmp_path / "none", PASSPHRASE)


def test_a_backup_overwrites_nothing(tmp_path, keyring):
    keyring.key_for("ann")
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(UsageError, match="never overwrites"):
        keyring.backup(tmp_path / "copy", PASSPHRASE)
    assert (tmp_path / "copy").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


# Where a keyring is, if nobody says


def test_the_environment_names_the_keyring_and_arguments_win(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERTHREAD_KEYRING", str(tmp_path / "named"))
    assert everthread.open_keyring().place == str(tmp_path / "named")
    assert everthread.open_keyring(tmp_path / "given").place == str(tmp_path / "given")
    with everthread.open("memory:") as store:
        assert store.core.vault.keyring.place == str(tmp_path / "named")
    with everthread.open("memory:", keyring=tmp_path / "given") as store:
        assert store.core.vault.keyring.place == str(tmp_path / "given")
    monkeypatch.setenv("EVERTHREAD_KEYRING", "s3://bucket")
    with pytest.raises(UnsupportedError, match=r"^\$EVERTHREAD_KEYRING: no keyring opens s3://"):
        everthread.open("memory:")
    monkeypatch.setenv("EVERTHREAD_KEYRING", f"sqlite:///{tmp_path}/same.db")
    with pytest.raises(KeyringError, match="same place"), everthread.open(f"sqlite:///{tmp_path}/same.db"):
        pass


def test_the_environment_names_the_namespace_and_arguments_win(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/a.db"
    monkeypatch.setenv("EVERTHREAD_NAMESPACE", "tenant")
    with everthread.open(url) as store:
        assert store.namespace == "tenant"
    with everthread.open(url, namespace="") as store:
        assert store.namespace == ""
    with everthread.open(url, namespace="other") as store:
        assert store.namespace == "other"


async def _namespace_and_keyring(url):
    async with everthread.open_async(url) as store:
        return store.namespace, store.core.vault.keyring.place


def test_an_async_store_follows_the_environment_too(tmp_path, monkeypatch):
    import asyncio

    monkeypatch.setenv("EVERTHREAD_NAMESPACE", "tenant")
    monkeypatch.setenv("EVERTHREAD_KEYRING", str(tmp_path / "named"))
    found = asyncio.run(_namespace_and_keyring(f"sqlite:///{tmp_path}/a.db"))
    assert found == ("tenant", str(tmp_path / "named"))


def test_a_keyring_that_is_made_at_home_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING, "everthread"):
        for _ in range(2):
            with everthread.open("memory:") as store:
                store.thread("t").commit(label="nothing personal")
        assert caplog.messages == []
        for name in ("ann", "bob"):
            with everthread.open("memory:") as store:
                store.users.set(name, "mail", "x")
        (told,) = caplog.messages
        assert str(tmp_path / ".everthread" / "keyring") in told
        assert "everthread keyring backup FILE" in told
        # Whoever chose the place knows it.
        with everthread.open("memory:", keyring=tmp_path / "given") as store:
            store.users.set("ann", "mail", "x")
        assert len(caplog.messages) == 1


# What to do about it

#: A remedy begins with one of these.
REMEDIES = (
    "put ", "Put ", "set ", "open it ", "give ", "Give ", "try again", "chmod", "name ", "check ", "mend ",
    "see that", "let this user", "export(", "_HOW_TO_OPEN",
)  # fmt: skip


def _messages():
    for path in sorted(SOURCE.rglob("*.py")):
        if "sync" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "KeyringError"
            ):
                source = ast.get_source_segment(text, node) or ""
                # One text, as it is read: literals that follow one another are one.
                yield f"{path.name}:{node.lineno}", re.sub(r'"\s*\n\s*f?"', "", source)


def test_every_keyring_error_names_the_remedy():
    found = dict(_messages())
    assert len(found) > 20
    without = {where: text for where, text in found.items() if not any(word in text for word in REMEDIES)}
    assert not without
