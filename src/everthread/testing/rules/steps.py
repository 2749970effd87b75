"""Steps: recorded exactly once, whatever is retried around them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from everthread.errors import FencedError, InvalidStateError, InvalidValueError, MergeConflictError
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
from everthread.threads.sync.step import Step
from everthread.threads.sync.thread import Thread


def _work(step: Step, result: Any, *items: str) -> None:
    """Do a step's work, unless it is done."""
    if not step.done:
        step.messages.extend([message(item, result) for item in items])
        step.result = result


def _enter(thread: Thread, key: Any, attempt: int = 1, slot: int | None = None) -> Step:
    return thread.step(key, attempt, slot).__enter__()


def _leave(step: Step) -> None:
    step.__exit__(None, None, None)


class StepRules:
    def test_a_recorded_step_is_done(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        calls = []
        for _ in range(3):
            for handle in (thread, store.thread("a")):
                with handle.step((1, "llm")) as step:
                    if not step.done:
                        calls.append(1)
                        _work(step, {"tokens": [1, 2]}, "reply")
                        step.state["phase"] = "asked"
                assert step.result == {"tokens": [1, 2]}
        assert calls == [1]
        assert contents(store.thread("a")) == (
            {"phase": "asked"},
            {"messages": [message("reply", {"tokens": [1, 2]})]},
        )
        assert seqs(thread) == [1], "one transaction, and none when it is done"

    def test_a_result_is_found_after_many_commits_and_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        for number in range(30):
            with thread.step(("turn", number)) as step:
                _work(step, number, f"s{number}")
            talk(thread, 2, f"{number}-")
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            handle = each.thread("a")
            for number in range(30):
                with handle.step(("turn", number)) as step:
                    assert (step.done, step.result) == (True, number)
        assert len(seqs(thread)) == 90

    def test_a_result_of_nothing_is_a_result(self, open_store: OpenStore) -> None:
        store = open_store()
        with store.thread("a").step("k") as step:
            assert not step.done
        with store.thread("a").step("k") as step:
            assert step.done
            assert step.result is None

    def test_an_exception_discards_the_step(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 2)
        before = contents(thread)
        with raises(LookupError), thread.step("k") as step:
            _work(step, 1, "half")
            step.state["half"] = 1
            raise LookupError
        assert not thread.dirty
        assert contents(thread) == contents(store.thread("a")) == before
        with thread.step("k") as step:
            assert not step.done

    def test_a_done_step_changes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.step("k") as step:
            step.result = 1
        with thread.step("k") as step:
            with raises(InvalidStateError):
                step.messages.append(message("late"))
            with raises(InvalidStateError):
                step.state["late"] = 1
        with raises(InvalidStateError), thread.step("k"):
            thread.state["late"] = 1
        with raises(InvalidStateError):
            step.messages.append(message("outside"))
        assert contents(store.thread("a"))[0] == {}
        assert not thread.dirty

    def test_keys_that_look_alike_are_apart(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        keys: list[tuple[Any, int | None]] = [
            ("k", None),
            ("k", 0),
            ("k", 1),
            ("k#0", None),
            ("k#1", None),
            (("k",), None),
            (("k", 0), None),
            (("k", "0"), None),
            (("k0",), None),
            ('["k"]', None),
            ("\x1f[1, 2]", None),
            ((1, 2), None),
            ((12,), None),
        ]
        for key, slot in keys:
            with thread.step(key, slot=slot) as step:
                assert not step.done, (key, slot)
                step.messages.append({"content": "x"})
                step.result = [repr(key), slot]
        for key, slot in keys:
            with store.thread("a").step(key, slot=slot) as step:
                assert step.result == [repr(key), slot]
        assert len(set(ids(thread.messages))) == len(keys)
        thread.state["x"] = 1
        assert commit(thread, key="k").seq == len(keys) + 1, "a commit key is another thing"

    def test_what_is_no_step_is_refused(self, open_store: OpenStore) -> None:
        thread = open_store().thread("a")
        wrong: Any
        for wrong in ("", (), [], None, 1, 1.5, (True,), (1.5,), (None,), {"k": 1}):
            with raises(InvalidValueError if not isinstance(wrong, str) else ValueError):
                thread.step(wrong)
        for wrong in (0, -1, 1.0, True, "1", None):
            with raises(InvalidValueError):
                thread.step("k", wrong)
        for wrong in (-1, 1.0, True, "1"):
            with raises(InvalidValueError):
                thread.step("k", slot=wrong)

    def test_message_ids_are_derived_from_thread_key_and_slot(self, open_store: OpenStore) -> None:
        store = open_store()

        def derived(name: str, key: Any, slot: Any, attempt: int = 1) -> str:
            return store.thread(name).step(key, attempt).message_id(slot)

        first = derived("a", ("t", 1), 0)
        assert first == derived("a", ("t", 1), 0) == derived("a", ("t", 1), 0, attempt=7)
        others = [derived("b", ("t", 1), 0), derived("a", ("t", 2), 0), derived("a", ("t", 1), 1)]
        assert len({first, *others}) == 4
        with store.thread("a").step(("t", 1)) as step:
            assert step.messages.append({"content": "given no id"}) == first
            assert step.messages.append({"content": "nor this"}) == others[2]
        assert ids(store.thread("a").messages) == [first, others[2]]

    def test_a_step_appends_or_replaces_by_id(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 12)
        with thread.step("k") as step:
            step.messages.extend([message("m3", "replaced"), message("new"), message("m4", 4)])
        expected = [message(f"m{n}", n) for n in range(12)]
        expected[3] = message("m3", "replaced")
        assert store.thread("a").messages[:] == [*expected, message("new")]
        assert store.thread("a").at(12).messages[3] == message("m3", 3)

    # ── attempts ─────────────────────────────────────────────────────────────────────────────

    def test_an_attempt_below_the_highest_entered_is_fenced_off(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 2)
        with raises(LookupError), thread.step("k", attempt=3):
            raise LookupError
        talk(thread, 9, "later")
        for lower in (1, 2):
            with raises(FencedError) as caught:
                _enter(store.thread("a"), "k", lower)
            assert (caught[0].attempt, caught[0].newest) == (lower, 3)
        for same_or_higher in (3, 4):
            with raises(LookupError), store.thread("a").step("k", attempt=same_or_higher):
                raise LookupError
        with raises(FencedError):
            _enter(store.thread("a"), "k", 3)
        with store.thread("a").step("k", attempt=4) as step:
            step.result = 4
        assert "late" not in store.thread("a").state

    def test_a_zombie_that_entered_earlier_is_fenced_off(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 2)
        for finished in (False, True):
            key = f"finished {finished}"
            zombies = [_enter(store.thread("a"), key, attempt) for attempt in (1, 2)]
            newer = _enter(store.thread("a"), key, 3)
            if finished:
                newer.state["phase"] = "newer"
                _work(newer, "newer", f"{key} newer")
                _leave(newer)
            for zombie in zombies:
                zombie.state["phase"] = "zombie"
                _work(zombie, "zombie", f"{key} zombie")
                with raises(FencedError):
                    _leave(zombie)
                assert not zombie.thread.dirty
        assert ids(store.thread("a").messages) == ["m0", "m1", "finished True newer"]
        assert store.thread("a").state["phase"] == "newer"

    def test_a_recorded_result_is_there_for_every_attempt(self, open_store: OpenStore) -> None:
        store = open_store()
        with store.thread("a").step("k", attempt=2) as step:
            step.result = "done"
        for attempt in (1, 2, 3):
            with store.thread("a").step("k", attempt=attempt) as step:
                assert (step.done, step.result) == (True, "done")

    def test_the_first_committed_result_wins(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 2)
        first, second, third = (_enter(store.thread("a"), "k") for _ in range(3))
        for step, result in ((first, "first"), (second, "second"), (third, "third")):
            step.state["answer"] = result
            _work(step, result, "reply")
        _leave(second)
        _leave(first)
        _leave(third)
        for step in (first, second, third):
            assert (step.done or step is second, step.result) == (True, "second")
            assert contents(step.thread) == contents(store.thread("a"))
        assert store.thread("a").state["answer"] == "second"
        assert store.thread("a").messages[-1] == message("reply", "second")
        assert len(seqs(store.thread("a"))) == 3

    def test_steps_go_on_over_foreign_commits(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 2)
        step = _enter(store.thread("a"), "k")
        step.state["mine"] = 1
        _work(step, 1, "reply")
        talk(store.thread("a"), 9, "meanwhile")
        _leave(step)
        thread = store.thread("a")
        assert thread.state.plain() == {"count": 8, "mine": 1}
        assert ids(thread.messages)[-2:] == ["meanwhile8", "reply"]
        around = store.thread("a")
        step = _enter(around, "around")
        around.messages.append(message("around the step"))
        _work(step, 1, "in the step")
        talk(store.thread("a"), 1, "again")
        _leave(step)
        assert ids(store.thread("a").messages)[-3:] == ["again0", "around the step", "in the step"]
        collided = _enter(store.thread("a"), "other")
        collided.state["count"] = "mine"
        talk(store.thread("a"), 2, "more")
        with raises(MergeConflictError):
            _leave(collided)
        assert not collided.thread.dirty
        assert store.thread("a").state["count"] == 1

    # ── parallel steps ───────────────────────────────────────────────────────────────────────

    def test_parallel_slots_land_in_call_order(self, open_store: OpenStore) -> None:
        store = open_store()
        for order in permutations(range(4)):
            name = f"{order}"
            talk(store.thread(name), 1)
            steps = [_enter(store.thread(name), "tools", slot=slot) for slot in range(4)]
            for slot in order:
                _work(steps[slot], slot, f"call {slot}", f"result {slot}")
                _leave(steps[slot])
            expected = [f"{what} {slot}" for slot in range(4) for what in ("call", "result")]
            assert ids(store.thread(name).messages) == ["m0", *expected], order

    def test_parallel_slots_keep_their_place_among_other_messages(self, open_store: OpenStore) -> None:
        store = open_store()
        for slot, after in ((2, "x"), (0, "y"), (1, "z")):
            with store.thread("a").step("tools", slot=slot) as step:
                _work(step, slot, f"slot {slot}")
            thread = store.thread("a")
            thread.messages.append(message(after))
            thread.commit()
        assert ids(store.thread("a").messages) == ["slot 0", "slot 1", "slot 2", "x", "y", "z"]
        with store.thread("a").step("other tools", slot=0) as step:
            _work(step, 0, "other")
        assert ids(store.thread("a").messages)[-1] == "other", "slots of another key don't count"

    def test_insertions_and_replacements_stay_in_place_for_good(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        expected: list[Any] = []
        seen = []
        for turn in range(12):
            late, early = message(f"{turn} late"), message(f"{turn} early")
            for slot, item in ((1, late), (0, early)):
                with thread.step(("tools", turn), slot=slot) as step:
                    step.messages.append(item)
            replaced = message(f"{turn} late", "replaced")
            with thread.step(("again", turn)) as step:
                step.messages.append(replaced)
            if turn % 3 == 2:
                with thread.step(("early again", turn)) as step:
                    step.messages.extend([message(f"{turn} early", "replaced"), message(f"{turn} new")])
                early = message(f"{turn} early", "replaced")
            expected += [early, replaced, *([message(f"{turn} new")] if turn % 3 == 2 else [])]
            seen.append((thread.head, list(expected)))
            assert thread.messages[:] == store.thread("a").messages[:] == expected
        for version, was in seen:
            assert version is not None
            assert store.thread("a").at(version).messages[:] == was

    def test_a_retried_sibling_never_removes_what_another_committed(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)
        slow = _enter(store.thread("a"), "tools", slot=0)
        with store.thread("a").step("tools", slot=1) as step:
            _work(step, "one", "slot 1")
        with raises(LookupError), store.thread("a").step("tools", slot=2) as step:
            _work(step, "two", "slot 2")
            raise LookupError
        with store.thread("a").step("tools", attempt=2, slot=2) as step:
            _work(step, "two again", "slot 2")
        retried = _enter(store.thread("a"), "tools", 2, 0)
        _work(slow, "slow", "slot 0")
        with raises(FencedError):
            _leave(slow)
        _work(retried, "retried", "slot 0")
        _leave(retried)
        thread = store.thread("a")
        assert ids(thread.messages) == ["m0", "slot 0", "slot 1", "slot 2"]
        assert [item["content"] for item in thread.messages[1:]] == ["retried", "one", "two again"]

    # ── the past ─────────────────────────────────────────────────────────────────────────────

    def test_a_rewind_moves_results_and_fences(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        start = talk(thread, 2)[-1]
        with raises(LookupError), thread.step("fenced", attempt=5):
            raise LookupError
        fenced = thread.head
        with thread.step("k", attempt=2) as step:
            _work(step, "before", "reply")
        done = thread.head
        thread.rewind(start)
        with raises(LookupError), thread.step("fenced", attempt=1) as step:
            assert not step.done
            raise LookupError
        with thread.step("k", attempt=1) as step:
            assert not step.done
            _work(step, "after", "reply")
        assert thread.messages[-1] == message("reply", "after")
        assert done is not None
        assert fenced is not None
        thread.rewind(done)
        with thread.step("k") as step:
            assert step.result == "before"
        thread.rewind(fenced)
        with raises(FencedError):
            _enter(thread, "fenced", 4)

    def test_a_fork_has_the_results_of_its_past(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.step("early") as step:
            _work(step, "early", "e")
        point = thread.head
        talk(thread, 9)
        with thread.step("late", attempt=2) as step:
            _work(step, "late", "l")
        fork = thread.fork("b", at=point)
        with fork.step("early") as step:
            assert (step.done, step.result) == (True, "early")
        with fork.step("late") as step:
            assert not step.done
            _work(step, "fork's", "l")
        with thread.step("late") as step:
            assert step.result == "late"
        assert ids(store.thread("b").messages) == ["e", "l"]
        with store.thread("a").fork("c").step("late") as step:
            assert step.result == "late"
