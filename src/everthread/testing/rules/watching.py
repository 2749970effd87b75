"""Watching is ordered and gap-free, whoever writes."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

from everthread.errors import (
    InvalidValueError,
    StoreClosedError,
    ThreadDeletedError,
    UsageError,
    VersionNotFoundError,
)
from everthread.testing.rules.expecting import OpenStore, commit, needs, raises, talk


def _take(watching: Any, count: int) -> list[int]:
    """The next versions, by number; then nobody watches any more."""
    with closing(watching):
        return [next(watching).seq for _ in range(count)]


class WatchRules:
    def test_a_watch_begins_after_the_head_of_its_handle(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        watching = store.thread("a")
        assert watching.head == thread.head
        made = talk(thread, 9, "later")
        assert list(watching.watch(timeout=0)) == made
        assert watching.head is not None
        assert watching.head.seq == 3, "the handle itself doesn't move"

    def test_a_watch_goes_on_after_any_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 20)
        for after in (0, 1, 7, 19, 20):
            assert list(thread.watch(after, timeout=0)) == versions[after:]
        assert list(thread.watch(versions[4], timeout=0)) == versions[5:]
        assert list(thread.watch(versions[4].id, timeout=0)) == versions[5:]

    def test_rewinds_and_merges_are_versions(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 5)
        other = thread.fork("b")
        other.state["theirs"] = 1
        commit(other)
        watching = store.thread("a").watch(timeout=0)
        made = [thread.rewind(2)]
        thread.state["ours"] = 1
        made.append(commit(thread, label="on"))
        merged = thread.merge(other).version
        assert merged is not None
        made.append(merged)
        assert list(watching) == made
        assert [version.kind for version in made] == ["rewind", "commit", "merge"]

    def test_a_fork_is_watched_from_its_past_on(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 12)
        fork = thread.fork("b", at=versions[7]).fork("c")
        own = talk(fork, 6, "fork")
        talk(thread, 3, "on")
        assert list(fork.watch(3, timeout=0)) == [*versions[3:8], *own]
        assert list(fork.watch(0, timeout=0)) == [*versions[:8], *own]

    def test_a_writer_wakes_the_watcher(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 1)
        watching = store.thread("a").watch(timeout=30)
        ready = threading.Event()

        def write() -> None:
            ready.wait(30)
            talk(thread, 10, "later")

        writer = threading.Thread(target=write)
        writer.start()
        ready.set()
        seen = _take(watching, 10)
        writer.join()
        assert seen == list(range(2, 12))

    def test_another_store_object_wakes_the_watcher(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        talk(store.thread("a"), 1)
        other = open_store()
        watching = store.thread("a").watch(timeout=30)
        writer = threading.Thread(target=lambda: talk(other.thread("a"), 10, "later"))
        writer.start()
        seen = _take(watching, 10)
        writer.join()
        assert seen == list(range(2, 12))

    def test_a_thread_that_is_not_there_yet_can_be_watched(self, open_store: OpenStore) -> None:
        store = open_store()
        watching = store.thread("a").watch(timeout=30)
        writer = threading.Thread(target=lambda: talk(store.thread("a"), 3))
        writer.start()
        assert _take(watching, 3) == [1, 2, 3]
        writer.join()

    def test_deletion_ends_it(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 5)
        waiting, behind = store.thread("a").watch(timeout=30), store.thread("a").watch(2)
        assert next(behind).seq == 3
        deleter = threading.Timer(0.05, store.thread("a").delete)
        deleter.start()
        with raises(ThreadDeletedError):
            next(waiting)
        deleter.join()
        talk(store.thread("a"), 9, "another")
        with raises(ThreadDeletedError):
            list(behind)

    def test_closing_the_store_ends_it(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)
        waiting = store.thread("a").watch(timeout=30)
        closer = threading.Timer(0.05, store.close)
        closer.start()
        with raises(StoreClosedError):
            next(waiting)
        closer.join()

    def test_versions_that_make_no_sense(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 3)
        foreign = talk(store.thread("b"), 3)
        nothing: Any = 1.5
        for after, error in (
            (9, VersionNotFoundError),
            (foreign[1], VersionNotFoundError),
            (foreign[2].id, VersionNotFoundError),
            (-1, InvalidValueError),
            (nothing, UsageError),
            (True, UsageError),
        ):
            with raises(error):
                list(thread.watch(after, timeout=0))
        assert list(thread.watch(versions[2], timeout=0)) == []
