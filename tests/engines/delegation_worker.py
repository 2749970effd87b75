"""A worker of the parent and its subagents in a process of its own: ``python -m
tests.engines.delegation_worker ADDRESS QUEUE STORE WORLD``."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from everthread.engines.temporal import EverthreadPlugin
from tests.engines.delegation import Boss, Helper, Office
from tests.engines.world import World


async def run(address: str, queue: str, url: str, folder: str) -> None:
    plugin = EverthreadPlugin({"url": url, "durability": "process"}, sticky=timedelta(seconds=1))
    client = await Client.connect(address, plugins=[plugin])
    office = Office(World(Path(folder)))
    async with Worker(client, task_queue=queue, workflows=[Boss, Helper], activities=office.activities):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
