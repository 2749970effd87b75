"""The store as a whole: its list of threads, its namespaces, its health, its copies."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import closing
from typing import Any

from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidNameError,
    InvalidStateError,
    InvalidValueError,
    StoreClosedError,
    ThreadDeletedError,
    ThreadNotFoundError,
    UnsupportedError,
    UsageError,
    VersionNotFoundError,
)
from everthread.testing.rules.expectations import (
    OpenStore,
    commit,
    contents,
    ids,
    message,
    needs,
    raises,
    talk,
)


class WholeStoreRules:
    def test_threads_are_listed_by_name(self, open_store: OpenStore) -> None:
        store = open_store()
        names = ["b", "a", "a/2", "a/10", "ab", "B", "é", "\U0001f9f5", "a/1"]
        for name in names:
            talk(store.thread(name), 2)
        fork = store.thread("a").fork("a/fork")
        newest = talk(fork, 1, "fork")[-1]
        assert [found.name for found in store.threads()] == sorted([*names, "a/fork"])
        assert [found.name for found in store.threads(prefix="a/")] == ["a/1", "a/10", "a/2", "a/fork"]
        assert [found.name for found in store.threads(prefix="a", limit=2)] == ["a", "a/1"]
        assert list(store.threads(limit=0)) == []
        assert list(store.threads(prefix="none")) == []
        with raises(InvalidValueError):
            store.threads(limit=-1)
        (found,) = store.threads(prefix="a/fork")
        assert (found.seq, found.version_id, found.updated_at) == (3, newest.id, newest.at)

    def test_long_lists_are_complete(self, open_store: OpenStore) -> None:
        store = open_store()
        names = [f"thread {number:04}" for number in range(450)]
        for name in reversed(names):
            thread = store.thread(name)
            thread.state["x"] = 1
            thread.commit(metadata={"odd": name[-1] in "13579"})
        assert [found.name for found in store.threads()] == names
        assert [found.name for found in store.threads(limit=201)] == names[:201]
        assert [found.name for found in store.threads(prefix="thread 00")] == names[:100]
        assert [found.name for found in store.threads(metadata={"odd": True})] == names[1::2]

    def test_threads_are_found_by_metadata(self, open_store: OpenStore) -> None:
        store = open_store()
        for number in range(12):
            thread = store.thread(f"t{number:02}")
            thread.state["x"] = 0
            thread.commit(metadata={"user": f"u{number % 3}", "n": number % 2, "long": "x" * 500})
            talk(thread, number)
        thread = store.thread("t03")
        thread.commit(metadata={"user": "moved"})

        def names(**metadata: object) -> list[str]:
            return [found.name for found in store.threads(metadata=metadata)]

        assert names(user="u0") == ["t00", "t06", "t09"]
        assert names(user="u1", n=0) == ["t04", "t10"]
        assert names(user="moved", n=1) == ["t03"], "the newest value of each key counts"
        assert names(long="x" * 500, user="u2") == ["t02", "t05", "t08", "t11"]
        assert names(n=True) == names(n="1") == names(user=None) == names(nobody=1) == []
        assert [f.name for f in store.threads(prefix="t0", metadata={"user": "u0"}, limit=2)] == [
            "t00",
            "t06",
        ]
        store.thread("t06").delete()
        assert names(user="u0") == ["t00", "t09"]

    def test_namespaces_keep_tenants_apart(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "durable")
        one, two = open_store(namespace="tenant-a"), open_store(namespace="'; drop")
        for each in (store, one, two):
            thread = each.thread("a")
            thread.state["space"] = each.namespace
            thread.commit(key="k", metadata={"m": 1})
        one.thread("a").fork("fork")
        for each in (store, one, two):
            assert each.thread("a").state.plain() == {"space": each.namespace}
        assert [found.name for found in store.threads()] == ["a"]
        assert [found.name for found in one.threads()] == ["a", "fork"]
        assert [found.name for found in two.threads(metadata={"m": 1})] == ["a"]
        two.thread("a").delete()
        assert open_store(namespace="tenant-a").thread("a").head is not None
        with raises(InvalidNameError):
            open_store(namespace="a\0b")

    def test_verify_finds_a_sound_store_sound(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 40)
        fork = thread.fork("b", at=versions[20])
        talk(fork, 20, "fork")
        thread.rewind(versions[10])
        thread.merge(fork)
        with thread.step("s", attempt=2) as step:
            step.result = 1
        talk(store.thread("gone"), 5)
        store.thread("gone").delete()
        report = store.verify()
        assert report, str(report)
        assert report.threads == 2

    def test_a_backup_is_a_whole_store(self, open_store: OpenStore) -> None:
        store = open_store()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "backup")
            if not store.capabilities.backup:
                with raises(UnsupportedError):
                    store.backup(path)
                with raises(UnsupportedError):
                    store.restore(path)
                return
            thread = store.thread("a")
            talk(thread, 40)
            thread.fork("b")
            was = contents(thread)
            store.backup(path)
            with raises(EverthreadError):
                store.backup(path)
            lost = talk(thread, 40, "lost")
            talk(store.thread("c"), 1)
            stale = store.thread("a")
            stale.state["stale"] = 1
            store.restore(path)
            assert [found.name for found in store.threads()] == ["a", "b"]
            read = store.thread("a")
            assert contents(read) == was
            with raises(ConflictError):
                stale.commit()
            other = talk(read, 1, "other")[-1]
            assert other.seq == lost[0].seq
            assert other.id != lost[0].id
            assert commit(read, label="on").seq == 42
            with raises(EverthreadError):
                store.restore(os.path.join(folder, "missing"))


# Names: any text that isn't empty, too long, or impossible to write as UTF-8.


LEGAL = [
    "a",
    " ",
    "../../x",
    "/etc/passwd",
    "..",
    "C:\\x",
    "'; drop table--",
    "'; DROP TABLE line; --",
    '"quoted"',
    "%s %d {0} {}",
    "*",
    "a*b?[c]",
    "redis.call('flushall')",
    "line\nbreak\ttab",
    "\x7f\x01",
    "é",
    "e\u0301",
    "日本語",
    "🧵",
    "\U0010ffff",
    "A",
    "a ",
    "CON",
    "x" * 1024,
    "é" * 512,
    "🧵" * 256,
]
ILLEGAL: list[Any] = [
    "",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "x" * 1025,
    "é" * 513,
    "x" * 10_000_000,
    None,
    1,
    b"bytes",
    ["list"],
]


class RedactionRules:
    def test_a_thread_whose_newest_version_was_redacted_can_be_read_and_continued(
        self, open_store: OpenStore
    ) -> None:
        """A redaction stores the newest version as a pack, which no commit and no compaction does."""
        store = open_store()
        for name in ("state", "metadata"):
            thread = store.thread(name)
            talk(thread, 3)
            thread.state["note"] = "first-secret-4711 and second-secret-4712"
            secret = {"who": "first-secret-4711"} if name == "metadata" else None
            commit(thread, label="newest", metadata=secret)
        for text in ("first-secret-4711", "second-secret-4712"):
            store.redact(text)
            for name in ("state", "metadata"):
                thread = store.thread(name)
                (version,) = (each for each in thread.history(limit=None) if each.seq == 4)
                assert version.label == "newest"
                assert text not in repr((thread.state.plain(), thread.at(4).state.plain(), version))
                assert ids(thread.messages) == ["m0", "m1", "m2"]
        assert store.verify().ok
        for name in ("state", "metadata"):
            thread = store.thread(name)
            thread.state["count"] = "continued"
            commit(thread)
            assert store.thread(name).state["count"] == "continued"


class NameRules:
    def test_any_other_text_is_a_legal_thread_name(self, open_store: OpenStore) -> None:
        store = open_store()
        for number, name in enumerate(LEGAL):
            thread = store.thread(name)
            thread.state["number"] = number
            thread.commit()
        assert [found.name for found in store.threads()] == sorted(LEGAL)
        for number, name in enumerate(LEGAL):
            assert store.thread(name).state.plain() == {"number": number}
            (found,) = (f for f in store.threads(prefix=name) if f.name == name)
            assert found.seq == 1
        store.thread("A").delete()
        assert store.thread("a").state.plain() == {"number": 0}

    def test_any_other_text_is_a_legal_log_key_label_and_step_name(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        made = {}
        for name in LEGAL:
            thread.log(name).append({"id": name, "log": name})
            made[name] = commit(thread, label=name, key=name, metadata={name: name})
            with thread.step(name) as step:
                step.result = name
        read = store.thread("a")
        assert read.logs == sorted(LEGAL)
        for name in LEGAL:
            assert read.log(name)[:] == [{"id": name, "log": name}]
            assert read.at(made[name]).version.label == name
            assert commit(read, key=name, label="again") == made[name]
            with read.step(name) as step:
                assert step.result == name

    def test_a_fork_may_have_any_legal_name(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("root")
        thread.state["x"] = 1
        thread.commit()
        for name in LEGAL:
            thread = thread.fork(name)
            thread.state[name] = 1
            thread.commit()
        assert store.thread(LEGAL[-1]).state.plain() == {"x": 1, **dict.fromkeys(LEGAL, 1)}

    def test_everything_else_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        head = commit(thread)
        for name in ILLEGAL:
            with raises(InvalidNameError):
                store.thread(name)
            with raises(InvalidNameError):
                thread.log(name)
            with raises(InvalidNameError):
                thread.fork(name)
            if name is not None:
                thread.state["x"] = 2
                with raises(InvalidNameError):
                    thread.commit(key=name)
                with raises(InvalidNameError):
                    thread.commit(label=name)
                thread.discard()
            if isinstance(name, str):
                with raises(InvalidNameError):
                    thread.step(name)
        assert thread.head == store.thread("a").head == head
        assert [found.name for found in store.threads()] == ["a"]

    def test_a_refusal_shows_a_name_only_if_it_is_short(self, open_store: OpenStore) -> None:
        store = open_store()
        with raises(InvalidNameError) as caught:
            store.thread("x" * 10_000_000)
        assert len(str(caught[0])) < 500


# Handles: independent, pinned at their first read, moved only by what their owner does.


class HandleRules:
    def test_handles_are_independent(self, open_store: OpenStore) -> None:
        store = open_store()
        one, two = store.thread("a"), store.thread("a")
        one.state["x"] = 1
        one.messages.append(message("1"))
        assert "x" not in two.state
        assert len(two.messages) == 0
        two.state["y"] = 2
        assert one.state.plain() == {"x": 1}

    def test_a_handle_is_pinned_at_its_first_read(self, open_store: OpenStore) -> None:
        store = open_store()
        reader, writer = store.thread("a"), store.thread("a")
        versions = talk(writer, 12)
        assert reader.head == versions[-1], "making a handle reads nothing yet"
        before = contents(reader)
        talk(writer, 30, "later")
        writer.rewind(versions[3])
        assert contents(reader) == before
        assert reader.head == versions[-1]
        assert ids(reader.messages[-3:]) == ["m9", "m10", "m11"]
        assert next(reader.history()) == versions[-1]
        assert contents(reader.at(versions[5]))[0] == {"count": 5}

    def test_a_handle_on_nothing_is_pinned_too(self, open_store: OpenStore) -> None:
        store = open_store()
        reader, writer = store.thread("a"), store.thread("a")
        assert reader.head is None
        talk(writer, 2)
        assert reader.head is None
        assert reader.state.plain() == {}
        reader.refresh()
        assert reader.head == writer.head

    def test_a_handle_moves_by_its_own_commit_rewind_rebase_and_refresh(self, open_store: OpenStore) -> None:
        store = open_store()
        thread, other = store.thread("a"), store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        assert thread.head == first
        other.state["y"] = 1
        second = commit(other)
        assert thread.head == first
        thread.refresh()
        assert thread.head == second
        back = thread.rewind(first)
        assert thread.head == back
        other.refresh()
        other.state["z"] = 1
        newest = commit(other)
        thread.state["w"] = 1
        thread.rebase()
        assert thread.head == newest
        assert thread.state.plain() == {"x": 1, "z": 1, "w": 1}

    def test_a_thread_exists_from_its_first_commit(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        assert list(store.threads()) == []
        assert thread.head is None
        assert list(thread.history()) == []
        thread.discard()
        for verb in (
            lambda: thread.at(1),
            lambda: thread.fork("b"),
            lambda: thread.rewind(1),
            lambda: thread.merge(store.thread("b")),
            thread.delete,
        ):
            with raises(ThreadNotFoundError):
                verb()
        assert list(store.threads()) == []
        thread.state["x"] = 1
        thread.commit()
        assert [found.name for found in store.threads()] == ["a"]

    def test_an_empty_first_commit_makes_the_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        first = thread.commit()
        assert (first.seq, thread.head, thread.state.plain()) == (1, first, {})
        assert thread.commit() == first, "from then on there is a head to return"
        keyed = store.thread("b").commit(key="k")
        assert store.thread("b").commit(key="k") == keyed
        assert store.thread("c").update(lambda draft: None).seq == 1
        assert [found.name for found in store.threads()] == ["a", "b", "c"]

    def test_a_commit_with_no_change_label_or_metadata_returns_the_head(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        assert not thread.dirty
        assert thread.commit() == first
        thread.state["x"] = 1
        assert thread.commit() == first, "the same value again is no change"
        assert commit(thread, label="done").seq == 2
        assert commit(thread, metadata={"run": "r1"}).seq == 3
        assert contents(store.thread("a")) == ({"x": 1}, {})

    def test_fork_rewind_merge_and_refresh_refuse_uncommitted_changes(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        other = thread.fork("b")
        other.state["y"] = 1
        other.commit()
        for change in (lambda: thread.state.update(x=2), lambda: thread.messages.append(message("1"))):
            change()
            for verb in (
                lambda: thread.fork("c"),
                lambda: thread.rewind(first),
                lambda: thread.merge(other),
                lambda: other.merge(thread),
                thread.refresh,
                lambda: thread.update(lambda draft: None),
                lambda: thread.step("s").__enter__(),
            ):
                with raises(InvalidStateError):
                    verb()
            assert thread.dirty, "a refusal loses nothing"
            thread.discard()
        assert [found.name for found in store.threads()] == ["a", "b"]
        assert thread.head == first

    def test_discard_forgets_what_is_uncommitted(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 3)
        before = contents(thread)
        thread.state["x"] = 1
        thread.state["count"] = 99
        thread.messages.append(message("new"))
        thread.messages.truncate_from("m1")
        thread.discard()
        assert not thread.dirty
        assert contents(thread) == before
        assert thread.head == versions[-1]

    def test_document_and_logs_are_one_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        thread.messages.append(message("1"))
        thread.log("events").append({"id": "e", "what": "started"})
        first = commit(thread)
        assert (first.seq, first.parent) == (1, None)
        read = store.thread("a")
        assert contents(read) == (
            {"x": 1},
            {"messages": [message("1")], "events": [{"id": "e", "what": "started"}]},
        )
        assert read.head == first

    def test_what_is_committed_is_there_after_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "durable")
        thread = store.thread("a")
        versions = talk(thread, 25)
        thread.fork("b", at=versions[7])
        thread.rewind(versions[11])
        before = contents(thread)
        store.close()
        again = open_store()
        assert contents(again.thread("a")) == before
        assert again.thread("a").head == thread.head
        assert contents(again.thread("b")) == contents(again.thread("a").at(versions[7]))
        assert list(again.thread("a").history(limit=None))[1:] == versions[::-1]

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 10)
        fork = thread.fork("b")
        fork.state["x"] = 1
        fork.commit()
        store.close()
        store.close()
        fork.state["x"] = 2
        for verb in (
            lambda: store.thread("a"),
            lambda: list(store.threads()),
            store.verify,
            fork.commit,
            thread.refresh,
            lambda: thread.rewind(versions[0]),
            lambda: fork.at(versions[1]).state,
            lambda: fork.messages[:3],
        ):
            with raises(StoreClosedError):
                verb()


# Watching is ordered and gap-free, whoever writes.


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
        assert list(thread.watch("5", timeout=0)) == versions[5:]
        assert list(thread.watch("head~2", timeout=0)) == versions[-2:]

    def test_a_watch_goes_on_after_a_label(self, open_store: OpenStore) -> None:
        store = open_store()
        thread, reader = store.thread("a"), store.thread("a")
        talk(thread, 3)
        assert reader.head is not None
        thread.state["phase"] = "read"
        commit(thread, label="read")
        made = talk(thread, 2, "later")
        assert list(thread.watch("read", timeout=0)) == made
        assert list(reader.watch("label:read", timeout=0)) == made, "also one that the handle hasn't seen"
        with raises(VersionNotFoundError):
            list(thread.watch("nothing", timeout=0))

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
