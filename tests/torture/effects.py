"""Damages a store with a ledger of effects anywhere in its files: none may run twice in silence.

python -m tests.torture.effects                              # some of every kind, on every engine
python -m tests.torture.effects --engine sqlite --cases 5000 --seed 7
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crash.lost_effects import BILLS, ENGINES, build, check
from tests.crash.workload import memory_directory
from tests.kit.damage import Files, Wound, cuts, flips, read_files, swaps, write_files
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

CASES = 3_000
CASES_PER_BATCH = 50


def run(engine: str, files: Files, cases: list[Wound]) -> tuple[Counter[str], list[str]]:
    """The cases of one batch: what calling the effects again came to, and what went wrong."""
    logging.disable()
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for number, wound in enumerate(cases):
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            folder = Path(directory, "damaged")
            folder.mkdir(mode=0o700)
            write_files(folder, wound.apply(files))
            try:
                outcomes.update(check(engine, folder, f"{engine}: {wound}", BILLS, ENGINES[number % 2]))
            except Exception as error:
                failures.append(f"{engine}: {wound}: {error!r}")
    return outcomes, failures


def _build(engine: str, folder: Path) -> None:
    """In a process that is gone afterwards: its lease is nobody's."""
    pid = os.fork()
    if pid == 0:
        build(engine, folder)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--engine", choices=ENGINES, default=None)
    parser.add_argument("--cases", type=int, default=CASES, help="so many on each engine")
    options = parser.parse_args()
    seed = seed_of(options)
    batches: list[tuple[str, Files, list[Wound]]] = []
    directory = Path(tempfile.mkdtemp(dir=memory_directory()))
    try:
        for engine in (options.engine,) if options.engine else ENGINES:
            _build(engine, directory / engine)
            files = read_files(directory / engine)
            page = 4096 if engine == "sqlite" else 512
            # One whose end is cut off is an older one, whole: nothing but the lease can tell.
            cut = [wound for wound in cuts(files) if not wound.file.endswith((".jsonl", "-wal"))]
            others = [*cut, *swaps(files, size=page, seed=seed)]
            every = [*others, *flips(files, seed=seed)]
            cases = random.Random(seed).sample(every, min(len(every), options.cases))
            starts = range(0, len(cases), CASES_PER_BATCH)
            batches += [(engine, files, cases[start : start + CASES_PER_BATCH]) for start in starts]
    finally:
        shutil.rmtree(directory)
    return _report(batches, options.jobs, seed)


def _report(batches: list[tuple[str, Files, list[Wound]]], jobs: int, seed: int) -> int:
    progress = Progress(sum(len(cases) for _, _, cases in batches), "cases")
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    done = 0
    for (seen, broken), _ in zip(run_batches(run, batches, jobs), batches, strict=True):
        done += CASES_PER_BATCH
        outcomes.update(seen)
        failures += broken
        for text in broken:
            print(f"broken: {text}", flush=True)
        progress.report(done, f"{len(failures)} broken")
    progress.report(done, f"{dict(outcomes)}, {len(failures)} broken", force=True)
    return finish(failures, f"python -m tests.torture.effects --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
