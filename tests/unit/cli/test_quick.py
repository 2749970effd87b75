"""``everthread status`` read without click says and does what it does with click, whatever is on the line."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import everthread
from everthread.cli import overview, quick
from everthread.cli.commands import invoke
from everthread.cli.failing import ending
from tests.unit.cli.calling import Answer, Committer, Program


def answer(invoked: Callable[[], int]) -> Answer:
    with CliRunner().isolation() as streams:
        code = ending(invoked)
        return Answer(code, streams[0].getvalue().decode(), streams[1].getvalue().decode())


def understood(arguments: list[str]) -> bool:
    return quick._Line().understood(arguments)


def both(arguments: list[str]) -> tuple[Answer, Answer]:
    def quickly() -> int:
        code = quick.quickly(arguments)
        assert code is not None, arguments
        return code

    return answer(quickly), answer(lambda: invoke(arguments))


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages are told to the second: both calls are at the same one."""
    now = overview.time.time_ns()
    monkeypatch.setattr(overview.time, "time_ns", lambda: now)


@pytest.fixture
def url(program: Program, commits: Committer, store: everthread.Store) -> str:
    for name in ("bot", "mailer", "mail\n\x1b[31mred", "checkpoint:model"):
        commits(name, 2)
    with store.session("agent"):
        pass
    store.session("ended").close()
    return program.url


PLAIN = [
    ["status"],
    ["status", "mail"],
    ["status", ""],
    ["status", "status"],
    ["status", "--limit", "2"],
    ["status", "mail", "--limit=1", "--limit=2"],
    ["status", "--all", "checkpoint:"],
    ["status", "--json"],
    ["--json", "status", "--format", "json"],
    ["--format=yaml", "status"],
    ["status", "--format", "tsv"],
    ["status", "--format", "text"],
    ["--namespace", "other", "status"],
    ["--cold", "/nowhere/at/all", "status"],
    ["status", "zzz"],
    ["status", "p" * 2000],
]


@pytest.mark.parametrize("arguments", PLAIN)
def test_what_is_plain_is_read_without_click(url: str, arguments: list[str]) -> None:
    quickly, clicked = both(["--store", url, *arguments])
    assert quickly == clicked


@pytest.mark.parametrize(
    "store",
    [
        "sqlite:////nowhere/agent.db",
        "nonsense",
        "ftp://x",
        "sqlite://",
        "sqlite:///a.db?b=c",
        "agent.db",
        "file:///",
    ],
)
def test_a_store_that_is_not_there(store: str) -> None:
    for arguments in (["--store", store, "status"], ["status", f"--store={store}", "--json"]):
        quickly, clicked = both(arguments)
        assert quickly == clicked
        assert quickly.code != 0, quickly


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["status", "--help"],
        ["status", "-h"],
        ["status", "a", "b"],
        ["statu"],
        ["log", "status"],
        ["status", "--limit"],
        ["status", "--limit", "0"],
        ["status", "--limit", "many"],
        ["status", "--limit=2", "--limit=x"],
        ["status", "--limit", "-3"],
        ["status", "--limit", "1_0"],
        ["status", "--limit", "٣"],
        ["--limit", "3", "status"],
        ["--all", "status"],
        ["status", "--format", "xml"],
        ["status", "--json", "--format", "yaml"],
        ["status", "--json=yes"],
        ["status", "--store", ""],
        ["status", "--store"],
        ["status", "--stor", "x"],
        ["status", "--", "bot"],
        ["--", "status"],
        ["status", "-"],
        ["--version", "status"],
    ],
)
def test_the_rest_is_left_to_click(arguments: list[str]) -> None:
    assert not understood(arguments)
    assert quick.quickly(arguments) is None


WORDS = (
    "status status status mail bot - -- --all --json --limit --limit=2 --limit=0 1 2 --format --format=json "
    "--format=text yaml tsv --namespace --namespace= --cold=x --help -h log --version --all=1 --json=1 --no "
    "--limit=+2"
).split()


def test_lines_made_at_random(url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    compared = 0
    for _ in range(3000):
        arguments = dice.choices([*WORDS, "", "--limit= 2"], k=dice.randint(1, 5))
        if understood(arguments) and compared < 150:
            compared += 1
            quickly, clicked = both(["--store", url, *arguments])
            assert quickly == clicked, arguments
    assert compared > 50


def test_completing_is_left_to_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_EVERTHREAD_COMPLETE", "bash_complete")
    assert quick.quickly(["status"]) is None


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(overview, "_print", stop)
        yield


def test_an_interrupt_is_told_alike(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with interrupted(monkeypatch):
        quickly, clicked = both(["--store", url, "status"])
    assert quickly == clicked
    assert quickly.code == 130


def test_a_file_that_is_no_store_is_told_alike(program: Program) -> None:
    path = program.folder / "torn.db"
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    quickly, clicked = both(["--store", f"sqlite:///{path}", "status"])
    assert quickly == clicked
    assert quickly.code == 2


def test_what_the_light_way_hides_is_there_again() -> None:
    assert sys.modules.get("typing_extensions", True) is not None
