"""Histories made at random, pruned, and salvaged: in the new store everything is as it was."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import KeyReusedError, Personal, Retention, Store, Thread, reveal, salvage
from everthread.salvager import writer

PLACES = {"sqlite": "sqlite:///{}.db", "file": "file://{}"}
RULES = [
    Retention(keep_last=1),
    Retention(keep_last=3),
    Retention(keep_last=2, keep_labelled=False),
    Retention(keep_within=0),
]


def opened(url: str, tmp_path: Path) -> Store:
    store = everthread.open(url, durability="process", keyring=f"{tmp_path}/keyring")
    store.core.folder.records_max = 4
    return store


class History:
    """What is done to a store, and what it can be asked for afterwards."""

    def __init__(self, seed: int, store: Store) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.number = 0
        self.names = ["t0"]
        self.keys: dict[str, list[str]] = {"t0": []}
        self.steps: dict[str, list[str]] = {"t0": []}

    def run(self) -> None:
        self.commit()
        for _ in range(self.random.randint(5, 12)):
            self.random.choice([self.commit, self.commit, self.commit, self.fork, self.rewind, self.gc])()
        self.commit()
        self.gc()

    def value(self) -> Any:
        self.number += 1
        value: Any = self.random.choice([self.number, f"text {self.number}", {"n": [self.number]}])
        return Personal("ann", value) if self.random.random() < 0.3 else value

    def commit(self) -> None:
        name = self.random.choice(self.names)
        thread = self.store.thread(name)
        for _ in range(self.random.choice([1, 3, 6])):
            self.number += 1
            mark = f"{name} {self.number}"
            if self.random.random() < 0.2:
                with thread.step(mark) as step:
                    self.change(step)
                    step.result = self.value()
                self.steps[name].append(mark)
                continue
            self.change(thread)
            key = mark if self.random.random() < 0.3 else None
            metadata = {f"run {mark}": self.number} if self.random.random() < 0.3 else None
            label = "kept" if self.random.random() < 0.15 else None
            thread.commit(label=label, key=key, metadata=metadata)
            self.keys[name] += [key] if key else []

    def change(self, thread: Any) -> None:
        thread.state[self.random.choice("abc")] = self.value()
        for name in self.random.sample(["messages", "x"], self.random.randint(0, 2)):
            log = thread.messages if name == "messages" else thread.log(name)
            if hasattr(log, "truncate_from") and len(log) and self.random.random() < 0.2:
                log.truncate_from(log[self.random.randrange(len(log))]["id"])
            # Now and then so many that they are kept apart from their version.
            for _ in range(40 if self.random.random() < 0.1 else self.random.randint(1, 4)):
                self.number += 1
                log.append(
                    {"id": f"i{self.number}", "is": self.value(), "text": self.random.randbytes(40).hex()}
                )

    def fork(self) -> None:
        name, new = self.random.choice(self.names), f"t{len(self.names)}"
        thread = self.store.thread(name)
        thread.fork(new, at=self.random.choice(list(thread.history(limit=None))).seq)
        self.names.append(new)
        self.keys[new], self.steps[new] = list(self.keys[name]), list(self.steps[name])

    def rewind(self) -> None:
        thread = self.store.thread(self.random.choice(self.names))
        thread.rewind(self.random.choice(list(thread.history(limit=None))).seq)

    def gc(self) -> None:
        self.store.gc(self.random.choice(RULES))

    def told(self, store: Store) -> dict[str, Any]:
        """Everything that the store says of it. Changes it: what is done already is tried again."""
        found: dict[str, Any] = {"threads": [info.name for info in store.threads()]}
        for name in self.names:
            thread = store.thread(name)
            versions = list(thread.history(limit=None))
            states = [contents(thread.at(version)) for version in versions]
            logs = [log for _, logs in states for log in logs.values()]
            ids = sorted({item["id"] for log in logs for item in log})
            found[name] = (
                versions,
                states,
                [thread.messages.find(each) for each in ids],
                [thread.log("x").find(each) for each in ids],
                [
                    (mark, [info.name for info in store.threads(metadata={mark: value})])
                    for version in versions
                    for mark, value in version.metadata.items()
                ],
            )
        for name in self.names:
            thread = store.thread(name)
            found[f"{name} again"] = again(thread, self.keys[name], self.steps[name])
        return found


def contents(thread: Any) -> tuple[Any, dict[str, list[Any]]]:
    return reveal(thread.state.plain()), {name: reveal(thread.log(name)[:]) for name in thread.logs}


def again(thread: Thread, keys: list[str], steps: list[str]) -> list[Any]:
    found: list[Any] = []
    head = thread.head
    assert head is not None
    for key in keys:
        thread.state["again"] = key
        try:
            version = thread.commit(key=key)
            # One that a fork left behind is done anew, and its id depends on the time.
            found.append(version if version is not None and version.seq <= head.seq else None)
        except KeyReusedError as error:
            found.append(str(error))
            thread.discard()
        thread.refresh()
    for key in steps:
        with thread.step(key) as step:
            found.append((step.done, reveal(step.result) if step.done else None))
            if not step.done:
                step.result = None
    return found


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_salvaged_is_the_same(
    seed: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small measures, so that small histories have all that large ones have.
    for name, module in list(sys.modules.items()):
        if name.startswith("everthread.") and hasattr(module, "FOLD_BYTES"):
            monkeypatch.setattr(module, "FOLD_BYTES", 3000)
    monkeypatch.setattr(writer, "_BATCH", 4)
    monkeypatch.setattr(writer, "_SEALED_MAX", 8)
    url = PLACES[source].format(tmp_path / "a")
    with opened(url, tmp_path) as store:
        history = History(seed, store)
        history.run()
        assert store.verify().ok
    targets = [place.format(tmp_path / "b") for place in PLACES.values()]
    for target in targets:
        assert salvage(url, target)
    with opened(url, tmp_path) as store:
        wanted = history.told(store)
    for target in targets:
        with opened(target, tmp_path) as store:
            assert store.verify().ok, store.verify().damage
            assert history.told(store) == wanted
            assert store.verify().ok, store.verify().damage
