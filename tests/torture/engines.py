"""Kills, stops and resets agents on Temporal, on SQLite and PostgreSQL: whatever happens, the thread is what
the history of the run says.

python -m tests.torture.engines all parts, on both stores python -m tests.torture.engines --part kills
--rounds 20 --store postgres --seed 7

Parts: kills (before and after the commit, in model and tool), back (how soon a killed workflow is back,
against the default sticky time-out), resets (to every workflow task), chains (random resets of resets, some
with kills), late (a stopped process wakes up), effects (three parallel tools that pay), length (bytes of
histories).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from temporalio.client import WorkflowHandle

from tests.engines.runs import Bench, reset, shape, until, workflow_tasks
from tests.engines.world import World
from tests.servers.postgres import PostgresServer
from tests.servers.temporal import TemporalServer
from tests.torture._batches import arguments, finish, seed_of

STORES = ("sqlite", "postgres")
POINTS = ("before-model", "after-model", "before-tool-1", "after-tool-1")
PART_ROUNDS = {"kills": 20, "back": 3, "resets": 1, "chains": 50, "late": 3, "effects": 100, "length": 1}

Part = Callable[["Ring", random.Random, int], Awaitable[str]]


class Ring:
    """Where one part takes place: a server of Temporal, a store, and folders."""

    def __init__(self, address: str, folder: Path, place: Callable[[str], str]) -> None:
        self._address = address
        self._folder = folder
        self._place = place
        self._made = 0

    @contextmanager
    def bench(self) -> Iterator[Bench]:
        self._made += 1
        folder = self._folder / f"bench{self._made}"
        folder.mkdir()
        made = Bench(self._address, folder, self._place(f"bench{self._made}"))
        try:
            yield made
        finally:
            made.stop_workers()


async def finished(bench: Bench, handle: WorkflowHandle[Any, Any]) -> None:
    """Wait for a run, with a new worker for each one that dies."""
    result = asyncio.create_task(handle.result())
    while not result.done():
        if bench.living_workers() == 0:
            bench.start_worker()
        await asyncio.wait({result}, timeout=0.1)
    await result


async def kills(ring: Ring, rng: random.Random, rounds: int) -> str:
    async def at(point: str) -> int:
        with ring.bench() as bench:
            expected: list[str] | None = None
            for _ in range(rounds + 1):
                if expected is not None:
                    bench.world.set_trap(point)
                handle = await bench.begin("work 2 3")
                await finished(bench, handle)
                found = shape(await bench.check(handle))
                expected = expected or found
                assert found == expected, (point, found, expected)
            await bench.verify()
            return len(bench.world.notes("trapped"))

    counts = await asyncio.gather(*(at(point) for point in POINTS))
    assert all(count == rounds for count in counts), counts
    return f"{sum(counts)} kills at {len(POINTS)} points: messages as without a kill"


async def back(ring: Ring, rng: random.Random, rounds: int) -> str:
    async def once(sticky_s: float) -> float:
        with ring.bench() as bench:
            bench.world.set_trap("after-model")
            first = bench.start_worker(sticky_s)
            handle = await bench.begin("work 1 1")
            await until(lambda: first.poll() is not None, "the kill")
            bench.start_worker(sticky_s)
            await until(lambda: len(bench.world.notes("worker")) == 2, "the new worker")
            started = time.monotonic()
            await handle.result()
            return time.monotonic() - started

    ours = [await once(1.0) for _ in range(rounds)]
    usual = [await once(0.0) for _ in range(rounds)]
    ratio = statistics.median(ours) / statistics.median(usual)
    assert ratio <= 0.5, (ours, usual)
    return f"back after {ratio:.2f} × the time with the default ({statistics.median(ours):.1f} s)"


async def resets(ring: Ring, rng: random.Random, rounds: int) -> str:
    count = 0
    with ring.bench() as bench:
        async with bench.worker():
            for _ in range(rounds):
                handle = await bench.begin("work 2 3")
                await handle.result()
                for event_id in workflow_tasks(await handle.fetch_history()):
                    again = await reset(bench.client, handle, event_id)
                    await again.result()
                    await bench.check(again)
                    count += 1
            await bench.verify()
    return f"{count} resets: thread and counters as each history says"


async def chains(ring: Ring, rng: random.Random, rounds: int) -> str:
    """Each reset is of a random run so far, to a random task; every fifth run is killed, some aren't waited
    for."""
    killed, unfinished = 0, 0
    with ring.bench() as bench:
        bench.start_worker()
        handle = await bench.begin("work 2 3")
        await finished(bench, handle)
        handle = bench.client.get_workflow_handle(handle.id, run_id=handle.result_run_id)
        runs = [handle]
        for number in range(rounds):
            source = rng.choice(runs)
            # A run under way may have completed no task so far; the first one has.
            tasks = workflow_tasks(await source.fetch_history())
            if not tasks:
                source, tasks = handle, workflow_tasks(await handle.fetch_history())
            again = await reset(bench.client, source, rng.choice(tasks))
            runs.append(again)
            if number % 5 == 4:
                bench.world.set_trap(rng.choice(POINTS))
            if rng.random() < 0.3:
                # The next reset finds it at work.
                await asyncio.sleep(rng.random() * 0.3)
                unfinished += 1
                continue
            await finished(bench, again)
            await bench.check(again)
        again = await reset(bench.client, handle, workflow_tasks(await handle.fetch_history())[-1])
        await finished(bench, again)
        await bench.check(again)
        await bench.verify()
        killed = len(bench.world.notes("trapped"))
    return (
        f"{rounds} resets of resets with {killed} kills, {unfinished} of runs at work: as each history says"
    )


async def late(ring: Ring, rng: random.Random, rounds: int) -> str:
    landed = {"on": 0, "off": 0}
    for _ in range(rounds):
        for cause in ("retry", "reset", "rewind"):
            for guard in ("on", "off"):
                landed[guard] += await _wakes_late(ring, cause, guard)
    assert (landed["on"], landed["off"]) == (0, 3 * rounds), landed
    return f"{3 * rounds} stopped processes woke up: nothing landed; without the guard {landed['off']} did"


async def _wakes_late(ring: Ring, cause: str, guard: str) -> bool:
    """A process is stopped in a step; the work goes on elsewhere, and isn't recorded yet when it wakes up."""
    with ring.bench() as bench:
        world, following = bench.world, "in-model-2" if cause == "rewind" else "in-model-1"
        world.set_trap("in-tool-1" if cause == "rewind" else "in-model-1", "stop")
        world.set_trap("refusing", "hold")
        first = bench.start_worker(GUARD=guard, DEAF="yes")
        handle = await bench.begin("retry" if cause == "rewind" else "work 1 2")
        await until(lambda: bool(world.notes("trapped")), "the stop")
        text = world.notes("trapped")[0]["text"]
        world.set_trap(following, "hold")
        (world.folder / "hold.refusing").unlink()
        if cause == "reset":
            handle = await reset(bench.client, handle, workflow_tasks(await handle.fetch_history())[-1])
        bench.start_worker(GUARD=guard, DEAF="yes")
        await until(lambda: _waits(world, following), "the step that goes on")
        os.kill(first.pid, signal.SIGCONT)
        await until(lambda: text in [note["text"] for note in world.notes("left")], "the end of the late one")
        (world.folder / f"hold.{following}").unlink()
        await handle.result()
        if guard == "on":
            await bench.check(handle)
            await bench.verify()
        messages, _ = await bench.thread(handle.id)
        return any(message["content"] == text for message in messages)


