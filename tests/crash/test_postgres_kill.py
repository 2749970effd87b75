"""A PostgreSQL server is killed under load, the postmaster with all of its processes."""

from __future__ import annotations

from pathlib import Path

from tests.crash.killing_servers import kill_postgres


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(own_server_folder: Path, seed: int) -> None:
    tally = kill_postgres(own_server_folder / "postgres", 3, seed)
    assert tally.kills == 3
    assert tally.level == "full"
    assert tally.acknowledged >= 100
    assert tally.lost == []
    assert tally.twice == []
    assert tally.damage == ""
