"""Workflows that keep what frameworks say in threads."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from temporalio import workflow

from everthread.engines.temporal import (
    ThreadSession,
    end,
    load_conversation,
    open_thread,
    save_conversation,
)

with workflow.unsafe.imports_passed_through():
    from langgraph.graph import END, START, StateGraph
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    from everthread.engines.temporal.checkpoints import ForwardingSaver


def item(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@workflow.defn
class SessionTalk:
    """What the OpenAI Agents SDK does with a session."""

    @workflow.run
    async def run(self, subject: str | None) -> list[Any]:
        session = ThreadSession(await open_thread(), subject=subject)
        found: list[Any] = [await session.get_items()]
        await session.add_items([item("one"), item("two"), item("three")])
        await session.add_items([])
        found += [await session.get_items(), await session.get_items(limit=2), await session.pop_item()]
        ref = session.ref
        await session.clear_session()
        found += [await session.get_items(), await session.pop_item()]
        await session.add_items([item("four")])
        # What stood there before is still there to be read.
        found += [await ThreadSession(ref, subject=subject).get_items(), await session.get_items()]
        await end(session.ref)
        return found


@workflow.defn
class ConversationTalk:
    """What an agent of Pydantic AI gets and leaves."""

    @workflow.run
    async def run(self) -> list[str]:
        ref = await open_thread()
        history = await load_conversation(ref)
        for number in range(3):
            request = ModelRequest(parts=[UserPromptPart(f"question {number}")])
            history = [*history, request, ModelResponse(parts=[TextPart(f"answer {number}")])]
            ref = await save_conversation(ref, history)
            assert len(await load_conversation(ref)) == len(history)
        ref = await save_conversation(ref, history[:2])
        left = await load_conversation(ref)
        await end(ref)
        return [str(part.content) for message in left for part in message.parts]  # type: ignore[union-attr]


class Counted(TypedDict):
    steps: Annotated[list[str], operator.add]
    asked: str


async def first(state: Counted) -> dict[str, Any]:
    return {"steps": [f"first {len(state['steps'])}"]}


async def second(state: Counted) -> dict[str, Any]:
    return {"steps": [f"second {len(state['steps'])}"]}


def graph(saver: Any) -> Any:
    made = StateGraph(Counted)
    made.add_node("first", first)
    made.add_node("second", second)
    made.add_edge(START, "first")
    made.add_edge("first", "second")
    made.add_edge("second", END)
    return made.compile(checkpointer=saver)


@workflow.defn
class GraphTalk:
    """A graph whose checkpoints are forwarded."""

    @workflow.run
    async def run(self, thread_id: str) -> list[str]:
        compiled = graph(ForwardingSaver())
        found = await compiled.ainvoke(
            {"steps": [], "asked": workflow.info().workflow_id}, {"configurable": {"thread_id": thread_id}}
        )
        steps: list[str] = found["steps"]
        return steps
