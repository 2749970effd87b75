"""Rows that are gone, and folds that would leave single records below a pack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import everthread as e
from everthread import Corrupt, StateCorruptedError, Store
from everthread.history.snapshots import write_keyframe
from everthread.records.tables import KEYFRAME, PAST, ROW
from everthread.stores.contract import DELTA, PACK, SEAL_SEQ, Line
from everthread.stores.interface import Batch, Span, run
from everthread.threads.sync.fold import _made, _taken_apart

VERSIONS = 200
#: These are left single, with packs on either side.
FIRST, LAST = 65, 128


class Place:
    """A store that can be opened again, and from which rows can be taken."""

    def __init__(self, open_: Callable[[], Store], drop: Callable[[Store, Line, int, int], None]) -> None:
        self._open = open_
        self.drop = drop
        self._opened: list[Store] = []

    def open(self) -> Store:
        self._opened.append(self._open())
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


def _from_sqlite(path: Path) -> Callable[[Store, Line, int, int], None]:
    def drop(store: Store, line: Line, first: int, last: int) -> None:
        connection = apsw.Connection(str(path))
        connection.execute(
            "DELETE FROM record WHERE id BETWEEN ? AND ?", ((line.id << 32) + first, (line.id << 32) + last)
        )
        assert connection.changes() > 0
        connection.close()

    return drop


def _from_memory(store: Store, line: Line, first: int, last: int) -> None:
    backend: Any = store.core.backend
    rows = [Span(table.number, line.id, first, last + 1) for table in (ROW, PAST, KEYFRAME)]
    run(backend.records.store.write_one(Batch(deletes=rows)))


def _from_valkey(store: Store, line: Line, first: int, last: int) -> None:
    backend: Any = store.core.backend
    key = backend._keys.rows(line.id)
    for seq in range(first, last + 1):
        backend._client.command(key, "HDEL", key, str(seq), f"{seq}b", f"{seq}k", f"{seq}n")


@pytest.fixture(params=["memory", "sqlite", "postgres", "valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = _place(request, tmp_path)
    yield made
    made.close()


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "memory":
        # It isn't there any more when it is closed: forgetting what is known has to do.
        store = e.open("memory://")

        def again() -> Store:
            store.core.head_cache.clear()
            return store

        return Place(again, _from_memory)
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        return Place(lambda: e.open(f"sqlite:///{path}", durability="process"), _from_sqlite(path))
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")

        def drop(store: Store, line: Line, first: int, last: int) -> None:
            with psycopg.connect(url) as connection:
                connection.execute(
                    "DELETE FROM everthread.record WHERE line = %s AND seq BETWEEN %s AND %s",
                    (line.id, first, last),
                )

        return Place(lambda: e.open(url, durability="process"), drop)
    where = request.getfixturevalue("valkey_url")
    return Place(lambda: e.open(where, durability="process"), _from_valkey)


def filled(store: Store, *, keys: bool = False, pack_above: bool = True) -> Line:
    """A thread whose versions FIRST to LAST are single records after a pack, or between two packs."""
    store.core.maintain = lambda line, head: head  # type: ignore[method-assign]
    thread = store.thread("t")
    for number in range(1, VERSIONS + 1):
        thread.state["n"] = number
        thread.state[f"k{number % 7}"] = "x" * number
        thread.messages.append({"id": f"m{number}", "text": f"text {number}"})
        thread.commit(label=f"v{number}", key=f"key {number}" if keys else None)
    line = thread.handle.line
    assert line is not None
    fold(store, line, 1, FIRST - 1)
    if pack_above:
        fold(store, line, LAST + 1, 192, beside=True)
    kinds = {row.kind for row in store.core.backend.scan(line.id, LAST, LAST - FIRST + 1)}
    assert kinds == {DELTA}
    return line


def fold(store: Store, line: Line, first: int, last: int, *, beside: bool = False) -> bool:
    backend = store.core.backend
    rows = list(reversed(backend.scan(line.id, last, last - first + 1)))
    keys = {row.seq: key for row, key in backend.tail(line.id)}
    run = [single for row in rows if (single := _taken_apart(row, keys.get(row.seq))) is not None]
    return backend.fold(line, _made(run, beside))


def keyframe_above(store: Store, line: Line) -> None:
    """The strays lie below a keyframe: nobody comes across them who reads the newest state."""
    backend = store.core.backend
    (row,) = backend.scan(line.id, 192, 1)
    frame = write_keyframe(store.core.reader.load(line, 192).snapshot)
    assert frame is not None
    backend.keyframe(line.id, 192, row.hash, frame)


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last + 1)]


def said(messages: Any) -> list[str]:
    return [message["text"] for message in messages]


def test_a_fold_that_would_leave_single_records_below_is_refused(place: Place) -> None:
    with place.open() as store:
        store.core.maintain = lambda line, head: head  # type: ignore[method-assign]
        thread = store.thread("t")
        for number in range(10):
            thread.state["n"] = number
            thread.commit()
        line = thread.handle.line
        assert line is not None
        assert fold(store, line, 4, 6) is False
        assert len(store.core.backend.tail(line.id)) == 10
        assert fold(store, line, 1, 3) is True
        assert fold(store, line, 4, 6) is True
        # The row before can't be read: it stays, and isn't in the way for ever.
        assert fold(store, line, 8, 9, beside=True) is True
        assert store.verify().ok


def test_verify_names_keys_that_nobody_would_find(place: Place) -> None:
    with place.open() as store:
        filled(store, keys=True)
        report = store.verify()
        # In memory keys are indexed with the commit: a row that was never compacted hides none.
        hidden = () if store.url == "memory:" else range(FIRST, LAST + 1)
        assert [(d.thread, d.first, d.what) for d in report.damage] == [
            ("t", number, "derived") for number in hidden
        ]


@pytest.mark.parametrize("keyframe", [False, True])
def test_rows_that_are_gone_are_noticed(place: Place, keyframe: bool) -> None:
    with place.open() as store:
        line = filled(store, pack_above=False)
        if keyframe:
            keyframe_above(store, line)
        place.drop(store, line, 100, 110)
        store.core.head_cache.clear()
        report = store.verify()
        missing = [(d.thread, d.first, d.last) for d in report.damage if d.problem == "missing"]
        assert missing == [("t", 100, 110)]
        thread = place.open().thread("t")
        if keyframe:
            assert thread.state["n"] == VERSIONS
            with pytest.raises(StateCorruptedError, match="99 to 110"):
                list(thread.messages)
            assert said(thread.messages[110:]) == texts(111, VERSIONS)
            with pytest.raises(StateCorruptedError, match="version 105"):
                _ = thread.at(105).state
            with pytest.raises(StateCorruptedError, match="version 110"):
                list(thread.history(limit=None))
        else:
            assert thread.state["n"] == 99
            found = thread.recovered
            assert found is not None
            assert (found.version.seq, found.first, found.last) == (99, 100, VERSIONS)
            assert said(thread.messages) == texts(1, 99)
        partial = store.thread("t", partial=True)
        shown = list(partial.messages)
        if keyframe:
            assert [type(each) is Corrupt for each in shown] == [99 <= at < 110 for at in range(VERSIONS)]
        past = list(partial.history(limit=None))
        seqs = [version.seq for version in past if type(version) is not Corrupt]
        assert set(seqs) == {*range(1, 100), *range(111, VERSIONS + 1)}
        assert any(type(version) is Corrupt for version in past)


#: Beside a pack, in the tail, and a whole pack: the rows that go, and the versions in them.
GAPS = [
    ((65, 65), (65, 65)),
    ((128, 128), (128, 128)),
    ((193, 193), (193, 193)),
    ((199, 199), (199, 199)),
    ((64, 64), (1, 64)),
    ((192, 193), (192, 193)),
]


@pytest.mark.parametrize("keyframe", [False, True])
@pytest.mark.parametrize("gap", GAPS)
def test_nothing_passes_over_a_gap(
    place: Place, tmp_path: Path, gap: tuple[tuple[int, int], tuple[int, int]], keyframe: bool
) -> None:
    (dropped, (first, last)) = gap
    with place.open() as store:
        line = filled(store, pack_above=False)
        if keyframe:
            keyframe_above(store, line)
        place.drop(store, line, *dropped)
        store.core.head_cache.clear()
        missing = [(d.first, d.last) for d in store.verify().damage if d.problem == "missing"]
        assert missing == [(first, last)]
        other = place.open()
        thread = other.thread("t")
        whole = keyframe and last < 192
        if whole or first > 1:
            assert thread.state["n"] == (VERSIONS if whole else first - 1)
            assert (thread.recovered is None) == whole, "what a keyframe tells needs nothing below it"
        for read in (
            lambda: thread.state["n"] if not whole and first == 1 else list(thread.watch(after=0, timeout=0)),
            lambda: list(other.scan("nowhere")),
            lambda: list(other.scan(f"text {last}")),
            lambda: other.export(tmp_path / "archive"),
        ):
            with pytest.raises(StateCorruptedError, match=r"missing|damaged") as error:
                read()
            assert "Row(" not in str(error.value)
        # What follows upon the gap doesn't say that it follows from what is below it.
        if whole:
            after = next(each for each in thread.history(limit=None) if each.seq == last + 1)
            assert after.parent is None
        for dry_run in (True, False):
            report = other.gc(e.Retention(keep_last=5, keep_labelled=False), dry_run=dry_run)
            assert report.versions == 0
            assert any("missing" in problem for problem in report.problems)
        assert [(d.first, d.last) for d in store.verify().damage if d.problem == "missing"] == missing


@pytest.mark.parametrize("gap", GAPS)
def test_no_gap_is_moved_to_the_archive(tmp_path: Path, gap: tuple[tuple[int, int], tuple[int, int]]) -> None:
    path = tmp_path / "store.db"
    options: dict[str, Any] = {"durability": "process", "cold": tmp_path / "cold"}
    with e.open(f"sqlite:///{path}", **options) as store:
        line = filled(store, pack_above=False)
        keyframe_above(store, line)
        _from_sqlite(path)(store, line, *gap[0])
        store.core.head_cache.clear()
        report = store.cool(0)
        assert (report.threads, len(report.problems)) == (0, 1)
        assert "missing" in report.problems[0]
        assert [(d.first, d.last) for d in store.verify().damage if d.problem == "missing"] == [gap[1]]


def test_a_thread_goes_on_over_a_missing_row_and_is_folded_again(place: Place) -> None:
    with place.open() as store:
        thread = store.thread("t")
        for number in range(1, 31):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}", "text": f"text {number}"})
            thread.commit()
        line = thread.handle.line
        assert line is not None
        place.drop(store, line, 20, 20)
        store.core.head_cache.clear()
        thread = place.open().thread("t")
        assert thread.state["n"] == 19
        assert thread.head is not None
        thread.rewind(thread.head)
        for number in range(31, 331):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}", "text": f"text {number}"})
            thread.commit()
        assert len(store.core.backend.tail(line.id)) <= 70
        store.core.head_cache.clear()
        thread = place.open().thread("t")
        assert thread.state["n"] == 330
        assert said(thread.messages) == texts(1, 19) + texts(31, 330)


def test_redaction_while_another_writes_leaves_nothing_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with e.open(url) as store, e.open(url) as other:
        thread = store.thread("t")
        thread.messages.append({"id": "m1", "text": "text 1 secret-4711"})
        thread.commit()
        tail = store.core.backend.tail
        calls = []

        def meanwhile(line: int) -> Any:
            calls.append(line)
            if len(calls) == 2:
                handle = other.thread("t")
                for number in (2, 3, 4):
                    handle.messages.append({"id": f"m{number}", "text": f"text {number} secret-4711"})
                    handle.commit(key=f"key {number}")
            return tail(line)

        store.core.backend.tail = meanwhile  # type: ignore[method-assign]
        store.redact("secret-4711", reason="a test")
        store.core.backend.tail = tail  # type: ignore[method-assign]
        assert len(calls) > 2
    with e.open(url) as store:
        found = said(store.thread("t").messages)
        assert len(found) == 4
        assert "4711" not in str(found)
        assert store.verify().ok
        rows = store.core.backend.scan(store.thread("t").handle.require()[0].id, SEAL_SEQ - 1, 20)
        packed = [row.kind == PACK for row in reversed(rows)]
        assert packed == sorted(packed, reverse=True)
