"""EverthreadChatStore: a real chat engine of LlamaIndex with its own mock model."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.chat_engine import SimpleChatEngine
from llama_index.core.llms.mock import MockLLM
from llama_index.core.memory import ChatMemoryBuffer

from everthread import Store
from everthread.adapters.llama_index import EverthreadChatStore
from everthread.messages import for_openai_chat
from tests.adapters.conftest import stored_bytes


class Listening(MockLLM):
    """Echoes, as its own mock does, and keeps what it was shown."""

    _asked: list[Any] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[Any]:
        return self._asked

    def chat(self, messages: Any, **kwargs: Any) -> Any:
        self.asked.append([(str(each.role.value), each.content) for each in messages])
        return super().chat(messages, **kwargs)


def engine(store: Store, model: Listening, **options: Any) -> SimpleChatEngine:
    memory = ChatMemoryBuffer.from_defaults(
        chat_store=EverthreadChatStore(store, **options), chat_store_key="trip", token_limit=10_000
    )
    return SimpleChatEngine.from_defaults(llm=model, memory=memory)


def test_a_chat_goes_on_where_it_was_and_is_read_by_others(store: Store) -> None:
    engine(store, Listening()).chat("one")
    model = Listening()
    engine(store, model).chat("two")
    assert [text for role, text in model.asked[0] if role == "user"] == ["one", "two"]
    roles = [each["role"] for each in for_openai_chat(store.thread("trip").messages)["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert EverthreadChatStore(store).get_keys() == ["trip"]


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
    model = Listening()
    engine(store, model).chat("And now?")
    assert [role for role, _ in model.asked[0]] == ["user", "assistant", "tool", "assistant", "user"]
    assert list(store.thread("trip").messages)[:4] == kept
    chats = EverthreadChatStore(store)
    assert chats.get_messages("trip")[1].blocks == [
        ToolCallBlock(tool_call_id="c1", tool_name="weather", tool_kwargs={"city": "Oslo"})
    ]
    chats.set_messages("trip", chats.get_messages("trip"))
    assert list(store.thread("trip").messages)[:4] == kept


def test_messages_come_back_as_they_were_and_are_removed(store: Store) -> None:
    chats = EverthreadChatStore(store)
    messages = [
        ChatMessage(role="user", content="one"),
        ChatMessage(role="assistant", blocks=[TextBlock(text="two")], additional_kwargs={"x": [1]}),
    ]
    for message in messages:
        chats.add_message("t", message)
    assert chats.get_messages("t") == messages
    assert chats.delete_message("t", 5) is None
    assert chats.delete_last_message("t") == messages[1]
    assert chats.delete_messages("t") == messages[:1]
    assert chats.get_messages("t") == []
    assert len(store.thread("t").at(2).messages) == 2


def test_the_messages_of_a_person_are_sealed(store: Store, url: str) -> None:
    chats = EverthreadChatStore(store, subject="u1")
    chats.add_message("t", ChatMessage(role="user", content="I am Ada Lovelace"))
    assert b"Lovelace" not in stored_bytes(url)
    assert chats.get_messages("t")[0].content == "I am Ada Lovelace"
    store.erase("u1")
    assert chats.get_messages("t") == []
