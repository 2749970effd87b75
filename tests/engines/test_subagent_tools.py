"""Subagents as tools, hooks of forks and sandboxes of ``run_agent``: on a real Temporal server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

import everthread
from everthread.engines.temporal import EverthreadPlugin
from everthread.sandboxes import Files
from tests.engines.runs import WAIT_S, reset, workflow_tasks
from tests.engines.subagent_tools import WORKFLOWS, Activities, Boss, Forker, Job, shout, without_first

_numbers = itertools.count(1)


class Place:
    """A client, a store and the activities of one test."""

    def __init__(self, client: Client, url: str, activities: Activities) -> None:
        self.client, self.url, self.activities = client, url, activities
        self.queue = f"subagent-tools-{os.getpid()}-{next(_numbers)}"

    async def start(self, workflow: Any, *arguments: Any) -> Any:
        return await self.client.start_workflow(
            workflow, args=list(arguments), id=self.queue, task_queue=self.queue
        )

    async def contents(self, name: str) -> list[str]:
        async with everthread.open_async(self.url) as store:
            return [each["content"] for each in await (await store.thread(name)).messages.read()]

    async def files(self) -> list[str]:
        def read() -> list[str]:
            with everthread.open(self.url) as store:
                return sorted(each.path for each in Files(store.thread(f"sandboxes/{self.queue}-box")).list())

        return await asyncio.to_thread(read)


@asynccontextmanager
async def place(address: str, folder: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{folder}/agent.db"
    plugin = EverthreadPlugin(url, fork_hooks=[shout, without_first])
    made = Place(await Client.connect(address, plugins=[plugin]), url, Activities(folder / "boxes"))
    async with Worker(
        made.client, task_queue=made.queue, workflows=WORKFLOWS, activities=made.activities.all
    ):
        yield made


def play(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.mark.parametrize("policy", ["fork", "continue"])
def test_a_subagent_forks_its_parents_thread_or_continues_its_own_also_after_a_reset_of_the_parent(
    temporal_address: str, tmp_path: Path, policy: str
) -> None:
    async def check(p: Place) -> None:
        parent = await p.contents(p.queue)
        assert parent == ["be brief", "begin", "Boss 1", "Helper 1", "Boss 2", "Helper 1", "Boss 3"]
        first, second = (f"{p.queue}/helper/{turn}.0" for turn in (1, 2))
        if policy == "fork":
            assert await p.contents(first) == [*parent[:2], "do 1.0", "Helper 1"]
            assert await p.contents(second) == [*parent[:4], "do 2.0", "Helper 1"]
        else:
            assert await p.contents(first) == ["do 1.0", "Helper 1", "do 2.0", "Helper 1"]
            assert await p.contents(second) == []

    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            handle = await p.start(Boss.run, Job(["helper", "helper"], thread=policy))
            result = await handle.result()
            assert (result.reason, result.usage["tokens"]) == ("completed", 25)
            await check(p)
            # Before the first child, between the two, and behind both.
            for task in workflow_tasks(await handle.fetch_history())[2::5]:
                await (await reset(p.client, handle, task)).result()
                await check(p)

    play(scenario)


def test_subagents_share_the_sandbox_of_their_parent_which_is_created_and_destroyed_once(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            handle = await p.start(Boss.run, Job(["helper", "helper"], sandbox="inherit"))
            assert (await handle.result()).reason == "completed"
            assert p.activities.events == ["create", f"destroy {p.queue}-box"]
            assert await p.files() == ["file-1", "file-2"]

    play(scenario)


def test_a_reset_run_has_the_files_in_its_sandbox_that_its_history_says(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            handle = await p.start(Boss.run, Job(["write", "write"]))
            await handle.result()
            tasks = workflow_tasks(await handle.fetch_history())
            # The last task that leaves a tool to call is the one that the last model step ends before it.
            for task in (None, *tasks[2:-4:2]):
                if task is not None:
                    await (await reset(p.client, handle, task)).result()
                told = [each for each in await p.contents(p.queue) if each.startswith("file-")]
                assert len(told) == 2
                assert await p.files() == sorted(told), task

    play(scenario)


@pytest.mark.parametrize(
    ("prepare", "transform", "expected"),
    [
        ("without_first", None, ["second"]),
        (None, "shout", ["FIRST", "SECOND"]),
        ("without_first", "shout", ["SECOND"]),
    ],
)
def test_a_workflow_names_the_hooks_of_its_fork(
    temporal_address: str, tmp_path: Path, prepare: str | None, transform: str | None, expected: list[str]
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            await (await p.start(Forker.run, prepare, transform)).result()
            assert await p.contents(f"{p.queue}/fork") == expected
            assert await p.contents(p.queue) == ["first", "second"]

    play(scenario)


def test_a_fork_hook_that_the_worker_does_not_have_fails_the_workflow_and_is_named(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            handle = await p.start(Forker.run, None, "whisper")
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            error: Any = failed.value
            while error.cause is not None:
                error = error.cause
            assert "'whisper' is unknown to this worker: it has shout, without_first" in str(error)

    play(scenario)
