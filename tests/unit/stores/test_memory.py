"""The store in memory, as its users see it."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidValueError, StoreClosedError, UnsupportedError
from everthread.records.opening import open_memory
from everthread.stores.contract import DELTA, Line, NewRow


def test_two_memory_stores_share_nothing() -> None:
    one, two = everthread.open("memory:"), everthread.open("memory:")
    thread = one.thread("a")
    thread.state["x"] = 1
    thread.commit()
    assert two.thread("a").head is None
    assert list(two.threads()) == []
    assert one.url == two.url == "memory:"


def test_namespaces_of_one_memory_store() -> None:
    backend = open_memory()
    from everthread.store import Store

    one, two = Store(backend, namespace="one"), Store(backend, namespace="two")
    for store in (one, two):
        thread = store.thread("a")
        thread.state["space"] = store.namespace
        thread.commit()
    assert [one.thread("a").state["space"], two.thread("a").state["space"]] == ["one", "two"]
    two.thread("a").delete()
    assert one.thread("a").head is not None


def test_a_memory_store_stays_in_its_process(tmp_path: Path) -> None:
    store = everthread.open("memory:")
    for verb in (store.backup, store.restore):
        with pytest.raises(UnsupportedError):
            verb(tmp_path / "backup")
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError):
            way(store.core.backend)
    assert list(tmp_path.iterdir()) == []
    assert not store.capabilities.durable
    with pytest.raises(InvalidValueError):
        everthread.open("memory:", durability="")


def test_a_closed_memory_store_answers_nothing() -> None:
    backend = open_memory()
    line = backend.create(Line(id=0, uid=b"u", space="", name="a", root=0, start_hash=b"s" * 32), None)
    backend.close()
    backend.close()
    row = NewRow(1, DELTA, b"s" * 32, b"h" * 32, b"body")
    for ask in (
        lambda: backend.find("", "a"),
        lambda: backend.line(1),
        lambda: backend.line_by_uid(b"u"),
        lambda: backend.tail(1),
        lambda: backend.scan(1, 1, 1),
        lambda: backend.replay(1, 1, 0),
        lambda: backend.chunks(1, "l", 0, 1),
        lambda: backend.keyed(1, b"k"),
        lambda: backend.sealed([b"v"]),
        lambda: backend.create(line, None),
        lambda: backend.append(1, row),
        lambda: backend.delete(line),
        lambda: list(backend.lines("", "", None, 1)),
        lambda: list(backend.lines_by_tags("", {"x": b"1"})),
        lambda: list(backend.untagged("")),
        lambda: list(backend.every_line()),
    ):
        with pytest.raises(StoreClosedError):
            ask()


def test_many_threads_of_execution() -> None:
    """Readers see whole versions while writers write and fold."""
    store = everthread.open("memory:")
    store.core.folder.records_max = 3
    problems: list[BaseException] = []
    writing = threading.Event()

    def write() -> None:
        try:
            for number in range(150):
                store.thread("a").update(lambda draft: _grow(draft, number))  # noqa: B023
        except BaseException as error:
            problems.append(error)
        finally:
            writing.set()

    def read() -> None:
        try:
            while not writing.is_set():
                thread = store.thread("a")
                assert [item["id"] for item in thread.messages] == list(range(thread.state.get("count", 0)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=target) for target in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.thread("a").messages) == 150
    assert store.verify()


def _grow(draft: Any, number: int) -> None:
    draft.messages.append({"id": number})
    draft["count"] = number + 1
