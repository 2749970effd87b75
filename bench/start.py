"""What a start of the command line costs over a bare interpreter.

    python -m bench.start [--rounds N] [--check]

Each round starts every candidate once, in turn, so that a slow moment of the machine hits all of them alike.
The figure is the median of the differences to the bare start of the same round. `--check` fails above the
target. Bytecode is compiled beforehand: that is what an installed package has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import everthread

TARGET_MS = 60.0
SOURCE = Path(__file__).resolve().parents[1] / "src"
MAIN = "from everthread.cli.main import main; main()"
#: What is held to the target, and what these figures consist of.
HELD = ("everthread --version", "everthread status")


def candidates(url: str) -> dict[str, list[str]]:
    return {
        "bare": ["-c", "pass"],
        "import click": ["-c", "import click"],
        "import click, msgspec, apsw": ["-c", "import click, msgspec, apsw"],
        "everthread --version": ["-c", MAIN, "--version"],
        "everthread status": ["-c", MAIN, "--store", url, "status"],
        "everthread log bot": ["-c", MAIN, "--store", url, "log", "bot"],
    }


def make_store(url: str) -> None:
    with everthread.open(url) as store:
        for name in ("bot", "mailer", "reporter"):
            thread = store.thread(name)
            for number in range(10):
                thread.state["n"] = number
                thread.commit()
        with store.session("agent") as session:
            session.work.add_todo("look around")


def start_ms(arguments: list[str], environment: dict[str, str]) -> float:
    """The milliseconds from starting an interpreter to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1000


def measure(rounds: int, folder: Path) -> tuple[list[float], dict[str, list[float]]]:
    """The bare starts, and for each candidate what it took longer than the bare start of its round."""
    url = f"sqlite:///{folder}/agent.db"
    make_store(url)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    programs = candidates(url)
    for arguments in programs.values():
        start_ms(arguments, environment)  # compiles to bytecode, fills the page cache
    bare: list[float] = []
    over: dict[str, list[float]] = {name: [] for name in programs if name != "bare"}
    for _ in range(rounds):
        bare.append(start_ms(programs["bare"], environment))
        for name, values in over.items():
            values.append(start_ms(programs[name], environment) - bare[-1])
    return bare, over


def main() -> int:
    parser = argparse.ArgumentParser(description="What a start of the command line costs over bare Python.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--check", action="store_true", help=f"fail above {TARGET_MS:.0f} ms")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare, over = measure(arguments.rounds, Path(folder))
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}, {arguments.rounds} rounds, bare start {statistics.median(bare):.1f} ms")
    for name, values in over.items():
        quarter, middle, three_quarters = statistics.quantiles(values, n=4)
        print(f"{name:28} {middle:+6.1f} ms   (quartiles {quarter:.1f} to {three_quarters:.1f})")
    missed = [name for name in HELD if statistics.median(over[name]) >= TARGET_MS]
    print(f"target: under {TARGET_MS:.0f} ms for {' and '.join(HELD)}; {'MISSED' if missed else 'kept'}")
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    if busy > 0.5:
        print(f"the machine is busy (load {busy:.1f} per core): these figures are too large")
    return int(arguments.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
