"""The workflow of the scripted agent: a user's own loop over the verbs of ``everthread.engines.temporal``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from everthread.engines import ThreadRef, latest
    from everthread.engines.temporal import append, end, open_thread, recycle_due, rewind
    from tests.engines.world import Agency, Answer, Call, Found

LONG: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=1),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
}


@dataclass
class Task:
    prompt: str | None
    mode: str = "new"
    thread: str | None = None
    source: ThreadRef | None = None
    turns_max: int = 100
    #: What a tool is called by.
    tool: str = "use_tool"
    #: Goes on waiting for input after an answer.
    is_chat: bool = False
    events_max: int | None = None
    bytes_max: int | None = None
    #: Carried over by continue-as-new.
    ref: ThreadRef | None = None
    turns: int = 0
    inbox: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    ref: ThreadRef
    text: str
    turns: int
    reason: str


@workflow.defn
class Agent:
    def __init__(self) -> None:
        self.ref: ThreadRef | None = None
        self.inbox: list[dict[str, Any]] = []
        self.turns = 0
        self.is_waiting = False
        self.is_ended = False

    @workflow.query
    def pointer(self) -> ThreadRef | None:
        return self.ref

    @workflow.query
    def waiting(self) -> bool:
        return self.is_waiting and not self.inbox

    @workflow.update
    async def tell(self, message: dict[str, Any]) -> None:
        self.inbox.append(message)

    @workflow.signal
    def finish(self) -> None:
        self.is_ended = True

    @workflow.run
    async def run(self, task: Task) -> Outcome:
        self.inbox = [*task.inbox, *self.inbox]
        self.turns = task.turns
        self.ref = task.ref
        if self.ref is None:
            self.ref = await open_thread(
                task.thread,
                mode=task.mode,
                source=task.source,
                system="be brief",  # type: ignore[arg-type]
            )
            if task.prompt is not None:
                told = f"prompt-{workflow.info().original_execution_run_id}"
                self.ref = await append(self.ref, {"id": told, "role": "user", "content": task.prompt})
        try:
            outcome = await self.work(task)
            return replace(outcome, ref=await end(outcome.ref, outcome.reason))
        except BaseException as error:
            if is_cancelled_exception(error):
                await end(self.ref, "cancelled")
            raise

    async def work(self, task: Task) -> Outcome:
        assert self.ref is not None
        text = ""
        while True:
            while self.inbox:
                self.ref = await append(self.ref, self.inbox.pop(0))
                self.is_waiting = False
            if recycle_due(events_max=task.events_max, bytes_max=task.bytes_max):
                workflow.continue_as_new(
                    replace(task, ref=self.ref, turns=self.turns, inbox=self.inbox, prompt=None)
                )
            if self.is_waiting:
                await workflow.wait_condition(lambda: bool(self.inbox) or self.is_ended)
                if not self.inbox:
                    return Outcome(self.ref, text, self.turns, "completed")
                continue
            if self.turns >= task.turns_max:
                return Outcome(self.ref, text, self.turns, "max_turns")
            before = self.ref
            self.turns += 1
            answer: Answer = await workflow.execute_activity(
                Agency.ask_model, args=[self.ref, self.turns], **LONG
            )
            self.ref, text = answer.ref, answer.text
            if answer.calls:
                self.ref = await self.use_tools(task, before, self.ref, answer.calls)
            elif task.is_chat:
                self.is_waiting = True
            else:
                return Outcome(self.ref, text, self.turns, "completed")

    async def use_tools(self, task: Task, before: ThreadRef, ref: ThreadRef, calls: list[Call]) -> ThreadRef:
        tools = [
            workflow.start_activity(task.tool, args=[ref, self.turns, slot, call], result_type=Found, **LONG)
            for slot, call in enumerate(calls)
        ]
        found: list[Found] = []
        for tool in workflow.as_completed(tools):
            found.append(await tool)
            if found[-1].refused:
                for each in tools:
                    each.cancel()
                return await rewind(ref, before)
        return latest([each.ref for each in found])
