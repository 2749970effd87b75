"""The memory store at the level of the contract: verb by verb the same answers as SQLite gives."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everthread
from everthread.errors import InvalidValueError, StoreClosedError, UnsupportedError
from everthread.history.packs import Chunk, Pack
from everthread.stores.contract import (
    DELTA,
    PACK,
    REWIND,
    SEAL_SEQ,
    Fold,
    Line,
    NameTaken,
    NewRow,
    SourceGone,
    StaleWrite,
)
from everthread.stores.memory import MemoryBackend
from everthread.stores.sqlite.connection import Settings
from everthread.stores.sqlite.store import SqliteBackend

NAMES = ("a", "ab", "b", "é")
LOGS = ("messages", "other")

operations = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("fork"), st.integers(0, 9), st.sampled_from(NAMES), st.integers(0, 20)),
        st.tuples(st.just("append"), st.integers(0, 9), st.sampled_from([DELTA, DELTA, DELTA, REWIND])),
        st.tuples(st.just("append"), st.integers(0, 9), st.just(DELTA)),
        st.tuples(st.just("append_stale"), st.integers(0, 9)),
        st.tuples(st.just("fold"), st.integers(0, 9), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("fold_other"), st.integers(0, 9)),
        st.tuples(st.just("keyframe"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("tag"), st.integers(0, 9), st.sampled_from(["x", "y"]), st.integers(0, 20)),
        st.tuples(st.just("delete"), st.integers(0, 9)),
    ),
    max_size=40,
)


class Twins:
    """Both stores, driven alike: what one answers or raises, the other must too."""

    def __init__(self, folder: str) -> None:
        self.memory = MemoryBackend()
        self.sqlite = SqliteBackend(Settings(f"{folder}/store.db", durability="process"))
        self.rng = random.Random(7)
        self.lines: list[Line] = []
        self.positions: dict[bytes, int] = {}

    def both(self, verb: str, *arguments: Any) -> Any:
        answers = []
        for backend in (self.memory, self.sqlite):
            try:
                answers.append(getattr(backend, verb)(*arguments))
            except (NameTaken, SourceGone) as signal:
                answers.append(type(signal))
            except StaleWrite as stale:
                answers.append((StaleWrite, stale.newest, stale.sealed))
        assert _plain(answers[0]) == _plain(answers[1]), verb
        return answers[0]

    def line(self, number: int) -> Line | None:
        return self.lines[number % len(self.lines)] if self.lines else None

    def row(self, line: Line, kind: int, previous: bytes, seq: int) -> NewRow:
        chunks: tuple[Chunk, ...] = ()
        if self.rng.random() < 0.3:
            chunks = (self.chunk(line),)
        key = self.rng.choice([None, None, b"key 1", b"key 2"])
        sealed = ((self.rng.randbytes(16), b"k" * 16, b"sealed"),) if self.rng.random() < 0.2 else ()
        return NewRow(seq, kind, previous, self.rng.randbytes(32), self.rng.randbytes(9), key, chunks, sealed)

    def chunk(self, line: Line) -> Chunk:
        position = self.positions.get(line.uid, 0)
        count = self.rng.randint(1, 4)
        self.positions[line.uid] = position + count
        return Chunk("messages", position, count, self.rng.randbytes(4 * count), self.rng.randbytes(5))

    # ── operations ───────────────────────────────────────────────────────────────────────────

    def create(self, name: str, bare: bool) -> None:
        line = Line(
            id=0, uid=self.rng.randbytes(16), space="", name=name, root=0, start_hash=self.rng.randbytes(32)
        )
        row = None if bare else self.row(line, DELTA, line.start_hash, 1)
        made = self.both("create", line, row, 0, {"made": b"1"})
        if isinstance(made, Line):
            self.lines.append(made)

    def fork(self, number: int, name: str, seq: int) -> None:
        parent = self.line(number)
        rows = self.memory.scan(parent.id, SEAL_SEQ - 1, 1) if parent else []
        if parent and rows:
            line = Line(
                id=0,
                uid=self.rng.randbytes(16),
                space="",
                name=name,
                root=parent.root,
                parent=parent.id,
                parent_seq=parent.parent_seq + 1 + seq % (rows[0].seq - parent.parent_seq),
                parent_hash=self.rng.randbytes(16),
                start_hash=self.rng.randbytes(32),
                counts={"messages": seq},
            )
            made = self.both("create", line, None, parent.id, {})
            if isinstance(made, Line):
                self.lines.append(made)

    def append(self, number: int, kind: int) -> None:
        if line := self.line(number):
            rows = self.memory.scan(line.id, SEAL_SEQ - 1, 1)
            previous = rows[0].hash if rows else line.start_hash
            self.both(
                "append",
                line.id,
                self.row(line, kind, previous, (rows[0].seq if rows else line.parent_seq) + 1),
            )

    def append_stale(self, number: int) -> None:
        if line := self.line(number):
            rows = self.memory.scan(line.id, SEAL_SEQ - 1, 2)
            previous = rows[1].hash if len(rows) > 1 else b"nobody's hash"
            self.both("append", line.id, self.row(line, DELTA, previous, rows[0].seq if rows else 1))

    def fold(self, number: int, count: int, keyframe: bool) -> None:
        line = self.line(number)
        rows = [row for row, _ in self.memory.tail(line.id)][:-1][:count] if line else []
        if line and rows:
            self.both("fold", line, self.make_fold(line, rows, b"frame" if keyframe else None))

    def fold_other(self, number: int) -> None:
        """A fold that somebody else has done already, or that was made of other records."""
        line = self.line(number)
        rows = self.memory.scan(line.id, SEAL_SEQ - 1, 3) if line else []
        if line and rows:
            stale = msgspec.structs.replace(self.make_fold(line, rows[::-1], None), hash=b"another hash")
            assert self.both("fold", line, stale) is False

    def make_fold(self, line: Line, rows: list[Any], keyframe: bytes | None) -> Fold:
        chunks = [self.chunk(line)] if self.rng.random() < 0.5 else []
        pack = Pack(rows[0].first, rows[-1].seq, self.rng.randbytes(20), self.rng.randbytes(8), chunks)
        keys = tuple(
            (self.rng.choice([b"key 1", b"key 2"]), row.seq) for row in rows if self.rng.random() < 0.4
        )
        return Fold(pack, rows[-1].hash, keyframe, keys, {"x": self.rng.randbytes(1)})

    def keyframe(self, number: int, right: bool) -> None:
        line = self.line(number)
        rows = self.memory.scan(line.id, SEAL_SEQ - 1, 1) if line else []
        if line and rows:
            digest = rows[0].hash if right else b"another hash"
            self.both("keyframe", line.id, rows[0].seq, digest, b"frame of its own")

    def tag(self, number: int, name: str, seq: int) -> None:
        line = self.line(number)
        if line and self.memory.find("", line.name):
            self.both("tag", line.id, seq, {name: b"1"})

    def delete(self, number: int) -> None:
        if line := self.line(number):
            self.both("delete", line)

    # ── questions ────────────────────────────────────────────────────────────────────────────

    def ask_everything(self) -> None:
        for name in (*NAMES, "nobody"):
            self.both("find", "", name)
            self.both("find", "another space", name)
        for prefix in ("", "a", "ab", "z"):
            for after in (None, "a", "b"):
                self.both("lines", "", prefix, after, 3)
        for tags in ({"x": b"1"}, {"made": b"1"}, {"made": b"1", "y": b"1"}):
            self.both("lines_by_tags", "", tags)
        assert _plain(sorted(self.memory.untagged(""), key=repr)) == _plain(
            sorted(self.sqlite.untagged(""), key=repr)
        )
        assert list(self.memory.every_line()) == list(self.sqlite.every_line())
        self.both("line", 999)
        self.both("line_by_uid", b"nobody")
        for line in self.lines:
            self.ask_about(line)

    def ask_about(self, line: Line) -> None:
        self.both("line", line.id)
        self.both("line_by_uid", line.uid)
        self.both("tail", line.id)
        for key in (b"key 1", b"key 2", b"key 3"):
            found = [sorted(backend.keyed(line.root, key)) for backend in (self.memory, self.sqlite)]
            assert found[0] == found[1]
        rows = self.memory.scan(line.id, SEAL_SEQ - 1, 1)
        for seq in {1, 2, 3, 5, 8, rows[0].seq if rows else 1}:
            self.both("scan", line.id, seq, 3)
            for floor in (0, 2, line.parent_seq):
                if seq > floor:
                    found = [
                        _replayed(backend, line.id, seq, floor) for backend in (self.memory, self.sqlite)
                    ]
                    assert found[0] == found[1]
        for log in LOGS:
            for start, stop in ((0, 100), (0, 1), (3, 5), (7, 7), (50, 60)):
                self.both("chunks", line.id, log, start, stop)
            for start in (0, 3, 50):
                self.both("fingerprints", line.id, log, start)


def _plain(answer: Any) -> Any:
    return (
        [tuple(each) if isinstance(each, list) else each for each in answer]
        if type(answer) is list
        else answer
    )


def _replayed(backend: Any, line: int, seq: int, floor: int) -> list[Any]:
    """A pack's body is promised only where ``seq`` lies inside it."""
    return [
        msgspec.structs.replace(row, body=b"") if row.kind == PACK and row.seq <= seq else row
        for row in backend.replay(line, seq, floor)
    ]


