"""A million transactions by many sessions at once on a server: losers are told, one order explains all.

python -m tests.torture.history --server postgres --operations 1000000

In rounds, each on a store of its own: half by 64 tasks of one process, half by 8 processes with 8 tasks each.
A transaction reads some lists and appends to some; all that was read and written is checked by
``tests.concurrency.histories``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.concurrency.histories import OK, REFUSED, anomalies
from tests.concurrency.writers import final_lists, write, write_in_processes
from tests.servers.postgres import QUICK, PostgresServer, empty
from tests.servers.valkey import QUICK as QUICK_VALKEY
from tests.servers.valkey import ValkeyServer
from tests.torture._batches import arguments, finish, seed_of

#: Operations of a round: what every reader sees grows with those before.
ROUND = 20_000
THREADS = 40
SERVERS = ("postgres", "valkey")


def start(name: str, folder: Path) -> tuple[PostgresServer | ValkeyServer, str]:
    """A server, and the URL of a store on it. No operation is judged by what survives the server."""
    if name == "valkey":
        valkey = ValkeyServer(folder / name, *QUICK_VALKEY)
        valkey.start()
        return valkey, valkey.url
    (folder / name).mkdir()
    postgres = PostgresServer(folder / name, settings=(*QUICK, "max_connections=200"))
    postgres.create()
    postgres.start()
    return postgres, postgres.uri()


def play(url: str, operations: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One round on an empty store; what came of the operations, and what no order explains."""
    base = seed % 1_000_000 + 1
    history = asyncio.run(write(url, 64, operations // 2, THREADS, base))
    history += write_in_processes(url, 8, 8, operations // 16, THREADS, base)
    counts = Counter(transaction.outcome for transaction in history)
    found = anomalies(history, final_lists(url, THREADS))
    if not set(counts) <= {OK, REFUSED}:
        found.append(f"outcomes that nobody knows, although nothing was cut: {counts}")
    if not counts[OK] or not counts[REFUSED]:
        found.append(f"nobody was in anybody's way: that shows nothing ({counts})")
    return counts, found


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--server", choices=SERVERS, action="append", help="which; all by default")
    parser.add_argument("--operations", type=int, default=1_000_000, help="transactions, on all together")
    parser.add_argument("--round", type=int, default=ROUND, help="transactions on one store")
    options = parser.parse_args()
    seed = seed_of(options)
    names = options.server or SERVERS
    failures: list[str] = []
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
        folder.chmod(0o711)
        server, url = start(name, folder)
        total: Counter[str] = Counter()
        started = time.monotonic()
        try:
            while total.total() < options.operations / len(names):
                place = f"{url}?pool_max=8" if name == "postgres" else f"{url}?prefix=r{total.total()}"
                counts, found = play(place, options.round, seed + total.total())
                failures += (f"{name}, seed {seed + total.total()}: {problem}" for problem in found)
                total += counts
                if name == "postgres":
                    empty(url)
                else:
                    assert isinstance(server, ValkeyServer)
                    server.ask("FLUSHALL")
                told = f"{total[OK]:,} acknowledged, {total[REFUSED]:,} told that they lost"
                told += f", {len(failures)} that no order explains"
                print(f"{name}: {total.total():,} transactions, {told}, {time.monotonic() - started:.0f} s")
                sys.stdout.flush()
        finally:
            server.stop()
            shutil.rmtree(folder, ignore_errors=True)
    return finish(failures, "python -m tests.torture.history --seed SEED")


if __name__ == "__main__":
    # Neither the user's stores nor settings.
    for variable in [each for each in os.environ if each.startswith("EVERTHREAD_")]:
        del os.environ[variable]
    sys.exit(main())
