"""Kills a PostgreSQL primary under load and promotes its synchronous standby: nothing acknowledged is lost.

python -m tests.torture.standby --failovers 20

The standby is a base backup of the primary, streaming over loopback, and every commit waits until it is on
both disks. Clients have one URL with both hosts. After each failover the old primary's files are thrown away
and a new base backup becomes the standby, so that the two change places again and again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random

import psycopg

from tests.crash.killing_servers import WRITERS, Tally, Writer, judge, wait_for
from tests.servers.postgres import PostgresServer, as_other, programs
from tests.torture._batches import arguments, finish, seed_of

_WAIT_S = 60.0
SETTINGS = ("synchronous_standby_names=*", "wal_level=replica", "max_wal_senders=5", "hot_standby=on")


class Pair:
    """A primary and its synchronous standby, which change places when the primary is killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        ports = [PostgresServer(folder).port for _ in range(2)]
        self.primary = self._place(ports[0])
        self.primary.create()
        self.primary.start()
        self.standby = self._copy(ports[1])
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def _place(self, port: int) -> PostgresServer:
        self._made += 1
        folder = self._folder / f"server{self._made}"
        folder.mkdir()
        folder.chmod(0o711)
        return PostgresServer(folder, settings=SETTINGS, port=port)

    def _copy(self, port: int) -> PostgresServer:
        """A standby of what the primary holds, that streams what comes."""
        standby = self._place(port)
        standby.own()
        subprocess.run(
            [
                programs() / "pg_basebackup",
                *("-D", standby.data, "-d", self.primary.uri(), "-R", "-X", "stream", "-c", "fast", "-N"),
            ],
            cwd=standby.folder,
            check=True,
            capture_output=True,
            **as_other(),
        )
        standby.start()
        self._until("SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')")
        return standby

    def _until(self, question: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            with psycopg.connect(self.primary.uri(), autocommit=True) as connection:
                (answer,) = connection.execute(question.encode()).fetchone() or (0,)
            if answer:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(question)
            time.sleep(0.02)

    def fail_over(self, draw: Random) -> None:
        """The primary dies at once, the standby is promoted, and gets a standby of its own."""
        dead = self.primary
        dead.kill()
        time.sleep(draw.uniform(0, 0.05))
        with psycopg.connect(self.standby.uri(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
        self.primary = self.standby
        shutil.rmtree(dead.folder)
        self.standby = self._copy(dead.port)

    def stop(self) -> None:
        self.standby.kill()
        self.primary.kill()


def fail_over(folder: Path, cycles: int, seed: int) -> Tally:
    """So many failovers of one pair under load."""
    draw = Random(seed)
    pair = Pair(folder)
    try:
        with psycopg.connect(pair.primary.uri(), autocommit=True) as connection:
            (waits,) = connection.execute("SHOW synchronous_commit").fetchone() or ("",)
        assert waits == "on", waits
        writers = [Writer(f"{pair.url}&retry_ms=60000", number) for number in range(WRITERS)]
        for _ in range(cycles):
            before = sum(len(writer.acknowledged) for writer in writers)
            wait_for(writers, before + draw.randint(20, 150))
            pair.fail_over(draw)
        wait_for(writers, sum(len(writer.acknowledged) for writer in writers) + 20)
        for writer in writers:
            writer.finish()
        return judge(pair.url, writers, cycles)
    finally:
        pair.stop()


#: Failovers of one pair before a new one is made: its threads grow all the time.
ROUND = 10


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--failovers", type=int, default=20)
    options = parser.parse_args()
    seed = seed_of(options)
    warnings.simplefilter("error")
    failures: list[str] = []
    done = acknowledged = 0
    started = time.monotonic()
    while done < options.failovers:
        folder = Path(tempfile.mkdtemp(prefix="everthread-torture-"))
        folder.chmod(0o711)
        tally = fail_over(folder, min(ROUND, options.failovers - done), seed + done)
        if tally.lost or tally.twice or tally.damage:
            failures.append(f"seed {seed + done}: {tally}")
        done += tally.kills
        acknowledged += tally.acknowledged
        shutil.rmtree(folder, ignore_errors=True)
        told = f"{done:,} failovers, {acknowledged:,} acknowledged, {len(failures)} broken"
        print(f"{told}, {time.monotonic() - started:.0f} s", flush=True)
    return finish(failures, "python -m tests.torture.standby --seed SEED")


if __name__ == "__main__":
    sys.exit(main())
