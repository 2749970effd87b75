"""docs/internals/format.md is enough: a reader that follows it alone reads whatever the library writes."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import decimal
import random
import subprocess
import sys
import uuid
import zoneinfo
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import everthread
from examples import reader

NAMES = ("main", "fork", "fork of a fork", "../../odd'; drop name", "emptied")
OPERATIONS = 420


@dataclasses.dataclass
class Point:
    x: int
    y: int


everthread.register(Point, tag="tests.docs.Point")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/agent.db"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[reader.Store]:
    """The reader, on what the test has written by then."""
    stores: list[reader.Store] = []

    class Lazy:
        def __getattr__(self, name: str) -> Any:
            if not stores:
                stores.append(reader.Store(f"{tmp_path}/agent.db"))
            return getattr(stores[0], name)

    yield Lazy()  # type: ignore[misc]
    for store in stores:
        store.close()


def test_the_reader_imports_nothing_of_everthread() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(reader.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"msgspec", "zstandard"}


def test_a_long_mixed_history_reads_the_same(url: str, opened: reader.Store, seed: int) -> None:
    with everthread.open(url) as store:
        threads = write(store, random.Random(seed))
        tally: dict[int, int] = {}
        for name, thread in threads.items():
            line = opened.threads()[name]
            compare_versions(opened, line, thread)
            versions = list(thread.history(limit=None))
            for version in [*versions[:3], *versions[3::7]]:
                compare_state(opened, line, thread, version.seq)
        for line in opened.every_line():
            opened.check_chain(line)
            for row in opened.rows(line):
                tally[row.kind] = tally.get(row.kind, 0) + 1
                tally[-1] = tally.get(-1, 0) + (row.keyframe is not None)
    # The comparison means something only if the store holds what the document speaks of.
    assert tally[reader.PACK] >= 4
    assert tally[reader.REWIND] >= 4
    assert tally[reader.DELTA] >= 4
    assert tally[-1] >= 1


def write(store: everthread.Store, rng: random.Random) -> dict[str, everthread.Thread]:
    """Work on a few threads at random; return a handle for each."""
    main = store.thread(NAMES[0])
    main.state["todos"] = []
    main.commit(label="first", metadata={"run": 1})
    threads = {NAMES[0]: main}
    for number in range(OPERATIONS):
        thread = rng.choice([main, *threads.values()])
        if number in (60, 150, 260):
            at = rng.choice(list(thread.history(limit=40)))
            other = thread.fork(NAMES[len(threads)], at=at)
            threads[other.name] = other
        elif number % 60 == 59:
            thread.rewind(rng.choice(list(thread.history(limit=80))))
        elif number == 300:
            main.merge(threads[NAMES[1]], resolve="ours")
        elif number == 320:
            # Large enough to be written without its items, which go into chunks at once.
            main.log("big").extend({"n": n, "noise": rng.randbytes(2_000)} for n in range(300))
            main.commit(label="detached")
        elif number % 9 == 4:
            with thread.step(("turn", number), slot=number % 3) as step:
                step.messages.append({"role": "tool", "n": number})
                step.result = {"n": number}
        else:
            edit(thread, rng, number)
            thread.commit(
                label=f"edit {number}" if rng.random() < 0.3 else None,
                metadata={"n": number} if rng.random() < 0.3 else None,
                key=f"key {number}" if rng.random() < 0.3 else None,
            )
    gone = main.fork("deleted, but with a fork")
    gone.state["kept for the fork"] = True
    gone.commit()
    threads[NAMES[-1]] = gone.fork(NAMES[-1])
    gone.delete()
    # Whatever came before: so many versions that a keyframe becomes due.
    for number in range(600):
        main.state["key 0"] = number
        main.commit()
    return threads


def edit(thread: everthread.Thread, rng: random.Random, number: int) -> None:
    state = thread.state
    choice = rng.randrange(7)
    if choice == 0 and state.get("todos"):
        del state["todos"][rng.randrange(len(state["todos"]))]
    elif choice == 1:
        state.increment("count", rng.choice((1, 2.5, -3)))
    elif choice == 2 and len(thread.messages) > 3:
        thread.messages.truncate_from(thread.messages[rng.randrange(len(thread.messages))].get("id"))
    elif choice == 3:
        state.pop(f"key {rng.randrange(5)}", None)
    elif choice == 4:
        state.setdefault("todos", []).insert(0, {"id": number, "text": rng.randbytes(40).hex()})
    else:
        noise = rng.randbytes(3_000)  # so much that keyframes become due
        state[f"key {rng.randrange(5)}"] = {"nested": [number, None, True, {"deep": noise}]}
    for _ in range(rng.randrange(4)):
        thread.messages.append({"role": "user", "content": rng.randbytes(rng.choice((10, 3_000))).hex()})
    if rng.random() < 0.2:
        thread.log("notes").append(f"plain text {number}")


def compare_versions(opened: reader.Store, line: reader.Line, thread: everthread.Thread) -> None:
    expected = [
        (v.seq, v.id, v.parent, v.kind, v.at_us, v.label, dict(v.metadata), v.key, v.source)
        for v in thread.history(limit=None)
    ]
    assert [tuple(version) for version in opened.versions(line)] == expected[::-1]


def compare_state(opened: reader.Store, line: reader.Line, thread: everthread.Thread, seq: int) -> None:
    past = thread.at(seq)
    assert opened.document(line, seq) == past.state.plain()
    for name in past.logs:
        assert opened.log(line, seq, name) == list(past.log(name)), (thread.name, seq, name)
    slow = opened.state(line, seq, shortcuts=False)
    quick = opened.state(line, seq)
    assert (slow.document, slow.counts) == (quick.document, quick.counts)
    assert {n: p for n, p in slow.logs.items() if p} == {n: p for n, p in quick.logs.items() if p}


def test_every_type_of_value(url: str, opened: reader.Store) -> None:
    paris = zoneinfo.ZoneInfo("Europe/Paris") if "Europe/Paris" in zoneinfo.available_timezones() else dt.UTC
    values = {
        "plain": [None, True, 0, -(2**63), 2**64 - 1, 0.5, "text", b"bytes", {"a": [{}]}],
        "big": [2**200, -(2**64)],
        "containers": [(1, (2, "x")), {1, 2, 3}, frozenset({"a"})],
        "times": [
            dt.datetime(2024, 2, 29, 12, 30, 15, 250),  # noqa: DTZ001
            dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
            dt.datetime(2024, 7, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3), "three back")),
            dt.datetime(2024, 10, 27, 2, 30, tzinfo=paris, fold=1),
            dt.date(1999, 12, 31),
            dt.time(23, 59, 59, 999_999),
            dt.time(1, 2, tzinfo=dt.UTC),
            dt.timedelta(days=-1, microseconds=5),
        ],
        "numbers": [decimal.Decimal("-1.250E+7"), decimal.Decimal("NaN")],
        "id": uuid.UUID(int=17),
        "keys": {1: "a", None: "b", (1, 2): "c", dt.date(2024, 1, 1): "d", 2.5: "e"},
    }
    with everthread.open(url, limits=everthread.Limits(surrogates="keep")) as store:
        thread = store.thread("types")
        thread.state["values"] = values
        thread.state["surrogate"] = "\ud800"
        thread.state["object"] = Point(1, 2)
        thread.messages.append({"id": (1, "tuple"), "at": dt.date(2024, 1, 1)})
        thread.commit()
    line = opened.threads()["types"]
    found = opened.document(line, 1)
    assert repr(found["values"]) == repr(values)
    assert found["surrogate"] == "\ud800"
    assert found["object"] == reader.Object("tests.docs.Point", {"x": 1, "y": 2})
    assert opened.log(line, 1, "messages") == [{"id": (1, "tuple"), "at": dt.date(2024, 1, 1)}]
    assert opened.check_chain(line) == 1


def test_sealed_values_are_references(url: str, opened: reader.Store) -> None:
    with everthread.open(url, keyring="memory:") as store:
        thread = store.thread("people")
        thread.state["mail"] = everthread.Personal(["ann", "bob"], "ann@example.org")
        thread.commit()
    sealed = opened.document(opened.threads()["people"], 1)["mail"]
    assert isinstance(sealed, reader.Sealed)
    query = "SELECT keys, data FROM sealed WHERE value = ?"
    ((keys, data),) = opened.db.execute(query, (sealed.value_id,)).fetchall()
    assert keys == b"".join(sealed.key_ids)
    assert len(sealed.key_ids) == 2
    assert sha256(data).digest() == sealed.digest
    assert b"ann@example.org" not in data


def test_a_damaged_record_is_noticed(url: str, tmp_path: Path) -> None:
    with everthread.open(url) as store:
        thread = store.thread("t")
        for n in range(3):
            thread.state["n"] = n
            thread.commit()
    found = reader.Store(f"{tmp_path}/agent.db")
    row = found.rows(found.threads()["t"])[1]
    found.close()
    with pytest.raises(ValueError, match="checksum"):
        reader.unframe(row.body[:-1] + bytes([row.body[-1] ^ 1]))


def test_the_program_prints_threads_versions_and_states(url: str, tmp_path: Path) -> None:
    with everthread.open(url) as store:
        thread = store.thread("invoice-bot")
        thread.state["phase"] = "reconcile"
        thread.messages.append({"id": "m1", "content": "Reconcile March."})
        thread.commit(label="asked")
        thread.state["phase"] = "report"
        thread.commit()

    def run(*arguments: str) -> str:
        command = [sys.executable, reader.__file__, f"{tmp_path}/agent.db", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert run() == "invoice-bot: 2 versions\n"
    assert "commit asked" in run("invoice-bot")
    assert "'phase': 'report'" in run("invoice-bot")
    assert "'phase': 'reconcile'" in run("invoice-bot", "1")
    assert "Reconcile March." in run("invoice-bot", "1")
