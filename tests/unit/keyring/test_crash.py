"""Keyrings through crashes: every acknowledged key survives kills, power loss, I/O errors and races."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everthread.errors import KeyringError
from everthread.keyring.keyring import FileKeyring

SOURCE = Path(sys.modules[FileKeyring.__module__].__file__).parents[2]
NEVER = 10**9


class Crash(BaseException):
    """The process is gone: no handler of ours catches this."""


class Disk:
    """Counts the calls that change the disk, stops the process at one of them, and knows what was synced.

    The tree itself is what a killed process leaves. ``images`` are what a power loss may leave: of a file
    what was last synced, of a directory also any part of what has happened to its names since.
    """

    CALLS = ("open", "pwrite", "ftruncate", "fsync", "rename", "mkdir")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls, self.stop_at, self.error = 0, NEVER, None
        self.real = {name: getattr(os, name) for name in self.CALLS}
        self.files: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.pending: dict[int, list[dict[str, int | None]]] = {}
        for path in (root, *root.rglob("*")):
            self._synced(path)

    def _synced(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self.names[inode] = {child.name: child.stat().st_ino for child in path.iterdir()}
            self.pending[inode] = []
        else:
            self.files[inode] = path.read_bytes()

    def _call(self, name: str, *args, **options):
        if name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC):
            return self.real[name](*args, **options)
        self.calls += 1
        if self.calls == self.stop_at and self.error is not None:
            raise self.error
        if self.calls >= self.stop_at and self.error is None:
            if name == "pwrite" and self.calls == self.stop_at:
                # The last write got half way.
                self.real[name](args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
            raise Crash
        new = name == "open" and not os.path.exists(args[0])
        answer = self.real[name](*args, **options)
        if name == "fsync":
            # A file that has been replaced shows as "name (deleted)": nothing reads it again.
            path = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
            if path.exists() and path.is_relative_to(self.root):
                self._synced(path)
        elif new or name in ("mkdir", "rename"):
            path = Path(args[1] if name == "rename" else args[0])
            inode = path.stat().st_ino
            change: dict[str, int | None] = {path.name: inode}
            if name == "rename":
                change[Path(args[0]).name] = None
            elif name == "mkdir":
                self.names[inode], self.pending[inode] = {}, []
            else:
                self.files[inode] = b""
            self.pending[path.parent.stat().st_ino].append(change)
        return answer

    @contextlib.contextmanager
    def watched(self, monkeypatch, stop_at: int = NEVER, error: OSError | None = None):
        self.calls, self.stop_at, self.error = 0, stop_at, error
        with monkeypatch.context() as patched:
            for name in self.CALLS:
                patched.setattr(
                    os, name, lambda *args, _name=name, **options: self._call(_name, *args, **options)
                )
            yield

    def images(self, target: Path):
        """Build each disk that a power loss may leave now, one after the other, at ``target``."""
        unsynced = [(inode, change) for inode, changes in self.pending.items() for change in changes]
        for chosen in itertools.product((False, True), repeat=len(unsynced)):
            names = {inode: dict(entries) for inode, entries in self.names.items()}
            for (inode, change), happened in zip(unsynced, chosen, strict=True):
                if happened:
                    names[inode].update(change)
            shutil.rmtree(target, ignore_errors=True)
            self._build(self.root.stat().st_ino, target, names)
            yield target

    def _build(self, inode: int, to: Path, names) -> None:
        if inode not in names:
            to.write_bytes(self.files[inode])
            to.chmod(0o600)
            return
        to.mkdir(mode=0o700)
        for name, child in names[inode].items():
            if child is not None:
                self._build(child, to / name, names)


@pytest.fixture(autouse=True)
def no_master_in_environment(monkeypatch):
    monkeypatch.delenv("EVERTHREAD_MASTER_KEY", raising=False)


@pytest.fixture
def no_real_sync(monkeypatch):
    """Where the machine stays up, waiting for its disk proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Story:
    """A keyring below ``root``, and what its users were told about it."""

    def __init__(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(mode=0o700)
        self.root = root
        self.made = {}
        self.destroying = set()
        self.destroyed = set()

    @property
    def directory(self):
        return self.root / "a" / "keyring"

    def create(self, *subjects):
        keyring = FileKeyring(self.directory)
        for subject in subjects:
            self.made[subject] = keyring.key_for(subject)

    def destroy(self, *subjects):
        keyring = FileKeyring(self.directory)
        for subject in subjects:
            self.destroying.add(subject)
            keyring.destroy(subject)
            self.destroyed.add(subject)

    def check(self, directory):
        """What they were told holds in ``directory``, and it works on."""
        keyring = FileKeyring(directory)
        for subject, key in self.made.items():
            gone = keyring.is_destroyed(key.key_id)
            assert gone or subject not in self.destroyed
            assert not gone or subject in self.destroying
            assert keyring.key(key.key_id) == (None if gone else key)
            assert gone == (keyring.key_for(subject) != key)
        last = keyring.key_for("last")
        assert FileKeyring(directory).key_for("last") == last
        keyring.destroy("last")
        again = FileKeyring(directory)
        assert again.key(last.key_id) is None
        assert again.is_destroyed(last.key_id)
        assert not (directory / "master.key.next").exists()


def create_two(story):
    story.create("ben", "cara")


def destroy_two(story):
    story.destroy("anna", "dora")


def begin(tmp_path, action):
    story = Story(tmp_path / "root")
    if action is destroy_two:
        story.create("anna", "ben", "dora")
    return story, Disk(story.root)


def crash_points(tmp_path, monkeypatch, action):
    """Run ``action`` again and again, stopped at each call that changes the disk, and once to its end."""
    for stop_at in itertools.count(1):
        story, disk = begin(tmp_path, action)
        with disk.watched(monkeypatch, stop_at):
            try:
                action(story)
                stopped = False
            except Crash:
                stopped = True
        yield story, disk
        if not stopped:
            assert stop_at > 20, "the calls are no longer seen"
            return


@pytest.mark.parametrize("action", [create_two, destroy_two])
def test_power_loss_at_every_write(tmp_path, monkeypatch, no_real_sync, action):
    for story, disk in crash_points(tmp_path, monkeypatch, action):
        for image in disk.images(tmp_path / "image"):
            story.check(image / "a" / "keyring")


@pytest.mark.parametrize("action", [create_two, destroy_two])
def test_a_kill_at_every_write_and_power_loss_later(tmp_path, monkeypatch, no_real_sync, action):
    """Who goes on after a killed process must not rely on what only the page cache holds."""
    for story, disk in crash_points(tmp_path, monkeypatch, action):
        with disk.watched(monkeypatch):
            story.create("ben", "cara")
        for image in disk.images(tmp_path / "image"):
            story.check(image / "a" / "keyring")
        story.check(story.directory)


def test_a_second_crash_while_a_master_key_waits(tmp_path, monkeypatch, no_real_sync):
    for number, (story, _) in enumerate(crash_points(tmp_path, monkeypatch, destroy_two)):
        names = {path.name for path in story.directory.iterdir()}
        if "master.key.next" not in names or "keys.jsonl.tmp" in names or "dora" in story.destroying:
            continue
        saved = tmp_path / f"saved-{number}"
        shutil.copytree(story.root, saved)
        stopped, stop_at = True, 0
        while stopped:
            stop_at += 1
            shutil.rmtree(story.root)
            shutil.copytree(saved, story.root)
            with Disk(story.root).watched(monkeypatch, stop_at):
                try:
                    story.destroy("ben")
                    stopped = False
                except Crash:
                    story.destroying.add("ben")
            story.check(story.directory)
            story.destroyed.discard("ben")


@pytest.mark.parametrize("left_over", [False, True])
def test_a_master_key_is_put_in_place_only_once(tmp_path, monkeypatch, no_real_sync, left_over):
    """Two processes found it waiting; the second to act must not overwrite what the first put in place."""
    for story, _ in crash_points(tmp_path, monkeypatch, destroy_two):
        next_path = story.directory / "master.key.next"
        if next_path.exists():
            waiting = FileKeyring(story.directory)
            assert waiting.key_ids("ben")
            FileKeyring(story.directory).key_for("eve")
            if left_over:
                # As a destruction leaves it that crashed before it changed anything.
                next_path.write_bytes(os.urandom(32))
                next_path.chmod(0o600)
            story.made["finn"] = waiting.key_for("finn")
            story.check(story.directory)


@pytest.mark.parametrize("action", [create_two, destroy_two])
def test_an_error_at_every_write(tmp_path, monkeypatch, no_real_sync, action):
    for stop_at in itertools.count(1):
        story, disk = begin(tmp_path, action)
        with disk.watched(monkeypatch, stop_at, OSError(errno.EIO, "Input/output error")):
            # Overwriting what has been replaced is a best effort, so not every error surfaces.
            with contextlib.suppress(KeyringError):
                action(story)
            failed = disk.calls >= stop_at
        action(story)
        story.check(story.directory)
        if not failed:
            break
    assert stop_at > 20


def run(code, *args):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True, env=environment
    )


