"""The payload driver behind a real Temporal server: what stays in histories, and what an erasure does."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.exceptions import ActivityError, ApplicationError, TerminatedError
from temporalio.worker import Worker

import everthread
from everthread import UsageError
from everthread.engines.temporal import EverthreadPlugin, PayloadDriver
from everthread.engines.temporal.payloads import LOG
from tests.engines.payload_workflows import WORDS, Asking, Child, Talk, answer

#: Nothing here takes long: only a test that hangs comes to this.
_LONG_S = 120.0


async def connected(address: str, driver: PayloadDriver, threshold: int = 0) -> Client:
    storage = ExternalStorage(drivers=[driver], payload_size_threshold=threshold)
    converter = dataclasses.replace(DataConverter.default, external_storage=storage)
    return await Client.connect(address, data_converter=converter)


@asynccontextmanager
async def working(client: Client, queue: str) -> AsyncIterator[None]:
    """A worker that remembers no workflow: each of its tasks replays the history."""
    async with Worker(
        client, task_queue=queue, workflows=[Talk, Child], activities=[answer], max_cached_workflows=0
    ):
        yield


async def begun(client: Client, queue: str, runs: int = 1) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        Talk.run, args=[[f"My name is {WORDS}."], runs], id=f"talk/{queue}", task_queue=queue
    )


async def history(handle: WorkflowHandle[Any, Any], run_id: str | None) -> list[Any]:
    past = handle._client.get_workflow_handle(handle.id, run_id=run_id)
    return [event async for event in past.fetch_history_events()]


async def until_it_waits(handle: WorkflowHandle[Any, Any]) -> None:
    """Until the workflow has all answers, and waits for a message."""
    while not await handle.query(Talk.waits):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, _LONG_S))


def test_no_word_stays_in_a_history_and_a_workflow_task_is_one_commit(
    temporal_address: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/payloads.db") as store:
            driver = PayloadDriver(store, subject="ann")
            client, queue = await connected(temporal_address, driver), str(uuid.uuid4())
            async with working(client, queue):
                handle = await begun(client, queue, 2)
                for number in range(2):
                    await handle.signal(Talk.hear, f"{WORDS}, signal {number}")
                    if not number:
                        while (await handle.describe()).run_id == handle.first_execution_run_id:  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                said = await handle.result()
                assert len(said) == 11
                assert said.count(f"{WORDS}, and her child") == 2
                runs = [handle.first_execution_run_id, (await handle.describe()).run_id]
                events = [event for run_id in runs for event in await history(handle, run_id)]
                assert len(events) > 40
                told = b"".join(event.SerializeToString() for event in events)
                assert b"everthread" in told
                for word in WORDS.split():
                    assert word.encode() not in told
            # Start, signals, tasks of the workflow and of activities: each one commit at most, although each
            # task replayed what was stored before.
            thread = await store.thread(driver.thread_name(handle.id))
            assert thread.head is not None
            kinds = [event.WhichOneof("attributes") for event in events]
            writers = kinds.count("workflow_task_completed_event_attributes")
            writers += kinds.count("activity_task_completed_event_attributes")
            writers += kinds.count("workflow_execution_signaled_event_attributes") + 2
            assert thread.head.seq <= writers
            items = await thread.log(LOG).read()
            assert len({item["id"] for item in items}) == len(items)
            assert (await store.verify()).ok

    run(main())


def test_after_an_erasure_a_workflow_fails_once_and_says_why(temporal_address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/payloads.db") as store:
            driver = PayloadDriver(store, subject="ann")
            client, queue = await connected(temporal_address, driver), str(uuid.uuid4())
            await driver.attach(client)
            async with working(client, queue):
                ended = await begun(client, f"{queue}", 1)
                await ended.signal(Talk.hear, WORDS)
                assert len(await ended.result()) == 6
                running = await client.start_workflow(
                    Talk.run, args=[[WORDS], 1], id=f"running/{queue}", task_queue=queue
                )
                await until_it_waits(running)
                assert await store.erase("ann")
                # Of who has ended, whoever asks for the result is told.
                with pytest.raises(ApplicationError) as asked:
                    await client.get_workflow_handle(ended.id).result()
                assert asked.value.type == "PayloadErased"
                # Who runs can't be replayed: it ends, instead of trying for ever.
                await running.signal(Talk.hear, "go on")
                with pytest.raises(WorkflowFailureError) as failed:
                    await running.result()
                cause = failed.value.cause
                assert isinstance(cause, TerminatedError)
                (end,) = [
                    event.workflow_execution_terminated_event_attributes
                    for event in await history(running, None)
                    if event.HasField("workflow_execution_terminated_event_attributes")
                ]
                assert end.reason.startswith("PayloadErased: ")
                # Somebody else, and she herself if she comes back.
                again = await client.start_workflow(
                    Child.run, f"{WORDS} is back", id=f"again/{queue}", task_queue=queue
                )
                assert await again.result() == f"{WORDS} is back, and her child"

    run(main())


def test_an_erased_payload_fails_what_has_not_begun_yet(temporal_address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/payloads.db") as store:
            driver = PayloadDriver(store, subject="ann")
            client, queue = await connected(temporal_address, driver), str(uuid.uuid4())
            await driver.attach(client)
            waiting = await client.start_workflow(Child.run, WORDS, id=f"waiting/{queue}", task_queue=queue)
            asking = await client.start_workflow(
                Asking.run, args=[WORDS, f"{queue}-calls"], id=f"asking/{queue}", task_queue=f"{queue}-asks"
            )
            async with Worker(client, task_queue=f"{queue}-asks", workflows=[Asking]):
                while (await asking.describe()).history_length < 5:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
                assert await store.erase("ann")
                async with (
                    Worker(client, task_queue=queue, workflows=[Child]),
                    Worker(client, task_queue=f"{queue}-calls", activities=[answer]),
                ):
                    with pytest.raises(WorkflowFailureError) as begun:
                        await waiting.result()
                    with pytest.raises(WorkflowFailureError) as called:
                        await asking.result()
            assert isinstance(called.value.cause, ActivityError)
            for cause in (begun.value.cause, called.value.cause.cause):
                assert isinstance(cause, ApplicationError)
                assert (cause.type, cause.non_retryable) == ("PayloadErased", True)
            for handle in (waiting, asking):
                kinds = [event.WhichOneof("attributes") for event in await history(handle, None)]
                assert "workflow_task_failed_event_attributes" not in kinds
                assert kinds.count("activity_task_failed_event_attributes") == (handle is asking)

    run(main())


def test_a_server_is_asked_how_long_it_keeps_histories(temporal_address: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            short = PayloadDriver(store, ttl=timedelta(hours=1))
            client = await connected(temporal_address, short)
            with pytest.raises(UsageError, match=r"1:00:00 is shorter than .* 'default'"):
                await short.attach(client)
            with pytest.raises(UsageError, match="attach"):
                await client.start_workflow(Child.run, "x", id="never", task_queue="never")
            long, queue = PayloadDriver(store, ttl=timedelta(days=365)), str(uuid.uuid4())
            client = await connected(temporal_address, long)
            await long.attach(client)
            async with working(client, queue):
                assert await client.execute_workflow(Child.run, "Ann", id=queue, task_queue=queue)

    run(main())


def test_the_plugin_keeps_payloads_and_attaches_its_driver(temporal_address: str, tmp_path: Path) -> None:
    async def main() -> None:
        url, queue = f"sqlite:///{tmp_path}/payloads.db", str(uuid.uuid4())
        options = {"ttl": timedelta(days=365)}
        plugin = EverthreadPlugin({"url": url}, payloads_over=0, subject="ann", payload_options=options)
        client = await Client.connect(temporal_address, plugins=[plugin])
        async with Worker(client, task_queue=queue, workflows=[Child]):
            # The worker has attached it when it polls.
            handle = await begun_child(client, queue)
            assert await handle.result() == f"{WORDS}, and her child"
            told = b"".join([event.SerializeToString() for event in await history(handle, None)])
            assert WORDS.encode() not in told
        assert plugin.payloads is not None
        await plugin.payloads.close()
        assert EverthreadPlugin(url).payloads is None
        with pytest.raises(UsageError, match="payloads_over"):
            EverthreadPlugin(url, subject="ann")

    run(main())


async def begun_child(client: Client, queue: str) -> WorkflowHandle[Any, Any]:
    while True:
        try:
            return await client.start_workflow(Child.run, WORDS, id=f"child/{queue}", task_queue=queue)
        except UsageError:
            await asyncio.sleep(0.05)
