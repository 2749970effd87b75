"""The erasure ledger, the sealed values of a key, and what is left of their bytes: verb by verb."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from everthread.codec import records
from everthread.errors import EverthreadError
from everthread.history.chain import genesis, link, record_digest
from everthread.stores.contract import DELTA, KeyErased, Line, NewEvent, NewRow, SealedRow
from everthread.stores.erasures import DELETED, DESTROYED, FINISHED, NOTED, PURGED, ErasedKey
from everthread.testing.rules.expecting import OpenStore, needs, raises

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
    return store._core.backend


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
