"""Graphs that need no network: scripted models and plain functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    steps: Annotated[list[str], operator.add]
    count: int


def config(thread_id: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}


def talking(replies: Callable[[Talk], AIMessage]) -> StateGraph[Talk]:
    """A graph that answers once."""
    builder = StateGraph(Talk)

    def answer(state: Talk) -> dict[str, Any]:
        return {
            "messages": [replies(state)],
            "steps": [f"answer {state.get('count', 0)}"],
            "count": state.get("count", 0) + 1,
        }

    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder


def echo(state: Talk) -> AIMessage:
    return AIMessage(f"heard: {state['messages'][-1].content}")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def pay(amount: int) -> str:
    """Pay, if a person allows it."""
    answer = interrupt({"pay": amount})
    return f"paid {amount}: {answer}"


class ScriptedModel(GenericFakeChatModel):
    """Says what it is told to, one message after another, and can be given tools."""

    def bind_tools(self, tools: Any, **options: Any) -> ScriptedModel:
        return self


def call(name: str, arguments: dict[str, Any], call_id: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id, "type": "tool_call"}])


def agent(script: list[AIMessage]) -> StateGraph[Talk]:
    """An agent with tools, whose model follows a script."""
    model = ScriptedModel(messages=iter(script))
    builder = StateGraph(Talk)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([add, pay]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder
