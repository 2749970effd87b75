"""The PostgreSQL store: round trips, migrations, connections and their ends, tenants."""

from __future__ import annotations

import asyncio
import datetime
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import everthread
from everthread import (
    AccessError,
    ConflictError,
    EverthreadError,
    InvalidValueError,
    SchemaVersionError,
    Store,
    StoreBusyError,
    StoreClosedError,
    StoreUnavailableError,
)
from everthread.stores.postgres import schema
from everthread.testing.driver import open_driven
from tests.servers.pooler import Pooler
from tests.servers.postgres import empty
from tests.servers.proxy import Counted, counting


@pytest.fixture
def counted(postgres_url: str) -> Iterator[Counted]:
    """The database through a proxy that counts round trips."""
    with counting(postgres_url) as found:
        yield found


@contextmanager
def at_most(counted: Counted, count: int) -> Iterator[None]:
    before = counted.trips
    yield
    assert counted.trips - before <= count


@pytest.fixture
def other(postgres_url: str) -> Iterator[Any]:
    """Somebody else in the database."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def fresh_schema(postgres_url: str) -> Iterator[str]:
    """A URL whose schema isn't there yet."""
    yield f"{postgres_url}?schema=fresh"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS fresh CASCADE")


# ── round trips ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
def test_a_commit_is_one_round_trip(counted: Counted, open_: Any) -> None:
    with open_(counted.url) as store:
        thread = store.thread("a")
        for number in range(5):
            thread.messages.append({"n": number})
            thread.state["n"] = number
            thread.commit(key=f"k{number}")
        thread.commit(label="without a key")
        # From the second one on: a connection prepares each statement once, with a key and without.
        with at_most(counted, 20):
            for number in range(20):
                thread.messages.append({"n": number})
                thread.state["n"] = number
                thread.commit()
        store.thread("warm up").commit(label="x")
        with at_most(counted, 2):
            # The first commit of a thread: that there is none, then all of it at once.
            store.thread("another").commit(label="x")


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
@pytest.mark.parametrize("length", [10, 300])
def test_resuming_is_two_round_trips(counted: Counted, open_: Any, length: int) -> None:
    with everthread.open(counted.url) as store:
        for name in ("warm up", "b"):
            thread = store.thread(name)
            for number in range(length):
                thread.messages.append({"n": number, "text": "x" * 300})
                thread.state["n"] = number
                thread.commit()
    with open_(counted.url) as store:
        # Statements are prepared once per connection; that isn't what is counted.
        assert len(store.thread("warm up").messages[-20:]) == min(length, 20)
        with at_most(counted, 2):
            thread = store.thread("b")
            assert thread.state["n"] == length - 1
            assert [m["n"] for m in thread.messages[-20:]] == list(range(length))[-20:]


# ── compare-and-set ──────────────────────────────────────────────────────────────────────────────


def test_of_two_at_once_exactly_one_wins(postgres_url: str) -> None:
    with everthread.open(postgres_url) as store:
        store.thread("a").commit(label="first")
        for round_ in range(40):
            handles = [store.thread("a") for _ in range(4)]
            for number, handle in enumerate(handles):
                handle.state["who"] = [round_, number]
            outcomes: list[Any] = []
            gate = threading.Barrier(4)

            def commit(handle: Any, gate: threading.Barrier = gate, out: list[Any] = outcomes) -> None:
                gate.wait()
                try:
                    out.append(handle.commit())
                except ConflictError as refused:
                    out.append(refused)

            threads = [threading.Thread(target=commit, args=(handle,)) for handle in handles]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            won = [each for each in outcomes if not isinstance(each, ConflictError)]
            assert len(won) == 1
            lost = [each for each in outcomes if isinstance(each, ConflictError)]
            assert [error.actual.id for error in lost] == [won[0].id] * 3


def test_a_stale_writer_loses_although_its_place_was_folded_away(postgres_url: str) -> None:
    with everthread.open(postgres_url) as store:
        store.core.folder.records_max = 4
        thread = store.thread("a")
        thread.commit(label="first")
        stale = store.thread("a")
        stale.state["stale"] = True
        for number in range(30):
            thread.state["n"] = number
            thread.commit()
        with pytest.raises(ConflictError):
            stale.commit()


