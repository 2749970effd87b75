"""Workflows that are executed again, that do more after their end, and that have children on their thread."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import WorkflowIDReusePolicy

from everthread.engines import ThreadRef
from everthread.engines.temporal import append, end, open_thread, step

OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=20),
}

SENT: list[str] = []
_numbers = itertools.count(1)


@activity.defn
async def send(ref: ThreadRef) -> ThreadRef:
    async with step(ref, "send") as s:
        if not s.done:
            s.result = await s.call("send-report", SENT.append, ref.thread)
    return s.ref


@activity.defn
async def think(ref: ThreadRef) -> ThreadRef:
    """Say something else each time."""
    async with step(ref, "think") as s:
        if not s.done:
            s.messages.append({"role": "assistant", "content": f"thought {next(_numbers)}"})
    return s.ref


@activity.defn
async def leave() -> None:
    """An activity without a step, such as one that closes a sandbox."""


@workflow.defn
class Daily:
    @workflow.run
    async def run(self, effects: Any, again: bool = False) -> ThreadRef:
        mode: Any = "continue" if again else "new"
        ref = await open_thread(mode=mode, effects=effects, agent="reporter")
        ref = await workflow.execute_activity(send, ref, **OPTIONS)
        if workflow.info().continued_run_id is None and not again:
            workflow.continue_as_new(args=[effects, True])
        return await end(ref, turns=1, usage={"tokens": 7})


@workflow.defn
class Leaver:
    @workflow.run
    async def run(self) -> ThreadRef:
        ref = await end(await workflow.execute_activity(think, await open_thread(), **OPTIONS))
        await workflow.execute_activity(leave, **OPTIONS)
        return ref


@workflow.defn
class Child:
    @workflow.run
    async def run(self, mode: Any, source: ThreadRef) -> ThreadRef:
        ref = await open_thread(mode=mode, source=source)
        ref = await append(ref, {"id": "task", "role": "user", "content": "work"})
        return await end(await workflow.execute_activity(think, ref, **OPTIONS))


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, mode: Any) -> list[ThreadRef]:
        ref = await open_thread(system="be brief")
        ref = await workflow.execute_activity(think, ref, **OPTIONS)
        made = await workflow.execute_child_workflow(
            Child.run,
            args=[mode, ref],
            id=workflow.info().workflow_id + "/child",
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        ref = made if made.thread == ref.thread else ref
        return [await end(await append(ref, {"id": "done", "role": "user", "content": "done"})), made]


WORKFLOWS = [Daily, Leaver, Child, Parent]
ACTIVITIES = [send, think, leave]
