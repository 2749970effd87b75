"""Erasure: what sealing adds to a save, what one of many subjects costs to erase, and how the purge grows.

    python -m bench.erase [--subjects 100000] [--seed 1] [--out bench/results] [--quick]

Savers of a plain and of a sealed value of 1 KB take turns in random order, on SQLite: without waiting for the
disk (what is compared is work, and a sync would hide it), and with a sync for each save. For both the clock
on the wall and the processor's time of the thread are told. Then the key of one of many subjects is
destroyed, in each kind of keyring, and the purge of stores of several sizes is timed while another process
reads.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import everthread
from everthread.keyring.format import subject_token
from everthread.keyring.keyring import FileKeyring, Keyring, StoreKeyring
from everthread.keyring.parcel import KeyParcel

from . import measure
from .measure import Report, say

SAVES = 4_000
VALUE_BYTES = 1_000
PURGED_MB = (10, 40, 160)

#: Reads as fast as it can, each time from the start, and tells the longest time that one took.
READER = """
    import sys, time
    import everthread
    longest, count = 0.0, 0
    with everthread.open(sys.argv[1], keyring="memory:", durability="process") as store:
        print("ready", flush=True)
        until = None
        import select
        while not select.select([sys.stdin], [], [], 0)[0]:
            started = time.perf_counter()
            store.thread("other").state.plain()
            store.core.head_cache.clear()
            longest, count = max(longest, time.perf_counter() - started), count + 1
    print(longest, count, flush=True)
"""


class Saver:
    """One thread: replace a value in the document, commit."""

    def __init__(self, work: Path, name: str, durability: str, rng: random.Random) -> None:
        self._store = everthread.open(
            f"sqlite:///{work}/{name}-{durability}.db", keyring=str(work / "keys"), durability=durability
        )
        self._thread = self._store.thread("a")
        self._sealed = name == "sealed"
        self._rng = rng
        self.value = ""

    def prepare(self) -> None:
        self.value = self._rng.randbytes(VALUE_BYTES // 2).hex()

    def save(self) -> None:
        value: Any = everthread.Personal("ann", self.value) if self._sealed else self.value
        self._thread.state["value"] = value
        self._thread.commit()

    def close(self) -> None:
        self._store.close()


def report_sealing(report: Report, work: Path, saves: int, seed: int) -> None:
    rows: list[list[object]] = []
    for durability in ("process", "full"):
        wall, processor = sealing_medians(work, saves, durability, seed)
        for clock, medians in (("wall", wall), ("processor", processor)):
            added = medians["sealed"] - medians["plain"]
            say(f"{durability}, {clock}: {medians['plain']:.0f} µs plain, {medians['sealed']:.0f} µs sealed")
            rows.append([durability, clock, medians["plain"], medians["sealed"], added])
            report.goal(f"sealing 1 KB adds to a save ({durability}, {clock})", added, 30.0, 20.0, unit=" µs")
    report.table(
        "A save with a value of 1 KB",
        "Medians in µs.",
        ["durability", "clock", "plain", "sealed", "added"],
        [[*row[:2], *(f"{each:.1f}" for each in row[2:])] for row in rows],
    )


def sealing_medians(
    work: Path, saves: int, durability: str, seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Median µs of a plain and of a sealed save, by the clock and by the processor."""
    rng = random.Random(seed)
    savers = {name: Saver(work, name, durability, rng) for name in ("plain", "sealed")}
    wall: dict[str, list[int]] = {name: [] for name in savers}
    processor: dict[str, list[int]] = {name: [] for name in savers}
    for _ in range(saves):
        for name in rng.sample(sorted(savers), len(savers)):
            saver = savers[name]
            saver.prepare()
            used, started = time.thread_time_ns(), time.perf_counter_ns()
            saver.save()
            wall[name].append(time.perf_counter_ns() - started)
            processor[name].append(time.thread_time_ns() - used)
    for saver in savers.values():
        saver.close()
    found = [
        {name: statistics.median(each) / 1e3 for name, each in taken.items()} for taken in (wall, processor)
    ]
    return found[0], found[1]


def fill_keyring(keyring: Keyring, subjects: int) -> None:
    """Many keys at once: one by one, each waits for the disk."""
    token_key = os.urandom(32)
    names = (f"subject {number}" for number in range(subjects))
    keys = [(os.urandom(16), subject_token(token_key, name), os.urandom(32)) for name in names]
    keyring.take_in([KeyParcel(os.urandom(16), token_key, keys)])


