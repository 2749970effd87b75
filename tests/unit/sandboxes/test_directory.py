"""Directories saved and restored: bit by bit, all or nothing, and never anything outside of them."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Store
from everthread.errors import (
    InvalidStateError,
    InvalidValueError,
    LimitError,
    StateCorruptedError,
    StorageWriteError,
)
from everthread.sandboxes import FileLimits, Files
from everthread.sandboxes import directory as directories
from everthread.sandboxes.directory import save_directory
from everthread.sandboxes.disk import Folder
from everthread.sandboxes.stat_cache import StatCache, is_settled
from tests.kit.trees import RandomTree, held


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db", durability="process") as opened:
        yield opened


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/s.db", "file://{}/store"])
def test_random_trees_come_back_bit_by_bit(url: str, tmp_path: Path, seed: int) -> None:
    with everthread.open(url.format(tmp_path), durability="process") as store:
        _save_and_restore(store, tmp_path, random.Random(seed))


def test_random_trees_come_back_from_servers(
    postgres_url: str, valkey_url: str, tmp_path: Path, seed: int
) -> None:
    for name, url in (("postgres", postgres_url), ("valkey", valkey_url)):
        with everthread.open(url, durability="process") as store:
            (tmp_path / name).mkdir()
            _save_and_restore(store, tmp_path / name, random.Random(seed))


def _save_and_restore(store: Store, tmp_path: Path, rng: random.Random) -> None:
    tree = RandomTree(tmp_path / "tree", rng, large=3_000_000)
    files, cache = Files(store.thread("t")), StatCache()
    for _ in range(30):
        tree.grow()
    known = []
    for turn in range(15):
        for _ in range(rng.randrange(6)):
            tree.change()
        saved = save_directory(files, tree.root, cache=cache)
        known.append((saved.snapshot, held(tmp_path / "tree")))
        if turn % 5 == 4:
            Files(store.thread("t")).restore_directory(tmp_path / f"out{turn}")
            assert held(tmp_path / f"out{turn}") == known[-1][1]
    for number, (snapshot, expected) in enumerate(rng.sample(known, 4)):
        Files(store.thread("t")).restore_directory(tmp_path / f"then{number}", at=snapshot)
        assert held(tmp_path / f"then{number}") == expected


def test_saving_again_changes_nothing_and_reads_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(20):
        (root / f"f{number}").write_text(str(number))
        os.utime(root / f"f{number}", (1, 1))
    # Both times of a file are in the past, as they are of nearly all files.
    monkeypatch.setattr(directories, "is_settled", lambda seen, began: True)
    files, cache = Files(store.thread("t")), StatCache(str(tmp_path / "cache" / "c"))
    first = save_directory(files, root, cache=cache)
    assert (first.added, first.changed, first.removed) == (20, 0, 0)
    opened: list[str] = []
    real = directories.Folder.open_file
    monkeypatch.setattr(
        directories.Folder, "open_file", lambda self, text: opened.append(text) or real(self, text)
    )
    again = save_directory(files, root, cache=StatCache(str(tmp_path / "cache" / "c")))
    assert again.snapshot == first.snapshot
    assert opened == []
    (root / "f3").write_text("changed")
    (root / "f4").unlink()
    third = save_directory(files, root, cache=StatCache(str(tmp_path / "cache" / "c")))
    assert opened == ["f3"]
    assert (third.added, third.changed, third.removed) == (0, 1, 1)


def test_what_was_written_just_now_is_read_again(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    files, cache = Files(store.thread("t")), StatCache()
    for turn in range(20):
        (root / "a").write_text(f"{turn:03}")
        save_directory(files, root, cache=cache)
        assert files.read("a") == f"{turn:03}".encode()
    second = 1_000_000_000
    assert is_settled((5 * second + 1, 5 * second, 1, 1, 1), 6 * second)
    # Whole seconds are all that some file systems tell.
    assert not is_settled((5 * second, 5 * second, 1, 1, 1), 6 * second)
    assert not is_settled((6 * second - 1, 5 * second, 1, 1, 1), 6 * second)


def test_a_cache_of_before_the_machine_started_isnt_believed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("x")
    monkeypatch.setattr(directories, "is_settled", lambda seen, began: True)
    path = str(tmp_path / "c")
    save_directory(Files(store.thread("t")), root, cache=StatCache(path))
    cache = StatCache(path)
    cache.open(os.stat(root))
    assert set(cache.files) == {"a"}
    monkeypatch.setattr("everthread.sandboxes.stat_cache.boot_id", lambda: "another")
    cache = StatCache(path)
    cache.open(os.stat(root))
    assert cache.files == {}


def test_what_a_cache_knows_of_another_tree_isnt_believed(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("x")
    cache = StatCache()
    save_directory(Files(store.thread("t")), root, cache=cache)
    other = Files(store.thread("u"))
    save_directory(other, root, cache=cache)
    assert other.read("a") == b"x"


def test_devices_sockets_and_pipes_are_refused_by_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a").write_text("x")
    files = Files(store.thread("t"))
    os.mkfifo(root / "sub" / "pipe")
    with pytest.raises(InvalidValueError, match="'sub/pipe' is a pipe") as caught:
        files.save_directory(root)
    assert caught.value.path == "sub/pipe"
    os.unlink(root / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        # The path of a socket must be short.
        monkeypatch.chdir(root)
        listening.bind("s")
        with pytest.raises(InvalidValueError, match="'s' is a socket"):
            files.save_directory(root)
    assert store.thread("t").head is None


def test_links_are_kept_and_never_followed(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    root = tmp_path / "tree"
    root.mkdir()
    (root / "out").symlink_to(outside)
    (root / "loop").symlink_to(".")
    (root / "gone").symlink_to("nowhere")
    files = Files(store.thread("t"))
    files.save_directory(root)
    assert [(each.path, each.kind) for each in files.list()] == [
        ("gone", "link"),
        ("loop", "link"),
        ("out", "link"),
    ]
    assert list(store.scan("secret")) == []
    files.restore_directory(tmp_path / "again")
    assert os.readlink(tmp_path / "again" / "out") == str(outside)
    assert held(outside) == {b"secret": ("file", 0o644, b"secret")}


def _forged(store: Store, tree: dict[str, object]) -> Files:
    """A tree as no call of ours would write it."""
    thread = store.thread(f"forged {len(list(store.threads()))}")
    files = Files(thread)
    files.write("content", "hostile")
    content = files.tree["content"]
    thread.state["files"] = {path: content if entry is None else entry for path, entry in tree.items()}
    thread.commit()
    return Files(thread)


@pytest.mark.parametrize(
    "tree",
    [
        {"../evil": None},
        {"a/../../evil": None},
        {"/evil": None},
        {"link": {"link": b".."}, "link/evil": None},
        {"link": {"link": b"/"}, "link/tmp/evil": None},
        {"file": None, "file/evil": None},
        {"a//evil": None},
        {"": None},
        {"a\0b": None},
        {"x": b"\x01"},
        {"x": {"link": b""}},
    ],
)
def test_a_forged_tree_is_refused_and_touches_nothing(
    store: Store, tmp_path: Path, tree: dict[str, object]
) -> None:
    target = tmp_path / "in" / "target"
    with pytest.raises((StateCorruptedError, InvalidValueError)):
        _forged(store, tree).restore_directory(target)
    assert not target.exists()
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "in" / "evil").exists()
    assert list((tmp_path / "in").iterdir()) == []


def test_limits_of_a_directory_name_the_path(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "large").write_bytes(b"x" * 100)
    with pytest.raises(LimitError, match="'large'"):
        Files(store.thread("t"), limits=FileLimits(file_bytes_max=99)).save_directory(root)
    with pytest.raises(LimitError, match="'large'"):
        Files(store.thread("t"), limits=FileLimits(tree_bytes_max=99)).save_directory(root)
    (root / "more").write_bytes(b"x")
    with pytest.raises(LimitError, match="more than 1 files"):
        Files(store.thread("t"), limits=FileLimits(files_max=1)).save_directory(root)
    deep = root
    for _ in range(300):
        deep = deep / "d"
    os.makedirs(deep)
    with pytest.raises(LimitError, match="folders deep"):
        Files(store.thread("t")).save_directory(root)
    assert store.thread("t").head is None


def test_a_file_that_is_written_while_it_is_read_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "still").write_text("still")
    (root / "busy").write_text("before")
    files = Files(store.thread("t"))
    files.save_directory(root)
    (root / "busy").write_text("after ")
    real, turns = os.read, iter(range(1000))

    def read(fd: int, count: int) -> bytes:
        data = real(fd, count)
        if data.startswith(b"after"):
            (root / "busy").write_text(f"after {next(turns)}")
        return data

    monkeypatch.setattr(directories.os, "read", read)
    saved = files.save_directory(root)
    assert saved.unsettled == ("busy",)
    assert files.read("busy") == b"before"
    monkeypatch.undo()
    files.save_directory(root)
    assert files.read("busy").startswith(b"after")


def swap(folder: Path, aside: Path) -> None:
    """A link takes the place of a folder, or the folder comes back."""
    if folder.is_symlink():
        folder.unlink()
        aside.rename(folder)
    else:
        folder.rename(aside)
        folder.symlink_to(aside)


@pytest.mark.parametrize("swaps", [1, 99])
def test_a_folder_that_is_swapped_while_it_is_looked_at_is_taken_again_or_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: int
) -> None:
    work, aside = tmp_path / "work", tmp_path / "aside"
    (work / "d").mkdir(parents=True)
    (work / "d" / "f").write_text("mine")
    files = Files(store.thread("t"))
    first = files.save_directory(work)
    enter, left = Folder.enter, [swaps]

    def entered(self: Folder, fd: int, name: str) -> int | None:
        if left[0] <= 0:
            return enter(self, fd, name)
        left[0] -= 1
        swap(work / "d", aside)
        try:
            return enter(self, fd, name)
        finally:
            swap(work / "d", aside)

    monkeypatch.setattr(Folder, "enter", entered)
    (work / "new").write_text("beside it")
    saved = files.save_directory(work)
    assert saved.unsettled == (() if swaps == 1 else ("d",))
    assert (saved.added, saved.changed, saved.removed) == (1, 0, 0)
    assert files.read("d/f") == b"mine"
    assert first.unsettled == ()


def test_a_folder_that_may_not_be_entered_is_left_out_and_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by hand: the superuser, as whom tests may run, may enter any."""
    work = tmp_path / "work"
    (work / "d").mkdir(parents=True)
    (work / "f").write_text("mine")

    def refuse(self: Folder, fd: int, name: str) -> int | None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Folder, "enter", refuse)
    with pytest.raises(StorageWriteError, match="'d' can't be looked at: permission denied"):
        Files(store.thread("t")).save_directory(work)
    workspace = store.thread("w").attach_workspace(work)
    assert workspace.last is not None
    assert workspace.last.left_out == {"d": "permission denied"}
    assert list(workspace.files.tree) == ["f"]


