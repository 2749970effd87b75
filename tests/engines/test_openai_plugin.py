"""``ThreadSession`` beside Temporal's plugin for the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agents import Model, ModelResponse
from temporalio.client import Client
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
from temporalio.worker import Worker

import everthread
from everthread.adapters.openai_agents import EverthreadSession
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.openai_talk import OpenAITalk


class Counting(TestModelProvider):
    """A model that says how many questions it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        super().__init__(TestModel(self._answer))

    def _answer(self) -> ModelResponse:
        self.asked += 1
        return ResponseBuilders.output_message(f"answer {self.asked}")

    def get_model(self, model_name: str | None) -> Model:
        return super().get_model(model_name)


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "ours last"])
def test_a_session_in_a_workflow(temporal_address: str, tmp_path: Path, ours_first: bool) -> None:
    async def scenario() -> None:
        url, name = f"sqlite:///{tmp_path}/agent.db", f"openai-{tmp_path.parent.name}-{tmp_path.name}"
        model = Counting()
        theirs = OpenAIAgentsPlugin(model_params=ModelActivityParameters(), model_provider=model)
        plugins = [EverthreadPlugin(url), theirs]
        client = await Client.connect(temporal_address, plugins=plugins if ours_first else plugins[::-1])
        # One of ours is an activity: then the worker gets all of them.
        options = {"activities": [], "max_cached_workflows": 0}
        async with Worker(client, task_queue=name, workflows=[OpenAITalk], **options):
            questions = ["one?", "two?", "three?"]
            said = await client.execute_workflow(OpenAITalk.run, questions, id=name, task_queue=name)
        assert said.texts == ["answer 1", "answer 2", "answer 3"]
        assert model.asked == 3
        async with everthread.open_async(url) as store:
            items = await EverthreadSession(name, store).get_items()
            assert [item["role"] for item in items] == ["user", "assistant"] * 3
            assert items[0]["content"] == "one?"
            thread = await store.thread(name)
            assert thread.head is not None
            assert thread.head.id == said.ref.version
            assert (await store.verify()).ok

    asyncio.run(asyncio.wait_for(scenario(), 120))
