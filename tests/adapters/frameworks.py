"""One turn of a conversation in each framework, with a model of its own that says what it is told to, and
what that model was shown."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from agents import Agent as OpenAIAgent
from agents import RunConfig, function_tool
from agents import Runner as OpenAIRunner
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner as ADKRunner
from google.genai import types
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, message_to_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import Field
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from everthread import Store
from everthread.adapters.adk import EverthreadSessionService
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.adapters.pydantic_ai import EverthreadConversationStore, load_messages, save_messages
from everthread.messages import canonical
from everthread.messages.model import Media, Message, Text, ToolCall, ToolResult
from tests.adapters.openai_scripted import Scripted as ScriptedOpenAI
from tests.adapters.openai_scripted import call as openai_call
from tests.adapters.openai_scripted import say as openai_say

#: What a message says, whoever says it: ("user", "hello"), ("call", "weather", {...}), ("result", "rain").
Said = tuple[Any, ...]


@dataclass(frozen=True)
class Turn:
    """What the user asks, the call that the model makes (or none), and what it says in the end."""

    ask: str
    call: tuple[str, str, dict[str, Any]] | None
    answer: str

    def said(self) -> list[Said]:
        if self.call is None:
            return [("user", self.ask), ("assistant", self.answer)]
        _, name, arguments = self.call
        made = [("call", name, arguments), ("result", TOOLS[name](**arguments))]
        return [("user", self.ask), *made, ("assistant", self.answer)]


def weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


def book(hotel: str) -> str:
    """Book a hotel."""
    return f"booked {hotel}"


TOOLS: dict[str, Callable[..., str]] = {"weather": weather, "book": book}


def said(items: Iterable[Any], shape: str | None = None) -> list[Said]:
    """What items of a log, or messages of one shape, say."""
    return [each for message in canonical(items, shape=shape) for each in _blocks(message)]


def _blocks(message: Message) -> Iterable[Said]:
    for block in message.blocks:
        match block:
            case Text(text=text) if text:
                yield message.role, text
            case Media(kind=kind):
                yield message.role, kind
            case ToolCall(name=name):
                yield "call", name, dict(block.arguments or json.loads(block.raw or "{}"))
            case ToolResult():
                text = "\n".join(each.text for each in block.content if isinstance(each, Text))
                # Where a shape has no flag for errors, the text says so.
                yield "result", text.removeprefix("Error: ")


# ── plain messages of a session ──────────────────────────────────────────────────────────────────


async def plain(store: Store, thread: str, turn: Turn) -> list[Said]:
    shown: list[Said] = []

    def model(messages: list[Any]) -> dict[str, Any]:
        if not shown:
            shown.extend(said(messages, "openai.chat"))
            if turn.call is not None:
                call_id, name, arguments = turn.call
                function = {"name": name, "arguments": json.dumps(arguments)}
                called = {"id": call_id, "type": "function", "function": function}
                return {"role": "assistant", "content": None, "tool_calls": [called]}
        return {"role": "assistant", "content": turn.answer}

    with store.session(thread) as s:
        s.messages.append({"role": "user", "content": turn.ask})
        while True:
            answer = model(s.messages.for_openai_chat()["messages"])
            s.messages.append(answer, shape="openai.chat")
            for called in answer.get("tool_calls", ()):
                result = TOOLS[called["function"]["name"]](**json.loads(called["function"]["arguments"]))
                message = {"role": "tool", "tool_call_id": called["id"], "content": result}
                s.messages.append(message, shape="openai.chat")
            if "tool_calls" not in answer:
                return shown


# ── LangGraph ────────────────────────────────────────────────────────────────────────────────────


class ScriptedChat(BaseChatModel):
    """A chat model of LangChain that answers with one step after another."""

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


def langchain_steps(turn: Turn) -> list[AIMessage]:
    steps = [AIMessage(turn.answer)]
    if turn.call is not None:
        call_id, name, arguments = turn.call
        steps.insert(0, AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id}]))
    return steps


def langchain_said(messages: Iterable[BaseMessage]) -> list[Said]:
    return said(map(message_to_dict, messages), "langchain")


def graph(model: ScriptedChat, saver: EverthreadSaver) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([tool(each) for each in TOOLS.values()]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


async def langgraph(store: Store, thread: str, turn: Turn) -> list[Said]:
    model = ScriptedChat(steps=langchain_steps(turn))
    app = graph(model, EverthreadSaver(store, prefix=""))
    app.invoke({"messages": [("user", turn.ask)]}, {"configurable": {"thread_id": thread}})
    made = model.asked[-1][len(model.asked[0]) :]
    assert not [each for each in made if isinstance(each, ToolMessage) and each.status == "error"]
    return langchain_said(model.asked[0])


# ── OpenAI Agents ────────────────────────────────────────────────────────────────────────────────


async def openai_agents(store: Store, thread: str, turn: Turn) -> list[Said]:
    steps: list[Any] = [openai_say(turn.answer)]
    if turn.call is not None:
        call_id, name, arguments = turn.call
        steps.insert(0, openai_call(name, call_id, **arguments))
    model = ScriptedOpenAI(*steps)
    agent = OpenAIAgent(name="agent", model=model, tools=[function_tool(each) for each in TOOLS.values()])
    session = EverthreadSession(thread, store)
    await OpenAIRunner.run(agent, turn.ask, session=session, run_config=RunConfig(tracing_disabled=True))
    return said(model.asked[0], "openai.responses")


# ── Pydantic AI ──────────────────────────────────────────────────────────────────────────────────


def _pydantic_agent(turn: Turn, shown: list[Said]) -> PydanticAgent[None, str]:
    def model(messages: list[Any], info: Any) -> ModelResponse:
        if not shown:
            data = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
            shown.extend(said({"shape": "pydantic_ai", "message": each} for each in data))
            if turn.call is not None:
                call_id, name, arguments = turn.call
                return ModelResponse(parts=[ToolCallPart(name, arguments, tool_call_id=call_id)])
        return ModelResponse(parts=[TextPart(turn.answer)])

    return PydanticAgent(FunctionModel(model), tools=list(TOOLS.values()))


async def pydantic_history(store: Store, thread: str, turn: Turn) -> list[Said]:
    shown: list[Said] = []
    agent = _pydantic_agent(turn, shown)
    result = await agent.run(turn.ask, message_history=await load_messages(store, thread))
    await save_messages(store, thread, result.all_messages())
    return shown


async def pydantic_conversations(store: Store, thread: str, turn: Turn) -> list[Said]:
    shown: list[Said] = []
    agent = _pydantic_agent(turn, shown)
    conversations = EverthreadConversationStore(store, prefix="")
    conversation = await conversations.load(thread) or Conversation(conversation_id=thread)
    await conversations.save(await agent.run(turn.ask, conversation=conversation))
    return shown


# ── ADK ──────────────────────────────────────────────────────────────────────────────────────────


class ScriptedLlm(BaseLlm):
    """A model of the ADK that answers with one step after another."""

    model: str = "scripted"
    steps: list[Any]
    asked: list[list[Any]] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append([each.model_copy(deep=True) for each in llm_request.contents])
        yield LlmResponse(content=types.Content(role="model", parts=[self.steps.pop(0)]))


async def adk(store: Store, thread: str, turn: Turn) -> list[Said]:
    steps = [types.Part(text=turn.answer)]
    if turn.call is not None:
        call_id, name, arguments = turn.call
        steps.insert(0, types.Part(function_call=types.FunctionCall(id=call_id, name=name, args=arguments)))
    model = ScriptedLlm(steps=steps)
    service = EverthreadSessionService(store, prefix="")
    key = {"app_name": "app", "user_id": "u1", "session_id": thread}
    if await service.get_session(**key) is None:
        await service.create_session(**key)
    agent = LlmAgent(name="agent", model=model, tools=list(TOOLS.values()))
    runner = ADKRunner(app_name="app", agent=agent, session_service=service)
    asked = types.Content(role="user", parts=[types.Part(text=turn.ask)])
    async for _ in runner.run_async(user_id="u1", session_id=thread, new_message=asked):
        pass
    return said([each.model_dump(exclude_none=True) for each in model.asked[0]], "google")


# ── Strands, which isn't among the locked frameworks ─────────────────────────────────────────────


async def strands(store: Store, thread: str, turn: Turn) -> list[Said]:
    from strands import Agent, tool

    from everthread.adapters.strands import EverthreadSessionManager
    from tests.adapters.strands_scripted import Scripted

    steps: list[Any] = [turn.answer]
    if turn.call is not None:
        call_id, name, arguments = turn.call
        steps.insert(0, (name, call_id, json.dumps(arguments)))
    model = Scripted(*steps)
    agent = Agent(
        model=model,
        agent_id="a",
        session_manager=EverthreadSessionManager(thread, store),
        tools=[tool(each) for each in TOOLS.values()],
        callback_handler=None,
    )
    await agent.invoke_async(turn.ask)
    return said({"shape": "strands", "message": each} for each in model.asked[0])


FRAMEWORKS: dict[str, Callable[[Store, str, Turn], Awaitable[list[Said]]]] = {
    "plain messages": plain,
    "LangGraph": langgraph,
    "OpenAI Agents": openai_agents,
    "Pydantic AI history": pydantic_history,
    "Pydantic AI conversation": pydantic_conversations,
    "ADK": adk,
}
if find_spec("strands") is not None:
    FRAMEWORKS["Strands"] = strands
