"""An agent of the OpenAI Agents SDK in a workflow, with the thread as its memory."""

from __future__ import annotations

from dataclasses import dataclass

from agents import Agent, Runner
from temporalio import workflow

from everthread.engines import ThreadRef
from everthread.engines.temporal import ThreadSession, end, open_thread


@dataclass
class Said:
    ref: ThreadRef
    texts: list[str]


@workflow.defn
class OpenAITalk:
    @workflow.run
    async def run(self, questions: list[str]) -> Said:
        session = ThreadSession(await open_thread())
        agent = Agent(name="weaver")
        results = [await Runner.run(agent, question, session=session) for question in questions]
        return Said(await end(session.ref), [result.final_output for result in results])
