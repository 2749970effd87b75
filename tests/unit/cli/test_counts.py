"""Commands that show the newest entries say how many there are."""

from __future__ import annotations

import pytest

import everthread
from tests.unit.cli.calling import Program

COUNT = 27


def fill(store: everthread.Store) -> None:
    for number in range(COUNT):
        with store.session("bot") as session:
            session.call(f"pay-{number}", lambda: None)


@pytest.mark.parametrize("command", ["runs", "effects"])
def test_the_command_line_says_how_many_there_are(
    program: Program, store: everthread.Store, command: str
) -> None:
    fill(store)
    assert f"20 of {COUNT}" in program(command, "bot").err
    assert program(command, "bot", "--limit", "50").err == ""
