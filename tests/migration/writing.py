"""Writes the fixtures of the present formats: ``python -m tests.migration.writing [KIND …]``.

A fixture is a store of one kind as this code writes it, with its keyring, and what it holds, as JSON. Until
the first release they are made anew whenever a format changes. From then on none is ever written again: what
is tested is that later code reads them.

Stores of PostgreSQL and Valkey are on servers: their fixtures are what ``pg_dump`` and ``DUMP`` say of them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import apsw.shell
import redis

import everthread
from everthread import Personal
from everthread.threads.runtime import Runtime
from tests.servers import postgres, valkey

#: Fixtures are called by what they hold and the number of its format.
FIXTURES = Path(__file__).parent / "fixtures"
#: The kinds of stores that are files, and where one stands in a folder.
IN_FOLDERS = {"sqlite": "sqlite:///{folder}/store.db", "files": "file://{folder}/store"}
ON_SERVERS = ("postgres", "valkey")
KINDS = (*IN_FOLDERS, *ON_SERVERS)
FORMAT = 1


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
            if name != "sealed"
        },
        "consumer": store.events("tasks").consumer("mailer").position(),
        "cells": [
            [name, cell.value.hex(), cell.revision, cell.written_us]
            for name, cell in backend.cells("", "", None, 100)
        ],
        "personal": describe_sealed(store),
    }


def _describe_threads(store: everthread.Store) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in store.threads():
        if info.name.startswith("sealed"):
            continue
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


def fill_sealed(store: everthread.Store) -> None:
    """Personal values wherever they can stand: alone in a commit and with others, folded and not, copied."""
    thread = store.thread("sealed")
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
    fork = thread.fork("sealed fork", at=40)
    fork.state["of the fork"] = Personal("ann", "beside a fork's")
    fork.commit()
    gone = store.thread("sealed, gone")
    gone.state["x"] = 1
    gone.commit()
    gone.state["left"] = Personal("ann", "left behind")
    gone.commit()
    other = store.thread("sealed, other")
    other.state["taken"] = gone.state["left"]
    other.commit()
    gone.delete()
    thread.state["last"] = Personal("bob", "not folded")
    thread.commit()
    store.events("sealed").append("told", {"to": Personal("ann", "in an event")})


def describe_sealed(store: everthread.Store) -> dict[str, Any]:
    """What the store holds, opened; None for what was erased."""
    threads = {info.name: store.thread(info.name) for info in store.threads(prefix="sealed")}
    told = [dict(version.metadata) for version in threads["sealed"].history(limit=None) if version.metadata]
    return {
        "states": {name: _opened(thread.state.plain()) for name, thread in threads.items()},
        "past": {seq: _opened(threads["sealed"].at(seq).state.plain()) for seq in (1, 30, 60, 90)},
        "messages": [_opened(item) for item in threads["sealed"].messages],
        "metadata": [_opened(metadata) for metadata in told],
        "events": [_opened(event.data) for event in store.events("sealed").replay()],
    }


def _opened(found: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "value", value) for name, value in found.items()}


def save_files(folder: Path, name: str) -> None:
    """Files below a folder, as JSON: text as it is, other bytes in base64."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            try:
                found[str(path.relative_to(folder))] = data.decode()
            except UnicodeDecodeError:
                found[str(path.relative_to(folder))] = [base64.b64encode(data).decode()]
    (FIXTURES / name).write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n")


def lay_out_files(name: str, folder: Path) -> None:
    """Put the files of :func:`save_files` back, for their owner alone."""
    for path, content in json.loads((FIXTURES / name).read_text()).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.write_bytes(content.encode() if isinstance(content, str) else base64.b64decode(content[0]))
        target.chmod(0o600)


def dump(path: Path) -> str:
    """A SQLite database as SQL text."""
    db = apsw.Connection(str(path))
    output = io.StringIO()
    apsw.shell.Shell(db=db, stdout=output).process_command(".dump")
    marks = [
        f"PRAGMA application_id = {db.pragma('application_id')};",
        f"PRAGMA user_version = {db.pragma('user_version')};",
    ]
    db.close()
    lines = [line for line in output.getvalue().splitlines() if not line.startswith("--")]
    return "\n".join([*marks, *lines]) + "\n"


def dump_postgres(uri: str) -> str:
    """A PostgreSQL database as SQL text, as far as it is the same every time."""
    command = [postgres.programs() / "pg_dump", "--no-owner", "--no-privileges", "--schema=everthread", uri]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    # These say which program wrote it, and carry a random word of psql's.
    passing = ("-- Dumped ", "\\restrict ", "\\unrestrict ")
    return "".join(row for row in text.splitlines(keepends=True) if not row.startswith(passing))


