"""EverthreadHistoryProvider: a real agent of the Agent Framework with a client that is scripted."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from everthread import Store
from everthread.adapters.agent_framework import EverthreadHistoryProvider
from everthread.messages import for_openai_chat
from tests.adapters.conftest import stored_bytes


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """Answers with one content after another, and keeps what it was shown."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self._steps = list(steps)
        self.asked: list[Any] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **kwargs: Any) -> Any:
        async def answer() -> ChatResponse:
            self.asked.append([content.type for each in messages for content in each.contents])
            step = self._steps.pop(0)
            return ChatResponse(messages=[Message(role="assistant", contents=[step])])

        return answer()


@tool(approval_mode="never_require")
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


def ask(store: Store, client: Scripted, text: str, **options: Any) -> None:
    provider = EverthreadHistoryProvider(store, **options)
    agent = Agent(client, tools=[weather], context_providers=[provider])
    asyncio.run(agent.run(text, session=agent.create_session(session_id="trip")))


def called() -> Content:
    return Content.from_function_call(call_id="c1", name="weather", arguments='{"city": "Oslo"}')


ALL = ["text", "function_call", "function_result", "text", "text"]


def test_an_agent_goes_on_where_it_was(store: Store) -> None:
    ask(store, Scripted(called(), Content.from_text("It rains.")), "Weather in Oslo?")
    client = Scripted(Content.from_text("Still."))
    ask(store, client, "And now?")
    assert client.asked[0] == ALL
    roles = [each["role"] for each in for_openai_chat(store.thread("trip").messages)["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]


def test_what_others_wrote_is_shown_and_stays(store: Store) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    begun = [
        {"role": "user", "content": "Weather in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "It rains."},
    ]
    store.thread("trip").update(lambda draft: draft.messages.extend(begun))
    kept = list(store.thread("trip").messages)
    client = Scripted(Content.from_text("Still."))
    ask(store, client, "And now?")
    assert client.asked[0] == ALL
    assert list(store.thread("trip").messages)[:4] == kept


def test_the_messages_of_a_person_are_sealed(store: Store, url: str) -> None:
    ask(store, Scripted(Content.from_text("Hello Lovelace")), "I am Ada Lovelace", subject="u1")
    assert b"Lovelace" not in stored_bytes(url)
    store.erase("u1")
    provider = EverthreadHistoryProvider(store, subject="u1")
    assert asyncio.run(provider.get_messages("trip")) == []


def test_a_call_whose_result_was_lost_is_completed(store: Store) -> None:
    provider = EverthreadHistoryProvider(store)
    saved = [Message("user", [Content.from_text("Weather?")]), Message("assistant", [called()])]
    asyncio.run(provider.save_messages("trip", saved))
    client = Scripted(Content.from_text("Still."))
    ask(store, client, "And now?")
    assert client.asked[0] == ["text", "function_call", "function_result", "text"]
    last = asyncio.run(provider.get_messages("trip"))[2].contents[0]
    assert last.result == "no result was recorded; it may have happened"
    assert last.exception is not None
