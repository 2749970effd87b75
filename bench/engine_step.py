"""What a step costs that is entered with a workflow's pointer, under the guard of its run.

python -m bench.engine_step [--steps 1000] [--repeats 5] [--out bench/results] [--quick]

Beside it: a plain commit of the same message on the same store, and an activity of Temporal that does
nothing, on a dev server on this machine. Steps and commits take turns in random order, on SQLite without sync
and with it. The activity is timed from one to the next, in a workflow that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import everthread
from everthread.engines import Execution, ThreadRef
from everthread.engines.steps import enter_step, open_thread
from tests.servers.temporal import TemporalServer

from . import measure
from .engine_workflow import Idle, began_ns, nothing
from .measure import Report

STEP, COMMIT = "step with pointer and guard", "commit"
#: Against an empty activity, and against a commit without sync.
ACTIVITY_MAX, COMMIT_MAX = 0.2, 4.0

WHERE = Execution("run-a", started=1000.0, scheduler="run-a", origin="run-a", owner="w")


def message(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Answer {number}. " + "x" * 400}


async def work(url: str, durability: str, steps: int, rng: random.Random) -> dict[str, array[int]]:
    """Steps and commits in turn, each on a thread of its own; nanoseconds of each."""
    samples = {STEP: array("q"), COMMIT: array("q")}
    async with everthread.open_async(url, durability=durability) as store:
        ref = await open_thread(store, WHERE, name="agent")
        plain = await store.thread("plain")

        async def step(ref: ThreadRef, number: int) -> ThreadRef:
            async with enter_step(store, ref, ("turn", number), WHERE) as step:
                if not step.done:
                    step.messages.append(message(number))
                    step.result = number
            return step.ref

        for number in range(steps):
            for name in rng.sample((STEP, COMMIT), 2):
                started = time.perf_counter_ns()
                if name == STEP:
                    ref = await step(ref, number)
                else:
                    plain.messages.append(message(number))
                    await plain.commit()
                samples[name].append(time.perf_counter_ns() - started)
    return samples


async def activities(address: str, count: int) -> list[int]:
    """Nanoseconds from one empty activity to the next."""
    began_ns.clear()
    client = await Client.connect(address)
    options: dict[str, Any] = {"task_queue": "idle", "workflow_runner": UnsandboxedWorkflowRunner()}
    async with Worker(client, workflows=[Idle], activities=[nothing], **options):
        await client.execute_workflow(Idle.run, count, id=f"idle-{time.time_ns()}", task_queue="idle")
    return [later - earlier for earlier, later in itertools.pairwise(began_ns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", default=None, help="where to work: on a real disk")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, once")
    options = parser.parse_args()
    if options.quick:
        options.steps, options.repeats = options.steps // 10, 1
    rng = random.Random(options.seed)
    with measure.workplace(options.dir) as folder:
        settings = measure.environment(folder, options.seed)
        report = Report("A step of a durable engine", settings)
        server = TemporalServer(folder / "temporal")
        server.start()
        found: dict[str, array[int]] = {}
        try:
            with report.watched("all"):
                idle: list[int] = []
                for number in range(options.repeats):
                    for durability in ("process", "full"):
                        url = f"sqlite:///{folder}/{durability}{number}.db"
                        samples = asyncio.run(work(url, durability, options.steps, rng))
                        for name, values in samples.items():
                            found.setdefault(f"{name}, durability={durability}", array("q")).extend(values)
                    idle += asyncio.run(activities(server.address, max(options.steps // 10, 20)))
                medians = {name: statistics.median(values) for name, values in found.items()}
                empty, plain = statistics.median(idle), medians[f"{COMMIT}, durability=process"]
                quick, full = (medians[f"{STEP}, durability={each}"] for each in ("process", "full"))
                report.goal("a step ÷ an empty activity", quick / empty, ACTIVITY_MAX)
                report.goal("a step with sync ÷ an empty activity", full / empty, ACTIVITY_MAX)
                report.goal("a step ÷ a commit without sync", quick / plain, COMMIT_MAX)
        finally:
            server.stop()
        rows = [[name, *_figures(values)] for name, values in found.items()]
        header = ["", "median µs", "p99 µs"]
        report.table("Times", "", header, [*rows, ["empty activity", *_figures(idle)]])
        report.data = {name: measure.summary(values) for name, values in {**found, "activity": idle}.items()}
        print(report.markdown())
        if options.out is not None:
            report.write(options.out, "engine_step")


def _figures(values: Any) -> list[float]:
    summary = measure.summary(values)
    return [summary["median_us"], summary["p99_us"]]


if __name__ == "__main__":
    main()
