"""Threads whose time is over leave by the server's own expiry; what a living fork reaches stays."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import everthread
from everthread import Retention, ThreadDeletedError
from everthread.stores.contract import Line
from everthread.stores.valkey import layout
from everthread.testing.driver import open_driven
from everthread.threads.runtime import Runtime
from everthread.threads.sync.core import key_hash

NOW_US = 1_800_000_000_000_000


@pytest.fixture(params=["blocking", "async", "cluster"])
def colour(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, colour: str) -> str:
    """One server, or a cluster, where names lie in other slots than forks."""
    found: str = request.getfixturevalue("valkey_cluster_url" if colour == "cluster" else "valkey_url")
    return found


@pytest.fixture
def store(url: str, colour: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[everthread.Store]:
    """Its clock stands still: what has expired here, only the server knows of."""
    monkeypatch.setattr(layout, "EXPIRY_GRACE_MS", 0)
    open_ = open_driven if colour == "async" else everthread.open
    with open_(url, durability="process", runtime=Runtime(now_us=lambda: NOW_US)) as opened:
        yield opened


class Eye:
    """Looks at the server itself."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, key: bytes, *words: Any) -> Any:
        return self._backend._client.command(key, *words)

    def keys_of(self, name: str) -> dict[bytes, int]:
        """The keys of a thread's line, and how long each lives yet; below 0 for ever."""
        found = self._backend.find("", name)
        tag, member = layout.split_id(found.line.id)
        keys = [self._backend._key(tag, f"{kind}:{member}") for kind in ("r", "l", "z", "d", "t", "K", "k")]
        indexes = self(keys[0], "KEYS", self._backend._key(tag, f"x:{member}:*"))
        lives = {key: self(key, "PTTL", key) for key in (*keys, *indexes)}
        return {key: ttl for key, ttl in lives.items() if ttl != -2}

    def line(self, thread: everthread.Thread) -> Line:
        """The line of a thread, whether it is still there for others or not."""
        found: Line = self._backend.line_by_uid(bytes.fromhex(thread.uid))
        return found

    def key(self, line: Line, kind: str) -> bytes:
        tag, member = layout.split_id(line.id)
        key: bytes = self._backend._key(tag, f"{kind}:{member}")
        return key

    def family(self, line: Line) -> list[bytes]:
        """Every key of a family's lines."""
        tag, _ = layout.split_id(line.id)
        register = self._backend._keys.family(tag)
        found = self(register, "KEYS", self._backend._key(tag, "*"))
        return sorted(key for key in found if key != register and b"}:void:" not in key)

    def bytes_of(self, keys: Iterable[bytes]) -> int:
        """What keys take up in the server's memory."""
        return sum(self(key, "MEMORY", "USAGE", key, "SAMPLES", 0) or 0 for key in keys)

    def wait_until_gone(self, keys: Iterable[bytes]) -> None:
        until = time.monotonic() + 60
        while any(self(key, "EXISTS", key) for key in keys):
            assert time.monotonic() < until, "the server keeps them"
            time.sleep(0.02)


@pytest.fixture
def eye(url: str) -> Iterator[Eye]:
    with everthread.open(url, durability="process") as opened:
        yield Eye(opened.core.backend)


def _hash(key: str) -> bytes:
    """A commit's key as stores know it."""
    return key_hash(b"key", key)


def _talk(thread: everthread.Thread, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}", "content": "x" * 50})
        thread.commit(key=f"k{number}", metadata={"kind": "short"})


