"""Cells and streams of events: memory and SQLite answer alike; SQLite seeks, syncs, recovers as it says."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.errors import LimitError, StorageWriteError
from everthread.records.backend import RecordsBackend
from everthread.records.opening import open_memory
from everthread.records.tables import EVENT, TABLES
from everthread.stores.contract import EVENT_SEQ_MAX, Cell, NewEvent, StaleCell
from everthread.stores.interface import Batch, run
from everthread.stores.memory_store import MemoryStore
from everthread.stores.sqlite import cells_and_events as events
from everthread.stores.sqlite.connection import Settings
from everthread.stores.sqlite.schema import MIGRATIONS, SQL
from everthread.stores.sqlite.store import SqliteBackend
from tests.kit.power_loss import PowerLossVFS

Opening = Callable[..., SqliteBackend]


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    """Opens the store of this test; closes all of them at the end."""
    backends = []

    def open_(path: Path = tmp_path / "store.db", **options: Any) -> SqliteBackend:
        backend = SqliteBackend(Settings(str(path), **{"durability": "process", **options}))
        backends.append(backend)
        return backend

    yield open_
    for backend in backends:
        backend.close()


def event(number: int, at_us: int = 0, type: str = "t", agent: str | None = None) -> NewEvent:
    return NewEvent(at_us, type, agent, b"%d" % number)


# ── the same answers everywhere ──────────────────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "ab", "b", "é"])
TIMES = st.integers(-5, 30)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("swap"), NAMES, st.integers(-1, 1), st.sampled_from([b"1", b"2", None])),
        st.tuples(st.just("swap"), NAMES, st.just(0), st.sampled_from([b"1", b"2", None])),
        st.tuples(
            st.just("emit"),
            NAMES,
            st.lists(st.tuples(TIMES, st.sampled_from("xy"), st.sampled_from([None, "p", ""])), min_size=1),
        ),
        st.tuples(st.just("trim"), NAMES, st.integers(-1, 20) | st.just(EVENT_SEQ_MAX)),
        st.tuples(
            st.just("events"),
            NAMES,
            st.integers(-1, 20),
            st.integers(0, 9),
            st.sampled_from([None, "x", "z"]),
            st.sampled_from([None, "p", ""]),
            st.none() | TIMES,
            st.none() | TIMES,
        ),
        st.tuples(st.just("list"), st.sampled_from(["", "a", "z"]), st.none() | NAMES, st.integers(0, 3)),
    ),
    max_size=40,
)


class Twins:
    """Both stores, driven alike: what one answers or raises, the other must too."""

    def __init__(self, folder: Path) -> None:
        self.backends = open_memory(), SqliteBackend(Settings(f"{folder}/twin.db", durability="process"))
        self.now_us = 0

    def both(self, verb: str, *arguments: Any, **options: Any) -> Any:
        answers: list[Any] = []
        for backend in self.backends:
            try:
                answers.append(getattr(backend, verb)("", *arguments, **options))
            except StaleCell as stale:
                answers.append((StaleCell, stale.actual))
        assert answers[0] == answers[1], verb
        return answers[0]

    def swap(self, name: str, off: int, value: bytes | None) -> None:
        """Revisions start where each store likes: each is given its own."""
        self.now_us += 7
        answers: list[Any] = []
        for backend in self.backends:
            found = backend.cell("", name, self.now_us)
            expected = max(0, (found.revision if found else 0) + off)
            try:
                revision = backend.swap("", name, expected, value, self.now_us, self.now_us % 2 == 0)
                answer: Any = revision > expected
            except StaleCell as stale:
                answer = StaleCell, _plain(stale.actual)
            answers.append((answer, _plain(backend.cell("", name, self.now_us))))
        assert answers[0] == answers[1]

    def emit(self, name: str, made: list[tuple[int, str, str | None]]) -> None:
        self.both("emit", name, [NewEvent(at_us, type_, agent, b"b") for at_us, type_, agent in made])

    def trim(self, name: str, up_to: int) -> None:
        self.both("trim_stream", name, up_to)

    def events(self, name: str, after: int, limit: int, *query: Any) -> None:
        chosen = dict(zip(("type", "agent", "since_us", "until_us"), query, strict=True))
        self.both("events", name, after, limit, **chosen)

    def list(self, prefix: str, after: str | None, limit: int) -> None:
        found = [
            [(name, _plain(cell)) for name, cell in backend.cells("", prefix, after, limit, self.now_us)]
            for backend in self.backends
        ]
        assert found[0] == found[1]
        self.both("streams", prefix, after, limit)


def _plain(cell: Cell | None) -> Any:
    return None if cell is None else (cell.value, cell.written_us, cell.read_us)


@settings(max_examples=60)
@given(operations)
def test_memory_and_sqlite_give_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[Any, ...]]
) -> None:
    twins = Twins(tmp_path_factory.mktemp("twins"))
    try:
        for what, *arguments in done:
            getattr(twins, what)(*arguments)
        for name in ("a", "ab", "b", "é"):
            twins.events(name, 0, 1000, None, None, None, None)
        twins.list("", None, 100)
    finally:
        twins.backends[1].close()


# ── how much is read ─────────────────────────────────────────────────────────────────────────────

STATEMENTS = {
    "read a cell": (SQL["cell"], 2),
    "list cells": (SQL["cells"], 4),
    "replace a cell": (SQL["replace_cell"], 5),
    "remove a cell": (SQL["remove_cell"], 3),
    "find a stream": (SQL["stream"], 2),
    "list streams": (SQL["streams"], 4),
    "since": (SQL["first_event_since"], 2),
    "until": (SQL["last_event_until"], 2),
    "events": (SQL["events"], 5),
    "of a type": (SQL["events_of_type"], 6),
    "of an agent": (SQL["events_of_agent"], 6),
    "of both": (SQL["events_of_type_and_agent"], 7),
    "delete events": (SQL["delete_events"], 2),
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_every_query_seeks(what: str) -> None:
    text, parameters = STATEMENTS[what]
    db = apsw.Connection("")
    for statement in MIGRATIONS:
        db.execute(statement)
    plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + text, (None,) * parameters).fetchall()]
    db.close()
    assert plan, what
    for step in plan:
        assert step.startswith("SEARCH"), f"reads a whole table or sorts: {plan}"
    if what in {"of a type", "of an agent", "of both"}:
        assert "rowid>" in plan[0], plan


class Steps:
    """Counts the steps that SQLite's machine takes, which grow with the rows it looks at."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._profile)

    def _profile(self, event: dict[str, Any]) -> None:
        self.count += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def of(self, work: Callable[[], Any]) -> int:
        self.count = 0
        work()
        return self.count


