"""An agent on DBOS: its process is killed, its workflow forked and rewound; each thread is what the history
of its workflow says.

python examples/dbos_agent.py
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from dbos import DBOS, SetWorkflowID

import everthread
from everthread.engines import ThreadRef, latest
from everthread.engines.dbos import append, close, end, open_thread, step, use


@DBOS.step()
async def ask_model(ref: ThreadRef, turn: int) -> tuple[ThreadRef, list[str]]:
    """What was said stays in the thread; the workflow gets a pointer, and what it must know."""
    async with step(ref, "turn", turn, "model") as s:
        if not s.done:
            messages = await s.thread.messages.read()
            asked = sum(message["role"] == "tool" for message in messages)
            text = f"It is mild in {asked} cities." if asked else "I look."
            s.messages.append({"role": "assistant", "content": text})
            s.result = [] if asked else ["Lisbon", "Oslo", "Turin"]
    return s.ref, s.result


@DBOS.step()
async def look_up(ref: ThreadRef, turn: int, slot: int, city: str) -> ThreadRef:
    async with step(ref, "turn", turn, "tools", slot=slot) as s:
        if not s.done:
            s.messages.append({"role": "tool", "content": f"{city}: 21 °C"})
    if city == "Oslo" and os.environ.pop("DIES", None):
        # It is recorded, but DBOS doesn't know.
        os.kill(os.getpid(), signal.SIGKILL)
    return s.ref


@DBOS.workflow()
async def agent(question: str) -> ThreadRef:
    ref = await open_thread(system="You know the weather.")
    ref = await append(ref, {"id": "question", "role": "user", "content": question})
    for turn in range(1, 10):
        ref, cities = await ask_model(ref, turn)
        if not cities:
            break
        tools = [look_up(ref, turn, slot, city) for slot, city in enumerate(cities)]
        ref = latest(await asyncio.gather(*tools))
    return await end(ref)


async def say(url: str, name: str) -> None:
    """Whoever wants to know asks the store; DBOS isn't needed."""
    async with everthread.open_async(url) as store:
        for message in await (await store.thread(name)).messages.read():
            print(f"  {message['role']}: {message['content']}")


async def begin() -> None:
    with SetWorkflowID("weather"):
        await (await DBOS.start_workflow_async(agent, "Is it mild?")).get_result()


async def go_on(url: str) -> None:
    # This process found the workflow pending when it was launched.
    await (await DBOS.retrieve_workflow_async("weather")).get_result()
    await say(url, "weather")
    # A fork from the third step on, the model's first answer, has a thread of its own.
    fork = await (await DBOS.fork_workflow_async("weather", 3)).get_result()
    print(f"forked: {fork.thread.partition('~')[0]} and one of its own")
    await say(url, fork.thread)
    # A rewind to the seventh step, the model's last answer, takes the thread back.
    await (await DBOS.rewind_workflow_async("weather", start_step=7)).get_result()
    print("rewound")
    await say(url, "weather")


def main(folder: str, *, begins: bool) -> None:
    url = f"sqlite:///{folder}/agent.db"
    DBOS(
        config={
            "name": "weather",
            "system_database_url": f"sqlite:///{folder}/dbos.db",
            "application_version": "1",
            "log_level": "ERROR",
        }
    )
    use(url)
    DBOS.launch()
    asyncio.run(begin() if begins else go_on(url))
    DBOS.destroy()
    close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], begins=True)
    else:
        with tempfile.TemporaryDirectory() as place:
            dying = [sys.executable, __file__, place]
            died = subprocess.run(dying, env={**os.environ, "DIES": "1"}, check=False)
            print(f"the process died: {signal.Signals(-died.returncode).name}", flush=True)
            main(place, begins=False)
