"""Stores written by earlier releases still load, whole, and go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

import everthread
from everthread.stores.contract import StaleCell
from everthread.stores.sqlite import schema
from tests.migration import sealing
from tests.migration.writing import HERE, count, describe

VERSIONS = range(1, schema.SCHEMA_VERSION + 1)
#: Those of which there is a store with personal values.
SEALED_VERSIONS = range(4, schema.SCHEMA_VERSION + 1)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def url(version: int, tmp_path: Path) -> str:
    """The store as that version wrote it."""
    return _laid_out(tmp_path, f"v{version}")


def _laid_out(folder: Path, name: str) -> str:
    path = folder / "store.db"
    db = apsw.Connection(str(path))
    # What the text doesn't tell.
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute((HERE / f"{name}.sql").read_text())
    assert f"v{db.pragma('user_version')}" == name.rsplit("-", maxsplit=1)[-1]
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
    with everthread.open(url, durability="process") as store:
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
        backend = store.core.backend
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


@pytest.mark.parametrize("written", SEALED_VERSIONS)
def test_the_personal_values_of_an_old_store_open(tmp_path: Path, written: int) -> None:
    url = _laid_out(tmp_path, f"sealed-v{written}")
    expected = json.loads((HERE / f"sealed-v{written}.json").read_text())
    for _ in ("when it is migrated", "and after"):
        with everthread.open(url, keyring=sealing.keyring(), durability="process") as store:
            assert json.loads(json.dumps(sealing.describe(store))) == expected
            assert store.verify()
            thread = store.thread("a")
            # Enough to fold what stands alone.
            for number in range(70):
                thread.state["on"] = number
                thread.commit()
            del thread.state["on"]
            thread.commit()


@pytest.mark.parametrize("written", SEALED_VERSIONS)
def test_somebody_is_erased_from_an_old_store(tmp_path: Path, written: int) -> None:
    url = _laid_out(tmp_path, f"sealed-v{written}")
    with everthread.open(url, keyring=sealing.keyring(), durability="process") as store:
        backend = store.core.backend
        theirs = backend.sealed_under([b"a" * 16], b"", 1_000)
        others = backend.sealed_under([b"b" * 16], b"", 1_000)
        assert (len(theirs), len(others)) == (67, 34), "one of them is of both"
        report = store.erase("ann")
        assert report.complete, report.summary()
        assert report.sealed_values == 67
        assert backend.sealed_under([b"a" * 16], b"", 1_000) == []
        assert backend.sealed_under([b"b" * 16], b"", 1_000) == [row for row in others if row not in theirs]
        found = sealing.describe(store)
        assert (found["states"]["a"]["last"], found["states"]["a"]["first"]) == ("not folded", None)
        assert store.verify()
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not [row for row in theirs if row[2][13:60] in files]
    assert [row for row in others if row[2][13:60] in files], "control"


OPENED = """
    import sys
    import everthread
    from tests.migration import sealing

    sys.stdin.readline()
    with everthread.open(sys.argv[1], keyring=sealing.keyring(), durability="process") as store:
        thread = store.thread(sys.argv[2])
        thread.state["here"] = everthread.Personal("cat", sys.argv[2])
        thread.commit()
        thread.state["again"] = everthread.Personal("cat", sys.argv[2])
        thread.commit()
        assert store.thread("a").state["last"].value == "not folded"
"""


def test_several_processes_bring_a_store_up_to_date_at_once(tmp_path: Path) -> None:
    url = _laid_out(tmp_path, "sealed-v4")
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OPENED), url, f"of {number}"],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for number in range(5)
    ]
    try:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        assert [child.wait(60) for child in children] == [0] * 5
    finally:
        for child in children:
            child.kill()
            child.wait()
    with everthread.open(url, keyring=sealing.keyring(), durability="process") as store:
        for number in range(5):
            state = store.thread(f"of {number}").state
            assert (state["here"].value, state["again"].value) == (f"of {number}", f"of {number}")
        assert store.verify()


KILLED = """
    import os, signal, sys
    import everthread
    from everthread.stores.sqlite import schema
    from tests.migration import sealing

    steps = [statement for migration in schema.MIGRATIONS for statement in migration]
    stop = steps[int(sys.argv[2])]

    class Killing(str):
        pass

    before = tuple(tuple(Killing(s) if s is stop else s for s in m) for m in schema.MIGRATIONS)
    schema.MIGRATIONS = before
    import apsw

    class Connection(apsw.Connection):
        def execute(self, statement, *rest, **options):
            if type(statement) is Killing:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(statement, *rest, **options)

    apsw.Connection = Connection
    everthread.open(sys.argv[1], keyring=sealing.keyring(), durability="process")
"""


def test_who_is_killed_while_bringing_a_store_up_to_date_leaves_it_as_it_was(tmp_path: Path) -> None:
    steps = sum(map(len, schema.MIGRATIONS))
    url = _laid_out(tmp_path, "sealed-v4")
    expected = json.loads((HERE / "sealed-v4.json").read_text())
    for step in range(steps - len(schema.MIGRATIONS[4]), steps):
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), url, str(step)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert child.returncode == -signal.SIGKILL
        db = apsw.Connection(str(tmp_path / "store.db"))
        assert db.pragma("user_version") == 4
        assert db.execute("SELECT type FROM sqlite_schema WHERE name = 'sealed'").fetchall() == [("table",)]
        db.close()
    with everthread.open(url, keyring=sealing.keyring(), durability="process") as store:
        assert json.loads(json.dumps(sealing.describe(store))) == expected
        assert store.verify()


def test_a_damaged_row_is_no_reason_not_to_open_an_old_store(tmp_path: Path) -> None:
    url = _laid_out(tmp_path, "sealed-v4")
    db = apsw.Connection(str(tmp_path / "store.db"))
    ((sql,),) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'record'").fetchall()
    lax = sql.replace("STRICT", "").replace("body BLOB NOT NULL", "body")
    change = "UPDATE sqlite_schema SET sql = ? WHERE name = 'record'"
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (lax,))
    db.execute("PRAGMA writable_schema = RESET")
    # A flipped bit in the header of a row makes a number of a column of bytes.
    db.execute("UPDATE record SET body = 7 WHERE id = (SELECT min(id) FROM record)")
    db.execute("PRAGMA writable_schema = ON")
    db.execute(change, (sql,))
    db.close()
    with everthread.open(url, keyring=sealing.keyring(), durability="process") as store:
        assert store.thread("other").state["taken"].value == "left behind"
        assert "non-BLOB value in record.body" in str(store.verify().damage)
