"""A graph in a workflow of Temporal's plugin for LangGraph, its checkpoints forwarded."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from temporalio import workflow
from temporalio.langgraph import graph

from everthread.engines.temporal.checkpoints import ForwardingSaver


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


async def plan(state: Steps) -> dict[str, Any]:
    return {"steps": [f"plan {len(state['steps'])}"]}


async def confirm(state: Steps) -> dict[str, Any]:
    return {"steps": [f"confirmed: {interrupt('may I?')}"]}


def built() -> Any:
    made = StateGraph(Steps)
    made.add_node("plan", plan, metadata={"execute_in": "activity"})
    made.add_node("confirm", confirm, metadata={"execute_in": "workflow"})
    made.add_edge(START, "plan")
    made.add_edge("plan", "confirm")
    made.add_edge("confirm", END)
    return made


@workflow.defn
class LangGraphTalk:
    @workflow.run
    async def run(self, thread_id: str) -> list[str]:
        compiled = graph("g").compile(checkpointer=ForwardingSaver())
        config: Any = {"configurable": {"thread_id": thread_id}}
        await compiled.ainvoke({"steps": []}, config)
        found = await compiled.ainvoke(Command(resume="yes"), config)
        steps: list[str] = found["steps"]
        return steps
