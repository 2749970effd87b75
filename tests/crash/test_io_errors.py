"""EIO and ENOSPC at every call: the store holds the old or the new state, says what happened, and goes on."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.iofaults import SCENARIOS, Engine, Scenario, Through, fail_everywhere
from tests.crash.workload import memory_directory

FAULTS = {
    "EIO": ("sqlite", "system", errno.EIO, 1),
    "EIO in a VFS": ("sqlite", "vfs", errno.EIO, 1),
    "disk full": ("sqlite", "system", errno.ENOSPC, None),
    "dead disk": ("sqlite", "vfs", errno.EIO, None),
    "files, EIO": ("file", "system", errno.EIO, 1),
    "files, disk full": ("file", "system", errno.ENOSPC, None),
    "files, dead disk": ("file", "system", errno.EIO, None),
}


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory).resolve()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(("engine", "through", "error", "times"), FAULTS.values(), ids=FAULTS)
def test_old_or_new_at_every_call(
    memory: Path, scenario: Scenario, engine: Engine, through: Through, error: int, times: Any
) -> None:
    tally = fail_everywhere(scenario, memory, error, times, through, engine=engine, sampled=True)
    print(tally)
    assert tally.runs > 0
