"""Erasing people, as callers see it: who is erased can't be read again, everybody else stays as they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from everthread.codec import records
from everthread.errors import (
    ErasedError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    LegalHoldError,
    SealError,
)
from everthread.history.chain import genesis, link, record_digest
from everthread.keyring.keyring import MemoryKeyring
from everthread.people.users import UserStore
from everthread.store import Store
from everthread.stores.contract import (
    DELETED,
    DELTA,
    DESTROYED,
    FINISHED,
    NOTED,
    PURGED,
    ErasedKey,
    KeyErased,
    Line,
    NewEvent,
    NewRow,
    SealedRow,
)
from everthread.testing.rules.expectations import OpenStore, commit, message, needs, raises
from everthread.values import Erased, Personal


class ErasedPeopleRules:
    def test_erased_values_read_as_erased_everywhere(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        first = _tell(thread, 0)
        fork = thread.fork("b", at=first)
        _tell(thread, 1)
        _tell(fork, 2)
        store.events("s").append("t", {"who": Personal("ann", "Ann"), "of": Personal("bob", "Bob")})
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("bob", "city", "Rome")
        preview = store.erase("ann", dry_run=True)
        assert (preview.dry_run, preview.user_values) == (True, users.kept)
        assert preview.sealed_values == 8 + users.kept, "three versions with two, one of both, an event"
        assert thread.state["ann"].value == "ann 1", "a preview changes nothing"
        report = store.erase("ann")
        assert report
        assert (report.sealed_values, report.user_values) == (8 + users.kept, users.kept)
        assert report.is_signed()
        for name in ("a", "b"):
            for handle in (thread if name == "a" else fork, store.thread(name)):
                for version in handle.history(limit=None):
                    past = handle.at(version)
                    number = past.state["number"]
                    assert isinstance(past.state["ann"], Erased)
                    assert isinstance(past.state["both"], Erased), "sealed under both keys"
                    assert past.state["bob"].value == f"bob {number}"
                    assert not past.messages[-1]["content"]
                handle.diff(first, handle.head)
        merged = store.thread("a").merge(store.thread("b"), resolve="ours")
        assert merged.version is not None
        (event,) = store.events("s").replay()
        assert isinstance(event.data["who"], Erased)
        assert event.data["of"].value == "Bob"
        assert users.get("ann", "city") is None
        assert users.get("bob", "city") == users.known("Rome")

    def test_who_comes_back_begins_anew(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        _tell(thread, 0)
        for number in range(1, 4):
            report = store.erase("ann")
            assert report
            again = store.erase("ann")
            assert again, "nothing is left to do"
            assert again.key_ids == ()
            _tell(thread, number)
            assert thread.state["ann"].value == f"ann {number}"
            assert isinstance(thread.at(1).state["ann"], Erased)
        assert len(store.core.backend.erasures()) == 3

    def test_what_was_read_before_can_t_be_stored_again(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store, other = open_store(keyring=keyring), open_store(keyring=keyring)
        if not store.capabilities.durable:
            other = store
        thread = store.thread("a")
        _tell(thread, 0)
        kept, unread = thread.state["ann"], store.thread("a").state["ann"]
        assert kept.value == "ann 0"
        late, overwriting = other.thread("a"), store.thread("c")
        late.state["copy"] = late.state["ann"]
        overwriting.state["x"] = Personal("ann", "soon gone")
        overwriting.state["x"] = "nothing"
        overwriting.messages.append(message("m", Personal("ann", "taken back")))
        overwriting.messages.truncate_from("m")
        assert store.erase("ann")
        with raises(ErasedError):
            late.commit()
        late.state["copy"] = "something else"
        commit(late)
        assert overwriting.commit() is not None, "nothing of hers is part of it"
        assert overwriting.state.plain() == {"x": "nothing"}
        fresh = store.thread("d")
        with raises(SealError):
            fresh.state["copy"] = kept
        with raises(SealError):
            unread.value  # noqa: B018 - it is what raises
        # What reads as erased may be copied: there is nothing in it.
        fresh.state["copy"] = store.thread("a").state["ann"]
        commit(fresh)
        assert isinstance(store.thread("d").state["copy"], Erased)

    def test_a_legal_hold_keeps_and_is_recorded(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        _tell(thread, 0)
        with raises(InvalidStateError):
            store.release_hold("ann")
        with raises(InvalidValueError):
            store.hold("ann", " ")
        store.hold("ann", "case 17")
        assert store.erase("ann", dry_run=True).held == "case 17"
        for _ in range(2):
            with raises(LegalHoldError) as caught:
                store.erase("ann")
            assert caught[0].reason == "case 17"
            assert caught[0].since_us > 0
        assert thread.state["ann"].value == "ann 0"
        assert store.core.backend.erasures() == []
        assert store.erase("bob"), "it holds for her alone"
        store.release_hold("ann", "case closed")
        assert store.erase("ann")
        with raises(InvalidStateError):
            store.release_hold("ann")
        store.hold("ann", "she came back")
        with raises(LegalHoldError):
            store.erase("ann")

    def test_a_hold_on_some_values_keeps_these_alone(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        for name in ("case/1", "case/2", "chat"):
            thread = store.thread(name)
            thread.state["ann"] = Personal("ann", f"ann in {name}")
            thread.state["both"] = Personal(["ann", "bob"], f"both in {name}")
            thread.messages.append({"role": "user", "content": Personal("ann", f"ann says in {name}")})
            thread.commit()
        store.hold("ann", "case 17", threads="case/")
        assert [hold.threads for hold in store.holds()] == [("case/",)]
        report = store.erase("ann")
        assert report
        assert (report.sealed_values, report.stayed) == (3, 6)
        for name in ("case/1", "case/2"):
            thread = store.thread(name)
            assert thread.state["ann"].value == f"ann in {name}"
            assert thread.state["both"].value == f"both in {name}"
            assert thread.messages[0]["content"].value == f"ann says in {name}"
        assert [store.thread("chat").state[k] for k in ("ann", "both")] == [Erased()] * 2
        assert store.thread("chat").messages[0]["content"] == Erased()
        assert store.verify()
        store.release_hold("ann", "case closed")
        last = store.erase("ann")
        assert last
        assert (last.sealed_values, last.stayed) == (6, 0)
        assert store.thread("case/1").state["ann"] == Erased()
        assert store.verify()

    def test_rotated_keys_open_and_are_erased_together(self, open_store: OpenStore) -> None:
        store = open_store(keyring=MemoryKeyring())
        thread = store.thread("a")
        versions = [_tell(thread, 0)]
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("ann", "name", "Ann")
        store.rotate_keys("ann")
        store.rotate_keys()
        versions.append(_tell(thread, 1))
        users.set("ann", "city", "Rome")
        assert users.get("ann", "city") == users.known("Rome")
        assert users.get("ann", "name") == users.known("Ann")
        assert [thread.at(v).state["ann"].value for v in versions] == ["ann 0", "ann 1"]
        report = store.erase("ann")
        assert report
        assert len(report.key_ids) == 2
        assert all(isinstance(thread.at(v).state["ann"], Erased) for v in versions)
        assert thread.state["bob"].value == "bob 1"
        assert users.get("ann", "city") is None

    def test_a_restored_backup_brings_back_everybody_else(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store = open_store(keyring=keyring)
        needs(store, "backup")
        thread = store.thread("a")
        _tell(thread, 0)
        users = _Users(store)
        users.set("ann", "city", "Paris")
        users.set("bob", "city", "Rome")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "copy")
            store.backup(path)
            _tell(thread, 1)
            store.hold("bob", "case 4")
            assert store.erase("ann")
            for _ in range(2):
                store.restore(path)
                read = store.thread("a")
                assert isinstance(read.state["ann"], Erased)
                assert read.state["bob"].value == "bob 0"
                assert users.get("ann", "city") is None
                assert users.get("bob", "city") == users.known("Rome")
                assert store.core.backend.erasures(True) == [], "it has been finished again"
                with raises(LegalHoldError):
                    store.erase("bob")
            _tell(store.thread("a"), 2)
            assert store.thread("a").state["ann"].value == "ann 2"

    def test_an_old_copy_of_the_keyring_brings_nobody_back(self, open_store: OpenStore) -> None:
        keyring = MemoryKeyring()
        store = open_store(keyring=keyring)
        needs(store, "durable")
        thread = store.thread("a")
        _tell(thread, 0)
        old = MemoryKeyring()
        old.take_in(keyring.lend(keyring.held()))
        assert store.erase("ann")
        other = open_store(keyring=old)
        read = other.thread("a")
        assert isinstance(read.state["ann"], Erased)
        assert read.state["bob"].value == "bob 0"
        _tell(read, 1)
        assert read.state["ann"].value == "ann 1", "who comes back gets a new key there as well"
        assert isinstance(read.at(1).state["ann"], Erased)


class _Users:
    """User data of a store, if it has any: only blocking ones do."""

    def __init__(self, store: Any) -> None:
        self._users = UserStore(store) if isinstance(store, Store) else None
        #: How many values are kept of one that was set.
        self.kept = 0 if self._users is None else 1

    def set(self, user: str, key: str, value: Any) -> None:
        if self._users is not None:
            self._users.set(user, key, value)

    def get(self, user: str, key: str) -> Any:
        return None if self._users is None else self._users.get(user, key)

    def known(self, value: Any) -> Any:
        return None if self._users is None else value


def _tell(thread: Any, number: int) -> Any:
    """A version that says something about two people, and about both together."""
    thread.state["number"] = number
    thread.state["ann"] = Personal("ann", f"ann {number}")
    thread.state["bob"] = Personal("bob", f"bob {number}")
    thread.messages.append(message(f"{thread.name} {number}", Personal("ann", "hello " * 50)))
    if "both" not in thread.state:
        thread.state["both"] = Personal(["bob", "ann"], "a secret of two")
    return commit(thread)


# The erasure ledger, the sealed values of a key, and what is left of their bytes: verb by verb.


#: Not the store's own: what is written here isn't what its other parts would write.
SPACE = "contract"
ANN, BOB, EVE = (bytes([number]) * 16 for number in (1, 2, 3))
#: What a purge waits for at most.
PATIENCE_S = 20.0


class ErasureRules:
    def test_a_ledger_is_merged_and_never_shrinks(self, open_store: OpenStore) -> None:
        store = open_store()
        backend = _backend(store)
        assert backend.erasures() == [] == backend.erasures(True)
        assert backend.erased([ANN, BOB]) == set()
        first = ErasedKey(key_id=ANN, phase=NOTED, erasure=b"e" * 16, noted_us=7, note=b"n" * 5000)
        backend.note_erasures([first, ErasedKey(key_id=BOB, phase=DESTROYED)])
        assert backend.erasures() == [first, ErasedKey(key_id=BOB, phase=DESTROYED)]
        assert backend.erased([ANN, EVE, BOB]) == {ANN, BOB}
        late = ErasedKey(key_id=ANN, phase=DELETED, erasure=b"x", noted_us=9, note=b"later")
        backend.note_erasures([late])
        backend.note_erasures([ErasedKey(key_id=ANN, phase=NOTED, note=b"too late")])
        grown = ErasedKey(key_id=ANN, phase=DELETED, erasure=b"e" * 16, noted_us=7, note=b"later")
        assert backend.erasures(True) == [grown, ErasedKey(key_id=BOB, phase=DESTROYED)]
        backend.note_erasures([ErasedKey(key_id=BOB, phase=FINISHED)])
        assert backend.erasures(True) == [grown]
        assert backend.erased([ANN, BOB]) == {ANN, BOB}, "finished ones as well"
        if store.capabilities.durable:
            store.close()
            backend = _backend(open_store())
            # Whoever opens a store goes on with what isn't finished.
            assert [(entry.key_id, entry.erasure) for entry in backend.erasures()] == [
                (ANN, b"e" * 16),
                (BOB, b""),
            ]
            assert all(entry.phase >= DELETED for entry in backend.erasures())
            assert backend.erased([ANN, BOB]) == {ANN, BOB}

    def test_nothing_is_taken_that_is_sealed_under_an_erased_key(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        line = _create(backend, 1, [_sealed(1, ANN)])
        backend.note_erasures([ErasedKey(key_id=ANN, phase=NOTED)])
        calls: list[Callable[[], object]] = [
            lambda: backend.append(line.id, _rows(line, [], [_sealed(2, ANN)])[1]),
            lambda: backend.append(line.id, _rows(line, [], [_sealed(2, BOB), _sealed(3, BOB + ANN)])[1]),
            # One that is there already: its keys count all the same.
            lambda: backend.append(line.id, _rows(line, [], [(_sealed(1, ANN)[0], ANN, b"")])[1]),
            lambda: _create(backend, 2, [_sealed(2, EVE + ANN)]),
            lambda: backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")], [_sealed(2, ANN)]),
        ]
        for call in calls:
            with raises(KeyErased) as caught:
                call()
            assert caught[0].key_ids == {ANN}
        assert backend.sealed([_sealed(n, ANN)[0] for n in (2, 3)]) == {}
        assert backend.find(SPACE, "line 2") is None
        assert backend.events(SPACE, "s", 0, 9) == []
        backend.append(line.id, _rows(line, [], [_sealed(2, BOB)])[1])
        backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")], [_sealed(3, EVE)])
        assert len(backend.sealed([_sealed(n, BOB)[0] for n in (1, 2, 3)])) == 3

    def test_one_refused_row_doesn_t_hold_up_the_others(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        lines = [_create(backend, n, []) for n in range(3)]
        backend.note_erasures([ErasedKey(key_id=ANN, phase=DESTROYED)])
        values: list[list[SealedRow]] = [[_sealed(1, BOB)], [_sealed(2, ANN)], []]
        rows = [(line.id, _rows(line, [], sealed)[1]) for line, sealed in zip(lines, values, strict=True)]
        answers = backend.append_all(rows)
        assert [type(answer) for answer in answers] == [type(None), KeyErased, type(None)]
        assert [len(backend.scan(line.id, 9, 9)) for line in lines] == [2, 1, 2]

    def test_sealed_values_are_found_and_dropped_by_key(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        of_ann = [_sealed(n, ANN) for n in range(0, 40, 4)]
        shared = [_sealed(n, keys) for n, keys in ((1, ANN + BOB), (2, EVE + BOB + ANN), (201, BOB + ANN))]
        others = [_sealed(n, keys) for n, keys in ((5, BOB), (6, EVE), (7, EVE + BOB))]
        everything = [*of_ann, *shared, *others]
        _create(backend, 1, everything[1::2])
        backend.emit(SPACE, "s", [NewEvent(0, "t", None, b"")], everything[::2])
        expected = sorted(of_ann + shared)
        assert backend.sealed_under([ANN], b"", 100) == expected
        assert backend.sealed_under([ANN], b"", 3) == expected[:3]
        assert backend.sealed_under([ANN], expected[4][0], 100) == expected[5:]
        assert backend.sealed_under([ANN, EVE, BOB], b"", 100) == sorted(everything)
        assert backend.sealed_under(None, b"", 100) == sorted(everything)
        assert backend.sealed_under(None, sorted(everything)[2][0], 3) == sorted(everything)[3:6]
        assert backend.sealed_under([b"\xff" * 16], b"", 9) == [] == backend.sealed_under([], b"", 9)
        assert backend.drop_sealed([b"\xff" * 16]) == 0
        assert backend.drop_sealed([ANN]) == len(expected)
        assert backend.drop_sealed([ANN]) == 0
        assert backend.sealed([row[0] for row in everything]) == {row[0]: row[2] for row in others}
        assert backend.sealed_under([ANN], b"", 9) == []
        assert backend.sealed_under([BOB, EVE], b"", 9) == sorted(others)

    def test_a_purge_leaves_no_bytes(self, open_store: OpenStore) -> None:
        backend = _backend(open_store())
        rows = [(os.urandom(16), ANN, os.urandom(900)) for _ in range(60)]
        kept = [(os.urandom(16), BOB, os.urandom(900)) for _ in range(60)]
        line = _create(backend, 1, [])
        for row in _rows(line, [], *zip(rows, kept, strict=True))[1:]:
            backend.append(line.id, row)
        needles, control = [row[2][100:132] for row in rows], [row[2][100:132] for row in kept]
        before = backend.residues(needles)
        if before.looked:
            assert sum(times for _, times in before.hits) >= len(rows), "as a control, they are found"
            assert sum(size for _, size in before.looked) > 0
        else:
            assert before.unreached, "who can't look anywhere says so"
        told: list[tuple[str, float]] = []
        backend.note_erasures([ErasedKey(key_id=ANN, phase=DESTROYED)])
        assert backend.drop_sealed([ANN]) == len(rows)
        purged = backend.purge(PATIENCE_S, lambda what, part: told.append((what, part)))
        assert purged.waiting == ()
        assert purged.done or purged.unreached
        assert all(what and 0 <= part <= 1 for what, part in told)
        assert backend.residues(needles).hits == ()
        if before.looked:
            assert sum(times for _, times in backend.residues(control).hits) >= len(kept)
        assert backend.sealed([row[0] for row in kept]) == {row[0]: row[2] for row in kept}

    def test_a_restored_backup_brings_nobody_back(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "backup")
        backend = _backend(store)
        rows = [_sealed(n, keys) for n, keys in enumerate((ANN, BOB, EVE, ANN + BOB, EVE + BOB))]
        _create(backend, 1, rows)
        backend.note_erasures([ErasedKey(key_id=EVE, phase=FINISHED, note=b"long ago")])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "copy")
            backend.backup(path)
            ann = ErasedKey(key_id=ANN, phase=PURGED, erasure=b"e" * 16, noted_us=3, note=b"n")
            backend.note_erasures([ann, ErasedKey(key_id=b"n" * 16, phase=NOTED)])
            backend.drop_sealed([ANN, EVE])
            assert backend.purge(PATIENCE_S).waiting == ()
            for _ in range(2):
                backend.restore(path)
                assert [entry.key_id for entry in backend.erasures()] == sorted([ANN, EVE, b"n" * 16])
                phases = {entry.key_id: entry.phase for entry in backend.erasures()}
                # What the backup held of her has to be erased again, thus isn't finished.
                assert phases == {ANN: DESTROYED, EVE: FINISHED, b"n" * 16: NOTED}
                assert {e.key_id: e.erasure for e in backend.erasures(True)}[ANN] == b"e" * 16
                assert backend.sealed([row[0] for row in rows]) == {rows[1][0]: rows[1][2]}
                assert backend.residues([rows[n][2] for n in (0, 2, 3, 4)]).hits == ()
                with raises(KeyErased):
                    _create(backend, 9, [_sealed(9, ANN)])

    def test_erasing_in_a_closed_store_raises(self, open_store: OpenStore) -> None:
        store = open_store()
        backend = _backend(store)
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: backend.note_erasures([ErasedKey(key_id=ANN, phase=NOTED)]),
            backend.erasures,
            lambda: backend.erased([ANN]),
            lambda: backend.sealed_under([ANN], b"", 1),
            lambda: backend.drop_sealed([ANN]),
            lambda: backend.purge(1.0),
        ]
        for call in calls:
            with raises(EverthreadError):
                call()


def _backend(store: Any) -> Any:
    return store.core.backend


def _sealed(number: int, keys: bytes) -> SealedRow:
    return bytes([number]) * 16, keys, bytes([number]) * 3 + b" sealed, more or less " + keys


def _line(number: int) -> Line:
    uid = b"%016d" % number
    return Line(id=0, uid=uid, space=SPACE, name=f"line {number}", root=0, start_hash=genesis(uid))


def _rows(line: Line, *sealed: Sequence[SealedRow]) -> list[NewRow]:
    """Versions of a line in which nothing happens, each with its sealed values."""
    made: list[NewRow] = []
    for seq, values in enumerate(sealed, 1):
        head = records.write_head(records.Head(records.COMMIT, seq))
        body = records.write_record(head, records.write_change(records.Change()), [])
        previous = made[-1].hash if made else line.start_hash
        digest = link(previous, record_digest(body))
        made.append(NewRow(seq, DELTA, previous, digest, body, sealed=tuple(values)))
    return made


def _create(backend: Any, number: int, sealed: Sequence[SealedRow]) -> Line:
    line: Line = backend.create(_line(number), _rows(_line(number), sealed)[0])
    return line
