"""What callers hand in besides names and values is refused in words, before anything is touched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import CheckpointManager, Store, checkpoint, verifiers
from everthread.arguments import check_count, check_path, check_seconds
from everthread.errors import EverthreadError, InvalidStateError, InvalidValueError, UsageError

NOT_PATHS = [None, 7, 1.5, b"x", [], {}, object(), "", "a\0b", "\ud800"]


def test_seconds() -> None:
    assert check_seconds(-3, "timeout") == 0.0
    assert check_seconds(10**400, "timeout") == check_seconds(float("inf"), "timeout")
    for value in (float("nan"), "5", None, True, []):
        with pytest.raises(InvalidValueError, match="timeout must be a number of seconds"):
            check_seconds(value, "timeout")


def test_counts() -> None:
    assert check_count(10**30, "limit") == 10**30
    for value in (1.0, "1", None, True, []):
        with pytest.raises(InvalidValueError, match="limit must be a whole number"):
            check_count(value, "limit")
    with pytest.raises(InvalidValueError, match="not be negative"):
        check_count(-1, "limit")
    with pytest.raises(InvalidValueError, match="be 1 at least"):
        check_count(0, "limit", least=1)


def test_paths() -> None:
    latin = os.fsdecode(b"caf\xe9")
    assert check_path(latin) == latin
    assert check_path(Path("a")) == "a"
    for value in NOT_PATHS:
        with pytest.raises(InvalidValueError):
            check_path(value)


@pytest.mark.parametrize("verb", ["backup", "restore", "export", "import_from"])
def test_verbs_that_take_a_path(verb: str, tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as store:
        for value in NOT_PATHS:
            with pytest.raises(InvalidValueError, match="path"):
                getattr(store, verb)(value)
    assert min(os.listdir(tmp_path)) == "a.db"


CALLS: dict[str, Callable[[Store, Any], Any]] = {
    "history": lambda store, bad: list(store.thread("a").history(limit=bad)),
    "threads": lambda store, bad: list(store.threads(limit=bad)),
    "metadata": lambda store, bad: list(store.threads(metadata=bad)),
    "stats": lambda store, bad: store.stats(limit=bad),
    "fn": lambda store, bad: store.thread("a").update(bad),
    "tries": lambda store, bad: store.thread("a").update(lambda draft: None, tries=bad),
    "watch": lambda store, bad: list(store.thread("a").watch(timeout=bad)),
    "prepare": lambda store, bad: store.thread("a").fork("f", prepare=bad),
    "transform": lambda store, bad: store.thread("a").fork("f", transform=bad),
    "verify": lambda store, bad: store.verify(progress=bad),
    "anchors": lambda store, bad: store.verify(anchors=bad),
    "gc": lambda store, bad: store.gc(progress=bad),
    "scan": lambda store, bad: list(store.scan("x", progress=bad)),
    "kinds": lambda store, bad: store.search("x", kinds=bad),
    "extend": lambda store, bad: store.thread("a").messages.extend(bad),
    "upcast": lambda store, bad: store.events("e", upcast=bad),
    "events": lambda store, bad: store.events("e").extend(bad),
    "project": lambda store, bad: store.events("e").project(bad),
    "projection": lambda store, bad: store.events("e").projection("p", bad),
    "parent": lambda store, bad: store.session("s", parent=bad),
    "hold": lambda store, bad: store.hold(bad, "court"),
    "salvage": lambda store, bad: everthread.salvage(bad, "memory:"),
    "detectors": lambda store, bad: everthread.open("memory:", detectors=bad),
    "derive": lambda store, bad: everthread.derive(bad, 1),
    "manager": lambda store, bad: checkpoint(bad, key="k"),
    "folder": lambda store, bad: CheckpointManager("file", path=bad),
    "file_hash": lambda store, bad: verifiers.file_hash(bad),
    "git_branch": lambda store, bad: verifiers.git_branch(bad),
    "command": lambda store, bad: verifiers.command(bad),
    "http_status": lambda store, bad: verifiers.http_status(bad),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", [7.5, object()], ids=["number", "object"])
def test_wrong_kinds(call: str, bad: Any) -> None:
    if call == "watch":
        bad = "soon" if bad == 7.5 else float("nan")
    with everthread.open("memory:") as store:
        thread = store.thread("a")
        thread.state["x"] = 1
        thread.messages.append({"id": "m"})
        version = thread.commit()
        store.events("e").append("begun", {})
        with pytest.raises(EverthreadError):
            CALLS[call](store, bad)
        assert [info.name for info in store.threads()] == ["a"]
        assert store.thread("a").head == version


def test_session_arguments() -> None:
    with everthread.open("memory:") as store, store.session("s") as session:
        for call in (
            lambda: session.checkpoint("c", include_keys=7),  # type: ignore[arg-type]
            lambda: session.decide("d", rejected=None),  # type: ignore[arg-type]
            lambda: session.record_outcome(["d"], "done"),  # type: ignore[arg-type]
            lambda: session.settle(None, True),  # type: ignore[arg-type]
            lambda: session.effects("x"),  # type: ignore[arg-type]
            lambda: session.merge_update(7),  # type: ignore[arg-type]
            lambda: session.wait_for_change(None),  # type: ignore[arg-type]
            lambda: session.wait_for_change(0, timeout=float("nan")),
        ):
            with pytest.raises(UsageError):
                call()
        assert session.incomplete_decisions() == []


def test_numbers_beyond_all_floats() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("a", ttl=10**400)
        thread.state["x"] = 1.5
        with pytest.raises(InvalidValueError, match=r"the sum at state\.x is too large"):
            thread.state.increment("x", 10**400)
        assert thread.commit().expires_at is not None
        assert thread.state["x"] == 1.5


def test_logs_of_the_past_are_read_only() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("a")
        thread.messages.append({"id": "m"})
        past = thread.at(thread.commit()).messages
        for change in (
            lambda: past.append({"id": "n"}),
            lambda: past.extend([]),
            lambda: past.truncate_from("m"),
        ):
            with pytest.raises(InvalidStateError, match="read only"):
                change()


def test_a_thread_that_was_not_awaited_says_so() -> None:
    async def run() -> None:
        async with everthread.open_async("memory:") as store:
            for wanted in ("state", "messages", "commit"):
                with pytest.raises(UsageError, match=r"await store\.thread"):
                    getattr(store.thread("a"), wanted)
            thread = await asyncio.create_task(store.thread("a"))
            thread.state["x"] = 1
            await thread.commit()
            both = await asyncio.gather(store.thread("a"), store.thread("a"))
            assert [each.state["x"] for each in both] == [1, 1]
            assert (await asyncio.wait_for(store.thread("a"), 10)).state["x"] == 1

    asyncio.run(run())


def test_names_of_folders_that_are_not_utf8(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(folder, 0o700)
    with everthread.open(f"file://{folder}/store") as store:
        store.thread("a").update(lambda draft: draft.state.update(x=1))
        again = store.url
    with everthread.open(again) as store:
        assert store.thread("a").state["x"] == 1
    with pytest.raises(everthread.StoreUnavailableError, match="UTF-8"):
        everthread.open(f"sqlite:///{folder}/a.db")
    with pytest.raises(InvalidValueError):
        everthread.open("sqlite:///\ud800")
