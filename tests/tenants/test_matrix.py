"""The matrix of :mod:`tests.tenants.matrix` on every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.events.sync.stream import EventStream
from everthread.records.opening import open_memory
from everthread.threads.sync.thread import Thread
from tests.servers.colours import Url
from tests.tenants.matrix import (
    EVENTS,
    EVENTS_APART,
    NAME,
    NAMESPACES,
    STORE,
    STORE_APART,
    THREAD,
    THREAD_APART,
    leaks,
    live,
)

Open = Callable[[str], everthread.Store]


@pytest.fixture(params=["memory", "sqlite", "file", "postgres", "valkey", "postgres async", "valkey async"])
def open_as(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same store as one tenant or the other."""
    kind, _, colour = request.param.partition(" ")
    if kind == "memory":
        backend = open_memory()
        return lambda namespace: everthread.Store(backend, namespace=namespace, keyring="memory:")
    if kind in ("postgres", "valkey"):
        url = request.getfixturevalue(f"{kind}_url")
    else:
        url = f"{kind}://{'/' if kind == 'sqlite' else ''}{tmp_path}/store"
    place = Url(url, colour)
    return lambda namespace: place.open(namespace=namespace, keyring="memory:", durability="process")


@pytest.mark.parametrize(("mine", "theirs"), NAMESPACES)
def test_nothing_of_another_tenant_is_seen(open_as: Open, mine: str, theirs: str, tmp_path: Path) -> None:
    other, store = open_as(theirs), open_as(mine)
    known = live(other)
    before = _content(other)
    store.thread("mine").commit(label="mine")
    assert leaks(store, known, str(tmp_path)) == []
    # Whatever the one did, the other's is as it was.
    assert _content(other) == before
    assert other.verify().ok
    for each in {other, store}:
        each.close()


def _content(store: everthread.Store) -> Any:
    threads = sorted(found.name for found in store.threads())
    shown = [(name, store.thread(name).state.plain(), list(store.thread(name).messages)) for name in threads]
    events = [event.data for event in store.events(NAME).replay()]
    return shown, events, store.users.get(NAME, "email")


@pytest.mark.parametrize(
    ("kind", "entries", "apart"),
    [
        (everthread.Store, STORE, STORE_APART),
        (Thread, THREAD, THREAD_APART),
        (EventStream, EVENTS, EVENTS_APART),
    ],
)
def test_no_call_is_forgotten(kind: type, entries: dict[str, Any], apart: set[str]) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - entries.keys() - apart == set()
    assert entries.keys() - public == set()


def test_the_matrix_can_fail(tmp_path: Path) -> None:
    """As a control: who opens the other's namespace finds the canary with most calls."""
    backend = open_memory()
    store = everthread.Store(backend, namespace="b", keyring="memory:")
    known = live(store)
    found = leaks(store, known, str(tmp_path))
    assert len({each.partition("(")[0] for each in found}) >= 8, found
