"""One conversation with all that is hard to hand over, as each framework stores it: a system prompt,
instructions, an image, thinking, parallel calls, and a call whose result was lost in a crash."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from google.adk.events.event import Event
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from everthread import Store
from everthread.adapters.adk import EverthreadSessionService
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.adapters.pydantic_ai import EverthreadConversationStore, save_messages

SYSTEM = "Be brief."
INSTRUCTIONS = "Obey this agent only."
THOUGHT = "The user wants two cities."
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_DATA = base64.b64encode(PNG).decode()
ASK = "Weather on this map?"
CALLS = (("c1", "weather", {"city": "Oslo"}), ("c2", "weather", {"city": "Rome"}))
RESULTS = ("Oslo: rain", "Rome: rain")
ANSWER = "It rains in both."
BOOK = "Then book the Bristol."
LOST = ("c3", "book", {"hotel": "Bristol"})

#: What every other framework's model is shown of it, from the user's first message on.
SAID: list[tuple[Any, ...]] = [
    ("user", ASK),
    ("user", "image"),
    *(("call", name, arguments) for _, name, arguments in CALLS),
    *(("result", result) for result in RESULTS),
    ("assistant", ANSWER),
    ("user", BOOK),
    ("call", LOST[1], LOST[2]),
    ("result", "no result was recorded; it may have happened"),
]
#: Frameworks that keep a system prompt among the messages of a session.
KEEP_SYSTEM = (
    "plain messages",
    "LangGraph",
    "OpenAI Agents",
    "Pydantic AI history",
    "Pydantic AI conversation",
)


async def plain(store: Store, thread: str) -> None:
    uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in (*CALLS, LOST)]
    results = [
        {"type": "tool_result", "tool_use_id": call[0], "content": result}
        for call, result in zip(CALLS, RESULTS, strict=True)
    ]
    source = {"type": "base64", "media_type": "image/png", "data": _DATA}
    thinking = {"type": "thinking", "thinking": THOUGHT, "signature": "c2lnbmVk"}
    with store.session(thread) as s:
        s.messages.append({"role": "system", "content": SYSTEM})
        for role, content in (
            ("user", [{"type": "text", "text": ASK}, {"type": "image", "source": source}]),
            ("assistant", [thinking, *uses[:2]]),
            ("user", results),
            ("assistant", ANSWER),
            ("user", BOOK),
            ("assistant", uses[2:]),
        ):
            s.messages.append({"role": role, "content": content}, shape="anthropic")


async def langgraph(store: Store, thread: str) -> None:
    calls = [{"name": name, "args": arguments, "id": call_id} for call_id, name, arguments in (*CALLS, LOST)]
    image = {"type": "image", "base64": _DATA, "mime_type": "image/png"}
    messages = [
        SystemMessage(SYSTEM),
        HumanMessage([{"type": "text", "text": ASK}, image]),
        AIMessage([{"type": "reasoning", "reasoning": THOUGHT}], tool_calls=calls[:2]),
        *(ToolMessage(text, tool_call_id=call[0]) for call, text in zip(CALLS, RESULTS, strict=True)),
        AIMessage(ANSWER),
        HumanMessage(BOOK),
        AIMessage("", tool_calls=calls[2:]),
    ]
    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    app = builder.compile(checkpointer=EverthreadSaver(store, prefix=""))
    app.invoke({"messages": messages}, {"configurable": {"thread_id": thread}})


async def openai_agents(store: Store, thread: str) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{_DATA}"}
    calls = [
        {"type": "function_call", "call_id": i, "id": f"fc_{i}", "name": n, "arguments": json.dumps(a)}
        for i, n, a in (*CALLS, LOST)
    ]
    items: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "input_text", "text": ASK}, image]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]},
        *calls[:2],
        *(
            {"type": "function_call_output", "call_id": call[0], "output": result}
            for call, result in zip(CALLS, RESULTS, strict=True)
        ),
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": BOOK},
        calls[2],
    ]
    await EverthreadSession(thread, store).add_items(items)


def pydantic_messages() -> list[ModelMessage]:
    calls = [ToolCallPart(name, arguments, tool_call_id=i) for i, name, arguments in (*CALLS, LOST)]
    image = BinaryContent(PNG, media_type="image/png")
    returns = [
        ToolReturnPart(call[1], result, tool_call_id=call[0])
        for call, result in zip(CALLS, RESULTS, strict=True)
    ]
    return [
        ModelRequest([SystemPromptPart(SYSTEM), UserPromptPart([ASK, image])], instructions=INSTRUCTIONS),
        ModelResponse([ThinkingPart(THOUGHT), *calls[:2]]),
        ModelRequest(returns, instructions=INSTRUCTIONS),
        ModelResponse([TextPart(ANSWER)]),
        ModelRequest([UserPromptPart(BOOK)], instructions=INSTRUCTIONS),
        ModelResponse(calls[2:]),
    ]


async def pydantic_history(store: Store, thread: str) -> None:
    await save_messages(store, thread, pydantic_messages())


async def pydantic_conversation(store: Store, thread: str) -> None:
    conversation = Conversation(conversation_id=thread, messages=pydantic_messages())
    await EverthreadConversationStore(store, prefix="").save(conversation)


async def adk(store: Store, thread: str) -> None:
    calls = [
        types.Part(function_call=types.FunctionCall(id=i, name=name, args=arguments))
        for i, name, arguments in (*CALLS, LOST)
    ]
    responses = [
        types.Part(function_response=types.FunctionResponse(id=i, name=name, response={"result": result}))
        for (i, name, _), result in zip(CALLS, RESULTS, strict=True)
    ]
    image = types.Part(inline_data=types.Blob(data=PNG, mime_type="image/png"))
    service = EverthreadSessionService(store, prefix="")
    session = await service.create_session(app_name="app", user_id="u1", session_id=thread)
    for author, parts in (
        ("user", [types.Part(text=ASK), image]),
        ("agent", [types.Part(text=THOUGHT, thought=True), *calls[:2]]),
        ("agent", responses),
        ("agent", [types.Part(text=ANSWER)]),
        ("user", [types.Part(text=BOOK)]),
        ("agent", calls[2:]),
    ):
        role = "user" if author == "user" or parts is responses else "model"
        event = Event(author=author, content=types.Content(role=role, parts=parts))
        await service.append_event(session, event)


async def strands(store: Store, thread: str) -> None:
    from strands.types.session import Session, SessionAgent, SessionMessage

    from everthread.adapters.strands import EverthreadSessionRepository

    uses = [{"toolUse": {"toolUseId": i, "name": name, "input": a}} for i, name, a in (*CALLS, LOST)]
    results = [
        {"toolResult": {"toolUseId": call[0], "status": "success", "content": [{"text": result}]}}
        for call, result in zip(CALLS, RESULTS, strict=True)
    ]
    repository = EverthreadSessionRepository(store)
    repository.create_session(Session(session_id=thread, session_type="AGENT"))
    repository.create_agent(thread, SessionAgent(agent_id="a", state={}, conversation_manager_state={}))
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    for number, (role, content) in enumerate(
        (
            ("user", [{"text": ASK}, image]),
            ("assistant", [{"reasoningContent": {"reasoningText": {"text": THOUGHT}}}, *uses[:2]]),
            ("user", results),
            ("assistant", [{"text": ANSWER}]),
            ("user", [{"text": BOOK}]),
            ("assistant", uses[2:]),
        )
    ):
        message = SessionMessage(message={"role": role, "content": content}, message_id=number)
        repository.create_message(thread, "a", message)


BEGINNINGS: dict[str, Callable[[Store, str], Awaitable[None]]] = {
    "plain messages": plain,
    "LangGraph": langgraph,
    "OpenAI Agents": openai_agents,
    "Pydantic AI history": pydantic_history,
    "Pydantic AI conversation": pydantic_conversation,
    "ADK": adk,
}
if find_spec("strands") is not None:
    BEGINNINGS["Strands"] = strands
