"""``run_agent`` in workflows of a real Temporal server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.worker import Replayer, Worker

import everthread
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.loop import ACTIVITIES, FailingAgent, LoopAgent, LoopTask, Outcome, Sleeper
from tests.engines.runs import until

EXPECTED = [
    *("be brief", "go", "look", "look.0 in turn 1", "look.1 in turn 1", "noted"),
    *("judge", "judge.0 in turn 3", "good", "may I?", "asked", "yes", "done"),
]


class Place:
    def __init__(self, client: Client, url: str, queue: str) -> None:
        self.client, self.url, self.queue = client, url, queue

    def worker(self) -> Worker:
        return Worker(
            self.client,
            task_queue=self.queue,
            workflows=[LoopAgent, FailingAgent, Sleeper],
            activities=ACTIVITIES,
            # Each workflow task replays from the beginning: code that isn't deterministic shows.
            max_cached_workflows=0,
        )

    async def begin(self, task: LoopTask) -> WorkflowHandle[LoopAgent, Outcome]:
        return await self.client.start_workflow(LoopAgent.run, task, id=self.queue, task_queue=self.queue)

    async def thread(self) -> tuple[list[str], Any]:
        async with everthread.open_async(self.url) as store:
            thread = await store.thread(self.queue)
            assert (await store.verify()).ok
            return [each["content"] for each in await thread.messages.read()], thread.state.plain()


@asynccontextmanager
async def place(address: str, folder: Path, name: str) -> AsyncIterator[Place]:
    url = f"sqlite:///{folder}/agent.db"
    client = await Client.connect(address, plugins=[EverthreadPlugin(url)])
    yield Place(client, url, f"{name}-{folder.parent.name}-{folder.name}")


async def until_it_waits(handle: WorkflowHandle[Any, Any]) -> None:
    async def waits() -> bool:
        return await handle.query(LoopAgent.status) == "waiting_for_input"

    await until(waits, "the wait for input")


@pytest.mark.parametrize("events_max", [None, 25], ids=["one run", "continued as new"])
def test_tools_rewind_and_input(temporal_address: str, tmp_path: Path, events_max: int | None) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path, "loop") as p, p.worker():
            handle = await p.begin(LoopTask("go", events_max))
            await until_it_waits(handle)
            message = {"id": "m-1", "role": "user", "content": "yes"}
            # Told to whichever run is there, and twice.
            latest = p.client.get_workflow_handle_for(LoopAgent.run, p.queue)
            assert await latest.execute_update(LoopAgent.tell, message)
            outcome = await latest.result()
            result = outcome.result
            assert (result.reason, result.turns, result.text) == ("completed", 5, "done")
            assert result.usage == {"tokens": 5}
            assert outcome.told == ["end completed 5", "exit"]
            assert (outcome.runs == 1) is (events_max is None)
            said, fields = await p.thread()
            assert said == EXPECTED
            assert fields == {"searches": 3, "noted": "look.2", "judged": 3}
            async for execution in p.client.list_workflows(f"WorkflowId = '{p.queue}'"):
                history = await p.client.get_workflow_handle(p.queue, run_id=execution.run_id).fetch_history()
                await Replayer(workflows=[LoopAgent], plugins=[EverthreadPlugin(p.url)]).replay_workflow(
                    history
                )

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_waiting_has_a_limit_and_a_reason(temporal_address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path, "limit") as p, p.worker():
            outcome = await (await p.begin(LoopTask("go", wait_s=0.2))).result()
            assert (outcome.result.reason, outcome.told) == (
                "waiting_for_input",
                ["end waiting_for_input 4", "exit"],
            )

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_cancelled_run_ends_in_order(temporal_address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path, "cancel") as p, p.worker():
            handle = await p.begin(LoopTask("go"))
            await until_it_waits(handle)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError) as caught:
                await handle.result()
            assert isinstance(caught.value.cause, CancelledError)
            assert await handle.query(LoopAgent.status) == "cancelled"
            async with everthread.open_async(p.url) as store:
                head = (await store.thread(p.queue)).head
                assert head is not None
                assert head.label == "end"

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_run_that_failed_names_what_the_activity_raised(temporal_address: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path, "failing") as p, p.worker():
            with pytest.raises(WorkflowFailureError):
                await p.client.execute_workflow(FailingAgent.run, id=p.queue, task_queue=p.queue)
            async with everthread.open_async(p.url) as store:
                records = await store.session_records(p.queue)
                assert records.last_run.text == "run 1 failed: ValueError"
                assert [each.text for each in await records.errors()] == [
                    "workflow: ValueError: no such city"
                ]

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", ["append", "load"])
def test_a_pointer_whose_version_was_pruned_fails_the_workflow_once(
    temporal_address: str, tmp_path: Path, verb: str
) -> None:
    async def scenario() -> None:
        async with place(temporal_address, tmp_path, f"sleeper-{verb}") as p, p.worker():
            with pytest.raises(WorkflowFailureError) as failed:
                await p.client.execute_workflow(Sleeper.run, verb, id=p.queue, task_queue=p.queue)
            assert isinstance(failed.value.cause, ActivityError)
            cause = failed.value.cause.cause
            assert isinstance(cause, ApplicationError)
            assert (cause.type, cause.non_retryable) == ("VersionPrunedError", True)
            assert 'mode="continue"' in cause.message

    asyncio.run(scenario())
