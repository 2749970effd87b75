"""Workflows that do what can't be done, or what is seldom done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    import everthread
    from everthread.engines import ThreadRef
    from everthread.engines.temporal import end, open_thread, step, store


@workflow.defn
class Careless:
    """Does what can't be done in workflow code."""

    @workflow.run
    async def run(self, what: str) -> str:
        if what == "large":
            return await workflow.execute_activity(
                echo, "x" * 3_000_000, start_to_close_timeout=timedelta(seconds=20)
            )
        try:
            if what == "store":
                everthread.open("memory:")
            elif what == "step":
                async with step(ThreadRef("t"), "k"):
                    pass
            elif what == "accessor":
                store()
        except everthread.UsageError as error:
            return str(error)
        return "nothing was said"


@activity.defn
async def echo(text: str) -> str:
    return text


@activity.defn
async def tell_wrong(what: str) -> None:
    reference = {
        "fenced": everthread.FencedError("must stop", attempt=1, newest=2),
        "usage": everthread.InvalidValueError("can't be stored", path="x"),
        "closed": everthread.StoreClosedError("closed"),
    }
    async with step(ThreadRef("wrong"), what):
        if activity.info().attempt < 3:
            raise reference[what]


@workflow.defn
class Wrong:
    @workflow.run
    async def run(self, what: str) -> None:
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=10))
        options: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=20), "retry_policy": policy}
        await workflow.execute_activity(tell_wrong, what, **options)


@activity.defn
async def note_locally(ref: ThreadRef) -> ThreadRef:
    async with step(ref, "note") as s:
        if not s.done:
            s.messages.append({"role": "user", "content": "noted"})
    return s.ref


@workflow.defn
class Local:
    """Takes a step in a local activity."""

    @workflow.run
    async def run(self) -> ThreadRef:
        ref = await open_thread()
        options: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=20)}
        return await end(await workflow.execute_local_activity(note_locally, ref, **options))
