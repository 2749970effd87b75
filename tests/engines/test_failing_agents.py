"""What goes wrong in an agent on a real Temporal server ends its run, in the thread and in Temporal, or ends
nothing; never does it stop the workflow for ever."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.worker import Worker

import everthread
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.failing_agents import Clumsy, Desk, Job, Repaired
from tests.engines.runs import reset, until, workflow_tasks

_numbers = itertools.count(1)


class Place:
    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url, self.desk = client, url, Desk()
        self.queue = f"failing{os.getpid()}.{next(_numbers)}"

    def worker(self, agent: type = Clumsy) -> Worker:
        return Worker(self.client, task_queue=self.queue, workflows=[agent], activities=self.desk.activities)

    async def begin(self, *tools: str, **options: Any) -> WorkflowHandle[Any, Any]:
        job = Job(list(tools), **options)
        return await self.client.start_workflow(Clumsy.run, job, id=self.queue, task_queue=self.queue)

    async def said(self) -> list[str]:
        async with everthread.open_async(self.url) as store:
            assert (await store.verify()).ok
            return [each["content"] for each in await (await store.thread(self.queue)).messages.read()]

    async def check_ended(self, status: str) -> None:
        """The run has ended like this, its end is the newest version, and another may have the thread."""
        async with everthread.open_async(self.url) as store:
            assert (await store.session_records(self.queue)).last_run.text == f"run 1 {status}"
            head = (await store.thread(self.queue)).head
            assert head is not None
            assert head.label == "end"
            async with store.session(self.queue):
                pass


@asynccontextmanager
async def place(address: str, folder: Path) -> AsyncIterator[Place]:
    url = f"sqlite:///{folder}/agent.db"
    yield Place(await Client.connect(address, plugins=[EverthreadPlugin(url)]), url)


async def until_it_waits(handle: WorkflowHandle[Any, Any]) -> None:
    async def waits() -> bool:
        return await handle.query(Clumsy.status) == "waiting_for_input"

    await until(waits, "the wait for input")


async def failed_tasks(handle: WorkflowHandle[Any, Any]) -> list[str]:
    history = await handle.fetch_history()
    return [
        event.workflow_task_failed_event_attributes.failure.message
        for event in history.events
        if event.HasField("workflow_task_failed_event_attributes")
    ]


def _nested(depth: int) -> Any:
    """More levels than a store takes."""
    value: Any = "inside"
    for _ in range(depth):
        value = [value]
    return value


def test_a_tool_in_progress_when_its_workflow_is_cancelled_records_nothing(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin("slow")
            await p.desk.began.wait()
            await handle.cancel()
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert isinstance(failed.value.cause, CancelledError)
            p.desk.free.set()
            await p.desk.over.wait()
            assert await p.said() == ["go", "hm"]
            await p.check_ended("cancelled")

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_tool_in_progress_when_another_fails_for_good_records_nothing(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin("slow", "refuse")
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()
            assert isinstance(failed.value.cause, ActivityError)
            assert isinstance(failed.value.cause.cause, ApplicationError)
            assert failed.value.cause.cause.message == "no such city"
            p.desk.free.set()
            await p.desk.over.wait()
            assert await p.said() == ["go", "hm"]
            await p.check_ended("failed: LookupError")

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("update", ["tell", "tell_checked"])
def test_an_update_that_is_no_message_fails_and_the_workflow_goes_on(
    temporal_address: str, tmp_path: Path, update: str
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin(chat=True)
            await until_it_waits(handle)
            for message in ({"role": "user", "content": "no id"}, {"id": "m", "content": _nested(150)}):
                with pytest.raises(WorkflowUpdateFailedError) as failed:
                    await handle.execute_update(update, message)
                assert isinstance(failed.value.cause, ApplicationError)
                assert failed.value.cause.type == "MessageRefusedError"
            assert await handle.execute_update(update, {"id": "m", "role": "user", "content": "hello"})
            await until_it_waits(handle)
            await handle.signal(Clumsy.close)
            assert (await handle.result()).reason == "completed"
            assert await p.said() == ["go", "hm", "hello", "hm"]
            assert await failed_tasks(handle) == []

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_an_update_that_comes_while_the_run_ends_is_refused_and_the_run_ends(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin(lingers=True)
            await p.desk.began.wait()
            message = {"id": "m", "role": "user", "content": "too late"}
            assert await handle.execute_update(Clumsy.tell, message) is False
            with pytest.raises(WorkflowUpdateFailedError) as failed:
                await handle.execute_update(Clumsy.tell_checked, message)
            assert "closed" in str(failed.value.cause)
            p.desk.free.set()
            assert (await handle.result()).reason == "completed"
            assert await p.said() == ["go", "hm"]
            assert await failed_tasks(handle) == []

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_signal_that_is_no_message_is_dropped_and_the_workflow_goes_on(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin(chat=True)
            await until_it_waits(handle)
            await handle.signal(Clumsy.hint, {"role": "user", "content": "no id"})
            await handle.signal(Clumsy.hint, {"id": "m", "role": "user", "content": "hello"})
            await handle.signal(Clumsy.close)
            # One that comes too late is no message any more.
            await handle.signal(Clumsy.hint, {"id": "n", "role": "user", "content": "too late"})
            assert (await handle.result()).reason == "completed"
            assert await p.said() == ["go", "hm", "hello", "hm"]
            assert await failed_tasks(handle) == []

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("tool", "told"), [("broken", "recovered"), ("caught", "caught")])
def test_a_tool_that_temporal_has_retried_can_be_recovered(
    temporal_address: str, tmp_path: Path, tool: str, told: str, attempts: int
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p, p.worker():
            handle = await p.begin(tool, attempts=attempts, recovers=True)
            assert (await handle.result()).reason == "completed"
            assert await p.said() == ["go", "hm", told, "hm"]
            await p.check_ended("completed")

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_plain_exception_of_a_tool_fails_the_run_and_repaired_code_goes_on_after_a_reset(
    temporal_address: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path) as p:
            async with p.worker():
                handle = await p.begin("plain")
                with pytest.raises(WorkflowFailureError) as failed:
                    await handle.result()
                assert isinstance(failed.value.cause, ApplicationError)
                assert failed.value.cause.type == "ValueError"
                assert failed.value.cause.message == "this tool is broken"
                assert await failed_tasks(handle) == []
                await p.check_ended("failed: ValueError")
            async with p.worker(Repaired):
                # To the task that called the tool: its commands are made again, by the repaired code.
                tasks = workflow_tasks(await handle.fetch_history())
                again = await reset(p.client, handle, tasks[3])
                await again.result()
                assert await p.said() == ["go", "hm", "repaired", "hm"]
                async with everthread.open_async(p.url) as store:
                    runs = await (await store.session_records(p.queue)).runs()
                    assert [each.status for each in runs] == ["completed", "completed", "failed"]

    asyncio.run(asyncio.wait_for(scenario(), 120))
