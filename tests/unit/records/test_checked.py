"""A value that isn't the one that was stored under its key is never taken for it."""

from __future__ import annotations

import pytest

from everthread.errors import StateCorruptedError
from everthread.records.checked import DAMAGED, CheckedStore, seal, unseal
from everthread.records.tables import EVENT, EVENT_INDEX, HEAD, REGISTER, ROW, TABLES
from everthread.stores.interface import Append, Batch, Get, Guard, Key, Page, Refused, run
from everthread.stores.memory_store import MemoryStore

KEYS: list[Key] = [
    (ROW.number, 7, 3),
    (ROW.number, 7, 4),
    (ROW.number, 8, 3),
    (HEAD.number, 7, b"name"),
    (HEAD.number, 7, b"names"),
    (REGISTER.number, 7, b"name"),
    (EVENT.number, 7, 3),
    (EVENT.number, 8, 3),
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("content", [b"", b"some content"])
def test_every_changed_byte_is_noticed(key: Key, content: bytes) -> None:
    stored = seal(key, content)
    assert stored.startswith(content)
    assert unseal(key, stored) == content
    for index in range(len(stored)):
        for bit in range(8):
            wrong = bytearray(stored)
            wrong[index] ^= 1 << bit
            assert unseal(key, bytes(wrong)) is DAMAGED
    assert all(unseal(key, stored[:length]) is DAMAGED for length in range(len(stored)))


def test_a_value_under_another_key_is_damaged() -> None:
    for key in KEYS:
        for other in KEYS:
            if key != other:
                assert unseal(other, seal(key, b"content")) is DAMAGED


def test_a_reader_raises_or_is_given_a_marker() -> None:
    store = MemoryStore(TABLES)
    checked = CheckedStore(store)
    good, bad = (ROW.number, 1, 1), (ROW.number, 1, 2)
    run(checked.write([Batch(puts=[(good, b"good"), (bad, b"bad")])]))
    run(store.write([Batch(puts=[(bad, b"other bytes")])]))
    with pytest.raises(StateCorruptedError, match="row 1/2 is damaged"):
        run(checked.get(good, bad))
    with pytest.raises(StateCorruptedError, match="row 1/2 is damaged"):
        run(checked.page(ROW.number, 1, 1, 9, 9))
    queries = [Get([good, bad]), Page(ROW.number, 1, 1, 9, 9)]
    marked = run(checked.read(queries, mark=True))
    assert marked == [[b"good", DAMAGED], [(1, b"good"), (2, DAMAGED)]]
    assert [content for _, _, content in run(checked.walk(ROW.number, None, 9))] == [b"good", DAMAGED]


def test_guards_and_refusals_speak_of_contents() -> None:
    checked = CheckedStore(MemoryStore(TABLES))
    key = (HEAD.number, 1, b"name")
    assert run(checked.write_one(Batch([Guard(key, None)], [(key, b"content")]))) == 0
    refused = run(checked.write_one(Batch([Guard(key, b"contents")], [(key, b"new")])))
    assert isinstance(refused, Refused)
    assert refused.value == b"content"
    assert run(checked.write_one(Batch([Guard(key, b"content")], [(key, b"new")]))) == 0
    assert run(checked.get(key)) == [b"new"]


def test_appended_values_are_checked_too() -> None:
    store = MemoryStore(TABLES)
    checked = CheckedStore(store)
    append = Append(EVENT.number, 5, [b"one", b"two"], EVENT_INDEX.number, [[b"x"], [b"y"]])
    assert run(checked.write_one(Batch(append=append))) == 1
    assert run(checked.page(EVENT.number, 5, 1, 9, 9)) == [(1, b"one"), (2, b"two")]
    assert [content for _, content in run(checked.page(EVENT_INDEX.number, 5, b"", b"\xff", 9))] == [b"", b""]
    run(store.write([Batch(puts=[((EVENT.number, 5, 2), b"something")])]))
    with pytest.raises(StateCorruptedError, match="event 5/2"):
        run(checked.page(EVENT.number, 5, 1, 9, 9))
