"""``ForwardingSaver`` beside Temporal's plugin for LangGraph."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.langgraph import LangGraphPlugin
from temporalio.worker import Worker

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from everthread.engines.temporal import EverthreadPlugin
from tests.engines.langgraph_talk import LangGraphTalk, built


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours first", "ours last"])
def test_every_checkpoint_is_there_with_no_worker(
    temporal_address: str, tmp_path: Path, ours_first: bool
) -> None:
    async def scenario() -> None:
        url, name = f"sqlite:///{tmp_path}/agent.db", f"graph-{tmp_path.parent.name}-{tmp_path.name}"
        options: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=30)}
        theirs = LangGraphPlugin(graphs={"g": built()}, default_activity_options=options)
        plugins = [EverthreadPlugin(url), theirs]
        client = await Client.connect(temporal_address, plugins=plugins if ours_first else plugins[::-1])
        async with Worker(client, task_queue=name, workflows=[LangGraphTalk], max_cached_workflows=0):
            for number, expected in enumerate((2, 4)):
                steps = await client.execute_workflow(
                    LangGraphTalk.run, "g", id=f"{name}-{number}", task_queue=name
                )
                assert len(steps) == expected
        async with everthread.open_async(url) as store:
            listed = [
                each async for each in EverthreadSaver(store).alist({"configurable": {"thread_id": "g"}})
            ]
            assert listed[0].checkpoint["channel_values"]["steps"] == steps
            assert steps == ["plan 0", "confirmed: yes", "plan 2", "confirmed: yes"]
            ids = [each.checkpoint["id"] for each in listed]
            parents = [each.parent_config["configurable"]["checkpoint_id"] for each in listed[:-1]]  # type: ignore[index]
            assert parents == ids[1:]
            assert (await store.verify()).ok

    asyncio.run(asyncio.wait_for(scenario(), 120))
