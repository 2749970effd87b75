"""EverthreadSessionRepository: a real agent of Strands with a model that is scripted."""

from __future__ import annotations

from typing import Any

import pytest
from strands import Agent, tool
from strands.types.exceptions import SessionException

from everthread import Store
from everthread.adapters.strands import EverthreadSessionManager, EverthreadSessionRepository
from everthread.messages import for_anthropic, for_openai_chat
from tests.adapters.conftest import stored_bytes
from tests.adapters.strands_scripted import Scripted


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


PARALLEL: list[Any] = [
    {"role": "user", "content": "Both?"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": '{"city": "Rome"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": "sun"},
    {"role": "assistant", "content": "Rain and sun."},
]


def test_the_model_sees_every_result_of_parallel_calls_that_came_one_by_one(store: Store) -> None:
    items = [{"shape": "openai.responses", "message": each} for each in PARALLEL]
    store.thread("trip").update(lambda draft: draft.messages.extend(items))
    model = Scripted("Still.")
    agent(store, model)("And now?")
    _, called, answered, *_ = model.asked[0]
    assert [each["toolUse"]["toolUseId"] for each in called["content"]] == ["c1", "c2"]
    results = [each["toolResult"] for each in answered["content"]]
    assert [each["content"] for each in results] == [[{"text": "rain"}], [{"text": "sun"}]]
    assert {each["status"] for each in results} == {"success"}


def test_the_model_is_told_that_a_lost_call_may_have_happened(store: Store) -> None:
    items = [{"shape": "openai.responses", "message": each} for each in PARALLEL[:4]]
    store.thread("trip").update(lambda draft: draft.messages.extend(items))
    model = Scripted("Still.")
    agent(store, model)("And now?")
    _, _, answered, *_ = model.asked[0]
    results = [each["toolResult"] for each in answered["content"]]
    texts = {each["toolUseId"]: each["content"][0]["text"] for each in results}
    assert texts == {"c1": "rain", "c2": "no result was recorded; it may have happened"}


def test_images_pass_to_strands_and_back(store: Store) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    shown = {"role": "user", "content": [{"type": "image", "source": source}]}
    item = {"shape": "anthropic", "message": shown}
    store.thread("trip").update(lambda draft: draft.messages.append(item))
    model = Scripted("Seen.", "Seen again.")
    made = agent(store, model)
    image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG\r\n\x1a\n"}}}
    made([image, {"text": "And this?"}])
    assert model.asked[0][0]["content"] == [image]
    messages = for_anthropic(store.thread("trip").messages, cache=None)["messages"]
    assert [block["source"] for block in messages[0]["content"][:2]] == [source, source]
