"""The ten lines by which one switches, as docs/adapters has them, with an agent whose model is scripted.

That every block of these pages runs is in tests/docs; here what they define is used.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

import everthread
from tests.adapters.openai_scripted import Scripted as ScriptedOpenAI
from tests.adapters.openai_scripted import say
from tests.adapters.test_adk import Scripted as ScriptedADK
from tests.docs.test_blocks import ROOT, blocks

PAGES = ROOT / "docs" / "adapters"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def first_block(page: str) -> dict[str, Any]:
    """What the first block of a page defines."""
    block = next(blocks((PAGES / page).read_text(encoding="utf-8")))
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block.code, page, "exec", dont_inherit=True), namespace)
    return namespace


def kept(name: str) -> Any:
    """The messages of a thread in the one store that the page made."""
    (made,) = Path().glob("*.db")
    with everthread.open(f"sqlite:///{made}") as store:
        return [item["message"] for item in store.thread(name).messages]


def test_openai_agents() -> None:
    page = first_block("openai-agents.md")
    agent = page["Agent"](name="clerk", model=ScriptedOpenAI(say("Nothing.")))
    assert asyncio.run(page["chat"](agent)) == "Nothing."
    page["store"].close()
    assert [item["role"] for item in kept("conversation-1")] == ["user", "assistant"]


def test_adk() -> None:
    page = first_block("adk.md")
    page["agent"].model = ScriptedADK(steps=["Nothing."])
    asked = types.Content(role="user", parts=[types.Part(text="What is open?")])
    key = {"app_name": "books", "user_id": "u1", "session_id": "s1"}

    async def main() -> None:
        await page["service"].create_session(**key)
        async for _ in page["runner"].run_async(user_id="u1", session_id="s1", new_message=asked):
            pass

    asyncio.run(main())
    page["service"].close()
    texts = [item["content"]["parts"][0]["text"] for item in kept("adk/session/books/u1/s1")]
    assert texts == ["What is open?", "Nothing."]


def test_pydantic_ai() -> None:
    page = first_block("pydantic-ai.md")
    assert asyncio.run(page["turn"]("What is open?")) == "Nothing is open."
    page["conversations"].close()
    assert len(kept("pydantic_ai/c1")) == 2


def test_claude() -> None:
    page = first_block("claude.md")
    assert page["options"].session_store is page["sessions"]
    key = {"project_key": "p", "session_id": "s"}
    asyncio.run(page["options"].session_store.append(key, [{"type": "user", "uuid": "u"}]))
    page["store"].close()
    assert kept("claude/p/s") == [{"type": "user", "uuid": "u"}]


def test_langgraph() -> None:
    page = first_block("langgraph.md")
    page["graph"].invoke({"messages": [("user", "again")]}, page["config"])
    page["store"].close()
    assert [item["data"]["content"] for item in kept("langgraph/trip")] == [
        "hello",
        "you said hello",
        "again",
        "you said again",
    ]
