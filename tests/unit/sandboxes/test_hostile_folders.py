"""Working folders that untrusted code has changed: nothing outside is read or changed, nothing hangs."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store
from everthread.errors import InvalidStateError, LimitError, StateCorruptedError, StorageWriteError
from everthread.sandboxes import FileLimits, Files, LocalSandboxes
from tests.kit.trees import held


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "main.py").write_text("one\n")
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    made = tmp_path / "outside"
    made.mkdir()
    (made / "main.py").write_text("precious\n")
    (made / "thesis").write_text("a text of its owner")
    return made


def _swap(folder: Path, outside: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(outside)


def test_a_folder_that_was_swapped_for_a_link_is_neither_read_nor_changed(
    store: Store, folder: Path, outside: Path
) -> None:
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder)
    first = thread.head
    before = held(outside)
    _swap(folder, outside)
    for call in (
        thread.commit,
        workspace.save,
        workspace.undo,
        lambda: thread.rewind(first or 1, files=True),
    ):
        with pytest.raises(InvalidStateError, match="was replaced"):
            call()
    assert held(outside) == before
    assert list(store.scan("a text of its owner")) == []
    # Put back, it goes on.
    folder.unlink()
    folder.with_name("moved").rename(folder)
    (folder / "main.py").write_text("two\n")
    thread.commit()
    thread.rewind(first or 1, files=True)
    assert (folder / "main.py").read_text() == "one\n"


def test_another_folder_in_the_place_of_the_attached_one_is_refused_until_it_is_attached(
    store: Store, folder: Path
) -> None:
    thread = store.thread("t")
    thread.attach_workspace(folder)
    folder.rename(folder.with_name("moved"))
    folder.mkdir()
    (folder / "new").write_text("new\n")
    thread.state["x"] = 1
    with pytest.raises(InvalidStateError, match="attach this one anew"):
        thread.commit()
    workspace = thread.attach_workspace(folder)
    assert [each.path for each in workspace.files.list()] == ["new"]


def test_an_async_thread_refuses_a_folder_that_was_swapped_for_a_link(folder: Path, outside: Path) -> None:
    async def work() -> None:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("t")
            workspace = await thread.attach_workspace(folder)
            before = held(outside)
            _swap(folder, outside)
            with pytest.raises(InvalidStateError, match="was replaced"):
                await workspace.save()
            with pytest.raises(InvalidStateError, match="was replaced"):
                await thread.rewind(thread.head or 1, files=True)
            assert held(outside) == before

    asyncio.run(work())


def _ship_pipe(folder: Path) -> None:
    (folder / ".everthread-restoring").mkdir()
    os.mkfifo(folder / ".everthread-restoring" / "plan")


def _ship_endless_link(folder: Path) -> None:
    (folder / ".everthread-restoring").mkdir()
    (folder / ".everthread-restoring" / "plan").symlink_to("/dev/zero")


def _ship_made_up_plan(folder: Path) -> None:
    (folder / ".everthread-restoring").mkdir()
    (folder / ".everthread-restoring" / "plan").write_text('{"target":"x","before":"y"}')


def _ship_file(folder: Path) -> None:
    (folder / ".everthread-restoring").write_text("x")


def _ship_link(folder: Path) -> None:
    (folder.with_name("elsewhere")).mkdir()
    (folder.with_name("elsewhere") / "kept").write_text("kept")
    (folder / ".everthread-restoring").symlink_to(folder.with_name("elsewhere"))


@pytest.mark.parametrize("ship", [_ship_pipe, _ship_endless_link, _ship_made_up_plan, _ship_file, _ship_link])
def test_a_folder_that_ships_a_plan_of_its_own_is_recorded_and_restored(
    store: Store, folder: Path, ship: Any
) -> None:
    ship(folder)
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder)
    assert workspace.interrupted() is None
    first = thread.head
    (folder / "main.py").write_text("two\n")
    thread.commit()
    thread.rewind(first or 1, files=True)
    assert (folder / "main.py").read_text() == "one\n"
    assert [each.path for each in workspace.files.list()] == ["main.py"]
    if ship is _ship_link:
        assert os.listdir(folder.with_name("elsewhere")) == ["kept"]


_KILLED_RESTORE = """
import os, signal, sys
import everthread
url, folder = sys.argv[1:]
store = everthread.open(url)
thread = store.thread("a")
thread.attach_workspace(folder)
first = thread.head
for number in range(20):
    open(f"{folder}/f{number}", "w").write("two")
