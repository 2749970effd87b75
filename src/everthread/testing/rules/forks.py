"""Forks and rewinds: pointers into a shared past."""

from __future__ import annotations

from typing import Any

from everthread.errors import (
    InvalidValueError,
    MergeConflictError,
    ThreadExistsError,
    ThreadNotFoundError,
    UsageError,
)
from everthread.history.merge import ABSENT
from everthread.store import Store
from everthread.testing.rules.expectations import (
    OpenStore,
    commit,
    contents,
    ids,
    message,
    raises,
    seqs,
    talk,
)
from everthread.threads.sync.thread import Thread


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

    def test_a_fork_repeated_with_its_key_is_the_same_fork(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 9)
        fork = thread.fork("b", at=versions[3], key="retry 1")
        talk(fork, 2, "fork")
        talk(thread, 1, "on")
        for at in (None, versions[3], versions[3].id, 4):
            again = store.thread("a").fork("b", at=at, key="retry 1")
            assert (again.uid, again.head, contents(again)) == (fork.uid, fork.head, contents(fork))
        for options in ({"key": "another"}, {}, {"key": "retry 1", "at": versions[4]}):
            with raises(ThreadExistsError):
                store.thread("a").fork("b", **options)
        other = store.thread("other")
        talk(other, 4)
        with raises(ThreadExistsError):
            other.fork("b", key="retry 1")
        with raises(ThreadExistsError):
            store.thread("a").fork("other", key="retry 1")
        made = [version for version in fork.history(limit=None) if version.kind == "fork"]
        assert [(version.seq, version.key) for version in made] == [(5, "retry 1")]
        fork.state["committed"] = 1
        assert commit(fork, key="retry 1").seq == 8, "a commit key is another thing"
        plain = thread.fork("c")
        with raises(ThreadExistsError):
            thread.fork("c", key="late")
        assert plain.head == thread.head
        fork.delete()
        anew = thread.fork("b", key="retry 1")
        assert anew.uid != fork.uid
        for wrong in ("", "\0"):
            with raises(ValueError):
                thread.fork("d", key=wrong)

    def test_a_fork_says_whether_effects_are_denied_in_it(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 9)
        assert thread.effects == "inherit"
        denied = thread.fork("denied", at=versions[5], effects="deny")
        was = contents(denied)
        assert was == contents(thread.at(versions[5]))
        talk(denied, 7, "on")
        assert denied.fork("below").effects == "deny"
        assert denied.fork("inherits", effects="inherit").effects == "deny"
        assert denied.fork("earlier", at=versions[2]).effects == "deny"
        assert thread.fork("allowed").effects == "inherit"
        denied.rewind(versions[1])
        for name in ("denied", "below", "inherits", "earlier"):
            assert store.thread(name).effects == "deny", name
        talk(denied, 7, "again")
        assert store.thread("denied").effects == "deny", "no rewind takes it back"
        assert thread.merge(denied, resolve="ours")
        assert (thread.effects, store.thread("a").effects) == ("inherit", "inherit")
        for wrong in ("allow", None, True):
            with raises(InvalidValueError):
                thread.fork("b", effects=wrong)  # type: ignore[arg-type]

    def test_a_thread_knows_which_versions_led_to_its_head(self, open_store: OpenStore) -> None:
        store = open_store()
        assert not store.thread("a").contains(1)
        thread = store.thread("a")
        versions = talk(thread, 9)
        early = store.thread("a")
        assert early.contains(versions[8])
        back = thread.rewind(versions[4])
        newer = talk(thread, 3, "newer")
        held = [*versions[:5], back, *newer]
        for version in held:
            assert thread.contains(version)
            assert thread.contains(version.id)
            assert thread.contains(version.seq)
        for version in versions[5:]:
            assert not thread.contains(version)
            assert early.contains(version), "a handle stays where it stands"
        assert not thread.contains(99)
        assert not thread.contains(0)
        assert not thread.contains("4-" + "0" * 24)
        fork = thread.fork("b", at=newer[0])
        for handle in (fork, store.thread("b")):
            assert all(handle.contains(version) for version in (*versions[:5], back, newer[0]))
            assert not any(handle.contains(version) for version in (*versions[5:], newer[1]))
        talk(fork, 2, "fork")
        assert not thread.contains(fork.head)  # type: ignore[arg-type]
        thread.rewind(versions[8])
        assert all(thread.contains(version) for version in versions)
        assert not any(thread.contains(version) for version in (back, *newer))
        for wrong in (None, 1.5, True):
            with raises(UsageError):
                thread.contains(wrong)  # type: ignore[arg-type]

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


