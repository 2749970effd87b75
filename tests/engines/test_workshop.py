"""A sandbox in runs on a real Temporal server: after each reset its files are what the history of that run
says."""

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
from tests.engines.runs import ROOT, Bench, reset, workflow_tasks
from tests.engines.workshop import Builder, Workshop, check, told_files


class Yard(Bench):
    """A queue, a store and a world, with workers whose sandboxes are below ``root``."""

    def __init__(self, address: str, folder: Path, url: str | None = None) -> None:
        super().__init__(address, folder, url)
        #: Where the next worker has its directories.
        self.root = folder / "boxes"

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[None]:
        workshop = Workshop(self.world, self.root)
        async with super().worker(workflows=[Builder], activities=workshop.activities, **options):
            yield

    def start_process(self) -> subprocess.Popen[bytes]:
        folder = self.world.folder
        command = [sys.executable, "-m", "tests.engines.workshop_worker", self.address, self.queue, self.url]
        with (folder / "worker.log").open("ab") as log:
            made = subprocess.Popen(
                [*command, str(folder), str(self.root)], cwd=ROOT, stdout=log, stderr=log, env={**os.environ}
            )
        self._processes.append(made)
        return made

    async def start(self, turns: list[int]) -> WorkflowHandle[Any, Any]:
        client, name = await self.connect(), f"{self.queue}-builder{next(self._ids)}"
        handle: WorkflowHandle[Any, Any] = await client.start_workflow(
            Builder.run, turns, id=name, task_queue=self.queue
        )
        return handle

    async def finished(self, handle: WorkflowHandle[Any, Any]) -> None:
        """Wait for a run, with a new worker for each one that dies."""
        result = asyncio.create_task(handle.result())
        while not result.done():
            if not self.living_workers():
                self.start_process()
            await asyncio.wait({result}, timeout=0.1)
        await result

    async def check_files(self, handle: WorkflowHandle[Any, Any]) -> None:
        """The files are what the history of this run says, and the store is sound."""
        told = await told_files(await handle.fetch_history())

        def look() -> None:
            with everthread.open(self.url, durability="process") as store:
                check(store, handle.id, told)
                assert store.verify().ok

        await asyncio.to_thread(look)


def resettable(tasks: list[int]) -> list[int]:
    """The workflow tasks after which a run has something left to do: the last one only ends it."""
    return tasks[:-1]


@pytest.fixture
def yard(temporal_address: str, tmp_path: Path) -> Iterator[Yard]:
    made = Yard(temporal_address, tmp_path)
    yield made
    made.stop_workers()


def test_files_are_what_the_history_of_each_run_says(yard: Yard) -> None:
    async def scenario() -> None:
        async with yard.worker():
            handle = await yard.start([1, 2, 1])
            await handle.result()
            await yard.check_files(handle)
            tasks = resettable(workflow_tasks(await handle.fetch_history()))
            # Into the parallel turn, and from that run to just after its sandbox was entered.
            for at in (len(tasks) // 2, 2):
                handle = await reset(yard.client, handle, tasks[at])
                await handle.result()
                await yard.check_files(handle)
                tasks = resettable(workflow_tasks(await handle.fetch_history()))
        assert len(yard.world.notes("seeded")) == 1

    asyncio.run(scenario())
