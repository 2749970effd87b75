"""What the record says of redactions that were killed, and what becomes of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec import UNSET

import everthread
from everthread.records.opening import open_backend
from everthread.redaction.redact import recorded
from everthread.store import Store

SECRET = "555-0199"
KINDS = ["sqlite", "files"]
#: Killed before the so-manieth rewriting.
CHILD = """
    import os, sys
    from everthread.store import Store
    from everthread.records.opening import open_backend
    url, calls, verb, replacement = sys.argv[1], [int(sys.argv[2])], sys.argv[3], sys.argv[4]
    store = Store(open_backend(url, "process"))
    known = getattr(store.core.backend, verb)

    def counted(*args):
        calls[0] -= 1
        if not calls[0]:
            os._exit(9)
        return known(*args)

    setattr(store.core.backend, verb, counted)
    store.redact("555-0199", replacement=replacement, reason="mail")
"""


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else f"file://{tmp_path}/store"
    with everthread.open(url, durability="process") as store:
        for name in ("a", "b", "c"):
            thread = store.thread(name)
            for number in range(4):
                thread.state["phone"] = f"{SECRET} {number}"
                thread.commit()
        store.events("calls").append("call", {"from": SECRET})
    return url


def kill(url: str, at: int, verb: str = "prune", replacement: str = "[redacted]") -> None:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), url, str(at), verb, replacement]
    assert subprocess.run(command, check=False).returncode == 9


def unsettled(url: str) -> Store:
    """The store as it was left: opening it as usual goes on with what was cut short."""
    return Store(open_backend(url, "process"))


def redacted_versions(store: everthread.Store) -> int:
    return store.verify().redacted


@pytest.mark.parametrize("at", [1, 2, 3])
def test_only_what_was_done_is_counted(url: str, at: int) -> None:
    kill(url, at)
    with unsettled(url) as store:
        (told,) = recorded(store.core)
        assert told.versions == redacted_versions(store)
        assert bool(told.versions) is (at > 1)
        assert (told.events, told.unfinished) == (0, True)
        assert str(told).startswith("begun and not finished, so far at least ")
    with everthread.open(url, durability="process") as store:
        (told,) = recorded(store.core)
        assert (told.threads, told.versions, told.events, told.unfinished) == (3, 12, 1, UNSET)
        assert str(told) == "12 versions of 3 threads and 1 event"
        assert list(store.scan(SECRET)) == []


def test_events_that_were_noted_only_aren_t_counted(url: str) -> None:
    kill(url, 1, "rewrite_events")
    with unsettled(url) as store:
        (told,) = recorded(store.core)
        assert (told.threads, told.versions, told.events, told.unfinished) == (3, 12, 0, True)


def test_another_replacement_ends_what_was_cut_short_and_says_so(url: str) -> None:
    kill(url, 2)
    with unsettled(url) as store:
        (first,) = recorded(store.core)
        assert 0 < first.versions == redacted_versions(store) < 12
        report = store.redact(SECRET, replacement="GONE")
        assert (report.versions, report.events) == (12 - first.versions, 1)
        assert any(first.id in words and "cut short" in words for words in report.unreached)
        assert store._left_undone() == [], "nothing is left for the first one"
        one, two = recorded(store.core)
        assert (one.id, one.versions, one.events) == (first.id, first.versions, 0)
        assert (one.unfinished, one.by) == (UNSET, report.id)
        assert str(one).endswith(f" of 1 thread before it was cut short, {report.id} did the rest")
        assert (two.id, two.versions, two.events, two.by) == (report.id, report.versions, 1, UNSET)
        assert redacted_versions(store) == 12
        assert store.verify().ok
        assert list(store.scan(SECRET)) == []
    with everthread.open(url, durability="process") as store:
        assert len(recorded(store.core)) == 2


@pytest.mark.parametrize("last", ["open", "[redacted]", "GONE", "third"])
def test_killed_twice_with_different_replacements(url: str, last: str) -> None:
    kill(url, 2)
    kill(url, 2, replacement="GONE")
    with unsettled(url) as store:
        one, two = recorded(store.core)
        assert (one.unfinished, two.unfinished) == (True, True)
        done = redacted_versions(store)
        assert two.versions
        if last != "open":
            report = store.redact(SECRET, replacement=last)
            assert one.id in str(report.unreached)
            assert store._left_undone() == []
    with everthread.open(url, durability="process") as store:
        told = recorded(store.core)
        assert not any(each.unfinished for each in told)
        assert len(told) == (2 if last in ("open", "GONE") else 3)
        assert told[0].versions + two.versions == done
        assert sum(each.versions for each in told) == redacted_versions(store) == 12
        assert sum(each.events for each in told) == 1
        assert list(store.scan(SECRET)) == []


def test_one_that_did_nothing_isn_t_told(url: str) -> None:
    """Killed before anything was noted of it."""
    kill(url, 1, "create")
    with unsettled(url) as store:
        assert recorded(store.core) == []
        report = store.redact(SECRET, replacement="GONE")
        (told,) = recorded(store.core)
        assert (told.id, told.versions) == (report.id, 12)