def test_a_thread_that_was_never_forked_leaves_with_all_its_keys(store: everthread.Store, eye: Eye) -> None:
    stays = store.thread("stays")
    _talk(stays, 3)
    thread = store.thread("goes", ttl=600)
    _talk(thread, 200)
    keys = eye.keys_of("goes")
    assert len(keys) >= 6, "rows, packs, chunks, keys"
    assert all(0 < ttl <= 600_000 for ttl in keys.values()), "each goes, folded or not"
    assert all(ttl < 0 for ttl in eye.keys_of("stays").values())
    uid = thread.uid
    thread.expire(0.2)
    eye.wait_until_gone(keys)
    thread.state["late"] = True
    with pytest.raises(ThreadDeletedError):
        thread.commit()
    assert [info.name for info in store.threads()] == ["stays"]
    assert [info.name for info in store.threads(metadata={"kind": "short"})] == ["stays"]
    assert [hit.thread for hit in store.search("x")] in ([], ["stays"])
    again = store.thread("goes")
    assert again.head is None
    again.state["new"] = 1
    again.commit()
    assert again.uid != uid
    assert [info.name for info in store.threads()] == ["goes", "stays"]
    assert store.verify()


def test_the_lists_forget_what_went(store: everthread.Store, eye: Eye) -> None:
    thread = store.thread("goes")
    _talk(thread, 2)
    keys = eye.keys_of("goes")
    thread.expire(0.2)
    eye.wait_until_gone(keys)
    assert list(store.threads()) == []
    names = eye._backend._keys.space("")
    assert eye(names, "ZCARD", names) == 0
    assert eye._backend.line_by_uid(bytes.fromhex(thread.uid)) is None
    assert store.verify()


def test_a_later_commit_renews_it_and_without_a_time_it_stays(store: everthread.Store, eye: Eye) -> None:
    thread = store.thread("goes", ttl=600)
    _talk(thread, 80)
    keys = eye.keys_of("goes")
    before = {eye(key, "PEXPIRETIME", key) for key in keys}
    assert len(before) == 1, "all at the same moment"
    time.sleep(0.005)
    thread.state["n"] = -1
    thread.commit()
    after = {eye(key, "PEXPIRETIME", key) for key in keys}
    assert len(after) == 1
    assert after.pop() > before.pop()
    thread.expire(None)
    assert all(ttl < 0 for ttl in eye.keys_of("goes").values())
    thread.expire(600)
    assert all(ttl > 0 for ttl in eye.keys_of("goes").values())


def test_what_a_fork_reaches_stays(store: everthread.Store, eye: Eye) -> None:
    source = store.thread("source", ttl=600)
    _talk(source, 100)
    line = eye.line(source)
    shared = set(eye.keys_of("source")) - {eye.key(line, "t")}
    fork = source.fork("fork")
    assert all(eye(key, "PTTL", key) < 0 for key in shared), "the fork shares them"
    source.expire(0.2)
    eye.wait_until_gone([eye.key(line, "e"), eye.key(line, "t")])
    assert all(eye(key, "EXISTS", key) for key in shared)
    assert store.thread("fork").state["n"] == 99
    assert len(store.thread("fork").messages) == 100
    fork.state["own"] = 1
    fork.commit()
    assert store.verify()


def test_a_family_leaves_whole_by_the_server_alone(store: everthread.Store, eye: Eye) -> None:
    source = store.thread("source", ttl=600)
    _talk(source, 100)
    fork = store.thread("source").fork("fork", at=40)
    fork.expire(600)
    _talk(fork, 80, 100)
    inner, bare = fork.fork("inner"), fork.fork("bare", at=50)
    inner.expire(700)
    bare.expire(800)
    line = eye.line(source)
    keys = eye.family(line)
    assert eye.bytes_of(keys) > 10_000
    assert all(eye(key, "PTTL", key) > 0 for key in keys)
    for thread, seconds in ((source, 0.2), (bare, 0.1), (inner, 0.6), (fork, 0.4)):
        thread.expire(seconds)
    eye.wait_until_gone(keys)
    assert eye.family(line) == []
    assert list(store.threads()) == []
    for thread in (source, fork, inner, bare):
        assert eye.line(thread) is None
        thread.state["late"] = 1
        with pytest.raises(ThreadDeletedError):
            thread.commit()
    assert eye.family(line) == [], "nothing comes back"
    assert store.verify()


def _source_that_goes(store: everthread.Store, eye: Eye) -> tuple[everthread.Thread, everthread.Thread]:
    """Two handles of a source whose time is over, by the server alone; its fork at version 30 lives."""
    source = store.thread("source", ttl=600)
    _talk(source, 100)
    source.fork("fork", at=30)
    _talk(source, 100, 100)
    other = store.thread("source")
    assert other.head == source.head
    source.expire(0.2)
    eye.wait_until_gone([eye.key(eye.line(source), "e")])
    return source, other


