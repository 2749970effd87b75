"""Subagents as child workflows on a real Temporal server: with kills in the child and in the parent, and
resets of the parent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

import everthread
from tests.engines.delegation import EVERY_MODE, Boss, Helper, Office, check
from tests.engines.runs import ROOT, Bench, reset, workflow_tasks

#: Where a worker dies: in the parent's own work, and in a child's.
POINTS = ("asked", "beginning", "begun", "thinking", "thought", "finishing", "finished")


class Firm(Bench):
    """A queue, a store and a world, with workers of the parent and its subagents."""

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[None]:
        office = Office(self.world)
        kinds = {"workflows": [Boss, Helper], "activities": office.activities}
        async with super().worker(**kinds, **options):
            yield

    def start_process(self) -> subprocess.Popen[bytes]:
        folder = self.world.folder
        command = [
            sys.executable,
            "-m",
            "tests.engines.delegation_worker",
            self.address,
            self.queue,
            self.url,
        ]
        with (folder / "worker.log").open("ab") as log:
            made = subprocess.Popen(
                [*command, str(folder)], cwd=ROOT, stdout=log, stderr=log, env={**os.environ}
            )
        self._processes.append(made)
        return made

    async def start(self, modes: list[str]) -> WorkflowHandle[Any, Any]:
        client, name = await self.connect(), f"{self.queue}-boss{next(self._ids)}"
        handle: WorkflowHandle[Any, Any] = await client.start_workflow(
            Boss.run, modes, id=name, task_queue=self.queue
        )
        return handle

    async def check_threads(self, name: str, modes: list[str]) -> None:
        async with everthread.open_async(self.url, durability="process") as store:
            await check(store, name, modes)
            assert (await store.verify()).ok

    async def finished(self, handle: WorkflowHandle[Any, Any]) -> int:
        """Wait for a run, with a new worker for each one that dies; how many did."""
        result, died = asyncio.create_task(handle.result()), 0
        made = self.start_process()
        while not result.done():
            if made.poll() is not None:
                died += 1
                made = self.start_process()
            await asyncio.wait({result}, timeout=0.1)
        await result
        return died


@pytest.fixture
def firm(temporal_address: str, tmp_path: Path) -> Iterator[Firm]:
    made = Firm(temporal_address, tmp_path)
    yield made
    made.stop_workers()


def test_four_modes_and_resets_of_the_parent(firm: Firm) -> None:
    modes = list(EVERY_MODE)

    async def scenario() -> None:
        async with firm.worker():
            handle = await firm.start(modes)
            await handle.result()
            await firm.check_threads(handle.id, modes)
            # Each in a child, or about one; ``python -m tests.torture.subagents`` takes every one.
            for event_id in workflow_tasks(await handle.fetch_history())[3::9]:
                again = await reset(firm.client, handle, event_id)
                await again.result()
                await firm.check_threads(handle.id, modes)

    asyncio.run(scenario())


def test_workers_are_killed_in_the_child_and_in_the_parent(firm: Firm) -> None:
    modes = ["continue", "continue", "fork"]

    async def scenario() -> None:
        handle = await firm.start(modes)
        for point in ("beginning", "thought"):
            firm.world.set_trap(point)
        assert await firm.finished(handle) == 2
        await firm.check_threads(handle.id, modes)

    asyncio.run(scenario())
