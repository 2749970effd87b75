"""The file store: what a save costs beside appending the same bytes to a file, and what opening reads.

    python -m bench.files [--messages 20000] [--seed 1] [--out bench/results] [--quick]

In every round the raw append (write and fdatasync of as many bytes as the store's journal grew by in the
round before) and the savers take turns in random order. Then threads of several lengths are opened, each by a
store of its own, and the bytes that this reads are counted beside the time.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

import everthread
from everthread.stores.files import disk

from . import measure
from .measure import Report, Samples, say, summary, take_turns
from .messages import Message, Transcript
from .savers import THREAD, first_document

LENGTHS = (100, 1_000, 10_000)
NAMES = {"raw": "append + fdatasync", "core": "file store", "all": "file store + metadata, key, id"}


class FileSaver:
    """One thread of a file store: append a message, change one value of the document, commit.

    With `everything` each message has an id and each commit carries metadata and an idempotency key.
    """

    def __init__(self, path: Path, *, everything: bool = False) -> None:
        self._path = path
        self._store = everthread.open(f"file://{path}")
        self._thread = self._store.thread(THREAD)
        self._everything = everything
        self._step = 0
        self._message: Message = {}
        self._options: dict[str, Any] = {}
        for key, value in first_document().items():
            self._thread.state[key] = value

    def prepare(self, step: int, message: Message) -> None:
        self._step, self._message = step, dict(message)
        if self._everything:
            self._message["id"] = f"message-{step}"
            self._options = {"metadata": {"run": "run-7", "step": step}, "key": f"step-{step}"}

    def save(self) -> None:
        self._thread.messages.append(self._message)
        self._thread.state["step"] = self._step
        self._thread.commit(**self._options)

    def journal(self) -> Path:
        return max(self._path.glob("data/threads/*/journal-*.jsonl"))

    def close(self) -> None:
        self._store.close()


class RawAppend:
    """The floor: the same number of bytes at the end of a file, durable."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.body = os.urandom(1024)

    def save(self) -> None:
        os.write(self._file, self.body)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def grow(work: Path, steps: int, seed: int) -> tuple[Samples, dict[str, Any]]:
    """Save messages with every contender in turn; the times, and what came of it."""
    rng = random.Random(seed)
    raw = RawAppend(work / "raw")
    savers = {"core": FileSaver(work / "core"), "all": FileSaver(work / "all", everything=True)}
    actions = {"raw": raw.save, **{name: saver.save for name, saver in savers.items()}}
    samples: Samples = {}
    payload, known = 0, (Path(), 0)
    for step, message in zip(range(1, steps + 1), Transcript(seed), strict=False):
        payload += len(msgspec.json.encode(message))
        for saver in savers.values():
            saver.prepare(step, message)
        take_turns(rng, actions, samples)
        path = savers["core"].journal() if step % 500 == 1 else known[0]
        size = path.stat().st_size
        if path == known[0] and size > known[1]:
            raw.body = os.urandom(size - known[1])
        known = (path, size)
        if step % max(1, steps // 10) == 0:
            latest = {name: statistics.median(values[-500:]) / 1e3 for name, values in samples.items()}
            say(f"{step:,}: " + ", ".join(f"{name} {value:.0f} µs" for name, value in latest.items()))
    raw.close()
    for saver in savers.values():
        saver.close()
    return samples, {"payload": payload, **{name: _bytes(work / name) for name in savers}}


def _bytes(folder: Path) -> dict[str, int]:
    """Bytes by what they are: truth, derived, view."""
    found = {"journal": 0, "derived": 0, "view": 0}
    for path in folder.rglob("*"):
        if path.is_file():
            kind = {".jsonl": "journal", ".index": "derived", ".packs": "derived"}.get(path.suffix, "view")
            found[kind] += path.stat().st_size
    return found


def report_saves(report: Report, samples: Samples, told: dict[str, Any]) -> None:
    raw = summary(samples["raw"])
    rows: list[list[object]] = []
    for name, title in NAMES.items():
        own = summary(samples[name])
        first, last = measure.deciles(samples[name])
        report.data[name] = {**own, "first_decile_us": first / 1e3, "last_decile_us": last / 1e3}
        sizes = told.get(name, {})
        rows.append([
            title, f"{own['median_us']:.0f} ({own['median_us'] / raw['median_us']:.2f})",
            f"{own['mean_us']:.0f} ({own['mean_us'] / raw['mean_us']:.2f})", own["p99_us"],
            f"{first / 1e3:.0f} → {last / 1e3:.0f}",
            *(f"{sizes.get(kind, 0) / told['payload']:.2f}" for kind in ("journal", "derived")),
        ])  # fmt: skip
    header = ["", "median µs (× raw)", "mean µs (× raw)", "p99 µs", "first → last decile µs"]
    report.table(
        f"Saves, full durability, {len(samples['raw']):,} messages",
        f"JSON payload {told['payload'] / 1e6:.1f} MB.",
        [*header, "journal ÷ JSON", "derived ÷ JSON"],
        rows,
    )
    for name, must, best in (("core", 2.0, 1.5), ("all", 2.0, 1.5)):
        own = report.data[name]
        note = f"{own['median_us']:.0f} µs, raw {raw['median_us']:.0f}"
        report.goal(
            f"{name}: save median ÷ raw append", own["median_us"] / raw["median_us"], must, best, note=note
        )
    raw_first, raw_last = measure.deciles(samples["raw"])
    own = report.data["core"]
    growth = own["last_decile_us"] / own["first_decile_us"] / (raw_last / raw_first)
    report.goal("core: last ÷ first decile, ÷ raw's own", growth, 1.15, 1.05)


def report_opens(report: Report, work: Path, seed: int) -> None:
    """Open, read the document and the last 20 messages: time and bytes, by length."""
    rows: list[list[object]] = []
    for length in LENGTHS:
        folder = work / f"length-{length}"
        store = everthread.open(f"file://{folder}", durability="process")
        thread = store.thread(THREAD)
        for number, message in zip(range(length), Transcript(seed), strict=False):
            thread.messages.append(dict(message))
            thread.state["step"] = number
            thread.commit()
        store.close()
        times, counted = _open(folder)
        rows.append([f"{length:,}", times, counted])
        report.data[f"open-{length}"] = {"median_us": times, "bytes": counted}
        say(f"opening {length:,}: {times:.0f} µs, {counted:,} bytes read")
    report.table(
        "Opening: document and last 20 messages", "", ["messages", "median µs", "bytes read, worst"], rows
    )
    first, last = (report.data[f"open-{length}"]["bytes"] for length in (LENGTHS[0], LENGTHS[-1]))
    report.goal("bytes read to open, longest ÷ shortest", last / first, 3.0, 2.0, timed=False)


def _open(folder: Path) -> tuple[float, int]:
    counted = 0
    pread = os.pread

    def counting(file: int, length: int, offset: int) -> bytes:
        nonlocal counted
        data = pread(file, length, offset)
        counted += len(data)
        return data

    def once() -> None:
        with everthread.open(f"file://{folder}", durability="process") as store:
            thread = store.thread(THREAD)
            thread.state.plain()
            assert len(thread.messages[-20:]) == 20

    times = []
    for _ in range(30):
        started = time.perf_counter()
        once()
        times.append((time.perf_counter() - started) * 1e6)
    disk.os.pread = counting  # type: ignore[attr-defined]
    try:
        once()
    finally:
        disk.os.pread = pread  # type: ignore[attr-defined]
    return statistics.median(times), counted


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="2,000 messages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", help="directory for scratch files, on the disk to be measured")
    options = parser.parse_args()
    messages = 2_000 if options.quick else options.messages
    with measure.workplace(options.work) as work:
        report = Report(
            "File store", {"messages": f"{messages:,}", **measure.environment(work, options.seed)}
        )
        with report.watched("saves"):
            report_saves(report, *grow(work, messages, options.seed))
        with report.watched("opening"):
            report_opens(report, work, options.seed)
    report.write(options.out, "files")
    print(report.markdown())


if __name__ == "__main__":
    main()
