"""Workflows whose payloads are kept elsewhere. Imported by the sandbox of Temporal, so they import little."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow

WORDS = "Ann Onymous"
_SOON = timedelta(seconds=30)


@activity.defn
async def answer(said: list[str]) -> str:
    return f"{WORDS} said {len(said)} things"


@workflow.defn
class Asking:
    """One call, made by a worker of its own."""

    @workflow.run
    async def run(self, said: str, queue: str) -> str:
        return await workflow.execute_activity(answer, [said], task_queue=queue, start_to_close_timeout=_SOON)


@workflow.defn
class Child:
    @workflow.run
    async def run(self, said: str) -> str:
        return f"{said}, and her child"


@workflow.defn
class Talk:
    """Three parallel calls, a child, messages from outside, and a new run that goes on."""

    def __init__(self) -> None:
        self._heard: list[str] = []
        self._waits = False

    @workflow.run
    async def run(self, said: list[str], runs: int) -> list[str]:
        calls = (
            workflow.execute_activity(answer, [*said, f"{WORDS} {n}"], start_to_close_timeout=_SOON)
            for n in range(3)
        )
        said += await asyncio.gather(*calls)
        said.append(await workflow.execute_child_workflow(Child.run, WORDS))
        self._waits = True
        await workflow.wait_condition(lambda: bool(self._heard))
        said += self._heard
        if runs > 1:
            workflow.continue_as_new(args=[said, runs - 1])
        return said

    @workflow.signal
    def hear(self, words: str) -> None:
        self._heard.append(words)

    @workflow.query
    def waits(self) -> bool:
        return self._waits
