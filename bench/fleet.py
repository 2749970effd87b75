"""The servers that fleets share: a commit beside a raw write, on PostgreSQL and on Valkey.

    python -m bench.fleet [--messages 100000] [--seconds 4] [--seed 1] [--out bench/results] [--quick]

See ``fleet_postgres`` and ``fleet_valkey`` for what each measures; either also runs by itself.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from . import fleet_postgres, fleet_valkey, measure
from .measure import Report

POINTS = 60


def curve(samples: Sequence[int]) -> list[tuple[int, float]]:
    """(saves so far, median milliseconds around there), evenly on a logarithmic axis."""
    points = []
    edge = 1.0
    growth = max(len(samples), 2) ** (1 / POINTS)
    start = 0
    while start < len(samples):
        stop = min(len(samples), max(start + 1, int(edge)))
        points.append((stop, statistics.median(samples[start:stop]) / 1e6))
        start, edge = stop, edge * growth
    return points


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true", help="3,000 messages, 2 seconds each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for the servers' files (default /var/tmp)")
    options = parser.parse_args()
    messages, seconds = (3_000, 2.0) if options.quick else (options.messages, options.seconds)
    with measure.workplace(options.work) as work:
        settings = {"messages": messages, **measure.environment(work, options.seed)}
        report = Report("Servers beside raw writes", settings)
        drawn = fleet_postgres.run(report, work, messages, seconds, options.seed)
        fleet_valkey.run(report, work, min(messages, 20_000), seconds, options.seed)
    report.write(options.out, "fleet")
    lines = {name: curve(values) for name, values in drawn["samples"].items()}
    title = "PostgreSQL: one save"
    if drawn["cut"]:
        title += f" ({fleet_postgres.LANGGRAPH} cut at {drawn['cut']:,})"
    measure.plot(options.out / "fleet.png", [(title, "ms", lines)])
    print(report.markdown())


if __name__ == "__main__":
    main()
