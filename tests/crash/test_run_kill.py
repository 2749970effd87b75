"""A run that three processes share by its name, killed at random; `tests.torture.runs` does it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.killing_runs import kill_a_run
from tests.torture.runs import STORES, place_of


@pytest.mark.parametrize("store", STORES)
def test_each_effect_once_whichever_process_is_killed(own_server_folder: Path, store: str, seed: int) -> None:
    folder = own_server_folder
    with place_of(store, folder) as url:
        for number in range(seed, seed + 2):
            tally = kill_a_run(url.format(seed=number), f"agent {number}", folder, 6, number)
            assert not tally.failure
            assert tally.effects >= 12
