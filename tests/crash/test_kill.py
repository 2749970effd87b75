"""kill -9 at any moment loses nothing that was acknowledged, and shows nothing that is half done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.killing import KILLS_PER_STORE, kill_rounds

SEED = int(os.environ.get("EVERTHREAD_SEED", "20260101"))
#: ``python -m tests.torture.kill`` has as many as one likes.
KILLS = 250


@pytest.mark.parametrize("store", range(KILLS // KILLS_PER_STORE))
def test_nothing_acknowledged_is_lost_and_nothing_is_half_visible(tmp_path: Path, store: int) -> None:
    seed = SEED + store
    print(f"EVERTHREAD_SEED={seed}")

    tally = kill_rounds(tmp_path, seed, KILLS_PER_STORE, in_memory=store % 5 != 0)

    assert tally.failure is None, tally.failure
    assert tally.kills == KILLS_PER_STORE
    assert tally.acknowledged > KILLS_PER_STORE, "the writers hardly got to commit anything"


@pytest.mark.parametrize("sabotage", ["early", "halves"])
def test_a_broken_promise_is_found(tmp_path: Path, sabotage: str) -> None:
    """Acknowledging before the commit, or committing in two halves, doesn't get past the check."""
    tally = kill_rounds(tmp_path, SEED, 200, sabotage, in_memory=True)  # type: ignore[arg-type]

    assert tally.failure is not None, f"{tally.kills} kills did not find it"
    assert "DamagedError" in tally.failure
