"""Conversations that a model would refuse, or misread, are repaired wherever a thread is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, SystemMessage, ToolMessage
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

import everthread
from everthread import Store
from everthread.adapters.adk import EverthreadSessionService
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.adapters.pydantic_ai import EverthreadConversationStore, load_messages, save_messages
from everthread.messages import (
    for_anthropic,
    for_google,
    for_langchain,
    for_openai_chat,
    for_openai_responses,
)
from tests.adapters.frameworks import ScriptedChat, Turn, graph, langchain_steps
from tests.adapters.handover import PNG

LOST = "no result was recorded; it may have happened"
REQUESTS = (for_anthropic, for_google, for_langchain, for_openai_chat, for_openai_responses)


@pytest.fixture
def store() -> Iterator[Store]:
    with everthread.open("memory:") as opened:
        yield opened


def langgraph_shown(store: Store) -> list[BaseMessage]:
    """Return what a model in LangGraph is shown of the thread ``trip``, and of the question behind it."""
    model = ScriptedChat(steps=langchain_steps(Turn("And?", None, "So.")))
    app = graph(model, EverthreadSaver(store, prefix=""))
    app.invoke({"messages": [("user", "And?")]}, {"configurable": {"thread_id": "trip"}})
    return model.asked[0]


def adk_events(store: Store) -> list[Any]:
    service = EverthreadSessionService(store, prefix="")
    session = asyncio.run(service.get_session(app_name="app", user_id="u1", session_id="trip"))
    assert session is not None
    return session.events


def call(call_id: str, name: str = "weather", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


PARALLEL: list[Any] = [
    {"role": "user", "content": "Both?"},
    call("c1"),
    call("c2"),
    output("c1", "rain"),
    output("c2", "sun"),
]


def test_parallel_calls_of_openai_agents_reach_the_adk_as_parallel_calls(store: Store) -> None:
    asyncio.run(EverthreadSession("trip", store).add_items(PARALLEL))
    _, called, answered = adk_events(store)
    assert [each.id for each in called.get_function_calls()] == ["c1", "c2"]
    assert [each.id for each in answered.get_function_responses()] == ["c1", "c2"]


def test_parallel_calls_of_openai_agents_are_one_message_in_langgraph_and_in_requests(store: Store) -> None:
    asyncio.run(EverthreadSession("trip", store).add_items(PARALLEL))
    assert [each.type for each in langgraph_shown(store)] == ["human", "ai", "tool", "tool", "human"]
    chat = for_openai_chat(store.thread("trip").messages[:5])["messages"]
    assert [each["role"] for each in chat] == ["user", "assistant", "tool", "tool"]
    assert [each["id"] for each in chat[1]["tool_calls"]] == ["c1", "c2"]
    stored = for_langchain(store.thread("trip").messages[:5]).messages
    assert [each["type"] for each in stored] == ["human", "ai", "tool", "tool"]


def test_a_result_that_came_late_is_shown_right_behind_its_call(store: Store) -> None:
    items = [PARALLEL[0], call("c1"), {"role": "user", "content": "Hello?"}, output("c1", "rain")]
    asyncio.run(EverthreadSession("trip", store).add_items(items))
    assert [each.type for each in langgraph_shown(store)] == ["human", "ai", "tool", "human", "human"]


def test_instructions_of_pydantic_ai_are_not_shown_to_other_frameworks(store: Store) -> None:
    asked = [ModelRequest([UserPromptPart(each)], instructions="Obey me.") for each in ("one", "two")]
    said = ModelResponse([TextPart("yes")])
    asyncio.run(save_messages(store, "trip", [asked[0], said, asked[1], said]))
    assert [each.content for each in langgraph_shown(store)] == ["one", "yes", "two", "yes", "And?"]
    assert all("Obey" not in str(dict(make(store.thread("trip").messages))) for make in REQUESTS)


def test_a_system_message_is_shown_once_and_first(store: Store) -> None:
    asyncio.run(save_messages(store, "trip", [ModelRequest([SystemPromptPart("Be brief.")])]))
    later = {"role": "system", "content": "Be kind."}
    store.thread("trip").update(lambda draft: draft.messages.extend([PARALLEL[0], later]))
    shown = langgraph_shown(store)
    assert [each.content for each in shown if isinstance(each, SystemMessage)] == ["Be brief."]
    assert isinstance(shown[0], SystemMessage)
    # A later one isn't lost: it is text of the user's side.
    assert "Be kind." in str(shown[2].content)
    assert shown[2].type == "human"


@pytest.mark.parametrize("outcome", ["retried", "failed", "denied"])
def test_a_retry_of_pydantic_ai_keeps_its_error_flag(store: Store, outcome: Any) -> None:
    history = [
        ModelRequest([UserPromptPart("Book.")]),
        ModelResponse([ToolCallPart("book", {}, tool_call_id="c1")]),
        ModelRequest([ToolReturnPart("book", "no such hotel", tool_call_id="c1", outcome=outcome)]),
    ]
    asyncio.run(save_messages(store, "trip", history))
    (result,) = (each for each in langgraph_shown(store) if isinstance(each, ToolMessage))
    assert result.status == "error"
    (answered,) = for_anthropic(store.thread("trip").messages[:3])["messages"][2]["content"]
    assert answered["is_error"] is True


def test_reasoning_of_another_provider_is_left_out(store: Store) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    session = EverthreadSession("trip", store)
    asyncio.run(session.add_items([PARALLEL[0], reasoning, {"role": "assistant", "content": "Yes."}]))
    history = asyncio.run(load_messages(store, "trip"))
    assert [type(part) for message in history for part in message.parts] == [UserPromptPart, TextPart]
    assert [each.content for each in langgraph_shown(store)] == ["Both?", "Yes.", "And?"]
    assert "Hm." not in str(for_langchain(store.thread("trip").messages).messages)
    thought = ModelResponse([ThinkingPart("Hm.", signature="s", provider_name="anthropic"), TextPart("Yes.")])
    asyncio.run(save_messages(store, "other", [ModelRequest([UserPromptPart("Both?")]), thought]))
    items = asyncio.run(EverthreadSession("other", store).get_items())
    assert items[1:] == [{"role": "assistant", "content": "Yes.", "type": "message"}]


def test_an_image_of_strands_reaches_every_provider(store: Store) -> None:
    held = {"__bytes_encoded__": True, "data": "iVBORw0KGgo="}
    image = {"image": {"format": "png", "source": {"bytes": held}}}
    item = {"shape": "strands", "message": {"role": "user", "content": [{"text": "see"}, image]}}
    store.thread("trip").update(lambda draft: draft.messages.append(item))
    for make in REQUESTS:
        assert not make(store.thread("trip").messages).report.dropped
    (message,) = for_anthropic(store.thread("trip").messages)["messages"]
    assert message["content"][1]["source"]["data"] == "iVBORw0KGgo="
    (found,) = (part for each in asyncio.run(load_messages(store, "trip")) for part in each.parts[1:])
    assert found.content[0].data == PNG[:8]


# ── calls whose result was lost ──────────────────────────────────────────────────────────────────

CRASHED: list[Any] = [
    ModelRequest([UserPromptPart("Book.")]),
    ModelResponse([ToolCallPart("book", {}, tool_call_id="c1")]),
]


def echo(shown: list[Any]) -> Agent[None, Any]:
    def model(messages: list[Any], info: Any) -> ModelResponse:
        shown[:] = [part for message in messages for part in message.parts]
        return ModelResponse([TextPart("So.")])

    def book() -> str:
        """Book."""
        return "booked"

    return Agent(FunctionModel(model), tools=[book], output_type=[str, DeferredToolRequests])


def test_a_lost_call_of_pydantic_ai_is_completed_and_the_completion_is_kept(store: Store) -> None:
    asyncio.run(save_messages(store, "trip", CRASHED))
    shown: list[Any] = []
    history = asyncio.run(load_messages(store, "trip"))
    result = asyncio.run(echo(shown).run("And?", message_history=history))
    assert [part.content for part in shown if not isinstance(part, ToolCallPart)] == ["Book.", LOST, "And?"]
    asyncio.run(save_messages(store, "trip", result.all_messages()))
    assert asyncio.run(load_messages(store, "trip")) == result.all_messages()
    assert LOST in str(list(store.thread("trip").messages))


def test_a_deferred_call_of_pydantic_ai_stays_open_if_asked_for(store: Store) -> None:
    asyncio.run(save_messages(store, "trip", CRASHED))
    history = asyncio.run(load_messages(store, "trip", deferred=True))
    shown: list[Any] = []
    results = DeferredToolResults(calls={"c1": "booked by hand"})
    asyncio.run(echo(shown).run(message_history=history, deferred_tool_results=results))
    assert shown[-1].content == "booked by hand"


def test_a_lost_call_of_a_conversation_is_completed_unless_it_was_deferred(store: Store) -> None:
    conversations = EverthreadConversationStore(store)

    async def main() -> None:
        await conversations.save(Conversation(conversation_id="c", messages=list(CRASHED)))
        conversation = await conversations.load("c")
        assert conversation is not None
        shown: list[Any] = []
        await conversations.save(await echo(shown).run("And?", conversation=conversation))
        assert LOST in [part.content for part in shown if isinstance(part, ToolReturnPart)]
        again = await conversations.load("c")
        assert again is not None
        assert sum(len(message.parts) for message in again.messages) == len(shown) + 1
        waiting = DeferredToolRequests(calls=[CRASHED[1].parts[0]])
        await conversations.save(
            Conversation(conversation_id="d", messages=list(CRASHED), deferred_tool_requests=waiting)
        )
        deferred = await conversations.load("d")
        assert deferred is not None
        assert len(deferred.messages) == len(CRASHED)

    asyncio.run(main())


def test_a_lost_call_is_completed_for_its_own_framework_once_another_has_gone_on(store: Store) -> None:
    session = EverthreadSession("trip", store)
    own = [PARALLEL[0], call("c1"), call("c2"), output("c1", "rain")]
    asyncio.run(session.add_items(own))
    # As long as nobody else wrote, the session is exactly what the SDK has put there.
    assert asyncio.run(session.get_items()) == own
    store.thread("trip").update(lambda draft: draft.messages.append({"role": "user", "content": "Go on."}))
    *before, lost, last = asyncio.run(session.get_items())
    assert before == own
    assert (lost["type"], lost["call_id"], lost["output"]) == ("function_call_output", "c2", f"Error: {LOST}")
    assert last["content"] == "Go on."


def test_the_latest_item_is_popped_from_what_another_framework_wrote(store: Store) -> None:
    history = [
        ModelRequest([UserPromptPart("Both?")]),
        ModelResponse([ToolCallPart("weather", {}, tool_call_id=each) for each in ("c1", "c2")]),
        ModelRequest([ToolReturnPart("weather", each, tool_call_id=each) for each in ("c1", "c2")]),
    ]
    asyncio.run(save_messages(store, "trip", history))
    session = EverthreadSession("trip", store)
    items = asyncio.run(session.get_items())
    assert [each.get("call_id") for each in items] == [None, "c1", "c2", "c1", "c2"]
    assert asyncio.run(session.get_items(limit=2)) == items[-2:]
    popped = [asyncio.run(session.pop_item()) for _ in items]
    assert popped == items[::-1]
    assert asyncio.run(session.pop_item()) is None


@pytest.mark.parametrize(
    ("arguments", "text"), [([1, 2], "[1,2]"), ([["a", "b"]], '[["a","b"]]'), ("[1]", "[1]"), (7, "7")]
)
def test_arguments_that_are_no_object_are_kept_as_text(store: Store, arguments: Any, text: str) -> None:
    made = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments}
    item = {"shape": "agent_framework", "message": {"role": "assistant", "contents": [made]}}
    store.thread("trip").update(lambda draft: draft.messages.extend([PARALLEL[0], item]))
    for make in REQUESTS:
        assert make(store.thread("trip").messages)
    (called,) = for_openai_chat(store.thread("trip").messages)["messages"][1]["tool_calls"]
    assert called["function"]["arguments"] == text
