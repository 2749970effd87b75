"""kill -9 on the file store: nothing acknowledged is lost, nothing is half visible, two writers at once.

The operations, the model and the checks are those of the other stores (``workload``, ``killing``). Here every
store has two writers, and what a killed one left behind is looked at on a copy of the whole folder.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import pytest

import everthread
from tests.crash import killing
from tests.crash.workload import Executor, Model, check_past, memory_directory, observe

SEED = int(os.environ.get("EVERTHREAD_SEED", "20260102"))
STORES = 4
KILLS_PER_STORE = 40


class FileWriter(killing._Writer):
    """As the others, on a folder."""

    def start(self) -> None:
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reading)
            _write(self._path, self.model, writing, self._again)
        os.close(writing)


def _write(path: Path, model: Model, writing: int, again: bool) -> NoReturn:
    """The writer's whole life. It never returns into the observer's code."""
    try:
        executor = Executor(everthread.open(f"file://{path}"))
        while True:
            operation = model.plan()
            seq = executor.perform(operation, again=again)
            model.apply(operation)
            killing._acknowledge(writing, operation, seq, model)
            again = False
    except BaseException:
        killing._error_file(path).write_text(traceback.format_exc())
    finally:
        os._exit(1)


def _look(path: Path, writers: list[FileWriter], *, deep: bool) -> None:
    with everthread.open(f"file://{path}") as store:
        found = observe(store)
        for writer in writers:
            writer.check({n: c for n, c in found.items() if n.startswith(writer.model.prefix)})
        if deep:
            for writer in writers:
                check_past(store, writer.model)


@pytest.mark.parametrize("number", range(STORES))
def test_nothing_acknowledged_is_lost_and_nothing_is_half_visible(tmp_path: Path, number: int) -> None:
    seed = SEED + number
    print(f"EVERTHREAD_SEED={seed}")
    rng = random.Random(seed)
    # Mostly in memory, which is faster; kill -9 can't tell the difference.
    with tempfile.TemporaryDirectory(dir=tmp_path if number == 0 else memory_directory()) as place:
        path, copy = Path(place) / "store", Path(place) / "copy"
        writers = [FileWriter(path, Model(seed, prefix), "") for prefix in ("a ", "b ")]
        acknowledged = kills = 0
        while kills < KILLS_PER_STORE:
            try:
                for writer in writers:
                    writer.start()
                for writer in writers:
                    acknowledged += writer.kill(rng)
                    kills += 1
                seen = path
                if rng.random() < 0.8:
                    # What the killed ones left behind is then the next writer's to recover.
                    shutil.rmtree(copy, ignore_errors=True)
                    seen = Path(shutil.copytree(path, copy)) if path.exists() else path
                _look(seen, writers, deep=kills >= KILLS_PER_STORE)
            except BaseException:
                shutil.copytree(place, tmp_path / "failed", dirs_exist_ok=True)
                raise
            finally:
                for writer in writers:
                    writer.stop()
        assert acknowledged > kills, "the writers hardly got to commit anything"
