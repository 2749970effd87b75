"""A store, and the command line on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import Committer, Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(f"sqlite:///{tmp_path}/agent.db", tmp_path)


@pytest.fixture
def store(program: Program) -> Iterator[everthread.Store]:
    with everthread.open(program.url) as opened:
        yield opened


@pytest.fixture
def commits(store: everthread.Store) -> Committer:
    """Makes a thread with so many versions; each sets ``n``, appends a message, and has a label."""

    def make(name: str, count: int) -> everthread.Thread:
        thread = store.thread(name)
        for number in range(1, count + 1):
            thread.state["n"] = number
            thread.messages.append({"role": "user", "content": f"message {number}"})
            thread.commit(label=f"step {number}")
        return thread

    return make