def test_a_large_directory_is_committed_in_parts_that_show_no_half_tree(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "_FLUSH_BYTES", 10_000)
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("before")
    files = Files(store.thread("t"))
    files.save_directory(root)
    for number in range(20):
        (root / f"f{number}").write_bytes(random.Random(number).randbytes(3_000))
    files.save_directory(root)
    thread = store.thread("t")
    counts = [len(files.at(version).tree) for version in thread.history(limit=None)]
    assert len(counts) > 3
    assert set(counts) == {1, 21}
    assert held(root) == held_of(files, tmp_path)


def held_of(files: Files, tmp_path: Path) -> object:
    files.restore_directory(tmp_path / "held")
    return held(tmp_path / "held")


def test_only_an_empty_place_is_restored_into(store: Store, tmp_path: Path) -> None:
    files = Files(store.thread("t"))
    files.write("a", "x")
    with pytest.raises(InvalidStateError, match="unsaved"):
        files.save_directory(tmp_path)
    files.save()
    target = tmp_path / "full"
    target.mkdir()
    (target / "mine").write_text("mine")
    with pytest.raises(InvalidValueError, match="isn't an empty folder"):
        files.restore_directory(target)
    (target / "mine").unlink()
    files.restore_directory(target)
    assert (target / "a").read_text() == "x"
    with pytest.raises(InvalidValueError, match="can't be opened"):
        files.save_directory(tmp_path / "absent")


def test_folders_that_may_not_be_written_come_back(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "locked" / "inner").mkdir(parents=True)
    (root / "locked" / "inner" / "a").write_text("x")
    os.chmod(root / "locked" / "inner", 0o555)
    os.chmod(root / "locked", 0o500)
    try:
        files = Files(store.thread("t"))
        files.save_directory(root)
        files.restore_directory(tmp_path / "again")
        assert held(tmp_path / "again") == held(root)
    finally:
        for top in (root, tmp_path / "again"):
            os.chmod(top / "locked", 0o700)
            os.chmod(top / "locked" / "inner", 0o700)
