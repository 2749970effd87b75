"""An open store keeps SQLite's locks whatever is done with it: closing any descriptor of the file in the same
process would free them, and another process could then delete the log beneath it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal, StoreUnavailableError
from everthread.stores.sqlite.files import RawFile, create_private

pytestmark = pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="only Linux lists its locks, in /proc/locks"
)


def locks(path: Path) -> list[tuple[str, str]]:
    """The locks on a database and its shared memory that this process holds."""
    files = {os.stat(f"{path}{ending}").st_ino: ending for ending in ("", "-shm")}
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        if "->" in line:
            # Somebody waits for the one above.
            continue
        _, kind, _, how, pid, place = line.split()[:6]
        inode = int(place.rsplit(":", 1)[1])
        if kind == "POSIX" and int(pid) == os.getpid() and inode in files:
            found.append((files[inode], how))
    return sorted(found)


def in_another_process(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.strip()


READ = """
    import sys, everthread
    with everthread.open(sys.argv[1], keyring=sys.argv[2]) as store:
        print(store.thread("a").state.plain().get("n"))
"""


def test_nothing_is_lost_after_an_erasure(tmp_path: Path) -> None:
    """Others open and close the store while this one stays open, and goes on committing."""
    url, keys = f"sqlite:///{tmp_path}/store.db", str(tmp_path / "keys")
    with everthread.open(url, keyring=keys) as store:
        thread = store.thread("a")
        thread.state.update({"n": 0, "ann": Personal("ann", "a secret of ann's")})
        thread.commit()
        for number in range(1, 4):
            store.erase("ann")
            assert in_another_process(READ, url, keys) == str(number - 1)
            thread = store.thread("a")
            thread.state["n"] = number
            thread.state["ann"] = Personal("ann", "she came back")
            thread.commit()
            assert in_another_process(READ, url, keys) == str(number), "acknowledged, and lost"
        assert store.verify()


def test_a_log_that_was_deleted_beneath_is_noticed(tmp_path: Path) -> None:
    """The caller's own code has freed the locks, and another process took itself for the last."""
    path, keys = tmp_path / "store.db", str(tmp_path / "keys")
    url = f"sqlite:///{path}"
    with everthread.open(url, keyring=keys) as store:
        thread = store.thread("a")
        thread.state["n"] = 1
        thread.commit()
        for ending in ("", "-shm"):
            os.close(os.open(f"{path}{ending}", os.O_RDONLY))
        assert in_another_process(READ, url, keys) == "1"
        assert not Path(f"{path}-wal").exists()
        # With the next connection, which would begin another log.
        with pytest.raises(StoreUnavailableError, match="-wal was removed or replaced while it was open"):
            store.stats()
    with everthread.open(url, keyring=keys) as store:
        assert store.thread("a").state["n"] == 1
        assert store.verify()


def fill(store: everthread.Store) -> None:
    thread = store.thread("a")
    for number in range(300):
        thread.messages.append({"id": str(number), "content": f"about the weather {number}"})
        thread.state["n"] = number
        thread.commit()
    thread.state["ann"] = Personal("ann", "a secret of ann's")
    thread.commit()


VERBS: dict[str, Callable[[everthread.Store, Path], Any]] = {
    "erase": lambda store, _: store.erase("ann"),
    "erase, dry": lambda store, _: store.erase("ann", dry_run=True),
    "verify": lambda store, _: store.verify(),
    "stats": lambda store, _: store.stats(),
    "backup": lambda store, folder: store.backup(folder / "backup.db"),
    "restore": lambda store, folder: (
        store.backup(folder / "backup.db"),
        store.restore(folder / "backup.db"),
    ),
    "export": lambda store, folder: store.export(folder / "all.everthread"),
    "gc": lambda store, _: store.gc(),
    "search": lambda store, _: list(store.search("weather")),
    "redact": lambda store, _: store.redact("about the weather 7"),
    "salvage": lambda store, folder: everthread.salvage(store.url, f"sqlite:///{folder}/saved.db"),
    "open again": lambda store, _: everthread.open(store.url).close(),
    "scan": lambda store, _: list(store.scan("weather")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_frees_a_lock(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with everthread.open(f"sqlite:///{path}", keyring=str(tmp_path / "keys")) as store:
        fill(store)
        held = locks(path)
        assert {ending for ending, _ in held} == {"", "-shm"}
        VERBS[verb](store, tmp_path)
        assert set(held) <= set(locks(path)), f"{verb} has freed locks"


def test_raw_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with everthread.open(f"sqlite:///{path}", keyring=str(tmp_path / "keys")) as store:
        fill(store)
        store.gc()
        held = locks(path)
        file = RawFile(str(path))
        size = file.size()
        assert file.read(size + 10, 0) == file.read(size, 0)
        assert len(file.read(100, size - 50)) == 50
        assert file.read(10, size) == file.read(10, size + 5) == b""
        found = file.read(size, 0)
        file.close()
        assert locks(path) == held
    assert found[:16] == path.read_bytes()[:16] == b"SQLite format 3\0"
    with pytest.raises(FileNotFoundError):
        RawFile(str(tmp_path / "none"))


def test_an_erasure_in_a_file_store_keeps_the_locks_of_its_index(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/store", keyring=str(tmp_path / "keys")) as store:
        fill(store)
        assert list(store.search("weather"))
        held = locks(tmp_path / "store" / "search.index")
        assert {ending for ending, _ in held} == {"", "-shm"}
        store.erase("ann")
        assert set(held) <= set(locks(tmp_path / "store" / "search.index"))


def test_a_second_index_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url) as store, everthread.open(url) as other:
        fill(store)
        assert list(store.search("weather"))
        held = locks(tmp_path / "store.db-search")
        assert list(other.search("weather"))
        assert set(held) <= set(locks(tmp_path / "store.db-search"))


def test_a_keyring_in_the_folder_of_a_store_keeps_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with everthread.open(f"sqlite:///{path}", keyring=str(tmp_path)) as store:
        fill(store)
        held = locks(path)
        store.erase("ann")
        assert set(held) <= set(locks(path))


def test_a_store_that_is_taken_for_an_archive_keeps_its_locks(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with everthread.open(f"sqlite:///{path}") as store:
        fill(store)
        held = locks(path)
        with pytest.raises(everthread.UsageError, match="isn't an Everthread archive"):
            store.import_from(path)
        assert set(held) <= set(locks(path))


def test_a_new_file_is_made_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stops between making and closing it: the other one must not open it meanwhile."""
    path, made, go, steps = tmp_path / "store.db", threading.Event(), threading.Event(), []
    close = os.close

    def slow(descriptor: int) -> None:
        if not made.is_set():
            made.set()
            assert go.wait(30)
            steps.append("made")
        close(descriptor)

    def second() -> None:
        with contextlib.suppress(FileExistsError):
            create_private(path)
        steps.append("opened")

    monkeypatch.setattr("everthread.stores.sqlite.files.os.close", slow)
    threads = [threading.Thread(target=create_private, args=(path,)), threading.Thread(target=second)]
    threads[0].start()
    assert made.wait(30)
    threads[1].start()
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join(30)
    assert steps == ["made", "opened"]
