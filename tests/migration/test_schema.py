"""Fixtures of every format load, whole, and go on; and the mechanism that brings old tables up to date."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest

import everthread
from everthread.stores.contract import StaleCell
from everthread.stores.sqlite import schema
from tests.migration import writing
from tests.migration.writing import FIXTURES, FORMAT, KINDS, count, describe, expected, lay_out


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The store of the fixture; its keyring is in the folder of the test."""
    if kind == "valkey":
        found: str = request.getfixturevalue("valkey_url")
        place = urlsplit(found)
        assert place.port is not None
        writing.load_valkey(place.port, place.query.removeprefix("prefix="))
        writing.lay_out_keyring(kind, tmp_path)
        yield found
    elif kind == "postgres":
        server = request.getfixturevalue("postgres_database")
        name = f"fixture_{os.getpid()}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
            found = f"{server.rpartition('/')[0]}/{name}"
            writing.load_postgres(found)
            writing.lay_out_keyring(kind, tmp_path)
            yield found
            drop = psycopg.sql.SQL("DROP DATABASE {} WITH (FORCE)")
            connection.execute(drop.format(psycopg.sql.Identifier(name)))
    else:
        yield lay_out(kind, tmp_path)


def opened(url: str, folder: Path) -> everthread.Store:
    return everthread.open(url, keyring=str(folder / "keys" / "keyring"), durability="process")


def test_an_old_store_loads(url: str, kind: str, tmp_path: Path) -> None:
    for _ in range(2):
        with opened(url, tmp_path) as store:
            assert json.loads(json.dumps(describe(store))) == expected(kind)
            report = store.verify()
            assert report, "\n".join(map(str, report.damage))


def test_an_old_archive_is_read(tmp_path: Path) -> None:
    source = lay_out("sqlite", tmp_path)
    target = f"sqlite:///{tmp_path}/imported.db"
    with opened(target, tmp_path) as store:
        store.import_from(FIXTURES / f"archive-{FORMAT}.everthread")
        found, told = json.loads(json.dumps(describe(store))), expected("sqlite")
        # Cells and positions of consumers stay where they are.
        for part in ("threads", "events", "personal"):
            assert found[part] == told[part], part
        assert store.verify()
    assert source != target


def test_personal_values_of_an_old_store_are_erased(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        assert store.erase("ann").complete
        left = json.dumps(describe(store)["personal"])
        assert "not folded" in left
        assert "in an event" not in left
        assert store.verify()


def test_an_old_store_goes_on(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
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


def test_an_old_store_knows_its_keys_steps_and_ids(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
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


def test_an_old_store_knows_its_cells(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path) as store:
        backend = store.core.backend
        lease = backend.cell("", "lease", 0)
        assert lease is not None
        for expected in range(lease.revision):
            with pytest.raises(StaleCell):
                backend.swap("", "lease", expected, b"stale", 0)
        assert backend.swap("", "lease", lease.revision, b"third", 0) > lease.revision
        assert backend.swap("", "removed", 0, b"anew", 0) > 2, "it had two revisions before it was removed"


def test_an_old_store_goes_on_with_its_events(url: str, tmp_path: Path) -> None:
    read: list[int] = []

    def counted(state: dict[str, int], event: everthread.Event) -> dict[str, int]:
        read.append(event.seq)
        return count(state, event)

    with opened(url, tmp_path) as store:
        tasks = store.events("tasks")
        assert tasks.append("on", {"n": 1}).seq == 44
        assert tasks.projection("numbers", counted, version=3).state == tasks.project(count)
        assert read == [41, 42, 43, 44], "it goes on from what was saved"
        assert [event.seq for event in tasks.consumer("mailer").poll(3)] == [8, 9, 10]
        times = [event.at for event in tasks.replay()]
        assert [event.seq for event in tasks.replay(since=times[10], until=times[12])] == [11, 12, 13]
        assert [event.seq for event in tasks.replay(type="type 3", agent="agent 0")] == [4, 16, 28, 40]
        assert store.events("dropped").append("anew").seq == 4


# ── migrations, on tables of their own ──

STEPS = (
    "CREATE TABLE thing (name TEXT NOT NULL) STRICT; INSERT INTO thing VALUES ('first')",
    "ALTER TABLE thing ADD COLUMN size INTEGER; UPDATE thing SET size = length(name)",
    "CREATE INDEX thing_size ON thing (size); INSERT INTO thing VALUES ('third', 3)",
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database in the second of three formats."""
    path = tmp_path / "things.db"
    db = apsw.Connection(str(path))
    schema.migrate(db, STEPS[:2])
    db.close()
    return path


def _things(path: Path) -> tuple[int, list[object]]:
    db = apsw.Connection(str(path))
    try:
        return db.pragma("user_version"), db.execute("SELECT * FROM thing ORDER BY 1").fetchall()
    finally:
        db.close()


OLD, NEW = (2, [("first", 5)]), (3, [("first", 5), ("third", 3)])


def test_tables_are_brought_up_to_date_step_by_step(database: Path, tmp_path: Path) -> None:
    assert _things(database) == OLD
    for path in (database, tmp_path / "new.db"):
        db = apsw.Connection(str(path))
        for _ in range(2):
            schema.migrate(db, STEPS)
        assert db.pragma("application_id") == schema.APPLICATION_ID
        db.close()
        assert _things(path) == NEW


def test_a_migration_that_fails_changes_nothing(database: Path) -> None:
    db = apsw.Connection(str(database))
    with pytest.raises(apsw.SQLError):
        schema.migrate(db, (*STEPS, "CREATE TABLE other (a); SELECT no_such_function()"))
    assert not db.in_transaction
    db.close()
    assert _things(database) == OLD


def test_a_process_that_is_killed_while_migrating_changes_nothing(database: Path) -> None:
    pid = os.fork()
    if pid == 0:
        db = apsw.Connection(str(database))
        db.create_scalar_function("die", lambda: os.kill(os.getpid(), signal.SIGKILL))
        schema.migrate(db, (*STEPS, "SELECT die()"))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert _things(database) == OLD
    db = apsw.Connection(str(database))
    schema.migrate(db, STEPS)
    db.close()
    assert _things(database) == NEW


def test_several_that_migrate_at_once_do_it_once(database: Path) -> None:
    def migrate() -> None:
        db = apsw.Connection(str(database))
        db.set_busy_timeout(60_000)
        schema.migrate(db, STEPS)
        db.close()

    threads = [threading.Thread(target=migrate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _things(database) == NEW


def test_a_newer_format_is_refused_and_left_alone(database: Path) -> None:
    db = apsw.Connection(str(database))
    db.pragma("user_version", schema.SCHEMA_VERSION + 1)
    db.close()
    before = database.read_bytes()
    with pytest.raises(everthread.SchemaVersionError):
        everthread.open(f"sqlite:///{database}")
    assert database.read_bytes() == before
