"""Lets every single call of the operating system fail, where the ordinary tests leave some out.

python -m tests.torture.io
python -m tests.torture.io --scenario backup
"""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.crash.iofaults import SCENARIOS, Tally, fail_everywhere
from tests.crash.workload import memory_directory
from tests.torture._batches import Progress, arguments, finish, run_batches

FAULTS: list[tuple[str, str, int, int | None]] = [
    (engine, through, error, times)
    for engine, through in (("sqlite", "system"), ("sqlite", "vfs"), ("file", "system"))
    for error in (errno.EIO, errno.ENOSPC)
    for times in (1, None)
]


#: SQLite tries for ten seconds to get at a log that can't be read: most of a run is waiting, and many can
#: wait at once.
PARTS = 16
JOBS = 24


def run(
    name: str, part: int, engine: Any, through: Any, error: int, times: int | None
) -> tuple[Tally, str | None]:
    """One operation, one kind of failure, at a part of all calls; what was seen, and what went wrong."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    directory = Path(tempfile.mkdtemp(dir=memory_directory()))
    try:
        part_of = (part, PARTS)
        return fail_everywhere(scenario, directory, error, times, through, engine=engine, part=part_of), None
    except AssertionError as problem:
        return Tally(), str(problem)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    parser = arguments(__doc__ or "")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", choices=names, default=None, help="only this operation")
    parser.set_defaults(jobs=JOBS)
    options = parser.parse_args()
    chosen = names if options.scenario is None else [options.scenario]
    batches = [(name, part, *fault) for name in chosen for fault in FAULTS for part in range(PARTS)]
    progress = Progress(len(batches), "parts of operations × failures")
    failures: list[str] = []
    done = failed_calls = 0
    for tally, problem in run_batches(run, batches, options.jobs):
        done += 1
        failed_calls += tally.runs
        if problem is not None:
            failures.append(problem)
            # At once: whoever ends the run early shall know.
            print(f"broken: {problem}", flush=True)
        progress.report(done, f"{failed_calls:,} calls failed, {len(failures)} broken")
    progress.report(done, f"{failed_calls:,} calls failed, {len(failures)} broken", force=True)
    return finish(failures, "python -m tests.torture.io")


if __name__ == "__main__":
    sys.exit(main())
