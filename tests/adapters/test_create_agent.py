"""LangChain's ``create_agent`` and deepagents work with our saver and store as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field

import everthread
from everthread.adapters.langgraph import EverthreadSaver, EverthreadStore


class Scripted(BaseChatModel):
    """Answers with one step after another."""

    steps: list[AIMessage]
    asked: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.asked.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.steps.pop(0))])


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


@pytest.mark.parametrize("make", [create_agent, create_deep_agent])
def test_an_agent_goes_on_where_it_was(make: Any, tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "trip"}}
    wanted = {"name": "weather", "args": {"city": "Oslo"}, "id": "call_1"}

    def turn(text: str, *steps: AIMessage) -> list[str]:
        model = Scripted(steps=list(steps))
        with everthread.open(f"sqlite:///{tmp_path}/agent.db") as store:
            options = {"checkpointer": EverthreadSaver(store), "store": EverthreadStore(store)}
            agent = make(model, tools=[weather], **options)
            agent.invoke({"messages": [("user", text)]}, config)
            assert store.verify().ok
        return [each.text for each in model.asked[0] if each.type != "system"]

    turn("Weather in Oslo?", AIMessage("", tool_calls=[wanted]), AIMessage("It rains."))
    again = turn("And now?", AIMessage("Still."))
    assert again == ["Weather in Oslo?", "", "Oslo: rain", "It rains.", "And now?"]
