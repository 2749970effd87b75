"""What `import everthread` costs over a bare interpreter.

    python -m bench.import_cost [--rounds N] [--check]

Each round starts every candidate once, in turn, so that a slow moment of the machine hits all of them alike.
The figure is the median of the differences to the bare start of the same round. `--check` fails above
the target.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET_MS = 40.0
SOURCE = Path(__file__).resolve().parents[1] / "src"
BARE = f"import sys; sys.path.insert(0, {str(SOURCE)!r})"
CANDIDATES = {
    "import everthread": "import everthread",
    "… and reach for open": "import everthread; everthread.open",
    "… and open a memory store": "import everthread; everthread.open('memory:').close()",
}


def start_ms(statement: str) -> float:
    """The milliseconds from starting an isolated interpreter that runs `statement` to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", f"{BARE}\n{statement}"], check=True)
    return (time.perf_counter() - begin) * 1000


def measure(rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """The bare starts, and for each candidate what it took longer than the bare start of its round."""
    for statement in CANDIDATES.values():
        start_ms(statement)  # compiles to bytecode, fills the page cache
    bare: list[float] = []
    over: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for _ in range(rounds):
        bare.append(start_ms("pass"))
        for name, statement in CANDIDATES.items():
            over[name].append(start_ms(statement) - bare[-1])
    return bare, over


def main() -> int:
    parser = argparse.ArgumentParser(description="What importing Everthread costs over bare Python.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--check", action="store_true", help=f"fail above {TARGET_MS:.0f} ms for the import")
    arguments = parser.parse_args()
    bare, over = measure(arguments.rounds)
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}, {arguments.rounds} rounds, bare start {statistics.median(bare):.1f} ms")
    for name, values in over.items():
        quarter, middle, three_quarters = statistics.quantiles(values, n=4)
        print(f"{name:28} {middle:+6.1f} ms   (quartiles {quarter:.1f} to {three_quarters:.1f})")
    cost = statistics.median(over["import everthread"])
    print(f"target: under {TARGET_MS:.0f} ms for the import; {'kept' if cost < TARGET_MS else 'MISSED'}")
    return int(arguments.check and cost >= TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