def test_a_writer_that_began_before_others_committed_and_folded(postgres_url: str, other: Any) -> None:
    """What comparing inside the INSERT alone would miss: its snapshot is old, and its key is free again."""
    append = "SELECT everthread.append(%s, %s, %s, 0::smallint, 0, %s, NULL, 'body', %s, 0, true)"
    with everthread.open(postgres_url) as store:
        thread = store.thread("a")
        thread.commit(label="first")
        line, head = thread.handle.line, thread.handle.head
        assert line is not None
        assert head is not None
    hashes = [head.hash, *(bytes([n]) * 32 for n in range(1, 6))]
    other.autocommit = False
    other.execute("SELECT 1 FROM everthread.head WHERE line = %s FOR UPDATE", (line.id,))
    answers: list[Any] = []

    def write_late() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as late:
            values = (line.root, line.id, 2, b"late" * 8, head.hash)
            answers.extend(late.execute(append, values).fetchall())

    writer = threading.Thread(target=write_late)
    writer.start()
    with psycopg.connect(postgres_url, autocommit=True) as looking:
        # The server is shared with other tests, which wait for locks of their own.
        waiting = (
            "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE NOT granted AND datname = current_database()"
        )
        while not looking.execute(waiting).fetchall():
            time.sleep(0.01)
    for number in range(1, 6):
        values = (line.root, line.id, number + 1, hashes[number], hashes[number - 1])
        assert other.execute(append, values).fetchall() == [(1,)]
    # As a fold does: the rows between go, and with them their keys.
    other.execute("DELETE FROM everthread.record WHERE line = %s AND seq BETWEEN 2 AND 5", (line.id,))
    other.commit()
    writer.join()
    assert answers == [(0,)]
    assert other.execute("SELECT seq FROM everthread.record ORDER BY 1").fetchall() == [(1,), (6,)]


# ── schema and migrations ────────────────────────────────────────────────────────────────────────


def test_several_instances_start_at_once(fresh_schema: str) -> None:
    errors: list[BaseException] = []

    def start(number: int) -> None:
        try:
            with everthread.open(fresh_schema) as store:
                store.thread(f"t{number}").commit(label="x")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with everthread.open(fresh_schema) as store:
        assert [found.name for found in store.threads()] == [f"t{number}" for number in range(6)]


def test_schemas_are_stores_of_their_own(fresh_schema: str, postgres_url: str) -> None:
    with everthread.open(fresh_schema) as one, everthread.open(postgres_url) as two:
        one.thread("a").commit(label="in fresh")
        assert two.thread("a").head is None
        assert one.url.endswith("?schema=fresh")
        with one.session("bot") as session:
            session.work.add_todo("look")
        one.events("e").append("t", {})
        thread = one.thread("a")
        for number in range(100):
            thread.messages.append({"n": number})
            thread.commit()
        thread.fork("b")
        thread.delete()
        assert one.verify().ok


def test_a_newer_schema_is_refused_and_left_alone(fresh_schema: str, other: Any) -> None:
    everthread.open(fresh_schema).close()
    other.execute("INSERT INTO fresh.format VALUES (%s, now())", (schema.SCHEMA_VERSION + 1,))
    with pytest.raises(SchemaVersionError, match="upgrade"):
        everthread.open(fresh_schema)


def test_a_migration_keeps_what_is_there(
    fresh_schema: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a next version of the schema that doesn't exist yet."""
    with everthread.open(fresh_schema) as store:
        store.thread("a").commit(label="before")
    read_sections = schema.read_sections

    def read(package: str, file: str) -> dict[str, str]:
        if file != "next.sql":
            return read_sections(package, file)
        return {
            "more": "CREATE TABLE everthread.more (n bigint)",
            "one": "INSERT INTO everthread.more VALUES (1)",
        }

    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("next.sql",)))
        patched.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        patched.setattr(schema, "read_sections", read)
        for _ in range(2):
            with everthread.open(fresh_schema) as store:
                assert [version.label for version in store.thread("a").history()] == ["before"]
        assert other.execute("SELECT n FROM fresh.more").fetchall() == [(1,)]
        versions = other.execute("SELECT version FROM fresh.format ORDER BY 1").fetchall()
        assert versions == [(number + 1,) for number in range(schema.SCHEMA_VERSION)]
    with pytest.raises(SchemaVersionError, match="upgrade"):
        everthread.open(fresh_schema)