def report_destruction(report: Report, work: Path, subjects: int) -> None:
    rows: list[list[object]] = []
    kinds: dict[str, Keyring] = {
        "file": FileKeyring(work / "many"),
        "sqlite": StoreKeyring(f"sqlite:///{work}/many.db"),
    }
    for name, keyring in kinds.items():
        fill_keyring(keyring, subjects)
        opening = time.perf_counter()
        keyring.key_ids("subject 7")
        started = time.perf_counter()
        assert len(keyring.destroy(f"subject {subjects // 2}")) == 1
        took = time.perf_counter() - started
        assert keyring.alive() == subjects - 1
        rows.append([name, f"{started - opening:.2f}", f"{took:.2f}"])
        say(f"{name}: one of {subjects:,} destroyed and the others wrapped anew in {took:.2f} s")
        report.goal(f"destroy one of {subjects:,}, re-wrap the rest ({name})", took, 2.0, 1.0, unit=" s")
        keyring.close()
    report.table("One of many subjects", "", ["keyring", "reading it, s", "destroying one, s"], rows)


def report_purges(report: Report, work: Path, sizes: tuple[int, ...]) -> None:
    rows: list[list[object]] = []
    rates = []
    for megabytes in sizes:
        path = work / f"purge-{megabytes}.db"
        url = f"sqlite:///{path}"
        with everthread.open(url, keyring=str(work / "keys"), durability="process") as store:
            _fill_store(store, megabytes)
            size = path.stat().st_size / 1e6
            with _reading(url) as reader:
                started = time.perf_counter()
                steps: list[float] = []
                erased = store.erase("ann", timeout_s=60.0, progress=lambda _, part, s=steps: s.append(part))
                took = time.perf_counter() - started
                longest = reader.stop()
            assert erased, erased
        rates.append(took / size)
        rows.append(
            [f"{size:.0f}", f"{took:.2f}", f"{took / size * 1e3:.1f}", f"{longest * 1e3:.0f}", len(steps)]
        )
        say(f"{size:.0f} MB: erased in {took:.2f} s; another reader waited {longest * 1e3:.0f} ms at most")
    report.table(
        "Erasing one person from a store of so many megabytes, while another process reads",
        "The purge writes the whole database once and looks through it.",
        ["MB", "s", "ms per MB", "longest read of another process, ms", "times progress was told"],
        rows,
    )
    report.goal("time per MB, largest ÷ smallest store", rates[-1] / rates[0], 2.0, 1.3)


def _fill_store(store: everthread.Store, megabytes: int) -> None:
    rng = random.Random(megabytes)
    thread = store.thread("a")
    other = store.thread("other")
    other.state["x"] = 1
    other.commit()
    for number in range(megabytes):
        for part in range(10):
            thread.messages.append({"id": f"{number} {part}", "content": rng.randbytes(50_000).hex()})
        thread.messages.append(
            {"id": f"{number}", "content": everthread.Personal("ann", rng.randbytes(400).hex())}
        )
        thread.commit()


class _reading:  # noqa: N801 - read as a word
    """Another process that reads for the length of a block."""

    def __init__(self, url: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(READER), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __enter__(self) -> _reading:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "ready\n"
        return self

    def stop(self) -> float:
        """Seconds that its longest read took."""
        told, _ = self._child.communicate("\n", timeout=60)
        return float(told.split()[0])

    def __exit__(self, *error: object) -> None:
        self._child.kill()
        self._child.wait()


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.erase", description=__doc__.splitlines()[0])
    parser.add_argument("--subjects", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="fewer saves, smaller stores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for scratch files, on the disk to be measured")
    options = parser.parse_args()
    with measure.workplace(options.work) as work:
        settings = {"subjects": f"{options.subjects:,}", **measure.environment(work, options.seed)}
        report = Report("Erasure", settings)
        with report.watched("sealing"):
            report_sealing(report, work, SAVES // 8 if options.quick else SAVES, options.seed)
        with report.watched("keyrings"):
            report_destruction(report, work, options.subjects)
        with report.watched("purging"):
            report_purges(report, work, PURGED_MB[:2] if options.quick else PURGED_MB)
    report.write(options.out, "erase")
    print(report.markdown())


if __name__ == "__main__":
    main()
