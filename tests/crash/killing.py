"""Kills a committing process again and again, and looks at what it left behind.

The observer imports the library once and forks a writer per round. The writer opens the store, commits
without pause, and after each commit has returned sends an acknowledgement through a pipe. It is killed
with SIGKILL at a random moment. Then the store must hold all that was acknowledged, and of what was under
way either all or nothing. The next writer goes on from there.

A seed gives the operations and the intended moments; the operating system's scheduling isn't repeatable.
"""

from __future__ import annotations

import dataclasses
import os
import random
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
from pathlib import Path
from typing import Literal, NoReturn

import everthread
from tests.crash.workload import (
    Content,
    DamagedError,
    Executor,
    Model,
    Operation,
    check_past,
    difference,
    memory_directory,
    observe,
)

#: The number of the operation, the newest version of its thread, a digest of what that thread holds.
RECORD = struct.Struct("<QQ16s")
ROUNDS_PER_STORE = 50
#: Few, so that writers are also killed while they copy the write-ahead log into the database.
AUTOCHECKPOINT_PAGES = 50
#: A writer that says nothing for so long is killed all the same.
SILENCE_S_MAX = 30.0

#: Ways to break a promise on purpose: acknowledge too early, or commit in two halves.
Sabotage = Literal["", "early", "halves"]


@dataclasses.dataclass
class Tally:
    """What was seen. ``failure`` describes the first broken promise."""

    kills: int = 0
    acknowledged: int = 0
    in_flight_found: int = 0
    failure: str | None = None


def kill_rounds(
    directory: Path, seed: int, kills: int, sabotage: Sabotage = "", *, in_memory: bool = False
) -> Tally:
    """Kill ``kills`` writers, on a fresh store every ``ROUNDS_PER_STORE`` rounds; stop at a failure.

    ``in_memory`` has the stores on a file system without a disk, which is faster. A store that failed is
    kept in ``directory``.
    """
    tally = Tally()
    directory.mkdir(parents=True, exist_ok=True)
    while tally.kills < kills and tally.failure is None:
        with (
            tempfile.TemporaryDirectory(dir=memory_directory() if in_memory else directory) as place,
            tempfile.TemporaryDirectory(dir=memory_directory()) as copies,
        ):
            rounds = min(ROUNDS_PER_STORE, kills - tally.kills)
            _kill_on_one_store(Path(place), Path(copies), seed, rounds, sabotage, tally)
            if tally.failure is not None:
                shutil.copytree(place, directory / f"store-{seed}", dirs_exist_ok=True)
        seed += 1
    return tally


def _kill_on_one_store(
    place: Path, copies: Path, seed: int, rounds: int, sabotage: Sabotage, tally: Tally
) -> None:
    rng = random.Random(seed)
    model = Model(seed)
    path = place.resolve() / "store.db"
    newest: dict[str, int] = {}
    again = False
    for number in range(rounds):
        where = f"seed {seed}, kill {number}"
        try:
            records = _one_writer(path, model, rng, again, sabotage)
            tally.kills += 1
            tally.acknowledged += len(records)
            _follow(model, records, newest)
            # Mostly at a copy: what the killed one left behind is then the next writer's to recover.
            seen = path if rng.random() < 0.2 else _copy(path, copies)
            landed = _look(seen, model)
            tally.in_flight_found += landed
            operation = model.plan()
            # Whoever can't know whether it got through does it again: that must change nothing.
            again = operation.repeatable
            if landed and not again:
                model.apply(operation)
            if number % 25 == 24:
                _check_past(seen, model)
        except (AssertionError, everthread.errors.EverthreadError) as error:
            tally.failure = f"{where}: {error or error!r}\n{traceback.format_exc()}"
            return


