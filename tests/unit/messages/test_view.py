"""A log of many shapes as one framework is shown it, and what shapes of frameworks say when read back."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.adapters.bridge import own_records
from everthread.errors import InvalidValueError
from everthread.messages import canonical
from everthread.messages.model import Message, Notes, Text, ToolCall, ToolResult
from everthread.messages.shapes import (
    AGENT_FRAMEWORK,
    GOOGLE,
    LANGCHAIN,
    LLAMA_INDEX,
    OPENAI_RESPONSES,
    PYDANTIC_AI,
    STRANDS,
    build,
    parse_all,
)
from everthread.messages.view import UNREADABLE, readable, texts, view
from everthread.values import Erased, Personal

TARGETS = (AGENT_FRAMEWORK, GOOGLE, LANGCHAIN, LLAMA_INDEX, OPENAI_RESPONSES, PYDANTIC_AI, STRANDS)
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
BEGUN: list[Any] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
]


def nothing(item: Any) -> None:
    return None


def told(shape: str, messages: list[Any]) -> list[Any]:
    """What messages of a shape say, one after another."""
    found: list[Any] = []
    for raw in messages:
        for message in parse_all(shape, raw):
            for block in message.blocks:
                match block:
                    case Text(text=text):
                        found.append(text)
                    case ToolCall():
                        found.append((block.call_id, block.name, dict(block.arguments or {})))
                    case ToolResult():
                        found.append((block.call_id, *texts(Message(role="tool", blocks=block.content))))
    return found


@pytest.mark.parametrize("shape", TARGETS)
def test_what_others_wrote_says_the_same_in_every_shape(shape: str) -> None:
    shown = view(BEGUN, shape, nothing)
    assert [each.item for each in shown] == BEGUN
    assert not any(each.own for each in shown)
    said = told(shape, [message for each in shown for message in each.messages])
    assert said == ["Weather?", "I look.", ("c1", "weather", {"city": "Oslo"}), ("c1", "rain"), "It rains."]


@pytest.mark.parametrize("shape", TARGETS)
def test_what_a_framework_wrote_itself_comes_back_as_it_is(shape: str) -> None:
    own = {"shape": shape, "message": {"anything": [1]}}
    erased = {"shape": shape, "message": Erased()}
    shown = view([own, *BEGUN, erased], shape, own_records(shape))
    assert shown[0].messages == [{"anything": [1]}]
    assert shown[0].own
    assert shown[-1].messages == []
    assert [each.own for each in shown[1:-1]] == [False] * 4


@pytest.mark.parametrize("shape", TARGETS)
def test_nothing_in_a_log_can_keep_the_rest_from_being_shown(shape: str) -> None:
    odd: list[Any] = [
        7,
        "text",
        None,
        {"shape": "of the future", "message": {}},
        {"role": "user", "content": Personal("u1", "secret")},
        Erased(),
        {"shape": "adk", "message": {"author": "agent"}},
        BEGUN[0],
    ]
    shown = view(odd, shape, nothing)
    said = [text for each in shown for text in told(shape, each.messages)]
    assert said.count(UNREADABLE) == 4
    assert said[-1] == "Weather?"
    assert "secret" not in str(said)
    assert shown[6].messages == []


def test_a_result_learns_the_name_of_the_call_that_the_framework_made_itself() -> None:
    call = {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "f", "tool_call_id": "c"}]}
    answer = {"type": "function_call_output", "call_id": "c", "output": "done"}
    log = [
        {"shape": PYDANTIC_AI, "message": call},
        {"shape": OPENAI_RESPONSES, "message": answer},
    ]
    shown = view(log, PYDANTIC_AI, own_records(PYDANTIC_AI))
    assert shown[1].messages[0]["parts"][0]["tool_name"] == "f"


@pytest.mark.parametrize("shape", [AGENT_FRAMEWORK, LLAMA_INDEX, STRANDS])
def test_shapes_of_frameworks_are_read_by_all_and_never_asked_for(shape: str) -> None:
    message = Message(role="user", blocks=(Text(text="hello"),))
    (raw,) = build(message, shape, Notes())
    item = {"shape": shape, "message": raw}
    assert canonical([item])[0].text == "hello"
    with pytest.raises(InvalidValueError):
        canonical([raw], shape=shape)
    found = readable(item)
    assert found is not None
    assert list(texts(found[0])) == ["hello"]
