"""A power loss at any moment loses nothing that was acknowledged; at the weaker durability it may."""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import everthread
from everthread import Personal
from everthread.keyring.keyring import MemoryKeyring
from tests.crash.power import STATES_PER_RECORDING, check_states
from tests.crash.workload import memory_directory
from tests.kit.power_loss import SECTOR_BYTES, Disk, PowerLossVFS, Recording

SEED = int(os.environ.get("EVERTHREAD_SEED", "20260101"))
#: ``python -m tests.torture.power`` has as many as one likes.
STATES = 1_000
CROSSED = {"fold", "fork", "rewind", "truncate", "step", "keyed", "delete", "checkpoint", "reopening"}


@pytest.mark.parametrize("number", range(STATES // STATES_PER_RECORDING))
def test_full_durability_loses_nothing(tmp_path: Path, number: int) -> None:
    seed = SEED + number
    print(f"EVERTHREAD_SEED={seed}")

    tally = check_states(seed, "full", keep=tmp_path)

    assert tally.failures == []
    assert tally.states == STATES_PER_RECORDING
    missing = CROSSED - (+tally.happened).keys()
    assert not missing, f"the recording never crosses {missing}"


def test_process_durability_loses_acknowledged_commits() -> None:
    """What the weaker level does not promise, the same check finds missing; what is there is whole."""
    tally = check_states(SEED, "process")

    assert len(tally.failures) > STATES_PER_RECORDING // 20
    others = [failure for failure in tally.failures if "acknowledged operations" not in failure]
    assert others == []


def test_a_personal_value_is_as_safe_as_its_version(memory: Path) -> None:
    """Beside its version, and when a fold, which nobody waits for, brings it elsewhere."""
    vfs = PowerLossVFS("personal")
    keyring = MemoryKeyring()
    url = f"sqlite:///{memory}/store.db?vfs=personal&wal_autocheckpoint=30"
    try:
        with everthread.open(url, keyring=keyring) as store:
            thread = store.thread("a")
            for number in range(140):
                thread.state["value"] = Personal("ann", f"value {number} " * 30)
                thread.commit()
                vfs.recording.acknowledge()
    finally:
        vfs.unregister()
    folded = Counter[bool]()
    for disk in vfs.recording.states(SEED, 150):
        disk.write_to(memory / "disk")
        with everthread.open(f"sqlite:///{memory}/disk/store.db", keyring=keyring) as store:
            head = store.thread("a").head
            versions = 0 if head is None else head.seq
            assert versions in (disk.acknowledged, disk.acknowledged + 1), f"state {disk.index}"
            for seq in range(1, versions + 1):
                found = store.thread("a").at(seq).state["value"].value
                assert found == f"value {seq - 1} " * 30, f"state {disk.index}, version {seq}"
            assert store.core.backend.totals().sealed[0] == versions, f"state {disk.index}"
        folded[versions > 70] += 1
    assert min(folded[True], folded[False]) > 20


# The simulation itself: it must show what is known of SQLite, no more and no less.


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
        yield Path(directory)


def _sqlite_disks(directory: Path, journal_mode: str, synchronous: str) -> Counter[str]:
    """What 500 power losses leave of a SQLite database that takes three rows per transaction."""
    name = f"raw-{journal_mode}-{synchronous}"
    vfs = PowerLossVFS(name)
    connection = apsw.Connection(str(directory / "live.db"), vfs=name)
    connection.execute(f"PRAGMA journal_mode={journal_mode}")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint=20")
    connection.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
    vfs.recording.acknowledge()
    rng = random.Random(SEED)
    for _ in range(120):
        with connection:
            for _ in range(3):
                data = rng.randbytes(rng.choice((9, 2000)))
                connection.execute("INSERT INTO item (data) VALUES (?)", (data,))
        vfs.recording.acknowledge()
    connection.close()
    vfs.unregister()
    seen: Counter[str] = Counter()
    for disk in vfs.recording.states(SEED, 500):
        disk.write_to(directory / "disk")
        seen[_sqlite_verdict(directory / "disk" / "live.db", disk)] += 1
    return seen


def _sqlite_verdict(path: Path, disk: Disk) -> str:
    connection = apsw.Connection(str(path))
    try:
        if not connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
            return "lost" if disk.acknowledged else "whole"
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return "corrupt"
        rows = connection.execute("SELECT count(*) FROM item").get
    except apsw.Error:
        return "corrupt"
    finally:
        connection.close()
    if rows % 3:
        return "half"
    return "whole" if rows // 3 + 1 in (disk.acknowledged, disk.acknowledged + 1) else "lost"


@pytest.mark.parametrize(("journal_mode", "synchronous"), [("WAL", "FULL"), ("DELETE", "EXTRA")])
def test_sqlite_keeps_what_it_promises(memory: Path, journal_mode: str, synchronous: str) -> None:
    assert _sqlite_disks(memory, journal_mode, synchronous) == {"whole": 500}


@pytest.mark.parametrize(
    ("journal_mode", "synchronous"),
    [
        ("WAL", "NORMAL"),  # the log isn't synced at each commit
        ("DELETE", "FULL"),  # the directory isn't synced after the journal's deletion, so it may come back
    ],
)
def test_sqlite_loses_what_it_does_not_promise(memory: Path, journal_mode: str, synchronous: str) -> None:
    seen = _sqlite_disks(memory, journal_mode, synchronous)

    assert seen["lost"] > 10
    assert seen.keys() == {"whole", "lost"}


def test_without_any_sync_sqlite_breaks(memory: Path) -> None:
    assert _sqlite_disks(memory, "DELETE", "OFF")["corrupt"] > 10


def _file_contents(recording: Recording, name: str = "a") -> set[bytes | None]:
    return {disk.files.get(name) for disk in recording.states(SEED, 3_000)}


def test_synced_bytes_stay_and_later_sectors_are_old_or_new(tmp_path: Path) -> None:
    recording = Recording()
    (tmp_path / "a").write_bytes(b"o" * SECTOR_BYTES * 2)
    inode = recording.opened(str(tmp_path / "a"))
    first = len(recording)
    recording.written(inode, SECTOR_BYTES - 2, b"nnnn")

    old, new = b"o" * SECTOR_BYTES, b"o" * (SECTOR_BYTES - 2) + b"nn"
    late = {disk.files["a"] for disk in recording.states(SEED, 3_000) if disk.moment > first}
    assert late == {a + b for a in (old, new) for b in (old, new[::-1])}

    recording.synced(inode, sync_directory=False)
    after = {disk.files["a"] for disk in recording.states(SEED, 3_000) if disk.moment == len(recording)}
    assert after == {new + new[::-1]}


def test_a_file_that_grew_may_hold_zeros_or_garbage_where_nothing_arrived(tmp_path: Path) -> None:
    recording = Recording()
    (tmp_path / "a").write_bytes(b"")
    inode = recording.opened(str(tmp_path / "a"))
    recording.synced(inode, sync_directory=True)
    recording.written(inode, 0, b"n" * SECTOR_BYTES)

    found = _file_contents(recording)
    assert {None, b"", b"n" * SECTOR_BYTES, bytes(SECTOR_BYTES)} < found
    assert len(found) > 10, "there is garbage too"


def test_a_cut_may_not_have_happened(tmp_path: Path) -> None:
    recording = Recording()
    (tmp_path / "a").write_bytes(b"o" * 100)
    inode = recording.opened(str(tmp_path / "a"))
    first = len(recording)
    recording.truncated(inode, 10)
    late = {disk.files["a"] for disk in recording.states(SEED, 3_000) if disk.moment > first}
    assert late >= {b"o" * 100, b"o" * 10}

    recording.synced(inode, sync_directory=False)
    after = {disk.files["a"] for disk in recording.states(SEED, 3_000) if disk.moment == len(recording)}
    assert after == {b"o" * 10}


@pytest.mark.parametrize("sync_directory", [False, True])
def test_a_deleted_file_may_come_back_until_the_directory_is_synced(
    tmp_path: Path, sync_directory: bool
) -> None:
    recording = Recording()
    (tmp_path / "a").write_bytes(b"old")
    recording.opened(str(tmp_path / "a"))
    recording.deleted(str(tmp_path / "a"), sync_directory=sync_directory)

    last = {disk.files.get("a") for disk in recording.states(SEED, 3_000) if disk.moment == len(recording)}
    assert last == ({None} if sync_directory else {None, b"old"})


def test_the_same_seed_gives_the_same_disks(tmp_path: Path) -> None:
    recording = Recording()
    (tmp_path / "a").write_bytes(b"")
    inode = recording.opened(str(tmp_path / "a"))
    for number in range(50):
        recording.written(inode, number * 300, random.Random(number).randbytes(700))
    disks = list(recording.states(SEED, 40))

    assert list(recording.states(SEED, 40)) == disks
    assert list(recording.states(SEED, 40, only=17)) == [disks[17]]
    assert list(recording.states(SEED + 1, 40)) != disks
