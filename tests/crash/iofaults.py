"""Carries out operations on a disk that fails at every possible call, one run for each, and judges each run.

A run copies a prepared store, opens it, lets one operation meet the failure, and then looks three times: at
a copy of the files as they are (the process might have died now), through the same store and handles, and
after the operation was repeated and the store opened again. Each time the store must hold what it held
before, or what it holds after the operation, and nothing between; what was acknowledged must be there.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import everthread
from everthread.errors import (
    EverthreadError,
    StateCorruptedError,
    ThreadNotFoundError,
    UnavailableError,
    UsageError,
)
from tests.kit.failing_disk import KILL, DiskCall, FaultyDisk

Through = Literal["system", "vfs"]
Engine = Literal["sqlite", "file"]
Content = dict[str, Any]
FOLD_AFTER = 64
LARGE_BYTES = 300_000
NEVER = 2**62


@dataclasses.dataclass(frozen=True)
class Scenario:
    """``act`` is what meets the failure, after ``stage``; ``look`` says what a reader sees afterwards."""

    name: str
    act: Callable[[everthread.Store, Any, Path], None]
    stage: Callable[[Any], None] = lambda thread: None
    look: Callable[[everthread.Store, Path], Content] = lambda store, place: content(store)
    #: How many versions the thread has before.
    commits: int = 8


def content(store: everthread.Store) -> Content:
    """Everything that a reader of the store can see."""
    found: Content = {}
    for info in store.threads():
        thread = store.thread(info.name)
        found[info.name] = (
            info.seq,
            thread.state.plain(),
            [item["id"] for item in thread.messages],
            [(version.seq, version.label, version.kind) for version in thread.history(limit=None)],
        )
    return found


def with_copy(store: everthread.Store, place: Path) -> Content:
    """As :func:`content`, and what a backup beside it holds."""
    found = content(store)
    copy = place / "backup"
    if copy.exists():
        inside = place.with_name(f"{place.name}-backup")
        shutil.rmtree(inside, ignore_errors=True)
        if copy.is_dir():
            shutil.copytree(copy, inside / "store")
        else:
            inside.mkdir()
            shutil.copyfile(copy, inside / "store.db")
        with everthread.open(url(inside, "file" if copy.is_dir() else "sqlite")) as opened:
            found["the backup"] = content(opened)
            assert opened.verify()
    return found


def _edit(thread: Any) -> None:
    thread.state["n"] = "new"
    thread.messages.append({"id": "new", "text": "x" * 500})


def _extend(thread: Any) -> None:
    noise = random.Random(1)
    thread.messages.extend(
        {"id": f"large {i}", "text": noise.randbytes(LARGE_BYTES // 8).hex()} for i in range(4)
    )


def _commit(store: everthread.Store, thread: Any, place: Path) -> None:
    thread.commit(label="the new one", metadata={"run": "new"})


def _first(store: everthread.Store, thread: Any, place: Path) -> None:
    fresh = store.thread("fresh")
    fresh.state["n"] = "new"
    fresh.commit(key="first")


def _step(store: everthread.Store, thread: Any, place: Path) -> None:
    with store.thread("main").step("a step") as step:
        if not step.done:
            step.messages.append({"id": step.message_id("m")})
            step.result = "done"


def _fork(store: everthread.Store, thread: Any, place: Path) -> None:
    thread.fork("forked", at=3)


def _rewind(store: everthread.Store, thread: Any, place: Path) -> None:
    thread.rewind(3)


def _delete(store: everthread.Store, thread: Any, place: Path) -> None:
    store.thread("doomed").delete()


def _search(store: everthread.Store, thread: Any, place: Path) -> None:
    found = [info.name for info in store.threads(metadata={"run": 1})]
    assert found == ["doomed", "main"], found


def _backup(store: everthread.Store, thread: Any, place: Path) -> None:
    store.backup(place / "backup")


def _restore(store: everthread.Store, thread: Any, place: Path) -> None:
    store.restore(place / "earlier")


SCENARIOS = [
    Scenario("commit", _commit, _edit),
    Scenario("first commit", _first),
    Scenario("large commit", _commit, _extend),
    Scenario("fold", _commit, _edit, commits=FOLD_AFTER),
    Scenario("step", _step),
    Scenario("fork", _fork),
    Scenario("rewind", _rewind),
    Scenario("delete", _delete),
    Scenario("search", _search),
    Scenario("backup", _backup, look=with_copy),
    Scenario("restore", _restore),
]


def prepare(place: Path, commits: int, engine: Engine) -> None:
    """A store with two threads and, beside it, a backup of an earlier moment."""
    place.mkdir(parents=True)
    with everthread.open(url(place, engine)) as store:
        for name in ("main", "doomed"):
            thread = store.thread(name)
            for number in range(commits if name == "main" else 5):
                thread.state["n"] = number
                thread.messages.append({"id": f"m{number}", "text": "x" * 100})
                thread.commit(label=f"version {number}", metadata={"run": 1})
                if number == 3 and name == "main":
                    store.backup(place / "earlier")


def url(place: Path, engine: Engine) -> str:
    if engine == "file":
        return f"file://{place}/store"
    # Few pages, so that a checkpoint happens behind the operation, too.
    return f"sqlite:///{place}/store.db?wal_autocheckpoint=4"


@dataclasses.dataclass
class Tally:
    """What was seen: failed calls by kind, errors by type, and how the store stood after a failure."""

    runs: int = 0
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    stood: Counter[str] = dataclasses.field(default_factory=Counter)
    messages: set[str] = dataclasses.field(default_factory=set)


def fail_everywhere(
    scenario: Scenario,
    directory: Path,
    error: int,
    times: int | None,
    through: Through,
    *,
    engine: Engine = "sqlite",
    seed: int | None = None,
    part: tuple[int, int] = (0, 1),
) -> Tally:
    """Let each call that the operation makes fail, one after the other; with a seed those :func:`chosen`.

    ``part``: the k-th of n parts of them, from 0.
    """
    template = directory / "template"
    prepare(template, scenario.commits, engine)
    tally = Tally()
    runs = Runs(scenario, template, directory / "run", engine)
    calls = runs.calls(error, through)
    numbers = range(1, len(calls) + 1) if seed is None else chosen(calls, seed)
    for nth in numbers[part[0] :: part[1]]:
        where = f"{scenario.name}, call {nth}, {errno.errorcode[error]} × {times or 'all'}, {through}"
        try:
            runs.go(nth, error, times, through, tally)
        except Exception as problem:
            raise AssertionError(f"{where} ({runs.failed}): {problem!r}") from problem
    return tally


def kill_everywhere(scenario: Scenario, directory: Path, engine: Engine, seed: int) -> int:
    """Kill a process at those calls of the operation that are :func:`chosen`; how many there were."""
    template = directory / "template"
    prepare(template, scenario.commits, engine)
    runs = Runs(scenario, template, directory / "run", engine)
    numbers = chosen(runs.calls(KILL, "system"), seed)
    for nth in numbers:
        runs.kill(nth)
    return len(numbers)


def chosen(calls: list[DiskCall], seed: int) -> list[int]:
    """The numbers of the calls to let fail: one of those between the same neighbours, and the last of all."""
    around: dict[Any, list[int]] = {}
    for number, call in enumerate(calls, 1):
        before = calls[number - 2] if number > 1 else None
        after = calls[number] if number < len(calls) else None
        around.setdefault((before, call, after), []).append(number)
    draw = random.Random(seed)
    return sorted({len(calls), *(draw.choice(numbers) for numbers in around.values())})


class Runs:
    """Runs of one scenario, each on a fresh copy of the prepared store."""

    def __init__(self, scenario: Scenario, template: Path, place: Path, engine: Engine) -> None:
        self.scenario = scenario
        self.place = place
        self.failed: list[DiskCall] = []
        self._template = template
        self._engine = engine
        with self._open() as store:
            thread = self._thread(store)
            self.old = scenario.look(store, place)
            scenario.stage(thread)
            scenario.act(store, thread, place)
            self.new = scenario.look(store, place)

    def _open(self) -> everthread.Store:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._template, self.place)
        return everthread.open(url(self.place, self._engine))

    def _thread(self, store: everthread.Store) -> Any:
        thread = store.thread("main")
        # Pins the handle.
        assert thread.head
        return thread

    def calls(self, error: int, through: Through) -> list[DiskCall]:
        """The calls that the operation makes when none of them fails."""
        with FaultyDisk(self.place, through=through) as disk, self._open() as store:
            thread = self._thread(store)
            self.scenario.stage(thread)
            disk.fail(NEVER, error)
            self.scenario.act(store, thread, self.place)
            found = list(disk.calls)
            disk.heal()
        return found

    def go(self, nth: int, error: int, times: int | None, through: Through, tally: Tally) -> None:
        with FaultyDisk(self.place, through=through) as disk:
            store = self._open()
            thread = self._thread(store)
            self.scenario.stage(thread)
            disk.fail(nth, error, times=times)
            problem = self._act(store, thread, disk)
            disk.heal()
            assert self.failed, "the operation made fewer calls than before"
            tally.runs += 1
            tally.kinds[disk.failed[0].kind] += 1
            if problem is not None:
                tally.errors[type(problem).__name__] += 1
                tally.messages.add(str(problem).replace(str(self.place), "PLACE"))
            self._look(store, thread, problem, tally)

    def kill(self, nth: int) -> None:
        """Let another process die at call ``nth`` and look at what it left behind."""
        store = self._open()
        store.close()
        pid = os.fork()
        if pid == 0:
            self._die(nth)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"call {nth}: ended by itself with {status}"
        with everthread.open(url(self.place, self._engine)) as store:
            found = self.scenario.look(store, self.place)
            assert found in (self.old, self.new), f"call {nth}: {_differences(found, self.old)}"
            assert store.verify(), f"call {nth}: {store.verify().damage}"
            thread = self._thread(store)
            thread.state["after"] = nth
            assert thread.commit()

    def _die(self, nth: int) -> None:
        try:
            with FaultyDisk(self.place) as disk, everthread.open(url(self.place, self._engine)) as store:
                thread = self._thread(store)
                self.scenario.stage(thread)
                disk.fail(nth, KILL)
                self.scenario.act(store, thread, self.place)
        finally:
            os._exit(1)

    def _act(self, store: everthread.Store, thread: Any, disk: FaultyDisk) -> EverthreadError | None:
        try:
            self.scenario.act(store, thread, self.place)
        except UnavailableError as problem:
            return problem
        except StateCorruptedError as problem:
            # SQLite takes a page that the disk can't read for a damaged one.
            if disk.failed[0].kind != "read":
                raise
            return problem
        finally:
            self.failed = disk.failed[:1]
        return None

    def _look(
        self, store: everthread.Store, thread: Any, problem: EverthreadError | None, tally: Tally
    ) -> None:
        # As another process finds it, should this one die now.
        copy = self.place.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.place, copy)
        with everthread.open(url(copy, self._engine)) as other:
            dead = self._judge(self.scenario.look(other, copy), problem)
            assert other.verify(), str(other.verify())
        # Through the same store.
        stood = self._judge(self.scenario.look(store, self.place), problem)
        assert stood == dead, f"this process sees the {stood} state, another one the {dead} state"
        tally.stood[stood] += 1
        # Once more, now that the disk works again.
        if problem is not None:
            try:
                self.scenario.act(store, thread, self.place)
            except (UsageError, ThreadNotFoundError):
                assert stood == "new", "refused, although it had not been done"
        again = self.scenario.look(store, self.place)
        allowed = [self.new] if problem is None else self._after_repeating(stood)
        assert again in allowed, f"after repeating: {_differences(again, self.new)}"
        store.close()
        with everthread.open(url(self.place, self._engine)) as reopened:
            assert self.scenario.look(reopened, self.place) == again, "reopening shows something else"
            assert reopened.verify()

    def _judge(self, found: Content, problem: EverthreadError | None) -> str:
        if found == self.new:
            return "new"
        assert problem is None or found == self.old, f"mixed: {_differences(found, self.old)}"
        assert problem is not None, f"acknowledged, but not there: {_differences(found, self.new)}"
        return "old"

    def _after_repeating(self, stood: str) -> list[Content]:
        """What the store may hold after the operation was done once more."""
        if self.scenario.name == "rewind" and stood == "new":
            # Recognised as done, or done again: a rewind is a version each time.
            seq, state, messages, history = self.new["main"]
            twice = (seq + 1, state, messages, [(seq + 1, None, "rewind"), *history])
            return [self.new, {**self.new, "main": twice}]
        return [self.new]


def _differences(found: Content, wanted: Content) -> str:
    return "; ".join(
        f"{name}: {found.get(name)!r:.300} instead of {wanted.get(name)!r:.300}"
        for name in sorted(found.keys() | wanted.keys())
        if found.get(name) != wanted.get(name)
    )
