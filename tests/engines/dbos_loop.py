"""An agent made with ``run_agent`` on DBOS: a workflow, and the steps of its model and its tools."""

from __future__ import annotations

import asyncio
from typing import Any

from dbos import DBOS

from everthread import Retention
from everthread.engines import (
    AgentResult,
    AgentState,
    Answer,
    Rewind,
    ThreadRef,
    ToolCall,
    ToolRequest,
    Turn,
    run_agent,
)
from everthread.engines.dbos import append, open_thread, step, store
from tests.engines.dbos_agent import drawn, world

#: What the model says, by the number of answers that stand in the thread, and the tools that it wants.
SCRIPT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("look", ("weigh", "search", "weigh")),
    ("judge", ("weigh", "judge")),
    ("done", ()),
)


@DBOS.step()
async def ask(turn: Turn) -> Answer:
    async with step(turn.ref, *turn.key) as made:
        if not made.done:
            messages = await made.messages.read()
            text, tools = SCRIPT[sum(each["role"] == "assistant" for each in messages)]
            made.messages.append({"id": turn.message_id, "role": "assistant", "content": drawn(text)})
            made.result = [text, [[f"{text}.{slot}", name] for slot, name in enumerate(tools)]]
    text, calls = made.result
    return Answer(made.ref, text, [ToolRequest(*each) for each in calls], {"tokens": 1})


@DBOS.step()
async def search(call: ToolCall) -> ThreadRef:
    async with step(call.ref, *call.key, slot=call.slot) as made:
        if not made.done:
            made.messages.append({"role": "tool", "content": drawn(call.id)})
    return made.ref


@DBOS.step()
async def weigh(call: ToolCall) -> str:
    """One whose result the loop appends. The first of a turn ends last."""
    await asyncio.sleep(0.05 if call.slot == 0 else 0)
    world.visit(f"weighed-{call.turn}.{call.slot}")
    return drawn(call.id)


async def judge(call: ToolCall) -> Any:
    # The first plan isn't good enough.
    return Rewind("think again") if call.turn == 2 else "good"


@DBOS.workflow()
async def loop_agent() -> AgentResult:
    state = AgentState("weaver")

    async def weighed(call: ToolCall) -> str:
        state.merge_update(weighed=call.id)
        return await weigh(call)

    return await run_agent(
        open_thread(system="be brief"),
        model=ask,
        tools={"search": search, "weigh": weighed, "judge": judge},
        message={"role": "user", "content": "go on"},
        state=state,
    )


@DBOS.step(retries_allowed=True, max_attempts=2, interval_seconds=0.01)
async def refuse(turn: Turn) -> Answer:
    raise ValueError("no such city\nand a second line")


@DBOS.workflow()
async def failing_agent() -> None:
    await run_agent(open_thread(), model=refuse)


@DBOS.step()
async def ask_once(turn: Turn, tool: str) -> Answer:
    """The model wants this tool in its first turn, and none in the next."""
    async with step(turn.ref, *turn.key) as made:
        if not made.done:
            made.messages.append({"id": turn.message_id, "role": "assistant", "content": "hm"})
    return Answer(made.ref, "hm", [ToolRequest("c0", tool)] if turn.number == 1 else [])


@DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.01)
async def broken(call: ToolCall) -> ThreadRef:
    async with step(call.ref, *call.key, slot=call.slot):
        raise RuntimeError("broken pipe")


async def plain(call: ToolCall) -> str:
    raise LookupError("this tool is broken")


@DBOS.workflow()
async def clumsy_agent(tool: str, recovers: bool) -> AgentResult:
    return await run_agent(
        open_thread(),
        model=lambda turn: ask_once(turn, tool),
        tools={"broken": broken, "plain": plain},
        recover=(lambda call, error: "recovered") if recovers else None,
    )


@DBOS.step()
async def forget(ref: ThreadRef) -> None:
    """Somebody else writes, and gc() takes all but the newest version."""
    opened = await store()
    thread = await opened.thread(ref.thread)
    thread.messages.append({"role": "user", "content": "meanwhile"})
    await thread.commit()
    await opened.gc(Retention(keep_last=1, keep_labelled=False))


@DBOS.workflow()
async def sleeper() -> None:
    ref = await open_thread()
    await forget(ref)
    await append(ref, {"id": "late", "role": "user", "content": "late"})
