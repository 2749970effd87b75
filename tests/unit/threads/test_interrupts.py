"""Ctrl-C at a bad moment: the handle never commits what it doesn't show, nor shows what isn't there."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import everthread as e
from everthread.threads.document import Document
from everthread.threads.head_cache import CachedHead
from everthread.threads.tracked_list import Splices


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The next call raises as if the user had pressed Ctrl-C just then."""

    def cut(*args: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, cut)


@pytest.fixture
def store(tmp_path: Path) -> e.Store:
    return e.open(f"sqlite:///{tmp_path}/a.db")


def test_in_refresh_the_old_document_is_not_taken_for_the_new(
    store: e.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, other = store.thread("t"), store.thread("t")
    thread.state["n"] = 0
    thread.commit()
    other.state["n"] = 5
    other.commit()
    interrupt_once(monkeypatch, CachedHead, "build_document")
    with pytest.raises(KeyboardInterrupt):
        thread.refresh()
    thread.state["n"] += 1
    thread.commit()
    assert e.open(store.url).thread("t").state["n"] == 6


def test_after_the_stores_answer_nothing_is_written_twice(
    store: e.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = store.thread("t")
    thread.log("p").append("0")
    thread.commit()
    thread.log("p").append("1")
    thread.state["l"] = ["x"]
    interrupt_once(monkeypatch, Document, "mark_clean")
    with pytest.raises(KeyboardInterrupt):
        thread.commit()
    version = thread.commit()
    assert version is not None
    assert version.seq == 2
    assert e.open(store.url).thread("t").log("p")[:] == thread.log("p")[:] == ["0", "1"]
    assert store.verify().ok


def test_a_change_cut_in_half_is_not_committed(store: e.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = store.thread("t")
    thread.state["l"] = [1, 2]
    thread.commit()
    interrupt_once(monkeypatch, Splices, "note")
    with pytest.raises(KeyboardInterrupt):
        thread.state["l"].append(3)
    with pytest.raises(e.InvalidStateError, match="discard"):
        thread.commit()
    thread.discard()
    thread.state["l"].append(4)
    thread.commit()
    assert e.open(store.url).thread("t").state.plain() == {"l": [1, 2, 4]}


def test_a_rebase_cut_in_half_says_what_is_gone(store: e.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, other = store.thread("t"), store.thread("t")
    thread.state["a"] = 1
    thread.commit()
    other.state["b"] = 1
    other.commit()
    thread.state["c"] = 1
    interrupt_once(monkeypatch, Document, "apply")
    with pytest.raises(KeyboardInterrupt):
        thread.rebase()
    with pytest.raises(e.InvalidStateError, match="gone"):
        thread.commit()
    assert thread.state.plain() == {"a": 1, "b": 1}


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/s.db"])
def test_a_commit_from_a_signal_handler_through_the_handle_that_it_interrupted_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    with e.open(url.format(tmp_path)) as store:
        thread = store.thread("t")
        append, refused = store.core.backend.append, list[str]()

        def handler(*_: Any) -> None:
            with pytest.raises(e.InvalidStateError, match="a signal handler interrupted") as error:
                thread.commit("from the handler")
            refused.append(str(error.value))

        def interrupted(line: int, row: Any) -> None:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGUSR1)
            append(line, row)

        thread.state["n"] = 1
        thread.commit()
        before = signal.signal(signal.SIGUSR1, handler)
        monkeypatch.setattr(store.core.backend, "append", interrupted)
        try:
            thread.state["n"] = 2
            thread.commit("interrupted")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(refused) == 1
        assert [version.label for version in store.thread("t").history()] == ["interrupted", None]
        assert thread.commit("after it").seq == 3  # type: ignore[union-attr]
