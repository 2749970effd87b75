"""One workflow id executed again, resets past the end of a run, and children on the thread of a parent: on a
real Temporal server."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

import everthread
from everthread.engines import ThreadRef
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.executions import ACTIVITIES, SENT, WORKFLOWS, Daily, Leaver, Parent
from tests.engines.runs import reset, workflow_tasks

_numbers = itertools.count(1)


class Place:
    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url, self.queue = client, url, f"executions-{os.getpid()}-{next(_numbers)}"

    async def begin(self, workflow: Any, *arguments: Any) -> Any:
        return await self.client.start_workflow(
            workflow, args=list(arguments), id=self.queue, task_queue=self.queue
        )

    async def contents(self, name: str, ref: ThreadRef | None = None) -> list[str]:
        async with everthread.open_async(self.url) as store:
            thread = await store.thread(name)
            past = thread if ref is None else await thread.at(ref.version)
            return [message["content"] for message in await past.messages.read()]


@asynccontextmanager
async def place(address: str, folder: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{folder}/agent.db"
    made = Place(await Client.connect(address, plugins=[EverthreadPlugin(url)]), url)
    async with Worker(made.client, task_queue=made.queue, workflows=WORKFLOWS, activities=ACTIVITIES):
        yield made


@pytest.mark.parametrize("effects", ["thread", "execution"])
def test_a_daily_workflow_sends_its_report_every_day_or_says_that_it_does_not(
    temporal_address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, effects: str
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            executions = []
            for _ in range(2):
                handle = await p.begin(Daily.run, effects)
                await handle.result()
                executions.append(handle.first_execution_run_id)
            days, told = SENT.count(p.queue), [each.getMessage() for each in caplog.records]
            warned = [each for each in told if "was skipped" in each]
            async with everthread.open_async(p.url) as store:
                runs = await (await store.session_records(p.queue)).runs()
            newest = runs[0]
            assert (newest.workflow, newest.agent, newest.turns, newest.usage) == (
                p.queue,
                "reporter",
                1,
                {"tokens": 7},
            )
            # Each execution was continued as new.
            assert [run.execution for run in runs] == [executions[1]] * 2 + [executions[0]] * 2
            if effects == "execution":
                assert (days, warned, newest.skipped) == (2, [], None)
            else:
                assert (days, newest.skipped) == (1, executions[0])
                assert executions[0] in warned[0]

    caplog.set_level(logging.WARNING, "everthread")
    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_reset_to_any_task_leaves_the_thread_as_its_history_says_also_after_the_end(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            first = await p.begin(Leaver.run)
            await first.result()
            tasks = workflow_tasks(await first.fetch_history())
            for task in tasks:
                # Another run says something else.
                await (await reset(p.client, first, tasks[0])).result()
                ref = await (await reset(p.client, first, task)).result()
                assert await p.contents(p.queue) == await p.contents(p.queue, _pointer(ref)), task

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("mode", ["fork", "continue"])
def test_a_child_on_its_parents_thread_completes_after_each_reset_without_repeated_turns(
    temporal_address: str, tmp_path: Path, mode: str
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            first = await p.begin(Parent.run, mode)
            await first.result()
            for task in workflow_tasks(await first.fetch_history()):
                ended, made = map(_pointer, await (await reset(p.client, first, task)).result())
                parent, child = await p.contents(ended.thread), await p.contents(made.thread)
                assert (parent[0], parent[-1]) == ("be brief", "done")
                assert len(set(parent)) == len(parent) == (3 if mode == "fork" else 5), (task, parent)
                if mode == "fork":
                    assert child[:2] == parent[:2], task
                    assert (len(set(child)), child[2]) == (4, "work"), (task, child)

    asyncio.run(asyncio.wait_for(scenario(), 120))


def _pointer(told: Any) -> ThreadRef:
    return told if isinstance(told, ThreadRef) else ThreadRef(**told)
