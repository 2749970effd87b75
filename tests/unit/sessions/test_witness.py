"""What is noted beside a store about its ledgers, and when it counts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import everthread
from everthread import InDoubtError, Store


def opened(path: Path) -> Store:
    return everthread.open(f"sqlite:///{path}", durability="process", keyring="memory:")


def pay(path: Path, *keys: str) -> None:
    with opened(path) as store, store.session("bot") as session:
        for key in keys:
            session.call(key, lambda: "paid")


def may_pay(path: Path) -> bool:
    """Whether an effect that isn't known counts as not begun."""
    with opened(path) as store, store.session("bot") as session:
        try:
            session.call("another", lambda: "paid")
        except InDoubtError:
            return False
    return True


def test_an_older_state_of_the_same_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    older = path.read_bytes()
    pay(path, "two")
    path.write_bytes(older)
    with opened(path) as store:
        records = store.session_records("bot")
        assert records is not None
        assert records.losses is not None
        assert "and had" in records.losses.why
    assert not may_pay(path)


def test_a_symbolic_link_leads_to_the_same_notes(tmp_path: Path) -> None:
    path, link = tmp_path / "agent.db", tmp_path / "link.db"
    pay(path, "one")
    older = path.read_bytes()
    link.symlink_to(path)
    pay(link, "two")
    path.write_bytes(older)
    assert not may_pay(path)


def test_a_thread_that_vanished_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with opened(path) as store:
        store.thread("other").commit(label="first")
    empty = path.read_bytes()
    pay(path, "one")
    path.write_bytes(empty)
    assert not may_pay(path)


def test_a_thread_that_was_deleted_is_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    with opened(path) as store:
        store.thread("bot").delete()
    assert may_pay(path)


def test_a_store_that_was_removed_and_made_anew_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    path.unlink()
    assert may_pay(path)


def test_another_file_in_its_place_is_another_store(tmp_path: Path) -> None:
    path, other = tmp_path / "agent.db", tmp_path / "other.db"
    pay(path, "one", "two")
    pay(other, "one")
    other.rename(path)
    assert may_pay(path)


def test_a_restored_backup_is_a_shorter_ledger_as_well(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    with opened(path) as store:
        store.backup(tmp_path / "backup.db")
    pay(path, "two")
    with opened(path) as store:
        store.restore(tmp_path / "backup.db")
    assert not may_pay(path)


def test_accepted_losses_stay_accepted(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    older = path.read_bytes()
    pay(path, "two")
    path.write_bytes(older)
    with opened(path) as store:
        assert store.accept_losses("bot")
    assert may_pay(path)


def test_a_fork_of_a_shorter_ledger_knows(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    older = path.read_bytes()
    pay(path, "two")
    path.write_bytes(older)
    with opened(path) as store:
        store.thread("bot").fork("twin")
        with store.session("twin") as session, pytest.raises(InDoubtError, match="lost records"):
            session.call("two", lambda: "paid")


def test_notes_are_private_and_their_absence_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    pay(path, "one")
    notes = tmp_path / "agent.db-witness"
    assert notes.stat().st_mode & 0o777 == 0o600
    notes.write_bytes(os.urandom(4096 * 64))
    assert may_pay(path)
    notes.unlink()
    notes.mkdir()
    pay(path, "two")
    shutil.rmtree(notes)
    assert may_pay(path)
