"""EverthreadSessionRepository: a real agent of Strands with a model that is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

import pytest
from strands import Agent, tool
from strands.models.model import Model
from strands.types.exceptions import SessionException

from everthread import Store
from everthread.adapters.strands import EverthreadSessionManager, EverthreadSessionRepository
from everthread.messages import for_openai_chat
from tests.adapters.conftest import stored_bytes


class Scripted(Model):
    """Answers with one list of content blocks after another, and keeps what it was shown."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)
        self.asked: list[Any] = []

    def update_config(self, **model_config: Any) -> None:
        """It has none."""

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterable[Any]:
        self.asked.append([{"role": each["role"], "content": list(each["content"])} for each in messages])
        step = self._steps.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(step, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": step}}}
        else:
            name, call_id, arguments = step
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}


@tool
def weather(city: str) -> str:
    """The weather."""
    return f"{city}: rain"


def agent(store: Store, model: Scripted, **options: Any) -> Agent:
    manager = EverthreadSessionManager("trip", store, **options)
    return Agent(model=model, agent_id="a", session_manager=manager, tools=[weather], callback_handler=None)


def said(messages: Any) -> list[Any]:
    blocks = [block for message in messages for block in message["content"]]
    return [block.get("text") or next(iter(block)) for block in blocks]


def test_an_agent_goes_on_where_it_was(store: Store) -> None:
    model = Scripted(("weather", "c1", '{"city": "Oslo"}'), "It rains.")
    agent(store, model)("Weather in Oslo?")
    again = Scripted("Still.")
    agent(store, again)("And now?")
    assert said(again.asked[0]) == ["Weather in Oslo?", "toolUse", "toolResult", "It rains.", "And now?"]
    kinds = [each["role"] for each in for_openai_chat(store.thread("trip").messages)["messages"]]
    assert kinds == ["user", "assistant", "tool", "assistant", "user", "assistant"]


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
    model = Scripted("Still.")
    agent(store, model)("And now?")
    assert said(model.asked[0]) == ["Weather in Oslo?", "toolUse", "toolResult", "It rains.", "And now?"]
    assert list(store.thread("trip").messages)[:4] == kept
    store.thread("trip").update(lambda draft: draft.messages.append({"role": "user", "content": "Bye."}))
    last = Scripted("Bye!")
    agent(store, last)("Really.")
    assert said(last.asked[0])[-2:] == ["Bye.", "Really."]


def test_a_message_is_replaced_in_its_place(store: Store) -> None:
    agent(store, Scripted("a secret"))("Tell.")
    repository = EverthreadSessionRepository(store)
    messages = repository.list_messages("trip", "a")
    messages[1].message = {"role": "assistant", "content": [{"text": "[redacted]"}]}
    repository.update_message("trip", "a", messages[1])
    assert [said([each.message])[0] for each in repository.list_messages("trip", "a")] == [
        "Tell.",
        "[redacted]",
    ]
    messages[1].message_id = 99
    with pytest.raises(SessionException):
        repository.update_message("trip", "a", messages[1])


def test_the_messages_of_a_person_are_sealed(store: Store, url: str) -> None:
    agent(store, Scripted("Hello Lovelace"), subject="u1")("I am Ada Lovelace")
    assert b"Lovelace" not in stored_bytes(url)
    assert len(EverthreadSessionRepository(store, subject="u1").list_messages("trip", "a")) == 2
    store.erase("u1")
    assert EverthreadSessionRepository(store, subject="u1").list_messages("trip", "a") == []