def test_a_source_goes_while_its_fork_lives(store: everthread.Store, eye: Eye) -> None:
    source, other = _source_that_goes(store, eye)
    assert eye.line(source).deleted
    source.state["late"] = True
    with pytest.raises(ThreadDeletedError):
        source.commit()
    with pytest.raises(ThreadDeletedError):
        other.fork("another")
    assert [info.name for info in store.threads()] == ["fork"]
    assert [info.name for info in store.threads(metadata={"kind": "short"})] == ["fork"]
    assert {hit.thread for hit in store.search("x" * 50)} == {"fork"}
    assert eye._backend.find("", "source") is None
    assert store.thread("source").head is None
    assert store.thread("fork").state["n"] == 29
    assert [item["id"] for item in store.thread("fork").messages] == [f"m{n}" for n in range(30)]
    assert [version.seq for version in store.thread("fork").history(limit=99)] == list(range(30, 0, -1))
    assert store.thread("fork").rewind(7).seq == 31
    fork = store.thread("fork")
    assert (fork.state["n"], len(fork.messages)) == (6, 7)
    assert fork.commit(key="k3").seq == 4, "a key of the past that they share"
    fork.state["own"] = 1
    fork.commit()
    assert store.verify()


def test_the_name_of_a_source_that_went_is_free(store: everthread.Store, eye: Eye) -> None:
    source, _ = _source_that_goes(store, eye)
    again = store.thread("source")
    _talk(again, 3)
    assert again.uid != source.uid
    assert [info.name for info in store.threads()] == ["fork", "source"]
    assert eye.line(source).deleted
    source.state["late"] = True
    with pytest.raises(ThreadDeletedError):
        source.commit()
    assert len(store.thread("source").messages) == 3
    assert len(store.thread("fork").messages) == 30
    assert store.verify()


def test_a_fork_of_a_fork_keeps_both_that_went(store: everthread.Store, eye: Eye) -> None:
    source = store.thread("source")
    _talk(source, 20)
    fork = source.fork("fork")
    _talk(fork, 20, 20)
    inner = fork.fork("inner")
    source.expire(0.2)
    fork.expire(0.2)
    eye.wait_until_gone([eye.key(eye.line(thread), "e") for thread in (source, fork)])
    assert [info.name for info in store.threads()] == ["inner"]
    assert len(store.thread("inner").messages) == 40
    assert store.thread("inner").at(5).state["n"] == 4
    for thread in (source, fork):
        thread.state["late"] = 1
        with pytest.raises(ThreadDeletedError):
            thread.commit()
    assert store.verify()
    line = eye.line(source)
    inner.delete()
    assert eye.family(line) == [], "nobody needs them any more"
    assert list(store.threads()) == []
    assert store.verify()


@pytest.mark.parametrize("finder", ["list", "name", "gc"])
def test_what_no_fork_reaches_leaves_the_memory(store: everthread.Store, eye: Eye, finder: str) -> None:
    source = store.thread("source", ttl=600)
    _talk(source, 30)
    early = source.fork("early")
    _talk(source, 170, 30)
    source.fork("late", at=70)
    _talk(source, 40, 200)
    line = eye.line(source)
    keys = [key for key in eye.family(line) if key.decode().split("}:")[1].split(":")[1] == "1"]
    before = eye.bytes_of(keys)
    source.expire(0.2)
    eye.wait_until_gone([eye.key(line, "e"), eye.key(line, "t")])
    if finder == "list":
        assert [info.name for info in store.threads()] == ["early", "late"]
    elif finder == "name":
        _talk(store.thread("source"), 1)
    else:
        store.gc()
    after = eye.bytes_of(keys)
    assert after < before * 0.7
    assert eye._backend.keyed(line.id, _hash("k20")) == [(line.id, 21)]
    if finder != "gc":
        assert eye._backend.scan(line.id, 1000, 1)[0].seq < 200, "the rows that the forks don't reach"
        assert eye._backend.chunks(line.id, "messages", 200, 240) == []
        assert eye._backend.keyed(line.id, _hash("k190")) == []
    assert store.verify()
    assert [item["id"] for item in store.thread("late").messages] == [f"m{n}" for n in range(70)]
    assert len(store.thread("early").messages) == 30
    early.state["own"] = 1
    early.commit()
    for name in ("early", "late"):
        _talk(store.thread(name), 70, 300)
    assert not store.gc().problems
    assert store.verify()
    with pytest.raises(ThreadDeletedError):
        source.expire(600)
    store.thread("late").delete()
    assert not store.gc().problems
    assert [item["id"] for item in store.thread("early").messages][:30] == [f"m{n}" for n in range(30)]
    assert store.verify()


