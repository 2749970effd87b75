"""Damages a small store in every way: one bit in every byte, cuts, swapped pages; as often as one likes.

python -m tests.torture.corrupt                         # every engine, every byte, once
python -m tests.torture.corrupt --engine file --seed 7  # other bits of the same bytes
python -m tests.torture.corrupt --seed 7 --part 2/5     # the second of five parts of such a run
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.crash.corruption import ENGINES, SMALL_COMMITS, Engine, Sample, Tally, build, run_cases, wounds
from tests.crash.workload import memory_directory
from tests.kit.damage import Wound
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

CASES_PER_BATCH = 400
#: Of these many are alike, and what is known of one isn't known to the next batch.
CASES_PER_BATCH_WAL = 2_000
SHOWN_MAX = 30

Batch = tuple[Sample, list[Wound], bool]


def run(sample: Sample, cases: list[Wound], deep: bool) -> Tally:
    """The cases of one batch."""
    tally = Tally()
    run_cases(sample, cases, tally, deep=deep, quick=True)
    return tally


def batches(directory: Path, engines: tuple[Engine, ...], seed: int, deep: bool) -> Iterator[Batch]:
    for engine in engines:
        sample = build(directory / engine, engine, SMALL_COMMITS)
        every = wounds(sample, seed)
        kinds = Counter(wound.kind for wound in every)
        print(f"{engine}: {sum(map(len, sample.files.values())):,} bytes, {dict(kinds)}", flush=True)
        # Mixed, so that each batch holds something of everything.
        random.Random(seed).shuffle(every)
        count = CASES_PER_BATCH_WAL if engine == "sqlite-wal" else CASES_PER_BATCH
        for start in range(0, len(every), count):
            yield sample, every[start : start + count], deep


def part(text: str) -> tuple[int, int]:
    """``2/5`` as two numbers."""
    number, _, count = text.partition("/")
    found = int(number), int(count)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(text)
    return found


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--engine", choices=ENGINES, default=None)
    parser.add_argument("--cases", type=int, default=None, help="so many, drawn from all, not every one")
    parser.add_argument("--deep", action="store_true", help="read every version of every case")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="K/N", help="the K-th of N parts")
    options = parser.parse_args()
    seed = seed_of(options)
    engines = (options.engine,) if options.engine else ENGINES
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        return _run_all(list(batches(Path(directory), engines, seed, options.deep)), options, seed)


def _run_all(work: list[Batch], options: argparse.Namespace, seed: int) -> int:
    if options.cases is not None:
        work = random.Random(seed).sample(work, min(len(work), -(-options.cases // CASES_PER_BATCH)))
    work = work[options.part[0] - 1 :: options.part[1]]
    progress = Progress(sum(len(cases) for _, cases, _ in work), "cases")
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for tally in run_batches(run, work, options.jobs):
        outcomes.update(tally.outcomes)
        failures += tally.broken
        progress.report(sum(outcomes.values()), f"{dict(outcomes)}, {len(failures)} broken")
    progress.report(sum(outcomes.values()), f"{dict(outcomes)}, {len(failures)} broken", force=True)
    return finish(failures[:SHOWN_MAX], "python -m tests.torture.corrupt --engine ENGINE --seed SEED")


if __name__ == "__main__":
    sys.exit(main())
