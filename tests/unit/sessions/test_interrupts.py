"""Ctrl-C at any line: what was begun is done, not done or in doubt, and the session goes on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store

PACKAGE = str(Path(everthread.__file__).parent)
#: Every so many lines; the seed says where to begin, so that in time every line is met.
STRIDE = 41


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/i.db", durability="process") as store:
        yield store
        assert store.verify().ok


def interrupted_at(line: int, work: Callable[[], Any]) -> bool:
    """Run ``work`` and interrupt it at the n-th line of the library; whether it came so far."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_effects(store: Store, seed: int) -> None:
    with store.session("s") as session:
        for line in range(1 + seed % STRIDE, 10_000, STRIDE):
            key, calls = f"k{line}", []
            if not interrupted_at(line, lambda: session.call(key, calls.append, 1)):  # noqa: B023
                break
            assert len(calls) <= 1
            assert session.call(key, calls.append, 1, verify=lambda _: bool(calls)) is None  # noqa: B023
            assert calls == [1], line
        assert line > 200
        assert session.in_doubt() == []


def test_messages_tasks_and_decisions(store: Store, seed: int) -> None:
    with store.session("s") as session:
        for line in range(1 + seed % STRIDE, 10_000, STRIDE):

            def work() -> None:
                session.messages.append({"id": f"m{line}"})  # noqa: B023
                session.tasks.add(f"t{line}")  # noqa: B023
                session.decide(f"d{line}").record("done")  # noqa: B023

            finished = not interrupted_at(line, work)
            # Whatever was cut, the next calls work, and what they say is there.
            session.messages.append({"id": f"m{line}"})
            session.tasks.add(f"again {line}")
            thread = store.thread("s")
            assert [message["id"] for message in thread.messages[-1:]] == [f"m{line}"]
            assert f"again {line}" in [task["subject"] for task in thread.state["tasks"].values()]
            session.merge_update(tasks={})
            if finished:
                break
        assert line > 400
        for decision in session.incomplete_decisions():
            session.record_outcome(decision.id, "late")
        assert session.incomplete_decisions() == []


def test_turns(store: Store, seed: int) -> None:
    with store.session("s", max_turns=None) as session:
        for line in range(1 + seed % STRIDE, 10_000, STRIDE):

            def work() -> None:
                with session.turn() as turn:
                    turn.add_usage(tokens=1)
                    session.state["line"] = line  # noqa: B023

            finished = not interrupted_at(line, work)
            if not finished:
                # A change of the document that is cut half-way asks for this.
                session.thread.discard()
                session.thread.refresh()
            if session._turn is not None:
                # Cut at the very first line of its end: that has to be done once more.
                session._turn.__exit__(None, None, None)
            turns = session.turns
            with session.turn() as turn:
                turn.add_usage(tokens=1)
            # One that was cut while it was counted may count.
            assert turns < session.turns <= turns + 2
            assert session.run.turn == 0
            if finished:
                break
        assert line > 200
        assert session.turns // 2 <= session.usage.tokens <= session.turns
        session.save()
    assert store.thread("s").state["line"] == line


def test_beginning_and_ending(store: Store, seed: int) -> None:
    begun: list[Any] = []
    for line in range(1 + seed % 401, 20_000, 401):

        def work() -> None:
            with store.session("s") as session:
                begun.append(session)

        if not interrupted_at(line, work):
            break
        # Nobody is left who could hold it.
        begun.clear()
        gc.collect()
        with store.session("s") as session:
            session.messages.append({})
    assert line > 400
    assert len(store.thread("s").messages) == (line - 1) // 401


def test_a_lease_that_was_just_taken_is_nobodys_after_ctrl_c(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell has landed, and its owner doesn't know."""
    backend = store.core.backend
    swap = backend.swap

    def cut(*args: Any) -> Any:
        swap(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(backend, "swap", cut)
    # Somebody keeps the traceback, and with it all that was under way.
    with pytest.raises(KeyboardInterrupt) as kept:
        store.session("s")
    monkeypatch.undo()
    with store.session("s") as session:
        session.messages.append({})
    assert kept.value is not None
