"""The store as a whole: its list of threads, its namespaces, its health, its copies."""

from __future__ import annotations

import os
import tempfile

from everthread.errors import (
    ConflictError,
    EverthreadError,
    InvalidNameError,
    InvalidValueError,
    UnsupportedError,
)
from everthread.testing.rules.expecting import OpenStore, commit, contents, needs, raises, talk


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
