"""Recovers damaged payloads of working states, as many as one likes.

python -m tests.torture.heal --payloads 1000000
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of
from tests.unit.working.mutating import check

PER_BATCH = 1_000


def heal_batch(first: int) -> tuple[int, list[str]]:
    """Check payloads ``first`` …; how many, and what failed."""
    failures = []
    with tempfile.TemporaryDirectory(prefix="everthread-heal-") as folder:
        os.environ["HOME"] = folder
        os.environ["EVERTHREAD_URL"] = f"sqlite:///{folder}/everthread.db"
        for number in range(first, first + PER_BATCH):
            try:
                check(number, save=number % 100 == 0)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                failures.append(f"payload {number}: {traceback.format_exception_only(error)[-1].strip()}")
    return PER_BATCH, failures


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--payloads", type=int, default=1_000_000)
    parser.add_argument("--only", type=int, default=None, help="check one payload again, by its number")
    options = parser.parse_args()
    if options.only is not None:
        check(options.only, save=False)
        return 0
    seed = seed_of(options)
    batches = -(-options.payloads // PER_BATCH)
    progress = Progress(batches * PER_BATCH, "payloads")
    done, failures = 0, []
    starts = ((seed * 10**6 + number * PER_BATCH,) for number in range(batches))
    for count, failed in run_batches(heal_batch, starts, options.jobs):
        done += count
        failures += failed
        progress.report(done, f"{len(failures)} failed")
    progress.report(done, f"{len(failures)} failed", force=True)
    return finish(failures[:20], "python -m tests.torture.heal --only NUMBER")


if __name__ == "__main__":
    sys.exit(main())