def _waits(world: World, point: str) -> bool:
    return any(note["point"] == point for note in world.notes("waits"))


async def effects(ring: Ring, rng: random.Random, rounds: int) -> str:
    """Three parallel tools that pay; half of the agents can't look whether something was paid."""
    doubts = 0
    with ring.bench() as bench:
        bench.start_worker()
        while len(bench.world.notes("trapped")) + bench.killed < rounds:
            tool = rng.choice(("pay", "pay_unseen"))
            point = rng.choice(("before-effect", "after-effect", "in-pay", None))
            if point is not None:
                bench.world.set_trap(point)
            handle = await bench.begin("work 1 3", tool=tool)
            if point is None:
                await asyncio.sleep(rng.random() * 0.5)
                bench.kill_workers()
            await finished(bench, handle)
            contents = await bench.check(handle)
            book = (bench.world.folder / "book").read_text().splitlines()
            assert len(book) == len(set(book)), "something was paid twice"
            paid = [text.split()[1] for text in contents if text.startswith("paid")]
            in_doubt = [text.split()[2] for text in contents if text.startswith("in doubt")]
            assert len(paid) + len(in_doubt) == 3
            assert set(paid) <= set(book), "something is called paid that isn't"
            assert tool == "pay_unseen" or not in_doubt
            if tool == "pay_unseen" and point in ("before-effect", "after-effect"):
                assert in_doubt, "what was cut off can't be known"
            doubts += len(in_doubt)
        await bench.verify()
        count = len(bench.world.notes("trapped")) + bench.killed
    return f"{count} kills, {len(book)} payments, none twice, {doubts} in doubt where nobody could look"


