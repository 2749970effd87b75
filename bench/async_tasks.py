"""Async tasks on one SQLite store: what 8 and 64 commit against one, and one task against blocking code.

    python -m bench.async_tasks [--seconds 5] [--repeats 3] [--saves 2000] [--out bench/results] [--quick]

Each task commits to a thread of its own, durably. Numbers of tasks take turns in random order over the
repeats, each on a fresh file. For the price of a single save a blocking store and an async one take turns in
random order, save by save, in one process.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from array import array
from pathlib import Path
from typing import Any

import everthread

from . import measure
from .measure import Report, Samples, say
from .messages import Message, Transcript
from .savers import url

TASKS = (1, 8, 64)
MESSAGES = 200


def change(thread: Any, message: Message) -> None:
    """What every save holds: one message, one counter."""
    thread.messages.append(dict(message))
    thread.state["count"] = thread.state.get("count", 0) + 1


# ── throughput ───────────────────────────────────────────────────────────────────────────────────


async def work_until(thread: everthread.AsyncThread, messages: list[Message], deadline: float) -> list[int]:
    """One task: commit until the time is up; how long each commit took."""
    latencies: list[int] = []
    while (started := time.perf_counter()) < deadline:
        change(thread, messages[len(latencies) % MESSAGES])
        await thread.commit()
        latencies.append(int((time.perf_counter() - started) * 1e9))
    return latencies


async def run_once(path: Path, tasks: int, seconds: float) -> dict[str, float]:
    """One repeat on a fresh file; fails if anything acknowledged is missing."""
    transcript = Transcript(tasks)
    # Without ids, as a message is when it is new.
    messages = [
        {key: value for key, value in next(transcript).items() if key != "id"} for _ in range(MESSAGES)
    ]
    async with everthread.open_async(url(path)) as store:
        threads = [await store.thread(f"task-{number}") for number in range(tasks)]
        for thread in threads:
            change(thread, messages[0])
            await thread.commit()
        started = time.perf_counter()
        working = (work_until(thread, messages, started + seconds) for thread in threads)
        latencies = await asyncio.gather(*working)
        elapsed = time.perf_counter() - started
    flat = [value for own in latencies for value in own]
    found = stored(path, tasks) - tasks
    if found != len(flat):
        raise AssertionError(f"{tasks} tasks: {len(flat)} commits acknowledged, {found} found")
    counts = [len(own) for own in latencies]
    return {
        "per_second": len(flat) / elapsed,
        "fairness": min(counts) / max(counts),
        "median_ms": statistics.median(flat) / 1e6,
        "p99_ms": measure.percentile(flat, 0.99) / 1e6,
        "worst_ms": max(flat) / 1e6,
    }


def stored(path: Path, tasks: int) -> int:
    """How many commits the file holds, counted both as messages and as increments."""
    with everthread.open(url(path)) as store:
        threads = [store.thread(f"task-{number}") for number in range(tasks)]
        count = sum(thread.state["count"] for thread in threads)
        if count != sum(len(thread.messages) for thread in threads):
            raise AssertionError("messages and increments differ")
    return int(count)


def throughput(report: Report, work: Path, seconds: float, repeats: int, rng: random.Random) -> None:
    """All numbers of tasks, in shuffled order within each repeat."""
    found: dict[int, list[dict[str, float]]] = {tasks: [] for tasks in TASKS}
    with report.watched("tasks"):
        for repeat in range(repeats):
            for tasks in rng.sample(TASKS, len(TASKS)):
                folder = work / f"{tasks}-{repeat}"
                folder.mkdir()
                result = asyncio.run(run_once(folder / "tasks.db", tasks, seconds))
                found[tasks].append(result)
                figures = ", ".join(f"{name} {measure.number(value)}" for name, value in result.items())
                say(f"{tasks} tasks: {figures}")
        for tasks, must, best in ((64, 3.0, 8.0), (8, 2.0, 4.0)):
            pairs = zip(found[tasks], found[1], strict=True)
            ratio = statistics.median(many["per_second"] / one["per_second"] for many, one in pairs)
            report.goal(f"throughput of {tasks} tasks ÷ one", ratio, must, best, at_least=True)
    report.data["throughput"] = found
    rows = []
    for tasks, runs in found.items():
        middle = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        worst = max(one["worst_ms"] for one in runs)
        names = ("per_second", "fairness", "median_ms", "p99_ms")
        rows.append([tasks, *(middle[name] for name in names), worst])
    header = ["tasks", "commits/s", "fairness", "median ms", "p99 ms", "worst ms"]
    report.table("Commits to distinct threads", "Medians over the repeats.", header, rows)


# ── one save ─────────────────────────────────────────────────────────────────────────────────────


async def take_turns(work: Path, saves: int, rng: random.Random) -> Samples:
    """Blocking and async saves in random order; the blocking one simply blocks the event loop."""
    samples: Samples = {"blocking": array("q"), "async": array("q")}
    transcript = Transcript(0)
    async with everthread.open_async(url(work / "async.db")) as store:
        with everthread.open(url(work / "blocking.db")) as blocking:
            one, other = await store.thread("saves"), blocking.thread("saves")
            for _ in range(saves):
                message = next(transcript)
                for name in rng.sample(["blocking", "async"], 2):
                    started = time.perf_counter_ns()
                    if name == "async":
                        change(one, message)
                        await one.commit()
                    else:
                        change(other, message)
                        other.commit()
                    samples[name].append(time.perf_counter_ns() - started)
            if len(one.messages) != saves or len(other.messages) != saves:
                raise AssertionError("saves are missing")
    return samples


def one_save(report: Report, work: Path, saves: int, rng: random.Random) -> None:
    with report.watched("one save"):
        samples = asyncio.run(take_turns(work, saves, rng))
        medians = {name: statistics.median(values) for name, values in samples.items()}
        means = {name: statistics.fmean(values) for name, values in samples.items()}
        report.goal(
            "async save of one task ÷ blocking save", medians["async"] / medians["blocking"], 1.5, 1.25
        )
    report.data["one save"] = {name: measure.summary(values) for name, values in samples.items()}
    rows = [
        [name, medians[name] / 1e3, means[name] / 1e3, measure.percentile(samples[name], 0.99) / 1e3]
        for name in samples
    ]
    report.table(
        "One save", "Durable, save by save in random order.", ["", "median µs", "mean µs", "p99 µs"], rows
    )


def run(work: Path, seconds: float, repeats: int, saves: int, seed: int) -> Report:
    settings = {"seconds each": seconds, "repeats": repeats, "saves": saves}
    report = Report("Async tasks on one SQLite store", {**settings, **measure.environment(work, seed)})
    rng = random.Random(seed)
    one_save(report, work, saves, rng)
    throughput(report, work, seconds, repeats, rng)
    return report


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.async_tasks", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--saves", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="1 second each, 2 repeats, 500 saves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    seconds, repeats, saves = options.seconds, options.repeats, options.saves
    if options.quick:
        seconds, repeats, saves = 1.0, 2, 500
    with measure.workplace(options.work) as work:
        report = run(work, seconds, repeats, saves, options.seed)
    report.write(options.out, "async_tasks")
    print(report.markdown())


if __name__ == "__main__":
    main()
