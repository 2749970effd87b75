"""An agent made with ``run_agent``: a workflow, and the activities of its model and its tools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

from everthread import Retention
from everthread.engines import (
    AgentResult,
    AgentState,
    Answer,
    Carry,
    Inbox,
    Rewind,
    ThreadRef,
    ToolCall,
    ToolRequest,
    Turn,
    WaitForInput,
    run_agent,
)
from everthread.engines.temporal import append, load, open_thread, recycle_due, step, store

#: What the model says, by the number of answers that stand in the thread, and the tools that it wants.
SCRIPT = (
    ("look", ("search", "search", "note")),
    ("judge", ("search", "judge")),
    ("may I?", ("ask",)),
    ("done", ()),
)
OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=10),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100)),
}


@activity.defn
async def ask_model(turn: Turn) -> Answer:
    async with step(turn.ref, *turn.key) as made:
        if not made.done:
            messages = await made.messages.read()
            text, tools = SCRIPT[sum(each["role"] == "assistant" for each in messages)]
            made.messages.append({"id": turn.message_id, "role": "assistant", "content": text})
            made.result = [text, [[f"{text}.{slot}", name] for slot, name in enumerate(tools)]]
    text, calls = made.result
    return Answer(made.ref, text, [ToolRequest(*each) for each in calls], {"tokens": 1})


@activity.defn
async def search(call: ToolCall) -> ThreadRef:
    async with step(call.ref, *call.key, slot=call.slot) as made:
        if not made.done:
            made.messages.append({"role": "tool", "content": f"{call.id} in turn {call.turn}"})
            made.state.increment("searches")
    return made.ref


@dataclass
class LoopTask:
    prompt: str
    events_max: int | None = None
    wait_s: float | None = None
    carry: Carry | None = None
    runs: int = 1


@dataclass
class Outcome:
    result: AgentResult
    runs: int
    told: list[str]


@workflow.defn
class LoopAgent:
    def __init__(self) -> None:
        self.state = AgentState("weaver")
        self.inbox = Inbox()
        self.told: list[str] = []

    @workflow.query
    def status(self) -> str:
        return self.state.status

    @workflow.update
    async def tell(self, message: dict[str, Any]) -> bool:
        return self.inbox.put(message)

    @workflow.run
    async def run(self, task: LoopTask) -> Outcome:
        async def ask(turn: Turn) -> Answer:
            return await workflow.execute_activity(ask_model, turn, **OPTIONS)

        async def find(call: ToolCall) -> ThreadRef:
            return await workflow.execute_activity(search, call, **OPTIONS)

        async def note(call: ToolCall) -> str:
            self.state.merge_update(noted=call.id)
            return "noted"

        async def judge(call: ToolCall) -> Any:
            # The first plan isn't good enough.
            self.state.merge_update(judged=call.turn)
            return Rewind("think again") if call.turn == 2 else "good"

        async def wait(call: ToolCall) -> WaitForInput:
            return WaitForInput("asked")

        result = await run_agent(
            None if task.carry else open_thread(system="be brief"),
            model=ask,
            tools={"search": find, "note": note, "judge": judge, "ask": wait},
            message={"role": "user", "content": task.prompt},
            hooks={
                "on_session_end": lambda reason, turns: self.told.append(f"end {reason} {turns}"),
                "on_session_exit": lambda: self.told.append("exit"),
            },
            state=self.state,
            inbox=self.inbox,
            wait_s=task.wait_s,
            recycle=lambda: recycle_due(events_max=task.events_max),
            carry=task.carry,
        )
        if result.carry is not None:
            workflow.continue_as_new(replace(task, carry=result.carry, runs=task.runs + 1))
        return Outcome(result, task.runs, self.told)


@activity.defn
async def refuse(turn: Turn) -> Answer:
    raise ValueError("no such city\nand a second line")


@workflow.defn
class FailingAgent:
    @workflow.run
    async def run(self) -> None:
        async def ask(turn: Turn) -> Answer:
            once = {**OPTIONS, "retry_policy": RetryPolicy(maximum_attempts=1)}
            return await workflow.execute_activity(refuse, turn, **once)

        await run_agent(open_thread(), model=ask)


@activity.defn
async def forget(ref: ThreadRef) -> None:
    """Somebody else writes, and gc() takes all but the newest version."""
    thread = await store().thread(ref.thread)
    thread.messages.append({"role": "user", "content": "meanwhile"})
    await thread.commit()
    await store().gc(Retention(keep_last=1, keep_labelled=False))


@workflow.defn
class Sleeper:
    @workflow.run
    async def run(self, verb: str) -> None:
        ref = await open_thread()
        await workflow.execute_activity(forget, ref, **OPTIONS)
        if verb == "load":
            await load(ref)
        else:
            await append(ref, {"id": "late", "role": "user", "content": "late"})


ACTIVITIES = [ask_model, search, refuse, forget]
