"""How threads and versions end: deletion is final, expiry acts on the name, pruning keeps what is needed."""

from __future__ import annotations

import datetime
from itertools import permutations
from typing import Any
from unittest import mock

from everthread.errors import (
    EverthreadError,
    InvalidValueError,
    StoreBusyError,
    ThreadDeletedError,
    ThreadNotFoundError,
    VersionNotFoundError,
    VersionPrunedError,
)
from everthread.history.retention import Retention
from everthread.testing.rules.expectations import (
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
from everthread.threads.aio import pins as async_pins
from everthread.threads.runtime import Runtime
from everthread.threads.sync import pins


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


# A time to live is on the name: what has expired is as good as deleted.


_SECOND_US = 1_000_000


class _Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000 * _SECOND_US

    def runtime(self) -> Runtime:
        return Runtime(now_us=lambda: self.now_us)

    def go(self, seconds: float) -> None:
        self.now_us += int(seconds * _SECOND_US)


class ExpiryRules:
    def test_an_expired_thread_is_absent(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        thread = store.thread("a", ttl=datetime.timedelta(minutes=1))
        version = talk(thread, 3)[-1]
        assert version.ttl_us == 60 * _SECOND_US
        assert version.expires_at == version.at + datetime.timedelta(minutes=1)
        clock.go(59.9)
        assert store.thread("a").head == version
        assert [info.name for info in store.threads()] == ["a"]
        clock.go(0.1)
        assert store.thread("a").head is None
        assert contents(store.thread("a")) == ({}, {})
        assert list(store.threads()) == []
        with raises(ThreadNotFoundError):
            store.thread("a").at(1)

    def test_every_write_renews_it(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        talk(store.thread("a", ttl=60.0), 2)
        for number in range(8):
            clock.go(50)
            plain = store.thread("a")
            plain.state["n"] = number
            assert commit(plain).ttl_us == 60 * _SECOND_US
        clock.go(50)
        assert store.thread("a").rewind(1).ttl_us == 60 * _SECOND_US
        clock.go(50)
        with store.thread("a").step("s") as step:
            step.result = 1
        clock.go(50)
        assert store.thread("a").head is not None
        clock.go(10)
        assert store.thread("a").head is None

    def test_a_late_write_never_brings_it_back(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        first = talk(store.thread("a", ttl=60), 3)[0]
        late = [store.thread("a") for _ in range(6)]
        for handle in late:
            assert handle.head is not None
        late[0].state["late"] = 1
        late[1].state["late"] = 1
        clock.go(61)
        for verb in (
            late[0].commit,
            late[1].rebase,
            late[2].refresh,
            lambda: late[3].rewind(first),
            lambda: late[4].fork("b"),
            lambda: late[5].update(lambda draft: draft.update(late=1)),
        ):
            with raises(ThreadDeletedError):
                verb()
        assert list(store.threads()) == []

    def test_the_name_is_free_again(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        old = store.thread("a", ttl=60)
        talk(old, 12)
        clock.go(61)
        new = store.thread("a")
        made = talk(new, 1, "new")
        assert (made[0].seq, made[0].ttl_us) == (1, None)
        assert ids(store.thread("a").messages) == ["new0"]
        with raises(ThreadDeletedError):
            old.refresh()
        new.expire(60)
        clock.go(61)
        other = store.thread("b")
        talk(other, 2)
        assert ids(other.fork("a").messages) == ["m0", "m1"]

    def test_forks_live_on_without_it(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        thread = store.thread("a", ttl=60)
        versions = talk(thread, 12)
        bare, fork = thread.fork("bare"), thread.fork("b", at=versions[5])
        assert talk(fork, 1, "fork")[0].ttl_us is None
        clock.go(1000)
        assert [info.name for info in store.threads()] == ["b", "bare"]
        assert contents(store.thread("bare")) == contents(bare)
        report = store.gc()
        assert (report.expired, report.expired_count) == (("a",), 1)
        assert ids(store.thread("b").messages)[-1] == "fork0"
        assert store.thread("bare").head == versions[-1]
        assert store.thread("b").at(versions[2]).state.plain() == {"count": 2}

    def test_expire_is_a_version_and_can_be_taken_back(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        thread = store.thread("a")
        assert thread.expire(30) is None
        assert talk(thread, 1)[0].ttl_us == 30 * _SECOND_US
        made = thread.expire(datetime.timedelta(hours=1))
        assert made is not None
        assert (made.seq, made.ttl_us) == (2, 3600 * _SECOND_US)
        clock.go(1000)
        thread.expire(None)
        clock.go(10**6)
        assert store.thread("a").head is not None
        assert talk(store.thread("a"), 1, "on")[0].ttl_us is None

    def test_gc_removes_what_has_expired(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        talk(store.thread("a", ttl=60), 3)
        talk(store.thread("b", ttl=600), 3)
        clock.go(61)
        assert store.gc(dry_run=True).expired == ("a",)
        assert store.gc().expired == ("a",)
        assert store.gc().expired == ()
        assert [info.name for info in store.threads()] == ["b"]

    def test_it_holds_in_every_store_object(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        needs(store, "multi_process")
        talk(store.thread("a", ttl=60), 3)
        other = open_store(runtime=clock.runtime())
        late = other.thread("a")
        late.state["late"] = 1
        clock.go(61)
        with raises(ThreadDeletedError):
            late.commit()
        assert other.thread("a").head is None

    def test_a_watch_ends_when_its_time_is_over(self, open_store: OpenStore) -> None:
        clock = _Clock()
        store = open_store(runtime=clock.runtime())
        talk(store.thread("a", ttl=60), 3)
        watching = store.thread("a").watch(0)
        assert next(watching).seq == 1
        clock.go(61)
        with raises(ThreadDeletedError):
            list(watching)

    def test_lifetimes_that_make_no_sense(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        wrong: Any
        for wrong in (0, -1, float("nan"), float("inf"), "1d", True, datetime.timedelta(0)):
            with raises(InvalidValueError):
                thread.expire(wrong)
            with raises(InvalidValueError):
                assert store.thread("a", ttl=wrong).head is None


# Pruning takes the content of old versions, and nothing that anybody stands on.


class PruningRules:
    def test_the_last_versions_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 30)
        was = contents(thread)
        assert store.gc(Retention(keep_last=5), dry_run=True).versions == 25
        assert seqs(thread) == list(range(30, 0, -1))
        report = store.gc(Retention(keep_last=5))
        assert (report.versions, report.threads, report.problems) == (25, 1, ())
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            read = each.thread("a")
            assert (read.head, contents(read)) == (versions[-1], was)
            assert seqs(read) == [30, 29, 28, 27, 26]
            assert contents(read.at(27)) == ({"count": 26}, {"messages": was[1]["messages"][:27]})
            for verb in (read.at, read.rewind, lambda version: read.fork("b", at=version)):  # noqa: B023
                with raises(VersionPrunedError):
                    verb(versions[3])
            with raises(VersionPrunedError):
                read.diff(3)
        assert store.gc(Retention(keep_last=5)).versions == 0
        assert [version.seq for version in talk(thread, 3, "on")] == [31, 32, 33], "numbers never repeat"

    def test_labels_and_age_keep(self, open_store: OpenStore) -> None:
        from everthread.threads.runtime import Runtime

        now = [1_800_000_000 * 1_000_000]
        store = open_store(runtime=Runtime(now_us=lambda: now[0]))
        needs(store, "prune")
        thread = store.thread("a")
        for number in range(20):
            thread.state["n"] = number
            commit(thread, label="kept" if number in (3, 4, 11) else None)
            now[0] += 1_000_000
        store.gc(Retention(keep_within=3.0))
        assert seqs(thread) == [20, 19, 18, 12, 5, 4]
        assert [thread.at(seq).state["n"] for seq in (4, 5, 12, 18)] == [3, 4, 11, 17]
        store.gc(Retention(keep_last=1, keep_labelled=False))
        assert seqs(thread) == [20]

    def test_forks_and_what_they_stand_on_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[8])
        talk(fork, 2, "fork")
        bare = thread.fork("bare", at=versions[4]).fork("barer")
        was = {name: contents(store.thread(name)) for name in ("a", "b", "bare", "barer")}
        store.gc(Retention(keep_last=4))
        assert seqs(fork) == [11, 10, 9, 8, 5, 4, 3, 2]
        assert seqs(bare) == [5, 4, 3, 2]
        thread.delete()
        store.gc(Retention(keep_last=1))
        del was["a"]
        for name, expected in was.items():
            assert contents(store.thread(name)) == expected
        assert seqs(fork) == [11, 9, 5]
        talk(fork, 4, "on")
        assert ids(store.thread("b").messages)[9:] == ["fork0", "fork1", "on0", "on1", "on2", "on3"]

    def test_rewinds_stay_what_they_are(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 12)
        thread.rewind(5)
        talk(thread, 3, "on")
        was = contents(thread)
        store.gc(Retention(keep_last=2))
        assert contents(store.thread("a")) == was
        assert seqs(thread) == [16, 15, 5], (
            "where a rewind went back to is where its thread parted from others"
        )
        thread.rewind(5)
        assert ids(thread.messages) == ["m0", "m1", "m2", "m3", "m4"]
        talk(thread, 4, "again")
        store.gc(Retention(keep_last=1))
        assert ids(store.thread("a").messages) == [
            *("m0", "m1", "m2", "m3", "m4"),
            *("again0", "again1", "again2", "again3"),
        ]

    def test_merging_goes_on_as_before(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 6)
        other = thread.fork("b", at=3)
        for number in range(4):
            other.state[f"theirs {number}"] = number
            thread.state[f"ours {number}"] = number
            commit(other)
            commit(thread)
            assert thread.merge(other).version is not None
            store.gc(Retention(keep_last=1))
            other.refresh()
            thread.refresh()
        assert thread.state.plain() == {
            "count": 5,
            **{f"{side} {number}": number for number in range(4) for side in ("theirs", "ours")},
        }

    def test_keys_and_results_of_steps_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        for number in range(12):
            thread.state["n"] = number
            commit(thread, key=f"key {number}")
            with thread.step(f"step {number}") as step:
                step.messages.append({"content": number})
                step.result = number
        made = list(thread.history(limit=None))
        store.gc(Retention(keep_last=1))
        again = store.thread("a")
        for number in range(12):
            found = again.commit(key=f"key {number}")
            assert found is not None
            assert found.id == made[-1 - 2 * number].id
            with again.step(f"step {number}") as step:
                assert step.done
                assert step.result == number
        assert [item["content"] for item in again.messages] == list(range(12))

    def test_items_that_only_old_versions_held_go(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        text = [f"{number}-" * 40 for number in range(60)]
        for number, each in enumerate(text):
            thread.messages.append(message(f"m{number}", each))
            commit(thread)
        old = store.thread("a")
        assert old.head is not None
        thread.messages.truncate_from("m2")
        commit(thread)
        talk(thread, 3, "on")
        before = store.stats().threads["a"]
        store.gc(Retention(keep_last=1))
        after = store.stats().threads["a"]
        assert (
            after.chunks + after.records + after.packs < (before.chunks + before.records + before.packs) / 2
        )
        assert (after.versions, after.pruned) == (1, 63)
        assert ids(store.thread("a").messages) == ["m0", "m1", "on0", "on1", "on2"]
        again = store.thread("a")
        again.messages.append(message("m5", "anew"))
        commit(again)
        assert ids(store.thread("a").messages)[-1] == "m5"

    def test_pinned_versions_stay(self, open_store: OpenStore) -> None:
        now = [1_800_000_000 * 1_000_000]
        store = open_store(runtime=Runtime(now_us=lambda: now[0]))
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[9])
        talk(fork, 4, "fork")
        pins = [
            thread.pin(versions[2]),
            thread.pin(versions[4].id, until=60),
            thread.pin(7, until=datetime.timedelta(seconds=90)),
            fork.pin(versions[7]),
        ]
        thread.rewind(versions[1])
        talk(thread, 4, "on")
        assert [pin.seq for pin in store.thread("a").pins()] == [3, 5, 7], "no rewind moves them"
        assert [pin.version_id for pin in thread.pins()] == [versions[n].id for n in (2, 4, 6)]
        assert [pin.until_us for pin in pins] == [None, now[0] + 60_000_000, now[0] + 90_000_000, None]
        assert pins[2].until == datetime.datetime.fromtimestamp(now[0] / 1e6 + 90, datetime.UTC)
        dry = store.gc(Retention(keep_last=1), dry_run=True)
        report = store.gc(Retention(keep_last=1))
        assert dry.versions == report.versions > 0
        assert sorted(report.pins, key=lambda pin: (pin.thread, pin.seq)) == pins == sorted(dry.pins, key=str)
        assert "4 pinned versions kept" in str(report)
        for seq in (3, 5, 7, 8):
            assert contents(store.thread("a").at(seq))[0] == {"count": seq - 1}
            assert ids(store.thread("a").at(seq).messages) == [f"m{n}" for n in range(seq)]
        assert seqs(thread) == [25, 10, 8, 7, 5, 3, 2]
        now[0] += 61_000_000
        assert [pin.seq for pin in thread.pins()] == [3, 7], "its time is over"
        assert [pin.seq for pin in store.gc(Retention(keep_last=1), dry_run=True).pins if pin.thread == "a"]
        assert thread.unpin(versions[2])
        assert not thread.unpin(versions[2])
        fork.delete()
        report = store.gc(Retention(keep_last=1))
        assert [(pin.thread, pin.seq) for pin in report.pins] == [("a", 7)]
        assert seqs(thread) == [25, 7, 2]
        assert thread.pin(7, until=5).until_us == now[0] + 5_000_000, "the new time counts"
        now[0] += 5_000_000
        report = store.gc(Retention(keep_last=1))
        assert (report.pins, seqs(thread), thread.pins()) == ((), [25, 2], [])

    def test_what_cannot_be_pinned(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with raises(ThreadNotFoundError):
            thread.pin(1)
        talk(thread, 9)
        for wrong in (0, -1, True, "soon", datetime.datetime(2030, 1, 1), datetime.datetime.min):  # noqa: DTZ001, DTZ901
            with raises(InvalidValueError):
                thread.pin(1, until=wrong)  # type: ignore[arg-type]
        with raises(InvalidValueError):
            thread.pin(1, until=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        with raises(VersionNotFoundError):
            thread.pin(10)
        assert thread.pins() == []
        if store.capabilities.prune:
            store.gc(Retention(keep_last=1))
            with raises(VersionPrunedError):
                thread.pin(3)
        thread.delete()
        with raises(ThreadDeletedError):
            thread.pin(9)

    def test_a_pin_waits_for_pruning_that_has_not_seen_it(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 9)
        backend: Any = store.core.backend
        space, name = "\0pins", f"gc/{backend.find('', 'a').line.root}/somebody"
        now_us = store.core.runtime.now_us()
        revision = backend.swap(space, name, 0, b"", now_us)
        hasty = mock.patch.multiple(pins, _PATIENCE_S=0.0), mock.patch.multiple(async_pins, _PATIENCE_S=0.0)
        with hasty[0], hasty[1], raises(StoreBusyError):
            thread.pin(3)
        assert thread.pins() == []
        backend.swap(space, name, revision, None, now_us)
        thread.pin(3)
        store.gc(Retention(keep_last=1))
        assert seqs(thread) == [9, 3]
        assert [each for each, _ in backend.cells(space, "gc/", None, 10)] == []

    def test_a_pruned_gap_ends_a_watch(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        store.gc(Retention(keep_last=3))
        with raises(VersionPrunedError):
            list(thread.watch(5, timeout=0))
        assert list(thread.watch(17, timeout=0)) == versions[17:]

    def test_a_handle_that_stands_on_a_pruned_version_moves_on(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 10)
        old = store.thread("a")
        old.state["mine"] = 1
        talk(thread, 20, "later")
        store.gc(Retention(keep_last=1))
        old.rebase()
        commit(old)
        assert store.thread("a").state.plain() == {"count": 19, "mine": 1}

    def test_the_tail_of_a_deleted_thread_goes(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[4])
        thread.delete()
        assert store.gc().versions == 15
        assert seqs(fork) == [5, 4, 3, 2, 1]
        assert ids(store.thread("b").messages) == ["m0", "m1", "m2", "m3", "m4"]
        assert store.gc().versions == 0

    def test_rules_that_make_no_sense(self, open_store: OpenStore) -> None:
        store = open_store()
        wrong: Any
        for wrong in (5, "all", {"keep_last": 1}):
            with raises(InvalidValueError):
                store.gc(wrong)

    def test_what_was_dropped_can_be_put_back(self, open_store: OpenStore) -> None:
        """Rows and chunks that gave way to a row of the cold tier come back as they were."""
        from everthread.stores.contract import COLD, PACK, Prune, Row

        store = open_store()
        needs(store, "cold")
        backend = store.core.backend
        talk(store.thread("a"), 150)
        found = backend.find("", "a")
        assert found is not None
        line = found.line
        rows = tuple(row for row in reversed(backend.scan(line.id, 149, 1000)) if row.kind == PACK)
        last = rows[-1].seq
        chunks = tuple(c for c in backend.chunks(line.id, "messages", 0, last) if c.end <= last)
        cold = Row(last, 1, COLD, rows[-1].hash, b"where it is", None, None)
        away = Prune(old=rows, rows=(cold,), dropped=(("messages", 0, last),))
        assert chunks
        assert backend.prune(line, away)
        assert not backend.prune(line, away), "these rows aren't there any more"
        assert backend.scan(line.id, last, 10) == [cold]
        assert all(chunk.pruned for chunk in backend.chunks(line.id, "messages", 0, last))
        back = Prune(old=(cold,), rows=rows, chunks=chunks)
        assert backend.prune(line, back)
        assert not backend.prune(line, back)
        assert tuple(reversed(backend.scan(line.id, last, 1000))) == rows
        assert tuple(c for c in backend.chunks(line.id, "messages", 0, last) if c.end <= last) == chunks
        assert len(contents(store.thread("a"))[1]["messages"]) == 150

    def test_what_is_put_back_leaves_other_gaps(self, open_store: OpenStore) -> None:
        from everthread.stores.contract import Prune

        store = open_store()
        needs(store, "cold")
        backend = store.core.backend
        talk(store.thread("a"), 200)
        found = backend.find("", "a")
        assert found is not None
        line = found.line
        chunks = backend.chunks(line.id, "messages", 0, 200)[:3]
        assert len(chunks) == 3, "fewer chunks than this test needs"
        first, middle, last = chunks
        assert backend.prune(line, Prune(dropped=(("messages", middle.position, middle.end),)))
        outer = tuple(("messages", chunk.position, chunk.end) for chunk in (first, last))
        assert backend.prune(line, Prune(dropped=outer, chunks=(first, last)))
        after = backend.chunks(line.id, "messages", 0, last.end)
        assert [(chunk.position, chunk.count) for chunk in after] == [(c.position, c.count) for c in chunks]
        assert [chunk.pruned for chunk in after] == [False, True, False]
        assert (after[0], after[2]) == (first, last)
        assert backend.prune(line, Prune(chunks=(middle,)))
        assert backend.chunks(line.id, "messages", 0, last.end) == [first, middle, last]

    def test_what_went_to_an_archive_may_have_been_a_rewind(self, open_store: OpenStore) -> None:
        """Whoever looked at a fork before can't know what it stands on by now."""
        from everthread.stores.contract import COLD, Prune, Row

        store = open_store()
        needs(store, "cold")
        backend = store.core.backend
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[10])
        talk(fork, 3)
        source, child = backend.find("", "a"), backend.find("", "b")
        assert source is not None
        assert child is not None
        seen = ((source.line.id, 20), (child.line.id, 14))
        fork.rewind(versions[3])
        talk(fork, 1)
        rows = tuple(reversed(backend.scan(child.line.id, 15, 100)))
        assert rows[0].first == 12
        cold = Row(15, 12, COLD, rows[-1].hash, b"where it is", None, None)
        assert backend.prune(child.line, Prune(old=rows, rows=(cold,)))
        assert not backend.prune(source.line, Prune(seen=seen))
        assert backend.prune(child.line, Prune(old=(cold,), rows=rows))
        assert not backend.prune(source.line, Prune(seen=seen))
        assert backend.prune(source.line, Prune(seen=((source.line.id, 20), (child.line.id, 16))))
