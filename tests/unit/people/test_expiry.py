"""From its time on nobody is shown what belongs to a person, wherever it stands; no read erases it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import CheckpointManager, Erased, ErasedError, Personal, Store
from everthread.keyring.keyring import MemoryKeyring, open_keyring
from everthread.threads.runtime import Runtime
from tests.unit.people.test_everywhere import CANARY, Profile, plant, secret

MINUTE_US = 60_000_000
START_US = 1_800_000_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_us = START_US

    @property
    def runtime(self) -> Runtime:
        return Runtime(now_us=lambda: self.now_us)


@pytest.fixture
def clock() -> Clock:
    return Clock()


LASTING = ["sqlite", "files", "postgres", "valkey"]


@pytest.fixture(params=["memory", *LASTING])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("postgres", "valkey"):
        name = "postgres_url" if request.param == "postgres" else "valkey_lasting_url"
        return str(request.getfixturevalue(name))
    places = {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/s.db",
        "files": f"file://{tmp_path}/s",
    }
    return places[request.param]


def inside(value: Any) -> Iterator[Any]:
    """Every personal value, or what is left of it, in something that was read."""
    if isinstance(value, Personal | Erased):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from inside(each)
    elif isinstance(value, Sequence | set) and not isinstance(value, str | bytes):
        for each in value:
            yield from inside(each)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            yield from inside(getattr(value, name))
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from inside(getattr(value, name))


def everything(store: Store) -> list[Any]:
    """What a reader can see of a store that ``plant`` filled, in all of its past."""
    seen: list[Any] = []
    for name in ("thread", "fork", "session"):
        thread = store.thread(name)
        for version in thread.history(limit=None):
            view = thread.at(version)
            seen += [version.metadata, view.state.plain(), view.messages[:], view.log("notes")[:]]
        assert thread.head is not None
        seen.append(thread.diff(1, thread.head))
    records = store.session_records("session")
    seen += [records.decisions(), records.errors(), records.effects(), records.tasks.all(), records.slice()]
    seen += [event.data for event in store.events("events").replay()]
    seen.append(store.events("events").projection("latest", lambda state, event: {"last": event.data}).state)
    with store.thread("thread").step("step") as step:
        seen.append(step.result)
    return [each for part in seen for each in inside(part)]


def test_reading_gives_erased_from_its_time_on(url: str, clock: Clock, tmp_path: Path) -> None:
    with everthread.open(url, runtime=clock.runtime) as store:
        plant(store)
        thread = store.thread("thread")
        thread.state["other"] = Personal("bob", "BOB")
        before = thread.state["value"]
        late = thread.messages[1]
        thread.commit()
        store.users.expire("ann", 60)
        assert len([each for each in everything(store) if isinstance(each, Personal)]) > 30
        assert CANARY in str(store.briefing("session", max_tokens=4000, reveal=True))
        clock.now_us += 2 * MINUTE_US
        keyring = store.core.vault.keyring
        seen = everything(store)
        assert len(seen) > 30
        assert [each for each in seen if isinstance(each, Personal) and each.value != "BOB"] == []
        assert store.thread("thread").state["other"].value == "BOB"
        assert CANARY not in str(store.briefing("session", max_tokens=4000, reveal=True))
        assert store.users.keys("ann") == []
        assert store.users.export_user("ann")["found"] == []
        assert list(store.search(CANARY)) == []
        # What somebody read before and didn't look at yet stays closed, and can't be stored again.
        with pytest.raises(ErasedError):
            _ = late["content"][0]["text"].value
        other = store.thread("elsewhere")
        with pytest.raises(ErasedError):
            other.state["copy"] = before
        store.export(tmp_path / "archive", keys="a long passphrase")
        assert keyring.key_ids("ann") != [], "no read has erased anything"
        assert store.verify().ok
        # The archive doesn't hold it, not even sealed.
        with everthread.open(f"sqlite:///{tmp_path}/b.db", keyring=tmp_path / "keys") as fresh:
            fresh.import_from(tmp_path / "archive", keys="a long passphrase")
            assert isinstance(fresh.thread("thread").state["value"], Erased | Personal)
            assert fresh.thread("thread").state["other"].value == "BOB"
            assert fresh.core.vault.keyring.key_ids("ann") == []
        # Who comes back begins anew; what is due goes without taking that along.
        thread = store.thread("back")
        thread.state["new"] = Personal("ann", "anew")
        thread.commit()
        store.gc()
        assert len(keyring.key_ids("ann")) == 1
        assert store.thread("back").state["new"].value == "anew"
        assert isinstance(store.thread("thread").state["value"], Erased)
        assert store.verify().ok


def test_checkpoints_and_async_callers_see_the_same(url: str, clock: Clock) -> None:
    async def look() -> None:
        async with everthread.open_async(url, runtime=clock.runtime) as store:
            if url == "memory:":
                thread = await store.thread("thread")
                thread.state["value"] = secret()
                await thread.commit()
                await store.events("events").append("seen", {"who": secret()})
                await store.users.expire("ann", 60)
            thread = await store.thread("thread")
            assert isinstance(thread.state["value"], Personal)
            clock.now_us += 2 * MINUTE_US
            thread = await store.thread("thread")
            assert isinstance(thread.state["value"], Erased)
            events = [event async for event in store.events("events").replay()]
            assert isinstance(events[0].data["who"], Erased)
            assert await store.users.keys("ann") == []

    if url != "memory:":
        with everthread.open(url, runtime=clock.runtime) as store:
            plant(store)
            store.users.expire("ann", 60)
        manager = CheckpointManager(backend=url)
        manager.save("profile", Profile())
    asyncio.run(look())
    if url != "memory:":
        # By the real clock, which is long before that: only a later one erases.
        profile = manager.load("profile", Profile())
        assert isinstance(profile.name, Personal)
        manager.close()


@pytest.mark.parametrize("url", LASTING, indirect=True)
def test_opening_erases_what_is_due(url: str, clock: Clock) -> None:
    with everthread.open(url, runtime=clock.runtime) as store:
        plant(store)
        store.users.expire("ann", 60)
    clock.now_us += 2 * MINUTE_US
    with everthread.open(url, runtime=clock.runtime) as store:
        assert store.core.vault.keyring.key_ids("ann") == []
        assert [report.complete for report in store.erasure_reports()] == [True]
        assert store.users.sweep() == 0
        assert not [each for each in everything(store) if isinstance(each, Personal)]


def test_other_stores_and_other_processes_see_it(tmp_path: Path, clock: Clock) -> None:
    with (
        everthread.open(f"sqlite:///{tmp_path}/a.db", runtime=clock.runtime) as told,
        everthread.open(f"sqlite:///{tmp_path}/b.db", runtime=clock.runtime) as other,
    ):
        for store in (told, other):
            thread = store.thread("t")
            thread.state["v"] = Personal("ann", 1)
            thread.commit()
        told.users.expire("ann", 60)
        assert other.thread("t").state["v"].value == 1
        clock.now_us += 2 * MINUTE_US
        assert isinstance(other.thread("t").state["v"], Erased)
        clock.now_us = START_US
        # The last word counts, whichever store it was said to.
        other.users.expire("ann", None)
        clock.now_us += 2 * MINUTE_US
        assert told.users.sweep() == 0
        assert told.thread("t").state["v"].value == 1
        told.users.expire("ann", 1)
    code = (
        "import everthread, sys, time\n"
        f"store = everthread.open('sqlite:///{tmp_path}/b.db')\n"
        "print(store.thread('t').state['v'])\n"
    )
    # By the real clock it isn't over yet.
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Personal(•••)"
    keyring = open_keyring()
    keyring.set_times(dict.fromkeys(keyring.key_ids("ann"), 1))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Erased" in found.stdout


def test_a_time_that_only_the_store_knows_counts_from_the_next_open(tmp_path: Path, clock: Clock) -> None:
    """A keyring put back from a copy that is older than the time."""
    url, keys = f"sqlite:///{tmp_path}/s.db", tmp_path / "keys"
    with everthread.open(url, runtime=clock.runtime, keyring=keys) as store:
        plant(store)
        shutil.copytree(keys, tmp_path / "copy")
        store.users.expire("ann", 60)
    shutil.rmtree(keys)
    os.rename(tmp_path / "copy", keys)
    with everthread.open(url, runtime=clock.runtime, keyring=keys) as store:
        assert list(store.core.vault.keyring.times().values()) == [START_US + MINUTE_US]
        clock.now_us += 2 * MINUTE_US
        assert not [each for each in everything(store) if isinstance(each, Personal)]


def test_another_keyring_forgets_no_time(tmp_path: Path, clock: Clock) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url, runtime=clock.runtime) as store:
        plant(store)
        store.users.expire("ann", 60)
    clock.now_us += 2 * MINUTE_US
    with everthread.open(url, runtime=clock.runtime, keyring=tmp_path / "wrong") as store:
        store.users.set("bob", "k", 1)
        store.gc()
    with everthread.open(url, runtime=clock.runtime) as store:
        assert store.core.vault.keyring.key_ids("ann") == []


def test_a_rotated_key_has_the_time_of_the_one_before(tmp_path: Path, clock: Clock) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=clock.runtime) as store:
        thread = store.thread("t")
        thread.state["old"] = Personal("ann", 1)
        thread.commit()
        store.users.expire("ann", 60)
        store.rotate_keys("ann")
        store.rotate_keys()
        thread.state["new"] = Personal("ann", 2)
        thread.commit()
        clock.now_us += 2 * MINUTE_US
        assert isinstance(store.thread("t").state["old"], Erased)
        assert isinstance(store.thread("t").state["new"], Erased)
        assert store.users.sweep() == 1
        assert store.core.vault.keyring.key_ids("ann") == []


def test_what_is_over_comes_back_only_while_somebody_holds_it(tmp_path: Path, clock: Clock) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=clock.runtime) as store:
        for name in ("ann", "bob"):
            store.users.set(name, "k", name)
            store.users.expire(name, 60)
        store.hold("bob", "court order 7")
        clock.now_us += 2 * MINUTE_US
        for name in ("ann", "bob"):
            store.users.expire(name, None)
        assert store.users.get("ann", "k") is None
        assert store.users.get("bob", "k") == "bob", "held: kept, and given more time"


def test_a_hold_is_refused_once_not_at_every_open(tmp_path: Path, clock: Clock) -> None:
    from everthread.people.holds import Holds

    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url, runtime=clock.runtime) as store:
        store.users.set("bob", "k", 1)
        store.users.expire("bob", 60)
        store.hold("bob", "court order 7")
    clock.now_us += 2 * MINUTE_US
    for _ in range(5):
        with everthread.open(url, runtime=clock.runtime) as store:
            assert store.users.get("bob", "k") is None
            key_ids = store.core.vault.keyring.key_ids("bob")
            assert [each.what for each in Holds(store.core).look(key_ids).trail] == ["held", "refused"]


def test_times_come_along_with_archives(tmp_path: Path, clock: Clock) -> None:
    """Into a store that has times of its own, under another keyring."""
    with everthread.open(f"sqlite:///{tmp_path}/a.db", runtime=clock.runtime) as store:
        store.thread("t").update(lambda draft: draft.state.update(v=Personal("ann", 1)))
        store.users.expire("ann", 60)
        store.export(tmp_path / "archive", keys="a long passphrase")
    with everthread.open(
        f"sqlite:///{tmp_path}/b.db", runtime=clock.runtime, keyring=tmp_path / "keys"
    ) as store:
        store.users.set("bob", "k", 1)
        store.users.expire("bob", 600)
        for _ in range(2):
            store.import_from(tmp_path / "archive", keys="a long passphrase")
        assert store.thread("t").state["v"].value == 1
        clock.now_us += 2 * MINUTE_US
        assert isinstance(store.thread("t").state["v"], Erased)
        assert store.users.get("bob", "k") == 1
        assert store.users.sweep() == 1
        assert store.core.vault.keyring.key_ids("ann") == []
        clock.now_us += 20 * MINUTE_US
        assert store.users.get("bob", "k") is None


def counted(keyring: Any, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    looks = [0]
    medium, look = keyring._medium, keyring._medium.look

    def counting(inner: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            looks[0] += 1
            return inner(*args)

        return count

    with monkeypatch.context() as patch:
        patch.setattr(medium, "look", counting(look))
        call()
    return looks[0]


def test_it_costs_others_nothing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many looks at the keyring and questions to the store as where nobody has a time."""
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=clock.runtime) as store:
        keyring = store.core.vault.keyring
        thread = store.thread("t")

        def save() -> None:
            thread.state["v"] = Personal("ann", 1)
            thread.commit()

        def read() -> None:
            assert store.thread("t").state["v"].value == 1

        save()
        plain = [counted(keyring, call, monkeypatch) for call in (save, read)]
        store.users.expire("bob", 60)
        save()
        assert [counted(keyring, call, monkeypatch) for call in (save, read)] == plain
        clock.now_us += 2 * MINUTE_US
        assert [counted(keyring, call, monkeypatch) for call in (save, read)] == plain


