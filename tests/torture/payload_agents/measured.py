"""What the programs share: a run of a workflow, and what it left in the history and in the store."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.converter import DataConverter, ExternalStorage
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import everthread
    from everthread.engines.temporal.payloads import PayloadDriver

#: It is in everything that anybody says; the rest are random words.
WORD = "zephyrine"


@dataclasses.dataclass(frozen=True)
class Options:
    """One run. Without a ``url`` there is no driver."""

    address: str
    url: str = ""
    threshold: int = 1024
    first: int = 260_000
    calls: int = 100
    size: int = 5_000
    seed: int = 1
    subject: str | None = None


class CountingDriver(PayloadDriver):
    """Counts the bytes that it is given, and how often."""

    given = stores = 0

    async def store(self, context: Any, payloads: Any) -> Any:
        CountingDriver.given += sum(payload.ByteSize() for payload in payloads)
        CountingDriver.stores += 1
        return await super().store(context, payloads)


def said(seed: int, number: int, size: int) -> str:
    """So many letters, the same for the same numbers."""
    rng = random.Random(seed * 1_000_003 + number)
    letters = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=max(0, size - len(WORD) - 1)))
    return f"{WORD} {letters}"


async def measure(options: Options, workflow_class: Any, plugins: Sequence[Any]) -> dict[str, Any]:
    """Run the workflow, and tell what came of it."""
    if not options.url:
        client = await Client.connect(options.address, plugins=plugins)
        return await _run(options, client, workflow_class)
    async with everthread.open_async(options.url) as store:
        driver = CountingDriver(store, subject=options.subject)
        storage = ExternalStorage(drivers=[driver], payload_size_threshold=options.threshold)
        converter = dataclasses.replace(DataConverter.default, external_storage=storage)
        client = await Client.connect(options.address, plugins=plugins, data_converter=converter)
        await driver.attach(client)
        found = await _run(options, client, workflow_class)
        names = [info async for info in store.threads("temporal/payloads/")]
        found |= {
            "payload_bytes": CountingDriver.given,
            "stores": CountingDriver.stores,
            "commits": sum(info.seq for info in names),
        }
        if options.subject is not None:
            found |= await _erase(options, store, client, workflow_class, found["id"])
        found["sound"] = (await store.verify()).ok
    place = Path(options.url.removeprefix("sqlite:///"))
    found["store_bytes"] = sum(file.stat().st_size for file in place.parent.glob(f"{place.name}*"))
    return found


async def _run(options: Options, client: Client, workflow_class: Any) -> dict[str, Any]:
    queue = str(uuid.uuid4())
    async with Worker(client, task_queue=queue, workflows=[workflow_class]):
        began = time.perf_counter()
        handle = await client.start_workflow(
            workflow_class.run,
            args=[options.seed, said(options.seed, 0, options.first), options.calls, options.size],
            id=f"agent-{queue}",
            task_queue=queue,
        )
        try:
            result = await handle.result()
            status = "completed" if WORD in result else f"completed with {result[:80]!r}"
        except WorkflowFailureError as error:
            status = "terminated" if isinstance(error.cause, TerminatedError) else repr(error.cause)
        seconds = time.perf_counter() - began
    return {"status": status, "seconds": seconds, "id": handle.id, **await _history(handle)}


async def _history(handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    size = events = words = 0
    async for event in handle.fetch_history_events():
        raw = event.SerializeToString()
        size += len(raw)
        events += 1
        words += raw.count(WORD.encode())
    return {"history_bytes": size, "events": events, "words": words}


async def _erase(
    options: Options, store: Any, client: Client, workflow_class: Any, ended: str
) -> dict[str, Any]:
    """Erase the person whose workflow has ended, and another that waits in its middle with no worker left."""
    queue = str(uuid.uuid4())
    worker: dict[str, Any] = {"task_queue": queue, "workflows": [workflow_class]}
    handle = await client.start_workflow(
        workflow_class.run,
        args=[options.seed, said(options.seed, 0, options.first), 10_000, options.size],
        id=f"agent-{queue}",
        task_queue=queue,
    )
    async with Worker(client, **worker):
        while (await handle.describe()).history_length < 60:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)
    erased = await store.erase(options.subject)
    found: dict[str, Any] = {"erased": bool(erased), "ended": await _told(client, ended)}
    async with Worker(client, **worker):
        try:
            await asyncio.wait_for(handle.result(), 300)
        except WorkflowFailureError as error:
            found["running"] = repr(error.cause)
        events = [event async for event in handle.fetch_history_events()]
    found["failed_tasks"] = sum(event.HasField("workflow_task_failed_event_attributes") for event in events)
    found["end"] = str(events[-1].WhichOneof("attributes"))
    found["reason"] = events[-1].workflow_execution_terminated_event_attributes.reason
    return found


async def _told(client: Client, workflow_id: str) -> str:
    """What whoever asks for the result of an erased workflow is told."""
    try:
        return f"it was given: {await client.get_workflow_handle(workflow_id).result()!r}"
    except ApplicationError as error:
        return f"{error.type}, {'not ' if error.non_retryable else ''}retried"
