"""Agents on DBOS, begun, forked and rewound at random steps, by processes that are killed or stopped at
random points. After each act every thread of the family is what the history of its workflow says.

python -m tests.torture.dbos --rounds 20 --acts 10
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psycopg
from dbos import DBOS, SetWorkflowID

from tests.engines import dbos_agent
from tests.engines.dbos_agent import agent, world
from tests.engines.dbos_bench import PROCESSES, WAIT_S, Bench, ended, stop, wake
from tests.servers.postgres import QUICK, PostgresServer
from tests.torture._batches import arguments, finish, seed_of

ENGINES = ("sqlite", "postgres")
TURNS, TOOLS = 2, 3
#: One step each for the thread, the prompt and the end, besides turns with their tools and the last answer.
STEPS = 3 + TURNS * (1 + TOOLS) + 1
POINTS = [
    *(f"{when}-model-{turn}" for when in ("enter", "before", "after") for turn in range(TURNS + 1)),
    *(f"{when}-tool-{slot}" for when in ("in", "after") for slot in range(TOOLS)),
]
#: Where no other step is under way, which a stopped process would hold up others with.
QUIET_POINTS = [point for point in POINTS if "model" in point]


def act(bench: Bench, verb: str, workflow: str, start: int, source: str, family: list[str]) -> None:
    """One process: do it, wait until the workflow has ended, and check the whole family."""
    dbos_agent.launch(bench.folder, bench.database, bench.options(), dbos_system_schema=bench.schema)
    asyncio.run(_act(bench, verb, workflow, start, source, family))
    dbos_agent.leave()


async def _act(bench: Bench, verb: str, workflow: str, start: int, source: str, family: list[str]) -> None:
    with SetWorkflowID(workflow):
        if verb == "begin":
            await DBOS.start_workflow_async(agent, TURNS, TOOLS)
        elif verb == "fork":
            await DBOS.fork_workflow_async(source, start)
    if verb == "rewind":
        await DBOS.rewind_workflow_async(workflow, start_step=start)
    await (await DBOS.retrieve_workflow_async(workflow)).get_result(polling_interval_sec=0.05)
    for each in family:
        steps = await asyncio.to_thread(bench.check, each)
        assert len(steps) == STEPS, (each, len(steps))


class Round:
    """A family of workflows in a folder of its own."""

    def __init__(self, bench: Bench, seed: int, counts: Counter[str]) -> None:
        self._bench = bench
        self._random = random.Random(seed)
        self._counts = counts
        self._family: list[str] = []

    def run(self, acts: int) -> str | None:
        """What went wrong, or nothing."""
        for number in range(acts):
            failure = self._act(number)
            if failure is not None:
                return failure
        self._bench.verify()
        return None

    def _act(self, number: int) -> str | None:
        chosen = self._random
        verb = "begin" if number == 0 else chosen.choice(["fork", "rewind"])
        source = chosen.choice(self._family) if self._family else ""
        workflow = source if verb == "rewind" else f"w{number}"
        start = chosen.randint(1, STEPS)
        if workflow not in self._family:
            self._family.append(workflow)
        how = chosen.choice(["kill", "kill", "stop", "nothing"])
        point = chosen.choice(QUIET_POINTS if how == "stop" else POINTS)
        trap = self._bench.folder / f"{how}.{point}"
        if how != "nothing":
            trap.touch()
        what = f"{verb} of {source or workflow} as {workflow} at step {start}, {how} at {point}"
        self._counts[verb] += 1
        process = self._process(verb, workflow, start, source)
        if how == "stop":
            codes = self._overtake(process, trap, workflow)
        else:
            codes = ended(process)
            if codes == [-9]:
                self._counts["killed"] += 1
                codes = ended(self._process("recover", workflow, start, source))
        trap.unlink(missing_ok=True)
        return None if set(codes) == {0} else f"{what}: processes ended with {codes}"

    def _process(self, verb: str, workflow: str, start: int, source: str) -> ForkServerProcess:
        target = (self._bench, verb, workflow, start, source, self._family)
        process = PROCESSES.Process(target=act, args=target)
        process.start()
        return process

    def _overtake(self, late: ForkServerProcess, trap: Path, workflow: str) -> list[int | None]:
        """Stop a process in its trap, if it comes there, and let another one recover its workflow."""
        deadline = time.monotonic() + WAIT_S
        while trap.exists() and late.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if trap.exists():
            return ended(late)
        self._counts["stopped"] += 1
        stop(late, self._bench)
        other = self._process("recover", workflow, 0, "")
        try:
            codes = ended(other)
        finally:
            wake(late, self._bench)
        codes += ended(late)
        (self._bench.folder / "woken").unlink()
        return codes + ended(self._process("recover", workflow, 0, ""))


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--engine", choices=ENGINES, default=None)
    parser.add_argument("--rounds", type=int, default=20, help="so many families on each engine")
    parser.add_argument("--acts", type=int, default=10, help="in each family")
    options = parser.parse_args()
    seed, counts, failures = seed_of(options), Counter[str](), []
    place = Path(tempfile.mkdtemp())
    # The server may have to run as somebody else.
    place.chmod(0o755)
    server = PostgresServer(place / "server", settings=QUICK)
    try:
        for engine in (options.engine,) if options.engine else ENGINES:
            for number in range(options.rounds):
                bench = _bench(engine, place / f"{engine}-{number}", server)
                failure = Round(bench, seed + number, counts).run(options.acts)
                if failure is not None:
                    failures.append(f"{engine}, seed {seed + number}: {failure}")
                    shutil.copytree(bench.folder, options.keep / bench.folder.name, dirs_exist_ok=True)
                print(f"{engine} {number + 1}/{options.rounds}: {dict(counts)}", flush=True)
    finally:
        if server.pid:
            server.stop()
        shutil.rmtree(place)
    print(f"{sum(counts[verb] for verb in ('begin', 'fork', 'rewind'))} acts, {dict(counts)}, ", end="")
    print(f"{len(failures)} broken" if failures else "each thread is what its history says")
    return finish(failures, f"python -m tests.torture.dbos --seed {seed} --acts {options.acts}")


def _bench(engine: str, folder: Path, server: PostgresServer) -> Bench:
    folder.mkdir()
    world.folder = folder
    if engine == "sqlite":
        return Bench(folder, f"sqlite:///{folder}/dbos.db", f"sqlite:///{folder}/agent.db")
    if not server.pid:
        server.folder.mkdir()
        server.create()
        server.start()
    name = f"round_{folder.name.rpartition('-')[2]}"
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return Bench(folder, server.uri(name), server.uri(name))


if __name__ == "__main__":
    sys.exit(main())