@pytest.fixture
def steps() -> Iterator[Steps]:
    counter = Steps()
    apsw.connection_hooks.append(counter.watch)
    yield counter
    apsw.connection_hooks.remove(counter.watch)


def test_a_long_stream_is_queried_as_fast_as_a_short_one(
    tmp_path: Path, opening: Opening, steps: Steps
) -> None:
    """Rare types, agents and narrow times; clocks of several hosts, so that times are a bit out of order."""
    rng = random.Random(2)
    counts = []
    for size in (2_000, 20_000):
        backend = opening(tmp_path / f"{size}.db")
        made = [
            event(
                number,
                at_us=number * 1000 + rng.randint(-2500, 2500),
                type="rare" if number % 500 == 0 else "common",
                agent="rare" if number % 500 == 3 else None,
            )
            for number in range(size)
        ]
        backend.emit("", "s", made)
        backend.emit("", "s2", made)
        middle = size // 2 * 1000

        def asked(backend: SqliteBackend, since: int, after: int) -> list[Callable[[], Any]]:
            def ask(**query: Any) -> Callable[[], Any]:
                return lambda: backend.events("", "s", query.pop("after", 0), query.pop("limit", 3), **query)

            return [
                ask(type="rare"),
                ask(agent="rare"),
                ask(since_us=since, until_us=since + 20_000, limit=1000),
                ask(since_us=since),
                ask(until_us=20_000, limit=1000),
                ask(type="rare", since_us=since, until_us=since + 20_000, limit=1000),
                ask(after=after),
                ask(after=after, type="rare", limit=1),
                lambda: backend.emit("", "s", [event(1)]),
                lambda: backend.swap("", "c", 0, b"", 0),
            ]

        counts.append([steps.of(work) for work in asked(backend, middle, size - 1000)])
    short, long = counts
    for before, after in zip(short, long, strict=True):
        assert after < before * 1.3 + 50, (short, long)


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────


def test_only_what_is_durable_waits_for_the_disk(tmp_path: Path, opening: Opening) -> None:
    vfs = PowerLossVFS("counted")
    try:
        backend = opening(tmp_path / "counted.db", durability="full", vfs="counted")
        syncs = vfs.recording._syncs
        revision = backend.swap("", "beat", 0, b"0", 0)
        before = len(syncs)
        for number in range(20):
            revision = backend.swap("", "beat", revision, b"%d" % number, 0, durable=False)
        assert len(syncs) == before
        with contextlib.suppress(StaleCell):
            backend.swap("", "beat", 0, b"", 0, durable=False)
        backend.swap("", "beat", revision, b"", 0)
        assert len(syncs) > before
        before = len(syncs)
        backend.emit("", "s", [event(1)])
        assert len(syncs) > before, "the level is as it was, whatever the swap before came to"
        backend.close()
    finally:
        vfs.unregister()