RACE = """
import random, sys, time
from everthread.keyring.keyring import FileKeyring
keyring, start, seed = FileKeyring(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
subjects = [f"s{number}" for number in range(30)]
random.Random(seed).shuffle(subjects)
time.sleep(max(0, start - time.time()))
for subject in subjects:
    print(subject, keyring.key_for(subject).key_id.hex())
"""


def test_processes_agree_on_one_key(tmp_path):
    directory = tmp_path / "keyring"
    start = time.time() + 0.5
    processes = [run(RACE, directory, start, seed) for seed in range(6)]
    answers = [dict(line.split() for line in process.communicate()[0].splitlines()) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    assert len(answers[0]) == 30
    assert all(answer == answers[0] for answer in answers)
    assert (directory / "keys.jsonl").read_bytes().count(b"\n") == 31


KILLED = """
import sys
from everthread.keyring.keyring import FileKeyring
keyring, prefix = FileKeyring(sys.argv[1]), sys.argv[2]
for number in range(100_000):
    name = f"{prefix}-{number}"
    key = keyring.key_for(name)
    print("made", name, key.key_id.hex(), key.key.hex(), flush=True)
    if number % 3 == 2:
        keyring.destroy(name)
        print("destroyed", name, key.key_id.hex(), flush=True)
"""


def test_killed_processes_lose_nothing(tmp_path):
    directory = tmp_path / "keyring"
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    chance = random.Random(seed)
    made, destroyed = {}, {}
    for turn in range(5):
        processes = [run(KILLED, directory, f"{turn}-{number}") for number in range(2)]
        lines = [processes[0].stdout.readline() for _ in range(chance.randrange(4, 20))]
        time.sleep(chance.random() / 100)
        for process in processes:
            process.send_signal(signal.SIGKILL)
        lines += [
            line for process in processes for line in process.communicate()[0].splitlines(keepends=True)
        ]
        for what, name, *rest in (line.split() for line in lines if line.endswith("\n")):
            (made if what == "made" else destroyed)[name] = rest
        keyring = FileKeyring(directory)
        for name, (key_id, key) in made.items():
            found = keyring.key(bytes.fromhex(key_id))
            if name in destroyed or keyring.is_destroyed(bytes.fromhex(key_id)):
                assert int(name.rsplit("-", 1)[1]) % 3 == 2
                assert found is None
            else:
                assert found.key.hex() == key
        for key_id, *_ in destroyed.values():
            assert keyring.is_destroyed(bytes.fromhex(key_id))
    assert made
    assert destroyed


def test_a_keyring_that_was_never_closed_goes_quietly(tmp_path):
    code = (
        "import sys; from everthread.keyring.keyring import *; k = FileKeyring(sys.argv[1]); k.key_for('a')"
    )
    process = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, str(tmp_path / "keyring")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert (process.returncode, process.stderr) == (0, "")
