"""What is known of a person, told as JSON; and how long it is kept."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Erased, NotFoundError, Personal, Retention, Store
from everthread.threads.runtime import Runtime

MINUTE_US = 60_000_000


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    runtime = Runtime(now_us=lambda: clock.now_us)
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=runtime) as store:
        yield store


def fill(store: Store) -> None:
    store.users.set("ann", "mail", "ann@example.org")
    store.users.set("ann", "other", {"when": datetime.date(2026, 1, 1), "raw": b"x"})
    store.users.set("bob", "mail", "bob@example.org")
    thread = store.thread("t")
    thread.state["deep"] = [{"a": (Personal("ann", "in a tuple"),)}]
    thread.messages.append({"content": Personal(["ann", "bob"], "both")})
    thread.commit(metadata={"who": Personal("ann", "metadata")})
    for number in range(100):
        thread.state["n"] = number
        thread.commit()
    store.events("e").append("x", {"who": Personal("ann", 5), "of": Personal("bob", 6)})
    with store.session("s", user_id="ann") as session:
        session.decide(Personal("ann", "a decision"))


def test_everything_about_a_person_as_json(store: Store) -> None:
    fill(store)
    told = json.loads(json.dumps(store.users.export_user("ann")))
    assert told["values"] == {
        "mail": "ann@example.org",
        "other": {"when": "2026-01-01", "raw": {"base64": "eA=="}},
    }
    found = {(each["what"], each["path"]): each for each in told["found"]}
    assert found["document", "state.deep[0].a[0]"]["value"] == "in a tuple"
    assert found["metadata", "metadata.who"]["value"] == "metadata"
    assert found["item", "content"]["value"] == "both"
    assert found["event", "data.who"] | {"value": 5} == found["event", "data.who"]
    assert "a decision" in [each["value"] for each in told["found"]]
    assert 6 not in [each["value"] for each in told["found"]]
    assert store.users.export_user("nobody") == {"user": "nobody", "values": {}, "found": []}


def test_a_person_expires_everywhere(store: Store, clock: Clock) -> None:
    fill(store)
    store.users.expire("ann", datetime.timedelta(minutes=1))
    clock.now_us += MINUTE_US - 1
    assert store.users.get("ann", "mail") == "ann@example.org"
    clock.now_us += 2
    assert store.users.get("ann", "mail") is None
    thread = store.thread("t")
    assert isinstance(thread.at(1).messages[0]["content"], Erased)
    assert isinstance(thread.at(1).version.metadata["who"], Erased)
    assert store.users.sweep() == 1
    assert isinstance(thread.at(1).messages[0]["content"], Erased)
    assert store.users.get("bob", "mail") == "bob@example.org"
    assert store.verify().ok
    # Who comes back begins anew, and isn't bound by the old time.
    store.users.set("ann", "mail", "again")
    clock.now_us += 10 * MINUTE_US
    assert store.users.get("ann", "mail") == "again"


def test_reading_what_is_over_shows_nothing_and_writes_nothing(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is cheap: what is due is hidden at once, and erased by whoever writes next, or sweeps."""
    fill(store)
    store.users.expire("ann", 60)
    clock.now_us += 2 * MINUTE_US
    backend = store.core.backend
    calls: list[str] = []
    for verb in ("append", "create", "purge", "drop_sealed", "note_erasures", "swap", "delete"):
        monkeypatch.setattr(backend, verb, lambda *args, _verb=verb, **options: calls.append(_verb))
    assert store.users.get("ann", "mail", "gone") == "gone"
    assert store.users.keys("ann") == []
    assert store.users.export_user("ann") == {"user": "ann", "values": {}, "found": []}
    assert store.users.get("bob", "mail") == "bob@example.org"
    assert calls == []
    monkeypatch.undo()
    assert store.core.vault.keyring.key_ids("ann") != [], "nothing was destroyed yet"
    # A new value isn't sealed under the key that is about to go.
    store.users.set("ann", "mail", "new")
    assert store.users.get("ann", "mail") == "new"
    assert store.users.keys("ann") == ["mail"]
    assert store.users.sweep() == 0
    assert isinstance(store.thread("t").at(1).messages[0]["content"], Erased)


