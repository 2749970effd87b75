"""Deletion is final."""

from __future__ import annotations

from itertools import permutations

from everthread.errors import (
    EverthreadError,
    ThreadDeletedError,
    ThreadNotFoundError,
    VersionNotFoundError,
)
from everthread.testing.rules.expecting import (
    OpenStore,
    commit,
    contents,
    ids,
    message,
    needs,
    raises,
    seqs,
    talk,
)


class DeletionRules:
    def test_a_deleted_thread_is_gone(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 12)
        talk(store.thread("b"), 1)
        thread.delete()
        assert [found.name for found in store.threads()] == ["b"]
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            assert each.thread("a").head is None
            assert contents(each.thread("a")) == ({}, {})
            with raises(ThreadNotFoundError):
                each.thread("a").at(1)
            with raises(ThreadNotFoundError):
                each.thread("a").delete()

    def test_a_late_write_never_resurrects(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        first = talk(thread, 12)[0]
        fork = thread.fork("b")
        talk(fork, 1, "fork")
        late = [store.thread("a") for _ in range(8)]
        for handle in late:
            assert len(handle.messages) == 12
        late[0].state["late"] = 1
        late[1].messages.append(message("late"))
        late[2].state["late"] = 1
        late[6].state["late"] = 1
        entered = late[7].step("entered")
        entered.__enter__().result = 1
        thread.delete()
        for verb in (
            late[0].commit,
            late[1].commit,
            late[2].rebase,
            lambda: late[3].rewind(first),
            late[4].refresh,
            lambda: late[5].merge(fork),
            lambda: late[6].commit(key="k", label="l"),
            lambda: entered.__exit__(None, None, None),
            lambda: late[4].step("s").__enter__(),
            lambda: late[4].update(lambda draft: draft.update(late=1)),
        ):
            with raises(ThreadDeletedError):
                verb()
        assert store.thread("a").head is None
        assert [found.name for found in store.threads()] == ["b"]

    def test_a_late_fork_never_resurrects(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 12)
        late = [store.thread("a") for _ in range(3)]
        for handle in late:
            assert handle.head == versions[-1]
        thread.delete()
        with raises(ThreadDeletedError):
            late[0].fork("b")
        with raises(ThreadDeletedError):
            late[1].fork("b", at=versions[3])
        with raises(ThreadDeletedError):
            late[2].fork("b", transform=lambda item: item)
        assert list(store.threads()) == []

    def test_the_deleting_handle_is_done(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        thread.state["pending"] = 1
        thread.delete()
        assert not thread.dirty
        thread.state["late"] = 1
        for verb in (thread.commit, thread.rebase, thread.delete, lambda: thread.at(1)):
            with raises(ThreadDeletedError):
                verb()

    def test_the_same_name_later_is_a_new_incarnation(self, open_store: OpenStore) -> None:
        store = open_store()
        old = store.thread("a")
        versions = talk(old, 12)
        stale = store.thread("a")
        assert stale.head == versions[-1]
        old.delete()
        new = store.thread("a")
        new.messages.append(message("m0", "new"))
        first = commit(new)
        assert (first.seq, first.parent) == (1, None)
        assert first.id != versions[0].id
        stale.state["late"] = 1
        with raises(ThreadDeletedError):
            stale.commit()
        with raises(ThreadDeletedError):
            stale.rebase()
        assert store.thread("a").messages[:] == [message("m0", "new")]
        with raises(VersionNotFoundError):
            new.at(versions[0])
        with raises(ThreadDeletedError):
            old.refresh()

    def test_forks_live_on(self, open_store: OpenStore) -> None:
        store = open_store()
        grandparent = store.thread("a")
        versions = talk(grandparent, 15)
        parent = grandparent.fork("b", at=versions[9])
        talk(parent, 10, "parent")
        bare = parent.fork("bare")
        child = bare.fork("c")
        talk(child, 10, "child")
        was = contents(child)
        grandparent.delete()
        bare.delete()
        parent.delete()
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            read = each.thread("c")
            assert contents(read) == was
            assert seqs(read) == list(range(30, 0, -1))
            assert ids(read.at(12).messages)[-1] == "parent1"
            assert contents(read.at(versions[3])) == ({"count": 3}, {"messages": read.messages[:4]})
        child.rewind(versions[3])
        talk(child, 3, "on")
        assert ids(store.thread("c").messages) == ["m0", "m1", "m2", "m3", "on0", "on1", "on2"]
        again = store.thread("a")
        talk(again, 2, "new")
        assert ids(store.thread("c").messages)[0] == "m0"
        assert ids(store.thread("a").messages) == ["new0", "new1"]

    def test_a_family_may_be_deleted_in_any_order(self, open_store: OpenStore) -> None:
        store = open_store()
        for order in permutations(("parent", "bare", "child")):
            parent = store.thread("parent")
            talk(parent, 6)
            talk(parent.fork("bare").fork("child", at=4), 6, "child")
            for name in order:
                store.thread(name).delete()
                report = store.verify()
                assert report, str(report.damage)
        assert list(store.threads()) == []

    def test_a_deletion_reaches_other_stores(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        talk(store.thread("a"), 3)
        other = open_store()
        late = other.thread("a")
        late.state["late"] = 1
        store.thread("a").delete()
        with raises(ThreadDeletedError):
            late.commit()
        fresh = store.thread("a")
        fresh.state["new"] = 1
        fresh.commit()
        assert other.thread("a").state.plain() == {"new": 1}
        with raises(EverthreadError):
            late.commit()
