"""Legal holds that cover some of a person's values: by thread, by key of the user store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidStateError, InvalidValueError, LegalHoldError, StorageWriteError
from everthread.keyring.keyring import open_keyring
from everthread.people import erase as erasing
from everthread.people.users import UserStore
from everthread.testing.driver import open_driven
from everthread.values import Erased, Personal

Opening = Callable[..., everthread.Store]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    opened: list[everthread.Store] = []
    keyring = open_keyring(str(tmp_path / "keys"))

    def open_it(kind: str = "sqlite", **options: Any) -> everthread.Store:
        urls = {"sqlite": f"sqlite:///{tmp_path}/store.db", "files": f"file://{tmp_path}/files"}
        open_ = open_driven if kind.endswith(" async") else everthread.open
        url = urls.get(kind.removesuffix(" async"), kind)
        store = open_(url, keyring=keyring, durability="process", **options)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()
    keyring.close()


def say(store: everthread.Store, name: str, *values: Personal) -> everthread.Thread:
    thread = store.thread(name)
    for number, value in enumerate(values):
        thread.state[f"v{number}"] = value
        thread.messages.append({"role": "user", "content": value})
        thread.commit()
    return thread


def told(store: everthread.Store, name: str) -> list[Any]:
    """What is said in a thread, as whoever opens it now sees it."""
    thread = store.thread(name)
    values = [*thread.state.values(), *(message["content"] for message in thread.messages)]
    return [None if isinstance(value, Erased) else value.value for value in values]


@pytest.mark.parametrize("kind", ["sqlite", "files", "memory:", "sqlite async"])
def test_what_is_held_stays_and_the_rest_is_erased(opening: Opening, kind: str) -> None:
    store = opening(kind)
    say(store, "case/17", Personal("bob", "evidence"), Personal(["bob", "ann"], "both"))
    say(store, "chat", Personal("bob", "gossip"), Personal("ann", "hers"))
    store.hold("bob", "case 17", threads="case/")
    (hold,) = store.holds("bob")
    assert (hold.reason, hold.threads, hold.keys) == ("case 17", ("case/",), ())
    plan = store.erase("bob", dry_run=True)
    assert plan.held is None
    assert plan.stayed == 4
    assert told(store, "chat") == ["gossip", "hers"] * 2
    report = store.erase("bob")
    assert report
    assert report.is_signed()
    assert (report.sealed_values, report.stayed) == (2, 4)
    assert [p.outcome for p in report.places if p.count and p.what == "held values"] == [
        "kept under a legal hold (case 17)"
    ]
    assert any("case/17" in place.where for place in report.places)
    assert told(store, "case/17") == ["evidence", "both"] * 2
    assert told(store, "chat") == [None, "hers"] * 2
    assert store.verify()
    # Older versions, too, and what comes later.
    assert store.thread("case/17").at(1).state["v0"].value == "evidence"
    say(store, "chat", Personal("bob", "again"))
    assert store.erase("bob").stayed == 4
    assert told(store, "case/17") == ["evidence", "both"] * 2
    assert told(store, "chat")[0] is None
    assert [hold.threads for hold in store.holds()] == [("case/",)]
    store.release_hold("bob", "decided")
    assert store.holds() == []
    last = store.erase("bob")
    assert last
    assert last.stayed == 0
    assert told(store, "case/17") == [None] * 4
    assert told(store, "chat")[1] == "hers"
    assert store.verify()


def test_a_held_value_can_be_stored_on(opening: Opening) -> None:
    store = opening()
    say(store, "case/17", Personal("bob", "evidence"))
    store.hold("bob", "case 17", threads="case/")
    store.erase("bob")
    thread = store.thread("case/17")
    thread.state["copy"] = thread.state["v0"]
    thread.commit()
    assert store.thread("case/17").state["copy"].value == "evidence"


def test_what_a_fork_in_the_scope_shares_is_held(opening: Opening) -> None:
    store = opening()
    main = say(store, "main", Personal("bob", "shared"))
    main.fork("case/fork")
    say(store, "main", Personal("bob", "later"))
    store.hold("bob", "case 17", threads="case/")
    store.erase("bob")
    assert store.thread("case/fork").state["v0"].value == "shared"
    assert isinstance(store.thread("main").state["v0"], Erased)


def test_user_values_are_held_by_key(opening: Opening) -> None:
    store = opening()
    users = UserStore(store)
    users.set("bob", "email", "bob@example.org")
    users.set("bob", "phone", "1234")
    say(store, "chat", Personal("bob", "gossip"))
    store.hold("bob", "case 17", keys=["email"])
    report = store.erase("bob")
    assert (report.user_values, report.stayed) == (1, 1)
    assert users.get("bob", "email") == "bob@example.org"
    assert users.get("bob", "phone") is None
    assert users.keys("bob") == ["email"]
    assert told(store, "chat") == [None, None]


def test_a_second_hold_adds_and_one_on_all_refuses(opening: Opening) -> None:
    store = opening()
    say(store, "case/17", Personal("bob", "evidence"))
    store.hold("bob", "one", threads="case/")
    store.hold("bob", "two", threads=["mail/"], keys="email")
    assert [(hold.threads, hold.keys) for hold in store.holds()] == [(("case/", "mail/"), ("email",))]
    store.hold("bob", "three")
    with pytest.raises(LegalHoldError, match="three"):
        store.erase("bob")
    assert [(hold.threads, hold.keys) for hold in store.holds()] == [((), ())]
    for wrong in ({"threads": []}, {"keys": ()}, {"threads": [""]}, {"threads": 7}):
        with pytest.raises((InvalidValueError, everthread.InvalidNameError)):
            store.hold("bob", "four", **wrong)  # type: ignore[arg-type]


def test_others_refuse_what_they_can_not_keep(opening: Opening) -> None:
    """Another store on the keyring, or another namespace, doesn't reach the values."""
    first, second, tenant = opening(), opening("files"), opening(namespace="tenant")
    say(first, "case/17", Personal("bob", "evidence"))
    say(second, "chat", Personal("bob", "gossip"))
    first.hold("bob", "case 17", threads="case/")
    with pytest.raises(LegalHoldError, match="another store"):
        second.erase("bob")
    with pytest.raises(LegalHoldError):
        tenant.erase("bob")
    with pytest.raises(InvalidStateError, match="namespace"):
        tenant.hold("bob", "case 18", threads="x")
    second.hold("bob", "theirs")
    with pytest.raises(LegalHoldError):
        first.erase("bob")
    second.release_hold("bob")
    assert first.erase("bob")
    assert told(first, "case/17") == ["evidence"] * 2
    assert told(second, "chat") == [None] * 2, "the key is gone for all stores"


