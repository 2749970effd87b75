"""The servers that fleets share: a commit beside a raw write, on PostgreSQL and on Valkey.

    python -m bench.fleet [--messages 100000] [--seconds 2] [--seed 1] [--out bench/results] [--quick]

Each server is one of its own that keeps what it acknowledges. ``fleet_postgres`` and ``fleet_valkey`` grow
one thread beside raw writes, ``fleet_langgraph`` runs LangGraph's PostgresSaver beside both, ``fleet_many``
lets many sessions write at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import psycopg

from . import fleet_langgraph, fleet_many, fleet_postgres, fleet_valkey, measure
from .measure import Report

PARTS = ("postgres", "langgraph", "valkey", "many")


def run_postgres(
    report: Report, work: Path, messages: int, seconds: float, seed: int, parts: tuple[str, ...]
) -> list[Any]:
    """PostgreSQL; the panels to plot."""
    panels: list[Any] = []
    server = fleet_postgres.start(work)
    try:
        uri = server.uri()
        times: dict[str, Any] = {}
        if "postgres" in parts:
            samples = fleet_postgres.grow(report, uri, messages, seed)
            fleet_postgres.resume(report, uri)
            times = {name: measure.curve(values) for name, values in samples.items()}
        if "langgraph" in parts:
            steps = min(fleet_langgraph.STEPS, messages)
            samples, sizes = fleet_langgraph.run(report, uri, steps, seed)
            peer = fleet_langgraph.LANGGRAPH
            times[peer] = measure.curve(samples[peer])
            panels.append(("PostgreSQL: size in the database", "MB", sizes))
        if times:
            panels.insert(0, ("PostgreSQL: time of one durable save", "µs", times))
        if "many" in parts:
            with psycopg.connect(uri, autocommit=True) as connection:
                connection.execute(fleet_postgres.RAW_TABLE)
            fleet_many.run(report, "PostgreSQL", f"{uri}?pool_max=16", seconds)
    finally:
        server.stop()
    return panels


def run_valkey(
    report: Report, work: Path, messages: int, seconds: float, seed: int, parts: tuple[str, ...]
) -> list[Any]:
    """Valkey; the panels to plot."""
    panels: list[Any] = []
    server = fleet_valkey.Valkey(work / "valkey")
    try:
        if "valkey" in parts:
            samples = fleet_valkey.grow(report, server, messages, seed)
            times = {name: measure.curve(values) for name, values in samples.items()}
            panels.append(("Valkey: time of one durable save", "µs", times))
        if "many" in parts:
            fleet_many.run(report, "Valkey", f"{server.url}?connections=64", seconds)
    finally:
        server.stop()
    return panels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn of many sessions at once")
    parser.add_argument("--quick", action="store_true", help="3,000 messages, turns of one second")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for the servers' files (default /var/tmp)")
    options = parser.parse_args()
    messages, seconds = (3_000, 1.0) if options.quick else (options.messages, options.seconds)
    parts = tuple(options.only or PARTS)
    with measure.workplace(options.work) as work:
        settings = {"messages": f"{messages:,}", **measure.environment(work, options.seed)}
        report = Report("Servers beside raw writes", settings)
        panels = run_postgres(report, work, messages, seconds, options.seed, parts)
        panels += run_valkey(report, work, messages, seconds, options.seed, parts)
    report.write(options.out, "fleet")
    if panels:
        measure.plot(options.out / "fleet.png", panels)
    print(report.markdown())


if __name__ == "__main__":
    main()
