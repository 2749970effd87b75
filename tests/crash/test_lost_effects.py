"""No effect runs twice in silence, whichever record of its ledger is damaged."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.lost_effects import BILLS, ENGINES, build, check, wounds
from tests.crash.workload import memory_directory


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every case is warned of, and there are many."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("crash", [True, False], ids=["died", "ended"])
def test_whatever_record_is_damaged_nothing_is_paid_twice(engine: str, crash: bool) -> None:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        damage_each(Path(directory), engine, crash)


def damage_each(tmp_path: Path, engine: str, crash: bool) -> None:
    build(engine, tmp_path / "sound", crash)
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    for number, (what, wound) in enumerate(wounds(engine, tmp_path / "sound")):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "sound", folder)
        wound(folder)
        try:
            target = ENGINES[number % len(ENGINES)]
            outcomes.update(check(engine, folder, what, BILLS if crash else BILLS - 1, target))
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "damaged-saved", ignore_errors=True)
    assert not failures, failures
    # Most of it is still known, and something really was in doubt.
    assert outcomes["known"] > outcomes["InDoubtError"] > 0, outcomes
    assert outcomes["salvaged: known"] > outcomes["salvaged: InDoubtError"] > 0, outcomes
