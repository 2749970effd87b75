"""Commit keys: the same key again returns the first version, whatever happened to the first answer."""

from __future__ import annotations

from everthread.errors import ConflictError, KeyReusedError, StorageWriteError
from everthread.testing.rules.expecting import (
    OpenStore,
    commit,
    contents,
    ids,
    losing_answers,
    message,
    needs,
    raises,
    seqs,
    talk,
)
from everthread.threads.sync.thread import Thread


def _save_turn(thread: Thread) -> None:
    """What a caller does again, from the beginning, when it doesn't know whether it was done."""
    thread.state["turn"] = 1
    thread.messages.extend([message("q"), message("a")])


class KeyRules:
    def test_the_same_key_again_returns_the_first_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        first = commit(thread, key="k", label="first")
        assert first.key == "k"
        assert thread.commit(key="k") == first
        thread.state["x"] = 2
        assert commit(thread, key="k") == first, "also with something pending"
        assert not thread.dirty, "which the first version is taken to hold"
        assert thread.state.plain() == {"x": 1}
        other = store.thread("a")
        other.state["x"] = 3
        assert commit(other, key="k") == first
        assert seqs(store.thread("a")) == [1]

    def test_a_key_is_known_after_many_commits_and_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        keyed = []
        for number in range(90):
            thread.state["x"] = number
            keyed.append(commit(thread, key=f"k{number}") if number % 3 == 0 else commit(thread))
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            for number in range(0, 90, 3):
                handle = each.thread("a")
                handle.state["x"] = "again"
                assert commit(handle, key=f"k{number}") == keyed[number]
                assert handle.head == keyed[-1]
        assert seqs(store.thread("a")) == list(range(90, 0, -1))

    def test_a_lost_answer_retried_with_its_key_is_one_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        _save_turn(thread)
        with losing_answers(store), raises(StorageWriteError):
            thread.commit(key="turn 1")
        again = store.thread("a")
        _save_turn(again)
        version = commit(again, key="turn 1")
        assert version.seq == 4
        assert commit(thread, key="turn 1") == version, "the handle whose answer was lost may retry too"
        assert thread.head == version
        assert seqs(store.thread("a")) == [4, 3, 2, 1]
        assert ids(store.thread("a").messages) == ["m0", "m1", "m2", "q", "a"]

    def test_a_retry_by_a_handle_that_never_saw_the_answer(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        for name in ("a", "new"):
            first, retry = store.thread(name), store.thread(name)
            _save_turn(first)
            _save_turn(retry)
            version = commit(first, key="turn 1")
            if name == "a":
                talk(store.thread(name), 12, "meanwhile")
            assert commit(retry, key="turn 1") == version
            assert not retry.dirty
            assert retry.head == store.thread(name).head
            assert ids(store.thread(name).messages).count("q") == 1

    def test_a_handle_without_changes_finds_the_key_too(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        behind = store.thread("a")
        assert behind.head is not None
        writer = store.thread("a")
        writer.state["x"] = 1
        version = commit(writer, key="k")
        assert behind.commit(key="k") == version

    def test_a_lost_answer_without_a_key_is_recognised_by_its_handle(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        _save_turn(thread)
        with losing_answers(store), raises(StorageWriteError):
            thread.commit()
        assert commit(thread).seq == 4
        assert seqs(store.thread("a")) == [4, 3, 2, 1]
        assert ids(thread.messages) == ["m0", "m1", "m2", "q", "a"]
        assert contents(thread) == contents(store.thread("a"))

    def test_what_was_changed_after_a_lost_answer_is_not_lost(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        _save_turn(thread)
        with losing_answers(store), raises(StorageWriteError):
            thread.commit()
        thread.state["turn"] = 2
        thread.state["more"] = True
        thread.messages.append(message("more"))
        _commit_or_rebase(thread)
        assert contents(store.thread("a")) == (
            {"count": 2, "turn": 2, "more": True},
            {"messages": [*(message(f"m{n}", n) for n in range(3)), *map(message, ("q", "a", "more"))]},
        )
        assert contents(thread) == contents(store.thread("a"))

    def test_a_rewind_whose_answer_was_lost_may_be_repeated(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 5)
        with losing_answers(store), raises(StorageWriteError):
            thread.rewind(versions[1])
        version = thread.rewind(versions[1])
        assert version.source == versions[1].id
        assert contents(thread) == contents(thread.at(versions[1])) == contents(store.thread("a"))
        thread.state["count"] = "on"
        assert commit(thread).seq in (7, 8)

    def test_a_change_after_a_rewind_whose_answer_was_lost_is_not_lost(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 5)
        with losing_answers(store), raises(StorageWriteError):
            thread.rewind(versions[1])
        thread.state["x"] = 1
        _commit_or_rebase(thread)
        assert store.thread("a").state["x"] == 1

    def test_a_batch_retried_under_its_key(self, open_store: OpenStore) -> None:
        store = open_store()
        batch = [message(str(number)) for number in range(50)]
        versions = []
        for _ in range(3):
            thread = store.thread("a")
            thread.messages.extend(batch)
            versions.append(commit(thread, key="batch"))
        assert versions[0] == versions[1] == versions[2]
        assert store.thread("a").messages[:] == batch

    def test_a_batch_retried_under_its_key_after_truncation(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.messages.extend([message("1"), message("2"), message("3")])
        version = commit(thread, key="batch")
        thread.messages.truncate_from("2")
        thread.commit()
        late = store.thread("a")
        late.messages.extend([message("1"), message("2"), message("3")])
        assert commit(late, key="batch") == version
        assert ids(store.thread("a").messages) == ["1"], "the late retry brings nothing back"

    def test_a_batch_retried_under_its_key_after_delete_and_re_create(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.messages.extend([message("1"), message("2")])
        old = commit(thread, key="batch")
        thread.delete()
        new = store.thread("a")
        new.messages.extend([message("1"), message("2")])
        version = commit(new, key="batch")
        assert version.id != old.id
        assert ids(store.thread("a").messages) == ["1", "2"]

    def test_a_key_rewound_past_raises_naming_both_versions(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        start = talk(thread, 3)[-1]
        thread.state["x"] = 1
        keyed = commit(thread, key="k")
        talk(thread, 7, "after")
        rewind = thread.rewind(start)
        for handle in (thread, store.thread("a")):
            handle.state["x"] = 2
            with raises(KeyReusedError) as caught:
                handle.commit(key="k")
            error = caught[0]
            assert (error.key, error.version, error.rewind) == ("k", keyed, rewind)
            assert handle.dirty, "nothing is lost: the caller commits under another key"
            handle.discard()
        talk(thread, 12, "later")
        with raises(KeyReusedError):
            thread.commit(key="k", label="x")
        thread.rewind(keyed)
        assert thread.commit(key="k") == keyed, "back on its line, the key is good again"

    def test_a_key_rewound_past_twice_names_the_rewind_that_left_it(self, open_store: OpenStore) -> None:
        thread = open_store().thread("a")
        first, second = talk(thread, 2)
        thread.state["x"] = 1
        keyed = commit(thread, key="k")
        rewind = thread.rewind(second)
        talk(thread, 2, "between")
        thread.rewind(first)
        talk(thread, 2, "after")
        thread.state["x"] = 2
        with raises(KeyReusedError) as caught:
            thread.commit(key="k")
        assert (caught[0].version, caught[0].rewind) == (keyed, rewind)

    def test_a_key_rewound_past_by_somebody_else(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        start = talk(thread, 3)[-1]
        thread.state["x"] = 1
        keyed = commit(thread, key="k")
        idle, busy = store.thread("a"), store.thread("a")
        assert idle.head == busy.head == keyed
        busy.state["x"] = 2
        rewind = thread.rewind(start)
        for handle in (idle, busy):
            with raises(KeyReusedError) as caught:
                handle.commit(key="k")
            assert (caught[0].version, caught[0].rewind) == (keyed, rewind)
        assert busy.state["x"] == 2

    def test_a_key_of_the_parent_rewound_past_by_a_fork(self, open_store: OpenStore) -> None:
        store = open_store()
        parent = store.thread("a")
        start = talk(parent, 3)[-1]
        parent.state["x"] = 1
        keyed = commit(parent, key="k")
        talk(parent, 3, "after")
        fork = parent.fork("b")
        fork.state["fork"] = 1
        fork.commit()
        rewind = fork.rewind(start)
        fork.state["x"] = 2
        with raises(KeyReusedError) as caught:
            fork.commit(key="k")
        assert (caught[0].version, caught[0].rewind) == (keyed, rewind)
        assert fork.state["x"] == 2
        assert commit(parent, key="k") == keyed

    def test_keys_are_scoped_to_the_thread_and_its_ancestry(self, open_store: OpenStore) -> None:
        store = open_store()
        parent = store.thread("a")
        parent.state["x"] = 1
        early = commit(parent, key="early")
        talk(parent, 8)
        point = parent.head
        parent.state["x"] = 2
        late = commit(parent, key="late")
        stranger = store.thread("b")
        stranger.state["x"] = 1
        assert commit(stranger, key="early") != early
        fork = parent.fork("c", at=point)
        assert commit(fork, key="early", label="again") == early
        fork.state["x"] = 3
        own = commit(fork, key="late")
        assert own != late, "the fork began before that key"
        assert commit(parent, key="late", label="again") == late
        fork.state["x"] = 4
        forked = commit(fork, key="fork's own")
        sibling = parent.fork("d", at=point)
        for other in (parent, sibling):
            other.state["x"] = 5
            assert commit(other, key="fork's own") != forked
        grandchild = fork.fork("e")
        assert commit(grandchild, key="fork's own", label="again") == forked
        assert commit(grandchild, key="late", label="again") == own
        assert commit(grandchild, key="early", label="again") == early

    def test_keys_of_several_stores_meet(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        talk(store.thread("a"), 3)
        other = open_store()
        retry = other.thread("a")
        _save_turn(retry)
        first = store.thread("a")
        _save_turn(first)
        version = commit(first, key="k")
        talk(store.thread("a"), 80, "meanwhile")
        assert commit(retry, key="k") == version


def _commit_or_rebase(thread: Thread) -> None:
    try:
        thread.commit()
    except ConflictError:
        thread.rebase()
        thread.commit()
