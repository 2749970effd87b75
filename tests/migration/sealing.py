"""Writes the fixture of personal values of the present schema: `python -m tests.migration.sealing`, once per
schema version, as tests.migration.writing does for all else. The keys are the same for all of them."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import everthread
from everthread import Personal
from everthread.keyring.format import subject_token
from everthread.keyring.keyring import MemoryKeyring
from everthread.keyring.parcel import KeyParcel
from everthread.stores.sqlite import schema
from tests.migration.writing import HERE, dump, runtime

_TOKEN_KEY = b"t" * 32


def keyring() -> MemoryKeyring:
    """The keys of ann, bob and cat."""
    keys = [
        (name[:1].encode() * 16, subject_token(_TOKEN_KEY, name), name[:1].upper().encode() * 32)
        for name in ("ann", "bob", "cat")
    ]
    found = MemoryKeyring()
    found.take_in([KeyParcel(b"k" * 16, _TOKEN_KEY, keys)])
    return found


def fill(store: everthread.Store) -> None:
    """Personal values wherever they can stand: alone in a commit and with others, folded and not, copied."""
    thread = store.thread("a")
    thread.state["first"] = Personal("ann", "the first")
    thread.state["bob"] = Personal("bob", "with another")
    thread.commit()
    for number in range(90):
        thread.state[f"value {number % 7}"] = Personal(
            "ann" if number % 3 else "bob", f"value {number} " * 20
        )
        thread.commit()
    thread.state["all"] = Personal(["ann", "bob", "cat"], "of three")
    thread.commit()
    thread.state["long"] = Personal("ann", "".join(f"{number} " for number in range(4_000)))
    thread.commit()
    thread.messages.append({"id": "m", "content": Personal("bob", "in a message")})
    thread.commit(metadata={"who": Personal("ann", "in metadata")})
    fork = thread.fork("fork", at=40)
    fork.state["of the fork"] = Personal("ann", "beside a fork's")
    fork.commit()
    gone = store.thread("gone")
    gone.state["x"] = 1
    gone.commit()
    gone.state["left"] = Personal("ann", "left behind")
    gone.commit()
    other = store.thread("other")
    other.state["taken"] = gone.state["left"]
    other.commit()
    gone.delete()
    thread.state["last"] = Personal("bob", "not folded")
    thread.commit()
    store.events("tasks").append("told", {"to": Personal("ann", "in an event")})


def describe(store: everthread.Store) -> dict[str, Any]:
    """What the store holds, opened; None for what was erased."""
    threads = {info.name: store.thread(info.name) for info in store.threads()}
    told = [dict(version.metadata) for version in threads["a"].history(limit=None) if version.metadata]
    return {
        "states": {name: _opened(thread.state.plain()) for name, thread in threads.items()},
        "past": {seq: _opened(threads["a"].at(seq).state.plain()) for seq in (1, 30, 60, 90)},
        "messages": [_opened(item) for item in threads["a"].messages],
        "metadata": [_opened(metadata) for metadata in told],
        "events": [_opened(event.data) for event in store.events("tasks").replay()],
    }


def _opened(found: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in found.items()}


def main() -> None:
    name = f"sealed-v{schema.SCHEMA_VERSION}"
    if (HERE / f"{name}.sql").exists() and "--replace-unreleased" not in sys.argv:
        sys.exit(f"{name}.sql exists already; a released fixture is never written again")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store.db"
        with everthread.open(f"sqlite:///{path}", keyring=keyring(), runtime=runtime()) as store:
            fill(store)
            described = json.dumps(describe(store), ensure_ascii=False)
        (HERE / f"{name}.sql").write_text(dump(path))
        (HERE / f"{name}.json").write_text(described + "\n")


if __name__ == "__main__":
    main()
