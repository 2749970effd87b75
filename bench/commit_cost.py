"""What a save costs besides the disk, and how much of that anybody would pay who writes the same.

    python -m bench.commit_cost [--saves 3000] [--seed 1] [--out bench/results]

What a save computes takes much longer after the disk has been waited for than in a warm loop. Here the disk
is one in memory, and the wait is put in its place three ways, before each save and again where the disk would
be waited for: *busy* computes for as long as a sync takes, *asleep* sleeps for as long, *emptied* replaces
what is in the caches. What is left without the wait is the processor's part of a save on a machine whose
processor stays warm, or doesn't, while the disk works. Beside Everthread runs *the floor*: one flat function
that writes the same rows with the same checks in SQLite, and does nothing else: no handle, no document, no
conflicts, no interrupts, nothing remembered for the next reader. The functions that each calls are counted as
well. Then all of them save to the disk, in random order: what the floor takes there beside a raw insert is
what the format and its one statement cost in Python, whoever writes them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import apsw
import msgspec

from everthread.stores.sqlite import schema
from everthread.versions import Version

from . import measure
from .measure import Report, Samples, take_turns
from .messages import Message, Transcript
from .savers import EverthreadSaver, RawRows, Saver

TITLES = {
    "raw": "raw insert",
    "floor": "floor",
    "core": "Everthread",
    "all": "Everthread + metadata, key, id",
}
#: More than the caches of a core, less than what all cores share.
_CACHE_BYTES = 3 << 20
#: About as long as a sync takes.
_SYNC_S = 130e-6

_pack = msgspec.msgpack.Encoder().encode
_pack_row = struct.Struct("<qq").pack
_FORMAT = b"\1"
_FORMAT_SUM = crc32(_FORMAT)


class Floor(EverthreadSaver):
    """The rows that Everthread would write, written by one function."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.prepare(0, {"role": "user", "content": "the first version makes the line"})
        super().save()
        head = self.thread.handle.head
        assert head is not None
        self.connection = writer_of(self)
        self.line, self.seq, self.hash, self.id = 1, head.seq, head.hash, head.version.id
        self.count = 1

    def save(self) -> None:
        item_id = f"0123456789abcdef0123{self.seq:x}"
        item = _pack({**self.message, "id": item_id})
        print_ = sha256(item_id.encode()).digest()[:4]
        splice = ["messages", self.count, 0, 1, self.count, print_]
        change = _pack([[(0, ("step",), self.step)], [splice]])
        now_us = time.time_ns() // 1000
        head = _pack((0, now_us, None, None, None, None, None, None))
        payload = _pack((head, change, [b"\x91" + item]))
        body = _FORMAT + crc32(payload, _FORMAT_SUM).to_bytes(4, "little") + payload
        digest = sha256(self.hash + sha256(body).digest()).digest()
        seq = self.seq + 1
        row = self.line << schema.SEQ_BITS | seq
        sum_ = crc32(digest, crc32(_pack_row(row, seq * 4)))
        self.connection.execute(schema.APPEND, (row, 0, digest, None, body, self.hash, sum_))
        if self.connection.changes() != 1:
            raise AssertionError("somebody else has written")
        version = Version(seq=seq, id=f"{seq}-{digest[:12].hex()}", parent=self.id, at_us=now_us)
        self.seq, self.hash, self.id, self.count = seq, digest, version.id, self.count + 1


def writer_of(saver: EverthreadSaver) -> apsw.Connection:
    """The connection that a saver's store writes through."""
    backend: Any = saver.store.core.backend
    writer: apsw.Connection = backend._connections._writer
    return writer