thread.commit()
real, left = os.rename, [8]
def rename(*arguments, **options):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments, **options)
os.rename = rename
thread.rewind(first, files=True)
"""


def _contents(folder: Path) -> set[str]:
    return {(folder / f"f{number}").read_text() for number in range(20)}


@pytest.mark.parametrize("same_store", [True, False])
def test_a_restore_of_one_thread_that_died_blocks_no_other_and_can_be_undone(
    tmp_path: Path, folder: Path, same_store: bool
) -> None:
    for number in range(20):
        (folder / f"f{number}").write_text("one")
    url = f"sqlite:///{tmp_path}/a.db"
    subprocess.run([sys.executable, "-c", _KILLED_RESTORE, url, str(folder)], check=False)
    assert _contents(folder) == {"one", "two"}
    with everthread.open(url if same_store else "memory:") as store:
        other = store.thread("b")
        workspace = other.attach_workspace(folder)
        assert workspace.interrupted() is None
        other.state["x"] = 1
        first = other.commit()
        (folder / "main.py").write_text("by b\n")
        other.commit()
        other.rewind(first, files=True)
        assert (folder / "main.py").read_text() == "one\n"
        assert _contents(folder) == {"one", "two"}
    with everthread.open(url) as store:
        thread = store.thread("a")
        workspace = thread.attach_workspace(folder)
        assert "workspace.undo() brings back what was there" in str(workspace.interrupted())
        thread.state["x"] = 1
        with pytest.raises(InvalidStateError, match="cut short"):
            thread.commit()
        workspace.undo()
        assert _contents(folder) == {"two"}
        assert not (folder / ".everthread-restoring").exists()
        thread.commit()


def test_a_restore_that_died_goes_on_with_the_rewind_that_its_error_names(
    tmp_path: Path, folder: Path
) -> None:
    for number in range(20):
        (folder / f"f{number}").write_text("one")
    url = f"sqlite:///{tmp_path}/a.db"
    subprocess.run([sys.executable, "-c", _KILLED_RESTORE, url, str(folder)], check=False)

    async def work() -> None:
        async with everthread.open_async(url) as store:
            thread = await store.thread("a")
            workspace = await thread.attach_workspace(folder)
            assert "thread.rewind(version, files=True) goes on" in str(await workspace.interrupted())
            await thread.rewind(2, files=True)
            assert _contents(folder) == {"one"}
            assert await workspace.interrupted() is None

    asyncio.run(work())


@pytest.mark.parametrize("call", ["mkdir", "write", "rename"])
def test_a_full_disk_ends_a_rewind_with_a_storage_error_and_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        workspace = thread.attach_workspace(folder)
        first = thread.head
        (folder / "main.py").write_text("two\n")
        thread.commit()

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, call, fail)
            with pytest.raises(StorageWriteError, match="no space left on device"):
                thread.rewind(first or 1, files=True)
        assert (folder / "main.py").read_text() == "two\n"
        if workspace.interrupted() is not None:
            workspace.undo()
        assert (folder / "main.py").read_text() == "two\n"
        thread.rewind(first or 1, files=True)
        assert (folder / "main.py").read_text() == "one\n"


def _nest(folder: Path, levels: int) -> None:
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.chmod(fd, 0o500)
    os.close(fd)


def test_a_tree_nested_deeper_than_the_stack_is_left_out_by_name_and_can_be_removed(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    boxes = LocalSandboxes(store, tmp_path / "boxes")
    with boxes.open("a") as box:
        (Path(box.path) / "f").write_text("x")
        _nest(Path(box.path), 3 * sys.getrecursionlimit())
        with pytest.raises(LimitError, match="folders deep"):
            Files(store.thread("strict")).save_directory(box.path)
        box.save()
        assert box.files.read("f") == b"x"
        assert box.last is not None
        (why,) = box.last.left_out.values()
        assert why.endswith("is nested 257 folders deep; at most 256")
    assert not os.path.exists(box.path)


@pytest.mark.parametrize(
    "entry",
    ["text", 1.5, True, ["a"], {}, {"link": "text"}, {"link": b"a\0b"}, b"", b"\x01\xa4\x07", b"\x01\xa4\0x"],
)
def test_a_tree_with_an_entry_that_makes_no_sense_is_damage_and_counts_as_nothing(
    store: Store, tmp_path: Path, entry: object
) -> None:
    thread = store.thread("t")
    files = Files(thread)
    files.write("good", "good")
    files.save()
    thread.state["files"]["poison"] = entry
    thread.commit()
    target = tmp_path / "target"
    for call in (lambda: Files(thread).restore_directory(target), lambda: Files(thread).list()):
        with pytest.raises(StateCorruptedError):
            call()
    assert not target.exists()


@pytest.mark.parametrize("path", ["a/" * 300 + "b", "a\\x2fb", "..", "a/./b"])
def test_a_tree_with_a_path_that_leads_nowhere_is_damage(store: Store, tmp_path: Path, path: str) -> None:
    thread = store.thread("t")
    files = Files(thread)
    files.write("good", "good")
    files.save()
    thread.state["files"][path] = 0o755
    thread.commit()
    with pytest.raises(StateCorruptedError):
        Files(thread).restore_directory(tmp_path / "target")


@pytest.mark.parametrize(("scheme", "name"), [("file", "state"), ("sqlite", "app")])
def test_files_whose_names_begin_like_the_stores_are_recorded(folder: Path, scheme: str, name: str) -> None:
    slashes = "//" if scheme == "file" else "///"
    mine = [f"{name}.py", f"{name}ment.txt", f"{name}-wallet", f"{name}_x/y"]
    for each in mine:
        (folder / each).parent.mkdir(exist_ok=True)
        (folder / each).write_text("one")
    with everthread.open(f"{scheme}:{slashes}{folder}/{name}", keyring=folder / f"{name}.keys") as store:
        store.users.set("ann", "email", "a@b")
        thread = store.thread("t")
        workspace = thread.attach_workspace(folder)
        first = thread.head
        recorded = {each.path for each in workspace.files.list() if each.kind == "file"}
        assert recorded == {"main.py", *mine}
        for each in mine:
            (folder / each).write_text("two")
        thread.commit()
        thread.rewind(first or 1, files=True)
        assert {(folder / each).read_text() for each in mine} == {"one"}


def test_a_store_in_a_folder_with_an_odd_name_isnt_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "my work, 50%\\done é"
    folder.mkdir()
    (folder / "main.py").write_text("one\n")
    with everthread.open(folder / "agent.db") as store:
        workspace = store.thread("t").attach_workspace(folder)
        assert [each.path for each in workspace.files.list()] == ["main.py"]


def test_a_file_above_the_limit_is_left_out_by_name_and_blocks_no_commit(store: Store, folder: Path) -> None:
    (folder / "large").write_bytes(b"x" * 100)
    thread = store.thread("t")
    workspace = thread.attach_workspace(folder, limits=FileLimits(file_bytes_max=99))
    assert workspace.last is not None
    assert dict(workspace.last.left_out) == {"large": "it has 100 bytes, more than file_bytes_max (99)"}
    assert [each.path for each in workspace.files.list()] == ["main.py"]
