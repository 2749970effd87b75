"""Eight processes writing to one SQLite file: throughput against one process, fairness, worst wait.

    python -m bench.processes [--seconds 5] [--repeats 3] [--out bench/results] [--quick]

Each kind of writer runs alone and as eight processes, all of them interleaved in random order over the
repeats. Beside Everthread runs a plain INSERT with the same kind of advisory lock (flock) around the write.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import msgspec

import everthread

from . import measure
from .measure import Report, say
from .messages import Message, Transcript
from .savers import connect, url

PROCESSES = 8
MESSAGES = 500
TITLES = {
    "raw": "INSERT under flock",
    "own": "Everthread, a thread per process",
    "hot": "Everthread, one thread for all, update()",
}


@contextmanager
def raw_writer(path: Path, _: int) -> Iterator[Callable[[Message], None]]:
    """A plain durable INSERT, its turn given by an advisory lock."""
    connection = connect(path)
    connection.set_busy_timeout(60_000)
    with (path.parent / (path.name + ".turn")).open("a") as lock:

        def write(message: Message) -> None:
            body = msgspec.msgpack.encode(message)
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                connection.execute("INSERT INTO rows(body) VALUES (?)", (body,))
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

        yield write
    connection.close()


@contextmanager
def own_writer(path: Path, number: int) -> Iterator[Callable[[Message], None]]:
    """Everthread: each process commits to a thread of its own."""
    store = everthread.open(url(path))
    thread = store.thread(f"worker-{number}")

    def write(message: Message) -> None:
        thread.messages.append(message)
        thread.state["count"] = thread.state.get("count", 0) + 1
        thread.commit()

    yield write
    store.close()


@contextmanager
def hot_writer(path: Path, _: int) -> Iterator[Callable[[Message], None]]:
    """Everthread: all processes read, change and write the same thread; no increment may be lost."""
    store = everthread.open(url(path))
    thread = store.thread("hot")

    def write(message: Message) -> None:
        def change(current: Any) -> None:
            current.messages.append(message)
            current.state["count"] = current.state.get("count", 0) + 1

        thread.update(change)

    yield write
    store.close()


WRITERS = {"raw": raw_writer, "own": own_writer, "hot": hot_writer}


def work_until(kind: str, path: Path, number: int, seconds: float, start: Barrier, result: Path) -> None:
    """The body of one process: write until the time is up, then leave count and latencies in `result`."""
    transcript = Transcript(number)
    messages = [next(transcript) for _ in range(MESSAGES)]
    latencies: list[int] = []
    with WRITERS[kind](path, number) as write:
        start.wait(60)
        deadline = time.perf_counter() + seconds
        while (started := time.perf_counter()) < deadline:
            write(dict(messages[len(latencies) % MESSAGES]))
            latencies.append(int((time.perf_counter() - started) * 1e9))
    result.write_text(json.dumps(latencies))


def run_once(kind: str, processes: int, folder: Path, seconds: float) -> dict[str, float]:
    """One repeat: `processes` writers on a fresh file; fails if anything acknowledged is missing."""
    folder.mkdir()
    path = folder / "shared.db"
    prepare(kind, path)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results = [folder / f"result-{number}.json" for number in range(processes)]
    workers = [
        context.Process(target=work_until, args=(kind, path, number, seconds, start, result))
        for number, result in enumerate(results)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 120)
        if worker.exitcode != 0:
            raise RuntimeError(f"{kind}: a process ended with {worker.exitcode}")
    latencies = [json.loads(result.read_text()) for result in results]
    counts = [len(own) for own in latencies]
    if (found := stored(kind, path, processes)) != sum(counts):
        raise AssertionError(f"{kind}: {sum(counts)} commits acknowledged, {found} found")
    flat = [value for own in latencies for value in own]
    return {
        "per_second": sum(counts) / seconds,
        "fairness": min(counts) / max(counts),
        "median_ms": statistics.median(flat) / 1e6,
        "p99_ms": measure.percentile(flat, 0.99) / 1e6,
        "worst_ms": max(flat) / 1e6,
    }


def prepare(kind: str, path: Path) -> None:
    """Create the file before the processes meet, so that no one measures the creation."""
    if kind == "raw":
        connection = connect(path)
        connection.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, body BLOB)")
        connection.close()
    else:
        store = everthread.open(url(path))
        thread = store.thread("hot")
        thread.state["count"] = 0
        thread.commit()
        store.close()


def stored(kind: str, path: Path, processes: int) -> int:
    """How many writes the file holds, counted both as messages and as increments."""
    if kind == "raw":
        connection = connect(path)
        rows: Any = connection.execute("SELECT count(*) FROM rows").fetchall()
        connection.close()
        return int(rows[0][0])
    store = everthread.open(url(path))
    names = ["hot"] if kind == "hot" else [f"worker-{number}" for number in range(processes)]
    threads = [store.thread(name) for name in names]
    count = sum(thread.state["count"] for thread in threads)
    if count != sum(len(thread.messages) for thread in threads):
        raise AssertionError(f"{kind}: messages and increments differ")
    store.close()
    return int(count)


def run(work: Path, seconds: float, repeats: int, seed: int) -> Report:
    """All kinds, alone and together, in shuffled order within each repeat."""
    settings = {"seconds each": seconds, "repeats": repeats, "processes": PROCESSES}
    report = Report("Eight processes on one SQLite file", {**settings, **measure.environment(work, seed)})
    rng = random.Random(seed)
    found: dict[str, list[dict[str, float]]] = {}
    for repeat in range(repeats):
        cases = [(kind, count) for kind in WRITERS for count in (1, PROCESSES)]
        rng.shuffle(cases)
        for kind, count in cases:
            folder = work / f"{kind}-{count}-{repeat}"
            # Eight processes wait for few cores by design. One alone doesn't, unless others are at work, and
            # then it loses more of the machine than eight do, which makes eight look good.
            with report.watched(f"{kind} alone, {repeat + 1}") if count == 1 else nullcontext():
                result = run_once(kind, count, folder, seconds)
            found.setdefault(f"{kind} {count}", []).append(result)
            figures = ", ".join(f"{name} {measure.number(value)}" for name, value in result.items())
            say(f"{kind} × {count}: {figures}")
    report.data = dict(found)
    rows = []
    for kind, title in TITLES.items():
        for count in (1, PROCESSES):
            runs = found[f"{kind} {count}"]
            middle = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
            worst = max(one["worst_ms"] for one in runs)
            names = ("per_second", "fairness", "median_ms", "p99_ms")
            rows.append([title, count, *(middle[name] for name in names), worst])
    for kind, title in TITLES.items():
        alone, together = found[f"{kind} 1"], found[f"{kind} {PROCESSES}"]
        pairs = zip(together, alone, strict=True)
        share = statistics.median(many["per_second"] / one["per_second"] for many, one in pairs)
        fairness = min(one["fairness"] for one in together)
        if kind == "raw":
            report.data["raw_ratio"] = share
            continue
        report.goal(f"{title}: throughput of {PROCESSES} ÷ one", share, 0.6, 0.9, at_least=True)
        report.goal(
            f"{title}: fairness, worst repeat", fairness, 0.4, 0.8, at_least=True, note="min ÷ max commits"
        )
    header = ["", "processes", "commits/s", "fairness", "median ms", "p99 ms", "worst ms"]
    note = f"Medians over the repeats; INSERT under flock: {report.data['raw_ratio']:.2f} of one process."
    report.table("Throughput", note, header, rows)
    return report


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 second each, 2 repeats")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument(
        "--work", help="directory for scratch files, on the disk to be measured (default /var/tmp)"
    )
    options = parser.parse_args()
    seconds, repeats = (1.0, 2) if options.quick else (options.seconds, options.repeats)
    with measure.workplace(options.work) as work:
        report = run(work, seconds, repeats, options.seed)
    report.write(options.out, "processes")
    print(report.markdown())


if __name__ == "__main__":
    main()
