"""The testing kit: processes that are really killed, calls that fail where they are told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidValueError, StorageWriteError, StoreUnavailableError, UsageError
from everthread.records.opening import open_memory
from everthread.testing.crash import Crash, run_until
from everthread.testing.faults import (
    VERBS,
    Call,
    Point,
    WrappedBackend,
    open_faulty,
    wrap_every_backend,
    wrapped,
)

STORES = {"sqlite": "sqlite:///{}/store.db", "file": "file://{}/store"}


def five(store: Any) -> None:
    thread = store.thread("a")
    for number in range(5):
        thread.state["n"] = number
        thread.commit(key=f"k{number}")


async def five_async(store: Any) -> None:
    thread = await store.thread("a")
    for number in range(5):
        thread.state["n"] = number
        await thread.commit(key=f"k{number}")


def opens_itself(store: Any, text: str) -> None:
    with everthread.open() as own:
        thread = own.thread("own")
        thread.state["text"] = text
        thread.commit()


def many(store: Any) -> None:
    thread = store.thread("a")
    for number in range(70):
        thread.state["n"] = number
        thread.commit()


def branching(store: Any) -> None:
    five(store)
    store.thread("a").fork("b")
    store.thread("a").delete()


def fails(store: Any) -> None:
    raise RuntimeError("of its own")


def _left(crash: Crash) -> Any:
    with crash.reopen() as store:
        assert store.verify()
        thread = store.thread("a")
        return thread.state["n"] if thread.head else None


@pytest.mark.parametrize(
    ("store", "work", "point", "nth", "left"),
    [
        ("sqlite", five, "create:before", 1, None),
        ("sqlite", five, "append:before", 2, 1),
        ("sqlite", five, "append:after", 2, 2),
        ("sqlite", five_async, "append:before", 2, 1),
        ("sqlite", five_async, "append:after", 2, 2),
        ("file", five, "create:after", 1, 0),
        ("file", five, "append:before", 2, 1),
        ("file", five_async, "append:after", 2, 2),
    ],
)
def test_a_process_is_killed_at_the_point(
    tmp_path: Path, store: str, work: Any, point: str, nth: int, left: Any
) -> None:
    url = STORES[store]
    crash = run_until(point, work, url.format(tmp_path), nth=nth)
    assert crash.exitcode == -signal.SIGKILL
    assert _left(crash) == left
    with crash.reopen() as found:
        five(found)
        assert [version.seq for version in found.thread("a").history()] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("store", "point", "work", "threads"),
    [
        ("sqlite", "fold:before", many, ["a"]),
        ("sqlite", "fold:after", many, ["a"]),
        ("sqlite", "delete:before", branching, ["a", "b"]),
        ("sqlite", "find:before", branching, []),
        ("file", "fold:after", many, ["a"]),
        ("file", "delete:after", branching, ["b"]),
    ],
)
def test_any_verb_is_a_point(tmp_path: Path, store: str, point: str, work: Any, threads: list[str]) -> None:
    crash = run_until(point, work, STORES[store].format(tmp_path))
    with crash.reopen() as found:
        assert [info.name for info in found.threads()] == threads
        assert found.verify()


def test_stores_that_the_work_opens_itself_count_too(tmp_path: Path) -> None:
    url = STORES["sqlite"].format(tmp_path)
    crash = run_until("create:after", opens_itself, url, argument="plain data")
    with crash.reopen() as store:
        assert store.thread("own").state["text"] == "plain data"


def test_a_script_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import everthread\nprint('working', flush=True)\nthread = everthread.open().thread('a')\n"
        "thread.state['n'] = 0\nthread.commit()\nthread.state['n'] = 1\nthread.commit()\n"
    )
    crash = run_until("append:before", script, STORES["sqlite"].format(tmp_path))
    assert crash.output == "working\n"
    assert _left(crash) == 0


def test_a_point_that_is_not_reached_fails_the_test(tmp_path: Path) -> None:
    url = STORES["sqlite"].format(tmp_path)
    with pytest.raises(AssertionError, match=r"never came to append:before \(nth=9\)(.|\n)*4 × append"):
        run_until("append:before", five, url, nth=9)
    with pytest.raises(AssertionError, match=r"failed before append:before(.|\n)*RuntimeError: of its own"):
        run_until("append:before", fails, url)


def test_what_can_not_be_crashed_is_refused(tmp_path: Path) -> None:
    url = STORES["sqlite"].format(tmp_path)
    with pytest.raises(UsageError, match="dies with its process"):
        run_until("append:before", five, "memory:")
    with pytest.raises(InvalidValueError, match="at the top of a module"):
        run_until("append:before", lambda store: None, url)
    with pytest.raises(InvalidValueError, match="no script"):
        run_until("append:before", tmp_path / "missing.py", url)
    with pytest.raises(InvalidValueError, match="counts from 1"):
        run_until("append:before", five, url, nth=0)
    for text in ("append", "append:during", "nonsense:before", ""):
        with pytest.raises(InvalidValueError, match=r"is no point.*append"):
            Point.parse(text)


def test_a_lost_answer_is_recognised() -> None:
    store, faults = open_faulty("memory:")
    thread = store.thread("a")
    thread.state["n"] = 1
    thread.commit()
    faults.fail("append:after", nth=2)
    thread.state["n"] = 2
    thread.commit()
    thread.state["n"] = 3
    with pytest.raises(StorageWriteError, match="append:after"):
        thread.commit()
    version = thread.commit()
    assert version is not None
    assert version.seq == 3
    assert faults.raised == ["append:after"]


def test_faults_last_as_long_as_told() -> None:
    store, faults = open_faulty("memory:")
    thread = store.thread("a")
    thread.state["n"] = 1
    thread.commit()
    faults.fail("append:before", StoreUnavailableError("away"), times=None)
    thread.state["n"] = 2
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="away"):
            thread.commit()
    faults.heal()
    version = thread.commit()
    assert version is not None
    assert version.seq == 2


def test_a_wrapped_backend_tells_of_every_call_and_hands_on_the_rest() -> None:
    seen: list[Call] = []
    backend = WrappedBackend(open_memory(), seen.append)
    assert backend.url == "memory:"
    assert backend.find("", "a") is None
    assert backend.keyed(root=1, key=b"k") == []
    assert [(call.verb, call.moment, call.number) for call in seen] == [
        ("find", "before", 1),
        ("find", "after", 1),
        ("keyed", "before", 1),
        ("keyed", "after", 1),
    ]
    assert backend.calls == {"find": 1, "keyed": 1}
    assert {"append", "create", "fold", "delete", "backup", "restore"} <= set(VERBS)


def test_every_backend_is_wrapped_within_the_block_only() -> None:
    seen: list[Call] = []
    with wrap_every_backend(lambda backend: wrapped(backend, seen.append)):
        everthread.open("memory:").thread("a").head  # noqa: B018
    # Opening asks whether an erasure, or anything else, was left unfinished.
    assert [call.verb for call in seen if call.moment == "before"] == ["erasures", "cells", "find"]
    everthread.open("memory:").thread("a").head  # noqa: B018
    assert len(seen) == 6


def test_the_plugin_loads_nothing_until_it_is_used() -> None:
    probe = (
        "import sys, pytest, everthread.testing.plugin; "
        "print(*sorted(n for n in sys.modules if n.startswith(('everthread', 'apsw', 'msgspec'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout.split() == ["everthread", "everthread.testing", "everthread.testing.plugin"]
