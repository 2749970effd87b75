"""What every test relies on: a home of its own, and randomness that replays."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

# Real servers, started when a test first asks for one.
pytest_plugins = (
    "tests.servers.sharing",
    "tests.servers.postgres",
    "tests.servers.valkey",
    "tests.servers.temporal",
)

# No deadline: how fast a machine is must not decide whether a test passes.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

SEED_MAX = 2**32 - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay the tests that use the fixture `seed`")


#: Where files lie in memory, and how many bytes must be free there: elsewhere it may be a small place.
MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit it. What a disk keeps is shown by tests that simulate one, or choose their own place.
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_FREE_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Drawn before any worker process starts: workers inherit the option, so that one seed serves the run.
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randint(0, SEED_MAX)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run. A failing test shows it, and how to run that test again with the same one."""
    value: int = request.config.option.seed
    print(f"seed {value}; replay: pytest '{request.node.nodeid}' --seed {value}")
    return value


# ── folders ──────────────────────────────────────────────────────────────────────────────────────

_numbers = count(1)
_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


@pytest.fixture
def _folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a test writes; gone after it, unless it failed. Pytest's own folders are found by looking through
    all that the run has made, which takes longer than many a test."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name[:30])
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    folder.mkdir(mode=0o700)
    yield folder
    if not request.node.stash.get(_failed, False):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path(_folder: Path) -> Path:
    """An empty folder of the test's own."""
    folder = _folder / "test"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def home_apart(monkeypatch: pytest.MonkeyPatch, _folder: Path) -> None:
    """No test touches the user's home or default store, nor follows the user's settings.

    The folder isn't the test's own `tmp_path`, so that a test may count what it finds there.
    """
    for name in [name for name in os.environ if name.startswith("EVERTHREAD_")]:
        monkeypatch.delenv(name)
    home = _folder / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{home}/everthread.db")


# ── how long each suite takes ────────────────────────────────────────────────────────────────────

#: Seconds of work that a suite may take, added up over the processes that share it. Nothing fails by these:
#: they are printed so that a suite that grows is seen. `make test` as a whole has TEST_BUDGET.
SUITE_BUDGETS_S = {
    "adapters": 240,
    "concurrency": 90,
    "conformance": 420,
    "crash": 420,
    "docs": 60,
    "engines": 120,
    "examples": 120,
    "features": 200,
    "migration": 40,
    "properties": 240,
    "servers": 240,
    "tenants": 60,
    "unit": 480,
    "contract": 120,
}
_taken_s: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folder = report.nodeid.partition("/")[2].partition("/")[0]
    _taken_s[folder] = _taken_s.get(folder, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if sum(_taken_s.values()) < 60:
        return
    terminalreporter.section("seconds by suite (all processes together), and budget")
    for suite, taken_s in sorted(_taken_s.items(), key=lambda entry: -entry[1]):
        budget_s = SUITE_BUDGETS_S.get(suite)
        over = "  OVER" if budget_s is not None and taken_s > budget_s else ""
        terminalreporter.line(f"{suite:<12} {taken_s:6.0f}  of {budget_s}{over}")
