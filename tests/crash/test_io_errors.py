"""EIO and ENOSPC at every call: the store holds the old or the new state, says what happened, and goes on."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import StateCorruptedError, StorageWriteError, UnavailableError
from everthread.stores.sqlite import connection
from tests.crash.iofaults import (
    SCENARIOS,
    Engine,
    Runs,
    Scenario,
    Tally,
    Through,
    fail_everywhere,
    kill_everywhere,
    prepare,
)
from tests.crash.workload import memory_directory
from tests.kit.failing_disk import DiskCall, FaultyDisk
from tests.kit.power_loss import PowerLossVFS

FAULTS = {
    "EIO": ("sqlite", "system", errno.EIO, 1),
    "EIO in a VFS": ("sqlite", "vfs", errno.EIO, 1),
    "disk full": ("sqlite", "system", errno.ENOSPC, None),
    "dead disk": ("sqlite", "vfs", errno.EIO, None),
    "files, EIO": ("file", "system", errno.EIO, 1),
    "files, disk full": ("file", "system", errno.ENOSPC, None),
    "files, dead disk": ("file", "system", errno.EIO, None),
}

#: What an error says to be done has one of these words in it.
ADVICE = ("again", "look at", "choose", "verify()", "nothing was changed", "make that possible")


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory).resolve()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(("engine", "through", "error", "times"), FAULTS.values(), ids=FAULTS)
def test_old_or_new_at_every_call(
    memory: Path, scenario: Scenario, engine: Engine, through: Through, error: int, times: Any, seed: int
) -> None:
    tally = fail_everywhere(scenario, memory, error, times, through, engine=engine, seed=seed)
    print(tally)
    assert tally.runs > 0
    silent = [text for text in tally.messages if not any(word in text for word in ADVICE)]
    assert not silent, "these say nothing of what to do"


@pytest.mark.parametrize("through", ["system", "vfs"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_opening_fails_cleanly_and_works_later(memory: Path, through: Through, error: int) -> None:
    """Whatever a failed opening leaves behind, a new store becomes a store, and an old one stays one."""
    for existing in (False, True):
        failures = 0
        for nth in itertools.count(1):
            place = memory / f"{existing}-{nth}"
            place.mkdir()
            url = f"sqlite:///{place}/store.db"
            if existing:
                _commit_one(url)
            with FaultyDisk(place, through=through) as disk:
                disk.fail(nth, error)
                with contextlib.suppress(UnavailableError, StateCorruptedError):
                    everthread.open(url).close()
                disk.heal()
                if not disk.failed:
                    break
                failures += 1
                assert _commit_one(url) == (2 if existing else 1)
            shutil.rmtree(place)
        # Opening a store that is there has two calls of SQLite's that a full disk can make fail, no more.
        fewest = 2 if existing and through == "vfs" and error == errno.ENOSPC else 3
        assert failures >= fewest


def _commit_one(url: str) -> int:
    with everthread.open(url) as store:
        thread = store.thread("a")
        thread.state["n"] = len(list(thread.history()))
        version = thread.commit()
        assert store.verify()
        assert version is not None
        return version.seq


@pytest.mark.parametrize("engine", ["sqlite", "file"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_killed_at_every_call(memory: Path, scenario: Scenario, engine: Engine, seed: int) -> None:
    """A kill between any two calls: the same old or new."""
    assert kill_everywhere(scenario, memory, engine, seed) > 0


# A sync that fails has dropped what it should have written: it can be read, and is not on the disk.


def _lost_after_failed_syncs(directory: Path, failures: int) -> int:
    """On how many of 300 disks after a power cut an acknowledged commit is missing."""
    vfs = PowerLossVFS(f"failing-syncs-{os.getpid()}")
    recording = vfs.recording
    live = directory / "live"
    live.mkdir()
    try:
        store = everthread.open(f"sqlite:///{live}/store.db?vfs=failing-syncs-{os.getpid()}")
        thread = store.thread("a")
        for number in range(6):
            thread.state["n"] = number
            if number == 3:
                vfs.fail_syncs(failures)
                with pytest.raises(StorageWriteError):
                    thread.commit()
                vfs.fail_syncs(0)
            thread.commit()
            recording.acknowledge()
        store.close()
    finally:
        vfs.unregister()
    lost = 0
    for disk in recording.states(1, 300):
        disk.write_to(directory / "disk")
        with everthread.open(f"sqlite:///{directory}/disk/store.db") as found:
            lost += found.thread("a").state.get("n", -1) < disk.acknowledged - 1
            assert found.verify()
    return lost


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_a_failed_sync_costs_nothing_that_is_acknowledged_later(memory: Path, failures: int) -> None:
    assert _lost_after_failed_syncs(memory, failures) == 0


def test_the_loss_is_real_without_writing_the_log_again(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "failed_to_sync", lambda error: False)
    assert _lost_after_failed_syncs(memory, 2) > 10


def test_what_a_killed_process_had_not_synced_is_synced_when_it_is_opened(memory: Path) -> None:
    """Else a commit key could be answered with a version that a power cut still takes away."""
    place = memory / "place"
    place.mkdir()
    url = f"sqlite:///{place}/store.db"
    pid = os.fork()
    if pid == 0:
        thread = everthread.open(url).thread("a")
        thread.state["n"] = 1
        thread.commit(key="k")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with FaultyDisk(place) as disk, everthread.open(url) as store:
        assert DiskCall("sync", "store.db-wal") in disk.calls
        assert store.thread("a").state["n"] == 1


# Disks that are really full.


def _run_full_disk(command: list[str], url: str, how: str, what: str) -> None:
    script = str(Path(__file__).with_name("full_disk.py"))
    done = subprocess.run(
        [*command, sys.executable, script, url, how, what],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    acknowledged = seen["acknowledged"]
    assert len(acknowledged) > 3
    assert seen["readable"] == acknowledged, "what was acknowledged can be read while the disk is full"
    assert seen["after"] == seen["reopened"] == [*acknowledged, f"m{len(acknowledged)}"]
    assert seen["seq"] == len(acknowledged) + 1
    assert seen["verified"]
    assert "again" in seen["error"]


@pytest.mark.parametrize("limit_kb", [300, 600, 1100])
@pytest.mark.parametrize("engine", ["sqlite", "file"])
def test_files_that_may_not_grow(tmp_path: Path, engine: Engine, limit_kb: int) -> None:
    url = f"sqlite:///{tmp_path}/store.db" if engine == "sqlite" else f"file://{tmp_path}/store"
    _run_full_disk([], url, "rlimit", str(limit_kb * 1024))


@pytest.mark.parametrize("engine", ["sqlite", "file"])
def test_a_file_system_without_room(tmp_path: Path, engine: Engine) -> None:
    """A small file system of its own, in a name space where anybody may mount one."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no name space to mount in (unshare -rm); test_files_that_may_not_grow stands in")
    mount = tmp_path / "small"
    mount.mkdir()
    url = f"sqlite:///{mount}/store.db" if engine == "sqlite" else f"file://{mount}/store"
    prepare = f"mount -t tmpfs -o size=1500k none {mount} && head -c 400k /dev/zero > {mount}/ballast"
    shell = ["unshare", "-rm", "sh", "-c", f'{prepare} && exec "$@"', "sh"]
    _run_full_disk(shell, url, "ballast", f"{mount}/ballast")


def test_a_disk_that_dies_while_a_backup_is_finished_is_no_damage_to_the_store(tmp_path: Path) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "backup")
    prepare(tmp_path / "template", scenario.commits, "sqlite")
    runs = Runs(scenario, tmp_path / "template", tmp_path / "run", "sqlite")
    tally = Tally()
    calls = runs.calls(errno.EIO, "system")
    numbers = [nth for nth, call in enumerate(calls, 1) if call.kind == "delete" and "partial" in call.file]
    assert numbers
    for nth in numbers:
        runs.go(nth, errno.EIO, None, "system", tally)
    assert set(tally.errors) <= {"StorageWriteError"}, tally.errors
