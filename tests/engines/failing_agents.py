"""Agents made with ``run_agent`` whose tools fail, and whose senders tell them nonsense."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from everthread.engines import (
        AgentResult,
        AgentState,
        Answer,
        Inbox,
        ThreadRef,
        ToolCall,
        ToolRequest,
        Turn,
        run_agent,
    )
    from everthread.engines.temporal import open_thread, step


def options(attempts: int = 1) -> dict[str, Any]:
    return {
        "start_to_close_timeout": timedelta(seconds=60),
        "heartbeat_timeout": timedelta(seconds=10),
        "retry_policy": RetryPolicy(initial_interval=timedelta(milliseconds=20), maximum_attempts=attempts),
    }


class Desk:
    """The activities of one test, which says when they go on."""

    def __init__(self) -> None:
        self.began, self.free, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @activity.defn
    async def ask(self, turn: Turn, tools: list[str]) -> Answer:
        """The model wants these tools in its first turn, and none in the next."""
        async with step(turn.ref, *turn.key) as made:
            if not made.done:
                made.messages.append({"id": turn.message_id, "role": "assistant", "content": "hm"})
        wanted = tools if turn.number == 1 else []
        return Answer(made.ref, "hm", [ToolRequest(f"c{slot}", name) for slot, name in enumerate(wanted)])

    @activity.defn
    async def slow(self, call: ToolCall) -> ThreadRef:
        """Like a blocking activity, it isn't told that it was cancelled."""
        return await asyncio.shield(asyncio.create_task(self._slow(call)))

    async def _slow(self, call: ToolCall) -> ThreadRef:
        try:
            async with step(call.ref, *call.key, slot=call.slot) as made:
                self.began.set()
                await self.free.wait()
                made.messages.append({"role": "tool", "content": "late"})
            return made.ref
        finally:
            self.over.set()

    @activity.defn
    async def refuse(self, call: ToolCall) -> ThreadRef:
        await self.began.wait()
        raise ApplicationError("no such city", type="LookupError", non_retryable=True)

    @activity.defn
    async def broken(self, call: ToolCall) -> ThreadRef:
        async with step(call.ref, *call.key, slot=call.slot):
            raise RuntimeError("broken pipe")

    @activity.defn
    async def wait(self) -> None:
        self.began.set()
        await self.free.wait()

    @property
    def activities(self) -> list[Any]:
        return [self.ask, self.slow, self.refuse, self.broken, self.wait]


@dataclass
class Job:
    tools: list[str]
    attempts: int = 1
    recovers: bool = False
    chat: bool = False
    #: Whether the end of the run waits for the test.
    lingers: bool = False


@workflow.defn(name="Clumsy")
class Clumsy:
    def __init__(self) -> None:
        self.state, self.inbox = AgentState("clumsy"), Inbox()

    @workflow.query
    def status(self) -> str:
        return self.state.status

    @workflow.update
    async def tell(self, message: dict[str, Any]) -> bool:
        return self.inbox.put(message)

    @workflow.update
    async def tell_checked(self, message: dict[str, Any]) -> bool:
        return self.inbox.put(message)

    @tell_checked.validator
    def _check(self, message: dict[str, Any]) -> None:
        self.inbox.check(message)

    @workflow.signal
    async def hint(self, message: dict[str, Any]) -> None:
        self.inbox.put(message)

    @workflow.signal
    def close(self) -> None:
        self.inbox.close()

    def plain(self, call: ToolCall) -> str:
        raise ValueError("this tool is broken")

    @workflow.run
    async def run(self, job: Job) -> AgentResult:
        def tool(activity: Any) -> Any:
            return lambda call: workflow.execute_activity(activity, call, **options(job.attempts))

        async def caught(call: ToolCall) -> Any:
            try:
                return await tool(Desk.broken)(call)
            except ActivityError:
                return "caught"

        async def linger() -> None:
            if job.lingers:
                await workflow.execute_activity(Desk.wait, **options())

        return await run_agent(
            open_thread(),
            message={"role": "user", "content": "go"},
            model=lambda turn: workflow.execute_activity(Desk.ask, args=[turn, job.tools], **options()),
            tools={
                "slow": tool(Desk.slow),
                "refuse": tool(Desk.refuse),
                "broken": tool(Desk.broken),
                "caught": caught,
                "plain": self.plain,
            },
            state=self.state,
            inbox=self.inbox,
            chat=job.chat,
            recover=(lambda call, error: "recovered") if job.recovers else None,
            hooks={"on_session_end": linger},
        )


@workflow.defn(name="Clumsy")
class Repaired(Clumsy):
    def plain(self, call: ToolCall) -> str:
        return "repaired"

    @workflow.run
    async def run(self, job: Job) -> AgentResult:
        return await Clumsy.run(self, job)
