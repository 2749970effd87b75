"""Random stores, moved through archives and copies between all kinds of stores: nobody can tell them apart.

Whatever public reads say of a store, they say of what it was moved to, and both verify.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal, Retention, Store
from everthread.errors import ThreadExistsError, VersionPrunedError
from everthread.events.sync.stream import EventStream

STEPS = 45


class Weather:
    """What happens to a store, by chance."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.count = 0
        self.keys: dict[str, list[str]] = {}

    def number(self) -> int:
        self.count += 1
        return self.count

    def name(self) -> str:
        return self.random.choice([info.name for info in self.store.threads()])

    def run(self, steps: int, *, prune: bool) -> None:
        self.commit(f"t{self.number()}")
        deeds = [self.commit] * 8 + [self.fork] * 3 + [self.rewind, self.merge, self.step, self.events] * 2
        deeds += [self.begin, self.delete, self.session, self.person, self.many, self.large]
        for _ in range(steps):
            self.random.choice(deeds)()
        if prune:
            self.store.gc(Retention(keep_last=self.random.randint(1, 12), keep_labelled=False))
            for _ in range(8):
                self.random.choice([self.commit, self.fork])()

    def begin(self) -> None:
        self.commit(f"t{self.number()}")

    def commit(self, name: str | None = None) -> None:
        name = name or self.name()
        thread = self.store.thread(name)
        chance = self.random.random
        thread.state[f"k{self.random.randint(0, 4)}"] = {"n": self.number(), "t": ("x", 1.5, None)}
        if chance() < 0.3:
            thread.state["who"] = Personal(f"u{self.random.randint(0, 2)}", {"secret": self.number()})
        for _ in range(self.random.randint(0, 3)):
            thread.messages.append({"role": "user", "content": f"m{self.number()}"})
        if chance() < 0.1 and len(thread.messages) > 2:
            thread.messages.truncate_from(thread.messages[self.random.randrange(len(thread.messages))]["id"])
        key = f"key{self.number()}" if chance() < 0.2 else None
        label = f"l{self.number()}" if chance() < 0.2 else None
        metadata = {"run": self.random.randint(0, 2)} if chance() < 0.4 else None
        thread.commit(label=label, key=key, metadata=metadata)
        if key is not None:
            self.keys.setdefault(name, []).append(key)

    def many(self) -> None:
        """Enough to be folded."""
        thread = self.store.thread(self.name())
        for _ in range(70):
            thread.state["n"] = self.number()
            thread.log("notes").append(f"note {self.number()}")
            thread.commit()

    def large(self) -> None:
        """So much at once that its items don't stand in their record."""
        thread = self.store.thread(self.name())
        thread.messages.extend([{"content": self.random.randbytes(3000)} for _ in range(100)])
        thread.commit()

    def fork(self) -> None:
        thread = self.store.thread(self.name())
        versions = list(thread.history(limit=None))
        thread.fork(f"f{self.number()}", at=self.random.choice(versions))

    def rewind(self) -> None:
        thread = self.store.thread(self.name())
        version = self.random.choice(list(thread.history(limit=None)))
        if version != thread.head:
            thread.rewind(version)

    def merge(self) -> None:
        name, other = self.name(), self.name()
        if name != other:
            try:
                self.store.thread(name).merge(self.store.thread(other), resolve="ours", unrelated=True)
            except VersionPrunedError:
                return

    def step(self) -> None:
        with self.store.thread(self.name()).step(f"step{self.number()}") as step:
            step.messages.append({"content": "step"})
            step.result = self.count

    def events(self) -> None:
        stream = self.store.events(f"s{self.random.randint(0, 2)}")
        if self.random.random() < 0.1:
            stream.delete()
        for _ in range(self.random.randint(1, 4)):
            who: Any = Personal("u1", self.number()) if self.random.random() < 0.3 else self.number()
            stream.append(f"type{self.random.randint(0, 2)}", {"n": who}, agent="a")
        consumer = stream.consumer("c")
        if events := consumer.poll(self.random.randint(1, 3)):
            consumer.ack(events[-1])
        if self.random.random() < 0.05:
            stream.delete()

    def session(self) -> None:
        with self.store.session(f"session{self.random.randint(0, 2)}", user_id="u1") as session:
            session.work.add_todo(f"todo {self.number()}")
            session.call(f"effect{self.number()}", lambda: self.count)
            session.decide(f"decision {self.number()}", rationale="because")

    def person(self) -> None:
        self.store.users.set(f"u{self.random.randint(0, 2)}", f"k{self.random.randint(0, 2)}", self.number())

    def delete(self) -> None:
        names = [info.name for info in self.store.threads()]
        if len(names) > 2:
            self.store.thread(self.random.choice(names)).delete()


