"""Messages of every provider, there and back and across: exact at home, and accounted for elsewhere."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import messages_from_dict

from everthread.messages import SHAPES, Message, Text, Unknown, canonical, convert, enclose, shapes
from everthread.messages import request as sending_module
from everthread.messages.model import Notes
from tests.properties.provider_messages import MESSAGES, nonsense

SENDERS = {
    "anthropic": sending_module.for_anthropic,
    "openai.chat": sending_module.for_openai_chat,
    "openai.responses": sending_module.for_openai_responses,
    "google": sending_module.for_google,
    "langchain": sending_module.for_langchain,
}


def exact(value: Any) -> str:
    """Tells apart what ``==`` doesn't: the order of keys, 1 and True."""
    return repr(value)


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_the_way_home_is_exact(shape: str, data: st.DataObject) -> None:
    raws = data.draw(st.lists(MESSAGES[shape] | nonsense, max_size=3))
    converted, report = convert([enclose(raw, shape, "x") for raw in raws], shape)
    assert exact(converted) == exact(raws)
    assert not report


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_what_comes_back_is_a_copy(shape: str, data: st.DataObject) -> None:
    raw = data.draw(MESSAGES[shape])
    before = exact(raw)
    (made,), _ = convert([enclose(raw, shape)], shape)
    for value in made.values():
        if isinstance(value, list | dict):
            value.clear()
    assert exact(raw) == before


def bare(value: Any) -> Any:
    """Without what remembers where it came from: rendering must do with the fields."""
    if isinstance(value, tuple):
        return tuple(map(bare, value))
    if hasattr(value, "origin"):
        inner = {each.name: bare(getattr(value, each.name)) for each in fields(value)}
        return replace(value, **{**inner, "origin": None})
    return value


def known(blocks: Any) -> bool:
    """Whether no block is raw for want of being a dictionary, or empty where a provider has no empty text."""
    return all(not isinstance(block, Unknown) or isinstance(block.raw, dict) for block in blocks)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=200)
@given(data=st.data())
def test_the_fields_say_all(shape: str, data: st.DataObject) -> None:
    raw = data.draw(MESSAGES[shape])
    message = shapes.parse(shape, raw)
    notes = Notes()
    rendered = shapes.render(bare(message), shape, notes)
    assert not notes.report()
    again = [shapes.parse(shape, each) for each in rendered]
    assert [block for each in again for block in each.blocks] == list(message.blocks)
    assert {each.role for each in again} <= {message.role}
    if len(again) == 1:
        assert again[0] == message


@pytest.mark.parametrize("source", SHAPES)
@pytest.mark.parametrize("target", SHAPES)
@settings(max_examples=40)
@given(data=st.data())
def test_across_no_text_is_lost_and_every_loss_is_told(source: str, target: str, data: st.DataObject) -> None:
    raws = data.draw(st.lists(MESSAGES[source], max_size=5))
    items = [enclose(raw, source, str(at)) for at, raw in enumerate(raws)]
    before = exact(items)
    request = SENDERS[target](items)
    assert exact(items) == before, "what is stored is not touched"
    told = exact(dict(request))
    for message in canonical(items):
        if message.role == "system":
            continue
        for block in message.blocks:
            if isinstance(block, Text):
                assert exact(block.text)[1:-1] in told
            elif isinstance(block, Unknown) and source != target:
                dropped = [each for each in request.report.dropped if each.index == message.index]
                assert dropped, "a block nobody else knows is told as dropped"
    CHECKS[target](request)


def check_anthropic(request: Any) -> None:
    roles = [message["role"] for message in request.messages]
    assert all(a != b for a, b in pairwise(roles))
    assert not roles or roles[0] == "user"
    points = [block for block in request.system or [] if "cache_control" in block]
    open_calls: list[str] = []
    for message in request.messages:
        assert set(message) == {"role", "content"}
        assert message["content"]
        results = [each["tool_use_id"] for each in message["content"] if each.get("type") == "tool_result"]
        assert sorted(results) == sorted(open_calls)
        open_calls = [each["id"] for each in message["content"] if each.get("type") == "tool_use"]
        assert all(re.fullmatch("[a-zA-Z0-9_-]+", call) for call in open_calls)
        points += [block for block in message["content"] if block.get("cache_control")]
        assert all(block.get("text") != "" for block in message["content"] if block["type"] == "text")
    assert not open_calls
    assert len(points) <= 4


def check_chat(request: Any) -> None:
    waiting: list[str] = []
    for message in request.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        if message["role"] != "assistant" or not waiting:
            assert not waiting, "nothing comes between a call and its result"
        waiting += [call["id"] for call in message.get("tool_calls") or []]
    assert not waiting


def check_responses(request: Any) -> None:
    waiting: list[str] = []
    for item in request.messages:
        if item.get("type") in ("function_call", "custom_tool_call"):
            waiting.append(item["call_id"])
        elif item.get("type") in ("function_call_output", "custom_tool_call_output"):
            waiting.remove(item["call_id"])
    assert not waiting


def check_google(request: Any) -> None:
    for content in request.messages:
        made = types.Content.model_validate(content)
        assert made.parts
        for part in made.parts:
            assert part.function_call is None or part.function_call.id
            assert part.function_response is None or part.function_response.name
    roles = [content["role"] for content in request.messages]
    assert all(a != b for a, b in pairwise(roles))


def check_langchain(request: Any) -> None:
    made = messages_from_dict(request.messages)
    assert len(made) == len(request.messages)


CHECKS = {
    "anthropic": check_anthropic,
    "openai.chat": check_chat,
    "openai.responses": check_responses,
    "google": check_google,
    "langchain": check_langchain,
}


@given(raws=st.lists(nonsense, max_size=3), shape=st.sampled_from(SHAPES), target=st.sampled_from(SHAPES))
def test_nonsense_neither_raises_nor_changes_what_is_stored(
    raws: list[dict[str, Any]], shape: str, target: str
) -> None:
    items = [enclose(raw, shape, str(at)) for at, raw in enumerate(raws)]
    before = exact(items)
    SENDERS[target](items)
    assert exact(items) == before


def test_a_message_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Message(role="user").role = "tool"  # type: ignore[misc]
