"""The promises of the store contract, on every store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from everthread.errors import LimitError, StoreClosedError, StoreUnavailableError
from everthread.stores.interface import Append, Batch, Feed, Get, Guard, Page, Refused, Span, Trim, run
from tests.contract.stores import (
    EVENT,
    HEAD,
    INDEX,
    KEY,
    REGISTER,
    ROW,
    TABLES,
    accept,
    changes,
    content,
    delete,
    feed,
    get,
    head,
    page,
    put,
    read,
    register,
    row,
    walk,
    write,
)  # fmt: skip

HOSTILE = (
    b"\0", b"\xff", b"\xff" * 1_100, b"'; DROP TABLE entry; --", b'"', b"%s", b"{0}", b"../../etc/passwd",
    "käse".encode(), b"\xf0\x28\x8c\x28", b"*", b"[a-z]", b"a" * 1_100, b"tab", b"a\0b", b"\n", b" ",
)  # fmt: skip


# ── keys and values ──


def test_a_value_is_read_as_it_was_put_and_an_absent_key_as_none(store: Any) -> None:
    big = os.urandom(300_000)
    accept(store, put((row(1), big), (row(2), b""), (head(b"a"), b"x"), (register(b"r"), b"\0\xff")))
    assert get(store, row(2), row(1), row(3), head(b"a"), register(b"r"), head(b"b")) == [
        b"", big, None, b"x", b"\0\xff", None,
    ]  # fmt: skip


def test_names_are_bytes_whatever_they_look_like(store: Any) -> None:
    for table in (HEAD, KEY):
        accept(store, put(*(((table.number, 1, name), name) for name in HOSTILE)))
        assert page(store, table) == [(name, name) for name in sorted(HOSTILE)]
        assert get(store, *((table.number, 1, name) for name in HOSTILE)) == list(HOSTILE)
    accept(store, *(delete((KEY.number, 1, name)) for name in HOSTILE[::2]))
    assert page(store, KEY) == [(name, name) for name in sorted(HOSTILE[1::2])]
    assert len(page(store, HEAD)) == len(HOSTILE), "other tables keep theirs"


def test_owners_and_tables_are_apart_up_to_their_limits(store: Any) -> None:
    keys = [
        (table.number, owner, at)
        for table in (ROW, EVENT)
        for owner in (0, 1, 2, (1 << 63 - table.bits) - 1)
        for at in (1, 2, (1 << table.bits) - 1)
    ]
    accept(store, put(*((key, repr(key).encode()) for key in keys)))
    assert get(store, *keys) == [repr(key).encode() for key in keys]
    for table in (ROW, EVENT):
        for owner in (0, 1, 2, (1 << 63 - table.bits) - 1):
            assert [at for at, _ in page(store, table, owner)] == [1, 2, (1 << table.bits) - 1]
        assert [key[:2] for key in walk(store, table, 2)] == [
            key[1:] for key in keys if key[0] == table.number
        ]
    accept(store, Batch(deletes=(Span(ROW.number, 1),)))
    assert page(store, ROW, 1) == []
    assert len(page(store, ROW, 0)) == len(page(store, ROW, 2)) == len(page(store, EVENT, 1)) == 3


@pytest.mark.parametrize(
    "key",
    [
        (ROW.number, 1, 0), (ROW.number, 1, -1), (ROW.number, 1, 1 << 32), (ROW.number, 1 << 31, 1),
        (EVENT.number, 1 << 27, 1), (EVENT.number, 1, 1 << 36), (KEY.number, 1, b""),
        (KEY.number, 1, b"a" * 1_101), (HEAD.number, 1, b""), (HEAD.number, 1 << 31, b"a"),
        (ROW.number, 1, b"a"), (KEY.number, 1, 1),
    ],
)  # fmt: skip
def test_a_key_outside_its_range_is_refused_with_the_whole_write(store: Any, key: Any) -> None:
    accept(store, put((head(b"a"), b"before"), (row(5), b"before")))
    before = content(store), feed(store)
    with pytest.raises(LimitError, match="outside the range"):
        write(store, put((head(b"a"), b"after")), put((row(5), b"after"), (key, b"x")))
    assert (content(store), feed(store)) == before


def test_reading_outside_the_range_finds_nothing(store: Any) -> None:
    accept(store, put((row(1, 1), b"a"), (row(1, 2), b"b")))
    assert get(store, row(1 << 32, 0), row(-1, 2), row(1, 1 << 31), row((1 << 32) + 1, 1)) == [None] * 4
    assert page(store, ROW, 1, start=-5, stop=1 << 40) == [(1, b"a")]
    assert page(store, ROW, 0, start=1 << 32, stop=1 << 34) == []
    assert page(store, ROW, 1 << 40) == []
    assert write(store, Batch(guards=(Guard(row(1 << 33, 0), None),))) == [0]


# ── pages ──


def test_pages_have_bounds_a_limit_and_a_direction(store: Any) -> None:
    accept(store, put(*((row(at), bytes([at])) for at in range(1, 10))))
    accept(store, put(*(((KEY.number, 1, b"%d" % at), bytes([at])) for at in range(1, 10))))

    def numbers(table: Any, **rest: Any) -> list[int]:
        return [value[0] for _, value in page(store, table, **rest)]

    for table, at in ((ROW, lambda number: number), (KEY, lambda number: b"%d" % number)):
        assert numbers(table, start=at(3), stop=at(6)) == [3, 4, 5]
        assert numbers(table, start=at(3), stop=at(6), reverse=True) == [5, 4, 3]
        assert numbers(table, start=at(3), stop=at(9), limit=2) == [3, 4]
        assert numbers(table, start=at(3), stop=at(9), limit=2, reverse=True) == [8, 7]
        assert numbers(table, start=at(6), stop=at(3)) == numbers(table, start=at(3), stop=at(3)) == []
        assert numbers(table, limit=0) == numbers(table, limit=-1, reverse=True) == []
        assert numbers(table, owner=2) == []


def test_walk_reads_all_owners_in_order_in_pages(store: Any) -> None:
    accept(store, put(*((row(at, owner), b"v") for owner in (3, 1, 2) for at in (2, 1))))
    accept(store, put(*((head(name, owner), b"v") for owner in (3, 1, 2) for name in (b"b", b"a", b"c"))))
    accept(store, delete(head(b"c", 2)))
    for limit in (1, 2, 100):
        assert walk(store, ROW, limit) == [(owner, at, b"v") for owner in (1, 2, 3) for at in (1, 2)]
        names = [(owner, name, b"v") for owner in (1, 2, 3) for name in (b"a", b"b", b"c")]
        assert walk(store, HEAD, limit) == [each for each in names if each[:2] != (2, b"c")]


def test_all_queries_are_answered_as_of_one_moment_with_the_clock(kind: str, store: Any) -> None:
    """Two values are always put together; readers never find them different."""
    stop = threading.Event()

    def put_both() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            accept(store, put((row(1), b"%d" % number), (head(b"a"), b"%d" % number)))

    accept(store, put((row(1), b"0"), (head(b"a"), b"0")))
    thread = threading.Thread(target=put_both)
    thread.start()
    try:
        for _ in range(300):
            (one,), ((_, two),), ((_, _, three),), both = read(
                store, Get([row(1)]), Page(ROW.number, 1, 1, 2, 1), Feed(HEAD.number, 1, b"", 1),
                Get([row(1), head(b"a")]),
            )  # fmt: skip
            assert {one, two, three, *both} == {one}
            first, second = get(store, row(1), head(b"a"))
            assert first == second
    finally:
        stop.set()
        thread.join()
    assert run(store.read([]))[1] > 1_600_000_000_000_000


# ── guards ──


def test_a_guard_compares_a_prefix_or_absence_or_presence(store: Any) -> None:
    for key in (head(b"a"), register(b"a"), row(1)):
        for prefix, absent, present in ((None, True, False), (b"", False, True), (b"va", False, True),
                                        (b"value", False, True), (b"value!", False, False),
                                        (b"x", False, False)):  # fmt: skip
            guard = Guard(key, prefix)
            for stored, expected in ((None, absent), (b"value", present)):
                accept(store, delete(key) if stored is None else put((key, stored)))
                (outcome,) = write(store, Batch((guard,), (((KEY.number, 1, b"mark"), b"x"),)))
                assert outcome == (0 if expected else Refused(guard, stored))
                assert get(store, (KEY.number, 1, b"mark")) == [b"x" if expected else None]
                accept(store, delete((KEY.number, 1, b"mark")))


def test_the_first_failing_guard_is_reported_and_nothing_is_written(store: Any) -> None:
    accept(store, put((head(b"a"), b"1"), (row(1), b"1"), (register(b"lease"), b"token-1")))
    before = content(store), feed(store)
    guards = Guard(head(b"a"), b"1"), Guard(register(b"lease"), b"token-2"), Guard(row(1), None)
    batch = Batch(
        guards, ((head(b"a"), b"2"), (row(2), b"2")), (Span(ROW.number, 1),), Append(EVENT.number, 1, [b"e"])
    )
    assert write(store, batch) == [Refused(guards[1], b"token-1")]
    assert (content(store), feed(store)) == before


@pytest.mark.parametrize("lease", [None, b"token", b"other"])
@pytest.mark.parametrize("key", [None, "new", "used"])
@pytest.mark.parametrize("parent", [b"hash-1", b"hash-0"])
def test_the_hot_path_keeps_every_promise(
    store: Any, lease: bytes | None, key: str | None, parent: bytes
) -> None:
    """A commit: the head guarded and replaced, a row, perhaps a lease that is held, perhaps a new entry."""
    used = (KEY.number, 1, b"used")
    accept(store, put((head(b"a"), b"hash-1, and more"), (register(b"lease"), b"token, nonce"), (used, b"1")))
    guards, puts = [Guard(head(b"a"), parent)], [(head(b"a"), b"hash-2"), (row(1), b"row")]
    expected: Any = 0
    if parent != b"hash-1":
        expected = Refused(guards[0], b"hash-1, and more")
    if lease is not None:
        guards.append(Guard(register(b"lease"), lease))
        if expected == 0 and lease != b"token":
            expected = Refused(guards[-1], b"token, nonce")
    if key is not None:
        guards.append(Guard((KEY.number, 1, key.encode()), None))
        puts.append(((KEY.number, 1, key.encode()), b"2"))
        if expected == 0 and key == "used":
            expected = Refused(guards[-1], b"1")
    before, (stamp,) = content(store), [entry[0] for entry in feed(store)]
    for group in (1, 3):
        others = [put((row(at, 9), b"x")) for at in range(1, group)]
        outcome, *rest = write(store, Batch(guards, puts), *others)
        assert (outcome, rest) == (expected, [0] * (group - 1))
        if isinstance(expected, Refused):
            accept(store, Batch(deletes=(Span(ROW.number, 9),)))
            assert content(store) == before
        else:
            assert get(store, head(b"a"), row(1)) == [b"hash-2", b"row"]
            assert [entry[1:] for entry in feed(store, stamp)] == [(b"a", b"hash-2")]
            expected = Refused(guards[0], b"hash-2")
            before = content(store)


def test_an_entry_of_a_commit_replaces_one_that_is_there(store: Any) -> None:
    entry = KEY.number, 1, b"e"
    accept(store, put((head(b"a"), b"1"), (entry, b"old")))
    accept(store, Batch((Guard(head(b"a"), b"1"),), ((head(b"a"), b"2"), (row(1), b"r"), (entry, b"new"))))
    accept(store, Batch((Guard(head(b"a"), b"2"),), ((head(b"a"), b"3"), (row(1), b"s"), (entry, b"newer"))))
    assert get(store, entry, row(1), head(b"a")) == [b"newer", b"s", b"3"]


def test_a_guard_on_a_deleted_key_of_a_followed_table_finds_it_absent(store: Any) -> None:
    accept(store, put((head(b"a"), b"1")), delete(head(b"a")))
    assert write(store, Batch((Guard(head(b"a"), b""),), ((head(b"a"), b"2"), (row(1), b"r")))) == [
        Refused(Guard(head(b"a"), b""), None)
    ]
    accept(store, Batch((Guard(head(b"a"), None),), ((head(b"a"), b"2"), (row(1), b"r"))))
    assert get(store, head(b"a"), row(1)) == [b"2", b"r"]


def test_batches_of_a_write_are_applied_in_order_and_each_on_its_own_terms(store: Any) -> None:
    def claim(name: bytes, value: bytes) -> Batch:
        return Batch((Guard(head(name), None),), ((head(name), value), (row(1), value)))

    def advance(name: bytes, old: bytes, new: bytes) -> Batch:
        return Batch((Guard(head(name), old),), ((head(name), new), (row(2), new)))

    outcomes = write(
        store, claim(b"a", b"1"), claim(b"a", b"2"), advance(b"a", b"1", b"3"), advance(b"a", b"1", b"4"),
        claim(b"b", b"5"), advance(b"a", b"3", b"6"),
    )  # fmt: skip
    assert outcomes == [
        0, Refused(Guard(head(b"a"), None), b"1"), 0, Refused(Guard(head(b"a"), b"1"), b"3"), 0, 0,
    ]  # fmt: skip
    assert get(store, head(b"a"), head(b"b"), row(1), row(2)) == [b"6", b"5", b"5", b"6"]
    assert write(store) == []


def test_deletes_come_before_puts_and_puts_before_the_append(store: Any) -> None:
    accept(store, put((row(1), b"old"), (row(2), b"old"), (head(b"a"), b"old")))
    batch = Batch(
        puts=((row(2), b"new"), (head(b"a"), b"new"), ((EVENT.number, 1, 7), b"seven")),
        deletes=(Span(ROW.number, 1), Span(HEAD.number, 1)),
        append=Append(EVENT.number, 1, [b"eight"]),
    )
    assert write(store, batch) == [8]
    assert page(store, ROW) == [(2, b"new")]
    assert [entry[1:] for entry in feed(store)] == [(b"a", b"new")]


def test_a_span_deletes_within_its_bounds_only(store: Any) -> None:
    for table, at in ((ROW, lambda number: number), (KEY, lambda number: b"%d" % number)):
        for start, stop, left in ((3, 5, [1, 2, 5, 6]), (None, 3, [3, 4, 5, 6]), (5, None, [1, 2, 3, 4]),
                                  (None, None, []), (5, 3, [1, 2, 3, 4, 5, 6])):  # fmt: skip
            accept(store, put(*(((table.number, 1, at(n)), bytes([n])) for n in range(1, 7))))
            span = Span(table.number, 1, start and at(start), stop and at(stop))
            accept(store, Batch(deletes=(span,)))
            assert [value[0] for _, value in page(store, table)] == left
            accept(store, Batch(deletes=(Span(table.number, 1),)))


# ── append ──


def test_append_numbers_values_without_gaps_and_enters_their_names(store: Any) -> None:
    def append(*values: bytes, names: Any = ()) -> Batch:
        return Batch(append=Append(EVENT.number, 1, values, INDEX.number, names))

    assert write(store, append(b"a", b"b", names=[[b"x"], [b"x", b"y"]]), append(b"c", names=[[]])) == [1, 3]
    assert write(store, append(b"d"), append(), append(b"e")) == [4, 0, 5]
    assert page(store, EVENT) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d"), (5, b"e")]
    number = [at.to_bytes(8, "big") for at in range(3)]
    assert page(store, INDEX) == [(b"x" + number[1], b""), (b"x" + number[2], b""), (b"y" + number[2], b"")]
    accept(store, Batch(deletes=(Span(EVENT.number, 1, 1, 5),)))
    assert write(store, append(b"f")) == [6], "numbers continue after the highest one that is left"
    assert write(store, Batch(append=Append(EVENT.number, 2, [b"other"]))) == [1]


def test_an_append_beyond_the_range_writes_nothing(store: Any) -> None:
    last = (1 << EVENT.bits) - 1
    accept(store, put(((EVENT.number, 1, last - 1), b"x")))
    accept(store, Batch(append=Append(EVENT.number, 1, [b"last"])))
    before = content(store)
    for append in (
        Append(EVENT.number, 1, [b"more"]),
        Append(EVENT.number, 2, [b"x"], INDEX.number, [[b"n" * 1_100]]),
    ):
        with pytest.raises(LimitError):
            write(store, put((row(1), b"x")), Batch(append=append))
    assert content(store) == before
    assert page(store, EVENT, 2) == []


# ── the feed ──


def test_the_feed_holds_each_key_once_under_its_newest_stamp(store: Any) -> None:
    accept(store, put((head(b"a"), b"1"), (head(b"b"), b"1")), put((head(b"c"), b"1")))
    accept(store, put((head(b"a"), b"2")))
    accept(store, delete(head(b"b")))
    forward = feed(store)
    assert [entry[1:] for entry in forward] == [(b"c", b"1"), (b"a", b"2"), (b"b", None)]
    stamps = [entry[0] for entry in forward]
    assert stamps == sorted(set(stamps))
    assert feed(store, reverse=True) == forward[::-1]
    assert feed(store, stamps[0]) == forward[1:]
    assert feed(store, stamps[2], reverse=True) == forward[1::-1]
    assert feed(store, limit=2) == forward[:2]
    assert feed(store, limit=2, reverse=True) == forward[:0:-1]
    assert feed(store, stamps[2]) == feed(store, stamps[0], reverse=True) == feed(store, owner=2) == []
    assert feed(store, b"\xff" * 8) == feed(store, b"\xff" * 20) == []


def test_deleting_what_is_not_there_or_already_deleted_adds_nothing_to_the_feed(store: Any) -> None:
    accept(store, put((head(b"a"), b"1")), delete(head(b"a")))
    before = feed(store)
    accept(store, delete(head(b"a")), delete(head(b"b")), Batch(deletes=(Span(HEAD.number, 1),)))
    assert feed(store) == before


def test_pages_of_one_over_a_write_of_many_batches_miss_nothing(store: Any) -> None:
    names = [b"%02d" % number for number in range(64)]
    accept(store, *(put((head(name), name)) for name in names))
    accept(store, Batch(deletes=(Span(HEAD.number, 1, b"10", b"20"),)))
    assert [at for _, at, _ in changes(store, 1)] == names[:10] + names[20:] + names[10:20]
    accept(store, put(*((head(name), b"2") for name in names[::-1])))
    assert [at for _, at, _ in changes(store, 1)] == names[::-1]


def test_stamps_never_repeat(store: Any) -> None:
    seen: set[bytes] = set()

    def new(*batches: Batch) -> None:
        newest = max(seen, default=b"")
        accept(store, *batches)
        stamps = {entry[0] for entry in feed(store, newest)}
        assert stamps, "a reader who continues from the newest stamp sees the change"
        assert not stamps & seen
        seen.update(stamps)

    def trim(up_to: bytes) -> Batch:
        return Batch(trims=(Trim(HEAD.number, 1, up_to),))

    new(put((head(b"a"), b"1")))
    new(delete(head(b"a")))
    accept(store, trim(max(seen)))
    assert feed(store) == []
    new(put((head(b"a"), b"2")))
    new(delete(head(b"a")), put((head(b"b"), b"1")))
    accept(store, trim(b"\xff" * 8))
    assert [entry[1:] for entry in feed(store)] == [(b"b", b"1")]
    new(delete(head(b"b")))
    accept(store, trim(b"\xff" * 8), trim(b"\xff" * 8))
    assert feed(store) == feed(store, reverse=True) == walk(store, HEAD, 10) == page(store, HEAD) == []
    new(put((head(b"c"), b"1")))
    accept(
        store,
        put(
            (
                head(b"c"),
                b"1",
            ),
            (head(b"x", 2), b"1"),
        ),
    )


def test_trim_removes_old_tombstones_only(store: Any) -> None:
    accept(store, put(*((head(name), b"1") for name in (b"a", b"b", b"c"))), put((head(b"x", 2), b"1")))
    accept(store, delete(head(b"a")), delete(head(b"x", 2)), delete(head(b"b")))
    (first,) = [stamp for stamp, at, _ in feed(store) if at == b"a"]
    accept(store, Batch(trims=(Trim(HEAD.number, 1, first),)))
    assert [entry[1:] for entry in feed(store)] == [(b"c", b"1"), (b"b", None)]
    assert [entry[1:] for entry in feed(store, owner=2)] == [(b"x", None)]


# ── waiting ──


def test_wait_returns_at_once_if_something_differs(store: Any) -> None:
    accept(store, put((head(b"a"), b"1"), (row(1), b"1")))
    (stamp,) = [entry[0] for entry in feed(store)]
    assert run(store.wait({row(1): b"0"}, {}, 60))
    assert run(store.wait({row(1): None}, {}, 60))
    assert run(store.wait({row(2): b"1"}, {}, 60))
    assert run(store.wait({}, {(HEAD.number, 1): b""}, 60))
    assert not run(store.wait({row(1): b"1", row(2): None}, {(HEAD.number, 1): stamp}, 0))
    assert not run(store.wait({}, {(HEAD.number, 7): b""}, 0.01))


@pytest.mark.parametrize("change", ["put", "delete", "append", "feed"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_wait_is_woken_by_a_change(
    request: pytest.FixtureRequest, store: Any, change: str, elsewhere: bool
) -> None:
    writer = request.getfixturevalue("again")() if elsewhere else store
    accept(store, put((row(1), b"1"), (head(b"a"), b"1")))
    (stamp,) = [entry[0] for entry in feed(store)]
    awaited: dict[str, tuple[Any, Any, Batch]] = {
        "put": ({row(1): b"1"}, {}, put((row(1), b"2"))),
        "delete": ({row(1): b"1", row(9): None}, {}, Batch(deletes=(Span(ROW.number, 1),))),
        "append": ({(EVENT.number, 1, 1): None}, {}, Batch(append=Append(EVENT.number, 1, [b"e"]))),
        "feed": ({}, {(HEAD.number, 1): stamp}, put((head(b"b"), b"1"))),
    }
    keys, feeds, batch = awaited[change]
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(run(store.wait(keys, feeds, 60))))
    thread.start()
    accept(writer, put((row(5, 8), b"unrelated")), batch)
    thread.join(60)
    assert woken == [True]


def test_closing_ends_a_wait(store: Any) -> None:
    errors: list[BaseException] = []
    accept(store, put((row(1), b"1")))

    def wait() -> None:
        try:
            while True:
                run(store.wait({row(1): b"1"}, {}, 60))
        except StoreClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    run(store.close())
    thread.join(60)
    assert len(errors) == 1


# ── the store as a whole ──


def test_usage_counts_values_and_bytes_of_an_owner_and_of_all(store: Any) -> None:
    accept(store, put((row(1), b"12345"), (row(1, 2), b"1"), (head(b"abc"), b"12"), (head(b"gone"), b"x")))
    accept(store, delete(head(b"gone")), put(((KEY.number, 1, b"key"), b"")))
    of_one = run(store.usage(1))
    assert set(of_one) == {table.name for table in TABLES}
    assert {name: size for name, size in of_one.items() if size[0]} == {
        "row": (1, 5), "head": (1, 5), "commit_key": (1, 3),
    }  # fmt: skip
    assert run(store.usage(None))["row"] == (2, 6)
    assert run(store.usage(None))["register"] == (0, 0)


def test_check_purge_and_flush_find_a_sound_store_and_leave_it_so(store: Any) -> None:
    accept(store, put((row(1), b"1"), (head(b"a"), b"1"), durable=False))
    before = content(store)
    run(store.flush())
    assert run(store.check()) == []
    assert run(store.purge(60)).waiting == ()
    assert content(store) == before
    assert run(store.check()) == []


def test_a_closed_store_says_so_and_may_be_closed_again(store: Any) -> None:
    run(store.close())
    run(store.close())
    calls: list[Callable[[], Any]] = [
        lambda: read(store, Get([row(1)])), lambda: write(store, put((row(1), b"x"))),
        lambda: run(store.walk(1, None, 1)), lambda: run(store.check()), lambda: run(store.usage(None)),
        lambda: run(store.purge(0)), lambda: run(store.flush()),
        lambda: run(store.wait({row(1): b""}, {}, 0)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreClosedError, match="closed"):
            call()


def test_a_child_made_by_fork_is_told_to_open_the_store_itself(store: Any) -> None:
    accept(store, put((row(1), b"1")))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (lambda: get(store, row(1)), lambda: write(store, put((row(1), b"2")))):
                with pytest.raises((StoreClosedError, StoreUnavailableError), match="fork"):
                    call()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert get(store, row(1)) == [b"1"]


def test_what_was_written_is_there_when_the_store_is_opened_again(
    store: Any, again: Callable[[], Any]
) -> None:
    accept(store, put((row(1), b"1"), (head(b"a"), b"1")), put((head(b"b"), b"1")), delete(head(b"a")))
    before = content(store), feed(store)
    other = again()
    assert (content(other), feed(other)) == before
    run(store.close())
    run(other.close())
    last = again()
    assert (content(last), feed(last)) == before
    accept(last, put((head(b"c"), b"1")))
    assert feed(last, before[1][-1][0])[0][1:] == (b"c", b"1")


def test_registers_live_beside_heads_of_the_same_name(store: Any) -> None:
    accept(store, put((head(b"a"), b"head"), (register(b"a"), b"register"), ((KEY.number, 1, b"a"), b"key")))
    accept(store, delete(register(b"a")))
    assert get(store, head(b"a"), register(b"a"), (KEY.number, 1, b"a")) == [b"head", None, b"key"]
    assert page(store, REGISTER) == []
