"""What every test relies on: a home of its own, and randomness that replays."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings

# Real servers, started when a test first asks for one.
pytest_plugins = ("tests.servers.sharing", "tests.servers.postgres", "tests.servers.valkey")

# No deadline: how fast a machine is must not decide whether a test passes.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

SEED_MAX = 2**32 - 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay the tests that use the fixture `seed`")


def pytest_configure(config: pytest.Config) -> None:
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


@pytest.fixture(autouse=True)
def home_apart(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test touches the user's home or default store, nor follows the user's settings.

    The folder isn't the test's own `tmp_path`, so that a test may count what it finds there.
    """
    for name in [name for name in os.environ if name.startswith("EVERTHREAD_")]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{home}/everthread.db")
