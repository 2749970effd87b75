"""Several processes on one key, and processes that are killed while they save."""

from __future__ import annotations

import os
import random
import select
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import everthread
from everthread import Checkpointable, CheckpointManager

KILLS = 20


class Part(Checkpointable):
    def __init__(self) -> None:
        self.n = 0


class Agent(Checkpointable):
    """Every field says the same number in its own way, so that half a state is noticed."""

    def __init__(self) -> None:
        self.n = 0
        self.items: list[int] = []
        self.part = Part()
        self.writer = 0

    def advance(self) -> None:
        self.n += 1
        self.items.append(self.n)
        self.part.n = self.n

    def check(self) -> None:
        assert self.items == list(range(1, self.n + 1))
        assert self.part.n == self.n


@pytest.fixture(params=["sqlite", "sqlite pickle", "file", "file pickle"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointManager]:
    backend, _, fmt = request.param.partition(" ")
    chosen: Any = fmt or "json"
    if backend == "file":
        return lambda: CheckpointManager("file", path=tmp_path / "checkpoints", fmt=chosen)
    return lambda: CheckpointManager(f"sqlite:///{tmp_path}/agent.db", fmt=chosen)


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


def save_forever(opener: Callable[[], CheckpointManager], pipe: int) -> NoReturn:
    with opener() as manager:
        agent = Agent()
        if manager.list_keys():
            manager.load("k", agent)
        while True:
            agent.advance()
            manager.save("k", agent)
            os.write(pipe, struct.pack("<I", agent.n))


def test_a_killed_save_is_there_wholly_or_not_at_all(
    opener: Callable[[], CheckpointManager], seed: int
) -> None:
    rng = random.Random(seed)
    acknowledged = 0
    for _ in range(KILLS):
        reading, writing = os.pipe()
        child = in_child(lambda writing=writing: save_forever(opener, writing))  # type: ignore[misc]
        os.close(writing)
        try:
            for _ in range(rng.randrange(1, 6)):
                assert select.select([reading], [], [], 30)[0], "the writer says nothing"
                acknowledged = struct.unpack("<I", os.read(reading, 4))[0]
            # So that the kill falls anywhere within the next save.
            time.sleep(rng.uniform(0, 0.003))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        rest = os.read(reading, 1 << 16)
        os.close(reading)
        if rest:
            acknowledged = struct.unpack("<I", rest[-4:])[0]
        with opener() as manager:
            found = manager.load("k", Agent())
        found.check()
        assert found.n in (acknowledged, acknowledged + 1)


def test_two_processes_on_one_key_lose_nothing(opener: Callable[[], CheckpointManager]) -> None:
    saves = 15

    def work(writer: int) -> None:
        with opener() as manager:
            agent = Agent()
            agent.writer = writer
            for _ in range(saves):
                agent.advance()
                manager.save("k", agent)

    children = [in_child(lambda writer=writer: work(writer)) for writer in (1, 2)]  # type: ignore[misc]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    with opener() as manager:
        history = manager.history("k", n=None)
        found = [manager.load("k", Agent(), entry["id"]) for entry in reversed(history)]
        for agent in found:
            agent.check()
        for writer in (1, 2):
            assert [agent.n for agent in found if agent.writer == writer] == list(range(1, saves + 1))
        assert len(found) == 2 * saves
        assert manager.load("k", Agent()).n == saves


def test_another_process_goes_on_after_a_rollback_was_cut_short(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/agent.db"

    def work() -> None:
        with CheckpointManager(url) as manager:
            agent = Agent()
            agent.advance()
            with manager.rollback_context("k", agent):
                agent.n = -1
                os.kill(os.getpid(), signal.SIGKILL)

    child = in_child(work)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with CheckpointManager(url) as manager:
        manager.load("k", Agent()).check()
        assert manager.load("k", Agent()).n == 1
    with everthread.open(url) as store:
        assert store.verify().ok
