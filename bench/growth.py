"""One thread growing to many messages: what each save, read, fork and byte costs, beside a raw insert.

    python -m bench.growth [--messages 100000] [--seed 1] [--out bench/results] [--quick]

Saves by plain SQLite (one row), by Everthread without and with metadata, keys and ids take turns in random
order over the whole run. Then the reads are measured, and LangGraph's SqliteSaver runs the same program
beside fresh contenders until it reaches a limit of steps, bytes or time, which the report names.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from . import measure, reads
from .measure import Report, Samples, say, summary, take_turns
from .messages import Transcript
from .savers import EverthreadSaver, LangGraphSaver, RawRows, Saver

LENGTHS = (100, 1_000, 10_000, 100_000)
PEER_STEPS, PEER_BYTES, PEER_SECONDS = 3_000, 2_000_000_000, 60.0
NAMES = {"raw": "raw insert", "core": "Everthread", "all": "Everthread + metadata, key, id"}


def grow(
    savers: dict[str, Saver], paths: dict[str, Path], steps: int, seed: int, stop: Any = None
) -> tuple[Samples, dict[str, list[tuple[int, float]]], int]:
    """Save `steps` messages with every saver in turn; returns times, sizes on disk along the way, JSON bytes.

    `stop(step, samples)` may end the run early.
    """
    rng = random.Random(seed)
    samples: Samples = {}
    sizes: dict[str, list[tuple[int, float]]] = {name: [] for name in [*savers, "payload"]}
    payload, next_size = 0, 10
    actions = {name: saver.save for name, saver in savers.items()}
    for step, message in zip(range(1, steps + 1), Transcript(seed), strict=False):
        payload += len(msgspec.json.encode(message))
        for saver in savers.values():
            saver.prepare(step, message)
        take_turns(rng, actions, samples)
        if step >= next_size or step == steps:
            for name in savers:
                sizes[name].append((step, measure.disk_bytes(paths[name]) / 1e6))
            sizes["payload"].append((step, payload / 1e6))
            next_size = int(step * 1.25) + 1
        if step % max(1, steps // 20) == 0:
            latest = {name: statistics.median(values[-500:]) / 1e3 for name, values in samples.items()}
            say(
                f"{step:,} of {steps:,}: "
                + ", ".join(f"{name} {value:.0f} µs" for name, value in latest.items())
            )
        if stop is not None and stop(step, samples):
            break
    return samples, sizes, payload


def report_saves(report: Report, samples: Samples, sizes: dict[str, int], payload: int) -> None:
    """Judge the saves of the main run against their goals."""
    raw = summary(samples["raw"])
    raw_first, raw_last = measure.deciles(samples["raw"])
    rows: list[list[object]] = []
    for name, title in NAMES.items():
        own, values = summary(samples[name]), samples[name]
        first, last = measure.deciles(values)
        report.data[name] = {
            **own,
            "first_decile_us": first / 1e3,
            "last_decile_us": last / 1e3,
            "bytes": sizes[name],
        }
        rows.append([
            title, f"{own['median_us']:.0f} ({own['median_us'] / raw['median_us']:.2f})",
            f"{own['mean_us']:.0f} ({own['mean_us'] / raw['mean_us']:.2f})",
            f"{own['p99_us']:.0f} ({own['p99_us'] - raw['p99_us']:+.0f})", f"{own['worst_us'] / 1e3:.1f}",
            f"{first / 1e3:.0f} → {last / 1e3:.0f}", f"{sizes[name] / payload:.3f}",
        ])  # fmt: skip
    count = len(samples["raw"])
    note = f"JSON payload {payload / 1e6:.1f} MB in {count:,} messages. In brackets: × raw, or minus raw's."
    header = ["", "median µs", "mean µs", "p99 µs", "worst ms", "first → last decile µs", "bytes ÷ JSON"]
    report.table("Saves, full durability", note, header, rows)
    goals = {
        "core": (1.80, 1.25, 2.00, 1.35, 0.50, 0.35),
        "all": (2.00, 1.40, 2.20, 1.55, 0.50, 0.40),
    }
    for name, (median, median_best, mean, mean_best, size, size_best) in goals.items():
        own = report.data[name]
        micro = f"{own['median_us']:.0f} µs, raw {raw['median_us']:.0f}"
        report.goal(
            f"{name}: save median ÷ raw", own["median_us"] / raw["median_us"], median, median_best, note=micro
        )
        micro = f"{own['mean_us']:.0f} µs, raw {raw['mean_us']:.0f}"
        report.goal(f"{name}: save mean ÷ raw", own["mean_us"] / raw["mean_us"], mean, mean_best, note=micro)
        beyond = f"raw's own {raw['p99_us'] / 1e3:.2f} ms, {(own['p99_us'] - raw['p99_us']) / 1e3:+.2f}"
        report.goal(
            f"{name}: save p99", own["p99_us"] / 1e3, 2.0, raw["p99_us"] / 1e3, note=beyond, unit="ms"
        )
        growth = own["last_decile_us"] / own["first_decile_us"] / (raw_last / raw_first)
        report.goal(f"{name}: last ÷ first decile, ÷ raw's own", growth, 1.15, 1.05)
        report.goal(f"{name}: bytes on disk ÷ JSON", sizes[name] / payload, size, size_best, timed=False)


def run_peer(
    report: Report, work: Path, steps: int, seed: int
) -> tuple[Samples, dict[str, list[tuple[int, float]]]]:
    """LangGraph beside a raw insert and Everthread, until one of its limits."""
    paths = {
        "raw": work / "peer-raw.db",
        "core": work / "peer-core.db",
        "langgraph": work / "peer-langgraph.db",
    }
    savers: dict[str, Saver] = {
        "raw": RawRows(paths["raw"]),
        "core": EverthreadSaver(paths["core"]),
        "langgraph": (graph := LangGraphSaver(paths["langgraph"], steps + 1)),
    }
    cut = f"{steps:,} steps"
    spent = 0

    def stop(step: int, samples: Samples) -> bool:
        nonlocal cut, spent
        spent += samples["langgraph"][-1]
        if spent > PEER_SECONDS * 1e9:
            cut = f"{PEER_SECONDS:.0f} s of its own time at step {step:,}"
        elif step % 20 == 0 and measure.disk_bytes(paths["langgraph"]) > PEER_BYTES:
            cut = f"{PEER_BYTES / 1e9:.0f} GB at step {step:,}"
        else:
            return False
        return True

    samples, sizes, payload = grow(savers, paths, steps, seed, stop)
    started = time.perf_counter()
    graph.read()
    read_ms = (time.perf_counter() - started) * 1e3
    for saver in savers.values():
        saver.close()
    rows = []
    for name, title in (
        ("raw", "raw insert"),
        ("core", "Everthread"),
        ("langgraph", "LangGraph SqliteSaver"),
    ):
        first, last = measure.deciles(samples[name])
        on_disk = measure.disk_bytes(paths[name])
        rows.append(
            [
                title,
                first / 1e3,
                last / 1e3,
                summary(samples[name])["p99_us"],
                on_disk / 1e6,
                on_disk / payload,
            ]
        )
    done = len(samples["raw"])
    report.data["peer"] = {"cut": cut, "steps": done, "rows": rows, "get_state_ms": read_ms}
    note = f"Stopped at {cut}. SqliteSaver's get_state then took {read_ms:.0f} ms."
    header = ["", "first decile µs", "last decile µs", "p99 µs", "MB on disk", "÷ JSON payload"]
    report.table(f"Beside LangGraph, {done:,} messages", note, header, rows)
    say(f"LangGraph stopped at {cut}")
    return samples, sizes


def run(work: Path, messages: int, seed: int) -> tuple[Report, list[Any]]:
    """Everything, in order; returns the report and the panels of its plot."""
    report = Report("Growth of one thread", {"messages": f"{messages:,}", **measure.environment(work, seed)})
    paths = {name: work / f"{name}.db" for name in NAMES}
    core = EverthreadSaver(paths["core"])
    full = EverthreadSaver(paths["all"], everything=True)
    savers: dict[str, Saver] = {"raw": RawRows(paths["raw"]), "core": core, "all": full}
    with report.watched("saves"):
        samples, sizes, payload = grow(savers, paths, messages, seed)
        for saver in savers.values():
            saver.close()
        on_disk = {name: measure.disk_bytes(path) for name, path in paths.items()}
        report_saves(report, samples, on_disk, payload)

    lengths = {length: work / f"length-{length}.db" for length in LENGTHS if length < messages}
    versions = {length: reads.build(path, length, seed) for length, path in lengths.items()}
    lengths[messages], versions[messages] = paths["core"], core.versions
    say("threads of other lengths are built")
    with report.watched("reads and forks"):
        reads.measure_resumes(lengths, report, seed)
        reads.measure_loads(lengths, versions, report, seed)
        reads.measure_branches(lengths, versions, report, work / "branch-raw.db", seed)

    peer_samples, peer_sizes = run_peer(report, work, min(PEER_STEPS, messages), seed)
    times = {title: measure.curve(samples[name]) for name, title in NAMES.items()}
    times["LangGraph SqliteSaver"] = measure.curve(peer_samples["langgraph"])
    disk = {title: sizes[name] for name, title in NAMES.items()}
    disk["LangGraph SqliteSaver"] = peer_sizes["langgraph"]
    disk["JSON payload"] = sizes["payload"]
    return report, [("Time of one durable save", "µs", times), ("Size on disk", "MB", disk)]


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="2,000 messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    messages = 2_000 if options.quick else options.messages
    with measure.workplace(options.work) as work:
        report, panels = run(work, messages, options.seed)
    report.write(options.out, "growth")
    measure.plot(options.out / "growth.png", panels)
    print(report.markdown())


if __name__ == "__main__":
    main()
