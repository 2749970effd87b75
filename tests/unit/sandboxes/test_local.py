"""Sandboxes as directories: caches of one version that nobody trusts while something runs in them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Retention, Store
from everthread.errors import (
    ConflictError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    StoreBusyError,
    ThreadExistsError,
    ThreadNotFoundError,
    UsageError,
)
from everthread.sandboxes import (
    AsyncFiles,
    AsyncLocalSandboxes,
    FileLimits,
    Files,
    LocalSandboxes,
    SnapshotRef,
)
from tests.kit.trees import held


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process") as opened:
        yield opened


@pytest.fixture
def sandboxes(store: Store, tmp_path: Path) -> LocalSandboxes:
    return LocalSandboxes(store, tmp_path / "boxes")


def write(path: str, name: str, text: str) -> None:
    Path(path, name).write_text(text)


def read(path: str, name: str) -> str:
    return Path(path, name).read_text()


def test_a_sandbox_goes_on_where_it_was_on_another_machine(store: Store, tmp_path: Path) -> None:
    with LocalSandboxes(store, tmp_path / "one").open("a", shutdown="snapshot") as box:
        with box.working() as path:
            write(path, "f", "first")
        box.save()
        write(box.path, "g", "by closing")
    assert not os.path.exists(box.path)
    with LocalSandboxes(store, tmp_path / "two").open("a", shutdown="keep") as box:
        assert (read(box.path, "f"), read(box.path, "g")) == ("first", "by closing")
    assert os.path.exists(box.path)


def test_a_directory_that_is_clean_is_used_as_it_is(sandboxes: LocalSandboxes) -> None:
    with sandboxes.open("a", shutdown="keep") as box:
        write(box.path, "f", "x")
    number = os.stat(os.path.join(box.path, "f")).st_ino
    with sandboxes.open("a", shutdown="keep") as box:
        assert os.stat(os.path.join(box.path, "f")).st_ino == number
    # Somebody wrote into it who had no business there.
    write(box.path, "f", "y")
    write(box.path, "g", "z")
    with sandboxes.open("a", shutdown="keep") as box:
        assert read(box.path, "f") == "x"
        assert os.listdir(box.path) == ["f"]


def test_who_dies_at_work_leaves_a_directory_that_nobody_trusts(
    store: Store, sandboxes: LocalSandboxes, tmp_path: Path
) -> None:
    with sandboxes.open("a", shutdown="keep") as box:
        write(box.path, "f", "saved")
    program = (
        "import everthread, os, signal, sys; from everthread.sandboxes import LocalSandboxes\n"
        f"store = everthread.open({store.url!r}); box = LocalSandboxes(store, {sandboxes.root!r}).open('a')\n"
        "with box.working() as path:\n"
        "    open(path + '/f', 'w').write('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read(box.path, "f") == "half"
    with sandboxes.open("a", shutdown="keep") as box:
        assert read(box.path, "f") == "saved"


def test_a_base_is_seeded_once_for_everybody(store: Store, sandboxes: LocalSandboxes) -> None:
    seeded: list[str] = []
    found: list[SnapshotRef] = []

    def seed(path: str) -> None:
        seeded.append(path)
        write(path, "base", "base")

    def agent(number: int) -> None:
        base = sandboxes.base("python 3.14", seed)
        found.append(base)
        with sandboxes.open(f"agent {number}", init="new", source=base, shutdown="snapshot") as box:
            assert read(box.path, "base") == "base"
            write(box.path, "own", str(number))

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seeded) == 1
    assert len(found) == 5
    assert len(set(found)) == 1
    assert sorted(Files(store.thread(f"sandboxes/agent {n}")).read("own") for n in range(5)) == [
        str(n).encode() for n in range(5)
    ]
    assert not os.path.exists(seeded[0])


def test_a_seed_that_fails_leaves_nothing(sandboxes: LocalSandboxes) -> None:
    def fail(path: str) -> None:
        write(path, "half", "x")
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        sandboxes.base("r", fail)
    base = sandboxes.base("r", lambda path: write(path, "whole", "y"))
    with sandboxes.open("a", init="snapshot", source=base) as box:
        assert os.listdir(box.path) == ["whole"]


def test_how_a_sandbox_begins(store: Store, sandboxes: LocalSandboxes) -> None:
    with sandboxes.open("a", init="new", shutdown="keep") as a:
        write(a.path, "f", "1")
        first = a.save()
        write(a.path, "f", "2")
        a.save()
        with sandboxes.open("ignored", init="inherit", source=a) as same:
            assert same.path == a.path
            assert not same.is_owned
        assert os.path.exists(a.path)
        with sandboxes.open("b", init="fork", source="a") as b:
            assert read(b.path, "f") == "2"
        with sandboxes.open("c", init="snapshot", source=first.plain()) as c:  # type: ignore[arg-type]
            assert read(c.path, "f") == "1"
    with pytest.raises(ThreadExistsError):
        sandboxes.open("a", init="new")
    with pytest.raises(UsageError, match="source"):
        sandboxes.open("d", init="fork")
    with pytest.raises(ThreadNotFoundError):
        sandboxes.open("d", init="fork", source="nobody")
    with pytest.raises(InvalidValueError, match="init is one of"):
        sandboxes.open("d", init="odd")  # type: ignore[arg-type]
    # Those that were destroyed are gone.
    assert [info.name for info in store.threads()] == ["sandboxes/a"]


def test_files_are_what_the_history_of_a_run_says_after_resets(sandboxes: LocalSandboxes) -> None:
    refs: list[SnapshotRef] = []
    with sandboxes.open("a", shutdown="keep") as box:
        for turn in range(4):
            write(box.path, f"turn{turn}", str(turn))
            refs.append(box.save())
    # A run that was reset goes on from a version of its own history, ten times over.
    for reset in range(10):
        with sandboxes.open("a", at=refs[reset % 3], shutdown="keep") as box:
            assert sorted(os.listdir(box.path)) == [f"turn{turn}" for turn in range(reset % 3 + 1)]
            write(box.path, "again", str(reset))
            refs.append(box.save())
    with sandboxes.open("a", at=refs[3], shutdown="keep") as box:
        assert sorted(os.listdir(box.path)) == ["turn0", "turn1", "turn2", "turn3"]


def test_superseded_snapshots_are_released(store: Store, sandboxes: LocalSandboxes) -> None:
    with sandboxes.open("a", shutdown="keep") as box:
        refs = []
        for turn in range(5):
            write(box.path, "f", str(turn))
            refs.append(box.save())
        assert [pin.version_id for pin in box.files.thread.pins()] == [refs[-1].version]
        store.gc(Retention(keep_last=1))
        assert Files(store.thread("sandboxes/a")).at(refs[-1]).read("f") == b"4"
        with pytest.raises(everthread.VersionPrunedError):
            Files(store.thread("sandboxes/a")).at(refs[0])


def test_one_process_at_a_time_works_in_a_sandbox(sandboxes: LocalSandboxes) -> None:
    with sandboxes.open("a") as box, pytest.raises(StoreBusyError, match="'a'"):
        sandboxes.open("a", timeout_s=0)
    with pytest.raises(InvalidStateError, match="closed"):
        box.save()
    assert box.close() is None


def test_a_session_is_told_of_its_sandbox(store: Store, sandboxes: LocalSandboxes) -> None:
    told: list[tuple[object, ...]] = []

    hooks = {
        "on_sandbox_ready": lambda *of: told.append(("ready", *of)),
        "on_session_exit": lambda *of: told.append(("exit", *of[:2])),
    }
    with store.session("s", hooks=hooks) as session:
        with sandboxes.open("a", init="new", shutdown="snapshot", session=session) as box:
            write(box.path, "f", "x")
        exit_snapshot = box.files.head
    assert exit_snapshot is not None
    assert told[0][:2] == ("ready", "a")
    assert SnapshotRef.from_plain(told[0][2]).thread == "sandboxes/a"
    assert told[1] == ("exit", "a", exit_snapshot.plain())
    assert Files(store.thread("sandboxes/a")).at(exit_snapshot).read("f") == b"x"


def test_hostile_contents_of_a_sandbox_dont_lead_out_when_it_is_removed(
    sandboxes: LocalSandboxes, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    with sandboxes.open("a") as box:
        Path(box.path, "link").symlink_to(outside)
        Path(box.path, "d").mkdir()
        Path(box.path, "d", "e").write_text("x")
        os.chmod(os.path.join(box.path, "d"), 0)
    assert not os.path.exists(box.path)
    assert held(outside) == {b"precious": ("file", 0o644, b"x")}


@pytest.mark.parametrize("shutdown", ["snapshot", "keep"])
def test_pipes_and_sockets_are_left_out_by_name_and_the_work_is_saved(
    sandboxes: LocalSandboxes, monkeypatch: pytest.MonkeyPatch, shutdown: Any
) -> None:
    with (
        sandboxes.open("a", shutdown=shutdown) as box,
        socket.socket(socket.AF_UNIX) as listening,
        box.working() as path,
    ):
        write(path, "result", "hours of work")
        os.mkfifo(f"{path}/pipe")
        # The path of a socket must be short.
        monkeypatch.chdir(path)
        listening.bind("agent.sock")
        monkeypatch.undo()
    assert box.last is not None
    assert dict(box.last.left_out) == {"agent.sock": "a socket", "pipe": "a pipe"}
    assert box.set_aside is None
    with sandboxes.open("a", shutdown="keep") as box:
        assert read(box.path, "result") == "hours of work"
        # What has no content isn't missed, and in a directory that was kept it is still there.
        assert ("pipe" in os.listdir(box.path)) == (shutdown == "keep")


def test_what_exceeds_a_limit_isnt_saved_and_isnt_lost_either(store: Store, tmp_path: Path) -> None:
    sandboxes = LocalSandboxes(store, tmp_path / "boxes", limits=FileLimits(file_bytes_max=10))
    with sandboxes.open("a", shutdown="keep") as box:
        write(box.path, "small", "small")
        write(box.path, "large", "more than ten bytes")
    # The directory was kept, and is used as it is.
    with sandboxes.open("a", shutdown="snapshot") as box:
        assert sorted(os.listdir(box.path)) == ["large", "small"]
    assert box.set_aside is not None
    assert not os.path.exists(box.path)
    assert (read(box.set_aside, "large"), read(box.set_aside, "small")) == ("more than ten bytes", "small")
    with sandboxes.open("a") as box:
        assert os.listdir(box.path) == ["small"]


def test_a_directory_with_more_than_was_saved_is_set_aside_before_it_is_rebuilt(
    store: Store, tmp_path: Path
) -> None:
    sandboxes = LocalSandboxes(store, tmp_path / "boxes", limits=FileLimits(file_bytes_max=10))
    with sandboxes.open("a", shutdown="keep") as box:
        first = box.save()
        write(box.path, "large", "more than ten bytes")
        write(box.path, "small", "small")
    with sandboxes.open("a", at=first, shutdown="keep") as box:
        assert os.listdir(box.path) == []
        assert box.set_aside is not None
        assert read(box.set_aside, "large") == "more than ten bytes"


@pytest.mark.parametrize("shutdown", ["snapshot", "keep"])
def test_a_directory_that_cant_be_saved_is_set_aside_and_the_error_says_where(
    store: Store, tmp_path: Path, shutdown: Any
) -> None:
    sandboxes = LocalSandboxes(store, tmp_path / "boxes", limits=FileLimits(files_max=2))
    box = sandboxes.open("a", shutdown=shutdown)
    for name in ("one", "two", "three"):
        write(box.path, name, "hours of work")
    with pytest.raises(LimitError, match="more than 2 files") as caught:
        box.close()
    assert box.set_aside is not None
    assert f"the directory was set aside at {box.set_aside}" in str(caught.value)
    with sandboxes.open("a", shutdown="keep") as again:
        assert os.listdir(again.path) == []
    assert sorted(os.listdir(box.set_aside)) == ["one", "three", "two"]
    # An erasure can't reach it, and names it.
    store.users.set("ann", "email", "a@b")
    assert any(box.set_aside in words for words in store.erase("ann").unreached)


def test_a_commit_to_the_thread_of_a_sandbox_doesnt_keep_its_work_from_being_saved(
    store: Store, sandboxes: LocalSandboxes
) -> None:
    with sandboxes.open("a", shutdown="snapshot") as box:
        write(box.path, "result", "hours of work")
        other = store.thread("sandboxes/a")
        other.state["beside"] = 1
        other.commit()
    thread = store.thread("sandboxes/a")
    assert thread.state["beside"] == 1
    assert Files(thread).read("result") == b"hours of work"
    box = sandboxes.open("a", shutdown="keep")
    write(box.path, "result", "more work")
    files = Files(store.thread("sandboxes/a"))
    files.write("result", "by another writer")
    files.save()
    with pytest.raises(ConflictError, match="set aside at"):
        box.close()
    assert box.set_aside is not None
    assert read(box.set_aside, "result") == "more work"
    assert Files(store.thread("sandboxes/a")).read("result") == b"by another writer"


@pytest.mark.parametrize("leave", ["save", "discard", "snapshot", "keep", "destroy"])
def test_a_sandbox_whose_directory_was_swapped_for_a_link_touches_nothing_outside(
    store: Store, sandboxes: LocalSandboxes, tmp_path: Path, leave: Any
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("a text of its owner")
    (outside / "locked").mkdir(mode=0o500)
    before = held(outside)
    box = sandboxes.open("a", shutdown="destroy" if leave in ("save", "discard") else leave)
    with box.working() as path:
        write(path, "f", "saved")
    first = box.save()
    os.rename(box.path, f"{box.path}.moved")
    os.symlink(outside, box.path)
    if leave == "discard":
        box.discard()
        assert read(box.path, "f") == "saved"
    elif leave == "destroy":
        box.close()
        assert not os.path.lexists(box.path)
    else:
        with pytest.raises(InvalidStateError, match="was replaced"):
            (box.save if leave == "save" else box.close)()
    if leave in ("snapshot", "keep"):
        with sandboxes.open("a", at=first, shutdown="keep") as again:
            assert read(again.path, "f") == "saved"
            assert not os.path.islink(again.path)
    box.close()
    assert held(outside) == before
    assert list(store.scan("a text of its owner")) == []


def test_a_sandbox_whose_own_records_were_replaced_by_pipes_and_links_opens(
    sandboxes: LocalSandboxes, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    with sandboxes.open("a", shutdown="keep") as box:
        write(box.path, "f", "saved")
    place = Path(box.path).parent
    (place / "mark").unlink()
    os.mkfifo(place / "mark")
    (place / "mark.new").symlink_to(outside)
    with sandboxes.open("a", shutdown="keep") as box:
        assert read(box.path, "f") == "saved"
    assert outside.read_text() == "precious"


def test_an_async_sandbox_that_cant_be_saved_is_set_aside(tmp_path: Path) -> None:
    async def work() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            boxes = AsyncLocalSandboxes(store, tmp_path / "boxes", limits=FileLimits(files_max=1))
            box = await boxes.open("a", shutdown="keep")
            async with box.working() as path:
                os.mkfifo(f"{path}/pipe")
                write(path, "one", "1")
            await box.save()
            write(path, "two", "2")
            with pytest.raises(LimitError, match="set aside at") as caught:
                await box.close()
            assert box.set_aside is not None
            assert box.set_aside in str(caught.value)
            assert sorted(os.listdir(box.set_aside)) == ["one", "pipe", "two"]

    asyncio.run(work())


def test_async_callers_have_sandboxes_and_files(tmp_path: Path) -> None:
    async def work() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            boxes = AsyncLocalSandboxes(store, tmp_path / "boxes")
            base = await boxes.base("r", lambda path: write(path, "base", "x"))
            async with await boxes.open("a", init="new", source=base, shutdown="snapshot") as box:
                async with box.working() as path:
                    write(path, "f", "1")
                saved = await box.save()
            files = AsyncFiles(await store.thread("sandboxes/a"))
            assert await files.read("f") == b"1"
            assert [each.path for each in await files.list()] == ["base", "f"]
            await files.write("g", "2")
            await files.save()
            assert [each.path for each in (await files.diff(saved)).added] == ["g"]
            with pytest.raises(UsageError, match="AsyncFiles"):
                Files(await store.thread("sandboxes/a"))  # type: ignore[arg-type]

    asyncio.run(work())