@settings(max_examples=40)
@given(operations)
def test_memory_and_sqlite_give_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[Any, ...]]
) -> None:
    twins = Twins(str(tmp_path_factory.mktemp("twins")))
    try:
        for number, (what, *arguments) in enumerate(done):
            getattr(twins, what)(*arguments)
            if number % 8 == 0:
                twins.ask_everything()
        twins.ask_everything()
    finally:
        twins.sqlite.close()


def test_two_memory_stores_share_nothing() -> None:
    one, two = everthread.open("memory:"), everthread.open("memory:")
    thread = one.thread("a")
    thread.state["x"] = 1
    thread.commit()
    assert two.thread("a").head is None
    assert list(two.threads()) == []
    assert one.url == two.url == "memory:"


def test_namespaces_of_one_memory_store() -> None:
    backend = MemoryBackend()
    from everthread.store import Store

    one, two = Store(backend, namespace="one"), Store(backend, namespace="two")
    for store in (one, two):
        thread = store.thread("a")
        thread.state["space"] = store.namespace
        thread.commit()
    assert [one.thread("a").state["space"], two.thread("a").state["space"]] == ["one", "two"]
    two.thread("a").delete()
    assert one.thread("a").head is not None


def test_a_memory_store_stays_in_its_process(tmp_path: Path) -> None:
    store = everthread.open("memory:")
    for verb in (store.backup, store.restore):
        with pytest.raises(UnsupportedError):
            verb(tmp_path / "backup")
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError):
            way(store.core.backend)
    assert list(tmp_path.iterdir()) == []
    assert not store.capabilities.durable
    with pytest.raises(InvalidValueError):
        everthread.open("memory:", durability="")


