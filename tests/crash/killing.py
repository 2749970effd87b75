"""Kills a committing process again and again, and looks at what it left behind.

The observer imports the library once and forks a writer per round. The writer opens the store, commits
without pause, and after each commit has returned sends an acknowledgement through a pipe. It is killed
with SIGKILL at a random moment. Then the store must hold all that was acknowledged, and of what was under
way either all or nothing. The next writer goes on from there. On most stores several writers work at once,
so that one is killed while others wait for it. Most kills wait until a write, a fold or a checkpoint has
begun: left to chance, two of three fall where no file is touched. ``Tally.fell`` says where they fell.

After each kill the threads that were written to are compared with the model; after some, and at the end of a
store, all of them, with their past.

A seed gives the operations and the intended moments; the operating system's scheduling isn't repeatable.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Literal, NoReturn

import everthread
from tests.crash.moments import Moment
from tests.crash.workload import (
    Content,
    Contents,
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
KILLS_PER_STORE = 50
#: Few, so that writers are also killed while they copy the write-ahead log into the database.
AUTOCHECKPOINT_PAGES = 50
#: How many writers a store has, by its seed.
WRITERS = (1, 2, 4, 3)
#: After how many records a line is folded, by the seed of its store.
FOLD_RECORDS = (64, 6, 12)
#: What kills wait for, for so long at most; nothing in particular, too.
AIMS = ("", "", "append", "append", "append", "fold", "fold", "checkpoint")
AIMED_S_MAX = 0.01
#: Every so many looks at a store read all of it.
WHOLE_EVERY = 8
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
    #: How many kills fell where: in which verb of the store, on which file.
    fell: Counter[str] = dataclasses.field(default_factory=Counter)
    failure: str | None = None


def kill_rounds(
    directory: Path,
    seed: int,
    kills: int,
    sabotage: Sabotage = "",
    *,
    in_memory: bool = False,
    per_store: int = KILLS_PER_STORE,
) -> Tally:
    """Kill ``kills`` writers, on a fresh store every ``per_store``; stop at a failure.

    ``in_memory`` has the stores on a file system without a disk, which is faster. A store that failed is
    kept in ``directory``.
    """
    tally = Tally()
    directory.mkdir(parents=True, exist_ok=True)
    # What is there already is never looked through again, so that a writer doesn't have to copy it.
    gc.collect()
    gc.freeze()
    while tally.kills < kills and tally.failure is None:
        with (
            tempfile.TemporaryDirectory(dir=memory_directory() if in_memory else directory) as place,
            tempfile.TemporaryDirectory(dir=memory_directory()) as copies,
        ):
            share = min(per_store, kills - tally.kills)
            _kill_on_one_store(Path(place), Path(copies), seed, share, sabotage, tally)
            if tally.failure is not None:
                shutil.copytree(place, directory / f"store-{seed}", dirs_exist_ok=True)
        seed += 1
    return tally


class _Writer:
    """One process after the other that carries on with the same model, as its observer sees it."""

    def __init__(self, path: Path, model: Model, sabotage: Sabotage) -> None:
        self._path = path
        self.model = model
        self._sabotage: Sabotage = sabotage
        self._newest: dict[str, int] = {}
        #: The operation to begin with may have got through already.
        self._again = False
        self._pid = self._reading = 0
        self.moment = Moment()
        #: The threads that were written to since the last look.
        self.touched: set[str] = set()

    def start(self) -> None:
        self._reading, writing = os.pipe()
        self.moment.reset()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading)
            _write(self._path, self.model, writing, self._again, self._sabotage, self.moment)
        os.close(writing)

    def kill(self, rng: random.Random) -> int:
        """Kill it at a random moment and follow it to where it got; the number of acknowledgements."""
        received = _wait(self._reading, self.moment, rng)
        signaled = self.stop()
        received += _drain(self._reading)
        os.close(self._reading)
        if not signaled:
            raise AssertionError(f"the writer ended by itself:\n{_error_file(self._path).read_text()}")
        assert len(received) % RECORD.size == 0, "an acknowledgement is written whole"
        records = list(RECORD.iter_unpack(received))
        self.touched |= _follow(self.model, records, self._newest)
        return len(records)

    def stop(self) -> bool:
        """End the process, if there is one; whether it had lived until now."""
        if not self._pid:
            return False
        os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.WIFSIGNALED(status)

    def check(self, found: Contents) -> bool:
        """Compare with what the store holds; tell whether the operation under way got through."""
        operation = self.model.plan()
        before, after = self.model.contents(), self.model.after(operation)
        if found not in (before, after):
            raise DamagedError(
                f"after {self.model.number} acknowledged operations, with a {operation.kind} under way: "
                f"{difference(found, before)}"
            )
        # Whoever can't know whether it got through does it again: that must change nothing.
        self._again = operation.repeatable
        if found == after and not self._again:
            self.model.apply(operation)
        self.touched.clear()
        return found == after

    def unchanged(self) -> Contents:
        """The threads that neither what was acknowledged nor what was under way has written to."""
        operation = self.model.plan()
        written = {*self.touched, operation.thread, operation.other}
        return {name: content for name, content in self.model.contents().items() if name not in written}


def _kill_on_one_store(
    place: Path, copies: Path, seed: int, kills: int, sabotage: Sabotage, tally: Tally
) -> None:
    rng = random.Random(seed)
    path = place.resolve() / "store.db"
    count = 1 if sabotage else WRITERS[seed % len(WRITERS)]
    writers = [_Writer(path, Model(seed, f"{letter} "), sabotage) for letter in "abcd"[:count]]
    rounds = -(-kills // len(writers))
    for number in range(rounds):
        last = number == rounds - 1
        try:
            at_work = writers[: kills - number * len(writers)]
            for writer in at_work:
                writer.start()
            for writer in at_work:
                tally.acknowledged += writer.kill(rng)
                tally.kills += 1
                tally.fell[writer.moment.told()] += 1
            # Mostly at a copy: what the killed one left behind is then the next writer's to recover.
            seen = path if rng.random() < 0.2 else _copy(path, copies)
            tally.in_flight_found += _look(seen, writers, whole=last or number % WHOLE_EVERY == 0, deep=last)
        except (AssertionError, everthread.errors.EverthreadError) as error:
            tally.failure = f"seed {seed}, kill {number}: {error or error!r}\n{traceback.format_exc()}"
            return
        finally:
            for writer in writers:
                writer.stop()
    for writer in writers:
        writer.moment.close()


def _wait(reading: int, moment: Moment, rng: random.Random) -> bytes:
    """Wait until the moment of the kill; return what arrived so far.

    Moments are counted in acknowledgements rather than in time, so that a slow machine sees as much.
    """
    if rng.random() < 0.15:
        # While it opens the store, or just after.
        time.sleep(rng.uniform(0, 0.01))
        return b""
    wanted = RECORD.size * rng.choice((1, 1, 1, 2, 2, 4, 8))
    received = b""
    while len(received) < wanted:
        readable, _, _ = select.select([reading], [], [], SILENCE_S_MAX)
        chunk = os.read(reading, 1 << 16) if readable else b""
        if not chunk:
            break
        received += chunk
    if aim := rng.choice(AIMS):
        moment.wait_for(aim, time.monotonic() + AIMED_S_MAX)
    time.sleep(rng.choice((0, rng.uniform(0, 0.0003 if aim else 0.001))))
    return received


def _drain(reading: int) -> bytes:
    received = b""
    while chunk := os.read(reading, 1 << 16):
        received += chunk
    return received


def _write(
    path: Path, model: Model, writing: int, again: bool, sabotage: Sabotage, moment: Moment
) -> NoReturn:
    """The writer's whole life. It never returns into the observer's code."""
    try:
        # On half of the stores through SQLite's own VFS alone, on the others with an eye on it.
        vfs = f"&vfs={moment.vfs()}" if model.seed // len(WRITERS) % 2 else ""
        store = everthread.open(f"sqlite:///{path}?wal_autocheckpoint={AUTOCHECKPOINT_PAGES}{vfs}")
        store.core.folder.records_max = FOLD_RECORDS[model.seed % len(FOLD_RECORDS)]
        moment.note_verbs(store.core.backend)
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


def _follow(model: Model, records: list[tuple[int, int, bytes]], newest: dict[str, int]) -> set[str]:
    """Bring the observer's model to where the writer had got, and ``newest`` to its version numbers.

    Returns which threads were written to.
    """
    touched = set()
    for number, seq, digest in records:
        operation = model.plan()
        assert operation.number == number, f"operation {number} acknowledged in place of {operation.number}"
        model.apply(operation)
        thread = operation.other or operation.thread
        content = model.contents().get(thread, Content({}, ()))
        assert content.digest() == digest, "writer and observer disagree"
        assert seq == 0 or seq > newest.get(thread, -1), f"{thread!r}: version numbers must grow, got {seq}"
        newest[thread] = seq
        touched |= {operation.thread, thread}
    return touched


def _look(path: Path, writers: list[_Writer], *, whole: bool, deep: bool) -> int:
    """Check what the store holds; the number of operations under way that got through."""
    store = everthread.open(f"sqlite:///{path}")
    try:
        unchanged = {} if whole else {n: c for writer in writers for n, c in writer.unchanged().items()}
        found = observe(store, unchanged)
        mine = [{n: c for n, c in found.items() if n.startswith(w.model.prefix)} for w in writers]
        landed = sum(writer.check(contents) for writer, contents in zip(writers, mine, strict=True))
        if deep:
            for writer in writers:
                check_past(store, writer.model)
    finally:
        store.close()
    return landed


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
