"""Agents of Pydantic AI and of the OpenAI Agents SDK on a real Temporal server, with and without the payload
driver: what stays in histories, what the store takes, how long it takes, and what an erasure does.

python -m tests.torture.payloads
python -m tests.torture.payloads --rounds 5 --environments ~/.cache/payload-agents

Each framework gets an environment of its own, for which pip needs a package index; ``--environments`` names a
folder in which they are kept for the next time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from tests.servers.temporal import TemporalServer
from tests.torture._batches import arguments, finish, seed_of

ROOT = Path(__file__).parents[2]
#: The program → what its environment needs beside Everthread.
NEEDS = {
    "pydantic_agent": ("temporalio", "pydantic-ai-slim[temporal]"),
    "openai_agent": ("temporalio", "temporalio-openai-agents"),
}
#: What must hold.
HISTORY_BYTES_MAX, STORE_PART_MAX, TIME_MAX, SESSION_PART_MAX = 1_000_000, 0.05, 1.2, 0.03
#: A conversation that ends the workflow without the driver, one that doesn't, and a short one.
LARGE = {"first": 260_000, "calls": 100, "size": 5_000}
MEDIUM = {"first": 100_000, "calls": 40, "size": 5_000}
SESSION = {"first": 5_000, "calls": 100, "size": 5_000}
SHORT = {"first": 3_000, "calls": 10, "size": 1_000}


class Bench:
    """A server, the environments, and what was found."""

    def __init__(self, folder: Path, environments: Path, address: str, seed: int) -> None:
        self._folder = folder
        self._environments = environments
        self._address = address
        self._seed = seed
        self._runs = 0
        self.failures: list[str] = []

    def run(self, program: str, *, driver: bool, **options: Any) -> dict[str, Any]:
        """One run of a program; each with the driver has a store of its own."""
        self._runs += 1
        home = self._folder / f"{self._runs}"
        home.mkdir()
        options = {"address": self._address, "seed": self._seed, **options}
        if driver:
            options["url"] = f"sqlite:///{home}/payloads.db"
        command = [self._python(program), "-m", "tests.torture.payload_agents", program, json.dumps(options)]
        environment = {
            **os.environ,
            "HOME": str(home),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{program} failed:\n{ran.stdout[-2000:]}{ran.stderr[-4000:]}")
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found

    def require(self, holds: bool, what: str) -> None:
        print(f"  {'ok' if holds else 'FAILED'}: {what}", flush=True)
        if not holds:
            self.failures.append(what)

    def require_small(self, found: dict[str, Any]) -> None:
        """What the store takes, on its disk, of what it was given."""
        given, taken = found["payload_bytes"], found["store_bytes"]
        self.require(
            taken <= STORE_PART_MAX * given,
            f"{given / 1e6:.1f} MB of payloads in {taken / 1e6:.2f} MB: {taken / given:.3f} x",
        )

    def _python(self, program: str) -> str:
        home = self._environments / program
        python = home / "bin" / "python"
        if not python.exists():
            print(f"an environment for {program}: {', '.join(NEEDS[program])}", flush=True)
            venv.create(home, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
            # For what Everthread needs; the package itself is used from this tree.
            subprocess.run([*pip, str(ROOT), *NEEDS[program]], check=True)
        return str(python)


def large(bench: Bench) -> None:
    print("Pydantic AI, 100 calls of 5 KB after 260 KB", flush=True)
    control = bench.run("pydantic_agent", driver=False, **LARGE)
    bench.require(
        control["status"] == "terminated",
        f"without the driver: {control['status']} at {control['history_bytes'] / 1e6:.1f} MB of history",
    )
    found = bench.run("pydantic_agent", driver=True, **LARGE)
    bench.require(found["status"] == "completed" and found["sound"], f"with the driver: {found['status']}")
    bench.require(
        found["history_bytes"] <= HISTORY_BYTES_MAX,
        f"{found['history_bytes'] / 1e6:.2f} MB of history ({found['events']} events)",
    )
    bench.require_small(found)
    # Each call of the model or of the tool is an activity: what it is given, and what it gives.
    activities = 2 * LARGE["calls"] + 1
    bench.require(
        found["commits"] <= 2 * activities + 2, f"{found['commits']} commits for {activities} activities"
    )


def speed(bench: Bench, rounds: int) -> None:
    print(f"Pydantic AI, 40 calls of 5 KB after 100 KB, {rounds} times each way", flush=True)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for driver in (False, True):
            found = bench.run("pydantic_agent", driver=driver, **MEDIUM)
            if found["status"] != "completed":
                bench.require(False, f"driver={driver}: {found['status']}")
                return
            seconds[driver].append(found["seconds"])
    ratio = statistics.median(seconds[True]) / statistics.median(seconds[False])
    shown = {driver: [f"{each:.1f}" for each in found] for driver, found in seconds.items()}
    bench.require(ratio <= TIME_MAX, f"time {ratio:.2f} x: with {shown[True]} s, without {shown[False]} s")


def session(bench: Bench) -> None:
    print("OpenAI Agents with a session in the workflow, 100 turns of 5 KB", flush=True)
    control = bench.run("openai_agent", driver=False, **SESSION)
    found = bench.run("openai_agent", driver=True, **SESSION)
    for which, each in (("without", control), ("with", found)):
        bench.require(each["status"] == "completed", f"{which} the driver: {each['status']}")
    part = found["history_bytes"] / control["history_bytes"]
    bench.require(
        part <= SESSION_PART_MAX,
        f"{control['history_bytes'] / 1e6:.2f} MB of history become {found['history_bytes'] / 1e6:.2f}: "
        f"{part:.4f} x",
    )
    bench.require_small(found)


def erasure(bench: Bench) -> None:
    for program in NEEDS:
        print(f"{program}, threshold 0", flush=True)
        plain = bench.run(program, driver=False, **SHORT)
        bench.require(plain["words"] > 0, f"without the driver: {plain['words']} times a word that was said")
        found = bench.run(program, driver=True, threshold=0, subject="ann", **SHORT)
        bench.require(
            found["status"] == "completed" and found["words"] == 0, f"with the driver: {found['words']} times"
        )
        bench.require(bool(found["erased"]), "the person is erased")
        bench.require(found["ended"] == "PayloadErased, not retried", f"the result: {found['ended']}")
        bench.require(
            found["failed_tasks"] <= 2 and found["reason"].startswith("PayloadErased: "),
            f"a workflow that is replayed: {found['end']} after {found['failed_tasks']} failed tasks, "
            f"{found['reason'][:60]!r}",
        )


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=3, help="so many runs each way to compare times")
    parser.add_argument("--environments", type=Path, default=None, help="where environments are kept")
    parser.add_argument("--only", choices=("large", "speed", "session", "erasure"), default=None)
    options = parser.parse_args()
    seed = seed_of(options)
    parts = {
        "large": large,
        "speed": lambda bench: speed(bench, options.rounds),
        "session": session,
        "erasure": erasure,
    }
    with tempfile.TemporaryDirectory(prefix="everthread-payloads-") as temporary:
        folder = Path(temporary)
        server = TemporalServer(folder / "server")
        server.start()
        try:
            bench = Bench(folder, options.environments or folder / "environments", server.address, seed)
            for name, part in parts.items():
                if options.only in (None, name):
                    part(bench)
        finally:
            server.stop()
    print(f"{len(bench.failures)} failures", flush=True)
    return finish(bench.failures, f"python -m tests.torture.payloads --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
