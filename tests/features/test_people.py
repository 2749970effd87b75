"""A4 as a whole, and the parts of N7 that are about finding, moving and expiring."""

from __future__ import annotations

import json
from pathlib import Path

import everthread
from everthread import Checkpointable, CheckpointManager, Erased, Personal, derive
from everthread.threads.runtime import Runtime


class Agent(Checkpointable):
    def __init__(self) -> None:
        self.step = 1


def test_A4_user_store_has_its_own_space_and_lifetime(tmp_path: Path) -> None:
    clock = [1_800_000_000_000_000]
    url = f"sqlite:///{tmp_path}/a4.db"
    with everthread.open(url, runtime=Runtime(now_us=lambda: clock[0])) as store:
        manager = CheckpointManager(backend=url)
        manager.save("agent", Agent())
        users = store.users
        users.set("u1", "mail", "u1@example.org")
        users.set("u2", "mail", "u2@example.org")
        assert users.get("u1", "mail") == "u1@example.org"
        assert users.get("u1", "absent", "default") == "default"
        assert json.loads(json.dumps(users.export_user("u1")))["values"] == {"mail": "u1@example.org"}
        users.expire("u2", 60)
        clock[0] += 61_000_000
        assert users.get("u2", "mail") is None
        assert users.delete_user("u1") == 1
        assert users.get("u1", "mail") is None
        assert manager.load("agent", Agent()).step == 1
        assert store.verify()


def test_N7_derived_values_and_exports_are_erased_with_the_person(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/n7.db") as store:
        thread = store.thread("t")
        thread.state["a"] = Personal("ann", "Ann")
        thread.state["b"] = Personal("bob", "Bob")
        thread.state["both"] = derive(lambda a, b: f"{a} and {b}", thread.state["a"], thread.state["b"])
        thread.commit(metadata={"who": Personal("ann", "Ann")})
        thread.fork("fork")
        store.export(tmp_path / "archive")
        store.core.vault.keyring.destroy("ann")
        with everthread.open("memory:") as other:
            other.import_from(tmp_path / "archive")
            for each in (store, other):
                for name in ("t", "fork"):
                    found = each.thread(name)
                    assert isinstance(found.state["both"], Erased)
                    assert found.state["b"].value == "Bob"
                    assert isinstance(found.head.metadata["who"], Erased)  # type: ignore[union-attr]
                assert each.verify()


def test_N7_what_nobody_marked_is_found_and_taken_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/n7.db"
    with everthread.open(url) as store:
        thread = store.thread("t")
        for number in range(130):
            thread.messages.append({"content": f"{number}: write to ann@example.org"})
            thread.commit()
        thread.fork("fork", at=100)
        assert len(list(store.scan("ann@example.org"))) == 130
        assert store.redact("ann@example.org").versions == 130
        assert list(store.scan("ann@example.org")) == []
        assert store.thread("fork").messages[0]["content"] == "0: write to [redacted]"
        assert store.verify().redacted == 130
    for path in tmp_path.glob("n7.db*"):
        assert b"ann@example.org" not in path.read_bytes()


def test_N7_example(tmp_path: Path) -> None:
    from tests.features.test_b import _example

    told = _example("people.py", folder=tmp_path)
    assert "Thank you, [redacted]!" in told
    assert "[bearer token]" in told
