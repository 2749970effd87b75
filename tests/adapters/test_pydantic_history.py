"""Plain histories of Pydantic AI, with every release that the extra allows, with and without conversation
stores."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import everthread
from everthread import Store
from everthread.adapters.pydantic_ai import load_messages, save_messages
from everthread.messages import for_anthropic, for_openai_chat
from everthread.messages.model import WITHHELD
from tests.adapters.conftest import stored_bytes


def ask(text: str) -> ModelMessage:
    return ModelRequest(parts=[UserPromptPart(content=text)])


def answer(text: str) -> ModelMessage:
    return ModelResponse(parts=[TextPart(content=text)])


def asked(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if hasattr(part, "content")]


def test_a_plain_history_is_kept_and_only_what_is_new_is_written(store: Store) -> None:
    agent = Agent(TestModel(custom_output_text="yes"))

    async def main() -> None:
        assert await load_messages(store, "t") == []
        result = await agent.run("one")
        version = await save_messages(store, "t", result.all_messages())
        assert version is not None
        again = await save_messages(store, "t", result.all_messages())
        assert again == version, "nothing new is no version"
        more = await agent.run("two", message_history=await load_messages(store, "t"))
        await save_messages(store, "t", more.all_messages())
        assert await load_messages(store, "t") == more.all_messages()
        assert len(store.thread("t").at(version).messages) == 2
        # Rewritten.
        await save_messages(store, "t", [ask("summary"), *more.all_messages()[-1:]])
        assert asked(await load_messages(store, "t")) == ["summary", "yes"]
        assert len(store.thread("t").at(2).messages) == 4

    asyncio.run(main())


def test_a_history_is_read_by_other_providers(store: Store) -> None:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(
                parts=[
                    ThinkingPart(content="hm", signature="c2ln", provider_name="anthropic"),
                    ToolCallPart(tool_name="weather", args='{"city":"Oslo"}', tool_call_id="c1"),
                ]
            )
        return ModelResponse(parts=[TextPart(content="Rain.")])

    agent = Agent(FunctionModel(script), system_prompt="Be brief.")

    @agent.tool_plain
    def weather(city: str) -> dict[str, str]:
        return {"sky": "rain"}

    async def main() -> None:
        image = BinaryContent(b"\x00\xff\xfb", media_type="image/png")
        result = await agent.run(["Oslo?", image])
        await save_messages(store, "t", result.all_messages())

    asyncio.run(main())
    request = for_anthropic(store.thread("t").messages, cache=None)
    assert request.system == [{"type": "text", "text": "Be brief."}]
    kinds = [[block["type"] for block in message["content"]] for message in request.messages]
    assert kinds == [["text", "image"], ["thinking", "tool_use"], ["tool_result"], ["text"]]
    assert request.messages[0]["content"][1]["source"]["data"] == "AP/7"
    assert request.messages[2]["content"][0]["content"] == '{"sky":"rain"}'
    assert not request.report


def test_a_plain_history_of_a_person_is_sealed_and_can_be_erased(store: Store, url: str) -> None:
    async def main() -> None:
        history = [ask("I am Ada Lovelace"), answer("Hello Lovelace")]
        await save_messages(store, "t", history, subject="u1")
        assert await save_messages(store, "t", history, subject="u1") == store.thread("t").head
        assert asked(await load_messages(store, "t")) == ["I am Ada Lovelace", "Hello Lovelace"]
        assert WITHHELD in str(for_openai_chat(store.thread("t").messages))
        await save_messages(store, "open", [ask("in the open")])
        assert b"in the open" in stored_bytes(url)
        assert b"Lovelace" not in stored_bytes(url)
        store.erase("u1")
        assert await load_messages(store, "t") == []
        await save_messages(store, "t", [ask("back")], subject="u1")
        assert asked(await load_messages(store, "t")) == ["back"]

    asyncio.run(main())


OLDER = """
import sys
sys.path.insert(0, sys.argv[1])
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "pydantic_ai.conversation_store":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from everthread.adapters import pydantic_ai
from everthread.errors import MissingDependencyError
assert callable(pydantic_ai.load_messages)
try:
    pydantic_ai.EverthreadConversationStore
except MissingDependencyError as error:
    print(error)
"""


def test_a_release_without_conversation_stores_has_histories_all_the_same() -> None:
    source = str(Path(everthread.__file__).parents[1])
    command = [sys.executable, "-I", "-c", OLDER, source]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "too old" in told
    assert "'.[pydantic-ai]'" in told
