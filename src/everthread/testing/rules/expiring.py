"""A time to live is on the name: what has expired is as good as deleted."""

from __future__ import annotations

import datetime
from typing import Any

from everthread.errors import InvalidValueError, ThreadDeletedError, ThreadNotFoundError
from everthread.testing.rules.expecting import OpenStore, commit, contents, ids, needs, raises, talk
from everthread.threads.runtime import Runtime

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
