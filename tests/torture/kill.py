"""Kills committing processes, as many as one likes, and checks what they left behind.

python -m tests.torture.kill --kills 100000
"""

from __future__ import annotations

import functools
import sys
from collections import Counter

from tests.crash.killing import kill_rounds
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

#: More than in the tests: looking through all that a store ever held is done once for each.
KILLS_PER_STORE = 150


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kills", type=int, default=100_000)
    parser.add_argument(
        "--sabotage", choices=("early", "halves"), default="", help="break the promise: this must be found"
    )
    parser.add_argument(
        "--on-disk",
        action="store_true",
        help="keep the stores on the disk: slower, and a kill can't tell the difference",
    )
    options = parser.parse_args()
    seed = seed_of(options)
    stores = -(-options.kills // KILLS_PER_STORE)
    shares = [KILLS_PER_STORE] * (stores - 1) + [options.kills - KILLS_PER_STORE * (stores - 1)]
    batches = ((options.keep, seed + number, share, options.sabotage) for number, share in enumerate(shares))
    progress = Progress(options.kills, "kills")
    kills = acknowledged = in_flight = 0
    fell: Counter[str] = Counter()
    failures: list[str] = []
    function = functools.partial(kill_rounds, in_memory=not options.on_disk, per_store=KILLS_PER_STORE)
    for tally in run_batches(function, batches, options.jobs):
        kills += tally.kills
        acknowledged += tally.acknowledged
        in_flight += tally.in_flight_found
        fell += tally.fell
        if tally.failure is not None:
            failures.append(tally.failure)
        progress.report(kills, f"{acknowledged:,} acknowledged, {len(failures)} stores broken")
    progress.report(
        kills,
        f"{acknowledged:,} acknowledged, {in_flight:,} unacknowledged ones found whole, "
        f"{len(failures)} stores broken",
        force=True,
    )
    print("where the kills fell (what is done to files is seen on half of the stores):")
    for moment, count in fell.most_common():
        print(f"  {count:8,}  {count / max(kills, 1):6.2%}  {moment}")
    return finish(failures, f"python -m tests.torture.kill --seed SEED --kills {KILLS_PER_STORE}")


if __name__ == "__main__":
    sys.exit(main())
