"""EIO and ENOSPC at every call: the store holds the old or the new state, says what happened, and goes on."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.iofaults import SCENARIOS, Scenario, Through, fail_everywhere
from tests.crash.workload import memory_directory


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory).resolve()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(
    ("through", "error", "times"),
    [
        ("system", errno.EIO, 1),
        ("vfs", errno.EIO, 1),
        ("system", errno.ENOSPC, None),
        ("vfs", errno.EIO, None),
    ],
    ids=["EIO", "EIO in a VFS", "disk full", "dead disk"],
)
def test_old_or_new_at_every_call(
    memory: Path, scenario: Scenario, through: Through, error: int, times: Any
) -> None:
    tally = fail_everywhere(scenario, memory, error, times, through)
    print(tally)
    assert tally.runs > 0
