"""A restored backup brings content back, and nothing that must stay as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread.history.packs import Chunk
from everthread.records.file_backend import FileRecordsBackend
from everthread.records.registers import StaleRegister
from everthread.records.tables import TABLES
from everthread.stores.contract import DESTROYED, FINISHED, ErasedKey, NewEvent, PutCell
from everthread.stores.interface import run
from everthread.stores.sqlite.connection import Settings
from everthread.stores.sqlite.ordered_store import SqliteStore
from tests.unit.records.conftest import SPACE, Driver

KEY, VALUE = b"k" * 16, b"v" * 16


class Place:
    """A SQLite file, used by a process that restores and by another one."""

    def __init__(self, folder: Path) -> None:
        self._path, self.backup = f"{folder}/store.db", f"{folder}/backup.db"
        self.stores: list[SqliteStore] = []
        self.backend = FileRecordsBackend(self._open())
        self.other = Driver(self._open())

    def _open(self) -> SqliteStore:
        self.stores.append(SqliteStore(Settings(self._path, durability="process"), TABLES))
        return self.stores[-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.backend.close()
    for store in made.stores:
        run(store.close())


def test_an_erased_person_does_not_come_back(place: Place) -> None:
    place.other.create("a", sealed=((VALUE, KEY, b"ciphertext"),))
    place.backend.backup(place.backup)
    place.backend.note_erasures([ErasedKey(key_id=KEY, phase=FINISHED)])
    assert place.backend.drop_sealed([KEY]) == 1
    place.backend.restore(place.backup)
    assert place.backend.find(SPACE, "a") is not None
    assert place.backend.sealed([VALUE]) == {}
    assert place.backend.sealed_under([KEY], b"", 9) == []
    # What the backup held has to be erased from the files once more.
    assert [entry.phase for entry in place.backend.erasures(unfinished=True)] == [DESTROYED]


def test_a_register_that_was_read_before_is_stale(place: Place) -> None:
    registers, space = place.other.records.registers, run(place.other.records.namespaces.make(SPACE))
    first = run(registers.compare_and_set(space, "lease", 0, b"1", 10))
    assert first is not None
    place.backend.backup(place.backup)
    second = run(registers.compare_and_set(space, "lease", first.revision, b"2", 20))
    assert second is not None
    kept = PutCell("another", "gone", b"run 7", 30)
    place.backend.restore(place.backup, [kept])
    for known in (first, second):
        with pytest.raises(StaleRegister) as stale:
            run(registers.compare_and_set(space, "lease", known.revision, b"3", 30))
        assert stale.value.actual is not None
        assert stale.value.actual.value == b"1"
        assert stale.value.actual.token != known.token
    cell = place.backend.cell("another", "gone", 40)
    assert cell is not None
    assert (cell.value, cell.written_us) == (b"run 7", 30)


def test_another_process_writes_on_under_the_numbers_that_it_knows(place: Place) -> None:
    old = place.other.create("old")
    place.backend.backup(place.backup)
    streams = place.other.records.streams
    space = run(place.other.records.namespaces.make("late"))
    stream = run(streams.make(space, "s"))
    run(streams.append(stream, [NewEvent(1, "t", None, b"lost")]))
    place.other.commit(old, chunks=[Chunk("messages", 0, 1, bytes(4), b"lost")])
    place.backend.restore(place.backup)
    run(streams.append(stream, [NewEvent(2, "t", None, b"new")]))
    place.other.commit(old, chunks=[Chunk("messages", 0, 1, bytes(4), b"new")])
    made = place.other.create("new")
    assert [event.body for event in place.backend.events("late", "s", 0, 9)] == [b"new"]
    assert [chunk.data for chunk in place.backend.chunks(old.number, "messages", 0, 9)] == [b"new"]
    found = place.backend.find(SPACE, "new")
    assert found is not None
    assert found.line.id == made.number
