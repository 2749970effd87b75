"""An agent whose tools are subagents and files of a sandbox, as workflows of Temporal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow

from everthread.engines import (
    AgentResult,
    Answer,
    Sandbox,
    SubagentTask,
    SubagentTool,
    ThreadRef,
    ToolCall,
    ToolRequest,
    Turn,
    run_agent,
)
from everthread.engines.temporal import append, end, open_thread, step, store
from everthread.sandboxes import AsyncLocalSandboxes

OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=60),
    "heartbeat_timeout": timedelta(seconds=20),
}


@dataclass
class Job:
    """The work of a parent: the tool that each turn asks for, and the policies of the subagent."""

    tools: list[str]
    thread: str = "new"
    sandbox: str = "none"


@dataclass
class Asked:
    turn: Turn
    tools: list[str] = field(default_factory=list)


@dataclass
class Write:
    call: ToolCall
    sandbox: str


def _write(folder: str, name: str) -> None:
    Path(folder, name).write_text(name)


class Activities:
    """The activities of parent and subagent; ``root`` is the directory of the sandboxes."""

    def __init__(self, root: Path) -> None:
        self.root, self._count = root, 0
        self.events: list[str] = []

    @activity.defn
    async def ask(self, asked: Asked) -> Answer:
        turn = asked.turn
        async with step(turn.ref, *turn.key) as s:
            if not s.done:
                text = f"{activity.info().workflow_type} {turn.number}"
                s.messages.append({"id": turn.message_id, "role": "assistant", "content": text})
                s.result = text
        wanted = asked.tools[turn.number - 1 : turn.number]
        calls = [ToolRequest(f"call-{turn.number}", name) for name in wanted]
        return Answer(s.ref, s.result, calls, {"tokens": 5})

    @activity.defn
    async def create(self) -> str:
        self.events.append("create")
        return f"{activity.info().workflow_id}-box"

    @activity.defn
    async def destroy(self, name: str) -> None:
        self.events.append(f"destroy {name}")

    @activity.defn
    async def write(self, write: Write) -> ThreadRef:
        """Write a file that no other call writes, in the sandbox as it is opened without a snapshot."""
        call = write.call
        async with step(call.ref, *call.key, slot=call.slot) as s:
            if not s.done:
                self._count += 1
                name = f"file-{self._count}"
                opened = await AsyncLocalSandboxes(store(), self.root).open(write.sandbox, shutdown="keep")
                async with opened as box, box.working() as path:
                    _write(path, name)
                s.messages.append({"role": "tool", "tool_call_id": call.id, "content": name})
        return s.ref

    @property
    def all(self) -> Sequence[Any]:
        return [self.ask, self.create, self.destroy, self.write]


def own_sandbox(**options: Any) -> Sandbox:
    return Sandbox(
        lambda restore: workflow.execute_activity(Activities.create, **OPTIONS),
        lambda name: workflow.execute_activity(Activities.destroy, name, **OPTIONS),
        **options,
    )


def model(tools: Sequence[str]) -> Any:
    return lambda turn: workflow.execute_activity(Activities.ask, Asked(turn, list(tools)), **OPTIONS)


def writer(sandbox: Any) -> Any:
    return lambda call: workflow.execute_activity(Activities.write, Write(call, sandbox()), **OPTIONS)


@workflow.defn
class Helper:
    @workflow.run
    async def run(self, task: SubagentTask) -> AgentResult:
        tools = ["write"] if task.sandbox_id else []
        return await run_agent(
            open_thread(task.thread, mode=task.mode, source=task.source),  # type: ignore[arg-type]
            message={"role": "user", "content": f"do {task.id.rpartition('/')[2]}"},
            model=model(tools),
            tools={"write": writer(lambda: task.sandbox_id)},
            sandbox=task.sandbox_or(own_sandbox()),
            max_turns=5,
        )


@workflow.defn
class Boss:
    @workflow.run
    async def run(self, job: Job) -> AgentResult:
        name = f"{workflow.info().workflow_id}-box"
        helper = SubagentTool(
            lambda task: workflow.execute_child_workflow(Helper.run, task, id=task.id),
            thread=job.thread,  # type: ignore[arg-type]
            sandbox=job.sandbox,  # type: ignore[arg-type]
        )
        return await run_agent(
            open_thread(system="be brief"),
            message={"role": "user", "content": "begin"},
            model=model(job.tools),
            tools={"helper": helper, "write": writer(lambda: name)},
            sandbox=own_sandbox(lazy=True) if job.sandbox == "inherit" else own_sandbox(),
            max_turns=9,
        )


def shout(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"].upper()}


def without_first(messages: Sequence[Any]) -> Sequence[Any]:
    return messages[1:]


@workflow.defn
class Forker:
    """Forks its thread with hooks that are named, as text or as the function."""

    @workflow.run
    async def run(self, prepare: str | None, transform: str | None) -> ThreadRef:
        ref = await append(
            await open_thread(system="first"), {"id": "m", "role": "user", "content": "second"}
        )
        name = f"{workflow.info().workflow_id}/fork"
        hook = shout if transform == "shout" else transform
        fork = await open_thread(name, mode="fork", source=ref, prepare=prepare, transform=hook)
        await end(ref)
        return await end(fork)


WORKFLOWS = [Boss, Helper, Forker]
