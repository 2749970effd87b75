"""Stores written by earlier releases still load, whole, and go on."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

import everthread
from everthread.stores.contract import StaleCell
from everthread.stores.sqlite import schema
from tests.migration.writing import HERE, count, describe

VERSIONS = range(1, schema.SCHEMA_VERSION + 1)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def url(version: int, tmp_path: Path) -> str:
    """The store as that version wrote it."""
    path = tmp_path / "store.db"
    db = apsw.Connection(str(path))
    db.execute((HERE / f"v{version}.sql").read_text())
    assert db.pragma("user_version") == version
    db.close()
    return f"sqlite:///{path}"


def test_an_old_store_loads(url: str, version: int) -> None:
    expected = json.loads((HERE / f"v{version}.json").read_text())
    with everthread.open(url) as store:
        assert json.loads(json.dumps(describe(store))) == expected
        report = store.verify()
        assert report, "\n".join(map(str, report.damage))
    with everthread.open(url) as store:
        assert json.loads(json.dumps(describe(store))) == expected, "after it was migrated as well"


def test_an_old_store_goes_on(url: str) -> None:
    with everthread.open(url) as store:
        for info in list(store.threads()):
            thread = store.thread(info.name)
            head = thread.head
            assert head is not None
            for number in range(150):
                thread.state["on"] = number
                thread.messages.append({"id": f"on {number}"})
                thread.commit()
            thread.rewind(head)
            thread.messages.append({"id": "on 0", "content": "anew"})
            thread.commit()
        assert store.verify()


def test_an_old_store_knows_its_keys_steps_and_ids(url: str) -> None:
    with everthread.open(url) as store:
        thread = store.thread("main")
        head = thread.head
        for number in range(0, 150, 20):
            found = thread.commit(key=f"key {number}", label="again")
            assert found is not None
            assert found.seq == number + 1
        with thread.step(("turn", 1)) as step:
            assert (step.done, step.result) == (True, {"tokens": 7})
        for slot in (0, 1):
            with thread.step("tools", slot=slot) as step:
                assert step.done
        thread.messages.append({"id": "m5", "role": "user", "content": "message 5"})
        thread.messages.append({"id": "large 250", "content": "x" * 1000})
        assert not thread.dirty
        assert thread.messages.find("m145") is None
        assert thread.head == head
        assert [found.name for found in store.threads(metadata={"run": "r0"})] != []
        assert store.thread("deleted").head is None


def test_an_old_store_knows_its_cells(url: str) -> None:
    with everthread.open(url) as store:
        backend = store._core.backend
        lease = backend.cell("", "lease", 0)
        assert lease is not None
        for expected in range(lease.revision):
            with pytest.raises(StaleCell):
                backend.swap("", "lease", expected, b"stale", 0)
        assert backend.swap("", "lease", lease.revision, b"third", 0) > lease.revision
        assert backend.swap("", "removed", 0, b"anew", 0) > 2, "it had two revisions before it was removed"


def test_an_old_store_goes_on_with_its_events(url: str) -> None:
    read: list[int] = []

    def counted(state: dict[str, int], event: everthread.Event) -> dict[str, int]:
        read.append(event.seq)
        return count(state, event)

    with everthread.open(url) as store:
        tasks = store.events("tasks")
        assert tasks.append("on", {"n": 1}).seq == 44
        assert tasks.projection("numbers", counted, version=3).state == tasks.project(count)
        assert read == [41, 42, 43, 44], "it goes on from what was saved"
        assert [event.seq for event in tasks.consumer("mailer").poll(3)] == [8, 9, 10]
        times = [event.at for event in tasks.replay()]
        assert [event.seq for event in tasks.replay(since=times[10], until=times[12])] == [11, 12, 13]
        assert [event.seq for event in tasks.replay(type="type 3", agent="agent 0")] == [4, 16, 28, 40]
        assert store.events("dropped").append("anew").seq == 4
