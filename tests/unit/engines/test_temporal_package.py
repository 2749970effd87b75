"""What the package for Temporal promises without a server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.engines.temporal.activities import ACTIVITIES, StoreSource
from everthread.engines.temporal.log_activities import LOG_ACTIVITIES
from everthread.engines.temporal.plugin import EverthreadPlugin, _with_ours
from tests.engines.careless import echo

SOURCE = Path(everthread.__file__).parents[1]


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{code}"]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_door_of_engines_loads_no_engine_and_no_event_loop() -> None:
    found = python(
        "before = set(sys.modules)\nimport everthread.engines\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    assert found.returncode == 0, found.stderr
    assert not {"temporalio", "dbos", "asyncio", "apsw", "google"} & set(found.stdout.split())


def test_without_the_sdk_it_says_what_to_install() -> None:
    found = python("sys.modules['temporalio'] = None\nimport everthread.engines.temporal")
    assert found.returncode == 1
    assert "MissingDependencyError" in found.stderr
    assert ".[temporal]" in found.stderr


def test_a_store_is_open_while_one_of_its_workers_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = StoreSource(f"sqlite:///{tmp_path}/s.db")
        with pytest.raises(everthread.StoreClosedError, match="worker"):
            source.store()
        async with source.opened():
            store = source.store()
            async with source.opened():
                assert source.store() is store
            thread = await store.thread("t")
            thread.state["n"] = 1
            await thread.commit()
            blocking = await asyncio.to_thread(source.blocking_store)
            assert blocking.thread("t").state["n"] == 1
        for closed in (source.store, source.blocking_store):
            with pytest.raises(everthread.StoreClosedError):
                closed()
        with pytest.raises(everthread.StoreClosedError):
            blocking.thread("t")

    asyncio.run(scenario())


def test_an_open_store_is_used_as_it_is_and_stays_open() -> None:
    async def scenario() -> None:
        async with everthread.open_async("memory:") as store:
            source = StoreSource(store)
            async with source.opened():
                assert source.store() is store
                with pytest.raises(everthread.UsageError, match="blocking activity"):
                    source.blocking_store()
            await store.thread("still open")

    asyncio.run(scenario())


def test_a_worker_without_activities_stays_without() -> None:
    assert _with_ours([]) == []
    ours = [*ACTIVITIES, *LOG_ACTIVITIES]
    assert _with_ours([echo]) == [echo, *ours]
    # Another plugin, which comes later, has some.
    assert _with_ours([], are_brought=True) == ours
    # The plugin may have been given to the client and to the worker.
    assert _with_ours(_with_ours([echo])) == [echo, *ours]


def test_a_worker_that_cannot_open_its_store_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def never(_: object) -> None:
        raise AssertionError("it has no store")

    plugin = EverthreadPlugin("sqlit:///agents.db")
    worker: Any = None
    with pytest.raises(everthread.EverthreadError, match="sqlit"):
        asyncio.run(plugin.run_worker(worker, never))
    assert "can't open its store" in caplog.text
    assert "sqlit" in caplog.text
