"""Checks the disks that power losses could have left behind, as many as one likes.

    python -m tests.torture.power --states 1000000
    python -m tests.torture.power --seed 17 --states 250 --only 42      # one state again

With ``--durability process`` it must find losses.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.crash.power import STATES_PER_RECORDING, check_states
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

FAILURES_SHOWN_MAX = 20


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--states", type=int, default=1_000_000)
    parser.add_argument("--durability", choices=("full", "process"), default="full")
    parser.add_argument("--only", type=int, default=None, help="check one state of the first recording")
    options = parser.parse_args()
    seed = seed_of(options)
    recordings = 1 if options.only is not None else -(-options.states // STATES_PER_RECORDING)
    batches = (
        (seed + number, options.durability, STATES_PER_RECORDING, options.only, options.keep)
        for number in range(recordings)
    )
    progress = Progress(recordings * STATES_PER_RECORDING, "states")
    states = in_flight = failed = 0
    happened: Counter[str] = Counter()
    failures: list[str] = []
    for tally in run_batches(check_states, batches, options.jobs):
        states += tally.states
        in_flight += tally.in_flight_found
        failed += len(tally.failures)
        happened.update(tally.happened)
        failures += tally.failures[: FAILURES_SHOWN_MAX - len(failures)]
        progress.report(states, f"{failed:,} broken")
    progress.report(states, f"{failed:,} broken, {in_flight:,} unacknowledged ones found whole", force=True)
    print("recorded: " + ", ".join(f"{count:,} × {kind}" for kind, count in happened.most_common()))
    return finish(
        failures,
        f"python -m tests.torture.power --durability {options.durability} --seed SEED --only STATE "
        f"(disks are in {options.keep})",
    )


if __name__ == "__main__":
    sys.exit(main())
