"""A worker of the scripted agent in a process of its own: ``python -m tests.engines.worker ADDRESS QUEUE
STORE WORLD``."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from everthread.engines.temporal import EverthreadPlugin
from tests.engines.unguarded import remove_guard
from tests.engines.workflows import Agent
from tests.engines.world import Agency, World


class Traps(Interceptor):
    """Visits the world, where a trap may be, before each activity, under its name."""

    def __init__(self, world: World) -> None:
        self.world = world

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Trapped(next, self.world)


class _Trapped(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, world: World) -> None:
        super().__init__(next)
        self._world = world

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self._world.visit(activity.info().activity_type)
        return await super().execute_activity(input)


async def run(address: str, queue: str, url: str, folder: str, sticky_s: str = "1") -> None:
    sticky: Any = timedelta(seconds=float(sticky_s)) if float(sticky_s) else None
    plugin = EverthreadPlugin({"url": url, "durability": "process"}, sticky=sticky)
    client = await Client.connect(address, plugins=[plugin])
    world = World(Path(folder))
    agency = Agency(world, is_deaf="DEAF" in os.environ)
    with ThreadPoolExecutor(8) as pool:
        async with Worker(
            client,
            task_queue=queue,
            workflows=[Agent],
            activities=agency.activities,
            activity_executor=pool,
            interceptors=[Traps(world)],
        ):
            world.note("worker")
            await asyncio.Event().wait()


if __name__ == "__main__":
    if os.environ.get("GUARD") == "off":
        remove_guard()
    asyncio.run(run(*sys.argv[1:]))
