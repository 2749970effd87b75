"""A log as a request: what each provider gets, and what the report says about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import everthread
from everthread import Erased, InvalidValueError, Personal, UsageError
from everthread.messages import (
    SHAPES,
    Reasoning,
    ToolCall,
    canonical,
    convert,
    enclose,
    for_anthropic,
    for_google,
    for_langchain,
    for_openai_chat,
    for_openai_responses,
)
from everthread.messages.model import ERASED, WITHHELD
from everthread.messages.pairing import NO_RESULT

SYSTEM = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "Weather in Oslo?"}
CALL = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ],
}
RESULT = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}],
}
DONE = {"role": "assistant", "content": [{"type": "text", "text": "Rain."}]}


def log(*messages: Any, shape: str = "anthropic") -> list[Any]:
    return [enclose(message, shape, f"m{at}") for at, message in enumerate(messages)]


def test_anthropic_from_its_own_messages() -> None:
    request = for_anthropic(log(SYSTEM, ASK, CALL, RESULT, DONE))
    assert request["system"] == [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    ]
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"] * 2
    assert request["messages"][1] == CALL, "signed thinking goes back unchanged"
    assert request["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert not request.report
    assert "cache_control" not in DONE["content"][0], "what is stored is not touched"


def test_the_last_system_message_wins() -> None:
    items = log(SYSTEM, ASK, {"role": "system", "content": "Be long."})
    for request in (for_anthropic(items, cache=None), for_google(items)):
        assert "Be long." in str(request.system)
        assert "Be brief." not in str(dict(request))
        assert [each.index for each in request.report.dropped] == [0]
    assert for_openai_responses(items)["instructions"] == "Be long."
    assert for_openai_chat(items)["messages"][0] == {"role": "system", "content": "Be long."}
    assert for_langchain(items).messages[0]["data"]["content"] == "Be long."


def test_consecutive_roles_become_one_message() -> None:
    items = log(ASK, {"role": "user", "content": "Please."}, DONE, DONE)
    request = for_anthropic(items, cache=None)
    assert [len(message["content"]) for message in request["messages"]] == [2, 2]
    assert [len(content["parts"]) for content in for_google(items)["contents"]] == [2, 2]
    assert len(for_openai_chat(items)["messages"]) == 4


def test_anthropic_to_chat() -> None:
    request = for_openai_chat(log(SYSTEM, ASK, CALL, RESULT, DONE))
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
        {"role": "assistant", "content": "Rain."},
    ]
    (lost,) = request.report.changes
    assert (lost.kind, lost.what, lost.index) == ("dropped", "reasoning", 2)
    assert str(lost) == "message 2: reasoning dropped: Chat Completions takes none"
    assert request.report.summary() == "1 dropped"


def test_anthropic_to_responses_and_back() -> None:
    request = for_openai_responses(log(SYSTEM, ASK, CALL, RESULT, DONE))
    assert request["instructions"] == "Be brief."
    kinds = [item.get("type") for item in request["input"]]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message"]
    back = for_anthropic(log(*request["input"], shape="openai.responses"), cache=None)
    assert back.messages[1]["content"] == CALL["content"][1:]
    assert back.messages[2] == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}],
    }


def test_anthropic_to_google_names_the_tool_of_a_result() -> None:
    request = for_google(log(SYSTEM, ASK, CALL, RESULT))
    assert request["config"] == {"system_instruction": {"parts": [{"text": "Be brief."}]}}
    assert request["contents"][2]["parts"] == [
        {"function_response": {"name": "weather", "response": {"result": "rain"}, "id": "toolu_1"}}
    ]


def test_google_calls_without_ids_get_one_that_stays() -> None:
    call = {"function_call": {"name": "weather", "args": {"city": "Oslo"}}, "thought_signature": b"\x00sig"}
    other = {"function_call": {"name": "time", "args": {}}}
    answers = [
        {"function_response": {"name": "time", "response": {"result": "noon"}}},
        {"function_response": {"name": "weather", "response": {"sky": "grey"}}},
    ]
    items = log(
        {"role": "user", "parts": [{"text": "?"}]},
        {"role": "model", "parts": [call, other]},
        {"role": "user", "parts": answers},
        shape="google",
    )
    request = for_google(items)
    first, second = request["contents"][1]["parts"]
    assert first["thought_signature"] == b"\x00sig"
    back = {
        part["function_response"]["name"]: part["function_response"]
        for part in request["contents"][2]["parts"]
    }
    assert back["weather"]["id"] == first["function_call"]["id"]
    assert back["time"]["id"] == second["function_call"]["id"]
    assert dict(for_google(items)) == dict(request)
    chat = for_openai_chat(items)["messages"]
    assert {each["tool_call_id"]: each["content"] for each in chat if each["role"] == "tool"} == {
        first["function_call"]["id"]: '{"sky":"grey"}',
        second["function_call"]["id"]: "noon",
    }


def test_both_ids_and_raw_and_parsed_arguments_are_kept() -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": '{ "a":1}',
        "status": "completed",
    }
    (message,) = canonical(log(item, shape="openai.responses"))
    (call,) = message.blocks
    assert isinstance(call, ToolCall)
    assert (call.call_id, call.item_id, call.raw, call.arguments) == ("call_1", "fc_1", '{ "a":1}', {"a": 1})
    chat = for_openai_chat(log(item, shape="openai.responses"), orphans="keep")
    assert chat["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{ "a":1}'


def test_arguments_that_are_no_json_reach_who_needs_data() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    items = log({"role": "assistant", "content": None, "tool_calls": [call]}, shape="openai.chat")
    request = for_anthropic(items, cache=None)
    assert request.messages[1]["content"][0]["input"] == {"input": '{"a": '}
    assert [each.kind for each in request.report.changes if each.what == "tool call"] == ["changed"]
    assert for_langchain(items).messages[0]["data"]["invalid_tool_calls"][0]["args"] == '{"a": '


def test_signed_reasoning_stays_with_its_provider() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA", "status": None}
    items = log(ASK, item, {"role": "assistant", "content": "x"}, shape="openai.responses")
    message = canonical(items)[1]
    (block,) = message.blocks
    assert isinstance(block, Reasoning)
    assert (block.provider, block.signature) == ("openai.responses", "gAAA")
    assert for_openai_responses(items)["input"][1] == item
    assert "gAAA" not in str(dict(for_anthropic(items)))
    assert [each.what for each in for_anthropic(items).report.dropped] == ["reasoning"]


# ── calls without results ────────────────────────────────────────────────────────────────────────


def test_a_call_that_was_never_answered_is_completed() -> None:
    request = for_anthropic(log(ASK, CALL, {"role": "user", "content": "Well?"}), cache=None)
    assert request.messages[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": NO_RESULT, "is_error": True},
        {"type": "text", "text": "Well?"},
    ]
    assert [(each.kind, each.index) for each in request.report.changes] == [("added", 1)]


def test_a_call_that_was_never_answered_is_cut() -> None:
    request = for_anthropic(log(ASK, CALL), orphans="cut", cache=None)
    assert [block["type"] for block in request.messages[1]["content"]] == ["thinking", "text"]
    assert [(each.kind, each.what) for each in request.report.changes] == [("dropped", "tool call")]


def test_what_was_thought_before_a_cut_call_goes_with_it() -> None:
    items = log(
        ASK,
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        shape="openai.responses",
    )
    request = for_openai_responses(items, orphans="cut")
    assert request["input"] == [ASK]
    assert {each.what for each in request.report.dropped} == {"reasoning", "tool call"}


def test_refusing_names_the_message() -> None:
    with pytest.raises(InvalidValueError, match="'weather' in message 1 has no result"):
        for_anthropic(log(ASK, CALL), orphans="refuse")
    with pytest.raises(InvalidValueError, match="message 0 holds a result without a call"):
        for_anthropic(log(RESULT), orphans="refuse")
    with pytest.raises(InvalidValueError, match="orphans is one of"):
        for_anthropic(log(ASK), orphans="guess")  # type: ignore[arg-type]


def test_keeping_changes_nothing() -> None:
    converted, report = convert(log(ASK, CALL, RESULT, RESULT), "anthropic", orphans="keep")
    assert converted == [ASK, CALL, RESULT, RESULT]
    assert not report


def test_a_result_without_a_call_is_dropped() -> None:
    request = for_openai_chat(log(ASK, RESULT, DONE))
    assert [message["role"] for message in request["messages"]] == ["user", "assistant"]
    assert [(each.kind, each.index) for each in request.report.changes] == [("dropped", 1)]


def test_a_message_between_call_and_result_is_moved_behind_it() -> None:
    request = for_openai_chat(log(ASK, CALL, {"role": "user", "content": "Hurry!"}, RESULT, DONE))
    roles = [message["role"] for message in request["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    assert "moved next to the call" in str(request.report)


def test_an_id_that_a_provider_uses_again_loses_no_result() -> None:
    again = {"role": "user", "content": [{**RESULT["content"][0], "content": "sun"}]}  # type: ignore[dict-item]
    request = for_anthropic(log(ASK, CALL, RESULT, CALL, again), cache=None)
    said = [message["content"][0].get("content") for message in request.messages]
    assert said == [None, None, "rain", None, "sun"]
    assert not request.report


# ── cache points ─────────────────────────────────────────────────────────────────────────────────


def marked(request: Any) -> list[str]:
    blocks = [*(request.system or []), *(block for each in request.messages for block in each["content"])]
    return [block.get("text", block["type"]) for block in blocks if "cache_control" in block]


def test_at_most_four_cache_points_the_newest() -> None:
    point = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    asks = [{"role": "user", "content": [{"type": "text", "text": f"t{at}", **point}]} for at in range(6)]
    request = for_anthropic(log(SYSTEM, *asks, DONE))
    assert marked(request) == ["Be brief.", "t4", "t5", "Rain."]
    assert [each.what for each in request.report.dropped] == ["cache points"]
    assert marked(for_anthropic(log(*asks), cache=None)) == ["t2", "t3", "t4", "t5"]


def test_a_cache_point_is_never_put_on_thinking() -> None:
    thought = {"role": "assistant", "content": CALL["content"][:1]}
    assert marked(for_anthropic(log(ASK, thought), cache="1h")) == ["Weather in Oslo?"]
    with pytest.raises(InvalidValueError, match="cache is one of 5m, 1h"):
        for_anthropic(log(ASK), cache="2h")


# ── personal values ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "send", [for_anthropic, for_openai_chat, for_openai_responses, for_google, for_langchain]
)
def test_personal_values_are_shown_only_by_choice(send: Any) -> None:
    items = [
        {"id": "a", "role": "user", "content": Personal("u1", "I am Ada")},
        *log({"role": "assistant", "content": [{"type": "text", "text": Personal("u1", "Hi Ada")}]}),
        {"id": "c", "role": "user", "content": Erased()},
    ]
    hidden, shown = send(items), send(items, reveal=True)
    assert "Ada" not in str(dict(hidden))
    assert str(dict(hidden)).count(WITHHELD) == 2
    assert "I am Ada" in str(dict(shown))
    assert "Hi Ada" in str(dict(shown))
    for request in (hidden, shown):
        assert ERASED in str(dict(request))
        assert [each.index for each in request.report.changed][-1] == 2


def test_a_message_that_is_personal_as_a_whole_becomes_a_placeholder() -> None:
    items = [{"id": "a", "shape": "anthropic", "message": Personal("u1", ASK)}, Erased()]
    assert [each["text"] for each in for_anthropic(items).messages[0]["content"]] == [WITHHELD, ERASED]
    revealed = for_anthropic(items, reveal=True)
    assert revealed.messages[0]["content"][0]["text"] == ASK["content"]


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


def test_items_without_a_shape_are_recognised_where_they_can_be_only_one_thing() -> None:
    items = [
        {"id": "1", **ASK},
        {"id": "2", **CALL},
        {"id": "3", "role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
        {"id": "4", "role": "model", "parts": [{"text": "Rain."}]},
        {"id": "rs_5", "type": "reasoning", "summary": []},
        {"id": "6", "type": "human", "data": {"content": "Thanks", "type": "human"}},
    ]
    providers = [message.provider for message in canonical(items)]
    assert providers == ["openai.chat", "anthropic", "openai.chat", "google", "openai.responses", "langchain"]
    request = for_openai_chat(items)
    assert "id" not in request["messages"][0], "the log's id is not the provider's"


@pytest.mark.parametrize(
    "item",
    [
        {"id": "1", "payload": 3},
        {"id": "1", "role": "user", "content": [{"type": "x"}]},
        {"id": "1", "role": "user", "content": [{"type": "tool_use"}, {"type": "input_text"}]},
        {"id": "1", "role": "user", "content": None},
        "text",
        7,
    ],
)
def test_what_shows_no_shape_is_refused_and_named(item: Any) -> None:
    with pytest.raises(InvalidValueError, match="message 1 has no shape") as caught:
        for_anthropic([ASK, item])
    assert caught.value.path == "messages[1]"


def test_a_shape_of_a_later_release_is_refused_and_named() -> None:
    with pytest.raises(InvalidValueError, match=r"message 0 has the shape 'acme\.v9', which this release"):
        for_anthropic([{"id": "1", "shape": "acme.v9", "message": {}}])


def test_a_shape_can_be_given_for_those_that_say_none() -> None:
    item = {"id": "1", "role": "user", "content": [{"type": "x_new", "a": 1}]}
    converted, report = convert([item], "anthropic", shape="anthropic")
    assert converted == [{"role": "user", "content": [{"type": "x_new", "a": 1}]}]
    assert not report
    with pytest.raises(InvalidValueError, match="there is no shape 'nope'"):
        convert([item], "anthropic", shape="nope")
    with pytest.raises(InvalidValueError, match=r"there are anthropic, openai\.chat"):
        convert([item], "nope")


def test_enclosing_takes_the_messages_own_id() -> None:
    assert enclose({"id": "msg_1", "role": "assistant", "content": []}, "anthropic")["id"] == "msg_1"
    assert enclose({"type": "ai", "data": {"id": "run-1"}}, "langchain")["id"] == "run-1"
    assert "id" not in enclose(ASK, "anthropic")
    with pytest.raises(InvalidValueError, match="is a dictionary"):
        enclose("text", "anthropic")  # type: ignore[arg-type]


def test_an_edited_message_is_written_anew() -> None:
    # The provider's own value must not win over a change.
    from dataclasses import replace

    from everthread.messages.model import Notes
    from everthread.messages.shapes import render

    for shape in SHAPES:
        raw = convert(log(ASK), shape)[0][0]
        (message,) = canonical(log(raw, shape=shape))
        edited = message.with_blocks((replace(message.blocks[0], text="Elsewhere?"),))
        (made,) = render(edited, shape, Notes())
        assert "Elsewhere?" in str(made)
        assert "Oslo" not in str(made)


def test_a_log_of_an_async_store_says_that_it_is_read_first() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("t")
            thread.messages.append(ASK)
            with pytest.raises(UsageError, match="async store"):
                for_anthropic(thread.messages)
            assert for_openai_chat(await thread.messages.read())["messages"] == [ASK]

    asyncio.run(main())
