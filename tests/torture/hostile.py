"""Hostile payloads into every decoder, as many as one likes, each batch in a process that is being watched.

python -m tests.torture.hostile --payloads 10000000
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

PAYLOADS_PER_BATCH = 100_000
SCRIPT = Path(__file__).parents[1] / "properties" / "hostile.py"


def run(seed: int) -> str | None:
    """What went wrong in the batch with this seed, if anything."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(seed), str(PAYLOADS_PER_BATCH)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return None if done.returncode == 0 else f"seed {seed}: {done.stdout}{done.stderr[-2000:]}"


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--payloads", type=int, default=10_000_000)
    options = parser.parse_args()
    seed = seed_of(options)
    batches = [(seed + number,) for number in range(-(-options.payloads // PAYLOADS_PER_BATCH))]
    progress = Progress(len(batches) * PAYLOADS_PER_BATCH, "payloads")
    failures: list[str] = []
    done = 0
    for problem in run_batches(run, batches, options.jobs):
        done += PAYLOADS_PER_BATCH
        if problem is not None:
            failures.append(problem)
        progress.report(done, f"{len(failures)} batches failed")
    progress.report(done, f"{len(failures)} batches failed", force=True)
    return finish(failures, f"python {SCRIPT} SEED {PAYLOADS_PER_BATCH}")


if __name__ == "__main__":
    sys.exit(main())
