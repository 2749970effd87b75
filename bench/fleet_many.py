"""Many sessions at once, on PostgreSQL and on Valkey, against as many raw writers.

64 async sessions in one process, and 8 processes with 8 async sessions each, every one on a thread of its
own; beside them raw writers through the same connections. They take turns, round by round, each for a few
seconds. Where there are few cores the processor limits: the table shows what the clients take of it.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from redis.asyncio import BlockingConnectionPool, Redis

import everthread
from everthread.stores.postgres.aio.pool import AsyncPool
from everthread.stores.postgres.settings import read_settings

from .measure import Report, number, say

ROUNDS = 3
PROCESSES, TASKS = 8, 8
BODY = b"x" * 1000
INSERT = b"INSERT INTO raw (body) VALUES ($1)"

#: Does one write of the task with this number.
Write = Callable[[int, int], Awaitable[object]]


async def _work(write: Write, tasks: int, seconds: float) -> int:
    deadline = time.perf_counter() + seconds

    async def one(task: int) -> int:
        done = 0
        while time.perf_counter() < deadline:
            await write(task, done)
            done += 1
        return done

    return sum(await asyncio.gather(*(one(task) for task in range(tasks))))


async def commits(url: str, label: str, tasks: int, seconds: float) -> int:
    """Commits by so many tasks, each on a thread of its own."""
    async with everthread.open_async(url) as store:
        threads = [await store.thread(f"{label} {task}") for task in range(tasks)]

        async def write(task: int, _: int) -> None:
            threads[task].messages.append({"content": "x" * 1000})
            await threads[task].commit()

        return await _work(write, tasks, seconds)


async def raw(url: str, label: str, tasks: int, seconds: float) -> int:
    """Single writes of as many bytes by so many tasks, through the connections that a store has."""
    if url.startswith("postgres"):
        pool = AsyncPool(read_settings(url, "full"))
        pool.statements = {**pool.statements, "insert": INSERT}
        found = await _work(lambda *_: pool.run("insert", (BODY,)), tasks, seconds)
        await pool.close()
        return found
    # The address alone: its parameters are a store's.
    address = url.partition("?")[0].replace("valkey:", "redis:")
    shared = BlockingConnectionPool.from_url(address, max_connections=64, protocol=2)
    async with Redis.from_pool(shared) as client:
        return await _work(lambda task, done: client.set(f"{label}.{task}.{done}", BODY), tasks, seconds)


_PROCESS = """
import asyncio, sys
from bench import fleet_many
kind, url, label, tasks, seconds = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])
work = fleet_many.commits if kind == "commits" else fleet_many.raw
print("ready", flush=True)
sys.stdin.readline()
print(asyncio.run(work(url, label, tasks, seconds)), flush=True)
"""


def processes(kind: str, url: str, label: str, seconds: float) -> tuple[float, float]:
    """Writes a second by all of them together, and processor seconds of theirs for each."""
    before = _spent(resource.RUSAGE_CHILDREN)
    running = []
    for place in range(PROCESSES):
        told = (kind, url, f"{label} {place}", str(TASKS), str(seconds))
        command = [sys.executable, "-c", _PROCESS, *told]
        running.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    # All begin when the last one is ready.
    for each in running:
        assert each.stdout is not None
        each.stdout.readline()
    for each in running:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    done = sum(int(each.communicate()[0]) for each in running)
    return done / seconds, (_spent(resource.RUSAGE_CHILDREN) - before) / max(done, 1)


def one_process(kind: str, url: str, label: str, tasks: int, seconds: float) -> tuple[float, float]:
    before = _spent(resource.RUSAGE_SELF)
    work = commits if kind == "commits" else raw
    done = asyncio.run(work(url, label, tasks, seconds))
    return done / seconds, (_spent(resource.RUSAGE_SELF) - before) / max(done, 1)


def _spent(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


CASES = ("1 session", "64 sessions in one process", f"{PROCESSES} processes × {TASKS} sessions")


def run(report: Report, server: str, url: str, seconds: float) -> None:
    """The part of the report about one server."""
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    for turn in range(ROUNDS):
        for case in CASES:
            for kind in ("commits", "raw") if turn % 2 else ("raw", "commits"):
                label = f"{kind} {CASES.index(case)} {turn}"
                if case == CASES[2]:
                    rate, cost = processes(kind, url, label, seconds)
                else:
                    rate, cost = one_process(kind, url, label, 1 if case == CASES[0] else 64, seconds)
                rates.setdefault((case, kind), []).append(rate)
                costs.setdefault((case, kind), []).append(cost)
        say(f"{server}, many at once: round {turn + 1} of {ROUNDS}")
    rows: list[list[object]] = []
    for case in CASES:
        ours, theirs = (statistics.median(rates[case, kind]) for kind in ("commits", "raw"))
        ratio = statistics.median(
            one / other for one, other in zip(rates[case, "commits"], rates[case, "raw"], strict=True)
        )
        spent = [number(statistics.median(costs[case, kind]) * 1e6) for kind in ("commits", "raw")]
        # The load is what the measurement itself makes: a busy processor is no reason not to judge.
        if case != CASES[0]:
            report.goal(f"{server}: {case}, commits ÷ raw", ratio, 0.5, at_least=True, timed=False)
        rows.append([case, ours, theirs, ratio, *(spent if case != CASES[2] else ("", ""))])
        report.data.setdefault(f"{server} many", {})[case] = {"commits": ours, "raw": theirs, "ratio": ratio}
    header = ["", "commits/s", "raw/s", "÷ raw", "client µs of CPU per commit", "per raw write"]
    note = f"Of about 1 KB. Medians of {ROUNDS} rounds of {seconds:g} s, in turns."
    report.table(f"{server}, many at once", note, header, rows)
