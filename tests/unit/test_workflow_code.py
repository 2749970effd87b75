"""A store in the code of a Temporal workflow: refused at once, with what to do instead."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import everthread
from everthread import UsageError


@pytest.fixture
def workflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What ``temporalio.workflow`` says of where the code runs: the SDK looks at the running event loop."""
    module, answer = ModuleType("temporalio.workflow"), [False]
    module.in_workflow = lambda: answer[0]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "temporalio.workflow", module)
    yield answer
    answer[0] = False


def _refused(verb: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"Temporal workflow.*use it in an activity"):
        verb()


def test_a_blocking_store_says_so_and_writes_nothing(workflow: list[bool], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url) as store:
        thread = store.thread("a")
        thread.messages.append({"id": "m"})
        thread.commit()
        thread.state["n"] = 1
        clean = store.thread("a")
        assert len(clean.messages) == 1
        workflow[0] = True
        for verb in (
            lambda: everthread.open(url),
            lambda: store.thread("b"),
            lambda: store.session("a"),
            lambda: store.session_records("a"),
            thread.commit,
            clean.messages.read,
            lambda: clean.step("k").__enter__(),
            lambda: list(store.threads()),
        ):
            _refused(verb)
        workflow[0] = False
        assert [each.name for each in store.threads()] == ["a"]
        assert len(list(store.thread("a").history())) == 1
        thread.commit()


def test_an_async_store_says_so_instead_of_hanging(workflow: list[bool], tmp_path: Path) -> None:
    async def run() -> None:
        url = f"sqlite:///{tmp_path}/s.db"
        async with everthread.open_async(url) as store:
            thread = await store.thread("a")
            thread.messages.append({"id": "m"})
            await thread.commit()
            thread.state["n"] = 1
            clean = await store.thread("a")
            workflow[0] = True
            _refused(lambda: everthread.open_async(url))
            for verb in (
                lambda: store.thread("b"),
                lambda: store.session("a").__aenter__(),
                thread.commit,
                clean.refresh,
                clean.messages.read,
            ):
                with pytest.raises(UsageError, match="use it in an activity"):
                    await asyncio.wait_for(verb(), 20)
            workflow[0] = False

    asyncio.run(run())