def test_tables_in_parts(fresh_schema: str, other: Any) -> None:
    url = f"{fresh_schema}&partitions=3"
    with everthread.open(url) as store:
        for number in range(12):
            thread = store.thread(f"t{number}")
            for step in range(70):
                thread.messages.append({"n": step})
                thread.commit(key=f"k{step}", metadata={"x": number})
            thread.fork(f"fork {number}").commit(label="on")
        assert len(list(store.threads(metadata={"x": 3}))) >= 1
        assert store.verify().ok
    counts = other.execute(
        "SELECT tableoid::regclass::text, count(*) FROM fresh.record GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert [name for name, _ in counts] == ["fresh.record_0", "fresh.record_1", "fresh.record_2"]
    with everthread.open(fresh_schema) as store:
        assert len(store.thread("t7").messages) == 70


def test_large_columns_are_neither_compressed_nor_sampled(postgres_url: str, other: Any) -> None:
    everthread.open(postgres_url).close()
    found = other.execute(
        "SELECT attrelid::regclass::text, attname, attstorage, attstattarget FROM pg_attribute "
        "WHERE attrelid::regclass::text = ANY (ARRAY['everthread.record', 'everthread.chunk', "
        "'everthread.sealed']) "
        "AND attname = ANY (ARRAY['body', 'net', 'keyframe', 'data'])"
    ).fetchall()
    assert len(found) == 5
    assert all(storage in ("e", b"e") and target == 0 for _, _, storage, target in found)


# ── connections ──────────────────────────────────────────────────────────────────────────────────


def test_nobody_there() -> None:
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        everthread.open("postgresql://127.0.0.1:1/nothing")


def test_a_url_that_libpq_does_not_understand(postgres_url: str) -> None:
    with pytest.raises(InvalidValueError, match=r"nonsense.*statement_timeout_ms"):
        everthread.open(f"{postgres_url}?nonsense=1")


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
@pytest.mark.parametrize(
    ("role", "database", "advice"),
    [("nobody", None, r"no such role.*createuser"), (None, "nowhere", r"no such database.*createdb")],
)
def test_who_is_turned_away_is_told_what_to_do(
    postgres_url: str, open_: Any, role: str | None, database: str | None, advice: str
) -> None:
    url = postgres_url if role is None else postgres_url.replace("postgres@", f"{role}@")
    url = url if database is None else f"{url.rpartition('/')[0]}/{database}"
    assert url != postgres_url
    with pytest.raises(StoreUnavailableError, match=f"does not exist.*server is up.*{advice}") as caught:
        open_(url)
    assert "Is the server up" not in str(caught.value)


def test_no_such_database(postgres_url: str) -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        everthread.open(postgres_url + "_not")


def test_a_lock_that_is_kept_for_too_long(postgres_url: str, other: Any) -> None:
    everthread.open(postgres_url).close()
    # Long enough for whatever isn't locked, on a busy machine too.
    with everthread.open(postgres_url + "?lock_timeout_ms=1000") as store:
        thread = store.thread("a")
        thread.commit(label="first")
        other.autocommit = False
        other.execute("SELECT 1 FROM everthread.head FOR UPDATE")
        thread.state["x"] = 1
        with pytest.raises(StoreBusyError):
            thread.commit()
        other.rollback()
        assert thread.commit().seq == 2


def test_a_statement_that_takes_too_long(postgres_url: str, other: Any) -> None:
    everthread.open(postgres_url).close()
    with everthread.open(postgres_url + "?statement_timeout_ms=1500&lock_timeout_ms=0") as store:
        thread = store.thread("a")
        thread.commit(label="first")
        other.autocommit = False
        other.execute("SELECT 1 FROM everthread.head FOR UPDATE")
        thread.state["x"] = 1
        with pytest.raises(StoreBusyError, match="statement_timeout"):
            thread.commit()
        other.rollback()
        assert thread.commit().seq == 2


def test_the_pool_is_bounded_and_says_so(postgres_url: str, other: Any) -> None:
    everthread.open(postgres_url).close()

    async def main() -> None:
        async with everthread.open_async(f"{postgres_url}?pool_max=2&pool_wait_ms=2000") as store:
            one = await store.thread("one")
            await one.commit(label="first")
            other.autocommit = False
            other.execute("SELECT 1 FROM everthread.head FOR UPDATE")
            handles = [await store.thread("one") for _ in range(2)]
            for handle in handles:
                handle.state["x"] = 1
            stuck = [asyncio.create_task(handle.commit()) for handle in handles]
            # The second one is sent once the first has taken long.
            waiting = (
                "SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            while other.execute(waiting).fetchone() != (2,):  # noqa: ASYNC110 - it is the server that is asked
                await asyncio.sleep(0.02)
            with pytest.raises(StoreBusyError, match="pool_max"):
                await store.thread("two")
            other.rollback()
            done = await asyncio.gather(*stuck, return_exceptions=True)
            assert sorted(type(each).__name__ for each in done) == ["ConflictError", "Version"]
        # Back-pressure: many more than there are connections all get their turn, however long that takes.
        async with everthread.open_async(f"{postgres_url}?pool_max=2&application_name=bounded") as store:
            await asyncio.gather(*(_commit(store, f"t{n}") for n in range(40)))
            (count,) = other.execute(
                # Not those of earlier tests, which the server may still be closing.
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
            ).fetchone()
            assert 1 <= count <= 2

    asyncio.run(main())


async def _commit(store: Any, name: str) -> None:
    thread = await store.thread(name)
    thread.state["name"] = name
    await thread.commit()


def test_a_terminated_session_is_replaced(postgres_url: str, other: Any) -> None:
    with everthread.open(postgres_url) as store:
        thread = store.thread("a")
        for number in range(10):
            thread.state["n"] = number
            thread.commit()
            store.events("e").append("t", {"n": number})
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'everthread' AND datname = current_database()"
            )
            time.sleep(0.01)
        assert thread.head is not None
        assert thread.head.seq == 10
        assert [event.data["n"] for event in store.events("e").replay()] == list(range(10))


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
def test_a_child_process_opens_the_store_again(postgres_url: str, open_: Any) -> None:
    with open_(postgres_url) as store:
        store.thread("a").commit(label="before")
        pid = os.fork()
        if pid == 0:
            try:
                with pytest.raises(StoreClosedError, match="open it again"):
                    store.thread("a").refresh()
                store.close()
                with open_(postgres_url) as again:
                    child = again.thread("child")
                    for number in range(20):
                        child.state["n"] = number
                        child.commit()
                os._exit(0)
            except BaseException:
                os._exit(1)
        parent = store.thread("parent")
        for number in range(20):
            parent.state["n"] = number
            parent.commit()
        assert os.waitpid(pid, 0)[1] == 0
        assert store.thread("child").state["n"] == 19
        assert store.thread("parent").state["n"] == 19
        assert store.verify().ok


@pytest.mark.parametrize("wait_s", [0.0, 0.0005, 0.001, 0.002, 0.004])
def test_cancelled_at_any_moment_nobody_gets_anothers_answer(postgres_url: str, wait_s: float) -> None:
    async def main() -> None:
        async with everthread.open_async(postgres_url + "?pool_max=2") as store:
            for number in range(8):
                thread = await store.thread(f"t{number}")
                thread.state["n"] = number
                await thread.commit()
            for round_ in range(12):
                tasks = [asyncio.create_task(_read(store, n % 8)) for n in range(8)]
                tasks += [asyncio.create_task(_commit(store, f"w{round_}-{n}")) for n in range(4)]
                await asyncio.sleep(wait_s * (round_ % 3 + 1))
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for number in range(8):
                    await _read(store, number)
            assert (await store.verify()).ok

    asyncio.run(main())


def test_cancelled_at_every_await_the_next_caller_gets_its_own_answer(postgres_url: str) -> None:
    """One connection for all of them, and each step of a call is once the last one."""

    async def main() -> None:
        async with everthread.open_async(postgres_url + "?pool_max=1&pool_wait_ms=5000") as store:
            for number in range(8):
                await _commit_number(store, number)
            done = 0
            for step in range(400):
                task = asyncio.create_task(_read(store, step % 8))
                for _ in range(step):
                    await asyncio.sleep(0)
                done += task.done()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                # Whoever comes next gets a connection, and the answer to what it asked.
                await _read(store, (step + 1) % 8)
                if done > 3:
                    return
            assert done

    asyncio.run(main())


async def _commit_number(store: Any, number: int) -> None:
    thread = await store.thread(f"t{number}")
    thread.state["n"] = number
    await thread.commit()


async def _read(store: Any, number: int) -> None:
    thread = await store.thread(f"t{number}")
    assert thread.state["n"] == number
    assert thread.name == f"t{number}"


# ── waiting for others ───────────────────────────────────────────────────────────────────────────


def test_a_commit_notifies_only_while_somebody_watches(postgres_url: str, other: Any) -> None:
    other.execute("LISTEN everthread_lines")
    with everthread.open(postgres_url) as store, everthread.open(postgres_url) as elsewhere:
        thread = elsewhere.thread("a")
        thread.commit(label="nobody watches")
        assert list(other.notifies(timeout=0.05)) == []
        seen: list[Any] = []
        watcher = threading.Thread(target=lambda: seen.extend(_watched(store, 3)))
        watcher.start()
        while not other.execute("SELECT 1 FROM everthread.head WHERE watched > now()").fetchall():
            time.sleep(0.01)
        for number in range(3):
            thread.state["n"] = number
            thread.commit()
        watcher.join()
        assert [version.seq for version in seen] == [2, 3, 4]
        told = [note.payload for note in other.notifies(timeout=30, stop_after=1)]
        assert told
        assert set(told) == {str(thread.handle.line.id)}  # type: ignore[union-attr]


def _watched(store: Store, count: int) -> list[Any]:
    seen = []
    thread = store.thread("a")
    for version in thread.watch(after=thread.head):
        seen.append(version)
        if len(seen) == count:
            return seen
    return seen


# ── behind a pooler ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("open_", [everthread.open, open_driven])
def test_nothing_needs_a_session(postgres_database: str, open_: Any, seed: int) -> None:
    name = postgres_database.rpartition("/")[2]
    port = int(postgres_database.rpartition(":")[2].partition("/")[0])
    everthread.open(postgres_database).close()
    with Pooler(port, name, seed=seed) as pooler:
        url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
        with open_(url) as store, open_(url) as watching:
            thread = store.thread("a")
            for number in range(150):
                thread.messages.append({"n": number})
                thread.state["n"] = number
                thread.commit(key=f"k{number}")
            thread.fork("b").commit(label="fork")
            seen: list[Any] = []
            watcher = threading.Thread(target=lambda: seen.extend(_watched(watching, 1)))
            watcher.start()
            while not seen and watcher.is_alive():
                thread.state["more"] = thread.state.get("more", 0) + 1
                thread.commit()
                time.sleep(0.05)
            watcher.join()
            assert seen
            store.events("e").append("t", {"n": 1})
            assert [event.data["n"] for event in store.events("e").replay()] == [1]
            assert [m["n"] for m in store.thread("a").messages[-3:]] == [147, 148, 149]
            assert store.gc() is not None
            assert store.verify().ok
        assert pooler.refused == []
        assert pooler.transactions > 150
    empty(postgres_database)


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────

#: Roles belong to the whole server, which other test processes use too.
ROLES = (f"tenant_one_{os.getpid()}", f"tenant_two_{os.getpid()}")


@pytest.fixture
def tenants(postgres_url: str, other: Any) -> Iterator[list[str]]:
    """The URLs of two roles, each admitted to one namespace."""
    everthread.open(postgres_url).close()
    for number, role in enumerate(ROLES):
        other.execute(f"DROP ROLE IF EXISTS {role}")
        other.execute(f"CREATE ROLE {role} LOGIN")
        other.execute("SELECT everthread.admit_tenant(%s, %s)", (role, f"ns{number}"))
    yield [postgres_url.replace("postgres@", f"{role}@") for role in ROLES]
    for role in ROLES:
        other.execute("SELECT everthread.expel_tenant(%s)", (role,))
        other.execute(f"DROP OWNED BY {role}")
        other.execute(f"DROP ROLE {role}")


def _live(store: Store, canary: str) -> None:
    """Use about everything, with a word that nobody else may see."""
    thread = store.thread(canary)
    for number in range(80):
        thread.messages.append({"id": f"{canary}{number}", "text": canary})
        thread.state[canary] = number
        thread.commit(key=f"k{number}", metadata={canary: canary})
    thread.fork(f"{canary} fork").commit(label=canary)
    thread.rewind(thread.at(40).version)
    thread.state["secret"] = everthread.Personal("ann", canary)
    thread.commit()
    with store.session(f"{canary} bot") as session:
        session.work.add_todo(canary)
        session.decide(canary, rationale=canary, planned_action=canary)
    store.events(canary).append(canary, {canary: canary})
    store.users.set(canary, "email", canary)
    assert store.search(canary)
    assert store.verify().ok


# Each store has a keyring of its own here.
@pytest.mark.filterwarnings("ignore:.*the keyring memory. is new:UserWarning")
def test_a_role_sees_its_own_namespace_only(tenants: list[str], other: Any) -> None:
    for number, url in enumerate(tenants):
        with everthread.open(url, namespace=f"ns{number}", keyring="memory:") as store:
            _live(store, f"canary{number}")
    # In another's namespace a role finds nothing, and can put nothing there.
    with everthread.open(tenants[0], namespace="ns1", keyring="memory:") as store:
        assert list(store.threads()) == []
        assert store.thread("canary1").head is None
        assert list(store.events("canary1").replay()) == []
        with pytest.raises(AccessError):
            store.thread("mine").commit(label="x")
        with pytest.raises(AccessError):
            store.events("canary1").append("t", {})
    # Whatever SQL it sends.
    tables = [
        name for (name,) in other.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'everthread'")
    ]
    with psycopg.connect(tenants[0], autocommit=True) as connection:
        for table in tables:
            try:
                rows = connection.execute(f"SELECT t::text FROM everthread.{table} t").fetchall()
            except psycopg.errors.InsufficientPrivilege:
                assert table == "tenant"
                continue
            assert b"canary1".hex() not in str(rows)
            assert "canary1" not in str(rows)
        mine = connection.execute("SELECT count(*) FROM everthread.line").fetchone()
        assert mine is not None
        assert mine[0] > 0
        for statement in (
            f"SELECT everthread.admit_tenant('{ROLES[0]}', 'ns1')",
            f"INSERT INTO everthread.tenant VALUES ('{ROLES[0]}', NULL, NULL)",
            "SET ROLE postgres",
            "ALTER TABLE everthread.line DISABLE ROW LEVEL SECURITY",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_a_doubt_of_the_owner_reaches_every_role_and_none_records_one(
    tenants: list[str], postgres_url: str
) -> None:
    since = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    with everthread.open(postgres_url, keyring="memory:") as store:
        doubt = store.doubt(since)
    with everthread.open(tenants[0], namespace="ns0", keyring="memory:") as store:
        assert store.doubts() == [doubt]
        with store.session("bot") as session, pytest.raises(everthread.InDoubtError):
            session.call("pay", pytest.fail)
        with pytest.raises(AccessError):
            store.doubt(since)
        assert store.accept_loss("bot")


def test_a_role_that_nobody_admitted(tenants: list[str], other: Any) -> None:
    other.execute(f"SELECT everthread.expel_tenant('{ROLES[1]}')")
    with pytest.raises(EverthreadError):
        everthread.open(tenants[1], namespace="ns1").thread("a").commit(label="x")
