"""Cells and streams of events, verb by verb of the contract: what leases and event logs rely on."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from everthread.errors import EverthreadError
from everthread.stores.contract import EVENT_SEQ_MAX, Cell, NewEvent, PutCell, StaleCell, StoredEvent
from everthread.testing.rules.expectations import OpenStore, needs, raises

#: Not the store's own: what is written here isn't what its other parts would write.
SPACE = "contract"
ODD_NAMES = ("'; drop table cell--", "../../x", "a\nb", "%", "_", "*", "é", "\U0001f9f5", " ", "x" * 1000)


class CellRules:
    def test_a_cell_is_created_replaced_and_removed(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        assert backend.cell(SPACE, "a", 1) is None
        first = backend.swap(SPACE, "a", 0, b"one", 10)
        second = backend.swap(SPACE, "a", first, b"", 20)
        assert second > first > 0
        cell = _present(backend.cell(SPACE, "a", 30))
        assert (cell.value, cell.revision) == (b"", second)
        assert cell.written_us <= cell.read_us
        large = os.urandom(300_000)
        third = backend.swap(SPACE, "a", second, large, 40)
        assert _present(backend.cell(SPACE, "a", 50)).value == large
        assert backend.swap(SPACE, "a", third, None, 60) == 0
        assert backend.cell(SPACE, "a", 70) is None
        assert backend.swap(SPACE, "a", 0, None, 80) == 0, "absent, as expected"

    def test_a_wrong_revision_changes_nothing_and_shows_the_cell(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        for expected, value in ((1, b"x"), (7, None)):
            with raises(StaleCell) as caught:
                backend.swap(SPACE, "a", expected, value, 1)
            assert caught[0].actual is None
        old = backend.swap(SPACE, "a", 0, b"old", 1)
        new = backend.swap(SPACE, "a", old, b"new", 2)
        for expected in (0, old, new + 1):
            for value in (b"x", None):
                with raises(StaleCell) as caught:
                    backend.swap(SPACE, "a", expected, value, 3, expected != old)
                actual = _present(caught[0].actual)
                assert (actual.value, actual.revision) == (b"new", new)
        assert _present(backend.cell(SPACE, "a", 4)).value == b"new"

    def test_a_revision_never_repeats(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        seen: list[int] = []
        for number in range(12):
            seen.append(backend.swap(SPACE, "a", 0, b"1", number))
            for _ in range(number % 4):
                seen.append(backend.swap(SPACE, "a", seen[-1], b"2", number))
            other = backend.swap(SPACE, "b", 0, b"3", number)
            backend.swap(SPACE, "a", seen[-1], None, number)
            backend.swap(SPACE, "b", other, None, number)
        assert len(set(seen)) == len(seen)

    def test_many_writers_of_one_cell_lose_no_update(self, open_store: OpenStore) -> None:
        store = open_store()
        backends = [_backend(store)]
        backends.append(_backend(open_store()) if store.capabilities.durable else backends[0])
        revisions: list[int] = []

        def count(backend: Any) -> None:
            for number in range(10):
                while True:
                    cell = backend.cell(SPACE, "n", 0)
                    value = int(cell.value) if cell else 0
                    try:
                        made = backend.swap(
                            SPACE, "n", cell.revision if cell else 0, b"%d" % (value + 1), 0, number % 2 == 0
                        )
                    except StaleCell:
                        continue
                    revisions.append(made)
                    break

        _at_once([partial(count, backends[number % 2]) for number in range(6)])
        assert _present(backends[0].cell(SPACE, "n", 0)).value == b"60"
        assert len(set(revisions)) == 60

    def test_cells_are_listed_by_name(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        names = sorted(["b", "a", "a/2", "a/10", "ab", "B", "a/1", *ODD_NAMES])
        for name in reversed(names):
            backend.swap(SPACE, name, 0, name.encode(), 1)
            backend.swap("other", name, 0, b"other's", 1)
        found = backend.cells(SPACE, "", None, 100)
        assert [name for name, _ in found] == names
        assert all(cell.value == name.encode() for name, cell in found)
        assert [name for name, _ in backend.cells(SPACE, "a/", None, 100)] == ["a/1", "a/10", "a/2"]
        assert [name for name, _ in backend.cells(SPACE, "a/", "a/1", 1)] == ["a/10"]
        assert [name for name, _ in backend.cells(SPACE, "a", "Z", 2)] == ["a", "a\nb"]
        assert backend.cells(SPACE, "none", None, 5) == backend.cells("nobody", "", None, 5) == []
        assert backend.cells(SPACE, "", None, 0) == []

    def test_what_isnt_durable_is_seen_at_once_and_survives_closing(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "durable")
        revision = _backend(store).swap(SPACE, "beat", 0, b"1", 1, durable=False)
        assert _present(_backend(open_store()).cell(SPACE, "beat", 2)).value == b"1"
        _backend(store).swap(SPACE, "beat", revision, b"2", 3, durable=False)
        store.close()
        assert _present(_backend(open_store()).cell(SPACE, "beat", 4)).value == b"2"


class StreamRules:
    def test_events_come_back_in_order(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        assert backend.events(SPACE, "s", 0, 10) == []
        made = [
            NewEvent(100 - n, f"type {n % 3}", None if n % 2 else f"a{n % 5}", b"%d" % n) for n in range(9)
        ]
        assert backend.emit(SPACE, "s", made[:1]) == 1
        assert backend.emit(SPACE, "s", made[1:5]) == 2
        assert backend.emit(SPACE, "s", made[5:]) == 6
        stored = [
            StoredEvent(seq, event.at_us, event.type, event.agent, event.body)
            for seq, event in enumerate(made, 1)
        ]
        assert backend.events(SPACE, "s", 0, 100) == stored
        assert backend.events(SPACE, "s", 3, 2) == stored[3:5]
        assert backend.events(SPACE, "s", -5, 3) == stored[:3]
        for after in (9, 10, 1 << 40):
            assert backend.events(SPACE, "s", after, 5) == []
        assert backend.events(SPACE, "s", 0, 0) == []

    def test_events_are_found_by_type_agent_and_time(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        rng = random.Random(4)
        made = _events_of_clocks_that_disagree(rng)
        for name in ("s", "neighbour", "s"):
            backend.emit(SPACE, name, made)
        stored = backend.events(SPACE, "s", 0, 1000)
        assert len(stored) == 2 * len(made)
        for _ in range(150):
            query: dict[str, Any] = {
                "type": rng.choice([None, "created", "done", "nothing"]),
                "agent": rng.choice([None, "a", "b", ""]),
                "since_us": rng.choice([None, rng.randint(0, 1500), -(1 << 70)]),
                "until_us": rng.choice([None, rng.randint(0, 1500), 10**15, 1 << 70]),
            }
            after, limit = rng.randint(-1, len(stored)), rng.choice([1, 3, 1000])
            expected = [event for event in stored if event.seq > after and _matches(event, query)]
            found = backend.events(SPACE, "s", after, limit, **query)
            assert found == expected[:limit], (after, limit, query)

    def test_many_writers_never_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        backends = [_backend(store)]
        backends.append(_backend(open_store()) if store.capabilities.durable else backends[0])
        batches: list[tuple[int, list[bytes]]] = []

        def write(backend: Any, writer: int) -> None:
            for number in range(12):
                bodies = [b"%d %d %d" % (writer, number, part) for part in range(1 + number % 3)]
                first = backend.emit(SPACE, "s", [NewEvent(number, "t", None, body) for body in bodies])
                batches.append((first, bodies))

        _at_once([partial(write, backends[number % 2], number) for number in range(8)])
        stored = backends[1].events(SPACE, "s", 0, 10_000)
        assert [event.seq for event in stored] == list(range(1, 8 * 24 + 1)), "no gaps"
        for first, bodies in batches:
            found = [event.body for event in stored[first - 1 : first - 1 + len(bodies)]]
            assert found == bodies, "a batch stays together, and its answer is true"
        for writer in range(8):
            mine = [first for first, bodies in batches if bodies[0].startswith(b"%d " % writer)]
            assert mine == sorted(mine), "each writer's in its order"

    def test_a_reader_never_sees_a_gap(self, open_store: OpenStore) -> None:
        store = open_store()
        writer = _backend(store)
        reader = _backend(open_store()) if store.capabilities.durable else writer
        seen: list[int] = []
        written = threading.Event()

        def write() -> None:
            try:
                for number in range(60):
                    writer.emit(SPACE, "s", [NewEvent(0, "t", None, b"")] * (1 + number % 2))
            finally:
                written.set()

        def read() -> None:
            page: list[StoredEvent] = []
            last = False
            while page or not last:
                last = written.is_set()
                page = reader.events(SPACE, "s", seen[-1] if seen else 0, 7)
                seen.extend(event.seq for event in page)

        _at_once([write, read])
        assert seen == list(range(1, 91))

    def test_streams_are_apart_and_listed_by_name(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        names = sorted(["b", "a", "a/2", "a/10", *ODD_NAMES])
        for place, name in enumerate(reversed(names)):
            backend.emit(SPACE, name, [NewEvent(1, name, name, name.encode())] * (1 + place % 3))
            backend.emit("other", name, [NewEvent(1, "t", None, b"other's")])
        listed = backend.streams(SPACE, "", None, 100)
        assert [name for name, _ in listed] == names
        for name, last in listed:
            found = backend.events(SPACE, name, 0, 100, type=name, agent=name)
            assert [event.seq for event in found] == list(range(1, last + 1))
            assert {event.body for event in found} == {name.encode()}
            assert [event.body for event in backend.events("other", name, 0, 9)] == [b"other's"]
        assert [name for name, _ in backend.streams(SPACE, "a/", None, 9)] == ["a/10", "a/2"]
        assert [name for name, _ in backend.streams(SPACE, "a/", "a/10", 9)] == ["a/2"]
        assert [name for name, _ in backend.streams(SPACE, "", "a", 1)] == [names[names.index("a") + 1]]
        assert backend.streams("nobody", "", None, 9) == backend.streams(SPACE, "none", None, 9) == []

    def test_bodies_of_events_are_replaced_and_nothing_else(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        assert backend.rewrite_events(SPACE, "s", {1: b"new"}) == 0
        for name in ("s", "t"):
            backend.emit(SPACE, name, [NewEvent(500 + n, f"t{n}", "a", b"old") for n in range(5)])
        before = backend.events(SPACE, "s", 0, 9)
        assert backend.rewrite_events(SPACE, "s", {2: b"new", 4: b"", 9: b"none"}) == 2
        after = backend.events(SPACE, "s", 0, 9)
        assert [event.body for event in after] == [b"old", b"new", b"old", b"", b"old"]
        assert [(e.seq, e.at_us, e.type, e.agent) for e in after] == [
            (e.seq, e.at_us, e.type, e.agent) for e in before
        ]
        assert backend.events(SPACE, "s", 0, 9, type="t1") == [after[1]]
        assert {event.body for event in backend.events(SPACE, "t", 0, 9)} == {b"old"}
        assert backend.rewrite_events(SPACE, "s", {}) == 0

    def test_a_stream_without_events_goes_on_with_its_seqs(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        assert backend.trim_stream(SPACE, "s", EVENT_SEQ_MAX) == 0
        for name in ("s", "t"):
            backend.emit(SPACE, name, [NewEvent(500, "t", "a", b"old")] * 5)
        assert backend.trim_stream(SPACE, "s", EVENT_SEQ_MAX) == 5
        assert backend.trim_stream(SPACE, "s", EVENT_SEQ_MAX) == 0
        assert backend.streams(SPACE, "", None, 9) == [("t", 5)]
        assert (
            backend.events(SPACE, "s", 0, 9) == backend.events(SPACE, "s", 0, 9, type="t", since_us=0) == []
        )
        assert backend.emit(SPACE, "s", [NewEvent(3, "t", "a", b"new")]) == 6, "seqs never repeat"
        assert [event.body for event in backend.events(SPACE, "s", 0, 9)] == [b"new"]
        assert [event.seq for event in backend.events(SPACE, "s", 0, 9, until_us=3)] == [6]
        assert backend.streams(SPACE, "", None, 9) == [("s", 6), ("t", 5)]
        assert len(backend.events(SPACE, "t", 0, 9)) == 5

    def test_the_oldest_events_are_trimmed_and_seqs_never_repeat(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        assert backend.trim_stream(SPACE, "s", 3) == 0
        # Emitted together, and trimmed apart; a clock that was far ahead, among those that go.
        times = [10, 900, 20, 30, 25, 40]
        made = [NewEvent(at_us, f"t{n % 2}", "a", b"%d" % n) for n, at_us in enumerate(times)]
        backend.emit(SPACE, "s", made[:4])
        backend.emit(SPACE, "s", made[4:])
        backend.emit(SPACE, "t", made)
        whole = backend.events(SPACE, "s", 0, 9)
        assert backend.trim_stream(SPACE, "s", 0) == backend.trim_stream(SPACE, "s", -5) == 0
        assert backend.trim_stream(SPACE, "s", 3) == 3
        assert backend.trim_stream(SPACE, "s", 3) == backend.trim_stream(SPACE, "s", 1) == 0
        assert backend.events(SPACE, "s", 0, 9) == backend.events(SPACE, "s", 2, 9) == whole[3:]
        assert backend.events(SPACE, "s", 4, 9) == whole[4:]
        assert backend.streams(SPACE, "", None, 9) == [("s", 6), ("t", 6)]
        assert backend.events(SPACE, "s", 0, 9, type="t1") == [whole[3], whole[5]]
        assert backend.events(SPACE, "s", 0, 9, agent="a", since_us=26, until_us=39) == [whole[3]]
        assert backend.events(SPACE, "s", 0, 9, until_us=26) == [whole[4]]
        assert backend.check() == []
        assert backend.emit(SPACE, "s", [NewEvent(5, "t1", "b", b"late")]) == 7
        assert [event.seq for event in backend.events(SPACE, "s", 0, 9, until_us=5)] == [7]
        assert backend.trim_stream(SPACE, "s", 6) == 3
        assert [event.body for event in backend.events(SPACE, "s", 0, 9)] == [b"late"]
        assert backend.rewrite_events(SPACE, "s", {6: b"gone", 7: b"new"}) == 1
        assert backend.check() == []
        assert backend.trim_stream(SPACE, "s", 1000) == 1
        assert backend.emit(SPACE, "s", [NewEvent(1, "t", None, b"on")]) == 8, "seqs never repeat"
        assert backend.events(SPACE, "t", 0, 9) == whole, "the other one is as it was"

    def test_trimming_while_others_write_takes_what_it_says(self, open_store: OpenStore) -> None:
        store = open_store()
        backend = _backend(store)
        other = _backend(open_store()) if store.capabilities.durable else backend
        removed: list[int] = []

        def write() -> None:
            for _ in range(40):
                backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"x")] * 3)

        def trim() -> None:
            for _ in range(25):
                found = other.streams(SPACE, "s", None, 1)
                removed.append(other.trim_stream(SPACE, "s", found[0][1] - 5 if found else 0))

        _at_once([write, trim])
        left = [event.seq for event in other.events(SPACE, "s", 0, 1000)]
        assert left == list(range(sum(removed) + 1, 121)), "each went once, the oldest first"
        assert backend.check() == []

    def test_sealed_values_are_stored_with_the_events(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        sealed = [(bytes([n]) * 16, b"k" * 16, b"sealed %d" % n) for n in range(3)]
        backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")], sealed)
        backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")], sealed[:1])
        assert backend.sealed([row[0] for row in sealed]) == {row[0]: row[2] for row in sealed}


class KeptRules:
    """Both outlive the process, and are part of a backup."""

    def test_cells_and_events_are_there_after_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "durable")
        revision = _backend(store).swap(SPACE, "a", 0, b"1", 5)
        gone = _backend(store).swap(SPACE, "gone", 0, b"1", 5)
        _backend(store).swap(SPACE, "gone", gone, None, 5)
        _backend(store).emit(SPACE, "s", [NewEvent(7, "t", None, b"body")] * 2)
        store.close()
        backend = _backend(open_store())
        assert _present(backend.cell(SPACE, "a", 9)).revision == revision
        assert [event.seq for event in backend.events(SPACE, "s", 0, 9)] == [1, 2]
        assert backend.swap(SPACE, "gone", 0, b"1", 5) > gone
        assert backend.emit(SPACE, "s", [NewEvent(7, "t", None, b"body")]) == 3

    def test_a_backup_holds_cells_and_events(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "backup")
        backend = _backend(store)
        backend.emit(SPACE, "s", [NewEvent(7, "t", None, b"kept")])
        revision = backend.swap(SPACE, "a", 0, b"kept", 1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "backup")
            backend.backup(path)
            backend.emit(SPACE, "s", [NewEvent(7, "t", None, b"lost")])
            seen = {revision}
            for number in range(5):
                revision = backend.swap(SPACE, "a", revision, b"lost", number)
                seen.add(revision)
            later = backend.swap(SPACE, "later", 0, b"lost", 1)
            backend.restore(path)
        assert [event.body for event in backend.events(SPACE, "s", 0, 9)] == [b"kept"]
        cell = _present(backend.cell(SPACE, "a", 1))
        assert cell.value == b"kept"
        assert cell.revision not in seen, "whoever held the cell before holds it no more"
        for expected in seen:
            with raises(StaleCell):
                backend.swap(SPACE, "a", expected, b"stale", 1)
        assert backend.swap(SPACE, "a", cell.revision, b"on", 1) not in seen
        assert backend.swap(SPACE, "later", 0, b"anew", 1) != later

    def test_cells_come_on_top_of_a_backup(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "backup")
        backend = _backend(store)
        revisions = {name: backend.swap(SPACE, name, 0, b"old", 1) for name in ("a", "b", "gone")}
        backend.swap(SPACE, "gone", revisions["gone"], None, 1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "backup")
            backend.backup(path)
            puts = [PutCell(SPACE, name, b"put \0", 7) for name in ("a", "gone", "new", "\u00e4 '")]
            backend.restore(path, [*puts, PutCell("another space", "a", b"put \0", 7)])
        for space, name in [(SPACE, put.name) for put in puts] + [("another space", "a")]:
            cell = _present(backend.cell(space, name, 1))
            assert cell.value == b"put \0"
            assert cell.revision != revisions.get(name) or space != SPACE
            assert backend.swap(space, name, cell.revision, b"on", 1) > cell.revision
        assert _present(backend.cell(SPACE, "b", 1)).value == b"old"
        names = [name for name, _ in backend.cells(SPACE, "", None, 9)]
        assert names == sorted(["a", "b", "gone", "new", "\u00e4 '"])

    def test_a_closed_store_refuses(self, open_store: OpenStore) -> None:
        store = open_store()
        backend = _backend(store)
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: backend.cell(SPACE, "a", 0),
            lambda: backend.swap(SPACE, "a", 0, b"", 0),
            lambda: backend.cells(SPACE, "", None, 1),
            lambda: backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")]),
            lambda: backend.events(SPACE, "s", 0, 1),
            lambda: backend.streams(SPACE, "", None, 1),
            lambda: backend.trim_stream(SPACE, "s", 1),
        ]
        for call in calls:
            with raises(EverthreadError):
                call()


class CellAndStreamRules(CellRules, StreamRules, KeptRules):
    """All of them."""


def _backend(store: Any) -> Any:
    return store.core.backend


def _present(cell: Cell | None) -> Cell:
    assert cell is not None
    return cell


def _events_of_clocks_that_disagree(rng: random.Random) -> list[NewEvent]:
    """Mostly in the order of time; some late, one from a clock that is far ahead."""
    made = []
    for number in range(100):
        at_us = number * 10 + rng.choice([0, 0, 0, -35, 12])
        if number == 60:
            at_us = 10**12
        made.append(
            NewEvent(at_us, rng.choice(["created", "done"]), rng.choice([None, "a", "b", ""]), b"%d" % number)
        )
    return made


def _matches(event: StoredEvent, query: dict[str, Any]) -> bool:
    return (
        query["type"] in {None, event.type}
        and query["agent"] in {None, event.agent}
        and (query["since_us"] is None or event.at_us >= query["since_us"])
        and (query["until_us"] is None or event.at_us <= query["until_us"])
    )


def _at_once(work: Sequence[Callable[[], object]]) -> None:
    """Run all of it in threads of execution; what one raises is raised here."""
    problems: list[BaseException] = []

    def guarded(each: Callable[[], object]) -> None:
        try:
            each()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
