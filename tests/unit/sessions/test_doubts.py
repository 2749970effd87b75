"""Backups restored where the old store is lost, and stores that were brought back to an earlier time."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Done, InDoubtError, InvalidValueError, SessionFencedError, Store

KINDS = ["sqlite", "files"]
LONG_AGO = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

Place = Callable[[str], str]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The URL of a store of this name."""
    if request.param == "sqlite":
        return lambda name: f"sqlite:///{tmp_path}/{name}.db"
    return lambda name: f"file://{tmp_path}/{name}"


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "valkey"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kinds = {
        "memory": "memory:",
        "sqlite": f"sqlite:///{tmp_path}/agent.db",
        "files": f"file://{tmp_path}/store",
    }
    found: str = kinds.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=["sqlite", "files", "postgres", "valkey"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As ``any_url``, for stores that can be opened twice."""
    kinds = {"sqlite": f"sqlite:///{tmp_path}/agent.db", "files": f"file://{tmp_path}/store"}
    found: str = kinds.get(request.param) or request.getfixturevalue(f"{request.param}_url")
    return found


def opened(url: str, **options: Any) -> Store:
    return everthread.open(url, durability="process", keyring="memory:", **options)


def pay(store: Store, *keys: str, thread: str = "bot") -> list[str]:
    """The keys whose function was called."""
    called: list[str] = []
    with store.session(thread) as session:
        for key in keys:
            session.call(key, called.append, key)
    return called


def refuses(store: Store, key: str, thread: str = "bot") -> InDoubtError:
    with pytest.raises(InDoubtError) as found:
        pay(store, key, thread=thread)
    return found.value


def lost_store(place: Place, tmp_path: Path) -> tuple[Path, datetime.datetime, datetime.datetime]:
    """A backup of a store that worked on; between which times it was made."""
    backup = tmp_path / "backup"
    with opened(place("old")) as store:
        pay(store, "one")
        store.thread("quiet").commit(label="no ledger yet")
        before = datetime.datetime.now(datetime.UTC)
        store.backup(backup)
        after = datetime.datetime.now(datetime.UTC)
        pay(store, "two")
        pay(store, "two", thread="quiet")
        pay(store, "two", thread="late")
    return backup, before, after


# ── a backup restored elsewhere ──────────────────────────────────────────────────────────────────────


def test_a_backup_restored_into_a_new_store_puts_every_ledger_in_doubt(place: Place, tmp_path: Path) -> None:
    backup, before, after = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        report = store.restore(backup)
        assert report.doubtful == ("bot", "quiet")
        assert report.since is not None
        assert before <= report.since <= after
        assert [each.since for each in store.doubts()] == [report.since]
    with opened(place("new")) as store:
        for thread in ("bot", "quiet", "late"):
            error = refuses(store, "two", thread)
            assert error.since == report.since
            assert f"effects since {report.since:%Y-%m-%d %H:%M:%S} UTC are unknown" in str(error)
        assert pay(store, "one") == [], "what the backup knows is known"
        assert store.verify().ok


def test_the_same_holds_for_async_stores(place: Place, tmp_path: Path) -> None:
    asyncio.run(doubt_async_stores(place("new"), *lost_store(place, tmp_path)[:1]))


async def doubt_async_stores(url: str, backup: Path) -> None:
    called: list[str] = []
    async with everthread.open_async(url, durability="process", keyring="memory:") as store:
        report = await store.restore(backup)
        assert report.doubtful == ("bot", "quiet")
        for thread in ("bot", "quiet", "late"):
            async with store.session(thread) as session:
                with pytest.raises(InDoubtError) as found:
                    await session.call("two", called.append, "two")
                assert found.value.since == report.since
                assert await session.call("two", called.append, "two", verify=lambda _: True) is None
                assert await session.accept_loss()
                await session.call("three", called.append, thread)
        assert called == ["bot", "quiet", "late"]
        assert len(await store.doubts()) == 1
        assert await store.end_doubt() == 1
        assert (await store.doubt(LONG_AGO)).since == LONG_AGO


def test_a_key_is_free_once_it_is_settled_verified_or_the_loss_accepted(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    called: list[str] = []
    with opened(place("new")) as store:
        store.restore(backup)
        with store.session("bot") as session:
            assert session.call("two", called.append, "two", verify=lambda _: Done("receipt")) == "receipt"
            session.settle("three", Done("by hand"))
            assert session.call("three", called.append, "three") == "by hand"
            session.settle("four", False)
            session.call("four", called.append, "four")
            session.call("five", called.append, "five", verify=lambda _: False)
            assert called == ["four", "five"]
            with pytest.raises(InDoubtError):
                session.call("six", called.append, "six", verify=lambda _: None)
        refuses(store, "six")
        assert store.accept_loss("bot")
        assert not store.accept_loss("bot")
        assert pay(store, "two", "six") == ["six"]
        refuses(store, "two", "quiet")


def test_a_caller_who_knows_that_nothing_happened_since_says_so(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        report = store.restore(backup, nothing_since=True)
        assert report.doubtful == ()
        assert report.since is None
        assert store.doubts() == []
        assert pay(store, "six") == ["six"]


def test_what_this_store_knows_to_be_lost_stays_in_doubt_whatever_the_caller_says(
    place: Place, tmp_path: Path
) -> None:
    with opened(place("old")) as store:
        pay(store, "one")
        store.backup(tmp_path / "backup")
        pay(store, "two")
        assert store.restore(tmp_path / "backup", nothing_since=True).doubtful == ("bot",)
        refuses(store, "two")


def test_an_older_copy_of_a_store_proves_nothing_about_a_newer_backup(place: Place, tmp_path: Path) -> None:
    """A spare store was restored on Monday. Its ledgers are those of Wednesday's backup, but it knows nothing
    of Thursday."""
    with opened(place("main")) as store:
        pay(store, "one")
        store.backup(tmp_path / "monday")
        store.backup(tmp_path / "wednesday")
        pay(store, "two")
    with opened(place("spare")) as store:
        store.restore(tmp_path / "monday", nothing_since=True)
        assert store.restore(tmp_path / "wednesday").doubtful == ("bot",)
        refuses(store, "two")


def test_a_backup_restored_over_another_store_puts_every_ledger_in_doubt(
    place: Place, tmp_path: Path
) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("other")) as store:
        pay(store, "theirs", thread="other bot")
        store.backup(tmp_path / "other backup")
        assert store.restore(backup).doubtful == ("bot", "other bot", "quiet")
        refuses(store, "two")
        refuses(store, "theirs", "other bot")


def test_a_restore_over_the_same_store_doubts_only_what_is_lost(place: Place, tmp_path: Path) -> None:
    with opened(place("old")) as store:
        pay(store, "one", thread="calm")
        pay(store, "one")
        store.backup(tmp_path / "backup")
        pay(store, "two")
        for _ in range(2):
            report = store.restore(tmp_path / "backup")
            assert report.doubtful == ("bot",)
            assert report.since is None
            assert store.doubts() == []
        assert pay(store, "two", thread="calm") == ["two"]
        assert pay(store, "one", thread="new") == ["one"]


def test_a_thread_that_comes_back_with_a_second_backup_is_compared(place: Place, tmp_path: Path) -> None:
    """The first backup doesn't have the thread, and another one of its name was begun meanwhile."""
    with opened(place("old")) as store:
        store.thread("early").commit(label="so that there is something")
        store.backup(tmp_path / "first")
        pay(store, "one")
        store.backup(tmp_path / "second")
        pay(store, "two")
        assert store.restore(tmp_path / "first").doubtful == ("bot",)
        with store.session("bot") as session:
            session.accept_loss()
        assert store.restore(tmp_path / "second").doubtful == ("bot",)
        refuses(store, "two")


def test_restoring_elsewhere_twice_forgets_what_was_accepted_in_between(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        store.restore(backup)
        assert store.accept_loss("bot")
        assert pay(store, "three") == ["three"]
        assert store.restore(backup).doubtful == ("bot", "quiet")
        refuses(store, "three")
        refuses(store, "two", "late")


def test_a_backup_of_a_store_in_doubt_keeps_the_doubt(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        store.restore(backup)
        assert store.accept_loss("bot")
        store.backup(tmp_path / "again")
        assert store.restore(tmp_path / "again").doubtful == ("quiet",)
        assert pay(store, "two") == ["two"], "the loss was accepted for it"
        refuses(store, "two", "quiet")
        refuses(store, "two", "late")
    with opened(place("third")) as store:
        assert store.restore(tmp_path / "again", nothing_since=True).doubtful == ("quiet",)
        refuses(store, "two", "quiet")


def test_forks_and_merges_of_a_thread_in_doubt_are_in_doubt(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        store.restore(backup)
        store.thread("bot").fork("before")
        assert store.accept_loss("bot")
        store.thread("bot").fork("after")
        refuses(store, "two", "before")
        refuses(store, "two", "after")
        fork = store.thread("quiet").fork("untouched")
        fork.commit(label="something")
        assert store.accept_loss("quiet")
        assert pay(store, "three", thread="quiet") == ["three"]
        store.thread("quiet").merge(store.thread("untouched"))
        refuses(store, "four", "quiet")


def test_a_copy_of_a_thread_in_doubt_is_in_doubt(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store, opened(place("copy")) as copy, opened(place("import")) as imported:
        store.restore(backup)
        store.export(tmp_path / "archive")
        store.copy_to(copy)
        imported.import_from(tmp_path / "archive")
        for other in (copy, imported):
            refuses(other, "two")
            refuses(other, "two", "quiet")
            assert pay(other, "two", thread="another") == ["two"], "the store itself lost nothing"


def test_a_thread_whose_name_was_generated_just_now_is_not_in_doubt(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    called: list[str] = []
    with opened(place("new")) as store:
        store.restore(backup)
        with store.session() as session:
            session.call("two", called.append, "two")
            name = session.session_id
        with store.session(name) as session:
            session.call("three", called.append, "three")
        assert called == ["two", "three"]


def test_steps_are_in_doubt_as_sessions_are(place: Place, tmp_path: Path) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        store.restore(backup)
        for thread in ("bot", "late"):
            with pytest.raises(InDoubtError), store.thread(thread).step("pay", run="workflow") as step:
                step.call("two", pytest.fail)


def test_what_people_and_agents_read_says_what_is_unknown_and_since_when(
    place: Place, tmp_path: Path
) -> None:
    backup, _, _ = lost_store(place, tmp_path)
    with opened(place("new")) as store:
        since = store.restore(backup).since
        words = f"effects since {since:%Y-%m-%d %H:%M:%S} UTC are unknown"
        found = store.resume("bot")
        assert found is not None
        assert words in str(found.losses)
        assert words in found.summary()
        assert words in str(store.briefing("bot"))
        with store.session("bot") as session:
            assert session.resumed is not None
            assert words in str(session.resumed.losses)
            assert words in str(session.briefing())


# ── a store that its operator brought back ───────────────────────────────────────────────────────────


def test_an_operator_puts_every_ledger_in_doubt(any_url: str) -> None:
    with opened(any_url) as store:
        pay(store, "one")
        assert store.doubts() == []
        doubt = store.doubt(LONG_AGO, "pg_restore of Sunday's dump")
        assert doubt.since == LONG_AGO
        assert store.doubts() == [doubt]
        for thread in ("bot", "new"):
            error = refuses(store, "two", thread)
            assert error.since == LONG_AGO
            assert "pg_restore of Sunday's dump" in str(error)
        assert store.accept_loss("bot")
        assert pay(store, "one", "two") == ["two"]


def test_a_doubt_holds_in_every_namespace(shared_url: str) -> None:
    with opened(shared_url) as store, opened(shared_url, namespace="tenant") as tenant:
        pay(tenant, "one")
        doubt = store.doubt(LONG_AGO)
        assert tenant.doubts() == [doubt]
        refuses(tenant, "two")
        with opened(shared_url, namespace="new tenant") as other:
            refuses(other, "two")


def test_ending_a_doubt_trusts_new_threads_and_no_others(any_url: str) -> None:
    with opened(any_url) as store:
        pay(store, "one")
        store.thread("quiet").commit(label="no ledger yet")
        store.doubt(LONG_AGO)
        refuses(store, "two", "begun")
        assert store.end_doubt() == 1
        assert store.doubts() == []
        assert pay(store, "two", thread="new") == ["two"]
        for thread in ("bot", "quiet", "begun"):
            refuses(store, "two", thread)
            assert store.accept_loss(thread)
            assert pay(store, "two", thread=thread) == ["two"]
        assert store.end_doubt() == 0


def test_a_run_at_work_is_fenced_off_when_its_ledger_is_put_in_doubt(any_url: str) -> None:
    with opened(any_url) as store:

        def work() -> None:
            with store.session("bot") as session:
                session.call("one", list)
                store.doubt(LONG_AGO)
                session.call("two", pytest.fail)

        with pytest.raises(SessionFencedError, match="restored from a backup"):
            work()
        refuses(store, "two")


def test_a_second_doubt_holds_for_what_was_accepted_under_the_first(any_url: str) -> None:
    with opened(any_url) as store:
        pay(store, "one")
        store.doubt(LONG_AGO)
        assert store.accept_loss("bot")
        later = LONG_AGO + datetime.timedelta(days=1)
        store.doubt(later)
        assert refuses(store, "two").since == later


def test_a_time_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with opened("memory:") as store:
        for wrong in (
            LONG_AGO.replace(tzinfo=None),
            datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1),
            "yesterday",
        ):
            with pytest.raises(InvalidValueError):
                store.doubt(wrong)  # type: ignore[arg-type]
        assert store.doubts() == []
