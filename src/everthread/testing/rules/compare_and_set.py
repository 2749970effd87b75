"""Compare-and-set: a commit succeeds only if its parent is still the newest version of the line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from everthread.errors import ConflictError
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
