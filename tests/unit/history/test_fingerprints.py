"""Whether an id's fingerprint is among many: the same answer with a filter and without."""

from __future__ import annotations

import random

from everthread.history.logs import _LOOKS, _SMALL, Prints


def test_the_filter_is_made_when_it_pays_and_changes_no_answer() -> None:
    seed = 7
    rng = random.Random(seed)
    prints = [rng.randbytes(4) for _ in range(8 * _SMALL)]
    # One that is there twice, and one that is only there across two items.
    prints[100] = prints[3000] = b"\x01\x02\x03\x04"
    prints[200:202] = [b"\x09\x09\x05\x06", b"\x07\x08\x09\x09"]
    row = Prints(bytearray(b"".join(prints)))
    asked = [rng.choice(prints) if rng.random() < 0.5 else rng.randbytes(4) for _ in range(4 * _LOOKS)]
    asked += [b"\x01\x02\x03\x04", b"\x05\x06\x07\x08"]
    for number, wanted in enumerate([*asked, *asked]):
        assert row._filtered == (0 if number <= _LOOKS else 4 * len(prints)), seed
        expected = [at for at in range(len(prints) - 1, -1, -1) if prints[at] == wanted]
        assert list(row.search(wanted, 10)) == [10 + at for at in expected], seed
    assert list(row.search(b"\x01\x02\x03\x04", 0, 3000)) == [100]


def test_what_is_added_later_is_found() -> None:
    row = Prints(bytearray(b"\x00\x00\x00\x02" * 2 * _SMALL))
    for number in range(3 * _LOOKS):
        wanted = b"\x00\x01" + number.to_bytes(2, "big")
        assert list(row.search(wanted, 0)) == []
        row.add(wanted)
        assert list(row.search(wanted, 0)) == [2 * _SMALL + number]
