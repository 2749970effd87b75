"""Records a store at work, and checks the disks that a power loss could have left behind.

One *recording* is a seeded run of operations on one store, crossing folds, forks, rewinds, deletions,
checkpoints of the write-ahead log and reopenings of the store. Each *state* is the disk at a random moment
of it. The store on that disk must hold every operation acknowledged before, and of the one under way
either all or nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal

import apsw

import everthread
from everthread.threads.runtime import Runtime
from tests.crash.workload import Contents, Executor, Model, check_past, difference, memory_directory, observe
from tests.kit.power_loss import Disk, PowerLossVFS, Recording

OPERATIONS = 260
STATES_PER_RECORDING = 250
#: How many states are checked lightly for each one whose whole past is read and verified.
DEEP_EVERY = 50

Durability = Literal["full", "process"]

_names = itertools.count()


@dataclasses.dataclass
class Run:
    """A recording, and what the store had to hold after each acknowledgement."""

    recording: Recording
    models: list[Model]
    happened: Counter[str]


@dataclasses.dataclass
class Tally:
    """``failures`` holds one description for each state that broke the promise."""

    states: int = 0
    in_flight_found: int = 0
    happened: Counter[str] = dataclasses.field(default_factory=Counter)
    failures: list[str] = dataclasses.field(default_factory=list)


def record(seed: int, durability: Durability, operations: int = OPERATIONS) -> Run:
    """Work on a store and note all that reaches its files."""
    directory = Path(tempfile.mkdtemp(dir=memory_directory()))
    name = f"power-loss-{os.getpid()}-{next(_names)}"
    vfs = PowerLossVFS(name)
    path = directory / "store.db"
    rng = random.Random(seed)
    # The same writes every time, but for the salts of the log: a state can be looked at again.
    runtime = Runtime(
        now_us=itertools.count(1_750_000_000_000_000, 1_000).__next__, random_bytes=rng.randbytes
    )
    model = Model(seed)
    run = Run(vfs.recording, [model.copy()], Counter())
    try:
        while model.number < operations:
            # Few pages per checkpoint: then it also happens inside of commits, and the log starts anew often.
            pages = rng.choice((10, 50, 1000))
            url = f"sqlite:///{path}?vfs={name}&wal_autocheckpoint={pages}"
            store = everthread.open(url, durability=durability, runtime=runtime)
            executor = Executor(store)
            for _ in range(rng.choice((5, 40, 120))):
                operation = model.plan()
                executor.perform(operation)
                vfs.recording.acknowledge()
                model.apply(operation)
                run.models.append(model.copy())
                run.happened[operation.kind] += 1
                if rng.random() < 0.03:
                    _checkpoint(path, name, rng.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE")))
                    run.happened["checkpoint"] += 1
            store.close()
            run.happened["fold"] = max(run.happened["fold"], _packs(path))
            run.happened["reopening"] += 1
    finally:
        vfs.unregister()
        shutil.rmtree(directory)
    return run


def _checkpoint(path: Path, vfs: str, mode: str) -> None:
    connection = apsw.Connection(str(path), vfs=vfs)
    connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
    connection.close()


def _packs(path: Path) -> int:
    """How many packs the store holds: each is a fold that happened."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    packs = connection.execute("SELECT count(*) FROM record WHERE kind = 1").get
    connection.close()
    return int(packs)


def check_states(
    seed: int,
    durability: Durability,
    states: int = STATES_PER_RECORDING,
    only: int | None = None,
    keep: Path | None = None,
) -> Tally:
    """Check ``states`` disks of the recording with this seed, or ``only`` the one with that index.

    A disk that broke the promise is left in ``keep``, as it was before it was opened.
    """
    run = record(seed, durability)
    tally = Tally(happened=run.happened)
    directory = Path(tempfile.mkdtemp(dir=memory_directory()))
    try:
        for disk in run.recording.states(seed, states, only=only):
            tally.states += 1
            disk.write_to(directory)
            try:
                tally.in_flight_found += _check(directory, disk, run.models)
            except (AssertionError, apsw.Error, everthread.errors.EverthreadError) as error:
                where = f"seed {seed}, state {disk.index} (event {disk.moment} of {len(run.recording)})"
                tally.failures.append(f"{where}: {type(error).__name__}: {error}")
                if keep is not None:
                    disk.write_to(keep / f"seed-{seed}-state-{disk.index}")
    finally:
        shutil.rmtree(directory)
    return tally


def _check(directory: Path, disk: Disk, models: list[Model]) -> bool:
    """Raise if the disk breaks the promise; tell whether the operation under way got through."""
    path = directory / "store.db"
    model = models[disk.acknowledged]
    following = models[disk.acknowledged + 1] if disk.acknowledged + 1 < len(models) else model
    before, after = model.contents(), following.contents()
    store = everthread.open(f"sqlite:///{path}")
    try:
        found = observe(store)
        assert found in (before, after), _loss(disk, found, before)
        if disk.index % DEEP_EVERY == 0:
            check_past(store, model if found == before else following)
    finally:
        store.close()
    _check_integrity(path)
    return found != before


def _loss(disk: Disk, found: Contents, before: Contents) -> str:
    return f"after {disk.acknowledged} acknowledged operations: {difference(found, before)}"


def _check_integrity(path: Path) -> None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    (result,) = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    assert result == ("ok",), f"integrity_check: {result}"
