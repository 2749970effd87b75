"""Kills a session at every operation of its store, an erasure at every moment, and gc() at every call of the
disk, on SQLite and files.

python -m tests.torture.moments
python -m tests.torture.moments --what gc
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.crash import test_erasure_kill, test_gc, test_session_kill
from tests.crash.workload import memory_directory
from tests.torture._batches import Progress, arguments, finish, run_batches

WHATS = ("sessions", "erasures", "gc")
GC_SHARES = 12


def run(what: str, share: int, on: Any) -> tuple[int, str | None]:
    """One share of the moments; how many there were, and what went wrong."""
    with tempfile.TemporaryDirectory(dir=memory_directory()) as name, pytest.MonkeyPatch.context() as patch:
        place = Path(name).resolve()
        try:
            if what == "sessions":
                return test_session_kill.kill_at_moments(place, share, on), None
            if what == "erasures":
                patch.setenv("HOME", name)
                return test_erasure_kill.kill_at_moments(place, share, on), None
            test_gc.cut_small(patch)
            return test_gc.kill_at_calls(place, on, 1 + share, GC_SHARES), None
        except Exception:
            return 0, f"{what} on {on}, share {share}: {traceback.format_exc()}"


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--what", choices=WHATS, default=None, help="only these")
    options = parser.parse_args()
    batches: list[tuple[str, int, str]] = []
    if options.what in (None, "sessions"):
        shares = range(test_session_kill.SHARES)
        batches += [("sessions", share, name) for name in test_session_kill.STORES for share in shares]
    if options.what in (None, "erasures"):
        shares = range(test_erasure_kill.SHARES)
        batches += [("erasures", share, kind) for kind in test_erasure_kill.KINDS for share in shares]
    if options.what in (None, "gc"):
        batches += [("gc", share, engine) for engine in test_gc.ENGINES for share in range(GC_SHARES)]
    progress = Progress(len(batches), "shares of moments")
    failures: list[str] = []
    killed = 0
    for number, (kills, problem) in enumerate(run_batches(run, batches, options.jobs), 1):
        killed += kills
        if problem is not None:
            failures.append(problem)
            print(f"broken: {problem}", flush=True)
        progress.report(number, f"{killed:,} kills, {len(failures)} broken", force=number == len(batches))
    return finish(failures, "python -m tests.torture.moments")


if __name__ == "__main__":
    sys.exit(main())
