"""No effect runs twice in silence, whichever record of its ledger is damaged."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread import Done, InDoubtError
from tests.crash.lost_effects import (
    BILLS,
    ENGINES,
    Payer,
    build,
    check,
    opened,
    unreadable_folds,
    wounds,
)
from tests.crash.workload import memory_directory


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Every case is warned of, and there are many."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("crash", [True, False], ids=["died", "ended"])
def test_whatever_record_is_damaged_nothing_is_paid_twice(engine: str, crash: bool, seed: int) -> None:
    """After a run that ended each run takes half of the records: the same code reads them."""
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        damage_each(Path(directory), engine, crash, every=1 if crash else 2, seed=seed)


def damage_each(tmp_path: Path, engine: str, crash: bool, every: int, seed: int) -> None:
    build(engine, tmp_path / "sound", crash)
    failures: list[str] = []
    outcomes: Counter[str] = Counter()
    chosen = list(wounds(engine, tmp_path / "sound"))[seed % every :: every]
    for number, (what, wound) in enumerate(chosen):
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


def put_back(sound: Path, folder: Path) -> None:
    """Make it what it was, in place: a copy would be another store, of which nothing is noted."""
    for path in folder.rglob("*"):
        if path.is_file() and not (sound / path.relative_to(folder)).exists():
            path.unlink()
    for path in sound.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(sound)).write_bytes(path.read_bytes())


def test_what_cannot_be_read_any_more_is_in_doubt_until_somebody_accepts_it(tmp_path: Path) -> None:
    build("sqlite", tmp_path / "sound", crash=False)
    unreadable_folds(tmp_path / "sound")
    payer = Payer()
    with opened("sqlite", tmp_path / "sound") as store:
        with store.session("bot") as session:
            for _ in range(2):
                with pytest.raises(InDoubtError, match="lost records"):
                    session.call("pay 0", payer.pay, 0)
            assert session.call("pay 11", payer.pay, 11) == {"paid": 11}, "the newest aren't folded"
            session.settle("pay 1", Done({"paid": 1}))
            assert session.call("pay 1", payer.pay, 1) == {"paid": 1}
        assert payer.paid == []
        with store.session("bot") as session:
            assert session.accept_loss()
            for _ in range(2):
                session.call("pay 0", payer.pay, 0)
                session.call("new", payer.pay, 99)
        with store.session("bot") as session:
            session.call("new", payer.pay, 99)
    assert payer.paid == [0, 99]
