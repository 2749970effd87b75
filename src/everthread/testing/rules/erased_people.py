"""Erasing people, as callers see it: who is erased can't be read again, everybody else stays as they were."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from everthread.errors import ErasedError, InvalidStateError, InvalidValueError, LegalHoldError, SealError
from everthread.keyring.keyring import MemoryKeyring
from everthread.people.users import UserStore
from everthread.store import Store
from everthread.testing.rules.expecting import OpenStore, commit, message, needs, raises
from everthread.values import Erased, Personal


class ErasedPeopleRules:
    def test_erased_values_read_as_erased_everywhere(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        first = _tell(thread, 0)
        fork = thread.fork("b", at=first)
        _tell(thread, 1)
        _tell(fork, 2)
        store.events("s").append("t", {"who": Personal("ann", "Ann"), "of": Personal("bob", "Bob")})
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("bob", "city", "Rome")
        preview = store.erase("ann", dry_run=True)
        assert (preview.dry_run, preview.user_values) == (True, users.kept)
        assert preview.sealed_values == 8 + users.kept, "three versions with two, one of both, an event"
        assert thread.state["ann"].value == "ann 1", "a preview changes nothing"
        report = store.erase("ann")
        assert report
        assert (report.sealed_values, report.user_values) == (8 + users.kept, users.kept)
        assert report.is_signed()
        for name in ("a", "b"):
            for handle in (thread if name == "a" else fork, store.thread(name)):
                for version in handle.history(limit=None):
                    past = handle.at(version)
                    number = past.state["number"]
                    assert isinstance(past.state["ann"], Erased)
                    assert isinstance(past.state["both"], Erased), "sealed under both keys"
                    assert past.state["bob"].value == f"bob {number}"
                    assert not past.messages[-1]["content"]
                handle.diff(first, handle.head)
        merged = store.thread("a").merge(store.thread("b"), resolve="ours")
        assert merged.version is not None
        (event,) = store.events("s").replay()
        assert isinstance(event.data["who"], Erased)
        assert event.data["of"].value == "Bob"
        assert users.get("ann", "city") is None
        assert users.get("bob", "city") == users.known("Rome")

    def test_who_comes_back_begins_anew(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        _tell(thread, 0)
        for number in range(1, 4):
            report = store.erase("ann")
            assert report
            again = store.erase("ann")
            assert again, "nothing is left to do"
            assert again.key_ids == ()
            _tell(thread, number)
            assert thread.state["ann"].value == f"ann {number}"
            assert isinstance(thread.at(1).state["ann"], Erased)
        assert len(store._core.backend.erasures()) == 3

    def test_what_was_read_before_can_t_be_stored_again(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store, other = open_store(keyring=keyring), open_store(keyring=keyring)
        if not store.capabilities.durable:
            other = store
        thread = store.thread("a")
        _tell(thread, 0)
        kept, unread = thread.state["ann"], store.thread("a").state["ann"]
        assert kept.value == "ann 0"
        late, overwriting = other.thread("a"), store.thread("c")
        late.state["copy"] = late.state["ann"]
        overwriting.state["x"] = Personal("ann", "soon gone")
        overwriting.state["x"] = "nothing"
        overwriting.messages.append(message("m", Personal("ann", "taken back")))
        overwriting.messages.truncate_from("m")
        assert store.erase("ann")
        with raises(ErasedError):
            late.commit()
        late.state["copy"] = "something else"
        commit(late)
        assert overwriting.commit() is not None, "nothing of hers is part of it"
        assert overwriting.state.plain() == {"x": "nothing"}
        fresh = store.thread("d")
        with raises(SealError):
            fresh.state["copy"] = kept
        with raises(SealError):
            unread.value  # noqa: B018 - it is what raises
        # What reads as erased may be copied: there is nothing in it.
        fresh.state["copy"] = store.thread("a").state["ann"]
        commit(fresh)
        assert isinstance(store.thread("d").state["copy"], Erased)

    def test_a_legal_hold_keeps_and_is_recorded(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        _tell(thread, 0)
        with raises(InvalidStateError):
            store.release_hold("ann")
        with raises(InvalidValueError):
            store.hold("ann", " ")
        store.hold("ann", "case 17")
        assert store.erase("ann", dry_run=True).held == "case 17"
        for _ in range(2):
            with raises(LegalHoldError) as caught:
                store.erase("ann")
            assert caught[0].reason == "case 17"
            assert caught[0].since_us > 0
        assert thread.state["ann"].value == "ann 0"
        assert store._core.backend.erasures() == []
        assert store.erase("bob"), "it holds for her alone"
        store.release_hold("ann", "case closed")
        assert store.erase("ann")
        with raises(InvalidStateError):
            store.release_hold("ann")
        store.hold("ann", "she came back")
        with raises(LegalHoldError):
            store.erase("ann")

    def test_rotated_keys_open_and_are_erased_together(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        versions = [_tell(thread, 0)]
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("ann", "name", "Ann")
        store.rotate_keys("ann")
        store.rotate_keys()
        versions.append(_tell(thread, 1))
        users.set("ann", "city", "Rome")
        assert users.get("ann", "city") == users.known("Rome")
        assert users.get("ann", "name") == users.known("Ann")
        assert [thread.at(v).state["ann"].value for v in versions] == ["ann 0", "ann 1"]
        report = store.erase("ann")
        assert report
        assert len(report.key_ids) == 2
        assert all(isinstance(thread.at(v).state["ann"], Erased) for v in versions)
        assert thread.state["bob"].value == "bob 1"
        assert users.get("ann", "city") is None

    def test_a_restored_backup_brings_back_everybody_else(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store = open_store(keyring=keyring)
        needs(store, "backup")
        thread = store.thread("a")
        _tell(thread, 0)
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("bob", "city", "Rome")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "copy")
            store.backup(path)
            _tell(thread, 1)
            store.hold("bob", "case 4")
            assert store.erase("ann")
            for _ in range(2):
                store.restore(path)
                read = store.thread("a")
                assert isinstance(read.state["ann"], Erased)
                assert read.state["bob"].value == "bob 0"
                assert users.get("ann", "city") is None
                assert users.get("bob", "city") == users.known("Rome")
                assert store._core.backend.erasures(True) == [], "it has been finished again"
                with raises(LegalHoldError):
                    store.erase("bob")
            _tell(store.thread("a"), 2)
            assert store.thread("a").state["ann"].value == "ann 2"

    def test_an_old_copy_of_the_keyring_brings_nobody_back(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store = open_store(keyring=keyring)
        needs(store, "durable")
        thread = store.thread("a")
        _tell(thread, 0)
        old = MemoryKeyring()
        for name in ("_by_subject", "_by_id", "_signing_key"):
            setattr(
                old, name, dict(getattr(keyring, name)) if name != "_signing_key" else keyring._signing_key
            )
        assert store.erase("ann")
        other = open_store(keyring=old)
        read = other.thread("a")
        assert isinstance(read.state["ann"], Erased)
        assert read.state["bob"].value == "bob 0"
        _tell(read, 1)
        assert read.state["ann"].value == "ann 1", "who comes back gets a new key there as well"
        assert isinstance(read.at(1).state["ann"], Erased)


class _Users:
    """User data of a store, if it has any: only blocking ones do."""

    def __init__(self, store: Any) -> None:
        self._users = UserStore(store) if isinstance(store, Store) else None
        #: How many values are kept of one that was set.
        self.kept = 0 if self._users is None else 1

    def set(self, user: str, key: str, value: Any) -> None:
        if self._users is not None:
            self._users.set(user, key, value)

    def get(self, user: str, key: str) -> Any:
        return None if self._users is None else self._users.get(user, key)

    def known(self, value: Any) -> Any:
        return None if self._users is None else value


def _tell(thread: Any, number: int) -> Any:
    """A version that says something about two people, and about both together."""
    thread.state["number"] = number
    thread.state["ann"] = Personal("ann", f"ann {number}")
    thread.state["bob"] = Personal("bob", f"bob {number}")
    thread.messages.append(message(f"{thread.name} {number}", Personal("ann", "hello " * 50)))
    if "both" not in thread.state:
        thread.state["both"] = Personal(["bob", "ann"], "a secret of two")
    return commit(thread)
