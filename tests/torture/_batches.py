"""Runs numbered batches in several processes and reports as they finish."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

REPORT_EVERY_S = 10.0


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every long run has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=None, help="replay a run; printed at the start")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run at once")
    default = Path(tempfile.gettempdir(), "everthread-torture")
    parser.add_argument("--keep", type=Path, default=default, help="where the stores that failed are kept")
    return parser


def seed_of(options: argparse.Namespace) -> int:
    """The seed given or a fresh one, printed. Batch ``n`` of a run has this seed + ``n``."""
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else int(options.seed)
    print(f"seed {seed}, {options.jobs} jobs", flush=True)
    return seed


def run_batches(function: Callable[..., T], batches: Iterable[tuple[object, ...]], jobs: int) -> Iterator[T]:
    """Yield each batch's result as it comes. Leaving the loop early starts no further batches. So does
    Ctrl-C: what was found until then is reported."""
    waiting = iter(batches)
    # Spawned, so that no process inherits another's open database.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: set[Future[T]] = set()
        while True:
            # A few more than there are processes, so that none of them waits for the next batch.
            for batch in itertools.islice(waiting, 2 * jobs - len(running)):
                running.add(pool.submit(function, *batch))
            if not running:
                return
            try:
                done, running = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                print("Stopped; this is what was done until now.", flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
                return
            for future in done:
                yield future.result()


class Progress:
    """Prints a line now and then: how many of how many, and how fast."""

    def __init__(self, total: int, what: str) -> None:
        self._total = total
        self._what = what
        self._started = self._reported = time.monotonic()

    def report(self, done: int, details: str, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._reported < REPORT_EVERY_S:
            return
        self._reported = now
        rate = done / max(now - self._started, 1e-9)
        print(f"{done:,} of {self._total:,} {self._what}, {rate:,.0f}/s, {details}", flush=True)


def finish(failures: list[str], replay: str) -> int:
    """Print the failures and how to see them again; return the exit status."""
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    if failures:
        print(f"Replay with: {replay}", file=sys.stderr)
    return 1 if failures else 0
