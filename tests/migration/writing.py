"""Writes the fixture of the present schema: `python -m tests.migration.writing` (once per schema version).

A fixture is a store as that release wrote it, as SQL text, and what it holds, as JSON. Fixtures of released
versions are never written again: that today's code reads them is what is tested.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw
import apsw.shell

import everthread
from everthread.stores.sqlite import schema
from everthread.threads.runtime import Runtime

HERE = Path(__file__).parent


def runtime() -> Runtime:
    """A clock and randomness that replay."""
    rng = random.Random(1)
    clock = iter(range(1_800_000_000_000_000, 2_000_000_000_000_000, 1_000_000))
    return Runtime(now_us=lambda: next(clock), random_bytes=rng.randbytes)


def fill(store: everthread.Store) -> None:
    """A bit of everything that a store can hold, folded and not."""
    thread = store.thread("main")
    for number in range(150):
        thread.state["count"] = number
        thread.state[f"key {number % 5}"] = {"n": number, "list": [None, True, 1.5, "é", -(2**63), 2**64 - 1]}
        thread.messages.append({"id": f"m{number}", "role": "user", "content": f"message {number}"})
        if number % 10 == 0:
            thread.log("events").append({"id": f"e{number}"})
        label = f"step {number}" if number % 25 == 0 else None
        metadata = {"run": f"r{number % 3}"} if number % 30 == 0 else None
        thread.commit(label=label, metadata=metadata, key=f"key {number}" if number % 20 == 0 else None)
    thread.messages.truncate_from("m140")
    thread.commit(key="truncated")
    with thread.step(("turn", 1), attempt=2) as step:
        step.messages.append({"content": "derived id"})
        step.result = {"tokens": 7}
    for slot in (1, 0):
        with thread.step("tools", slot=slot) as step:
            step.messages.append({"id": f"slot {slot}"})
    fork = thread.fork("fork", at=100)
    for number in range(80):
        fork.state["forked"] = number
        fork.messages.append({"id": f"f{number}"})
        fork.commit()
    fork.rewind(90)
    fork.state["rewound"] = True
    fork.commit()
    thread.merge(fork, resolve="ours", label="merged")
    fork.fork("fork of fork").fork("../../x '; drop table--", at=50)
    thread.messages.extend([{"id": f"large {number}", "content": "x" * 1000} for number in range(300)])
    thread.commit()
    thread.state["last"] = "not folded"
    thread.commit()
    gone = store.thread("deleted")
    gone.state["x"] = 1
    gone.commit()
    gone.delete()
    _fill_events(store)
    _fill_cells(store.core.backend)


def _fill_events(store: everthread.Store) -> None:
    tasks = store.events("tasks")
    for number in range(40):
        agent = f"agent {number % 3}" if number % 2 else None
        tasks.append(f"type {number % 4}", {"n": number, "at": [None, 1.5, "é"]}, agent=agent)
    tasks.projection("numbers", count, version=3)
    tasks.extend([("later", {"n": number}) for number in range(3)])
    tasks.consumer("mailer").commit(7)
    dropped = store.events("dropped")
    dropped.extend([("gone", {})] * 3)
    dropped.delete()


def count(state: dict[str, Any], event: everthread.Event) -> dict[str, Any]:
    """The projection that was saved."""
    return {"sum": state.get("sum", 0) + event.data["n"], "events": state.get("events", 0) + 1}


def _fill_cells(backend: Any) -> None:
    now_us = 1_900_000_000_000_000
    for name in ("lease", "../../x '; drop table--", "removed"):
        revision = backend.swap("", name, 0, b"first", now_us)
        revision = backend.swap("", name, revision, b"second", now_us + 1, durable=False)
    backend.swap("", "removed", revision, None, now_us + 2)


def describe(store: everthread.Store) -> dict[str, Any]:
    """What a store holds: threads and events as their users see them, cells as the contract does."""
    backend = store.core.backend
    return {
        "threads": _describe_threads(store),
        "events": {
            name: [
                [event.seq, event.at_us, event.type, event.agent, event.data]
                for event in store.events(name).replay()
            ]
            for name, _ in backend.streams("", "", None, 100)
        },
        "consumer": store.events("tasks").consumer("mailer").position(),
        "cells": [
            [name, cell.value.hex(), cell.revision, cell.written_us]
            for name, cell in backend.cells("", "", None, 100)
        ],
    }


def _describe_threads(store: everthread.Store) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in store.threads():
        thread = store.thread(info.name)
        versions = list(thread.history(limit=None))
        past = versions[:: 1 + len(versions) // 12]
        found[info.name] = {
            "state": thread.state.plain(),
            "logs": {name: [_short(item) for item in thread.log(name)] for name in thread.logs},
            "versions": [
                [v.seq, v.id, v.parent, v.at_us, v.label, dict(v.metadata), v.key, v.kind, v.source]
                for v in versions
            ],
            "past": {
                version.id: [
                    thread.at(version).state.plain(),
                    [item["id"] for item in thread.at(version).messages],
                ]
                for version in past
            },
        }
    return found


def _short(item: Any) -> Any:
    """An item, its content given by length and digest if it is long."""
    content = item.get("content", "")
    if len(content) < 100:
        return item
    return {**item, "content": [len(content), hashlib.sha256(content.encode()).hexdigest()[:8]]}


def dump(path: str) -> str:
    """A database as SQL text."""
    db = apsw.Connection(path)
    output = io.StringIO()
    apsw.shell.Shell(db=db, stdout=output).process_command(".dump")
    marks = [
        f"PRAGMA application_id = {db.pragma('application_id')};",
        f"PRAGMA user_version = {db.pragma('user_version')};",
    ]
    db.close()
    lines = [line for line in output.getvalue().splitlines() if not line.startswith("--")]
    return "\n".join([*marks, *lines]) + "\n"


def main() -> None:
    name = f"v{schema.SCHEMA_VERSION}"
    if (HERE / f"{name}.sql").exists() and "--replace-unreleased" not in sys.argv:
        sys.exit(f"{name}.sql exists already; a released fixture is never written again")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store.db"
        with everthread.open(f"sqlite:///{path}", runtime=runtime()) as store:
            fill(store)
            described = json.dumps(describe(store), ensure_ascii=False, indent=None)
        (HERE / f"{name}.sql").write_text(dump(path))
        (HERE / f"{name}.json").write_text(described + "\n")


if __name__ == "__main__":
    main()
