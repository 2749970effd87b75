"""Sessions, conversations and checkpoints of frameworks inside workflows of a real Temporal server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.adapters.openai_agents import EverthreadSession
from everthread.adapters.pydantic_ai import load_messages
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.talks import ConversationTalk, GraphTalk, SessionTalk, item


@activity.defn
async def nothing() -> None:
    """A worker without activities of its own gets none of ours."""


class Talks:
    def __init__(self, client: Client, name: str) -> None:
        self._client, self.name = client, name

    async def run(self, talk: Any, *args: Any, name: str = "") -> Any:
        options = {"id": f"{self.name}{name}", "task_queue": self.name}
        return await self._client.execute_workflow(talk.run, args=args, **options)


@asynccontextmanager
async def talks(address: str, folder: Path, url: str) -> AsyncIterator[Talks]:
    client = await Client.connect(address, plugins=[PydanticAIPlugin(), EverthreadPlugin(url)])
    name = f"{folder.parent.name}-{folder.name}"
    workflows = [SessionTalk, ConversationTalk, GraphTalk]
    # Each workflow task replays from the beginning.
    async with Worker(
        client,
        task_queue=name,
        workflows=workflows,
        activities=[nothing],
        max_cached_workflows=0,
        workflow_runner=SandboxedWorkflowRunner(
            SandboxRestrictions.default.with_passthrough_modules("langchain_core", "langgraph", "langsmith")
        ),
        # What goes wrong is to be seen, not tried again.
        workflow_failure_exception_types=[Exception],
    ):
        yield Talks(client, name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/agent.db"


@pytest.mark.parametrize("subject", [None, "u1"], ids=["plain", "sealed"])
def test_a_session_of_openai_agents(
    temporal_address: str, tmp_path: Path, url: str, subject: str | None
) -> None:
    async def scenario() -> None:
        async with talks(temporal_address, tmp_path, url) as t:
            found = await t.run(SessionTalk, subject)
        three = [item("one"), item("two"), item("three")]
        assert found == [[], three, three[1:], three[2], [], None, three[:2], [item("four")]]
        async with everthread.open_async(url) as store:
            outside = EverthreadSession(t.name, store, subject=subject)
            assert await outside.get_items() == [item("four")]
            (kept,) = await (await store.thread(t.name)).messages.read()
            assert isinstance(kept["message"], everthread.Personal) is (subject is not None)
            assert (await store.verify()).ok

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_conversation_of_pydantic_ai(temporal_address: str, tmp_path: Path, url: str) -> None:
    async def scenario() -> None:
        async with talks(temporal_address, tmp_path, url) as t:
            assert await t.run(ConversationTalk) == ["question 0", "answer 0"]
        async with everthread.open_async(url) as store:
            assert len(await load_messages(store, t.name)) == 2
            thread = await store.thread(t.name)
            # Only what is new is written, and what was left is still there.
            lengths = [len((await thread.at(v)).messages) async for v in thread.history()]
            assert lengths == [2, 2, 6, 4, 2, 0, 0]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_checkpoints_of_langgraph_are_there_with_no_worker(
    temporal_address: str, tmp_path: Path, url: str
) -> None:
    async def scenario() -> None:
        config: Any = {"configurable": {"thread_id": "g"}}
        async with talks(temporal_address, tmp_path, url) as t:
            first = await t.run(GraphTalk, "g", name="-1")
            assert first == ["first 0", "second 1"]
            # Another workflow goes on with what the first one left.
            second = await t.run(GraphTalk, "g", name="-2")
            assert second == [*first, "first 2", "second 3"]
        async with everthread.open_async(url) as store:
            saver = EverthreadSaver(store)
            listed = [each async for each in saver.alist(config)]
            states = [each.checkpoint["channel_values"].get("steps") for each in reversed(listed)]
            assert [len(each or []) for each in states] == [0, 0, 1, 2, 2, 2, 3, 4]
            assert states[-1] == second
            assert listed[0].checkpoint["channel_values"]["asked"] == f"{t.name}-2"
            chain = [each.parent_config for each in listed]
            assert [each is None for each in chain] == [False] * 7 + [True]
            assert (await store.verify()).ok

    asyncio.run(asyncio.wait_for(scenario(), 60))
