"""Forks and rewinds: pointers into a shared past."""

from __future__ import annotations

from typing import Any

from everthread.errors import ThreadExistsError
from everthread.testing.rules.expecting import (
    OpenStore,
    commit,
    contents,
    ids,
    message,
    raises,
    seqs,
    talk,
)


class BranchingRules:
    def test_a_rewind_moves_document_logs_and_step_results(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.step("early") as step:
            step.result = "kept"
        versions = talk(thread, 12)
        was = contents(thread)
        with thread.step("late") as step:
            step.state["late"] = 1
            step.messages.append(message("late"))
            step.result = "gone"
        thread.log("other").append({"id": "o"})
        thread.commit()
        back = thread.rewind(versions[-1])
        for handle in (thread, store.thread("a")):
            assert handle.head == back
            assert handle.state.plain() == was[0]
            assert handle.messages[:] == was[1]["messages"]
            assert handle.log("other")[:] == []
        with thread.step("early") as step:
            assert (step.done, step.result) == (True, "kept")
        with thread.step("late") as step:
            assert not step.done

    def test_a_rewind_is_itself_a_version_and_undoable(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 9)
        last = contents(thread)
        back = thread.rewind(versions[2])
        assert (back.seq, back.kind, back.source) == (10, "rewind", versions[2].id)
        assert thread.state["count"] == 2
        undone = thread.rewind(versions[-1])
        assert undone.seq == 11
        assert contents(thread) == contents(store.thread("a")) == last
        thread.rewind(back)
        assert thread.state["count"] == 2
        talk(thread, 5, "on")
        assert ids(store.thread("a").messages) == ["m0", "m1", "m2", *(f"on{n}" for n in range(5))]
        thread.rewind(versions[5])
        assert ids(store.thread("a").messages) == [f"m{n}" for n in range(6)]
        assert seqs(thread) == list(range(18, 0, -1)), "what was left behind stays in the history"

    def test_rewinds_upon_rewinds(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        states: dict[int, Any] = {}
        for number in range(120):
            if number % 3 == 2:
                target = (number * 7) % len(states) + 1
                version = thread.rewind(target)
                states[version.seq] = states[target]
            else:
                thread.state["n"] = number
                thread.messages.append(message(str(number)))
                version = commit(thread)
                states[version.seq] = contents(thread)
            assert contents(thread) == states[version.seq]
        read = store.thread("a")
        for seq, was in states.items():
            assert contents(read.at(seq)) == was

    def test_a_rewind_never_moves_commit_keys(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        start = talk(thread, 2)[-1]
        thread.state["x"] = 1
        keyed = commit(thread, key="before")
        thread.rewind(start)
        thread.rewind(keyed)
        thread.state["x"] = 2
        assert commit(thread, key="before") == keyed

    def test_a_fork_shares_history_and_nothing_else(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 10)
        fork = thread.fork("b")
        assert fork.head == versions[-1]
        assert contents(fork) == contents(thread) == contents(store.thread("b"))
        assert list(store.thread("b").history(limit=None)) == versions[::-1]
        was = contents(thread)
        fork.state["count"] = "fork"
        fork.messages.truncate_from("m3")
        fork.messages.append(message("fork"))
        first = commit(fork)
        assert (first.seq, first.parent) == (11, versions[-1].id)
        assert contents(thread) == contents(store.thread("a")) == was
        forked = contents(fork)
        talk(thread, 20, "on")
        assert contents(fork) == contents(store.thread("b")) == forked
        assert ids(fork.messages) == ["m0", "m1", "m2", "fork"]

    def test_a_fork_may_begin_anywhere(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 30)
        thread.rewind(versions[4])
        versions += talk(thread, 5, "on")
        for number, version in enumerate(versions):
            fork = thread.fork(f"fork {number}", at=version)
            assert contents(fork) == contents(thread.at(version))
            fork.messages.append(message("own"))
            fork.commit()
            read = store.thread(f"fork {number}")
            assert read.messages[:-1] == thread.at(version).messages[:]
            assert contents(read.at(version)) == contents(thread.at(version))
            assert seqs(read) == list(range(version.seq + 1, 0, -1))

    def test_forks_of_forks(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("0")
        expected = []
        for depth in range(1, 8):
            talk(thread, depth, f"d{depth} ")
            expected += [f"d{depth} {number}" for number in range(depth)]
            if depth % 3 == 0:
                thread = thread.fork(f"bare {depth}")
            thread = thread.fork(str(depth))
        assert ids(thread.messages) == ids(store.thread("7").messages) == expected
        assert seqs(thread) == list(range(len(expected), 0, -1))
        for seq in range(1, len(expected) + 1):
            assert ids(thread.at(seq).messages) == expected[:seq]
        early = thread.fork("early", at=3)
        assert ids(early.messages) == expected[:3]
        talk(early, 2, "early")
        assert ids(store.thread("early").messages) == [*expected[:3], "early0", "early1"]

    def test_a_fork_rewinds_into_its_parents_past(self, open_store: OpenStore) -> None:
        store = open_store()
        parent = store.thread("a")
        versions = talk(parent, 20)
        parent.rewind(versions[9])
        fork = parent.fork("b")
        talk(fork, 5, "fork")
        for target in (versions[14], versions[2], fork.history(limit=3)):
            version = target if not hasattr(target, "__next__") else next(target)
            fork.rewind(version)
            assert contents(fork) == contents(store.thread("b")) == contents(fork.at(version))
            fork.messages.append(message(f"after {version.seq}"))
            fork.commit()
            assert ids(store.thread("b").messages)[-1] == f"after {version.seq}"
        assert contents(parent) == contents(parent.at(versions[9]))

    def test_a_forks_name_must_be_free(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 2)
        talk(store.thread("b"), 1)
        for taken in ("a", "b"):
            with raises(ThreadExistsError):
                thread.fork(taken)
            with raises(ThreadExistsError):
                thread.fork(taken, prepare=lambda messages: messages)
        assert store.thread("b").state["count"] == 0
        store.thread("b").delete()
        assert contents(thread.fork("b")) == contents(thread)

    def test_fork_hooks_are_applied_once_to_the_new_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 12)
        was = contents(thread)

        def shout(item: Any) -> Any:
            return {**item, "content": f"{item['content']}!"}

        fork = thread.fork("b", prepare=lambda messages: messages[8:], transform=shout)
        expected = [message(f"m{n}", f"{n}!") for n in range(8, 12)]
        assert fork.messages[:] == store.thread("b").messages[:] == expected
        assert fork.state.plain() == was[0]
        assert contents(thread) == contents(store.thread("a")) == was
        fork.messages.append(message("m0", "new"))
        fork.commit()
        assert store.thread("b").messages[:] == [*expected, message("m0", "new")]