def python_calls(action: Callable[[], object]) -> int:
    """How many functions, of Python and of C, are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    # One is the end of the counting.
    return calls - 1


def contenders(work: Path) -> tuple[dict[str, Saver], list[apsw.Connection]]:
    """Those who save, and the connections they write through."""
    raw, floor = RawRows(work / "raw.db"), Floor(work / "floor.db")
    core, full = EverthreadSaver(work / "core.db"), EverthreadSaver(work / "all.db", everything=True)
    connections = [raw.connection, *map(writer_of, (floor, core, full))]
    return {"raw": raw, "floor": floor, "core": core, "all": full}, connections


def run_on_disk(report: Report, work: Path, saves: int, seed: int) -> None:
    """Save with all of them in random order, each save synced."""
    savers, _ = contenders(work)
    rng = random.Random(seed)
    samples: Samples = {}
    actions = {name: saver.save for name, saver in savers.items()}
    with report.watched("saves on disk"):
        for step, message in zip(range(1, saves + 1), Transcript(seed), strict=False):
            for saver in savers.values():
                saver.prepare(step, message)
            take_turns(rng, actions, samples)
    for saver in savers.values():
        saver.close()
    unit = statistics.median(samples["raw"]) / 1e3
    rows = []
    for name, title in TITLES.items():
        median = statistics.median(samples[name]) / 1e3
        report.data[name]["on_disk_us"] = median
        rows.append([title, median, median - unit, f"{median / unit:.2f}"])
    report.table("With the disk", "Median of durable saves.", ["", "µs", "over raw µs", "× raw"], rows)


def waits() -> dict[str, Callable[[], object]]:
    """What is done where the disk would be waited for."""
    # Source and target of a copy that leaves nothing else in the caches.
    target, source = bytearray(_CACHE_BYTES), bytes(_CACHE_BYTES)

    # One call that takes so long, hardly any memory, and no system call.
    compute = partial(pbkdf2_hmac, "sha256", b"", b"")
    started = time.perf_counter()
    compute(100_000)
    rounds = int(100_000 * _SYNC_S / (time.perf_counter() - started))

    return {
        "busy": lambda: compute(rounds),
        "asleep": lambda: time.sleep(_SYNC_S / 2),  # and half as long until it is awake
        "emptied": lambda: target.__setitem__(slice(None), source),
    }


def run_in_memory(
    work: Path, wait: Callable[[], object], saves: int, seed: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Microseconds of a save without its waits, and the functions called, by who saves."""
    savers, connections = contenders(work)
    waited_ns = 0

    def paused() -> bool:
        nonlocal waited_ns
        started = time.perf_counter_ns()
        wait()
        waited_ns += time.perf_counter_ns() - started
        return False

    for connection in connections:
        connection.set_commit_hook(paused)
    rng = random.Random(seed)
    spent: dict[str, list[int]] = {name: [] for name in savers}
    calls: dict[str, int] = {}
    message: Message
    for step, message in zip(range(1, saves + 1), Transcript(seed), strict=False):
        for name in rng.sample(list(savers), len(savers)):
            savers[name].prepare(step, message)
            if step == saves // 2 + 7:
                calls[name] = python_calls(savers[name].save)
                continue
            paused()
            waited_ns = 0
            started = time.perf_counter_ns()
            savers[name].save()
            spent[name].append(time.perf_counter_ns() - started - waited_ns)
    for saver in savers.values():
        saver.close()
    return {name: statistics.median(values) / 1e3 for name, values in spent.items()}, calls


def run(work: Path, saves: int, seed: int) -> Report:
    """Save with all of them in random order, and report."""
    report = Report("What a save costs besides the disk", {"saves": saves, **measure.environment(work, seed)})
    for name in TITLES:
        report.data[name] = {}
    columns = []
    for kind, wait in waits().items():
        folder = work / kind
        folder.mkdir()
        with report.watched(kind):
            medians, calls = run_in_memory(folder, wait, saves, seed)
        for name, median in medians.items():
            report.data[name] |= {f"{kind}_us": median, "calls": calls[name]}
        columns.append(medians)
    rows = []
    for name, title in TITLES.items():
        over = [one[name] - one["raw"] for one in columns]
        rows.append([title, columns[0]["raw"] if name == "raw" else "", *over, calls[name]])
    note = (
        "Processor time of one save over a raw insert's, by what the processor did in the meantime. Medians."
    )
    header = ["", "µs", *(f"over raw µs, {kind}" for kind in waits()), "calls"]
    report.table("Besides the disk", note, header, rows)
    return report


def main() -> None:
    """Parse the command line, run, write the report."""
    parser = argparse.ArgumentParser(prog="python -m bench.commit_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=measure.RESULTS)
    parser.add_argument("--work", default="/dev/shm", help="directory for scratch files, in memory")
    parser.add_argument("--disk", help="the same on the disk to be measured (default /var/tmp)")
    options = parser.parse_args()
    with measure.workplace(options.work) as work:
        report = run(work, options.saves, options.seed)
    with measure.workplace(options.disk) as work:
        run_on_disk(report, work, options.saves, options.seed)
    report.write(options.out, "commit_cost")
    print(report.markdown())


if __name__ == "__main__":
    main()
