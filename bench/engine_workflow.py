"""The workflow that ``bench.engine_step`` measures steps against: activities that do nothing, one after the
other."""

from __future__ import annotations

import time
from datetime import timedelta

from temporalio import activity, workflow

#: When each activity began, in this process.
began_ns: list[int] = []


@activity.defn
async def nothing() -> None:
    began_ns.append(time.perf_counter_ns())


@workflow.defn
class Idle:
    @workflow.run
    async def run(self, count: int) -> None:
        for _ in range(count):
            await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=30))
