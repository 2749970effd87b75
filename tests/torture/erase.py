"""Erases somebody from random histories, as many as one likes, on every embedded store.

python -m tests.torture.erase --histories 1000
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

from tests.crash.workload import memory_directory
from tests.properties.test_erasure import erase_from_a_history
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

KINDS = ("sqlite", "files", "memory")


def erase_one(kind: str, seed: int, steps: int) -> str | None:
    """One history; what failed."""
    # In memory where there is such a place: nothing here is about what a disk does.
    with tempfile.TemporaryDirectory(prefix="everthread-erase-", dir=memory_directory()) as folder:
        os.environ["HOME"] = folder
        os.environ["EVERTHREAD_URL"] = f"sqlite:///{folder}/everthread.db"
        place = Path(folder, "place")
        place.mkdir()
        try:
            erase_from_a_history(kind, seed, place, steps)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return f"{kind}, history {seed}: {traceback.format_exception_only(error)[-1].strip()[:2000]}"
    return None


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--histories", type=int, default=1_000, help="so many for each store")
    parser.add_argument("--steps", type=int, default=60, help="what is done in each of them")
    parser.add_argument("--only", default=None, help="one history again: KIND:NUMBER")
    options = parser.parse_args()
    if options.only is not None:
        kind, _, number = options.only.partition(":")
        failed = erase_one(kind, int(number), options.steps)
        print(failed or "nothing is left")
        return 1 if failed else 0
    seed = seed_of(options)
    batches = ((kind, seed + number, options.steps) for number in range(options.histories) for kind in KINDS)
    progress = Progress(options.histories * len(KINDS), "histories")
    done, failures = 0, []
    for failed in run_batches(erase_one, batches, options.jobs):
        done += 1
        failures += [failed] if failed else []
        progress.report(done, f"{len(failures)} failed")
    progress.report(done, f"{len(failures)} failed", force=True)
    return finish(failures[:20], "python -m tests.torture.erase --only KIND:NUMBER")


if __name__ == "__main__":
    sys.exit(main())