def load_postgres(uri: str) -> None:
    """Bring the fixture into an empty database."""
    path = FIXTURES / f"postgres-{FORMAT}.sql"
    command = [
        postgres.programs() / "psql",
        "-qX",
        "-v",
        "ON_ERROR_STOP=1",
        "-o",
        os.devnull,
        "-f",
        path,
        uri,
    ]
    subprocess.run(command, capture_output=True, check=True)


def dump_valkey(port: int, prefix: str) -> str:
    """The keys of a store on Valkey, without its prefix, and the server's own form of what they hold."""
    with redis.Redis(port=port) as server:
        keys: list[bytes] = sorted(server.keys(f"{prefix}:*"))  # type: ignore[arg-type]
        found = {
            key.decode().removeprefix(prefix): base64.b64encode(server.dump(key)).decode()  # type: ignore[arg-type]
            for key in keys
        }
    return json.dumps(found, indent=0) + "\n"


def load_valkey(port: int, prefix: str) -> None:
    """Bring the fixture to a server."""
    with redis.Redis(port=port) as server:
        for key, value in json.loads((FIXTURES / f"valkey-{FORMAT}.json").read_text()).items():
            server.restore(prefix + key, 0, base64.b64decode(value))


def lay_out(kind: str, folder: Path) -> str:
    """Make the store of a kind that is files, and its keyring, in a folder; the URL of the store."""
    lay_out_keyring(kind, folder)
    if kind == "files":
        lay_out_files(f"files-{FORMAT}.json", folder / "store")
    else:
        db = apsw.Connection(str(folder / "store.db"))
        # What the text doesn't say.
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute((FIXTURES / f"sqlite-{FORMAT}.sql").read_text())
        db.close()
    return IN_FOLDERS[kind].format(folder=folder)


def lay_out_keyring(kind: str, folder: Path) -> None:
    lay_out_files(f"keyring-{FORMAT}-{kind}.json", folder / "keys")


def expected(kind: str) -> dict[str, Any]:
    """What every fixture holds. On servers the times of cells are by their own clocks."""
    found: dict[str, Any] = json.loads((FIXTURES / f"content-{FORMAT}.json").read_text())
    if kind in ON_SERVERS:
        found["cells"] = json.loads((FIXTURES / f"cells-{FORMAT}-{kind}.json").read_text())
    return found


@contextmanager
def on_server(kind: str, folder: Path) -> Iterator[tuple[str, int]]:
    """The URL of a new store on a server of its own, and the server's port."""
    folder.mkdir()
    server: postgres.PostgresServer | valkey.ValkeyServer
    if kind == "postgres":
        server = postgres.PostgresServer(folder, settings=postgres.QUICK)
        server.create()
        server.start()
        url = server.uri()
    else:
        server = valkey.ValkeyServer(folder, *valkey.QUICK)
        server.start()
        url = f"{server.url}?prefix=fixture"
    try:
        yield url, server.port
    finally:
        server.stop()


def write(kind: str, folder: Path) -> None:
    """Write the fixtures of one kind."""
    (folder / "keys").mkdir(mode=0o700)
    # A server may run as another user.
    folder.chmod(0o711)
    with ExitStack() as servers:
        port = 0
        if kind in ON_SERVERS:
            url, port = servers.enter_context(on_server(kind, folder / "server"))
        else:
            url = IN_FOLDERS[kind].format(folder=folder)
        keyring = str(folder / "keys" / "keyring")
        with everthread.open(url, keyring=keyring, runtime=runtime(), durability="process") as store:
            fill(store)
            fill_sealed(store)
            content = json.loads(json.dumps(describe(store)))
            if kind == "sqlite":
                store.export(FIXTURES / "archive.new")
                (FIXTURES / "archive.new").replace(FIXTURES / f"archive-{FORMAT}.everthread")
                told = json.dumps(content, ensure_ascii=False)
                (FIXTURES / f"content-{FORMAT}.json").write_text(told + "\n")
        if kind in ON_SERVERS:
            (FIXTURES / f"cells-{FORMAT}-{kind}.json").write_text(json.dumps(content["cells"]) + "\n")
        if content != expected(kind):
            raise SystemExit(f"a store of the kind {kind} doesn't hold what one of SQLite does")
        if kind == "sqlite":
            (FIXTURES / f"sqlite-{FORMAT}.sql").write_text(dump(folder / "store.db"))
        elif kind == "files":
            save_files(folder / "store", f"files-{FORMAT}.json")
        elif kind == "postgres":
            (FIXTURES / f"postgres-{FORMAT}.sql").write_text(dump_postgres(url))
        else:
            (FIXTURES / f"valkey-{FORMAT}.json").write_text(dump_valkey(port, "fixture"))
    save_files(folder / "keys", f"keyring-{FORMAT}-{kind}.json")


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            write(kind, Path(folder))


if __name__ == "__main__":
    main()