# Merge: three-way; conflicts are data, never guesses.


def _apart(store: Store, base: dict[str, Any]) -> tuple[Thread, Thread]:
    """A thread and a fork of it, both on ``base``."""
    thread = store.thread("a")
    thread.state.update(base)
    thread.messages.append(message("base"))
    thread.commit()
    return thread, thread.fork("b")


class MergeRules:
    def test_a_merge_brings_in_what_the_other_did(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {"kept": 1, "gone": 1, "deep": {"x": 1, "y": 1}, "list": [1]})
        ours.state["ours"] = 1
        ours.state["deep"]["x"] = "ours"
        ours.state["list"].append("ours")
        ours.messages.append(message("ours"))
        talk(ours, 6, "we ")
        theirs.state["theirs"] = 1
        theirs.state["deep"]["y"] = "theirs"
        theirs.state["list"].append("theirs")
        del theirs.state["gone"]
        theirs.messages.append(message("theirs"))
        theirs.log("other").append({"id": "o"})
        head = commit(theirs)
        merge = ours.merge(theirs, label="merged")
        assert merge
        assert merge.conflicts == ()
        assert merge.version == ours.head
        assert merge.version is not None
        assert (merge.version.kind, merge.version.source, merge.version.label) == ("merge", head.id, "merged")
        assert contents(ours) == contents(store.thread("a"))
        assert ours.state.plain() == {
            "kept": 1,
            "deep": {"x": "ours", "y": "theirs"},
            "list": [1, "theirs", "ours"],
            "ours": 1,
            "theirs": 1,
            "count": 5,
        }
        assert ids(ours.messages) == ["base", "theirs", "ours", *(f"we {n}" for n in range(6))]
        assert ids(ours.log("other")) == ["o"]
        assert "ours" not in store.thread("b").state, "the other thread is left alone"

    def test_conflicts_are_data(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {"x": 0, "gone": 0, "both": 0})
        ours.state.update({"x": "ours", "gone": "changed", "new": 1, "clean": 1})
        theirs.state.update({"x": "theirs", "both": 1, "new": 2})
        del theirs.state["gone"]
        ours.state["both"] = 1
        before = commit(ours)
        theirs.commit()
        merge = ours.merge(theirs)
        assert not merge
        assert merge.version is None
        found = {
            conflict.where: (conflict.base, conflict.ours, conflict.theirs) for conflict in merge.conflicts
        }
        assert found == {
            "x": (0, "ours", "theirs"),
            "gone": (0, "changed", ABSENT),
            "new": (ABSENT, 1, 2),
        }
        assert not ours.dirty
        assert ours.head == store.thread("a").head == before

    def test_conflicts_are_settled_as_the_caller_says(self, open_store: OpenStore) -> None:
        for choice, expected in (
            ("ours", {"x": "ours", "y": "ours", "gone": 1, "t": 1}),
            ("theirs", {"x": "theirs", "y": "theirs", "t": 1}),
            (lambda conflict: f"{conflict.ours}+{conflict.theirs}", None),
        ):
            store = open_store()
            name = f"{choice}"
            ours = store.thread(name)
            ours.state.update({"x": 0, "y": 0, "gone": 0})
            ours.commit()
            theirs = ours.fork(f"{name} fork")
            ours.state.update({"x": "ours", "y": "ours", "gone": 1})
            ours.commit()
            theirs.state.update({"x": "theirs", "y": "theirs", "t": 1})
            del theirs.state["gone"]
            theirs.commit()
            assert ours.merge(theirs, resolve=choice)
            expected = expected or {"x": "ours+theirs", "y": "ours+theirs", "gone": "1+ABSENT", "t": 1}
            assert store.thread(name).state.plain() == expected
        with raises(InvalidValueError):
            ours.merge(theirs, resolve="mine")

    def test_logs_merge_as_base_theirs_ours_each_id_once(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {})
        ours.messages.extend([message("1"), message("both"), message("2")])
        theirs.messages.extend([message("3"), message("both"), message("4")])
        ours.commit()
        theirs.commit()
        assert ours.merge(theirs)
        assert ids(store.thread("a").messages) == ["base", "3", "both", "4", "1", "2"]

    def test_one_id_with_two_contents_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        for choice, expected in (("ours", "ours"), ("theirs", "theirs"), (lambda c: c.theirs, "theirs")):
            ours = store.thread(f"{choice}")
            ours.messages.append(message("base"))
            ours.commit()
            theirs = ours.fork(f"{choice} fork")
            ours.messages.extend([message("1", "ours"), message("2", "ours")])
            theirs.messages.extend([message("0", "theirs"), message("1", "theirs")])
            ours.commit()
            theirs.commit()
            merge = ours.merge(theirs)
            assert [(c.path, c.ours, c.theirs) for c in merge.conflicts] == [
                (("messages", "1"), message("1", "ours"), message("1", "theirs"))
            ]
            assert not ours.dirty
            assert ours.merge(theirs, resolve=choice)
            assert ids(ours.messages) == ["base", "0", "1", "2"], choice
            assert ours.messages[2] == message("1", expected)

    def test_truncate_against_append_is_a_conflict_of_a_merge(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 6)
        cut, grown, idle = thread.fork("cut"), thread.fork("grown"), thread.fork("idle")
        cut.messages.truncate_from("m3")
        cut.messages.extend([message(f"new {n}") for n in range(4)])
        cut.commit()
        talk(grown, 2, "more")
        for ours, theirs in ((cut, grown), (grown, cut)):
            assert [conflict.path for conflict in ours.merge(theirs).conflicts] == [("messages",)]
        assert idle.merge(cut)
        assert ids(idle.messages) == ["m0", "m1", "m2", "new 0", "new 1", "new 2", "new 3"]
        assert cut.merge(thread)
        assert ids(cut.messages) == ids(idle.messages), "who did nothing brings nothing back"

    def test_a_merge_of_what_is_merged_changes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {"x": 0})
        head = ours.head
        assert ours.merge(theirs).version == head, "the fork did nothing yet"
        theirs.state["x"] = 1
        theirs.commit()
        merged = ours.merge(theirs).version
        assert ours.merge(theirs).version == merged
        assert ours.merge(store.thread("a")).version == merged
        assert len(seqs(ours)) == 2

    def test_a_second_merge_starts_from_the_first(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {"x": 0})
        for number in range(1, 6):
            theirs.state["x"] = number
            theirs.messages.append(message(f"t{number}"))
            theirs.commit()
            assert ours.merge(theirs), number
            ours.state["ours"] = number
            ours.messages.append(message(f"o{number}"))
            ours.commit()
        assert ours.state.plain() == {"x": 5, "ours": 5}
        assert theirs.merge(ours)
        assert contents(theirs) == contents(ours)
        theirs.state["x"] = "after"
        theirs.commit()
        assert ours.merge(theirs)
        assert ours.state["x"] == "after"

    def test_what_was_left_behind_by_a_rewind_is_not_merged(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {})
        theirs.state["x"] = 1
        kept = commit(theirs)
        theirs.state["y"] = 1
        left = commit(theirs)
        theirs.rewind(kept)
        theirs.state["z"] = 1
        theirs.commit()
        assert ours.merge(theirs)
        assert ours.state.plain() == {"x": 1, "z": 1}
        assert ours.merge(theirs.fork("c", at=left))
        assert ours.state.plain() == {"x": 1, "z": 1, "y": 1}

    def test_a_rewind_takes_a_merge_back(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {})
        before = ours.head
        assert before is not None
        theirs.state["x"] = 1
        theirs.commit()
        assert ours.merge(theirs)
        ours.rewind(before)
        assert ours.state.plain() == {}
        assert ours.merge(theirs)
        assert ours.state.plain() == {"x": 1}

    def test_what_came_in_through_a_third_thread_is_merged(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, third = _apart(store, {"k": 0})
        other = ours.fork("c")
        third.state["k"] = 1
        third.commit()
        assert ours.merge(third)
        third.state["k"] = 2
        third.commit()
        assert other.merge(third)
        assert ours.merge(other)
        ours.state["k"] = 3
        ours.commit()
        third.state["new"] = 1
        third.commit()
        assert ours.merge(third), "third did not touch k since what we have of it"
        assert ours.state.plain() == {"k": 3, "new": 1}

    def test_the_base_is_the_newest_that_both_contain(self, open_store: OpenStore) -> None:
        store = open_store()
        long = store.thread("long")
        talk(long, 12, "long ")
        ours = store.thread("a")
        ours.state["mine"] = 1
        ours.commit()
        assert ours.merge(long, unrelated=True)
        theirs = ours.fork("b")
        del theirs.state["mine"]
        theirs.messages.truncate_from("long 6")
        theirs.commit()
        ours.state["new"] = 1
        ours.commit()
        assert ours.merge(theirs)
        assert ours.state.plain() == {"count": 11, "new": 1}, "whatever the numbers of other lines"
        assert len(ours.messages) == 6
        head = ours.head
        for same in (ours, store.thread("a"), theirs, long):
            assert ours.merge(same).version == head

    def test_a_deleted_thread_stays_merged(self, open_store: OpenStore) -> None:
        store = open_store()
        thread, ours = _apart(store, {"x": 0})
        thread.state["x"] = 1
        thread.commit()
        assert ours.merge(thread)
        fork, gone = thread.fork("fork"), thread.fork("gone")
        talk(gone, 2, "gone ")
        assert ours.merge(gone)
        thread.delete()
        gone.delete()
        ours.state["x"] = 2
        ours.commit()
        fork.state["y"] = 1
        fork.commit()
        assert ours.merge(fork), "the fork did not touch x since what we have of it"
        assert ours.state.plain() == {"x": 2, "count": 1, "y": 1}
        assert fork.merge(ours)
        assert contents(fork) == contents(ours)

    def test_unrelated_threads_merge_from_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = store.thread("a"), store.thread("b")
        ours.state.update({"x": 1, "same": 1})
        theirs.state.update({"y": 1, "same": 1})
        talk(ours, 2, "o")
        theirs.messages.append(message("t"))
        theirs.commit()
        was = contents(ours)
        for options in ({}, {"resolve": "ours"}, {"resolve": "theirs", "unrelated": False}):
            with raises(UsageError) as refused:
                ours.merge(theirs, **options)
            assert "unrelated=True" in str(refused[0])
            assert contents(store.thread("a")) == contents(ours) == was
        assert ours.merge(theirs, unrelated=True)
        assert ours.state.plain() == {"x": 1, "same": 1, "count": 1, "y": 1}
        assert ids(ours.messages) == ["t", "o0", "o1"]

    def test_a_merge_needs_a_thread_of_this_store(self, open_store: OpenStore) -> None:
        store = open_store()
        ours = store.thread("a")
        head = talk(ours, 2)[-1]
        wrong: Any
        for wrong in (None, head, store):
            with raises(UsageError):
                ours.merge(wrong)
        with raises(ThreadNotFoundError):
            ours.merge("b")
        apart = open_store(namespace="another")
        foreign = apart.thread("b")
        talk(foreign, 3, "foreign")
        with raises(UsageError):
            ours.merge(foreign)
        assert ours.head == store.thread("a").head == head

    # ── rebase ───────────────────────────────────────────────────────────────────────────────

    def test_a_rebase_refuses_what_both_changed(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        ours, theirs = store.thread("a"), store.thread("a")
        ours.state.update({"count": "ours", "mine": 1})
        theirs.state["count"] = "theirs"
        won = commit(theirs)
        before = ours.head
        with raises(MergeConflictError) as caught:
            ours.rebase()
        assert [conflict.where for conflict in caught[0].conflicts] == ["count"]
        assert (caught[0].expected, caught[0].actual) == (before, won)
        assert ours.state.plain() == {"count": "ours", "mine": 1}, "and changes nothing"
        assert ours.head == before

    def test_increments_add_up(self, open_store: OpenStore) -> None:
        store = open_store()
        first = store.thread("a")
        first.state["n"] = 10
        first.commit()
        handles = [store.thread("a") for _ in range(3)]
        for number, handle in enumerate(handles, 1):
            handle.state.increment("n", number)
        handles[0].commit()
        for handle in handles[1:]:
            handle.rebase()
            handle.commit()
        assert store.thread("a").state["n"] == 16

    def test_first_increments_of_several_writers_add_up(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)
        handles = [store.thread("a") for _ in range(3)]
        for handle in handles:
            handle.state.increment("n", 2)
            handle.state.setdefault("deep", {}).increment("n", 0.5)
        handles[0].commit()
        for handle in handles[1:]:
            handle.rebase()
            handle.rebase()
            handle.commit()
        thread = store.thread("a")
        assert thread.state.plain() == {"count": 0, "n": 6, "deep": {"n": 1.5}}
        assert [thread.at(seq).state.get("n") for seq in range(1, 5)] == [None, 2, 4, 6]
        talk(thread, 9)
        assert store.thread("a").state["n"] == 6

    def test_increments_of_forks_add_up_when_they_are_merged(self, open_store: OpenStore) -> None:
        store = open_store()
        ours, theirs = _apart(store, {"there": 1, "set": 0})
        for _ in range(7):
            for side in (ours, theirs):
                for key in ("there", "first"):
                    side.state.increment(key)
                side.commit()
        theirs.state.increment("set", 5)
        theirs.commit()
        assert ours.merge(theirs)
        assert ours.state.plain() == {"there": 15, "set": 5, "first": 14}
        for side in (ours, theirs):
            side.state.increment("first")
            side.commit()
        assert ours.merge(theirs)
        assert ours.state["first"] == 16, "also those of a second merge"
        assert theirs.merge(ours)
        assert theirs.state["first"] == 16
        ours.state["there"] = 100
        ours.commit()
        theirs.state.increment("there")
        theirs.commit()
        assert [conflict.path for conflict in ours.merge(theirs).conflicts] == [("there",)]
        assert theirs.merge(ours)
        assert theirs.state["there"] == 101, "added to what the other side has set"

    def test_a_rebase_settles_what_both_changed_as_the_caller_says(self, open_store: OpenStore) -> None:
        store = open_store()

        def first(conflict: Any) -> Any:
            return min(conflict.ours, conflict.theirs, key=str)

        for number, (choice, expected) in enumerate((("ours", 2), ("theirs", 1), (first, 1))):
            name = f"{number}"
            talk(store.thread(name), 1)
            ours, theirs = store.thread(name), store.thread(name)
            for side, value in ((theirs, 1), (ours, 2)):
                side.state["k"] = value
                side.messages.append({"id": "same", "value": value})
                side.messages.append({"id": f"own {value}"})
            theirs.commit()
            with raises(MergeConflictError):
                ours.rebase()
            chosen: Any = choice
            if number == 2:
                chosen = lambda conflict: (  # noqa: E731
                    first(conflict) if conflict.path == ("k",) else {**conflict.theirs, "settled": True}
                )
            ours.rebase(resolve=chosen)
            ours.commit()
            thread = store.thread(name)
            assert thread.state["k"] == expected
            settled = {"settled": True} if number == 2 else {}
            assert thread.messages[1:] == [
                {"id": "same", "value": expected, **settled},
                {"id": "own 1"},
                {"id": "own 2"},
            ]
        with raises(InvalidValueError):
            store.thread("0").rebase(resolve="mine")

    def test_a_rebase_over_a_rewind(self, open_store: OpenStore) -> None:
        store = open_store()
        versions = talk(store.thread("a"), 12)
        ours = store.thread("a")
        ours.state["mine"] = 1
        store.thread("a").rewind(versions[3])
        ours.rebase()
        ours.commit()
        assert store.thread("a").state.plain() == {"count": 3, "mine": 1}
        assert ids(store.thread("a").messages) == ["m0", "m1", "m2", "m3"]
