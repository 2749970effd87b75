"""Searching by metadata doesn't wait for writers: what they keep out of the index is told from the rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import everthread
from everthread import Store, StoreBusyError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process") as opened:
        yield opened


@contextmanager
def writing(tmp_path: Path) -> Iterator[None]:
    """Another writer, in the middle of something."""
    connection = apsw.Connection(f"{tmp_path}/s.db")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def commit(store: Store, name: str, **metadata: object) -> None:
    thread = store.thread(name)
    thread.state["n"] = thread.state.get("n", 0) + 1
    thread.commit(metadata=metadata)


def names(store: Store, prefix: str = "", **metadata: object) -> list[str]:
    return [info.name for info in store.threads(prefix, metadata=metadata)]


def test_found_while_somebody_else_writes(store: Store, tmp_path: Path) -> None:
    commit(store, "a", run=1, by="ann")
    commit(store, "b", run=1, by="bob")
    assert names(store, run=1) == ["a", "b"], "in the index now"
    commit(store, "b", run=2)
    commit(store, "ab", run=1, by="bob")
    commit(store, "c", other=1)
    store.thread("gone").update(lambda draft: draft.__setitem__("n", 1))
    with writing(tmp_path):
        assert names(store, run=1) == ["a", "ab"]
        assert names(store, run=2) == ["b"]
        assert names(store, by="bob") == ["ab", "b"], "newer versions say nothing of it, the index does"
        assert names(store, run=2, by="bob") == ["b"]
        assert names(store, run=2, by="ann") == []
        assert names(store, "ab", run=1) == ["ab"]
    assert names(store, run=1) == ["a", "ab"]
    assert store.core.backend.untagged("") == []


def test_nobody_waits_for_long_for_an_index(store: Store, tmp_path: Path) -> None:
    """Also not for another thread of this process, and who writes is as patient as ever."""
    commit(store, "a", run=1)
    connections = store.core.backend._connections  # type: ignore[attr-defined]
    assert connections._patience_s() == 10
    with writing(tmp_path), pytest.raises(StoreBusyError, match=r"locked for 0\.1 s|busy|locked"):
        store.core.backend.tag(1, 1, {})
    assert connections._patience_s() == 10
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store.core.backend._connections:  # type: ignore[attr-defined]
            holding.set()
            done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holding.wait(60)
        assert names(store, run=1) == ["a"]
    finally:
        done.set()
        holder.join()
    store.core.backend.tag(1, 1, {})
