"""Saving and restoring files, killed on the way: the old or the new, never a mixture that isn't told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.file_kills import SCENARIOS, Stage, kill_at_each_step

#: Every so many-th call here; all of them in ``make torture WHAT=files``.
STEP = 9


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_whoever_dies_leaves_the_old_or_the_new(
    scenario: Callable[[Stage, int], bool], tmp_path: Path, seed: int
) -> None:
    assert kill_at_each_step(scenario, tmp_path, first=seed % STEP, step=STEP) > 1
