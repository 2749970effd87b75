"""Key/value data of persons: isolation, concurrency, and what is gone stays gone."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidNameError, InvalidValueError, StoreClosedError, Thread, UserStore


def test_names_and_values_are_checked(tmp_path: Path) -> None:
    with everthread.open("memory:", keyring="memory:") as store:
        users = store.users
        for user, key in (("", "k"), ("u", ""), ("a\0b", "k"), ("u", 7)):
            with pytest.raises(InvalidNameError):
                users.set(user, key, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError):
            users.set("u", "k", object())
        assert users.keys("u") == []
        users.set("../../x", "'; drop table users; --", {"a": [1]})
        assert users.get("../../x", "'; drop table users; --") == {"a": [1]}
    with pytest.raises(StoreClosedError):
        users.get("u", "k")
    with pytest.raises(InvalidValueError):
        UserStore(store=7)


def test_namespaces_are_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/u.db"
    with everthread.open(url, namespace="a") as a, everthread.open(url, namespace="b") as b:
        a.users.set("u1", "k", 1)
        assert b.users.get("u1", "k") is None
        b.users.set("u1", "k", 2)
        assert a.users.delete_user("u1") == 1
        assert b.users.get("u1", "k") == 2


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/u.db", durability="process") as store:

        def write(part: int) -> None:
            for number in range(10):
                store.users.set("u1", f"{part}/{number}", number)

        threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.users.keys("u1")) == 40


def test_a_person_whose_key_was_destroyed_is_unknown(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/u.db", keyring="memory:") as store:
        store.users.set("u1", "k", "secret")
        store.core.vault.keyring.destroy("u1")
        assert (store.users.get("u1", "k", "d"), store.users.keys("u1")) == ("d", [])
        # Somebody who returns begins anew.
        store.users.set("u1", "k", "new")
        assert store.users.get("u1", "k") == "new"
        assert store.verify().ok


def test_deleted_values_are_gone_from_the_history(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/u.db") as store:
        users = store.users
        for number in range(100):
            users.set("u1", "k", number)
        assert users.delete_user("u1") == 1
        left = [line for line in store.core.backend.every_line() if line.space.endswith("\0users")]
        assert all(line.deleted for line in left)
        assert all(store.core.backend.scan(line.id, 1_000, 10) == [] for line in left)


def test_who_comes_back_after_their_time_begins_anew(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process", keyring="memory:") as store:
        thread, users = store.thread("a"), store.users
        users.set("cem", "city", "Izmir")
        thread.state["old"] = everthread.Personal("cem", "old")
        thread.commit()
        users.expire("cem", 0.05)
        store.hold("cem", "case 17")
        time.sleep(0.06)
        # Held, so that it isn't erased yet: what comes now is seen all the same.
        users.set("cem", "phone", "555")
        thread.state["new"] = everthread.Personal("cem", "new")
        thread.commit()
        for _ in ("held", "erased"):
            assert (users.get("cem", "phone"), users.keys("cem")) == ("555", ["phone"])
            assert users.export_user("cem")["values"] == {"phone": "555"}
            assert isinstance(store.thread("a").state["old"], everthread.Erased)
            assert store.thread("a").state["new"].value == "new"
            with suppress(everthread.InvalidStateError):
                store.release_hold("cem")
            store.gc()


def test_a_value_that_is_written_while_it_gets_a_time_isn_t_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/u.db"
    with (
        everthread.open(url, keyring="memory:") as store,
        everthread.open(url, keyring=store.core.vault.keyring) as other,
    ):
        store.users.set("ann", "mail", "old")
        update = Thread.update

        def late(thread: Thread, fn: Any) -> Any:
            monkeypatch.undo()
            other.users.set("ann", "mail", "new")
            return update(thread, fn)

        monkeypatch.setattr(Thread, "update", late)
        store.users.expire("ann", 3600, key="mail")
        assert store.users.get("ann", "mail") == "new"
