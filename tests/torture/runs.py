"""Kills the processes of a run that three of them share, as often as one likes: each effect happens once,
each message arrives once, on SQLite, PostgreSQL and Valkey.

python -m tests.torture.runs --kills 2000
python -m tests.torture.runs --store postgres --seed 7
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.crash.killing_runs import Tally, kill_a_run
from tests.crash.workload import memory_directory
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import LASTING, ValkeyServer
from tests.torture._batches import Progress, arguments, finish, run_batches, seed_of

STORES = ("sqlite", "postgres", "valkey")
KILLS = 2_000
#: A run is done after so many; then comes the next.
KILLS_PER_RUN = 10


def run(url: str, folder: str, kills: int, seed: int) -> Tally:
    """One run, on a thread of its own."""
    place = url.format(seed=seed)
    return kill_a_run(place, f"agent {seed}", Path(folder), kills, seed)


@contextmanager
def place_of(store: str, folder: Path) -> Iterator[str]:
    """Where runs are kept; a server is started for them."""
    if store == "sqlite":
        yield f"sqlite:///{folder}/{{seed}}.db"
        return
    folder.chmod(0o711)
    with ExitStack() as stack:
        if store == "postgres":
            server = PostgresServer(folder / "server")
            server.folder.mkdir(exist_ok=True)
            server.create()
            stack.callback(server.stop)
            server.start()
            yield server.uri()
        else:
            valkey = ValkeyServer(folder / "server", *LASTING)
            stack.callback(valkey.stop)
            valkey.start()
            yield valkey.url


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--kills", type=int, default=KILLS, help="so many on each store")
    parser.add_argument("--store", choices=STORES, default=None)
    options = parser.parse_args()
    seed = seed_of(options)
    failures: list[str] = []
    for store in (options.store,) if options.store else STORES:
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            folder = Path(directory)
            with place_of(store, folder) as url:
                failures += _killed(store, url, folder, options.kills, seed, options.jobs)
    return finish(failures, f"python -m tests.torture.runs --store STORE --seed {seed}")


def _killed(store: str, url: str, folder: Path, kills: int, seed: int, jobs: int) -> list[str]:
    """Runs, one after the other, until there were so many kills."""
    progress = Progress(kills, f"kills on {store}")
    done = effects = messages = number = 0
    failures: list[str] = []
    while done < kills and len(failures) < 10:
        batches = [(url, str(folder), KILLS_PER_RUN, seed + number + each) for each in range(2 * jobs)]
        number += len(batches)
        for tally in run_batches(run, batches, jobs):
            done, effects, messages = done + tally.kills, effects + tally.effects, messages + tally.messages
            failures += [tally.failure] if tally.failure else []
        progress.report(done, f"{effects:,} effects, {messages:,} messages, {len(failures)} runs broken")
    progress.report(
        done, f"{effects:,} effects, {messages:,} messages, {len(failures)} runs broken", force=True
    )
    return failures


if __name__ == "__main__":
    sys.exit(main())
