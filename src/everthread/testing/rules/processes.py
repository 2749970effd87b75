"""Processes: after fork(2) the child opens the store again, and neither side disturbs the other."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from everthread.errors import EverthreadError
from everthread.testing.rules.expectations import (
    OpenStore,
    commit,
    contents,
    ids,
    message,
    needs,
    talk,
)


class ProcessRules:
    def test_a_handle_from_before_a_fork_raises_in_the_child(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 10)
        thread.state["from"] = "whoever is first"
        was = contents(thread)

        def child() -> Any:
            try:
                version = commit(thread)
            except EverthreadError as error:
                return type(error).__name__
            assert contents(thread) == contents(store.thread("a")) == was
            return version.id

        answer = _in_child(child)
        if store.capabilities.multi_process:
            assert answer in {"StoreClosedError", "StoreUnavailableError"}, answer
        assert commit(thread).seq == 11
        talk(thread, 10, "on")
        assert ids(store.thread("a").messages)[-1] == "on9"

    def test_parent_and_child_write_side_by_side(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        thread = store.thread("a")
        talk(thread, 3)

        def child() -> Any:
            # What was opened before may refuse to serve a child process.
            again = open_store()
            mine = again.thread("child")
            made = []
            for number in range(40):
                made.append(mine.messages.append({"content": number}))
                mine.commit()
                again.thread("a").update(lambda draft: draft.state.increment("n"))
            again.close()
            return made

        thread.state["n"] = 0
        thread.commit()
        mine = store.thread("parent")
        mine.messages.append({"content": "before"})
        with Child(child) as running:
            for number in range(40):
                mine.messages.append({"content": number})
                mine.commit()
                store.thread("a").update(lambda draft: draft.state.increment("n"))
            made = running.answer()
        assert ids(store.thread("child").messages) == made
        assert len({*made, *ids(mine.messages)}) == 81, "both made ids of their own"
        assert store.thread("a").state["n"] == 80

    def test_a_child_that_goes_away_leaves_the_parent_alone(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        for leave in (store.close, lambda: thread.state.update(lost=1), lambda: list(store.threads())):
            _in_child(lambda leave=leave: _tried(leave))  # type: ignore[misc]
            thread.messages.append(message(f"after {id(leave)}"))
            thread.commit()
        assert len(store.thread("a").messages) == 6
        assert "lost" not in store.thread("a").state
        assert store.verify()


class Child:
    """A child process that runs one function and answers with its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def __enter__(self) -> Child:
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                try:
                    answer = {"result": self._work()}
                except BaseException:
                    answer = {"failed": traceback.format_exc()}
                with os.fdopen(write, "w") as pipe:
                    json.dump(answer, pipe)
                status = 0
            finally:
                # Nothing of the parent's (test runner, open files) may be finished here.
                os._exit(status)
        os.close(write)
        return self

    def answer(self) -> Any:
        with os.fdopen(self._read) as pipe:
            text = pipe.read()
        self._read = -1
        answer = json.loads(text)
        assert "failed" not in answer, answer["failed"]
        return answer["result"]

    def __exit__(self, *_: object) -> None:
        if self._read >= 0:
            os.close(self._read)
        os.waitpid(self._pid, 0)


def _tried(leave: Callable[[], object]) -> None:
    with suppress(EverthreadError):
        leave()


def _in_child(work: Callable[[], Any]) -> Any:
    with Child(work) as child:
        return child.answer()