async def length(ring: Ring, rng: random.Random, rounds: int) -> str:
    per_turn, longest, runs = [], 0, 0
    with ring.bench() as bench:
        async with bench.worker():
            for size in (10, 50_000):
                sizes = []
                for turns in (2, 12):
                    # One tool each: of several, some end together, and share the events of a workflow task.
                    handle = await bench.begin(f"work {turns} 1 {size}")
                    await handle.result()
                    sizes.append((await _bytes_of_runs(bench, handle))[0])
                per_turn.append((sizes[1] - sizes[0]) / 10)
            handle = await bench.begin("work 60 3", bytes_max=48_000)
            await handle.result()
            found = await _bytes_of_runs(bench, handle)
            longest, runs = max(found), len(found)
    difference = abs(per_turn[0] - per_turn[1]) / per_turn[0]
    assert difference <= 0.03, per_turn
    assert longest <= 80 * 1024, longest
    return (
        f"history per turn differs by {difference:.2%} between 10 B and 50 KB; "
        f"60 turns: {runs} runs of at most {longest / 1024:.0f} KB"
    )


async def _bytes_of_runs(bench: Bench, handle: WorkflowHandle[Any, Any]) -> list[int]:
    run_id, sizes = handle.result_run_id or handle.first_execution_run_id, []
    while run_id:
        run = bench.client.get_workflow_handle(handle.id, run_id=run_id)
        history = await run.fetch_history()
        sizes.append(sum(event.ByteSize() for event in history.events))
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return sizes


PARTS: dict[str, Part] = {
    "kills": kills,
    "back": back,
    "resets": resets,
    "chains": chains,
    "late": late,
    "effects": effects,
    "length": length,
}


@contextmanager
def places(store: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Where the store of a bench is; a server is started for them."""
    if store == "sqlite":
        yield lambda name: f"sqlite:///{folder}/{name}.db"
        return
    folder.chmod(0o711)
    server = PostgresServer(folder / "server")
    server.folder.mkdir(exist_ok=True)
    server.create()
    server.start()
    try:
        yield lambda name: _new_database(server, name)
    finally:
        server.stop()


def _new_database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("create database {}").format(psycopg.sql.Identifier(name)))
    return server.uri(name)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--store", choices=STORES, default=None)
    parser.add_argument("--part", choices=sorted(PARTS), default=None)
    parser.add_argument("--rounds", type=int, default=None, help="kills at a point, resets of a chain …")
    options = parser.parse_args()
    seed, failures = seed_of(options), []
    for store in (options.store,) if options.store else STORES:
        for part in (options.part,) if options.part else PARTS:
            with tempfile.TemporaryDirectory() as directory:
                folder = Path(directory)
                os.environ["HOME"] = directory
                temporal = TemporalServer(folder / "temporal")
                temporal.start()
                rounds = options.rounds or PART_ROUNDS[part]
                started = time.monotonic()
                try:
                    with places(store, folder) as place:
                        ring = Ring(temporal.address, folder, place)
                        said = asyncio.run(PARTS[part](ring, random.Random(seed), rounds))
                    print(f"{store} {part}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
                except AssertionError as error:
                    failures.append(f"{store} {part}: {error}")
                    traceback.print_exc()
                finally:
                    temporal.stop()
    print("verdict: " + ("FAILED" if failures else "all as it should be"))
    return finish(failures, f"python -m tests.torture.engines --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