@pytest.mark.parametrize("kind", ["file", "sqlite", "memory"])
def test_keyrings_keep_times(kind: str, tmp_path: Path) -> None:
    specs = {"file": tmp_path / "keys", "sqlite": f"sqlite:///{tmp_path}/keys.db", "memory": MemoryKeyring()}
    keyring = open_keyring(specs[kind])
    first, other = keyring.key_for("ann").key_id, keyring.key_for("bob").key_id
    assert keyring.times() == {}
    keyring.set_times({first: 50, b"x" * 16: 70})
    again = open_keyring(specs[kind])
    assert again.times() == {first: 50}
    assert again.key(first) == keyring.key(first)
    assert not again.is_closed(first, lambda: 49)
    assert again.is_closed(first, lambda: 50)
    assert not again.is_closed(other, lambda: 1 << 62)
    assert not again.is_destroyed(first)
    assert again.key_for("ann", lambda: 49).key_id == first
    second = again.key_for("ann", lambda: 50).key_id
    assert again.key_ids("ann") == keyring.key_ids("ann") == [first, second]
    keyring.set_times({first: 0})
    assert again.times() == {first: 0}
    keyring.set_times({second: 99})
    keyring.destroy("bob")
    assert again.times() == {first: 0, second: 99}
    third = again.rotate("ann")
    assert keyring.times()[third] == 99
    keyring.destroy("ann")
    assert again.times() == {}
    assert again.is_destroyed(first)