@pytest.mark.parametrize("damage", ["missing", "wrong"])
def test_a_damaged_source_that_went_stays_as_it_is(store: everthread.Store, eye: Eye, damage: str) -> None:
    source, _ = _source_that_goes(store, eye)
    line = eye.line(source)
    rows, seq = eye.key(line, "r"), eye._backend.scan(line.id, 1000, 3)[-1].seq
    if damage == "missing":
        eye(rows, "HDEL", rows, seq)
    else:
        eye(rows, "HSET", rows, seq, b"0\xff\xff\xff\xff")
    assert [info.name for info in store.threads()] == ["fork"]
    assert eye._backend.scan(line.id, 1000, 1)[0].seq == 201
    assert len(store.thread("fork").messages) == 30
    assert not store.verify()


def test_forks_that_went_are_in_nobodys_way(store: everthread.Store, eye: Eye) -> None:
    source = store.thread("source")
    _talk(source, 100)
    forks = [source.fork(f"fork {number}", at=number + 1) for number in range(30)]
    rows = [eye.key(eye.line(fork), "r") for fork in forks]
    for fork in forks:
        fork.expire(0.1)
    eye.wait_until_gone(rows)
    report = store.gc(Retention(keep_last=10))
    assert (report.problems, report.versions) == ((), 90)
    listed = eye.key(eye.line(source), "c")
    for number in range(30):
        source.fork(f"again {number}")
    assert eye(listed, "SCARD", listed) < 55, "the list of forks doesn't grow for ever"
    assert len(list(store.threads())) == 31
    assert store.verify()


def test_a_merge_finds_another_base_than_what_left(store: everthread.Store, eye: Eye) -> None:
    source = store.thread("source", ttl=600)
    _talk(source, 10)
    one, other = source.fork("one"), source.fork("other")
    _talk(source, 150, 10)
    one.merge(source)
    other.merge(source)
    one.state["one"] = 1
    one.commit()
    other.state["other"] = 1
    other.commit()
    source.expire(0.2)
    eye.wait_until_gone([eye.key(eye.line(source), "e")])
    assert [info.name for info in store.threads()] == ["one", "other"]
    one.merge(other)
    assert (one.state["one"], one.state["other"], len(one.messages)) == (1, 1, 160)
    assert not store.gc().problems
    assert store.verify()


@pytest.mark.parametrize("ending", ["delete", "expire"])
def test_the_time_of_a_source_comes_back(store: everthread.Store, eye: Eye, ending: str) -> None:
    source = store.thread("source", ttl=600)
    _talk(source, 20)
    rows = eye.key(eye.line(source), "r")
    fork = source.fork("fork")
    fork.state["x"] = 1
    fork.commit()
    assert eye(rows, "PTTL", rows) == -1
    if ending == "delete":
        fork.delete()
    else:
        fork.expire(300)
    assert 300_000 < eye(rows, "PTTL", rows) <= 600_000
    if ending == "expire":
        fork.expire(900)
        assert eye(rows, "PTTL", rows) > 600_000
        fork.expire(None)
        assert eye(rows, "PTTL", rows) == -1
        source.expire(None)
        fork.expire(900)
        assert eye(rows, "PTTL", rows) == -1, "it lives itself"
    assert store.verify()