def plain(value: Any) -> Any:
    """Values as they can be compared: what is sealed, opened."""
    if isinstance(value, Personal):
        return ("sealed", plain(value.value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def seen(store: Store, pruned: bool = False) -> dict[str, Any]:
    """Everything that public reads say of a store."""
    told: dict[str, Any] = {"threads": list(store.threads())}
    for number in range(3):
        # What pruned versions said isn't searched for any more after a move.
        told["run", number] = pruned or [info.name for info in store.threads(metadata={"run": number})]
        told["user", number] = {k: store.users.get(f"u{number}", k) for k in store.users.keys(f"u{number}")}
        told["events", number] = _events(store.events(f"s{number}"))
    for info in store.threads():
        thread = store.thread(info.name)
        versions = list(thread.history(limit=None))
        told[info.name] = versions
        chosen = {versions[0], versions[-1], *versions[:: max(1, len(versions) // 6)]}
        for version in chosen:
            past = thread.at(version)
            told[info.name, version.id] = plain(past.state.plain()), plain(past.messages[:])
        told[info.name, "notes"] = thread.log("notes")[:]
        told[info.name, "page"] = thread.history(limit=3, before=versions[0]) is not None
        if info.name.startswith("session"):
            records = store.session_records(info.name)
            told[info.name, "effects"] = [(e.key, e.result) for e in records.effects()]
            told[info.name, "decisions"] = [d.id for d in records.decisions()]
    return told


def _events(stream: EventStream) -> Any:
    events = [(e.seq, e.type, plain(e.data), e.agent, e.at_us) for e in stream.replay()]
    return events, stream.consumer("c").position(), stream.projection("p", _count).state


def _count(state: Any, event: Any) -> Any:
    return {**state, event.type: state.get(event.type, 0) + 1}


def urls(path: Path) -> dict[str, str]:
    return {"memory": "memory:", "sqlite": f"sqlite:///{path}/s.db", "files": f"file://{path}/f"}


@pytest.mark.parametrize("part", range(6))
def test_moved_stores_are_the_same(tmp_path: Path, seed: int, part: int) -> None:
    kinds = ["memory", "sqlite", "files"]
    chance = random.Random(seed + part)
    prune = part % 2 == 0
    order = chance.sample(kinds, 3)
    (tmp_path / "first").mkdir()
    first = everthread.open(urls(tmp_path / "first")[order[0]])
    weather = Weather(first, seed + part)
    weather.run(STEPS, prune=prune)
    expected = seen(first, prune)
    source = first
    for number, kind in enumerate([*order[1:], order[0]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        target = everthread.open(urls(folder)[kind])
        if number % 2:
            source.copy_to(target)
        else:
            archive = folder / "store.archive"
            source.export(archive)
            target.import_from(archive)
        assert seen(target, prune) == expected, f"{kind} after {order}"
        assert target.verify()
        # Again: everything is there already.
        report = source.copy_to(target)
        assert (report.versions, report.events, report.threads) == (0, 0, 0)
        for name, keys in weather.keys.items():
            _same_keys(first, target, name, keys)
        source.close() if source is not first else None
        source = target
    _goes_on(first, source, weather, prune)
    source.close()
    first.close()


def _same_keys(first: Store, target: Store, name: str, keys: list[str]) -> None:
    """A commit under a key that was used finds the version that it made."""
    for key in keys[-2:]:
        found = []
        for store in (first, target):
            thread = store.thread(name)
            if thread.head is None:
                return
            try:
                found.append(thread.commit(key=key))
            except everthread.KeyReusedError as error:
                found.append(str(error))  # type: ignore[arg-type]
        assert found[0] == found[1]


def _goes_on(first: Store, last: Store, weather: Weather, pruned: bool) -> None:
    """Work goes on in the first; copying again brings just that, and what went on in both is a conflict."""
    before = seen(last, pruned)
    weather.commit()
    weather.begin()
    first.events("s1").extend([("more", 1), ("more", Personal("u2", 2))])
    report = first.copy_to(last)
    assert 0 < report.versions < 8
    assert seen(last, pruned) == seen(first, pruned) != before
    assert last.verify()
    name = weather.name()
    for store in (first, last):
        thread = store.thread(name)
        thread.state["side"] = store.url
        thread.commit()
    with pytest.raises(ThreadExistsError, match="changed both here and there"):
        first.copy_to(last)
    assert name in first.copy_to(last, on_conflict="skip").skipped
    assert last.thread(name).state["side"] == last.url


@pytest.mark.parametrize("prune", [False, True])
def test_moved_to_a_server_and_back(tmp_path: Path, seed: int, valkey_url: str, prune: bool) -> None:
    """Behind a network the same, both ways."""
    first = everthread.open("memory:")
    weather = Weather(first, seed)
    weather.run(STEPS, prune=prune)
    expected = seen(first, prune)
    server = everthread.open(valkey_url, durability="process")
    first.copy_to(server)
    assert seen(server, prune) == expected
    assert server.verify()
    server.export(tmp_path / "archive")
    back = everthread.open(f"sqlite:///{tmp_path}/back.db")
    back.import_from(tmp_path / "archive")
    assert seen(back, prune) == expected
    assert back.verify()
    assert first.copy_to(server).versions == back.copy_to(server).versions == 0
    for store in (first, server, back):
        store.close()
