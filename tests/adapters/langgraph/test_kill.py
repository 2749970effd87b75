"""kill -9 between supersteps: the next process goes on exactly where the last one was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from everthread.adapters.langgraph import EverthreadSaver
from tests.adapters.langgraph.graphs import config
from tests.adapters.langgraph.killed import STEPS

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.adapters.langgraph.killed", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("die_at", [0, 3])
def test_killed_between_supersteps(url: str, die_at: int) -> None:
    killed = run(url, str(die_at))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with everthread.open(url) as store:
        found = EverthreadSaver(store).get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"].get("count", 0) == die_at
        assert [message.id for message in found.checkpoint["channel_values"]["messages"]] == [
            "h",
            *(f"m{each}" for each in range(die_at)),
        ]
        assert store.verify()
    resumed = run(url, "-1", "resume")
    assert resumed.returncode == 0, resumed.stderr
    lines = resumed.stdout.splitlines()
    assert lines[:-1] == [f"work {count}" for count in range(die_at, STEPS)], "nothing done is done again"
    assert lines[-1] == f"done {['go', *(f'step {count}' for count in range(STEPS))]}"
