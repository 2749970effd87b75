"""Kills committing processes, as many as one likes, and checks what they left behind.

python -m tests.torture.kill --kills 100000
"""

from __future__ import annotations

import functools
import sys

from tests.crash.killing import KILLS_PER_STORE, kill_rounds
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kills", type=int, default=100_000)
    parser.add_argument(
        "--sabotage", choices=("early", "halves"), default="", help="break the promise: this must be found"
    )
    parser.add_argument("--in-memory", action="store_true", help="keep the stores off the disk: faster")
    options = parser.parse_args()
    seed = seed_of(options)
    stores = -(-options.kills // KILLS_PER_STORE)
    batches = ((options.keep, seed + number, KILLS_PER_STORE, options.sabotage) for number in range(stores))
    progress = Progress(stores * KILLS_PER_STORE, "kills")
    kills = acknowledged = in_flight = 0
    failures: list[str] = []
    function = functools.partial(kill_rounds, in_memory=options.in_memory)
    for tally in run_batches(function, batches, options.jobs):
        kills += tally.kills
        acknowledged += tally.acknowledged
        in_flight += tally.in_flight_found
        if tally.failure is not None:
            failures.append(tally.failure)
        progress.report(kills, f"{acknowledged:,} acknowledged, {len(failures)} stores broken")
    progress.report(
        kills,
        f"{acknowledged:,} acknowledged, {in_flight:,} unacknowledged ones found whole, "
        f"{len(failures)} stores broken",
        force=True,
    )
    return finish(failures, f"python -m tests.torture.kill --seed SEED --kills {KILLS_PER_STORE}")


if __name__ == "__main__":
    sys.exit(main())
