"""A parent workflow that calls subagents, most of them child workflows; and what its threads must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from everthread import AsyncStore
    from everthread.engines import ThreadRef
    from everthread.engines.temporal import append, end, open_thread, step
    from everthread.subagents import Outcome, Subagent, Task, subagents_of
    from tests.engines.world import World, drawn

#: The turns of a parent: each asks for one subagent of this mode, and of this name.
EVERY_MODE = ("new", "continue", "fork", "parent", "continue", "fork", "new", "parent")
THOUGHTS = 2

LONG: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=2),
    "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
}


@dataclass
class Asked:
    ref: ThreadRef
    call_id: str


@dataclass
class Begun:
    ref: ThreadRef
    task: Task


@dataclass
class Thought:
    ref: ThreadRef
    text: str


async def delegate(task: Task) -> Outcome:
    """What a subagent's ``start`` is in workflow code."""
    return await workflow.execute_child_workflow(
        Helper.run,
        task,
        id=task.key,
        # A run that was reset has perhaps left one behind, which is being ended just now.
        id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
    )


def subagent(mode: Any) -> Subagent:
    """The same in the workflow and in its activities."""
    return Subagent(mode, delegate, thread=mode, result=dict[str, list[str]])


class Office:
    """The activities."""

    def __init__(self, world: World) -> None:
        self.world = world

    @activity.defn
    async def ask(self, ref: ThreadRef, turn: int, mode: str) -> Asked:
        async with step(ref, "turn", turn, "ask") as s:
            if not s.done:
                call_id = f"{mode}-{turn}"
                calls = [{"id": call_id, "name": mode}]
                s.messages.append({"role": "assistant", "content": drawn("ask"), "tool_calls": calls})
                s.result = call_id
        await self.world.visit("asked")
        return Asked(s.ref, s.result)

    @activity.defn
    async def begin(self, ref: ThreadRef, turn: int, mode: str, call_id: str, before: ThreadRef) -> Begun:
        async with step(ref, "turn", turn, "begin") as s:
            if not s.done:
                task = await subagent(mode).begin(s, call_id, f"do {call_id}", before=before.version)
                await self.world.visit("beginning")
                s.result = vars(task)
        await self.world.visit("begun")
        return Begun(s.ref, Task(**s.result))

    @activity.defn
    async def finish(self, ref: ThreadRef, turn: int, task: Task, answer: Outcome) -> ThreadRef:
        async with step(ref, "turn", turn, "finish") as s:
            if not s.done:
                outcome = await subagent(task.mode).end(s, task, answer)
                await self.world.visit("finishing")
                told = {"role": "tool", "tool_call_id": task.call, "content": outcome.text}
                s.messages.append(told)
        await self.world.visit("finished")
        return s.ref

    @activity.defn
    async def think(self, ref: ThreadRef, number: int, log: str, prompt: str) -> Thought:
        async with step(ref, "think", number, prompt) as s:
            if not s.done:
                await self.world.visit("thinking")
                text = drawn(f"thought {number}")
                s.log(log).append({"role": "assistant", "content": text})
                s.result = text
        await self.world.visit("thought")
        return Thought(s.ref, s.result)

    @property
    def activities(self) -> list[Any]:
        return [self.ask, self.begin, self.finish, self.think]


async def think_about(ref: ThreadRef, task: Task) -> tuple[ThreadRef, list[str]]:
    said = []
    for number in range(THOUGHTS):
        thought: Thought = await workflow.execute_activity(
            Office.think, args=[ref, number, task.log, task.prompt], **LONG
        )
        ref = thought.ref
        said.append(thought.text)
    return ref, said


@workflow.defn
class Helper:
    @workflow.run
    async def run(self, task: Task) -> Outcome:
        ref = ThreadRef(task.thread, task.version)
        prompt = {"id": f"prompt-{task.key}", "role": "user", "content": task.prompt}
        ref, said = await think_about(await append(ref, prompt), task)
        ref = await end(ref)
        return Outcome({"said": said}, version=ref.version, reason="completed", usage={"thoughts": len(said)})


@workflow.defn
class Boss:
    @workflow.run
    async def run(self, modes: list[str]) -> ThreadRef:
        ref = await open_thread(system="be brief")
        for turn, mode in enumerate(modes):
            before = ref
            asked: Asked = await workflow.execute_activity(Office.ask, args=[ref, turn, mode], **LONG)
            arguments = [asked.ref, turn, mode, asked.call_id, before]
            begun: Begun = await workflow.execute_activity(Office.begin, args=arguments, **LONG)
            ref = begun.ref
            if mode == "parent":
                # A child workflow is another run, which would take the parent's thread over.
                ref, said = await think_about(ref, begun.task)
                answer = Outcome({"said": said})
            else:
                try:
                    answer = await subagent(mode).start(begun.task)
                except ChildWorkflowError as error:
                    answer = Outcome(error=str(error), reason="failed")
            ref = await workflow.execute_activity(Office.finish, args=[ref, turn, begun.task, answer], **LONG)
        return await end(ref)


async def check(store: AsyncStore, name: str, modes: list[str]) -> None:
    """The parent holds a result for each call, once, and each child what its result says, from what it was to
    begin with."""
    parent = await store.thread(name)
    messages = await parent.messages.read()
    contents = [message["content"] for message in messages]
    assert len({message["id"] for message in messages}) == len(messages) == 1 + 2 * len(modes)
    children = {child.call: child for child in subagents_of(parent)}
    lines: dict[str, list[str]] = {"parent": [], "new": [], "continue": [], "fork": []}
    for turn, mode in enumerate(modes):
        asked, told = messages[1 + 2 * turn], messages[2 + 2 * turn]
        call_id = f"{mode}-{turn}"
        assert asked["tool_calls"][0]["id"] == told["tool_call_id"] == call_id, (asked, told)
        said = [f"do {call_id}", *json.loads(told["content"])["said"]]
        if mode == "parent":
            lines[mode] += said[1:]
            continue
        if mode == "new":
            lines[mode] = []
        elif mode == "fork" and not lines[mode]:
            lines[mode] = contents[: 1 + 2 * turn]
        lines[mode] = [*lines[mode], *said]
        if call_id not in children:
            assert mode == "continue"
            continue
        child = children[call_id]
        assert (child.status, child.reason, child.usage["thoughts"]) == ("completed", "completed", THOUGHTS)
        past = await (await store.thread(child.thread)).at(child.version or "")
        found = await past.messages.read()
        assert [message["content"] for message in found] == lines[mode], (call_id, found, lines[mode])
        assert len({message["id"] for message in found}) == len(found)
    here = await parent.log("subagent/parent").read()
    assert [message["content"] for message in here] == lines["parent"]
