"""Lets every single call of the operating system fail, where the ordinary tests leave some out.

python -m tests.torture.io
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


def run(name: str, engine: Any, through: Any, error: int, times: int | None) -> tuple[Tally, str | None]:
    """One operation, one kind of failure, at every call; what was seen, and what went wrong."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    directory = Path(tempfile.mkdtemp(dir=memory_directory()))
    try:
        return fail_everywhere(scenario, directory, error, times, through, engine=engine), None
    except AssertionError as problem:
        return Tally(), str(problem)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    options = arguments(__doc__ or "").parse_args()
    batches = [(scenario.name, *fault) for scenario in SCENARIOS for fault in FAULTS]
    progress = Progress(len(batches), "operations × failures")
    failures: list[str] = []
    done = failed_calls = 0
    for tally, problem in run_batches(run, batches, options.jobs):
        done += 1
        failed_calls += tally.runs
        if problem is not None:
            failures.append(problem)
        progress.report(done, f"{failed_calls:,} calls failed, {len(failures)} broken")
    progress.report(done, f"{failed_calls:,} calls failed, {len(failures)} broken", force=True)
    return finish(failures, "python -m tests.torture.io")


if __name__ == "__main__":
    sys.exit(main())
