"""Kills a process at each call by which saving or restoring files changes the disk; what is left is checked.

The work runs in a child that this process forks; a counter around the calls of the operating system kills it,
with SIGKILL, before the n-th of them. SQLite's own calls don't count here: they are cut elsewhere.
"""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everthread
from everthread.sandboxes import Files, LocalSandboxes
from tests.kit.trees import Held, held

_CALLS = ("mkdir", "rmdir", "unlink", "rename", "replace", "symlink", "fchmod", "chmod", "write", "fsync")
_UNFINISHED = b".everthread-unfinished-"
_RESTORING = b".everthread-restoring"


def killed(work: Callable[[], Any], at: int) -> bool:
    """Run ``work`` in a child that dies before its ``at``-th call that changes the disk; whether it died."""
    child = os.fork()
    if child == 0:
        try:
            _count_calls(at)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself failed"
    return False


def _count_calls(at: int) -> None:
    left = [at]
    for name in _CALLS:
        real = getattr(os, name)

        def call(*arguments: Any, _real: Any = real, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*arguments, **options)

        setattr(os, name, call)


def _apart(found: Held) -> Held:
    """Return what a directory holds, without empty folders that a restore left behind when it was over."""
    return {path: what for path, what in found.items() if path.split(b"/")[0] != _RESTORING}


def _fill(root: Path, turn: int) -> None:
    """A small tree; its second form differs from its first in every way that there is."""
    root.mkdir(parents=True, exist_ok=True)
    for each in root.iterdir():
        # In place: another folder of the same name isn't the one that was attached.
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "same").write_text("same")
    for number in range(4):
        (root / "sub" / f"f{number}").write_text(f"turn {turn}, file {number}")
    (root / "sub" / "deep" / f"only{turn}").write_bytes(bytes([turn]) * 3000)
    (root / "link").symlink_to(f"target{turn}")
    (root / f"empty{turn}").mkdir()
    if turn == 1:
        (root / "file or folder").write_text("a file")
    else:
        (root / "file or folder").mkdir()
        (root / "file or folder" / "in it").write_text("x")
    os.chmod(root / "same", 0o600 if turn == 1 else 0o755)


class Stage:
    """A store and directories of its own, made anew for each death."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / str(number)
        self.folder.mkdir(parents=True)
        self.url = f"sqlite:///{self.folder}/s.db"
        self.root = self.folder / "tree"

    def open(self) -> everthread.Store:
        return everthread.open(self.url, durability="process")

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def workspace_rewind(stage: Stage, at: int) -> bool:
    """A thread and its folder go back together: both, or neither, or it is told and can be undone."""
    _fill(stage.root, 1)
    with stage.open() as store:
        thread = store.thread("t")
        thread.attach_workspace(stage.root)
        thread.state["turn"] = 1
        first = thread.commit()
        one = held(stage.root)
        _fill(stage.root, 2)
        thread.state["turn"] = 2
        thread.commit()
        (stage.root / "unsaved").write_text("since")
        two = held(stage.root)

    def work() -> None:
        with stage.open() as store:
            thread = store.thread("t")
            thread.attach_workspace(stage.root)
            thread.rewind(first, files=True)

    died = killed(work, at)
    with stage.open() as store:
        thread = store.thread("t")
        workspace = thread.attach_workspace(stage.root)
        if workspace.interrupted() is not None:
            assert died
            if at % 2:
                workspace.undo()
                assert _apart(held(stage.root)) == two
            thread.rewind(first, files=True)
            assert _apart(held(stage.root)) == one
        else:
            there = _apart(held(stage.root))
            assert there == (one if thread.state["turn"] == 1 else two)
            assert died or thread.state["turn"] == 1
        thread.rewind(first, files=True)
        assert _apart(held(stage.root)) == one
        assert store.verify()
    return died


def sandbox_save(stage: Stage, at: int) -> bool:
    """A sandbox is worked in and saved: whoever comes next finds the old tree or the new one."""
    boxes = stage.folder / "boxes"
    with stage.open() as store, LocalSandboxes(store, boxes).open("a", shutdown="keep") as box:
        _fill(Path(box.path), 1)
        one = held(box.path)

    def work() -> None:
        with stage.open() as store, LocalSandboxes(store, boxes).open("a", shutdown="keep") as box:
            with box.working() as path:
                _fill(Path(path), 2)
            box.save()

    died = killed(work, at)
    _fill(stage.root, 2)
    two = held(stage.root)
    with stage.open() as store, LocalSandboxes(store, boxes).open("a", shutdown="keep") as box:
        there = held(box.path)
        assert there in (one, two), f"a mixture, killed at call {at}"
        assert died or there == two
        assert store.verify()
    return died


def sandbox_restore(stage: Stage, at: int) -> bool:
    """A sandbox goes on from an older version: whoever comes next finds just the version asked for."""
    boxes = stage.folder / "boxes"
    with stage.open() as store, LocalSandboxes(store, boxes).open("a", shutdown="keep") as box:
        _fill(Path(box.path), 1)
        first, one = box.save(), held(box.path)
        _fill(Path(box.path), 2)
        second, two = box.save(), held(box.path)

    def work() -> None:
        with stage.open() as store, LocalSandboxes(store, boxes).open("a", at=first, shutdown="keep") as box:
            assert held(box.path) == one

    died = killed(work, at)
    with stage.open() as store:
        for wanted, expected in ((second, two), (first, one)):
            with LocalSandboxes(store, boxes).open("a", at=wanted, shutdown="keep") as box:
                assert held(box.path) == expected
    return died


def directory_restore(stage: Stage, at: int) -> bool:
    """A directory is made from a version: it is there as a whole, or not at all."""
    _fill(stage.root, 1)
    target = stage.folder / "out" / "made"
    with stage.open() as store:
        Files(store.thread("t")).save_directory(stage.root)

    def work() -> None:
        with stage.open() as store:
            Files(store.thread("t")).restore_directory(target)

    died = killed(work, at)
    assert not target.exists() or held(target) == held(stage.root)
    assert died or target.exists()
    if target.parent.exists():
        left = [name for name in os.listdir(os.fsencode(target.parent)) if name != b"made"]
        assert all(name.startswith(_UNFINISHED) for name in left)
    return died


SCENARIOS = (workspace_rewind, sandbox_save, sandbox_restore, directory_restore)


def kill_at_each_step(
    scenario: Callable[[Stage, int], bool], folder: Path, first: int = 0, step: int = 1
) -> int:
    """Play a scenario with a death at every ``step``-th call, until one runs to its end; how many died."""
    deaths, at = 0, first
    while True:
        stage = Stage(folder, at)
        died = scenario(stage, at)
        stage.clear()
        if not died:
            return deaths
        deaths, at = deaths + 1, at + step
