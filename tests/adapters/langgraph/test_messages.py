"""Messages that are read share nothing with what is remembered of them, nor with one another."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.langgraph.values import Values
from everthread.errors import InvalidStateError
from tests.adapters.langgraph.graphs import config, echo, talking


def messages() -> list[AnyMessage]:
    """One of each kind, with and without what is optional."""
    return [
        HumanMessage("plain", id="h1"),
        HumanMessage([{"type": "text", "text": "part"}], id="h2", name="Ada", additional_kwargs={"a": [1]}),
        AIMessage("said", id="a1"),
        AIMessage(
            "",
            id="a2",
            tool_calls=[{"name": "add", "args": {"a": {"deep": [1]}}, "id": "c1", "type": "tool_call"}],
            response_metadata={"model": "m", "logprobs": {"content": [1]}},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage("3", tool_call_id="c1", id="t1", artifact={"raw": [3]}, status="error"),
        SystemMessage("be kind", id="s1"),
        ChatMessage("hi", role="critic", id="ch"),  # type: ignore[call-arg]
        FunctionMessage("1", name="f", id="f1"),  # type: ignore[call-arg]
        RemoveMessage(id="gone"),  # type: ignore[list-item]
        HumanMessage("more", id="h3", custom={"kept": [1]}),
    ]


def spoil(message: Any) -> None:
    """Change everything that can be changed in a message."""
    for value in [*message.__dict__.values(), *(message.__pydantic_extra__ or {}).values()]:
        if isinstance(value, dict):
            for inner in list(value.values()):
                if isinstance(inner, list):
                    inner.append("spoilt")
            value["spoilt"] = True
        elif isinstance(value, list):
            for inner in value:
                if isinstance(inner, dict):
                    inner["spoilt"] = True
            value.append("spoilt")
    message.id = "spoilt"
    message.__dict__["type"] = "spoilt"
    message.__pydantic_fields_set__.add("spoilt")
    message.__pydantic_extra__["spoilt"] = True


def exactly(message: Any) -> Any:
    return (
        type(message),
        message.__dict__,
        message.__pydantic_extra__,
        message.__pydantic_fields_set__,
        message.__pydantic_private__,
    )


def test_copies_of_one_mould_share_nothing() -> None:
    values = Values(JsonPlusSerializer())
    given = messages()
    moulds = values.moulds([values.pack_item(each) for each in given])
    for message in given:
        spoil(message)
    for _ in range(3):
        for made, wanted in zip(values.cast(moulds), messages(), strict=True):
            assert exactly(made) == exactly(wanted)
            assert type(made.model_fields_set) is set
            spoil(made)


def test_a_message_that_was_made_can_do_what_others_can() -> None:
    values = Values(JsonPlusSerializer())
    for made, wanted in zip(
        values.unpack_items([values.pack_item(each) for each in messages()]), messages(), strict=True
    ):
        assert made == wanted
        assert repr(made) == repr(wanted)
        assert made.model_dump() == wanted.model_dump()
        assert made.model_dump(exclude_unset=True) == wanted.model_dump(exclude_unset=True)
        assert made.model_copy(deep=True, update={"id": "x"}).id == "x"
        made.content = "changed"
        assert "content" in made.model_fields_set


def test_a_text_where_a_container_belongs_stays() -> None:
    values = Values(JsonPlusSerializer())
    odd = AIMessage("x", id="1")
    odd.__dict__["response_metadata"] = "odd"
    (made,) = values.unpack_items([values.pack_item(odd)])
    assert made.response_metadata == "odd"
    assert made.additional_kwargs == {}


def test_a_type_that_is_not_known_is_refused() -> None:
    values = Values(JsonPlusSerializer())
    stored = values.pack_item(HumanMessage("x"))
    stored["message"]["type"] = "newer"
    with pytest.raises(InvalidStateError, match="newer"):
        values.unpack_items([stored])


def test_what_a_reader_changes_reaches_neither_store_nor_other_readers(store: everthread.Store) -> None:
    saver = EverthreadSaver(store)
    graph = talking(echo).compile(checkpointer=saver)
    everything = [each for each in messages() if each.type in ("human", "ai", "tool", "system")]
    wanted = graph.invoke({"messages": everything}, config("t"))["messages"]
    wanted = [each.model_copy(deep=True) for each in wanted]
    for reader in (saver, saver, EverthreadSaver(store)):
        read = reader.get_tuple(config("t"))
        assert read is not None
        found = read.checkpoint["channel_values"]["messages"]
        assert found == wanted
        for message in found:
            spoil(message)
        found.clear()
    assert graph.get_state(config("t")).values["messages"] == wanted
    graph.invoke({"messages": [HumanMessage("next", id="n")]}, config("t"))
    assert (
        EverthreadSaver(store).get_tuple(config("t")).checkpoint["channel_values"]["messages"][:-2] == wanted
    )