def _one_writer(
    path: Path, model: Model, rng: random.Random, again: bool, sabotage: Sabotage
) -> list[tuple[int, int, bytes]]:
    """Fork a writer, kill it at a random moment, and return what it acknowledged."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _write(path, model, writing, again, sabotage)
    os.close(writing)
    try:
        received = _wait(reading, rng)
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    received += _drain(reading)
    os.close(reading)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"the writer ended by itself:\n{_error_file(path).read_text()}")
    assert len(received) % RECORD.size == 0, "an acknowledgement is written whole"
    return list(RECORD.iter_unpack(received))


def _wait(reading: int, rng: random.Random) -> bytes:
    """Wait until the moment of the kill; return what arrived so far.

    Moments are counted in acknowledgements rather than in time, so that a slow machine sees as much.
    """
    received = b""
    if rng.random() < 0.2:
        # While it opens the store, or just after.
        time.sleep(rng.uniform(0, 0.01))
        return received
    wanted = RECORD.size * rng.choice((1, 1, 2, 4, 8, 16, 32))
    while len(received) < wanted:
        readable, _, _ = select.select([reading], [], [], SILENCE_S_MAX)
        chunk = os.read(reading, 1 << 16) if readable else b""
        if not chunk:
            break
        received += chunk
    time.sleep(rng.choice((0, rng.uniform(0, 0.001))))
    return received


def _drain(reading: int) -> bytes:
    received = b""
    while chunk := os.read(reading, 1 << 16):
        received += chunk
    return received


def _write(path: Path, model: Model, writing: int, again: bool, sabotage: Sabotage) -> NoReturn:
    """The writer's whole life. It never returns into the observer's code."""
    try:
        store = everthread.open(f"sqlite:///{path}?wal_autocheckpoint={AUTOCHECKPOINT_PAGES}")
        executor = Executor(store)
        while True:
            operation = model.plan()
            if sabotage == "early":
                model.apply(operation)
                _acknowledge(writing, operation, 0, model)
                executor.perform(operation, again=again)
            else:
                if sabotage == "halves" and operation.kind == "commit" and operation.messages:
                    executor.perform(dataclasses.replace(operation, document={}))
                seq = executor.perform(operation, again=again)
                model.apply(operation)
                _acknowledge(writing, operation, seq, model)
            again = False
    except BaseException:
        _error_file(path).write_text(traceback.format_exc())
    finally:
        os._exit(1)


def _error_file(path: Path) -> Path:
    return path.with_name("writer-error.txt")


def _acknowledge(writing: int, operation: Operation, seq: int, model: Model) -> None:
    thread = operation.other or operation.thread
    content = model.contents().get(thread, Content({}, ()))
    os.write(writing, RECORD.pack(operation.number, seq, content.digest()))


def _follow(model: Model, records: list[tuple[int, int, bytes]], newest: dict[str, int]) -> None:
    """Bring the observer's model to where the writer had got, and ``newest`` to its version numbers."""
    for number, seq, digest in records:
        operation = model.plan()
        assert operation.number == number, f"operation {number} acknowledged in place of {operation.number}"
        model.apply(operation)
        thread = operation.other or operation.thread
        content = model.contents().get(thread, Content({}, ()))
        assert content.digest() == digest, "writer and observer disagree"
        assert seq == 0 or seq > newest.get(thread, -1), f"{thread!r}: version numbers must grow, got {seq}"
        newest[thread] = seq


def _look(path: Path, model: Model) -> bool:
    """Check what the store holds; tell whether the operation under way got through."""
    operation = model.plan()
    before, after = model.contents(), model.after(operation)
    store = everthread.open(f"sqlite:///{path}")
    try:
        found = observe(store, before.keys() | after.keys())
    finally:
        store.close()
    if found in (before, after):
        return found == after
    raise DamagedError(
        f"after {model.number} acknowledged operations, with a {operation.kind} under way: "
        f"{difference(found, before)}"
    )


def _copy(path: Path, directory: Path) -> Path:
    """A copy of a store that nobody has open: its database and write-ahead log."""
    copy = directory / path.name
    for suffix in ("", "-wal"):
        source, target = Path(f"{path}{suffix}"), Path(f"{copy}{suffix}")
        if source.exists():
            shutil.copyfile(source, target)
        else:
            target.unlink(missing_ok=True)
    return copy


def _check_past(path: Path, model: Model) -> None:
    store = everthread.open(f"sqlite:///{path}")
    try:
        check_past(store, model)
    finally:
        store.close()
