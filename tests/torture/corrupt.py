"""Damages a small store in every way: one bit in every byte, cuts, swapped pages; as often as one likes.

python -m tests.torture.corrupt                         # every engine, every byte, once
python -m tests.torture.corrupt --engine file --seed 7  # other bits of the same bytes
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash.corruption import ENGINES, Tally, build, run_cases, wounds
from tests.crash.workload import memory_directory
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

CASES_PER_BATCH = 400
SHOWN_MAX = 30


def run(engine: Any, seed: int, start: int, deep: bool) -> Tally:
    """The cases of one batch. Each process makes the store itself: it is the same but for random ids."""
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        sample = build(Path(directory, "sample"), engine)
        every = wounds(sample, seed)
        # Mixed, so that each batch holds something of everything.
        random.Random(seed).shuffle(every)
        run_cases(sample, every[start : start + CASES_PER_BATCH], tally, deep=deep)
    return tally


def batches(engines: tuple[str, ...], seed: int, deep: bool) -> Iterator[tuple[object, ...]]:
    for engine in engines:
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            total = len(wounds(build(Path(directory, "sample"), engine), seed))  # type: ignore[arg-type]
        yield from ((engine, seed, start, deep) for start in range(0, total, CASES_PER_BATCH))


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--engine", choices=ENGINES, default=None)
    parser.add_argument("--cases", type=int, default=None, help="so many, drawn from all, not every one")
    parser.add_argument("--deep", action="store_true", help="read every version of every case")
    options = parser.parse_args()
    seed = seed_of(options)
    work = list(batches((options.engine,) if options.engine else ENGINES, seed, options.deep))
    if options.cases is not None:
        work = random.Random(seed).sample(work, min(len(work), -(-options.cases // CASES_PER_BATCH)))
    progress = Progress(len(work) * CASES_PER_BATCH, "cases")
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    misread: list[str] = []
    for tally in run_batches(run, work, options.jobs):
        outcomes.update(tally.outcomes)
        failures += tally.broken
        misread += tally.misread
        progress.report(sum(outcomes.values()), f"{dict(outcomes)}, {len(failures)} broken")
    progress.report(sum(outcomes.values()), f"{dict(outcomes)}, {len(failures)} broken", force=True)
    for text in misread[:SHOWN_MAX]:
        print(f"misread: {text}")
    return finish(failures[:SHOWN_MAX], "python -m tests.torture.corrupt --engine ENGINE --seed SEED")


if __name__ == "__main__":
    sys.exit(main())