def test_a_power_cut_loses_no_acknowledged_event_or_swap(tmp_path: Path, opening: Opening, seed: int) -> None:
    """Each acknowledged operation is there on every disk that a power cut may leave; a batch whole or not."""
    rng = random.Random(seed)
    vfs = PowerLossVFS("cut")
    promised: list[tuple[int, bytes]] = [(0, b"")]
    try:
        backend = opening(tmp_path / "store.db", durability="full", vfs="cut", wal_autocheckpoint=20)
        revision, value, last = 0, b"", 0
        for number in range(60):
            if rng.random() < 0.5:
                count = rng.choice([1, 1, 7])
                backend.emit("", "s", [event(number)] * count, [(rng.randbytes(16), b"k" * 16, b"x" * 500)])
                last += count
            else:
                durable = rng.random() < 0.6
                value = b"%d" % number
                revision = backend.swap("", "c", revision, value, 0, durable)
                if not durable:
                    continue
            promised.append((last, value))
            vfs.recording.acknowledge()
        backend.close()
    finally:
        vfs.unregister()
    for disk in vfs.recording.states(seed, 120):
        folder = tmp_path / f"disk {disk.index}"
        disk.write_to(folder)
        found = opening(folder / "store.db")
        bodies = [each.body for each in found.events("", "s", 0, 1000)]
        cell = found.cell("", "c", 0)
        last, value = promised[disk.acknowledged]
        assert len(bodies) >= last, "an acknowledged event is lost"
        assert int(cell.value if cell else 0) >= int(value or 0), "an acknowledged swap is lost"
        batches = {body: bodies.count(body) for body in bodies}
        assert set(batches.values()) <= {1, 7}, "a batch is torn"
        assert found.check() == []
        assert found.emit("", "s", [event(1)]) == len(bodies) + 1
        found.close()


def test_a_failed_emit_leaves_all_or_nothing(tmp_path: Path, opening: Opening) -> None:
    """Each write and sync of an emit fails once."""
    vfs = _FailingVFS()
    try:
        backend = opening(durability="full", vfs="fails")
        told = 0
        for calls in range(1, 60):
            before = len(backend.events("", "s", 0, 10_000))
            vfs.countdown = calls
            try:
                backend.emit("", "s", [event(n, type="x" * 3000) for n in range(5)])
            except StorageWriteError:
                told += 1
            through = vfs.countdown > 0
            vfs.countdown = 0
            stored = backend.events("", "s", 0, 10_000)
            assert len(stored) - before in {0, 5}
            assert [each.seq for each in stored] == list(range(1, len(stored) + 1))
            if through:
                break
        assert through
        assert told > 2
        backend.close()
    finally:
        vfs.unregister()


class _FailingVFS(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("fails", "")
        self.countdown = 0

    def tick(self) -> None:
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                raise apsw.IOError("no more")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _FailingFile(name, flags, self)


class _FailingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], vfs: _FailingVFS) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs

    def xWrite(self, data: Any, offset: int) -> None:
        self._vfs.tick()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._vfs.tick()
        super().xSync(flags)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


def test_a_full_stream_refuses_and_never_reaches_its_neighbour(tmp_path: Path, opening: Opening) -> None:
    backend = opening()
    backend.emit("", "s", [event(1)])
    backend.emit("", "next", [event(2)])
    db = apsw.Connection(str(tmp_path / "store.db"))
    db.execute("UPDATE stream SET first = ?1, last = ?1 - 1 WHERE name = 's'", (EVENT_SEQ_MAX - 1,))
    db.close()
    assert backend.emit("", "s", [event(3), event(4)]) == EVENT_SEQ_MAX - 1
    with pytest.raises(LimitError):
        backend.emit("", "s", [event(5)])
    assert [each.body for each in backend.events("", "s", 5, 9)] == [b"3", b"4"]
    assert [each.body for each in backend.events("", "s", 5, 9, type="t", since_us=0)] == [b"3", b"4"]
    assert [each.body for each in backend.events("", "next", 0, 9, type="t", until_us=9)] == [b"2"]
    assert backend.events("", "s", EVENT_SEQ_MAX, 9) == []
    db = apsw.Connection(str(tmp_path / "store.db"))
    db.execute("INSERT INTO stream (id, space, name) VALUES (?1, '', 'largest')", (events.STREAM_MAX,))
    db.close()
    assert backend.emit("", "largest", [event(6)] * 2) == 1
    assert len(backend.events("", "largest", 0, 9, since_us=0)) == 2
    with pytest.raises(LimitError):
        backend.emit("", "one too many", [event(7)])
    assert [name for name, _ in backend.streams("", "", None, 9)] == ["largest", "next", "s"]
    memory = RecordsBackend(MemoryStore(TABLES))
    memory.emit("", "s", [event(1)])
    number = run(memory._stream("", "s"))
    last = (EVENT.number, number, EVENT_SEQ_MAX), b""
    assert run(memory.records.store.write_one(Batch(puts=[last]))) == 0
    with pytest.raises(LimitError):
        memory.emit("", "s", [event(5)])
