"""Random batches: every store gives the answers of the memory store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.stores.interface import Append, Batch, Guard, Refused, Span, Trim, run
from everthread.stores.memory_store import MemoryStore
from tests.contract.stores import (
    EVENT,
    HEAD,
    INDEX,
    KEY,
    REGISTER,
    ROW,
    STORES,
    TABLES,
    changes,
    content,
    feed,
    page,
    walk,
    write,
)  # fmt: skip
from tests.crash.workload import memory_directory

OWNERS = st.sampled_from([0, 1, 2])
NUMBERS = st.integers(1, 6)
#: Few names, so that they meet; some of them prefixes of others, or at the ends of the order.
NAMES = st.sampled_from([b"\0", b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff" * 1_100])
VALUES = st.sampled_from([b"", b"h1", b"h12", b"h2", b"\0", b"x" * 5_000])
NUMBERED, NAMED = (ROW, EVENT), (HEAD, KEY, REGISTER, INDEX)
KEYS = st.one_of(
    st.tuples(st.sampled_from([table.number for table in NUMBERED]), OWNERS, NUMBERS),
    st.tuples(st.sampled_from([HEAD.number] * 3 + [table.number for table in NAMED]), OWNERS, NAMES),
)
GUARDS = st.builds(Guard, KEYS, st.sampled_from([None, None, b"", b"h", b"h1", b"h2"]))
SPANS = st.one_of(
    st.builds(
        Span,
        st.sampled_from([table.number for table in NUMBERED]),
        OWNERS,
        st.none() | NUMBERS,
        st.none() | NUMBERS,
    ),
    st.builds(
        Span, st.sampled_from([table.number for table in NAMED]), OWNERS, st.none() | NAMES, st.none() | NAMES
    ),
)


@st.composite
def appends(draw: st.DrawFn) -> Append:
    values = draw(st.lists(VALUES, max_size=3))
    names = draw(
        st.just(()) | st.tuples(*[st.lists(st.sampled_from([b"t", b"u"]), unique=True)] * len(values))
    )
    return Append(EVENT.number, draw(OWNERS), values, INDEX.number, names)


@st.composite
def commits(draw: st.DrawFn) -> Batch:
    """The form that a store may have a path of its own for."""
    head = (HEAD.number, draw(OWNERS), draw(NAMES))
    guards = [Guard(head, draw(st.sampled_from([b"", b"h", b"h1", None])))]
    puts = [(head, draw(VALUES)), ((ROW.number, draw(OWNERS), draw(NUMBERS)), draw(VALUES))]
    if draw(st.booleans()):
        entry = (draw(st.sampled_from([KEY.number, REGISTER.number])), draw(OWNERS), draw(NAMES))
        guards.append(Guard(entry, draw(st.sampled_from([None, b"", b"h"]))))
    if draw(st.booleans()):
        puts.append(((draw(st.sampled_from([KEY.number, EVENT.number])), draw(OWNERS), 0), draw(VALUES)))
        number, owner, _ = puts[-1][0]
        puts[-1] = ((number, owner, draw(NUMBERS if number == EVENT.number else NAMES)), puts[-1][1])
    return Batch(guards, puts)


BATCHES = st.one_of(
    commits(),
    st.builds(
        Batch,
        guards=st.lists(GUARDS, max_size=2),
        puts=st.lists(st.tuples(KEYS, VALUES), max_size=4, unique_by=lambda pair: pair[0]),
        deletes=st.lists(SPANS, max_size=2),
        append=st.none() | appends(),
        trims=st.just(()),
        expiries=st.just(()),
        durable=st.booleans(),
        derived=st.just(False),
        namespace=st.just(0),
        partition=st.just(0),
    ),
)
#: Trims name a stamp by its place in the feed, because stamps differ between stores.
STEPS = st.one_of(
    st.lists(BATCHES, min_size=1, max_size=3),
    st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 5)),
)


def _apply(store: Any, step: Any) -> list[Any]:
    if isinstance(step, list):
        return write(store, *step)
    owner, place = step
    stamps = [entry[0] for entry in feed(store, owner=owner)]
    up_to = stamps[place] if place < len(stamps) else b"\xff" * 8
    return write(store, Batch(trims=(Trim(HEAD.number, owner, up_to),)))


def _answers(store: Any) -> Any:
    """Everything that can be asked, with stamps replaced by their order."""
    found: list[Any] = [content(store)]
    for owner in (0, 1, 2):
        forward, back = feed(store, owner=owner), feed(store, owner=owner, reverse=True)
        stamps = [entry[0] for entry in forward]
        assert stamps == sorted(set(stamps))
        assert changes(store, 1, owner) == changes(store, 3, owner) == forward == back[::-1]
        for place, stamp in enumerate(stamps):
            assert feed(store, stamp, owner=owner) == forward[place + 1 :]
            assert feed(store, stamp, owner=owner, reverse=True, limit=2) == forward[:place][:-3:-1]
        found.append([entry[1:] for entry in forward])
        found.append(run(store.usage(owner)))
        for table in TABLES:
            rows = page(store, table, owner)
            assert page(store, table, owner, reverse=True) == rows[::-1]
            start, stop = (2, 5) if table.numbered else (b"a", b"b")
            within = {"start": start, "stop": stop, "limit": 2}
            found += [page(store, table, owner, reverse=reverse, **within) for reverse in (False, True)]
    assert walk(store, HEAD, 1) == walk(store, HEAD, 100)
    return found


@pytest.mark.parametrize("kind", sorted(set(STORES) - {"memory"}))
@settings(max_examples=150)
@given(steps=st.lists(STEPS, max_size=8))
def test_any_store_answers_like_the_memory_store(kind: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as folder:
        expected, store = MemoryStore(TABLES), STORES[kind](Path(folder))
        stamps: dict[int, set[bytes]] = {0: set(), 1: set(), 2: set()}
        try:
            for step in steps:
                newest = {owner: max(seen, default=b"") for owner, seen in stamps.items()}
                before = content(store)
                outcomes = _apply(store, step)
                assert outcomes == _apply(expected, step)
                if outcomes and all(isinstance(outcome, Refused) for outcome in outcomes):
                    assert content(store) == before
                assert _answers(store) == _answers(expected)
                for owner, seen in stamps.items():
                    fresh = {entry[0] for entry in feed(store, owner=owner)} - seen
                    assert all(stamp > newest[owner] for stamp in fresh), (
                        "a stamp lies before one that was seen"
                    )
                    seen |= fresh
            assert run(store.check()) == []
        finally:
            run(store.close())