def test_a_closed_memory_store_answers_nothing() -> None:
    backend = MemoryBackend()
    line = backend.create(Line(id=0, uid=b"u", space="", name="a", root=0, start_hash=b"s"), None)
    backend.close()
    backend.close()
    row = NewRow(1, DELTA, b"s", b"h", b"body")
    for ask in (
        lambda: backend.find("", "a"),
        lambda: backend.line(1),
        lambda: backend.line_by_uid(b"u"),
        lambda: backend.tail(1),
        lambda: backend.scan(1, 1, 1),
        lambda: backend.replay(1, 1, 0),
        lambda: backend.chunks(1, "l", 0, 1),
        lambda: backend.keyed(1, b"k"),
        lambda: backend.sealed([b"v"]),
        lambda: backend.create(line, None),
        lambda: backend.append(1, row),
        lambda: backend.delete(line),
        lambda: list(backend.lines("", "", None, 1)),
        lambda: list(backend.lines_by_tags("", {"x": b"1"})),
        lambda: list(backend.untagged("")),
        lambda: list(backend.every_line()),
    ):
        with pytest.raises(StoreClosedError):
            ask()


def test_many_threads_of_execution() -> None:
    """Readers see whole versions while writers write and fold."""
    store = everthread.open("memory:")
    store.core.folder.records_max = 3
    problems: list[BaseException] = []
    writing = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                store.thread("a").update(lambda draft: _grow(draft, number))  # noqa: B023
        except BaseException as error:
            problems.append(error)
        finally:
            writing.set()

    def read() -> None:
        try:
            while not writing.is_set():
                thread = store.thread("a")
                assert [item["id"] for item in thread.messages] == list(range(thread.state.get("count", 0)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.thread("a").messages) == 150
    assert store.verify()


def _grow(draft: Any, number: int) -> None:
    draft.messages.append({"id": number})
    draft["count"] = number + 1
