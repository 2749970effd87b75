"""EverthreadConversationStore: what Pydantic AI asks for, and what threads add to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

import everthread
from everthread import Store, StoreClosedError
from everthread.adapters.pydantic_ai import EverthreadConversationStore
from everthread.messages import for_openai_chat
from everthread.messages.model import ERASED, WITHHELD
from tests.adapters.conftest import stored_bytes
from tests.adapters.test_pydantic_history import answer, ask, asked


@pytest.fixture(params=["blocking", "async"])
def on_conversations(request: pytest.FixtureRequest, url: str) -> Callable[..., Any]:
    """Runs an async function on conversations, on a store of each colour."""

    def run(work: Callable[[EverthreadConversationStore], Any]) -> Any:
        async def main() -> Any:
            if request.param == "async":
                async with everthread.open_async(url) as store:
                    result = await work(EverthreadConversationStore(store))
                    assert (await store.verify()).ok
                    return result
            with everthread.open(url) as store:
                result = await work(EverthreadConversationStore(store))
                assert store.verify().ok
                return result

        return asyncio.run(main())

    return run


def test_an_agent_goes_on_where_it_was(url: str) -> None:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(content=f"{len(messages)} messages")])

    agent = Agent(FunctionModel(script))

    async def turn(text: str) -> str:
        conversations = EverthreadConversationStore(url)
        conversation = await conversations.load("c1") or Conversation(conversation_id="c1")
        result = await agent.run(text, conversation=conversation)
        assert len(await conversations.save(result)) == 2
        conversations.close()
        return result.output

    assert asyncio.run(turn("one")) == "1 messages"
    assert asyncio.run(turn("two")) == "3 messages"
    assert asyncio.run(turn("three")) == "5 messages"


def test_a_conflicting_write_is_detected_and_leaves_nothing(on_conversations: Callable[..., Any]) -> None:
    async def work(conversations: EverthreadConversationStore) -> None:
        agent = Agent(TestModel(custom_output_text="yes"))
        await conversations.save(await agent.run("one", conversation=Conversation(conversation_id="c1")))
        mine, theirs = await conversations.load("c1"), await conversations.load("c1")
        assert mine is not None
        assert theirs is not None
        await conversations.save(await agent.run("theirs", conversation=theirs))
        late = await agent.run("mine", conversation=mine)
        with pytest.raises(ConversationConflict):
            await conversations.save(late)
        with pytest.raises(ConversationConflict):
            await conversations.save(Conversation(conversation_id="c1", messages=[ask("new")]))
        found = await conversations.load("c1")
        assert found is not None
        assert asked(found.messages) == ["one", "yes", "theirs", "yes"]

    on_conversations(work)


def test_of_many_writers_one_wins(on_conversations: Callable[..., Any]) -> None:
    async def work(conversations: EverthreadConversationStore) -> None:
        await conversations.save(Conversation(conversation_id="c1", messages=[ask("0")]))
        copies = [await conversations.load("c1") for _ in range(8)]
        for number, copy in enumerate(copies):
            assert copy is not None
            copy.messages.append(ask(f"w{number}"))
        outcomes = await asyncio.gather(
            *(conversations.save(copy) for copy in copies if copy), return_exceptions=True
        )
        assert sum(isinstance(each, ConversationConflict) for each in outcomes) == 7
        found = await conversations.load("c1")
        assert found is not None
        assert len(found.messages) == 2

    on_conversations(work)


def test_a_fork_shares_entries_and_goes_its_own_way(on_conversations: Callable[..., Any]) -> None:
    async def work(conversations: EverthreadConversationStore) -> None:
        saved = await conversations.save(
            Conversation(conversation_id="c1", messages=[ask("1"), answer("2"), ask("3")]), scope="u1"
        )
        fork = await conversations.fork("c1", at=2, new_conversation_id="c2")
        assert asked(fork.messages) == ["1", "2"]
        shared = await conversations.load_entries("c2")
        assert shared is not None
        assert [entry.id for entry in shared] == [entry.id for entry in saved[:2]]
        fork.messages.append(ask("elsewhere"))
        await conversations.save(fork)
        source = await conversations.load("c1")
        assert source is not None
        assert asked(source.messages) == ["1", "2", "3"]
        with pytest.raises(ConversationConflict):
            await conversations.fork("c1", new_conversation_id="c2")
        with pytest.raises(UserError):
            await conversations.fork("none")
        # What forks share lives on with them.
        await conversations.delete("c1")
        assert await conversations.load("c1") is None
        found = await conversations.load("c2")
        assert found is not None
        assert asked(found.messages) == ["1", "2", "elsewhere"]
        assert [record.conversation_id for record in await conversations.list_conversations()] == ["c2"]
        with pytest.raises(KeyError):
            await conversations.read_entry(saved[2].id + "x")

    on_conversations(work)


def test_a_branch_and_back(on_conversations: Callable[..., Any]) -> None:
    async def work(conversations: EverthreadConversationStore) -> None:
        first = Conversation(conversation_id="c1", messages=[ask("1"), answer("2"), ask("3"), answer("4")])
        entries = await conversations.save(first)
        assert first.revision is not None
        branch = await conversations.branch("c1", at=1, expected_revision=first.revision)
        assert asked(branch.messages) == ["1"]
        branch.messages.append(answer("other"))
        await conversations.save(branch)
        # The thread's messages are what the model sees.
        thread = await conversations._thread("c1")
        chat = for_openai_chat(await thread.messages.read())["messages"]
        assert [each["content"] for each in chat] == ["1", "other"]
        assert branch.revision is not None
        back = await conversations.branch("c1", from_entry=entries[2].id, expected_revision=branch.revision)
        assert asked(back.messages) == ["1", "2", "3"]
        back.messages.append(answer("new end"))
        await conversations.save(back)
        found = await conversations.load("c1")
        assert found is not None
        assert asked(found.messages) == ["1", "2", "3", "new end"]
        assert asked([(await conversations.read_entry(entries[3].id)).message]) == ["4"]
        latest = await conversations.load("c1", limit=2)
        assert latest is not None
        assert asked(latest.messages) == ["3", "new end"]
        with pytest.raises(ConversationConflict):
            await conversations.branch("c1", at=0, expected_revision="stale")

    on_conversations(work)


def test_it_does_what_the_one_in_memory_does(on_conversations: Callable[..., Any]) -> None:
    """The same story on both: whatever one answers, the other does."""

    async def story(store: Any) -> list[Any]:
        told: list[Any] = []

        async def tell(name: str) -> None:
            found = await store.load(name)
            told.append(None if found is None else [asked(found.messages), found.usage.requests])

        one = Conversation(conversation_id="one", messages=[ask("a"), answer("b")])
        one.usage.requests = 3
        told.append(len(await store.save(one, scope="u1")))
        told.append(len(await store.save(one)))
        one.messages.append(ask("c"))
        told.append(len(await store.save(one)))
        await tell("one")
        # Rewritten: it branches off where both agree.
        rewritten = await store.load("one")
        rewritten.messages[:] = [ask("summary")]
        rewritten.new_message_index = None
        try:
            told.append(len(await store.save(rewritten)))
        except Exception as error:
            told.append(type(error).__name__)
        await tell("one")
        fork = await store.fork("one", new_conversation_id="two", scope="u2")
        fork.messages.append(ask("d"))
        await store.save(fork)
        await tell("two")
        for scope in (None, "u1", "u2", "u3"):
            listed = await store.list_conversations(scope=scope)
            told.append([(each.conversation_id, each.forked_from, len(each.branches)) for each in listed])
        told.append([each.conversation_id for each in await store.list_conversations(limit=1)])
        told.append(await store.load("one", scope="other") is None)
        await store.delete("one", scope="other")
        await tell("one")
        await store.delete("one")
        await store.delete("one")
        await tell("one")
        await tell("two")
        again = Conversation(conversation_id="one", messages=[ask("again")])
        told.append(len(await store.save(again)))
        await tell("one")
        return told

    async def work(conversations: EverthreadConversationStore) -> None:
        assert await story(conversations) == await story(InMemoryConversationStore())

    on_conversations(work)


def test_messages_of_every_kind_come_back_equal(on_conversations: Callable[..., Any]) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(
            parts=[UserPromptPart(content=["see", BinaryContent(b"\x00\xff\xfb", media_type="image/png")])]
        ),
        ModelResponse(
            parts=[
                ThinkingPart(content="hm", signature="c2ln", provider_name="anthropic"),
                ToolCallPart(tool_name="f", args='{ "a":1}', tool_call_id="c1"),
                ToolCallPart(tool_name="g", args={"b": [1.5, None]}, tool_call_id="c2"),
            ]
        ),
        # Calls without a result would be completed when they are loaded.
        ModelRequest(
            parts=[
                ToolReturnPart(tool_name="f", content={"a": [1]}, tool_call_id="c1"),
                ToolReturnPart(tool_name="g", content="text", tool_call_id="c2"),
            ]
        ),
    ]

    async def work(conversations: EverthreadConversationStore) -> None:
        await conversations.save(Conversation(conversation_id="c1", messages=list(messages)))
        found = await conversations.load("c1")
        assert found is not None
        # What the SDK itself makes of its own JSON is all that can be asked for.
        same = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
        assert found.messages == same
        assert found.messages[1] == messages[1]

    on_conversations(work)


def test_a_run_that_waits_for_an_approval_is_kept(url: str) -> None:
    def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(tool_name="pay", args={"amount": 7}, tool_call_id="c1")])

    agent = Agent(FunctionModel(script), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    async def begin() -> None:
        conversations = EverthreadConversationStore(url)
        await conversations.save(await agent.run("pay", conversation=Conversation(conversation_id="c1")))
        conversations.close()

    async def look() -> None:
        conversations = EverthreadConversationStore(url)
        found = await conversations.load("c1")
        assert found is not None
        assert found.deferred_tool_requests is not None
        assert [call.tool_call_id for call in found.deferred_tool_requests.approvals] == ["c1"]
        conversations.close()
        with pytest.raises(StoreClosedError):
            await conversations.load("c1")

    asyncio.run(begin())
    asyncio.run(look())


def test_half_a_fork_is_none(store: Store) -> None:
    """Killed between the fork of the thread and its record: nobody sees it, and the next try completes it."""

    async def main() -> None:
        conversations = EverthreadConversationStore(store)
        await conversations.save(Conversation(conversation_id="c1", messages=[ask("1")]))
        store.thread(conversations.thread_name("c1")).fork(conversations.thread_name("c2"))
        assert await conversations.load("c2") is None
        assert len(await conversations.list_conversations()) == 1
        fork = await conversations.fork("c1", new_conversation_id="c2")
        assert asked(fork.messages) == ["1"]
        found = await conversations.load("c2")
        assert found is not None
        assert asked(found.messages) == ["1"]

    asyncio.run(main())


# ── plain histories ──────────────────────────────────────────────────────────────────────────────


def test_half_a_deletion_is_finished_by_the_next_save(store: Store) -> None:
    async def main() -> None:
        conversations = EverthreadConversationStore(store)
        await conversations.save(Conversation(conversation_id="c1", messages=[ask("old")]))
        thread = store.thread(conversations.thread_name("c1"))
        born = thread.head
        # As a process leaves it that dies between the two steps.
        thread.state["pydantic_ai"] = {}
        thread.commit()
        assert await conversations.load("c1") is None
        await conversations.save(Conversation(conversation_id="c1", messages=[ask("new")]))
        loaded = await conversations.load("c1")
        assert loaded is not None
        assert asked(loaded.messages) == ["new"]
        anew = store.thread(conversations.thread_name("c1"))
        assert born not in list(anew.history(limit=None))
        assert [len(anew.log(name)) for name in anew.logs] == [1]

    asyncio.run(main())


# ── people ───────────────────────────────────────────────────────────────────────────────────────


def test_the_conversations_of_a_person_are_sealed_and_can_be_erased(url: str) -> None:
    async def main() -> None:
        with everthread.open(url) as store:
            conversations = EverthreadConversationStore(store, subject=lambda record: record.scope)
            messages = [ask("I am Ada Lovelace"), answer("Hello Lovelace"), ask("bye")]
            await conversations.save(Conversation(conversation_id="c1", messages=messages), scope="u1")
            await conversations.fork("c1", at=2, new_conversation_id="c2")
            # A branch that is left stays sealed.
            branch = await conversations.load("c1")
            assert branch is not None
            branch.messages[1:] = [answer("Or Lovelace?")]
            await conversations.save(branch, scope="u1")
            await conversations.save(Conversation(conversation_id="g", messages=[ask("Grace")]), scope="u2")
            await conversations.save(Conversation(conversation_id="open", messages=[ask("in the open")]))

            loaded = await conversations.load("c1")
            assert loaded is not None
            assert asked(loaded.messages) == ["I am Ada Lovelace", "Or Lovelace?"]
            assert WITHHELD in str(for_openai_chat(store.thread(conversations.thread_name("c1")).messages))
            assert b"in the open" in stored_bytes(url)
            for text in (b"Lovelace", b"Grace"):
                assert text not in stored_bytes(url)
            (first,) = [each for each in await conversations.load_entries("c2") if each.parent_id is None]

            store.erase("u1")
            for each in (conversations, EverthreadConversationStore(store)):
                for gone in ("c1", "c2"):
                    assert await each.load(gone) is None
                assert {record.conversation_id for record in await each.read_records()} == {"g", "open"}
                assert await each.read_history(first.id) == []
                with pytest.raises(KeyError):
                    await each.read_entry(first.id)
            assert ERASED in str(for_openai_chat(store.thread(conversations.thread_name("c1")).messages))

            # The same id begins anew, and grows.
            await conversations.save(Conversation(conversation_id="c1", messages=[ask("hi")]), scope="u1")
            anew = await conversations.load("c1")
            assert anew is not None
            anew.messages.append(answer("welcome back"))
            await conversations.save(anew, scope="u1")
            loaded = await conversations.load("c1")
            assert loaded is not None
            assert asked(loaded.messages) == ["hi", "welcome back"]
            assert store.verify().ok

    asyncio.run(main())
