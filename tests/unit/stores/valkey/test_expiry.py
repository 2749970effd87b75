"""Threads whose time is over leave by the server's own expiry; what a fork may reach stays."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import everthread
from everthread import ThreadDeletedError
from everthread.stores.valkey import layout
from everthread.testing.driver import open_driven
from everthread.threads.runtime import Runtime

NOW_US = 1_800_000_000_000_000


@pytest.fixture(params=["blocking", "async"])
def store(
    request: pytest.FixtureRequest, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[everthread.Store]:
    """Its clock stands still: what has expired here, only the server knows of."""
    monkeypatch.setattr(layout, "EXPIRY_GRACE_MS", 0)
    open_ = everthread.open if request.param == "blocking" else open_driven
    with open_(valkey_url, durability="process", runtime=Runtime(now_us=lambda: NOW_US)) as opened:
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

    def wait_until_gone(self, keys: Iterable[bytes]) -> None:
        until = time.monotonic() + 60
        while any(self(key, "EXISTS", key) for key in keys):
            assert time.monotonic() < until, "the server keeps them"
            time.sleep(0.02)


@pytest.fixture
def eye(valkey_url: str) -> Iterator[Eye]:
    with everthread.open(valkey_url, durability="process") as opened:
        yield Eye(opened.core.backend)


def _talk(thread: everthread.Thread, count: int) -> None:
    for number in range(count):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}", "content": "x" * 50})
        thread.commit(key=f"k{number}", metadata={"kind": "short"})


def test_a_thread_that_was_never_forked_leaves_with_all_its_keys(store: everthread.Store, eye: Eye) -> None:
    stays = store.thread("stays")
    _talk(stays, 3)
    thread = store.thread("goes", ttl=1.5)
    _talk(thread, 200)
    keys = eye.keys_of("goes")
    assert len(keys) >= 6, "rows, packs, chunks, keys"
    assert all(0 < ttl <= 1500 for ttl in keys.values()), "each goes, folded or not"
    assert all(ttl < 0 for ttl in eye.keys_of("stays").values())
    uid = thread.uid
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
    thread = store.thread("goes", ttl=0.3)
    _talk(thread, 2)
    keys = eye.keys_of("goes")
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
    source = store.thread("source", ttl=0.4)
    _talk(source, 100)
    keys = eye.keys_of("source")
    fork = source.fork("fork")
    assert all(ttl < 0 for ttl in eye.keys_of("source").values()), "the fork shares them"
    source.state["more"] = 1
    source.commit()
    time.sleep(0.6)
    assert set(eye.keys_of("source")) >= set(keys)
    assert store.thread("fork").state["n"] == 99
    assert len(store.thread("fork").messages) == 100
    fork.state["own"] = 1
    fork.commit()
    assert store.verify()