def test_the_hold_that_refuses_is_named_and_a_dry_run_says_so_too(opening: Opening) -> None:
    """Beside a hold of this store that an erasure would go around, one of another store refuses."""
    first, second = opening(), opening("files")
    for store in (first, second):
        say(store, "case/17", Personal("bob", "evidence"))
        say(store, "chat", Personal("bob", "gossip"))
    first.hold("bob", "case 17", threads="case/")
    second.hold("bob", "case 18", threads="case/")
    for store in (first, second):
        before = store.holds()
        assert store.erase("bob", dry_run=True).held == "placed through another store on the same keyring"
        assert store.holds() == before, "a dry run is no attempt"
        with pytest.raises(LegalHoldError, match="another store") as caught:
            store.erase("bob")
        assert caught.value.reason == "placed through another store on the same keyring"
        assert store.holds()[0].refused == 1
    second.release_hold("bob")
    assert first.erase("bob", dry_run=True).held is None
    assert first.erase("bob")
    assert told(first, "case/17") == ["evidence"] * 2


def test_bytes_that_stay_are_not_counted_as_erased(opening: Opening) -> None:
    store = opening()
    users = UserStore(store)
    users.set("bob", "email", "bob@example.org")
    say(store, "case/17", Personal("bob", "evidence"), Personal(["bob", "ann"], "both"))
    total = store.erase("bob", dry_run=True).sealed_bytes
    store.hold("bob", "case 17", threads="case/", keys="email")
    for _ in range(2):
        for dry_run in (True, False):
            report = store.erase("bob", dry_run=dry_run)
            assert (report.sealed_values, report.sealed_bytes, report.stayed) == (0, 0, 5)
    say(store, "chat", Personal("bob", "gossip"))
    plan = store.erase("bob", dry_run=True)
    report = store.erase("bob")
    assert (plan.sealed_values, plan.sealed_bytes) == (report.sealed_values, report.sealed_bytes)
    assert 0 < report.sealed_bytes < total
    store.release_hold("bob")
    assert store.erase("bob").sealed_bytes == total


def test_an_erasure_that_was_cut_short_keeps_what_is_held(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opening()
    say(store, "case/17", Personal("bob", "evidence"), Personal("bob", "more"))
    say(store, "chat", Personal("bob", "gossip"))
    store.hold("bob", "case 17", threads="case/")

    def cut(self: Any) -> None:
        raise StorageWriteError("cut short")

    for phase in ("_keep_held", "_capture", "_destroy", "_delete"):
        with monkeypatch.context() as patched:
            patched.setattr(erasing.Erasure, phase, lambda *_: cut(None))
            with pytest.raises(StorageWriteError):
                store.erase("bob")
        if phase == "_destroy":
            store.close()
            store = opening()
    report = store.erase("bob")
    assert report
    assert told(store, "case/17") == ["evidence", "more"] * 2
    assert told(store, "chat") == [None] * 2
    assert len(store.holds()) == 1


def test_a_backup_from_before_takes_nothing_that_is_held(opening: Opening, tmp_path: Path) -> None:
    store = opening()
    users = UserStore(store)
    say(store, "case/17", Personal("bob", "evidence"))
    say(store, "chat", Personal("bob", "gossip"))
    users.set("bob", "email", "bob@example.org")
    store.backup(tmp_path / "before.db")
    store.hold("bob", "case 17", threads="case/", keys="email")
    store.erase("bob")
    store.restore(tmp_path / "before.db")
    assert told(store, "case/17") == ["evidence"] * 2
    assert told(store, "chat") == [None] * 2
    assert users.get("bob", "email") == "bob@example.org"
    assert [(hold.threads, hold.keys) for hold in store.holds()] == [(("case/",), ("email",))]
    store.release_hold("bob")
    assert store.erase("bob")
    assert told(store, "case/17") == [None] * 2
    assert users.get("bob", "email") is None
