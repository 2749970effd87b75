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


def commit(thread: everthread.Thread) -> Any:
    thread.state["mine"] = 1
    thread.messages.append({"id": "m2"})
    return thread.commit()


def step(thread: everthread.Thread) -> Any:
    with thread.step("s") as step:
        step.state["mine"] = 1
        step.messages.append({"id": "m2"})
        step.result = 1
    return thread.head


def fence(thread: everthread.Thread) -> Any:
    with pytest.raises(ZeroDivisionError), thread.step("s", attempt=2) as step:
        step.result = 1 / 0
    return thread.head


def merge(thread: everthread.Thread) -> Any:
    other = everthread.Thread(thread.core, "other")
    return thread.merge(other).version


def rewind(thread: everthread.Thread) -> Any:
    return thread.rewind(1)


@contextmanager
def committing(
    thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Any], Any] = commit
) -> Iterator[list[Any]]:
    """Another thread is in the middle of a commit through the same handle; what came of it."""
    backend = thread.core.backend
    begun, go, came = threading.Event(), threading.Event(), []
    append = backend.append

    def slow(*args: Any) -> Any:
        begun.set()
        assert go.wait(10)
        return append(*args)

    def work() -> None:
        try:
            came.append(verb(thread))
        except Exception as error:
            came.append(error)

    monkeypatch.setattr(backend, "append", slow)
    other = threading.Thread(target=work)
    other.start()
    try:
        assert begun.wait(10)
        monkeypatch.setattr(backend, "append", append)
        yield came
    finally:
        go.set()
        other.join(10)


def same_as_stored(thread: everthread.Thread) -> bool:
    stored = everthread.Thread(thread.core, thread.name)
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


@pytest.fixture
def long(thread: everthread.Thread) -> everthread.Thread:
    """Of two versions, and with a fork that went on."""
    other = thread.fork("other")
    other.state["mine"] = 1
    other.messages.append({"id": "m2"})
    other.commit()
    thread.state["more"] = 1
    thread.commit()
    return thread


OTHERS = [step, fence, merge, rewind]


@pytest.mark.parametrize("verb", OTHERS)
@pytest.mark.parametrize(
    "use",
    [lambda thread: thread.messages.append({"id": "m9"}), step, merge, rewind, everthread.Thread.refresh],
)
def test_other_verbs_that_write_tell_it_too(
    long: everthread.Thread,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[Any], Any],
    use: Callable[[Any], Any],
) -> None:
    with (
        committing(long, monkeypatch, verb) as came,
        pytest.raises(InvalidStateError, match="a handle of its own"),
    ):
        use(long)
    assert came[0].seq == 3
    assert same_as_stored(long)
    long.state["next"] = 1
    assert long.commit().seq == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("verb", OTHERS)
@pytest.mark.parametrize("place", [(), ("sub",)])
def test_after_other_verbs_it_shows_what_is_stored(
    long: everthread.Thread,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[Any], Any],
    place: tuple[str, ...],
) -> None:
    with committing(long, monkeypatch, verb) as came:
        node: Any = long.state
        for key in place:
            node = node[key]
        node["theirs"] = 1
    assert isinstance(came[0], InvalidStateError), "what is gone isn't gone in silence"
    assert "is stored" in str(came[0])
    assert same_as_stored(long)
    long.state["next"] = 1
    assert long.commit().seq == 4  # type: ignore[union-attr]
    assert same_as_stored(long)


def test_a_commit_that_fails_leaves_the_handle_free(
    thread: everthread.Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StorageWriteError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(thread.core.backend, "append", fails)
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


@pytest.mark.parametrize("verb", [commit, *OTHERS])
def test_two_handles_never_see_a_mixture(long: everthread.Thread, verb: Callable[[Any], Any]) -> None:
    """Each stands where its owner put it; what others wrote shows when it moves, and refuses it before."""
    other = everthread.Thread(long.core, "a")
    before = (other.head, other.state.plain(), list(other.messages))
    made = verb(long)
    assert (other.head, other.state.plain(), list(other.messages)) == before
    other.state["late"] = 1
    with pytest.raises(everthread.ConflictError) as refused:
        other.commit()
    assert refused.value.actual == made
    other.discard()
    assert other.refresh() == made
    assert same_as_stored(other)
    assert same_as_stored(long)