def test_gc_removes_what_another_store_erased(tmp_path: Path, clock: Clock) -> None:
    """The key went through another store: what it sealed here is unreadable, and goes with the next gc()."""
    urls = [f"sqlite:///{tmp_path}/a.db", f"file://{tmp_path}/b"]
    with (
        everthread.open(urls[0], runtime=clock.runtime) as told,
        everthread.open(urls[1], runtime=clock.runtime) as other,
    ):
        for store in (told, other):
            for name in ("ann", "bob"):
                store.thread(name).update(lambda draft, who=name: draft.state.update(v=Personal(who, who)))  # type: ignore[misc]
        key_ids = told.core.vault.keyring.key_ids("ann")
        told.users.expire("ann", 60)
        clock.now_us += 2 * MINUTE_US
        assert told.users.sweep() == 1
        assert len(other.core.backend.sealed_under(key_ids, b"", 10)) == 1, "control"
        other.gc(dry_run=True)
        assert len(other.core.backend.sealed_under(key_ids, b"", 10)) == 1
        other.gc()
        assert other.core.backend.sealed_under(key_ids, b"", 10) == []
        assert [report.complete for report in other.erasure_reports()] == [True]
        assert isinstance(other.thread("ann").state["v"], Erased)
        assert other.thread("bob").state["v"].value == "bob"
        other.gc()
        assert len(other.erasure_reports()) == 1


