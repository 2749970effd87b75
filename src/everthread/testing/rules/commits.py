"""Versions: numbered without repeats, named for good, readable for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

from everthread.errors import (
    ConflictError,
    InvalidStateError,
    KeyReusedError,
    StorageWriteError,
    UsageError,
    VersionNotFoundError,
)
from everthread.testing.rules.expectations import (
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
from everthread.versions import Version


class VersionRules:
    def test_sequence_numbers_never_repeat(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        seen: list[Version] = []
        for _ in range(4):
            seen += talk(thread, 6, f"{len(seen)}-")
            seen.append(thread.rewind(seen[len(seen) // 2]))
            thread.messages.truncate_from(thread.messages[-1]["id"])
            seen.append(commit(thread))
        assert [version.seq for version in seen] == list(range(1, len(seen) + 1))
        assert len({version.id for version in seen}) == len(seen)
        fork = thread.fork("b", at=seen[9])
        assert commit(fork, label="fork").seq == seen[9].seq + 1

    def test_a_version_is_the_same_however_it_is_read(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        made = []
        for number in range(45):
            thread.state["n"] = number
            key = f"k{number}" if number % 5 == 0 else None
            made.append(commit(thread, label=f"step {number}", metadata={"n": [number]}, key=key))
            if number % 11 == 10:
                made.append(thread.rewind(made[-4]))
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            read = each.thread("a")
            assert list(read.history(limit=None)) == made[::-1]
            assert read.head == made[-1]
            for version in made:
                assert read.at(version).version == version
                assert read.at(version.seq).version == version
                assert read.at(version.id).version == version
        for before, version in pairwise(made):
            assert version.parent == before.id
        assert made[0].parent is None

    def test_a_version_says_what_it_was_given(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        metadata = {"run": "r1", "tags": ["x", {"y": None}]}
        thread.state["x"] = 1
        version = commit(thread, label="step 3", metadata=metadata, key="k")
        metadata["run"] = "changed"
        for read in (version, thread.head, store.thread("a").head):
            assert read is not None
            assert (read.label, read.key, read.kind, read.source) == ("step 3", "k", "commit", None)
            assert dict(read.metadata) == {"run": "r1", "tags": ["x", {"y": None}]}
            assert read.at == version.at
        back = thread.rewind(version)
        assert (back.kind, back.source, back.parent) == ("rewind", version.id, version.id)

    def test_order_never_depends_on_the_clock(self, open_store: OpenStore) -> None:
        store = open_store()
        clock = count(2_000_000_000_000_000, -1_000_000)
        store.core.runtime.now_us = lambda: next(clock)
        thread = store.thread("a")
        versions = talk(thread, 30)
        thread.rewind(versions[9])
        fork = thread.fork("b", at=versions[19])
        fork.state["x"] = 1
        fork.commit()
        assert versions[0].at > versions[-1].at
        assert seqs(store.thread("a")) == list(range(31, 0, -1))
        assert store.thread("a").state["count"] == 9
        assert seqs(store.thread("b")) == list(range(21, 0, -1))
        assert store.thread("b").state.plain() == {"count": 19, "x": 1}

    def test_history_is_newest_first_and_limited(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 150)[::-1]
        assert list(thread.history(limit=None)) == versions
        assert list(thread.history()) == versions[:20]
        for limit in (0, 1, 5, 70, 149, 150, 1000):
            assert list(thread.history(limit=limit)) == versions[:limit]
        for before in (versions[0], versions[3].seq, versions[70].id, versions[148], 1):
            seq = before.seq if isinstance(before, Version) else thread.at(before).version.seq
            below = [version for version in versions if version.seq < seq]
            assert list(thread.history(limit=None, before=before)) == below
            assert list(thread.history(limit=3, before=before)) == below[:3]

    def test_past_versions_stay_as_they_were(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        kept: list[tuple[Version, Any]] = []
        for number in range(60):
            thread.state[f"key {number % 7}"] = {"n": number, "list": list(range(number % 5))}
            thread.state.pop(f"key {(number + 3) % 7}", None)
            thread.messages.append(message(str(number), number))
            if number % 9 == 8:
                thread.messages.truncate_from(str(number - 4))
            thread.log("other").append({"id": str(number)})
            kept.append((commit(thread), contents(thread)))
            if number % 20 == 19:
                back, was = kept[number - 10]
                kept.append((thread.rewind(back), was))
        for handle in (thread, store.thread("a"), thread.fork("b")):
            for version, was in kept:
                assert contents(handle.at(version)) == was, version

    def test_the_past_is_read_only(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["list"] = [{"x": 1}]
        version = commit(thread)
        talk(thread, 2)
        past = thread.at(version)
        for change in (
            lambda: past.state.update(x=1),
            lambda: past.state["list"].append(1),
            past.state["list"][0].clear,
            lambda: past.messages.append({"content": "late"}),
            lambda: past.messages.extend([{"content": "late"}]),
            lambda: past.messages.truncate_from("any"),
        ):
            with raises(InvalidStateError):
                change()
        assert past.messages[:] == []
        assert past.state.plain() == {"list": [{"x": 1}]}

    def test_foreign_versions_are_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        thread, other = store.thread("a"), store.thread("b")
        mine = talk(thread, 9)
        foreign = talk(other, 9)
        fork = thread.fork("c", at=mine[4])
        forked = talk(fork, 4, "fork")
        for handle, wrong in (
            (thread, foreign[2]),
            (thread, foreign[2].id),
            (thread, forked[0]),
            (fork, mine[5]),
            (fork, mine[8].id),
            (thread, Version(seq=3, id=mine[3].id, parent=None, at_us=0)),
            (thread, Version(seq=10, id="10-" + "0" * 24, parent=None, at_us=0)),
        ):
            for verb in (handle.at, handle.rewind, lambda v, h=handle: h.fork("x", at=v)):
                with raises(VersionNotFoundError):
                    verb(wrong)
        assert [found.name for found in store.threads()] == ["a", "b", "c"]
        assert thread.head == mine[-1]

    def test_what_is_no_version_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        wrong: Any
        for wrong in (0, -1, 4, 2**63, 10**30, "", "4", "junk", "1-x", "1-" + "g" * 24, "1-" + "0" * 24):
            for verb in (thread.at, thread.rewind):
                with raises(VersionNotFoundError):
                    verb(wrong)
        for wrong in (None, True, 1.0, b"1", [1], object(), thread):
            for verb in (thread.at, thread.rewind):
                with raises(UsageError):
                    verb(wrong)
        assert seqs(store.thread("a")) == [3, 2, 1]

    def test_a_diff_can_be_applied(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state.update({"kept": 1, "gone": [1, 2], "changed": {"x": 1}})
        thread.messages.append(message("1"))
        first = commit(thread)
        thread.state.update({"changed": {"x": 2}, "new": None})
        del thread.state["gone"]
        thread.messages.append(message("2"))
        thread.commit()
        found = thread.diff(first)
        assert found.apply(thread.at(first).state.plain()) == thread.state.plain()
        assert dict(found.added) == {"new": None}
        assert dict(found.removed) == {"gone": [1, 2]}
        assert dict(found.changed) == {"changed.x": (1, 2)}
        assert found.logs["messages"].added_items == (message("2"),)
        back = thread.diff(thread.head, first)
        assert back.apply(thread.state.plain()) == thread.at(first).state.plain()
        assert not thread.diff(first, first)


# Compare-and-set: a commit succeeds only if its parent is still the newest version of the line.


class CompareAndSetRules:
    def test_of_two_writers_from_one_parent_exactly_one_wins(self, open_store: OpenStore) -> None:
        store = open_store()
        parent = talk(store.thread("a"), 3)[-1]
        winner, loser = store.thread("a"), store.thread("a")
        winner.state["who"] = "winner"
        loser.state["who"] = "loser"
        won = commit(winner)
        with raises(ConflictError) as caught:
            loser.commit()
        assert caught[0].expected == parent
        assert caught[0].actual == won
        assert store.thread("a").state["who"] == "winner"
        assert seqs(store.thread("a")) == [4, 3, 2, 1]

    def test_of_two_creators_exactly_one_wins(self, open_store: OpenStore) -> None:
        store = open_store()
        winner, loser = store.thread("a"), store.thread("a")
        winner.state["x"] = 1
        loser.state["y"] = 1
        won = commit(winner)
        with raises(ConflictError) as caught:
            loser.commit()
        assert caught[0].expected is None
        assert caught[0].actual == won
        loser.rebase()
        loser.commit()
        assert store.thread("a").state.plain() == {"x": 1, "y": 1}

    def test_of_many_simultaneous_writers_exactly_one_wins(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        for round_ in range(5):
            who = [f"{round_}-{number}" for number in range(6)]
            results = _all_at_once(lambda n, ready: _try_commit(store.thread("a"), who[n], ready), 6)  # noqa: B023
            winners = [name for name, won in zip(who, results, strict=True) if won]
            assert len(winners) == 1, winners
            assert store.thread("a").state["who"] == winners[0]
        assert seqs(store.thread("a")) == list(range(8, 0, -1))

    def test_of_many_simultaneous_creators_exactly_one_wins(self, open_store: OpenStore) -> None:
        store = open_store()
        results = _all_at_once(lambda n, ready: _try_commit(store.thread("a"), str(n), ready), 6)
        assert sum(results) == 1
        assert seqs(store.thread("a")) == [1]

    def test_writers_in_several_stores_exclude_each_other(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "multi_process")
        first = talk(store.thread("a"), 2)[-1]
        other = open_store()
        loser = other.thread("a")
        loser.state["who"] = "loser"
        winner = store.thread("a")
        winner.state["who"] = "winner"
        won = commit(winner)
        with raises(ConflictError) as caught:
            loser.commit()
        assert (caught[0].expected, caught[0].actual) == (first, won)

    def test_the_loser_keeps_its_changes_and_may_rebase(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        winner, loser = store.thread("a"), store.thread("a")
        loser.state["ours"] = 1
        loser.messages.append(message("ours"))
        winner.state["theirs"] = 1
        winner.messages.append(message("theirs"))
        won = commit(winner)
        with raises(ConflictError):
            loser.commit()
        assert loser.dirty
        assert loser.state["ours"] == 1
        assert ids(loser.messages) == ["m0", "m1", "m2", "ours"]
        with raises(ConflictError):
            loser.commit()
        assert loser.rebase() == won
        version = commit(loser)
        assert (version.seq, version.parent) == (won.seq + 1, won.id)
        assert contents(store.thread("a")) == contents(loser)
        assert loser.state.plain() == {"count": 2, "theirs": 1, "ours": 1}
        assert ids(loser.messages) == ["m0", "m1", "m2", "theirs", "ours"]

    def test_the_loser_may_discard(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 3)
        winner, loser = store.thread("a"), store.thread("a")
        loser.state["ours"] = 1
        winner.state["theirs"] = 1
        won = commit(winner)
        with raises(ConflictError):
            loser.commit()
        loser.discard()
        assert loser.state.plain() == {"count": 2}
        assert loser.refresh() == won
        loser.state["ours"] = 2
        assert commit(loser).seq == won.seq + 1

    def test_a_handle_that_slept_through_200_foreign_commits_conflicts(self, open_store: OpenStore) -> None:
        store = open_store()
        writer = store.thread("a")
        first = talk(writer, 5)[-1]
        sleepers = [store.thread("a") for _ in range(2)]
        for sleeper in sleepers:
            assert sleeper.head == first
        newest = talk(writer, 200, "foreign")[-1]
        sleepers[0].state["who"] = "sleeper"
        with raises(ConflictError) as caught:
            sleepers[0].commit()
        assert (caught[0].expected, caught[0].actual) == (first, newest)
        with raises(ConflictError):
            sleepers[1].rewind(1)
        assert store.thread("a").head == newest
        sleepers[0].rebase()
        assert commit(sleepers[0]).seq == newest.seq + 1

    def test_a_rewind_and_a_merge_compare_too(self, open_store: OpenStore) -> None:
        store = open_store()
        versions = talk(store.thread("a"), 3)
        fork = store.thread("a").fork("b")
        fork.state["fork"] = 1
        fork.commit()
        stale = store.thread("a")
        assert stale.head == versions[-1]
        newest = talk(store.thread("a"), 1, "newer")[-1]
        with raises(ConflictError):
            stale.rewind(versions[0])
        with raises(ConflictError):
            stale.merge(fork)
        assert not stale.dirty
        assert stale.head == versions[-1]
        assert store.thread("a").head == newest

    def test_threads_do_not_conflict_with_each_other(self, open_store: OpenStore) -> None:
        store = open_store()
        one, two = store.thread("a"), store.thread("b")
        for number in range(5):
            one.state["x"] = number
            two.state["x"] = -number
            one.commit(label="one")
            two.commit(label="two")
        fork = one.fork("c")
        one.state["x"] = "one"
        fork.state["x"] = "fork"
        assert commit(one).seq == commit(fork).seq == 6

    def test_update_is_retried_on_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        workers, rounds = 4, 15

        def work(number: int, ready: threading.Barrier) -> bool:
            thread = store.thread("a")
            ready.wait()
            for turn in range(rounds):
                thread.update(lambda draft: _count(draft, f"{number}-{turn}"))  # noqa: B023 - called at once
            return True

        assert all(_all_at_once(work, workers))
        thread = store.thread("a")
        assert thread.state["n"] == workers * rounds
        assert sorted(ids(thread.messages)) == sorted(
            f"{number}-{turn}" for number in range(workers) for turn in range(rounds)
        )
        assert seqs(thread) == list(range(workers * rounds, 0, -1))

    def test_an_update_that_raises_changes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        version = talk(thread, 1)[-1]

        def fail(draft: Any) -> None:
            draft["x"] = 1
            raise LookupError

        with raises(LookupError):
            thread.update(fail)
        assert not thread.dirty
        assert thread.head == version
        assert thread.update(lambda draft: None) == version


def _count(draft: Any, item_id: str) -> None:
    draft["n"] = draft.get("n", 0) + 1
    draft.messages.append(message(item_id))


def _try_commit(thread: Any, who: str, ready: threading.Barrier) -> bool:
    thread.state["who"] = who
    ready.wait()
    try:
        thread.commit()
    except ConflictError:
        return False
    return True


def _all_at_once(work: Callable[[int, threading.Barrier], bool], count: int) -> list[bool]:
    """Run ``work(0, ready)`` … at the same time; each may wait for the others at ``ready``."""
    ready = threading.Barrier(count, timeout=60)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            results[number] = work(number, ready)
        except BaseException as error:
            ready.abort()
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


# Commit keys: the same key again returns the first version, whatever happened to the first answer.


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
