"""Senders and the run they send to are killed: each message is there once, in its order."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Store
from tests.crash.session_script import open_store
from tests.crash.workload import memory_directory

NAME = "bot"
WAITING = ("a", "b", "c")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system without a disk, if there is one: many stores are made here."""
    with tempfile.TemporaryDirectory(dir=memory_directory() or tmp_path) as place:
        yield Path(place)


# ── at every store operation ─────────────────────────────────────────────────────────────────


def _receive(store: Store, tell: Callable[[str], None]) -> None:
    with store.session(NAME) as session:
        found = session.next_input(timeout_s=0)
        if found is not None:
            tell(found)
        with session.turn() as turn:
            for message in turn.received:
                tell(message)


def _send(store: Store, tell: Callable[[str], None]) -> None:
    for text in ("d", "e"):
        store.send(NAME, text, key=text)
        tell(text)


def _run_child(path: Path, work: Callable[..., None], moment: int | None) -> tuple[bool, list[str]]:
    """Whether the child was killed, and what it told; last the moments at which it could have been."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            store, killing = open_store(path, moment)
            work(store, lambda text: os.write(writing, f"{text}\n".encode()))
            store.close()
            os.write(writing, json.dumps(killing.moments).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = told.read().splitlines()
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, lines


def _contents(store: Store) -> list[str]:
    # Texts, which have no id: only the key of the version that took one tells that it was taken.
    return list(store.thread(NAME).messages)


@pytest.mark.parametrize("work", [_receive, _send])
@pytest.mark.parametrize("name", ["store.db", "folder"])
def test_killed_at_every_store_operation(place: Path, name: str, work: Callable[..., None]) -> None:
    template = place / name
    store, _ = open_store(template)
    with store.session(NAME):
        pass
    for text in WAITING:
        store.send(NAME, text, key=text)
    store.close()

    def fresh(number: int) -> Path:
        path = place / str(number) / name
        path.parent.mkdir()
        (shutil.copytree if template.is_dir() else shutil.copyfile)(template, path)
        return path

    killed, told = _run_child(fresh(0), work, None)
    assert not killed
    moments = json.loads(told[-1])
    assert len(moments) > 10
    expected = [*WAITING, "d", "e"]
    for moment in moments:
        path = fresh(moment + 1)
        killed, told = _run_child(path, work, moment)
        assert killed, f"moment {moment} of {len(moments)}"
        store, _ = open_store(path)
        try:
            if work is _receive:
                assert _contents(store)[: len(told)] == told
            # Whoever was killed does it again; what was acknowledged is the same message.
            _send(store, lambda text: None)
            found: list[str] = []
            _receive(store, found.append)
            assert _contents(store) == expected
            _receive(store, found.append)
            assert _contents(store) == expected
            assert found == expected[len(expected) - len(found) :]
        except BaseException as error:
            error.add_note(f"moment {moment} of {len(moments)}, told: {told}")
            raise
        finally:
            store.close()
        shutil.rmtree(path.parent)


# ── at random, in processes of their own, on servers too ─────────────────────────────────────

MESSAGES = 60
KILLS = 8

SENDER = """
import sys, everthread
with everthread.open(sys.argv[1]) as store:
    for number in range(int(sys.argv[2]), int(sys.argv[3])):
        store.send("bot", {"n": number}, key=str(number))
        print(number, flush=True)
"""

RECEIVER = """
import sys, everthread
with everthread.open(sys.argv[1]) as store, store.session("bot") as session:
    while len(session.messages) < int(sys.argv[3]):
        if session.next_input(timeout_s=1) is not None:
            print(len(session.messages), flush=True)
        with session.turn():
            pass
"""


def _start(script: str, url: str, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, url, str(first), str(MESSAGES)], stdout=subprocess.PIPE, text=True
    )


def _let_live(process: subprocess.Popen[str], lines: int) -> int | None:
    """Read so many lines of it, then kill it; the last number that it told, if it told one."""
    last = None
    assert process.stdout is not None
    for _ in range(lines):
        line = process.stdout.readline()
        if not line:
            break
        last = int(line)
    process.kill()
    rest = process.communicate()[0].split()
    return int(rest[-1]) if rest else last


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "valkey"])
def test_sender_and_receiver_are_killed_at_random(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, seed: int
) -> None:
    fixtures = {"valkey": "valkey_lasting_url", "postgres": "postgres_url"}
    url = request.getfixturevalue(fixtures[kind]) if kind in fixtures else f"sqlite:///{tmp_path}/agent.db"
    draw = random.Random(seed)
    with everthread.open(url) as store:
        with store.session(NAME):
            pass
        sent = 0
        sender, receiver = _start(SENDER, url, 0), _start(RECEIVER, url, 0)
        try:
            for _ in range(KILLS):
                if draw.random() < 0.5:
                    last = _let_live(sender, draw.randrange(1, 8))
                    # What it had not told of yet may have been sent, and is sent again.
                    sent = sent if last is None else last + draw.randrange(2)
                    sender = _start(SENDER, url, min(sent, MESSAGES - 1))
                else:
                    _let_live(receiver, draw.randrange(1, 5))
                    receiver = _start(RECEIVER, url, 0)
            assert sender.wait(timeout=300) == 0
            assert receiver.wait(timeout=300) == 0
        finally:
            for process in (sender, receiver):
                process.kill()
                process.communicate()
        assert [message["n"] for message in store.thread(NAME).messages] == list(range(MESSAGES))
        assert store.verify().ok
