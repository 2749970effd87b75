"""An agent in a process of its own, which the test kills: python -m tests.adapters.langgraph.killed URL N."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from tests.adapters.langgraph.graphs import Talk, config

STEPS = 6


def build(die_at: int) -> StateGraph[Talk]:
    def work(state: Talk) -> dict[str, Any]:
        count = state.get("count", 0)
        print(f"work {count}", flush=True)
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {
            "messages": [AIMessage(f"step {count}", id=f"m{count}")],
            "count": count + 1,
            "steps": [str(count)],
        }

    builder = StateGraph(Talk)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["count"] >= STEPS else "work")
    return builder


def main(url: str, die_at: int, *, resume: bool) -> None:
    with everthread.open(url) as store:
        graph = build(die_at).compile(checkpointer=EverthreadSaver(store))
        begin = None if resume else {"messages": [HumanMessage("go", id="h")]}
        state = graph.invoke(begin, config("t"), durability="sync")
        print("done", [message.content for message in state["messages"]], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), resume=sys.argv[3:] == ["resume"])
