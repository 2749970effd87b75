"""One of a thing is told as one."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread import verifiers
from everthread.briefing.facts import shown
from everthread.cli.doctor import _damage
from everthread.errors import MaxTurnsError
from everthread.maintenance.reports import Damage, VerifyReport
from everthread.recovery import RecoveryReport


def test_what_was_recovered() -> None:
    assert str(RecoveryReport(kept={"todos": 1, "open_loops": 1}, lost_count=1)) == (
        "kept 1 todo, 1 open loop; 1 loss"
    )
    assert str(RecoveryReport(kept={"todos": 2}, lost_count=2)) == "kept 2 todos; 2 losses"


def test_bytes_in_a_briefing() -> None:
    assert (shown(b"x"), shown(b"xy")) == ("(1 byte)", "(2 bytes)")


def test_a_turn() -> None:
    with everthread.open("memory:") as store, store.session("bot", max_turns=1) as session:
        with session.turn():
            pass
        with pytest.raises(MaxTurnsError, match="used its 1 turn;"):
            session.turn()


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("12")
    with everthread.open("memory:") as store:
        with store.session("bot") as session:
            session.work.set_context("rates", str(path), verify=verifiers.file_hash())
        path.write_text("1")
        (fact,) = store.resume("bot").contradicted
    assert fact.reason == f"1 byte, were 2: {path}"


def test_a_damaged_place_more() -> None:
    damage = tuple(Damage(thread="bot", first=n, last=n, problem="x") for n in range(1, 22))
    assert _damage(VerifyReport(1, 21, damage), "sqlite:///x.db")[-1].found == "… and 1 more place"
