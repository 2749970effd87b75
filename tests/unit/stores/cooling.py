"""Threads that are moved to an archive, on a clock that tests move."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from everthread import Store
from everthread.stores.contract import COLD
from everthread.threads.runtime import Runtime
from tests.servers.colours import Url

STORES = ["memory", "sqlite", "postgres", "valkey", "cluster"]
ASYNC = ["sqlite async", "postgres async", "valkey async", "cluster async"]
NOW = [1_900_000_000 * 1_000_000]


def place(request: pytest.FixtureRequest, kind: str, folder: Path) -> str:
    if kind in ("memory", "sqlite"):
        return "memory:" if kind == "memory" else f"sqlite:///{folder}/store.db"
    url: str = request.getfixturevalue("valkey_cluster_url" if kind == "cluster" else f"{kind}_url")
    return url


def opened(url: str, folder: Path, **options: Any) -> Store:
    options = {"cold": folder / "cold", "keyring": "memory:", "durability": "process", **options}
    return Url(url, getattr(url, "colour", "")).open(runtime=Runtime(now_us=lambda: NOW[0]), **options)


def later(seconds: float) -> None:
    NOW[0] += int(seconds * 1_000_000)


def is_cold(store: Store, name: str) -> bool:
    backend: Any = store.core.backend
    found = backend.find("", name)
    # Beneath what brings lines back: an async store has that on its blocking driver.
    cold: Any = getattr(backend, "blocking", backend)
    rows = cold._backend.scan(found.line.id, found.line.parent_seq + 1, 1)
    return bool(rows) and rows[0].kind == COLD


def picture(store: Store, name: str) -> Any:
    """Everything that can be read of a thread, at every version."""
    thread = store.thread(name)
    past = []
    for version in thread.history(limit=10_000):
        then = thread.at(version)
        past.append((version, then.state.plain(), {log: list(then.log(log)) for log in then.logs}))
    return past


def write(store: Store, name: str, count: int, rng: random.Random) -> None:
    thread = store.thread(name)
    for number in range(count):
        thread.state[f"k{rng.randrange(5)}"] = rng.random()
        thread.messages.append({"content": "x" * rng.randrange(200), "n": number})
        if rng.random() < 0.3:
            thread.log("tools").append({"n": number})
        thread.commit(key=f"{name}-{number}-{rng.random()}" if rng.random() < 0.5 else None)
        if rng.random() < 0.1:
            thread.rewind(rng.choice(list(thread.history(limit=5))))
