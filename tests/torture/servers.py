"""Kills the servers of stores under load, as often as one likes: nothing acknowledged may be lost.

python -m tests.torture.servers --server valkey --kills 1000

The servers have the settings at which ``everthread doctor`` calls them ``full``. Killing processes leaves the
page cache, so that the files may as well lie in memory (``TMPDIR=/dev/shm``), which is quicker; what a power
cut leaves isn't shown by this.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.killing_servers import kill_postgres, kill_valkey
from tests.torture._batches import arguments, finish, seed_of

#: Kills of one server before a new one is made: its threads grow all the time.
ROUND = 50

SERVERS = {"postgres": kill_postgres, "valkey": kill_valkey}


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--server", choices=sorted(SERVERS), action="append", help="which; all by default")
    parser.add_argument("--kills", type=int, default=1000, help="of each server")
    options = parser.parse_args()
    seed = seed_of(options)
    failures: list[str] = []
    for name in options.server or sorted(SERVERS):
        kills = acknowledged = 0
        started = time.monotonic()
        while kills < options.kills:
            folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
            folder.chmod(0o711)
            tally = SERVERS[name](folder / name, min(ROUND, options.kills - kills), seed + kills)
            kills += tally.kills
            acknowledged += tally.acknowledged
            if tally.lost or tally.twice or tally.damage or tally.level != "full":
                failures.append(f"{name}, seed {seed + kills}: {tally}")
            shutil.rmtree(folder, ignore_errors=True)
            told = f"{kills:,} kills, {acknowledged:,} acknowledged, {len(failures)} broken"
            print(f"{name}: {told}, {time.monotonic() - started:.0f} s", flush=True)
    return finish(failures, "python -m tests.torture.servers --seed SEED")


if __name__ == "__main__":
    sys.exit(main())
