"""Kills parents and subagents, and resets parents on Temporal: no message twice, no call without a result.

python -m tests.torture.subagents
python -m tests.torture.subagents --part chains --rounds 30 --seed 7

Parts: moments (without an engine, killed at every operation of the store, on SQLite and files), kills (on
Temporal, at points of the child's work and of the parent's), resets (to every workflow task), chains (random
resets of resets, of finished runs and of runs under way, some with kills).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.crash.test_subagent_kill import SHARES, STORES, kill_at_moments
from tests.crash.workload import memory_directory
from tests.engines.delegation import EVERY_MODE
from tests.engines.runs import reset, workflow_tasks
from tests.engines.test_delegation import POINTS, Firm
from tests.servers.temporal import TemporalServer
from tests.torture._batches import arguments, finish, run_batches, seed_of

ROUNDS = {"kills": 3, "resets": 1, "chains": 25}

Part = Callable[[Firm, random.Random, int], Awaitable[str]]


def at_moments(share: int, name: str) -> tuple[int, str | None]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as place:
        try:
            return kill_at_moments(Path(place).resolve(), share, SHARES, name), None
        except Exception:
            return 0, f"moments on {name}, share {share}: {traceback.format_exc()}"


def moments(jobs: int, failures: list[str]) -> str:
    killed, batches = 0, [(share, name) for name in STORES for share in range(SHARES)]
    for kills, problem in run_batches(at_moments, batches, jobs):
        killed += kills
        failures += [] if problem is None else [problem]
    return f"{killed} kills"


async def kills(firm: Firm, rng: random.Random, rounds: int) -> str:
    died = 0
    for _ in range(rounds):
        for point in POINTS:
            modes = rng.sample(EVERY_MODE, 4)
            handle = await firm.start(modes)
            firm.world.set_trap(point)
            died += await firm.finished(handle)
            firm.stop_workers()
            await firm.check_threads(handle.id, modes)
    assert died >= rounds * len(POINTS)
    return f"{died} kills at {len(POINTS)} points"


async def resets(firm: Firm, rng: random.Random, rounds: int) -> str:
    count = 0
    async with firm.worker():
        for _ in range(rounds):
            modes = rng.sample(EVERY_MODE, len(EVERY_MODE))
            handle = await firm.start(modes)
            await handle.result()
            for event_id in workflow_tasks(await handle.fetch_history()):
                again = await reset(firm.client, handle, event_id)
                await again.result()
                await firm.check_threads(handle.id, modes)
                count += 1
    return f"{count} resets, one to each workflow task"


async def chains(firm: Firm, rng: random.Random, rounds: int) -> str:
    """Each reset is of the run that the one before has made, half of them while it is under way."""
    modes, died, early = list(EVERY_MODE), 0, 0
    handle = await firm.start(modes)
    died += await firm.finished(handle)
    for number in range(rounds):
        tasks = workflow_tasks(await handle.fetch_history())
        handle = await reset(firm.client, handle, rng.choice(tasks))
        if number % 2:
            firm.start_process()
            await asyncio.sleep(rng.random() * 3)
            found = workflow_tasks(await handle.fetch_history())
            if found:
                handle, early = await reset(firm.client, handle, rng.choice(found)), early + 1
        if number % 3 == 0:
            firm.world.set_trap(rng.choice(POINTS))
        died += await firm.finished(handle)
        firm.stop_workers()
        await firm.check_threads(handle.id, modes)
    return f"{rounds + early} resets, {early} of runs under way, {died} kills"


PARTS: dict[str, Part] = {"kills": kills, "resets": resets, "chains": chains}


def on_temporal(part: str, seed: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        os.environ["HOME"] = directory
        server = TemporalServer(folder / "temporal")
        server.start()
        firm = Firm(server.address, folder)
        try:
            return asyncio.run(PARTS[part](firm, random.Random(seed), rounds))
        finally:
            firm.stop_workers()
            server.stop()


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--part", choices=("moments", *PARTS), default=None)
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    seed = seed_of(options)
    failures: list[str] = []
    for part in (options.part,) if options.part else ("moments", *PARTS):
        started = time.monotonic()
        try:
            if part == "moments":
                said = moments(options.jobs, failures)
            else:
                said = on_temporal(part, seed, options.rounds or ROUNDS[part])
            print(f"{part}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
        except AssertionError:
            failures.append(f"{part}: {traceback.format_exc()}")
    print("verdict: " + ("FAILED" if failures else "all as it should be"))
    return finish(failures, f"python -m tests.torture.subagents --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
