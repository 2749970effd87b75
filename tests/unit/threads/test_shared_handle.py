"""One handle in the hands of several threads of execution: refused with words that help, and nothing is
damaged by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidStateError, StorageWriteError


@pytest.fixture
def thread() -> everthread.Thread:
    found = everthread.open("memory:").thread("a")
    found.state["sub"] = {"n": 1}
    found.messages.append({"id": "m1"})
    found.commit()
    return found


@contextmanager
def committing(thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Another thread is in the middle of a commit through the same handle; what came of it."""
    backend = thread._core.backend
    begun, go, came = threading.Event(), threading.Event(), []
    append = backend.append

    def slow(*args: Any) -> Any:
        begun.set()
        assert go.wait(10)
        return append(*args)

    def commit() -> None:
        thread.state["mine"] = 1
        thread.messages.append({"id": "m2"})
        try:
            came.append(thread.commit())
        except Exception as error:
            came.append(error)

    monkeypatch.setattr(backend, "append", slow)
    other = threading.Thread(target=commit)
    other.start()
    try:
        assert begun.wait(10)
        monkeypatch.setattr(backend, "append", append)
        yield came
    finally:
        go.set()
        other.join(10)


def same_as_stored(thread: everthread.Thread) -> bool:
    stored = everthread.Thread(thread._core, thread.name)
    return (thread.state.plain(), list(thread.messages)) == (stored.state.plain(), list(stored.messages))


@pytest.mark.parametrize(
    "use",
    [
        lambda thread: thread.messages.append({"id": "m3"}),
        lambda thread: thread.messages.extend([{"id": "m3"}]),
        lambda thread: thread.messages.truncate_from("m1"),
        lambda thread: thread.commit(label="x"),
        lambda thread: thread.discard(),
        lambda thread: thread.refresh(),
        lambda thread: thread.rebase(),
        lambda thread: thread.update(lambda draft: None),
    ],
)
def test_who_comes_in_between_is_told(
    thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch, use: Callable[[everthread.Thread], Any]
) -> None:
    with committing(thread, monkeypatch) as came:
        with pytest.raises(InvalidStateError, match="a handle of its own"):
            use(thread)
        assert thread.state["sub"]["n"] == 1, "reading does no harm"
    assert came[0].seq == 2
    assert same_as_stored(thread)
    thread.state["next"] = 1
    assert thread.commit().seq == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [(), ("sub",)])
def test_what_was_edited_in_between_shows_at_the_end(
    thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch, place: tuple[str, ...]
) -> None:
    with committing(thread, monkeypatch) as came:
        node: Any = thread.state
        for key in place:
            node = node[key]
        node["theirs"] = 1
    assert isinstance(came[0], InvalidStateError)
    assert "the commit is stored" in str(came[0])
    assert thread.state["mine"] == 1
    assert same_as_stored(thread), "it shows what is stored, and nothing else"
    thread.state["next"] = 1
    assert thread.commit().seq == 3  # type: ignore[union-attr]


def test_a_commit_that_fails_leaves_the_handle_free(
    thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StorageWriteError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(thread._core.backend, "append", fails)
        thread.state["n"] = 2
        with pytest.raises(StorageWriteError):
            thread.commit()
    thread.messages.append({"id": "m2"})
    assert thread.commit().seq == 2  # type: ignore[union-attr]
    assert same_as_stored(thread)


@pytest.mark.parametrize("ids", [False, True])
def test_many_threads_on_one_handle_damage_nothing(tmp_path: Path, ids: bool) -> None:
    store = everthread.open(f"sqlite:///{tmp_path}/a.db", durability="process")
    thread = store.thread("a")
    made: list[int] = []
    errors: list[Exception] = []

    def work(number: int) -> None:
        for turn in range(50):
            try:
                thread.state[f"{number}.{turn}"] = turn
                thread.messages.append({"id": f"{number}.{turn}"} if ids else {"text": "hello"})
                made.append(thread.commit().seq)  # type: ignore[union-attr]
            except InvalidStateError as error:
                assert "a handle of its own" in str(error)  # noqa: PT017 - in a thread
            except Exception as error:
                errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not errors
    assert len(set(made)) > 1
    thread.commit()
    assert same_as_stored(thread)
    assert {version.seq for version in thread.history(limit=None)}.issuperset(made)
    assert store.verify().ok
