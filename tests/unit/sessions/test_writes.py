"""How often a session writes, and how often it is read: counted at the store, on SQLite."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Store
from everthread.testing.faults import Call, wrap_every_backend, wrapped

#: Verbs that make a version, and the one that changes the lease.
VERSIONS, LEASE = ("create", "append"), "swap"


class Counted:
    """A store whose calls are counted from one question to the next."""

    def __init__(self, store: Store, calls: Counter[str]) -> None:
        self.store = store
        self._calls = calls

    def since(self) -> Counter[str]:
        found = Counter(self._calls)
        self._calls.clear()
        return found

    def writes(self) -> tuple[int, int]:
        """Versions, and changes of a lease."""
        found = self.since()
        return sum(found[verb] for verb in VERSIONS), found[LEASE]


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    calls: Counter[str] = Counter()

    def note(call: Call) -> None:
        if call.moment == "after":
            calls[call.verb] += 1

    with (
        wrap_every_backend(lambda backend: wrapped(backend, note)),
        everthread.open(f"sqlite:///{tmp_path}/s.db", keyring="memory:") as store,
    ):
        calls.clear()
        yield Counted(store, calls)


def forget_one(store: Store, **options: str) -> None:
    """Begin a run that nobody ends."""
    store.session("bot", **options)
    gc.collect()


def test_a_new_session_with_a_todo_makes_two_versions(counted: Counted) -> None:
    session = counted.store.session("bot")
    session.work.add_todo("look at the log")
    assert counted.writes() == (2, 1), "the thread, and the todo"
    session.close()
    assert counted.writes() == (1, 1), "the run, its begin and end together"


def test_a_session_that_goes_on_makes_one_version_for_a_todo(counted: Counted) -> None:
    with counted.store.session("bot"):
        pass
    counted.since()
    session = counted.store.session("bot", agent="second")
    assert counted.writes() == (0, 1)
    session.work.add_todo("look at the log")
    assert counted.writes() == (1, 0)
    assert session.thread.head is not None
    assert session.thread.head.metadata["agent"] == "second", "the first version of a run says whose it is"
    session.close()
    assert counted.writes() == (1, 1)


def test_an_effect_is_written_before_and_after_it(counted: Counted) -> None:
    with counted.store.session("bot") as session:
        counted.since()
        seen: list[tuple[int, int]] = []
        session.call("mail", lambda: seen.append(counted.writes()))
        assert seen == [(1, 0)], "the intent is durable before the effect, and the run with it"
        assert counted.writes() == (1, 0)


def test_a_takeover_is_fenced_in_journal_and_thread(counted: Counted) -> None:
    forget_one(counted.store)
    counted.since()
    session = counted.store.session("bot")
    assert counted.writes() == (2, 1)
    assert session.found.status == "crashed"
    session.close()


def test_resuming_reads_each_thing_once(counted: Counted) -> None:
    with counted.store.session("bot") as session:
        session.work.add_todo("look at the log")
        session.call("mail", lambda: "sent")
    counted.since()
    counted.store.resume("bot")
    found = counted.since()
    assert found["cell"] == 1, "the lease"
    assert found["find"] == 2, "the thread and its journal"
    assert not any(found[verb] for verb in (*VERSIONS, LEASE))


# ── a run that the journal doesn't know yet ──────────────────────────────────────────────────


def test_a_run_is_known_from_its_lease(counted: Counted) -> None:
    store = counted.store
    with store.session("bot", agent="first"):
        pass
    with store.session("bot", agent="second") as session:
        records = store.session_records("bot")
        assert records is not None
        assert [(run.agent, run.number, run.status) for run in records.runs()] == [
            ("second", 2, "running"),
            ("first", 1, "completed"),
        ]
        assert records.version == session.version
        assert session.run == records.last_run
        before = session.version
    records = store.session_records("bot")
    assert records is not None
    assert records.version > before
    assert [(run.number, run.status) for run in records.runs()] == [(2, "completed"), (1, "completed")]


def test_one_that_died_before_it_wrote_anything_has_crashed(counted: Counted) -> None:
    store = counted.store
    with store.session("bot", agent="first"):
        pass
    forget_one(store, agent="second")
    assert store.resume("bot").crashed
    with store.session("bot", agent="third") as session:
        assert session.found.status == "crashed"
        assert session.run.number == 3
    records = store.session_records("bot")
    assert records is not None
    assert [(run.agent, run.number, run.status) for run in records.runs()] == [
        ("third", 3, "completed"),
        ("second", 2, "crashed"),
        ("first", 1, "completed"),
    ]


def test_a_user_is_recorded_at_once(counted: Counted) -> None:
    """A run that dies before it writes anything must not take along whose session it was."""
    forget_one(counted.store, user_id="ada")
    with counted.store.session("bot") as session:
        assert session.user_id == "ada"
        counted.since()
    with counted.store.session("bot") as session:
        assert session.user_id == "ada"
        assert counted.writes()[0] == 1, "the end of the run before; the person is known already"
