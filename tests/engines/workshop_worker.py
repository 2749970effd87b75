"""A worker of the workshop in a process of its own: ``python -m tests.engines.workshop_worker ADDRESS QUEUE
STORE WORLD ROOT``."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from everthread.engines.temporal import EverthreadPlugin
from tests.engines.workshop import Builder, Workshop
from tests.engines.world import World


async def run(address: str, queue: str, url: str, folder: str, root: str) -> None:
    plugin = EverthreadPlugin({"url": url, "durability": "process"}, sticky=timedelta(seconds=1))
    client = await Client.connect(address, plugins=[plugin])
    workshop = Workshop(World(Path(folder)), Path(root))
    with ThreadPoolExecutor(8) as pool:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[Builder],
            activities=workshop.activities,
            activity_executor=pool,
        ):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
