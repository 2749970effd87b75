"""Pruning against a naive model: whatever is removed, what must stay stays as it was.

Random threads with forks of forks, rewinds, merges, keys and steps, and in between ``gc()`` with random
rules. The model keeps every version of every thread as plain data.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Retention, Store, Thread, Version
from everthread.errors import VersionPrunedError
from everthread.maintenance import prune
from everthread.threads.runtime import Runtime

MINUTE_US = 60 * 1_000_000


class Past:
    """One version as the model knows it."""

    def __init__(self, version: Version, state: Any, messages: list[Any]) -> None:
        self.version = version
        self.state = copy.deepcopy(state)
        self.messages = copy.deepcopy(messages)


class World:
    """A store, and beside it the model of every thread: its versions from the first on."""

    def __init__(self, store: Store, clock: list[int], seed: int) -> None:
        self.store = store
        self.clock = clock
        self.random = random.Random(seed)
        self.threads: dict[str, list[Past]] = {}
        #: By thread: key → id of the version that it made, as far as it wasn't rewound past.
        self.keys: dict[str, dict[str, str]] = {}
        self.results: dict[str, dict[str, int]] = {}
        #: Threads that others were merged into, and forks of such.
        self.merged: set[str] = set()
        self.count = 0
        #: How many versions gc() removed.
        self.removed = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    def name(self) -> str:
        return self.random.choice(sorted(self.threads))

    def note(self, name: str, thread: Thread) -> None:
        head = thread.head
        assert head is not None
        self.threads.setdefault(name, []).append(Past(head, thread.state.plain(), thread.messages[:]))

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def create(self) -> None:
        self.commit(f"t{self.number()}")

    def commit(self, name: str | None = None) -> None:
        name = name or self.name()
        thread = self.store.thread(name)
        for _ in range(self.random.randint(0, 3)):
            key = f"k{self.random.randint(0, 5)}"
            if self.random.random() < 0.2 and key in thread.state:
                del thread.state[key]
            else:
                thread.state[key] = {"value": self.number(), "text": "x" * self.random.randint(0, 60)}
        for _ in range(self.random.randint(0, 4)):
            thread.messages.append({"id": f"m{self.number()}", "content": "y" * self.random.randint(0, 80)})
        if len(thread.messages) > 3 and self.random.random() < 0.15:
            thread.messages.truncate_from(thread.messages[self.random.randrange(len(thread.messages))]["id"])
        label = f"label {self.number()}" if self.random.random() < 0.1 else None
        key = f"key{self.number()}" if self.random.random() < 0.3 else None
        thread.state["n"] = self.number()
        version = thread.commit(label=label, key=key)
        assert version is not None
        if key is not None:
            self.keys.setdefault(name, {})[key] = version.id
        self.note(name, thread)

    def step(self) -> None:
        name = self.name()
        thread = self.store.thread(name)
        number = self.number()
        with thread.step(f"step{number}") as step:
            step.messages.append({"content": f"step {number}"})
            step.result = number
        self.results.setdefault(name, {})[f"step{number}"] = number
        self.note(name, thread)

    def fork(self) -> None:
        source = self.name()
        past = self.random.choice(self.threads[source])
        name = f"f{self.number()}"
        try:
            fork = self.store.thread(source).fork(name, at=past.version)
        except VersionPrunedError:
            return
        seq = past.version.seq
        self.threads[name] = [each for each in self.threads[source] if each.version.seq <= seq]
        self.keys[name] = {}
        assert fork.head == past.version
        self.merged |= {name} if source in self.merged else set()

    def rewind(self) -> None:
        name = self.name()
        past = self.random.choice(self.threads[name])
        thread = self.store.thread(name)
        if thread.head == past.version:
            return
        try:
            thread.rewind(past.version)
        except VersionPrunedError:
            return
        assert (thread.state.plain(), thread.messages[:]) == (past.state, past.messages)
        # Which keys and results are left isn't what is tested here.
        self.keys[name] = {}
        self.results[name] = {}
        self.note(name, thread)

    def merge(self) -> None:
        name, other = self.name(), self.name()
        if name == other:
            return
        thread = self.store.thread(name)
        before = thread.head
        try:
            made = thread.merge(self.store.thread(other), resolve="ours", unrelated=True)
        except VersionPrunedError:
            # What was merged into an old version that is a thread again by now, or was rewound to.
            assert name in self.merged or other in self.merged
            return
        assert not made.conflicts
        self.merged.add(name)
        if thread.head != before:
            self.note(name, thread)

    def delete(self) -> None:
        if len(self.threads) > 2:
            name = self.name()
            self.store.thread(name).delete()
            del self.threads[name]

    def wait(self) -> None:
        self.clock[0] += self.random.randint(1, 30) * MINUTE_US

    def clean(self) -> None:
        choice = self.random.random()
        within = self.random.randint(0, 60) * 60 if choice < 0.5 else None
        last = self.random.randint(1, 8) if choice > 0.3 or within is None else None
        rule = Retention(keep_last=last, keep_within=within, keep_labelled=self.random.random() < 0.7)
        there = {name: self._seqs(name) for name in self.threads}
        report = self.store.gc(rule)
        assert report.problems == (), report.problems
        self.removed += report.versions
        for name, pasts in self.threads.items():
            left = self._seqs(name)
            for past in pasts:
                if past.version.seq in there[name] and self._must_stay(rule, pasts, past):
                    assert past.version.seq in left, f"{name}: {past.version} must stay by {rule}"
            assert left <= there[name]
        self.check()
        assert self.store.gc(rule, dry_run=True).versions == 0, "nothing is left to do"

    # ── what must hold ───────────────────────────────────────────────────────────────────────

    def _seqs(self, name: str) -> set[int]:
        return {version.seq for version in self.store.thread(name).history(limit=None)}

    def check(self) -> None:
        assert [info.name for info in self.store.threads()] == sorted(self.threads)
        for name, pasts in self.threads.items():
            thread = self.store.thread(name)
            newest = pasts[-1]
            assert thread.head == newest.version
            assert (thread.state.plain(), thread.messages[:]) == (newest.state, newest.messages)
            left = {version.seq: version for version in thread.history(limit=None)}
            for past in pasts:
                seq = past.version.seq
                if seq in left:
                    assert left[seq] == past.version
                    at = thread.at(seq)
                    assert (at.state.plain(), at.messages[:]) == (past.state, past.messages)
                else:
                    for verb in (thread.at, thread.rewind):
                        with pytest.raises(VersionPrunedError):
                            verb(past.version)
                    with pytest.raises(VersionPrunedError):
                        thread.fork("never", at=past.version)
            for key, made in self.keys.get(name, {}).items():
                again = self.store.thread(name)
                found = again.commit(key=key)
                assert found is not None
                assert found.id == made
            for key, result in self.results.get(name, {}).items():
                with self.store.thread(name).step(key) as step:
                    assert step.done
                    assert step.result == result
        report = self.store.verify()
        assert report, "\n".join(map(str, report.damage))

    def _must_stay(self, rule: Retention, pasts: list[Past], past: Past) -> bool:
        position = len(pasts) - pasts.index(past)
        return position <= max(rule.keep_last or 1, 1) or rule.keeps(past.version, self.clock[0])

    def run(self, steps: int) -> None:
        self.create()
        verbs = [
            *[self.commit] * 12,
            *[self.step] * 2,
            self.fork,
            self.rewind,
            self.merge,
            self.delete,
            self.wait,
            self.create,
            self.clean,
        ]
        for _ in range(steps):
            self.random.choice(verbs)()
        self.check()
        self.clean()


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "GROUP_MAX", 12)
    monkeypatch.setattr(prune, "_KEYFRAME_EVERY", 3)


def opened(url: str, clock: list[int]) -> Store:
    store = everthread.open(url, durability="process", runtime=Runtime(now_us=lambda: clock[0]))
    store.core.folder.records_max = 4
    return store


@pytest.mark.parametrize("part", range(8))
def test_what_must_stay_stays(part: int, seed: int) -> None:
    for number in range(3):
        clock = [1_800_000_000 * 1_000_000]
        which = seed * 1000 + part * 10 + number
        print(f"world {which}")
        with opened("memory:", clock) as store:
            World(store, clock, which).run(120)


@pytest.mark.parametrize("url", ["sqlite:///{}.db", "file://{}"])
def test_what_must_stay_stays_on_disk(url: str, seed: int, tmp_path: Path) -> None:
    for number in range(4):
        clock = [1_800_000_000 * 1_000_000]
        print(f"world {seed + number}")
        with opened(url.format(tmp_path / str(number)), clock) as store:
            World(store, clock, seed + number).run(100)
