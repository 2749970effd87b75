"""What holds for every adapter on a thread that others write to: no form becomes text that says so, what came
meanwhile stays, transcripts of the Claude Agent SDK are read by all and continued by none, names."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

import everthread
from everthread import Store, UsageError
from everthread.adapters.adk import EverthreadSessionService
from everthread.adapters.claude import EverthreadSessionStore
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.adapters.pydantic_ai import EverthreadConversationStore, load_messages, save_messages
from everthread.cli.log import PREFIXES
from tests.adapters.frameworks import FRAMEWORKS, Turn
from tests.adapters.openai_scripted import Scripted, say
from tests.unit.cli.calling import Program

TRANSCRIPT: Any = [
    {"type": "summary", "summary": "A trip"},
    {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Weather in Oslo?"}},
    {
        "type": "assistant",
        "uuid": "u2",
        "message": {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}],
        },
    },
    {
        "type": "user",
        "uuid": "u3",
        "message": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Oslo: rain"}],
        },
    },
    {"type": "assistant", "uuid": "u4", "message": {"role": "assistant", "content": "It rains."}},
]
KEY: Any = {"project_key": "p", "session_id": "s"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/agent.db"


@pytest.fixture
def store(url: str) -> Any:
    with everthread.open(url) as opened:
        yield opened
        assert opened.verify().ok


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_transcript_of_claude_is_read_by_every_other(framework: str, store: Store) -> None:
    asyncio.run(EverthreadSessionStore(store).append(KEY, TRANSCRIPT))
    store.thread("claude/p/s").fork("trip")
    shown = asyncio.run(FRAMEWORKS[framework](store, "trip", Turn("And now?", None, "Still.")))
    assert shown == [
        ("user", "Weather in Oslo?"),
        ("call", "weather", {"city": "Oslo"}),
        ("result", "Oslo: rain"),
        ("assistant", "It rains."),
        ("user", "And now?"),
    ]


def test_a_foreign_thread_is_refused_by_claude_with_the_briefing_as_the_way(store: Store) -> None:
    sessions = EverthreadSessionStore(store)
    asyncio.run(sessions.append(KEY, TRANSCRIPT))
    asyncio.run(EverthreadSession("claude/p/s", store).add_items([{"role": "user", "content": "hello"}]))
    with pytest.raises(UsageError, match=r"store\.briefing\('claude/p/s'\)"):
        asyncio.run(sessions.load(KEY))
    # What the SDK still mirrors of a session under way is kept.
    asyncio.run(sessions.append(KEY, [{"type": "user", "uuid": "u5"}]))
    store.thread("claude/p/other").update(
        lambda draft: draft.messages.append({"role": "user", "content": "x"})
    )
    for call in (sessions.load, lambda key: sessions.append(key, TRANSCRIPT)):
        with pytest.raises(UsageError, match="briefing"):
            asyncio.run(call({**KEY, "session_id": "other"}))
    assert len(store.thread("claude/p/other").messages) == 1


def test_claude_keeps_its_summary_from_append_to_append(store: Store) -> None:
    sessions = EverthreadSessionStore(store)
    title = {"type": "user", "uuid": "a", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/w"}
    first = {**title, "message": {"role": "user", "content": "The first prompt"}}
    asyncio.run(sessions.append(KEY, [first]))
    (before,) = asyncio.run(sessions.list_session_summaries("p"))
    asyncio.run(sessions.append(KEY, [{"type": "assistant", "uuid": "b", "message": {"role": "assistant"}}]))
    (after,) = asyncio.run(sessions.list_session_summaries("p"))
    assert before["data"]["first_prompt"] == "The first prompt"
    assert after["data"]["first_prompt"] == "The first prompt"


def test_claude_tells_sessions_of_one_tick_apart(store: Store) -> None:
    sessions = EverthreadSessionStore(store)

    async def main() -> list[int]:
        for name in "abcdef":
            await sessions.append({**KEY, "session_id": name}, [{"type": "user", "uuid": name}])
        listed = await sessions.list_sessions("p")
        return [each["mtime"] for each in sorted(listed, key=lambda each: each["session_id"])]

    mtimes = asyncio.run(main())
    assert mtimes == sorted(set(mtimes))


def test_claude_refuses_trio_in_words(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = EverthreadSessionStore(store)
    running = SimpleNamespace(lowlevel=SimpleNamespace(in_trio_run=lambda: True))
    monkeypatch.setitem(sys.modules, "trio", running)
    with pytest.raises(UsageError, match="asyncio"):
        EverthreadSessionStore(store)
    with pytest.raises(UsageError, match="asyncio"):
        asyncio.run(sessions.load(KEY))


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
#: Items that not every framework has a form for.
ODD: Any = [
    {
        "shape": "openai.chat",
        "message": {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]},
    },
    {
        "shape": "openai.responses",
        "message": {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    },
    {
        "shape": "anthropic",
        "message": {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": "c2VjcmV0"}, {"type": "text", "text": "Seen."}],
        },
    },
    {"shape": "of the future", "message": {}},
]


@pytest.mark.parametrize("framework", [each for each in FRAMEWORKS if each != "plain messages"])
def test_what_has_no_form_becomes_text_that_says_so(framework: str, store: Store) -> None:
    store.thread("trip").update(lambda draft: draft.messages.extend(ODD))
    kept = list(store.thread("trip").messages)
    shown = asyncio.run(FRAMEWORKS[framework](store, "trip", Turn("And?", None, "So.")))
    told = [each[-1] for each in shown]
    assert "see" in told
    assert "Seen." in told
    assert told[-1] == "And?"
    assert list(store.thread("trip").messages)[: len(kept)] == kept
    assert "image" in told
    assert "[an item that can't be read as a message]" in told
    search = "[block 'web_search_call' of openai.responses, which can't be shown here]"
    assert (search in told) == (framework != "OpenAI Agents")


def test_what_came_meanwhile_stays_when_a_history_is_saved(store: Store) -> None:
    asked, said = ModelRequest([UserPromptPart("one")]), ModelResponse([TextPart("two")])
    asyncio.run(save_messages(store, "t", [asked, said]))
    history = asyncio.run(load_messages(store, "t"))
    store.thread("t").update(lambda draft: draft.messages.append({"role": "user", "content": "meanwhile"}))
    asyncio.run(save_messages(store, "t", [*history, ModelResponse([TextPart("three")])]))
    texts = [message.parts[0].content for message in asyncio.run(load_messages(store, "t"))]
    assert texts == ["one", "two", "meanwhile", "three"]
    # A history that was rewritten replaces what it held, as ever.
    asyncio.run(save_messages(store, "t", [ModelRequest([UserPromptPart("summary")])]))
    assert len(store.thread("t").messages) == 1


def test_a_conversation_that_others_wrote_to_conflicts_once(store: Store) -> None:
    conversations = EverthreadConversationStore(store)

    async def main() -> list[Any]:
        from pydantic_ai.conversation import Conversation

        asked = ModelRequest([UserPromptPart("one")])
        await conversations.save(Conversation(conversation_id="c", messages=[asked]))
        loaded = await conversations.load("c")
        assert loaded is not None
        await EverthreadSession("pydantic_ai/c", store).add_items([{"role": "user", "content": "two"}])
        loaded.messages.append(ModelResponse([TextPart("three")]))
        with pytest.raises(ConversationConflict):
            await conversations.save(loaded)
        again = await conversations.load("c")
        assert again is not None
        again.messages.append(ModelResponse([TextPart("three")]))
        await conversations.save(again)
        # A branch before what the other wrote, and back to it.
        entries = await conversations.load_entries("c")
        assert entries is not None
        branched = await conversations.branch("c", at=1, expected_revision=again.revision)
        assert len(branched.messages) == 1
        back = await conversations.branch("c", from_entry=entries[2].id, expected_revision=branched.revision)
        return [message.parts[0].content for message in back.messages]

    assert asyncio.run(main()) == ["one", "two", "three"]
    assert [item.get("shape") for item in store.thread("pydantic_ai/c").messages] == [
        "pydantic_ai",
        "openai.responses",
        "pydantic_ai",
    ]


def test_a_session_of_the_adk_under_a_plain_name_belongs_to_its_user(store: Store) -> None:
    service = EverthreadSessionService(store, prefix="")
    key: Any = {"app_name": "app", "user_id": "u1", "session_id": "trip"}

    async def main() -> None:
        store.thread("trip").update(lambda draft: draft.messages.append({"role": "user", "content": "hello"}))
        session = await service.get_session(**key)
        assert session is not None
        assert [each.content.parts[0].text for each in session.events if each.content] == ["hello"]
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**key)
        await service.append_event(session, Event(author="agent"))
        assert await service.get_session(**{**key, "user_id": "u2"}) is None
        assert [each.id for each in (await service.list_sessions(app_name="app")).sessions] == ["trip"]
        assert not (await service.list_sessions(app_name="app", user_id="u2")).sessions
        await service.close()  # type: ignore[misc]

    asyncio.run(main())


def test_the_command_line_finds_threads_by_the_keys_of_their_framework(
    store: Store, url: str, tmp_path: Path
) -> None:
    program = Program(url, tmp_path)
    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {"messages": [AIMessage("hi")]})
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=EverthreadSaver(store))
    graph.invoke({"messages": [("user", "one")]}, {"configurable": {"thread_id": "trip"}})
    asyncio.run(EverthreadSessionStore(store).append(KEY, TRANSCRIPT))
    service = EverthreadSessionService(store)
    asyncio.run(service.create_session(app_name="app", user_id="u1", session_id="s1"))
    names = {
        "trip": EverthreadSaver(store).thread_name("trip"),
        "p/s": EverthreadSessionStore(store).thread_name(KEY),
        "app/u1/s1": service.thread_name(app_name="app", user_id="u1", session_id="s1"),
        "c1": EverthreadConversationStore(store).thread_name("c1"),
    }
    assert all(name.removesuffix(short) in PREFIXES for short, name in names.items())
    for short in ("trip", "p/s", "app/u1/s1"):
        for command in ("log", "show"):
            assert program.json(command, short)["thread"] == names[short]
    agent = Agent(name="agent", model=Scripted(say("ok")))
    quiet = RunConfig(tracing_disabled=True)
    session = EverthreadSession("claude/trip", store)
    asyncio.run(Runner.run(agent, "hello", session=session, run_config=quiet))
    assert "'langgraph/trip' or 'claude/trip'" in program("log", "trip", code=3).err
