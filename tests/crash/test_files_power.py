"""Power cuts on the file store: disks that one could have left behind, with and without syncs.

Every change that the store makes to its files is recorded. Then the disk is rebuilt as it may have looked at
a random moment: of what was synced all is there; of everything else any part, sectors torn from each other,
sizes ahead of the data, names that came or went or didn't. The store on it must hold every operation
acknowledged before, and of the one under way all or nothing.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import everthread
from tests.crash.workload import Contents, Executor, Model, check_past, difference, memory_directory, observe

SEED = int(os.environ.get("EVERTHREAD_SEED", "20260103"))
OPERATIONS = 150
STATES = 120
SECTOR = 512
CALLS = ("open", "close", "pwrite", "ftruncate", "fdatasync", "fsync", "replace", "rename", "unlink", "mkdir")

Event = tuple[Any, ...]


class Recorder:
    """Notes what is done to the files below a folder, by wrapping the calls that do it.

    Removing whole trees isn't noted: that it never got to the disk is one of the things that may happen.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.events: list[Event] = []
        self._inodes: dict[str, int] = {}
        self._open: dict[int, int | str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in CALLS}
        for name, function in real.items():
            setattr(os, name, self._wrapped(getattr(self, f"note_{name}"), function))
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    def _wrapped(self, note: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if options.get("dir_fd") is None:
                note(result, *arguments)
            return result

        return call

    def _path(self, path: Any) -> str | None:
        """Below the folder, or ``None``."""
        if isinstance(path, str) and path.startswith(self.root):
            return os.path.relpath(path, self.root)
        return None

    def note_open(self, file: int, path: Any, flags: int, *_: Any) -> None:
        name = self._path(path)
        if name is None:
            return
        if flags & os.O_DIRECTORY:
            self._open[file] = name
            return
        if name not in self._inodes:
            assert flags & os.O_CREAT, f"{name} came from nowhere"
            self._inodes[name] = len(self.events)
            self.events.append(("name", name, self._inodes[name]))
        self._open[file] = self._inodes[name]
        if flags & os.O_TRUNC:
            self.events.append(("size", self._inodes[name], 0))

    def note_close(self, _: None, file: int) -> None:
        self._open.pop(file, None)

    def note_pwrite(self, written: int, file: int, data: bytes, offset: int) -> None:
        if file in self._open:
            self.events.append(("write", self._open[file], offset, bytes(data[:written])))

    def note_ftruncate(self, _: None, file: int, size: int) -> None:
        if file in self._open:
            self.events.append(("size", self._open[file], size))

    def note_fdatasync(self, _: None, file: int) -> None:
        if file in self._open:
            self.events.append(("sync", self._open[file]))

    note_fsync = note_fdatasync

    def note_replace(self, _: None, source: Any, target: Any) -> None:
        old, new = self._path(source), self._path(target)
        if old is not None and new is not None:
            inode = self._inodes[new] = self._inodes.pop(old)
            self.events.append(("name", new, inode))
            self.events.append(("name", old, None))

    note_rename = note_replace

    def note_unlink(self, _: None, path: Any) -> None:
        name = self._path(path)
        if name is not None:
            self._inodes.pop(name, None)
            self.events.append(("name", name, None))

    def note_mkdir(self, _: None, path: Any, *__: Any) -> None:
        name = self._path(path)
        if name is not None:
            self.events.append(("name", name, -1))


@dataclasses.dataclass
class File:
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = dataclasses.field(default_factory=list)

    def current(self) -> bytes:
        return _applied(self.durable, self.pending)

    def torn(self, rng: random.Random) -> bytes:
        """What was synced, and any part of the rest; the size may be ahead of the data."""
        kept: list[tuple[int, bytes | None]] = []
        for offset, data in self.pending:
            if data is None:
                if rng.random() < 0.5:
                    kept.append((offset, None))
                continue
            at = 0
            while at < len(data):
                step = SECTOR - (offset + at) % SECTOR
                if rng.random() < 0.5:
                    kept.append((offset + at, data[at : at + step]))
                at += step
        result = _applied(self.durable, kept)
        full = len(self.current())
        if full > len(result) and rng.random() < 0.3:
            result += bytes(rng.randint(0, full - len(result)))
        return result


def _applied(data: bytes, changes: list[tuple[int, bytes | None]]) -> bytes:
    result = bytearray(data)
    for offset, change in changes:
        if len(result) < offset:
            result += bytes(offset - len(result))
        if change is None:
            del result[offset:]
        else:
            result[offset : offset + len(change)] = change
    return bytes(result)


class Disk:
    """Files and names as far as the events went, and which of that is certain."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}
        self.names: dict[str, int] = {}
        self.pending: list[tuple[str, int | None]] = []

    def apply(self, event: Event) -> None:
        match event:
            case ("name", name, inode):
                self.pending.append((name, inode))
                if inode is not None and inode >= 0:
                    self.files.setdefault(inode, File())
            case ("write", inode, offset, data):
                self.files[inode].pending.append((offset, data))
            case ("size", inode, size):
                self.files[inode].pending.append((size, None))
            case ("sync", str(folder)):
                # A sync of a folder makes its names durable, those of others stay in doubt.
                mine = [(n, i) for n, i in self.pending if (os.path.dirname(n) or ".") == folder]
                self.pending = [each for each in self.pending if each not in mine]
                for name, inode in mine:
                    self._settle(self.names, name, inode)
            case ("sync", inode):
                file = self.files[inode]
                self.files[inode] = File(file.current())

    @staticmethod
    def _settle(names: dict[str, int], name: str, inode: int | None) -> None:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode

    def write(self, root: Path, rng: random.Random) -> None:
        """A disk as a power cut at this moment may leave it."""
        names = dict(self.names)
        for name, inode in self.pending:
            if rng.random() < 0.5:
                self._settle(names, name, inode)
        for name, inode in sorted(names.items()):
            path = root / name
            if not path.parent.is_dir():
                # The folder that it was in never came to be.
                continue
            if inode < 0:
                path.mkdir(exist_ok=True)
            elif not path.is_dir():
                path.write_bytes(self.files[inode].torn(rng))


@dataclasses.dataclass
class Run:
    events: list[Event]
    #: How many events there were at each acknowledgement, and what the store held then.
    acknowledged: list[tuple[int, Model]]


def record(durability: str, seed: int) -> Run:
    with tempfile.TemporaryDirectory(dir=memory_directory()) as place:
        root = Path(place) / "store"
        recorder = Recorder(Path(place))
        model = Model(seed)
        acknowledged = [(0, model.copy())]
        with recorder.recording():
            store = everthread.open(f"file://{root}", durability=durability)
            executor = Executor(store)
            for number in range(OPERATIONS):
                operation = model.plan()
                executor.perform(operation)
                model.apply(operation)
                acknowledged.append((len(recorder.events), model.copy()))
                if number % 40 == 39:
                    store.close()
                    store = everthread.open(f"file://{root}", durability=durability)
                    executor = Executor(store)
            store.close()
        return Run(recorder.events, acknowledged)


def losses(run: Run, seed: int) -> list[str]:
    """What was missing or wrong on disks that a power cut could have left behind."""
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(len(run.events) + 1), STATES))
    disk, done, found = Disk(), 0, []
    for number, moment in enumerate(moments):
        for event in run.events[done:moment]:
            disk.apply(event)
        done = moment
        place = Path(tempfile.mkdtemp(dir=memory_directory()))
        try:
            disk.write(place, rng)
            problem = check(place / "store", run, moment, deep=number % 10 == 0)
            if problem is not None:
                found.append(f"seed {seed}, moment {moment}: {problem}")
        finally:
            shutil.rmtree(place)
    return found


def check(path: Path, run: Run, moment: int, *, deep: bool) -> str | None:
    model = next(model for at, model in reversed(run.acknowledged) if at <= moment)
    before: Contents = model.contents()
    if not path.is_dir():
        return None if not before else "the store is gone"
    try:
        with everthread.open(f"file://{path}", durability="process") as store:
            found = observe(store)
            if found not in (before, model.after(model.plan())):
                return difference(found, before)
            if deep and found == before:
                check_past(store, model)
            report = store.verify()
            return None if report else str(report.damage[0])
    except (everthread.EverthreadError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"


def test_full_durability_loses_nothing() -> None:
    for seed in (SEED, SEED + 1):
        print(f"EVERTHREAD_SEED={seed}")
        assert losses(record("full", seed), seed) == []


def test_without_syncs_the_same_check_finds_losses() -> None:
    """Otherwise it would prove nothing. What is left is whole all the same, as far as there is a store."""
    print(f"EVERTHREAD_SEED={SEED}")
    found = losses(record("process", SEED), SEED)
    assert len(found) > STATES // 4
