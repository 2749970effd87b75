"""One store, one thread: begun with LangGraph, continued with the OpenAI Agents SDK, read as Anthropic's."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from everthread import AsyncStore, Store
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.messages import for_anthropic
from tests.adapters.openai_scripted import Scripted, call, say


@tool("weather")
def langchain_weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


@function_tool
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


def begin_with_langgraph(store: Store | AsyncStore) -> Any:
    wanted = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}
    answers = iter([AIMessage("I look.", tool_calls=[wanted]), AIMessage("It rains in Oslo.")])

    def model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [next(answers)]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([langchain_weather]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    app = graph.compile(checkpointer=EverthreadSaver(store))
    config: Any = {"configurable": {"thread_id": "trip"}}
    asked: Any = {"messages": [("system", "Be brief."), ("user", "Weather in Oslo?")]}
    if isinstance(store, AsyncStore):
        asyncio.run(app.ainvoke(asked, config))
    else:
        app.invoke(asked, config)
    return app, config


def test_a_thread_of_langgraph_goes_on_elsewhere_and_is_read_by_all(store: Store) -> None:
    app, config = begin_with_langgraph(store)
    before = [message.content for message in app.get_state(config).values["messages"]]

    async def go_on() -> list[Any]:
        model = Scripted(call("book", "call_2", hotel="Bristol"), say("Booked the Bristol."))
        agent = Agent(name="travel", model=model, tools=[book])
        session = EverthreadSession("langgraph/trip", store)
        quiet = RunConfig(tracing_disabled=True)
        await Runner.run(agent, "Then book a hotel.", session=session, run_config=quiet)
        return model.asked

    asked = asyncio.run(go_on())
    kinds = [item.get("type", "message") for item in asked[0]]
    assert kinds == ["message"] * 3 + ["function_call", "function_call_output"] + ["message"] * 2

    request = for_anthropic(store.thread("langgraph/trip").messages, cache=None)
    assert request.system == [{"type": "text", "text": "Be brief."}]
    assert request.messages == [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Oslo: rain"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It rains in Oslo."}]},
        {"role": "user", "content": [{"type": "text", "text": "Then book a hotel."}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_2", "name": "book", "input": {"hotel": "Bristol"}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call_2", "content": "booked Bristol"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Booked the Bristol."}]},
    ]
    assert not request.report.dropped
    # The versions of the graph are still there, and it sees what was written since.
    thread = store.thread("langgraph/trip")
    assert [version.seq for version in thread.history(None)][-1] == 1
    after = [message.content for message in app.get_state(config).values["messages"]]
    assert after == [*before, "Then book a hotel.", "", "booked Bristol", "Booked the Bristol."]
    assert before[-1] == "It rains in Oslo."
