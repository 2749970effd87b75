"""A pytest plugin for the SDK's own session tests: our class in place of its SQLiteSession.

Loaded by name in a process of its own, in which ``tests`` is the SDK's package. ``EVERTHREAD_SUITE_URL`` is
what a path becomes: ``sqlite:///{path}``.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

import agents
import agents.memory
import pytest

from everthread.adapters.openai_agents import EverthreadSession

URL = os.environ["EVERTHREAD_SUITE_URL"]


class Substitute(EverthreadSession):
    """Takes what SQLiteSession takes."""

    def __init__(
        self,
        session_id: str,
        db_path: str | Path = ":memory:",
        session_settings: Any = None,
    ) -> None:
        url = "memory:" if str(db_path) == ":memory:" else URL.format(path=db_path)
        super().__init__(session_id, url, session_settings=session_settings)


agents.SQLiteSession = Substitute  # type: ignore[assignment,misc]
agents.memory.SQLiteSession = Substitute  # type: ignore[assignment,misc]


def pytest_configure(config: pytest.Config) -> None:
    for marker in ("asyncio", "allow_call_model_methods", "serial", "review_optional"):
        config.addinivalue_line("markers", f"{marker}: of the SDK")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests: what the SDK uses another plugin for."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deselect-name", action="append", default=[], help="leave out tests of this name")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = set(config.getoption("--deselect-name"))
    names = {getattr(item, "originalname", item.name) for item in items}
    if absent := unwanted - names:
        raise pytest.UsageError(f"these tests are not there any more: {sorted(absent)}")
    left_out = [item for item in items if getattr(item, "originalname", item.name) in unwanted]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
