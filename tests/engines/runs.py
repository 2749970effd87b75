"""What tests do with runs of the scripted agent: begin them, reset them, and compare a thread with a
history."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.worker import Worker

import everthread
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.workflows import Agent, Task
from tests.engines.world import Agency, Answer, Found, World, number_of

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)
#: For what is waited for: generous, a busy machine must not decide.
WAIT_S = 120.0


@dataclass
class Said:
    """What a history says of a thread."""

    contents: list[str]
    turns: int
    tools: int
    last: str | None


class Bench:
    """A queue, a store and a world of one test."""

    def __init__(self, address: str, folder: Path, url: str | None = None) -> None:
        self.address = address
        self.queue = f"q{os.getpid()}.{next(_numbers)}"
        self.url = url or f"sqlite:///{folder}/agent.db"
        self.world = World(folder / "world")
        self.client: Any = None
        #: How many workers were killed from outside.
        self.killed = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ids = itertools.count(1)

    @asynccontextmanager
    async def worker(self, *, plugin: Any = None, **options: Any) -> AsyncIterator[None]:
        """A worker in this process."""
        plugin = plugin or EverthreadPlugin({"url": self.url, "durability": "process"})
        client = await Client.connect(self.address, plugins=[plugin])
        self.client = client
        with ThreadPoolExecutor(8) as pool:
            options = {"workflows": [Agent], "activities": Agency(self.world).activities, **options}
            async with Worker(client, task_queue=self.queue, activity_executor=pool, **options):
                yield

    async def connect(self) -> Any:
        if self.client is None:
            self.client = await Client.connect(self.address)
        return self.client

    def start_worker(self, sticky_s: float = 1.0, **settings: str) -> subprocess.Popen[bytes]:
        """A worker in a process of its own, which can be killed."""
        command = [sys.executable, "-m", "tests.engines.worker", self.address, self.queue, self.url]
        folder = self.world.folder
        with (folder / "worker.log").open("ab") as log:
            made = subprocess.Popen(
                [*command, str(folder), str(sticky_s)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, **settings},
            )
        self._processes.append(made)
        return made

    def living_workers(self) -> int:
        return sum(each.poll() is None for each in self._processes)

    def kill_workers(self) -> None:
        """At whatever they are."""
        for each in self._processes:
            if each.poll() is None:
                each.kill()
                each.wait()
                self.killed += 1

    def stop_workers(self) -> None:
        for each in self._processes:
            if each.poll() is None:
                os.kill(each.pid, signal.SIGCONT)
                each.kill()
            each.wait()
        self._processes.clear()

    async def begin(self, prompt: str | None, **options: Any) -> WorkflowHandle[Any, Any]:
        client = await self.connect()
        name = f"{self.queue}-w{next(self._ids)}"
        handle: WorkflowHandle[Any, Any] = await client.start_workflow(
            Agent.run, Task(prompt, **options), id=name, task_queue=self.queue
        )
        return handle

    async def thread(self, name: str) -> tuple[list[Any], dict[str, Any]]:
        """The messages and the document of a thread, as anybody sees them."""
        async with everthread.open_async(self.url, durability="process") as store:
            thread = await store.thread(name)
            return await thread.messages.read(), thread.state.plain()

    async def verify(self) -> None:
        async with everthread.open_async(self.url, durability="process") as store:
            report = await store.verify()
            assert report.ok, report

    async def check(self, handle: WorkflowHandle[Any, Any]) -> list[str]:
        """The thread is what the history of this run says; its contents."""
        said = await told_by(await handle.fetch_history())
        messages, document = await self.thread(handle.id)
        contents = [message["content"] for message in messages]
        assert len(contents) == len(said.contents), (contents, said.contents)
        for content, wanted in zip(contents, said.contents, strict=True):
            assert wanted in (content, number_of(content)), (contents, said.contents)
        assert len({message["id"] for message in messages}) == len(messages), messages
        found = (document.get("turns", 0), document.get("tools", 0), document.get("last"))
        assert found == (said.turns, said.tools, said.last), (found, said)
        return contents


def shape(contents: list[str]) -> list[str]:
    """Contents without what was drawn."""
    return [text.partition(" #")[0] for text in contents]


async def told_by(history: WorkflowHistory) -> Said:
    """What the thread of a run without continue-as-new must hold, from nothing but the history of the run."""
    converter, scheduled, said = DataConverter.default, {}, Said([], 0, 0, None)
    found: dict[int, tuple[str, Any, list[Any]]] = {}
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled[event.event_id] = event.activity_task_scheduled_event_attributes
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            done = event.activity_task_completed_event_attributes
            found[done.scheduled_event_id] = (
                scheduled[done.scheduled_event_id].activity_type.name,
                scheduled[done.scheduled_event_id].input.payloads,
                list(done.result.payloads),
            )
    for at in sorted(found):
        name, given, result = found[at]
        if name == "everthread.open_thread":
            said.contents = ["be brief"]
        elif name == "everthread.append":
            _, messages = await converter.decode(given)
            said.contents += [message["content"] for message in messages]
        elif name == "everthread.rewind":
            before = max(at for at, text in enumerate(said.contents) if not text.startswith("#"))
            said.tools -= len(said.contents) - before - 1
            said.contents, said.turns = said.contents[:before], said.turns - 1
            said.last = None if not said.turns else said.last
        elif name == "ask_model":
            (answer,) = await converter.decode(result, [Answer])
            said.contents.append(answer.text)
            said.turns, said.last = said.turns + 1, answer.text
        elif name in ("use_tool", "use_blocking_tool", "pay", "pay_unseen"):
            (tool,) = await converter.decode(result, [Found])
            if not tool.refused:
                said.contents.append(tool.number)
                said.tools += 1
    return said


async def reset(client: Client, handle: WorkflowHandle[Any, Any], event_id: int) -> WorkflowHandle[Any, Any]:
    """Begin anew from the end of a workflow task: the run that goes on from there."""
    run_id = handle.run_id or handle.result_run_id
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=run_id),
            workflow_task_finish_event_id=event_id,
            request_id=os.urandom(8).hex(),
            reason="test",
        )
    )
    return client.get_workflow_handle(handle.id, run_id=answer.run_id, result_type=None)


def workflow_tasks(history: WorkflowHistory) -> list[int]:
    """The events to which a run can be reset."""
    return [
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]


async def until(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, f"{what} didn't come"
        await asyncio.sleep(0.02)
