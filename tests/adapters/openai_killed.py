"""A run of an agent that kills itself within a tool, and the run that goes on: ``URL JOURNAL first|second``.

What the tools did is in the journal, so that nothing done twice goes unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool

from everthread.adapters.openai_agents import EverthreadSession
from tests.adapters.openai_scripted import Scripted, call, say


async def main(url: str, journal: str, which: str) -> None:
    @function_tool
    def book(number: int) -> str:
        """Book an invoice."""
        with Path(journal).open("a", encoding="utf-8") as file:
            file.write(f"{number}\n")
        if which == "first" and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked {number}"

    steps = [
        call("book", f"call_{number}", number=number) for number in ((1, 2) if which == "first" else (3,))
    ]
    model = Scripted(*steps, say("all booked"))
    agent = Agent(name="clerk", model=model, tools=[book])
    session = EverthreadSession("books", url)
    asked = "book 1, 2 and 3" if which == "first" else "go on"
    result = await Runner.run(agent, asked, session=session, run_config=RunConfig(tracing_disabled=True))
    print(json.dumps([result.final_output, model.asked[0]]))
    session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