@pytest.mark.parametrize("due", [True, False])
def test_a_backup_from_before_doesn_t_forget_the_time(tmp_path: Path, clock: Clock, due: bool) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=clock.runtime) as store:
        store.thread("t").update(lambda draft: draft.state.update(v=Personal("ann", 1), w=Personal("bob", 2)))
        store.backup(tmp_path / "backup")
        store.users.expire("ann", 60)
        clock.now_us += 2 * MINUTE_US * due
        store.restore(tmp_path / "backup")
        clock.now_us += 2 * MINUTE_US
        assert isinstance(store.thread("t").state["v"], Erased)
        store.users.sweep()
        assert store.core.vault.keyring.key_ids("ann") == []
        assert store.thread("t").state["w"].value == 2
        # What came with the backup was erased as well, and the receipt of before is kept.
        assert [report.complete for report in store.erasure_reports()] == [True] * (2 if due else 1)


def test_reveal_gives_none_for_what_is_over_since_it_was_read(tmp_path: Path, clock: Clock) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", runtime=clock.runtime) as store:
        thread = store.thread("t")
        thread.state.update(v=Personal("ann", 1), w=Personal("bob", 2))
        thread.commit()
        store.users.expire("ann", 60)
        read = store.thread("t").state.plain()
        clock.now_us += 2 * MINUTE_US
        assert everthread.reveal(read) == {"v": None, "w": 2}
        assert isinstance(everthread.derive(lambda both: both, read), Erased)
