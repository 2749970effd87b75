"""Several processes on one store at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from everthread.stores.interface import Append, Batch, Guard, run
from tests.contract.stores import (
    EVENT,
    HEAD,
    STORES,
    SURVIVING,
    accept,
    changes,
    delete,
    feed,
    get,
    head,
    page,
    put,
    register,
    row,
    write,
)  # fmt: skip

WRITERS, WRITES, NAMES = 8, 25, 10


def _in_children(count: int, work: Any) -> list[int]:
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(number)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    return pids


@pytest.mark.parametrize("kind", SURVIVING)
def test_the_feed_is_final_under_eight_writers(kind: str, tmp_path: Path) -> None:
    """A reader follows the feed while eight processes put and delete: it misses and repeats nothing."""
    run(STORES[kind](tmp_path).close())

    def change(number: int) -> None:
        store = STORES[kind](tmp_path)
        for turn in range(WRITES):
            names = [b"%d" % ((number + turn + step) % NAMES) for step in range(3)]
            accept(store, *(put((head(name), b"%d %d" % (number, turn))) for name in names[:2]))
            if turn % 5 == 0:
                accept(store, delete(head(names[2])))
        run(store.close())

    pids = _in_children(WRITERS, change)
    store = STORES[kind](tmp_path)
    seen: dict[bytes, bytes | None] = {}
    cursor, alive = b"", set(pids)
    while True:
        alive -= {pid for pid in alive if os.waitpid(pid, os.WNOHANG)[0]}
        last = not alive
        for limit in (1, 3, 100):
            entries = feed(store, cursor, limit)
            again = feed(store, cursor)
            if entries:
                end = entries[-1][0]
                earlier = {entry[:2] for entry in again if entry[0] <= end}
                assert earlier <= {(stamp, at) for stamp, at, _ in entries}, (
                    "a change appeared before the end"
                )
                assert entries[0][0] > cursor
                cursor = end
            seen.update((at, value) for _, at, value in entries)
        if last and not feed(store, cursor):
            break
    assert {at: value for at, value in seen.items() if value is not None} == dict(page(store, HEAD))
    assert {at for at, value in seen.items() if value is None} == {
        at for _, at, value in changes(store, 1) if value is None
    }
    run(store.close())


@pytest.mark.parametrize("kind", SURVIVING)
def test_no_guarded_update_and_no_appended_value_is_lost(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    accept(store, put((head(b"a"), b"0000"), (register(b"r"), b"0000")))
    run(store.close())

    def count(number: int) -> None:
        store = STORES[kind](tmp_path)
        for turn in range(WRITES):
            while True:
                one, two = get(store, head(b"a"), register(b"r"))
                assert one is not None
                assert two is not None
                # One by the path of a commit, one by the general path.
                value = b"%04d" % (int(one) + 1)
                commit = Batch((Guard(head(b"a"), one),), ((head(b"a"), value), (row(int(value)), value)))
                other = Batch((Guard(register(b"r"), two),), ((register(b"r"), b"%04d" % (int(two) + 1)),))
                outcomes = write(store, commit if turn % 2 else other)
                if outcomes == [0]:
                    break
            accept(store, Batch(append=Append(EVENT.number, 1, [b"%d %d" % (number, turn)] * 2)))
        run(store.close())

    pids = _in_children(4, count)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    store = STORES[kind](tmp_path)
    commits, others = 4 * (WRITES // 2), 4 * (WRITES - WRITES // 2)
    assert get(store, head(b"a"), register(b"r")) == [b"%04d" % commits, b"%04d" % others]
    assert len(page(store, HEAD)) == 1
    events = page(store, EVENT)
    assert [at for at, _ in events] == list(range(1, 8 * WRITES + 1))
    for number in range(4):
        own = [value for _, value in events if value.startswith(b"%d " % number)]
        assert own == [b"%d %d" % (number, turn) for turn in range(WRITES) for _ in range(2)]
    run(store.close())
