"""``everthread restore`` where the old store is lost, ``doubt`` and ``settle --lost``."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import Program


@pytest.fixture
def backup(store: everthread.Store, tmp_path: Path) -> str:
    """A backup of a store that worked on."""
    with store.session("bot") as session:
        session.call("one", list)
    store.backup(tmp_path / "backup")
    with store.session("bot") as session:
        session.call("two", list)
    return str(tmp_path / "backup")


def test_a_restore_elsewhere_says_what_is_unknown_and_since_when(
    backup: str, program: Program, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/not/there/yet/new.db"
    told = program("restore", backup, "--store", url, "--yes")
    assert " UTC are unknown: in threads created from now on, and in\n  bot\n" in told.out
    assert f"everthread settle bot --store {url} --lost" in told.err
    assert f"everthread doubt --store {url} --end" in told.err
    since = program("doubt", "--store", url, "--json", code=4).data["doubts"][0]["since"]
    words = f"effects since {since[:19].replace('T', ' ')} UTC are unknown"
    assert words in program("status", "--store", url).err
    assert program("status", "--store", url, "--json").data["doubts"][0]["since"] == since
    assert words in program("resume", "bot", "--store", url, code=6).out
    assert words in program("resume", "bot", "--briefing", "--store", url, code=6).out
    assert words in program("effects", "bot", "--store", url, code=6).err
    program("settle", "bot", "two", "--done", "--store", url)
    program("settle", "bot", "--lost", "--yes", "--store", url)
    program("resume", "bot", "--store", url, code=0)
    program("doubt", "--end", "--yes", "--store", url)
    assert program("doubt", "--store", url, "--json").data["doubts"] == []


def test_nothing_since_leaves_nothing_in_doubt(backup: str, program: Program, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    told = program("restore", backup, "--store", url, "--yes", "--nothing-since")
    assert "unknown" not in told.out + told.err
    program("resume", "bot", "--store", url, code=0)


def test_an_operator_marks_all_ledgers(store: everthread.Store, program: Program) -> None:
    with store.session("bot") as session:
        session.call("one", list)
    said_no = program("doubt", "--since", "2026-03-01T04:00:00", code=1, input="n\n")
    assert "nothing was changed" in said_no.err
    assert store.doubts() == []
    told = program("doubt", "--since", "2026-03-01T04:00:00", "--why", "a failover", "--yes")
    assert "effects since 2026-03-01 04:00:00 UTC are unknown: a failover" in told.out
    with store.session("bot") as session, pytest.raises(everthread.InDoubtError, match="a failover"):
        session.call("two", pytest.fail)
    for wrong in ("--since soon", "--since 2999-01-01", "--since 2026-03-01 --end", "--why because"):
        program("doubt", *wrong.split(), "--yes", code=2)
