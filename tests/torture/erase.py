"""Erases somebody from random histories, as many as one likes, on every embedded store; with --servers also
on servers, where an erasing process is killed at every moment as well.

python -m tests.torture.erase --histories 1000
python -m tests.torture.erase --histories 0 --servers 200
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

from tests.crash.test_erasure_kill_servers import kill_at_moments
from tests.crash.workload import memory_directory
from tests.properties.erasure_servers import PLACES
from tests.properties.test_erasure import erase_from_a_history
from tests.properties.test_erasure_servers import erase_from_a_server
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

KINDS = ("sqlite", "files", "memory")
#: Histories that share a server, and into how many parts the moments are divided at which one is killed.
_BATCH = 10
_STRIDE = 4


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


def erase_on_server(kind: str, seed: int, count: int, steps: int) -> list[str]:
    """Histories on a server of their own; what failed."""
    with tempfile.TemporaryDirectory(prefix="everthread-erase-", dir=memory_directory()) as folder:
        os.environ["HOME"] = folder
        os.chmod(folder, 0o711)
        place = PLACES[kind](Path(folder, "server"))
        failed = []
        try:
            for number in range(seed, seed + count):
                work = Path(folder, str(number))
                work.mkdir()
                try:
                    erase_from_a_server(place, number, work, steps)
                except Exception as error:
                    told = traceback.format_exception_only(error)[-1].strip()[:2000]
                    failed.append(f"{kind}, history {number}: {told}")
        finally:
            place.stop()
    return failed


def kill_on_server(kind: str, start: int, stride: int) -> list[str]:
    """An erasing process killed at every ``stride``-th moment; what failed."""
    with tempfile.TemporaryDirectory(prefix="everthread-erase-", dir=memory_directory()) as folder:
        os.environ["HOME"] = folder
        os.chmod(folder, 0o711)
        place = PLACES[kind](Path(folder, "server"))
        try:
            Path(folder, "work").mkdir()
            kill_at_moments(place, Path(folder, "work"), start, stride)
        except Exception as error:
            return [f"{kind}, killed: {''.join(traceback.format_exception_only(error)).strip()[:2000]}"]
        finally:
            place.stop()
    return []


def on_servers(histories: int, seed: int, steps: int, jobs: int) -> list[str]:
    """Histories and kills on each kind of server; what failed."""
    batches = [
        (kind, seed + at, min(_BATCH, histories - at), steps)
        for at in range(0, histories, _BATCH)
        for kind in PLACES
    ]
    progress = Progress(histories * len(PLACES), "histories on servers")
    done, failures = 0, []
    for failed in run_batches(erase_on_server, batches, jobs):
        done += _BATCH
        failures += failed
        progress.report(min(done, histories * len(PLACES)), f"{len(failures)} failed")
    progress.report(histories * len(PLACES), f"{len(failures)} failed", force=True)
    kills = [(kind, start, _STRIDE) for kind in PLACES for start in range(_STRIDE)]
    for failed in run_batches(kill_on_server, kills, jobs):
        failures += failed
    print(f"killed at every moment on {' and '.join(PLACES)}, {len(failures)} failed", flush=True)
    return failures


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--histories", type=int, default=1_000, help="so many for each store")
    parser.add_argument("--steps", type=int, default=60, help="what is done in each of them")
    parser.add_argument("--servers", type=int, default=0, help="so many for each kind of server, too")
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
    if options.servers:
        failures += on_servers(options.servers, seed, options.steps, options.jobs)
    return finish(failures[:20], "python -m tests.torture.erase --only KIND:NUMBER")


if __name__ == "__main__":
    sys.exit(main())