def test_one_value_that_is_over_isn_t_told(store: Store, clock: Clock) -> None:
    fill(store)
    store.users.expire("ann", 60, key="other")
    clock.now_us += 2 * MINUTE_US
    assert store.users.keys("ann") == ["mail"]
    assert store.users.export_user("ann")["values"] == {"mail": "ann@example.org"}
    assert store.core.vault.keyring.key_ids("ann") != []


async def _awaited(tmp_path: Path, clock: Clock) -> None:
    runtime = Runtime(now_us=lambda: clock.now_us)
    url = f"sqlite:///{tmp_path}/async.db"
    async with everthread.open_async(url, runtime=runtime) as store:
        users = store.users
        await users.set("ann", "mail", "ann@example.org")
        await users.set("ann", "other", 5)
        await users.set("bob", "mail", "bob@example.org")
        thread = await store.thread("t")
        thread.state["deep"] = [Personal("ann", "in a list")]
        await thread.commit()
        told = json.loads(json.dumps(await users.export_user("ann")))
        assert told["values"] == {"mail": "ann@example.org", "other": 5}
        assert "in a list" in [each["value"] for each in told["found"]]
        assert await users.keys("ann") == ["mail", "other"]
        assert await users.remove("ann", "other")
        await users.expire("ann", 60)
        clock.now_us += 2 * MINUTE_US
        assert await users.get("ann", "mail", "gone") == "gone"
        await store.gc()
        thread = await store.thread("t")
        assert isinstance(thread.state["deep"][0], Erased)
        assert await users.get("bob", "mail") == "bob@example.org"
        assert await users.delete_user("bob") == 1
        await users.set("ann", "mail", "again")
        assert await users.get("ann", "mail") == "again"
    with everthread.open(url, runtime=runtime) as blocking:
        assert blocking.users.get("ann", "mail") == "again", "the same data, whatever the colour"


def test_async_callers_have_the_same(tmp_path: Path, clock: Clock) -> None:
    asyncio.run(_awaited(tmp_path, clock))


def test_one_value_expires_alone(store: Store, clock: Clock) -> None:
    fill(store)
    store.users.expire("ann", 60, key="other")
    assert store.users.get("ann", "other")["raw"] == b"x"
    clock.now_us += 2 * MINUTE_US
    assert store.users.get("ann", "other") is None
    assert store.users.get("ann", "mail") == "ann@example.org"
    assert store.thread("t").at(1).messages[0]["content"].value == "both"
    with pytest.raises(NotFoundError):
        store.users.expire("ann", 60, key="nothing")


@pytest.mark.parametrize("pruned", [False, True])
def test_what_a_value_was_before_it_got_a_time_isn_t_told_after_it(
    store: Store, clock: Clock, pruned: bool
) -> None:
    def told() -> list[Any]:
        found = store.users.export_user("ann")["found"]
        return [each["value"] for each in found if each.get("beside") == "users"]

    for value in ("old", "older now"):
        for key in ("mail", "city"):
            store.users.set("ann", key, f"{key} {value}")
    store.users.expire("ann", 60, key="mail")
    if pruned:
        store.gc(Retention(keep_last=1))
    assert "mail older now" in told()
    clock.now_us += 2 * MINUTE_US
    for _ in range(2):
        assert [each for each in told() if each is None or each.startswith("mail")] == []
        assert "city older now" in told()
        store.users.sweep()
    store.users.set("ann", "mail", "mail new")
    assert [each for each in told() if each.startswith("mail")] == ["mail new"]


def test_times_can_be_changed_and_gc_sweeps(store: Store, clock: Clock) -> None:
    fill(store)
    store.users.expire("ann", 60)
    store.users.expire("ann", None)
    store.users.expire("bob", 60)
    clock.now_us += 2 * MINUTE_US
    store.gc(dry_run=True)
    assert store.core.vault.keyring.key_ids("bob") != []
    store.gc()
    assert store.core.vault.keyring.key_ids("bob") == []
    assert store.users.get("ann", "mail") == "ann@example.org"
    assert store.users.sweep() == 0


def test_no_name_stands_in_clear(store: Store, tmp_path: Path) -> None:
    store.users.set("annabelle", "k", 1)
    store.users.expire("annabelle", 60)
    store.close()
    assert not [path for path in tmp_path.glob("s.db*") if b"annabelle" in path.read_bytes()]