class Model:
    """Lines with lifetimes and forks, as they should be."""

    def __init__(self, store: everthread.Store, eye: Eye) -> None:
        self.store, self.eye = store, eye
        self.threads: dict[str, everthread.Thread] = {}
        self.lines: dict[str, Line] = {}
        self.mortal: dict[str, bool] = {}
        self.items: dict[str, list[str]] = {}

    def add(self, name: str, thread: everthread.Thread) -> None:
        self.threads[name], self.mortal[name] = thread, False
        self.lines[name] = self.eye.line(thread)
        self.note(name)

    def note(self, name: str) -> None:
        """What others do changes nothing of this thread."""
        self.items[name] = [item["id"] for item in self.store.thread(name).messages]

    def end(self, name: str) -> None:
        """Its time is over, by the server alone."""
        self.threads.pop(name).expire(0.02)
        line = self.lines[name]
        self.eye.wait_until_gone([self.eye.key(line, "e" if self.forks(line) else "r")])

    def forks(self, line: Line) -> list[Line]:
        return [each for each in self.lines.values() if each.parent == line.id]

    def moment(self, line: Line, kind: str) -> int:
        key = self.eye.key(line, kind)
        return int(self.eye(key, "PEXPIRETIME", key))

    def needed(self, line: Line) -> float:
        """Until when somebody needs the keys of a line."""
        name = next(name for name, each in self.lines.items() if each.id == line.id)
        own = 0.0
        if name in self.threads:
            own = self.moment(line, "e" if self.forks(line) else "r") if self.mortal[name] else float("inf")
        return max([own, *(self.needed(fork) for fork in self.forks(line))])

    def check(self) -> None:
        listed = [info.name for info in self.store.threads()]
        assert listed == sorted(self.threads)
        for name, line in self.lines.items():
            needed = self.needed(line)
            if needed:
                assert self.moment(line, "r") == (-1 if needed == float("inf") else needed), name
                times = {self.eye(key, "PEXPIRETIME", key) for key in self._shared(line)}
                assert times == {self.moment(line, "r")}, name
            if name in self.threads:
                assert self.eye.line(self.threads[name]) == line
                assert [item["id"] for item in self.store.thread(name).messages] == self.items[name]

    def _shared(self, line: Line) -> list[bytes]:
        keys = [self.eye.key(line, kind) for kind in ("r", "l", "z", "d", "K", "k", "c")]
        return [key for key in keys if self.eye(key, "EXISTS", key)]


def test_whatever_is_forked_renewed_and_deleted_the_keys_that_stay_are_needed(
    store: everthread.Store, eye: Eye, seed: int
) -> None:
    draw = random.Random(seed)
    model = Model(store, eye)
    first = store.thread("t0")
    _talk(first, 5)
    model.add("t0", first)
    for number in range(1, 60):
        name = draw.choice(sorted(model.threads))
        thread = model.threads[name]
        verb = draw.choice(["fork", "fork", "expire", "expire", "stay", "write", "talk", "delete", "end"])
        if verb == "fork" and len(model.threads) < 12:
            at = draw.randint(1, thread.head.seq)  # type: ignore[union-attr]
            model.add(f"t{number}", thread.fork(f"t{number}", at=at))
        elif verb == "expire":
            thread.expire(draw.randint(100, 1000))
            model.mortal[name] = True
        elif verb == "stay":
            thread.expire(None)
            model.mortal[name] = False
        elif verb == "talk":
            _talk(thread, 70, 100 * number)
        elif verb == "write":
            thread.state["n"] = -number
            thread.commit()
        elif verb == "delete" and len(model.threads) > 1:
            thread.delete()
            del model.threads[name]
        elif verb == "end" and len(model.threads) > 1:
            model.end(name)
        if name in model.threads:
            model.note(name)
        model.check()
    assert store.verify()
    line = next(iter(model.lines.values()))
    last = list(model.threads.values())
    for thread in last:
        thread.expire(0.5)
    eye.wait_until_gone(eye.family(line))
    assert list(store.threads()) == []
    assert store.verify()
