"""How long sessions of an async store keep the event loop from running, beside plain async threads.

    python -m bench.async_sessions [--sessions 50] [--turns 5] [--repeats 5] [--out bench/results] [--quick]

Fifty sessions at once, five turns each: messages, a todo, an effect, usage. Then fifty pairs of plain async
threads that make the same number of commits. A task that wants to wake up every millisecond notes how late it
is. Both take turns in random order over the repeats, each on a fresh store, on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import everthread
from tests.servers.postgres import PostgresServer

from . import measure
from .fleet_postgres import start
from .measure import Report, say
from .savers import url

SESSIONS, PLAIN = "sessions", "plain threads"
TICK_S = 0.001
#: At most this much longer than plain threads, at p99.9.
RATIO_MAX = 1.5


class Ticker:
    """Wakes up every millisecond and notes by how much it was late."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    async def __aenter__(self) -> Ticker:
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s.append(time.perf_counter() - due)


def message(turn: int) -> dict[str, Any]:
    return {"role": "user", "content": f"What of turn {turn}? " + "x" * 400}


async def session_work(store: everthread.AsyncStore, name: str, turns: int) -> tuple[int, int]:
    """One session; how many versions its thread and its journal have then."""
    async with store.session(name, agent="bench") as session:
        for number in range(turns):
            async with session.turn() as turn:
                await turn.messages.append(message(number))
                await session.work.add_todo(f"todo {number}")
                await session.call(f"effect {number}", str, number)
                await turn.add_usage(tokens=100)
                await turn.messages.append(message(number))
    head, journal = session.thread.head, session._journal.head
    assert head is not None
    assert journal is not None
    return head.seq, journal.seq


async def plain_work(store: everthread.AsyncStore, name: str, commits: tuple[int, int]) -> None:
    """The same number of commits to two threads, one after the other as a session makes them."""
    thread, beside = await store.thread(name), await store.thread(f"{name} beside")
    first, second = commits
    for number in range(max(first, second)):
        if number < first:
            thread.messages.append(message(number))
            await thread.commit()
        if number < second:
            beside.state["turns"] = number
            await beside.commit()


async def delays(store_url: str, sessions: int, work: Callable[[Any, str], Awaitable[object]]) -> list[float]:
    """How late the ticker was, in seconds, while so many worked at once."""
    async with everthread.open_async(store_url) as store:
        # Once before: modules are loaded and connections made.
        await work(store, "before")
        gc.collect()
        async with Ticker() as ticker:
            await asyncio.gather(*(work(store, f"s{number}") for number in range(sessions)))
        return ticker.late_s


async def commits_of(store_url: str, turns: int) -> tuple[int, int]:
    async with everthread.open_async(store_url) as store:
        return await session_work(store, "probe", turns)


def compare(
    report: Report, place: str, fresh: Callable[[str], str], options: argparse.Namespace, rng: random.Random
) -> None:
    """Sessions and plain threads in random order within each repeat."""
    commits = asyncio.run(commits_of(fresh("probe"), options.turns))
    say(f"{place}: a session of {options.turns} turns makes {commits[0]} + {commits[1]} versions")
    works: dict[str, Callable[[Any, str], Awaitable[object]]] = {
        SESSIONS: lambda store, name: session_work(store, name, options.turns),
        PLAIN: lambda store, name: plain_work(store, name, commits),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    with report.watched(place):
        for repeat in range(options.repeats):
            for name in rng.sample(list(works), len(works)):
                store_url = fresh(f"{name} {repeat}")
                late_s = asyncio.run(delays(store_url, options.sessions, works[name]))
                found[name] += late_s
                worst = measure.percentile(late_s, 0.999) * 1e3
                say(f"{place}, {name}: p99.9 {measure.number(worst)} ms of {len(late_s):,} ticks")
        ends = {name: measure.percentile(values, 0.999) for name, values in found.items()}
        ratio = ends[SESSIONS] / ends[PLAIN]
        report.goal(f"{place}: p99.9 of the loop's delay, sessions ÷ plain threads", ratio, RATIO_MAX, 1.0)
    rows = [
        [
            name,
            len(values),
            *(each * 1e3 for each in (statistics.median(values), measure.percentile(values, 0.99))),
            ends[name] * 1e3,
            max(values) * 1e3,
        ]
        for name, values in found.items()
    ]
    report.data[place] = {name: measure.summary(values) for name, values in found.items()}
    header = ["", "ticks", "median ms", "p99 ms", "p99.9 ms", "worst ms"]
    report.table(f"Delay of the event loop, {place}", "All repeats together.", header, rows)


def run(work: Path, options: argparse.Namespace) -> Report:
    settings = {"sessions": options.sessions, "turns": options.turns, "repeats": options.repeats}
    report = Report("Async sessions", {**settings, **measure.environment(work, options.seed)})
    rng = random.Random(options.seed)

    def fresh_file(name: str) -> str:
        folder = work / name.replace(" ", "-")
        folder.mkdir()
        return url(folder / "sessions.db")

    compare(report, "SQLite", fresh_file, options, rng)
    server = start(work)
    try:
        compare(report, "PostgreSQL", lambda name: fresh_database(server, name), options, rng)
    finally:
        server.stop()
    return report


def fresh_database(server: PostgresServer, name: str) -> str:
    """The URL of an empty database."""
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        query = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name.replace(" ", "_")))
        connection.execute(query)
    return server.uri(name.replace(" ", "_"))


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.async_sessions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    with measure.workplace(options.work) as work:
        report = run(work, options)
    report.write(options.out, "async_sessions")
    print(report.markdown())


if __name__ == "__main__":
    main()
