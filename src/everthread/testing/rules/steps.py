"""Steps: recorded exactly once, whatever is retried around them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from everthread.errors import (
    FencedError,
    InvalidStateError,
    InvalidValueError,
    MergeConflictError,
    UsageError,
)
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


def _enter(thread: Thread, key: Any, attempt: int = 1, slot: int | None = None, **options: Any) -> Step:
    return thread.step(key, attempt, slot, **options).__enter__()


def _enter_on(thread: Thread, base: Any) -> Step:
    return thread.step("k", base=base).__enter__()


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

    def test_a_rewind_fences_the_steps_under_way(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        first, second = talk(thread, 2)
        zombie = _enter(store.thread("a"), "zombie")
        zombie.state["zombie"] = True
        _work(zombie, "zombie", "zombie")
        recorded = _enter(store.thread("a"), "again")
        thread.rewind(first)
        with thread.step("again") as step:
            _work(step, "newer", "newer")
        was = contents(thread)
        for late in (zombie, recorded):
            with raises(FencedError):
                _leave(late)
            assert not late.thread.dirty
            assert late.version is None
        assert contents(store.thread("a")) == was
        assert ids(store.thread("a").messages) == ["m0", "newer"]
        assert store.thread("a").step_result("again") == "newer"
        assert not thread.contains(second)

    def test_a_rewind_fences_a_step_that_has_seen_others_write(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        start = talk(thread, 1)[0]
        talk(thread, 6, "left")
        zombie = _enter(store.thread("a"), "zombie")
        _work(zombie, 1, "zombie")
        talk(thread, 2, "behind")
        thread.rewind(start)
        talk(thread, 7, "newer")
        with raises(FencedError):
            _leave(zombie)
        assert ids(store.thread("a").messages) == ["m0", *(f"newer{n}" for n in range(7))]

    def test_a_rewind_to_what_a_step_was_entered_on_lets_it_go_on(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        stood = talk(thread, 2)[-1]
        for number, target in enumerate(("itself", "undone")):
            step = _enter(store.thread("a"), f"k{number}")
            _work(step, number, f"step {number}")
            talk(thread, 2, f"{target} ")
            left = thread.head
            thread.rewind(stood)
            if target == "undone":
                assert left is not None
                thread.rewind(left)
            _leave(step)
            thread.refresh()
            assert ids(thread.messages)[-1] == f"step {number}"
            stood = thread.head  # type: ignore[assignment]

    def test_a_step_before_the_first_version_is_fenced_by_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        step = _enter(store.thread("a"), "k")
        _work(step, 1, "step")
        thread = store.thread("a")
        first = talk(thread, 2)[0]
        thread.rewind(first)
        _leave(step)
        assert ids(store.thread("a").messages) == ["m0", "step"]

    def test_a_step_is_entered_on_the_version_that_its_caller_believes_in(
        self, open_store: OpenStore
    ) -> None:
        store = open_store()
        thread = store.thread("a")
        first, second = talk(thread, 2)
        for base in (first, second.id, second.seq):
            with store.thread("a").step(("on", str(base)), base=base) as step:
                _work(step, 1, f"on {base}")
        thread.refresh()
        thread.rewind(first)
        was = contents(thread)
        for base in (second, second.id, 99):
            with raises(FencedError):
                _enter_on(store.thread("a"), base)
        with raises(UsageError):
            _enter_on(store.thread("a"), 1.5)
        with store.thread("a").step("k", base=first) as step:
            assert not step.done
            step.leave()
        assert contents(store.thread("a")) == was

    def test_parallel_steps_settle_what_they_both_set(self, open_store: OpenStore) -> None:
        store = open_store()

        def both(conflict: Any) -> Any:
            return sorted([conflict.ours, conflict.theirs])

        choices: list[tuple[Any, Any]] = [("ours", "early"), ("theirs", "late"), (both, ["early", "late"])]
        for number, (choice, expected) in enumerate(choices):
            name = f"{number}"
            talk(store.thread(name), 1)
            early = _enter(store.thread(name), "tools", slot=0, resolve=choice)
            late = _enter(store.thread(name), "tools", slot=1, resolve=choice)
            for step, what in ((early, "early"), (late, "late")):
                step.state["last"] = what
                step.state[what] = True
                _work(step, what, what)
            _leave(late)
            _leave(early)
            thread = store.thread(name)
            assert thread.state.plain() == {"count": 0, "last": expected, "late": True, "early": True}
            assert ids(thread.messages) == ["m0", "early", "late"]
        with raises(InvalidValueError):
            store.thread("a").step("k", resolve="mine")

    def test_what_a_resolver_raises_leaves_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)

        def refuse(conflict: Any) -> Any:
            raise LookupError(conflict.where)

        step = _enter(store.thread("a"), "k", resolve=refuse)
        step.state["count"] = "mine"
        _work(step, 1, "step")
        talk(store.thread("a"), 2, "more")
        was = contents(store.thread("a"))
        with raises(LookupError):
            _leave(step)
        assert not step.thread.dirty
        assert contents(store.thread("a")) == was

    def test_first_increments_in_parallel_steps_both_count(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)
        steps = [_enter(store.thread("a"), "tools", slot=slot) for slot in range(3)]
        for step in steps:
            step.state.increment("calls")
            step.state.setdefault("cost", {}).increment("cents", 5)
        for step in steps:
            _leave(step)
        state = store.thread("a").state.plain()
        assert (state["calls"], state["cost"]) == (3, {"cents": 15})

    # ── what is recorded ─────────────────────────────────────────────────────────────────────

    def test_versions_of_steps_say_whose_they_are(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.step(("turn", 1), slot=2, label="asked", metadata={"run": "r1"}) as step:
            assert step.version is None
            assert step.thread.name == "a"
        made = step.version
        assert made is not None
        assert made == thread.head
        with raises(LookupError), thread.step("plain", attempt=2):
            raise LookupError
        thread.state["x"] = 1
        commit(thread, key="commit key")
        talk(thread, 6)
        read = {version.seq: version for version in store.thread("a").history(limit=None)}
        assert read[1] == made
        assert (made.step, made.slot, made.label, made.metadata) == (("turn", 1), 2, "asked", {"run": "r1"})
        assert (made.key, made.kind) == (None, "commit")
        assert (read[2].step, read[2].slot, read[2].kind) == ("plain", None, "fence")
        assert (read[3].step, read[3].slot, read[3].key) == (None, None, "commit key")
        with store.thread("a").step(("turn", 1), slot=2) as again:
            assert again.version == made
        assert [info.name for info in store.threads(metadata={"run": "r1"})] == ["a"]
        wrong: Any
        for wrong in ("", 1, "\0"):
            with raises(ValueError):
                thread.step("k", label=wrong)
        for wrong in (1, "text", ["list"]):
            with raises(InvalidValueError):
                thread.step("k", metadata=wrong)

    def test_looking_at_steps_writes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        missing = object()
        assert list(thread.steps()) == []
        assert thread.step_result("nothing", default=None) is None
        talk(thread, 1)
        made = []
        for number in range(70):
            with thread.step(("turn", number), slot=number % 2 or None) as step:
                step.result = {"number": number}
            made.append(step.version)
        with thread.step("none", attempt=3):
            pass
        with raises(LookupError), thread.step("failed", attempt=2):
            raise LookupError
        before = seqs(thread)
        looking = store.thread("a")
        found = list(looking.steps())
        assert [(each.key, each.slot, each.attempt, each.result) for each in found[:3]] == [
            ("none", None, 3, None),
            (("turn", 69), 1, 1, {"number": 69}),
            (("turn", 68), None, 1, {"number": 68}),
        ]
        assert [each.version for each in found[1:]] == made[::-1]
        assert [each.key for each in looking.steps(limit=2)] == ["none", ("turn", 69)]
        assert looking.step_result(("turn", 69), slot=1) == {"number": 69}
        assert looking.step_result(("turn", 69), default=missing) is missing
        assert looking.step_result("none", default=missing) is None
        assert looking.step_result("failed", default=missing) is missing
        assert seqs(store.thread("a")) == before
        thread.rewind(1)
        assert list(thread.steps()) == []
        assert thread.step_result("none", default=missing) is missing
        assert looking.step_result("none", default=missing) is None, "a handle stays where it stands"

    def test_a_step_that_is_left_open_records_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 1)
        was, before = contents(thread), seqs(thread)
        with thread.step("k") as step:
            _work(step, 1, "dropped")
            step.state["dropped"] = 1
            step.leave()
            with raises(InvalidStateError):
                step.messages.append(message("after"))
            thread.state["directly"] = 1
        assert step.version is None
        assert not thread.dirty
        assert (contents(store.thread("a")), contents(thread), seqs(thread)) == (was, was, before)
        with raises(InvalidStateError):
            step.leave()
        with thread.step("k") as step:
            assert not step.done

    def test_a_step_reads_the_logs_with_what_it_appended(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        with thread.step("k") as step:
            step.messages.append(message("mine"))
            log = step.log("messages")
            assert ids(log.read()) == ["m0", "m1", "m2", "mine"]
            assert ids(log.read(2)) == ["m2", "mine"]
            assert ids(log.read(-1)) == ["mine"]
            assert ids(log.read(1, 2)) == ["m1"]
            assert ids(log.read(-3, -1)) == ["m1", "m2"]
            assert log.read(9) == []
            assert len(log) == 4
            assert step.log("other").read() == []

    # ── done again ───────────────────────────────────────────────────────────────────────────

    def test_a_step_that_is_done_again_takes_the_place_of_the_first(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 2)
        with thread.step("ask") as step:
            first = step.messages.append({"content": "first"})
            second = step.messages.append({"content": "second"})
            step.log("notes").append("a note")
            step.state["answer"] = "first"
            step.state["once"] = True
            step.state.increment("asked")
            step.result = 1
        talk(thread, 3, "later")
        thread.state.increment("asked", 10)
        thread.state["theirs"] = 1
        commit(thread)
        before = seqs(thread)
        with store.thread("a").step("ask", redo=True) as step:
            assert not step.done
            assert ids(step.messages.read()) == ["m0", "m1", "later0", "later1", "later2"]
            assert ids(step.thread.messages) == ["m0", "m1", "later0", "later1", "later2"]
            assert step.state.plain() == {"count": 2, "asked": 10, "theirs": 1}
            assert step.messages.append({"content": "other"}) == first
            step.state["answer"] = "other"
            step.state.increment("asked")
            step.result = 2
        again = store.thread("a")
        assert seqs(again) == [before[0] + 1, *before], "in one version"
        assert again.messages[2] == {"id": first, "content": "other"}
        assert ids(again.messages) == ["m0", "m1", first, "later0", "later1", "later2"]
        assert again.messages.find(second) is None
        assert again.log("notes")[:] == []
        assert again.state.plain() == {"count": 2, "asked": 11, "theirs": 1, "answer": "other"}
        (recorded,) = again.steps()
        assert (recorded.result, recorded.attempt, recorded.version) == (2, 2, again.head)
        with again.step("ask") as step:
            assert (step.done, step.result, step.version) == (True, 2, again.head)
        again.rewind(before[0])
        assert again.step_result("ask") == 1
        assert [item.get("content") for item in again.messages[2:4]] == ["first", "second"]

    def test_what_others_changed_since_stays_when_a_step_is_done_again(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        with thread.step("ask") as step:
            step.messages.extend([message("m1", "replaced"), message("kept"), message("cut")])
            step.state["phase"] = "asked"
            step.state["count"] = "asked"
        thread.state["phase"] = "theirs"
        thread.messages.truncate_from("cut")
        commit(thread)
        with thread.step("ask", redo=True) as step:
            assert step.state.plain() == {"count": 2, "phase": "theirs"}
            assert thread.messages[:] == [message(f"m{n}", n) for n in range(3)]
            _work(step, 2, "new")
        assert store.thread("a").messages[:] == [*(message(f"m{n}", n) for n in range(3)), message("new", 2)]

    def test_a_step_may_be_done_again_and_again(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        was = contents(thread)
        for number in range(6):
            with store.thread("a").step("ask", redo=number > 0) as step:
                assert contents(step.thread)[0] == {"count": 2, **({"theirs": number} if number else {})}
                assert [item for item in step.thread.messages if item["id"] not in ("t", "u")] == was[1][
                    "messages"
                ]
                step.messages.extend([message("m1", f"replaced {number}"), message(f"new {number}")])
                if number % 2:
                    step.messages.append(message("m2", "odd"))
                step.state[f"only {number}"] = number
                step.state.increment("asked")
                step.result = number
            other = store.thread("a")
            other.state["theirs"] = number + 1
            if number == 2:
                other.messages.append(message("t"))
            other.commit()
        thread.refresh()
        assert thread.state.plain() == {"count": 2, "theirs": 6, "only 5": 5, "asked": 1}
        assert ids(thread.messages) == ["m0", "m1", "m2", "new 5", "t"]
        assert [item["content"] for item in thread.messages[1:3]] == ["replaced 5", "odd"]
        (recorded,) = thread.steps()
        assert (recorded.result, recorded.attempt) == (5, 6)
        with thread.step("ask", redo=True) as step:
            assert thread.messages[:] == [*was[1]["messages"], message("t")]
        assert contents(store.thread("a")) == (
            {"count": 2, "theirs": 6},
            {"messages": [*was[1]["messages"], message("t")]},
        )

    def test_older_attempts_are_fenced_off_by_one_that_is_done_again(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 1)
        zombie = _enter(store.thread("a"), "k")
        _work(zombie, "zombie", "zombie")
        with store.thread("a").step("k", attempt=3) as step:
            _work(step, "three", "k")
        redone = [_enter(store.thread("a"), "k", redo=True) for _ in range(2)]
        for step, result in zip(redone, ("first", "second"), strict=True):
            _work(step, result, "k")
        _leave(redone[0])
        for late in (redone[1], zombie):
            with raises(FencedError):
                _leave(late)
        thread = store.thread("a")
        assert thread.step_result("k") == "first"
        assert thread.messages[1:] == [message("k", "first")]
        assert next(iter(thread.steps())).attempt == 4

    def test_a_step_is_done_again_beside_others(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        for slot in range(3):
            with thread.step("tools", slot=slot) as step:
                _work(step, slot, f"slot {slot}")
                step.state.increment("calls")
        again = _enter(store.thread("a"), "tools", slot=1, redo=True)
        again.state.increment("calls")
        _work(again, "again", "slot 1", "slot 1 more")
        with store.thread("a").step("tools", slot=3) as step:
            _work(step, 3, "slot 3")
            step.state.increment("calls")
        talk(store.thread("a"), 2)
        _leave(again)
        thread = store.thread("a")
        expected = ["slot 0", "slot 1", "slot 1 more", "slot 2", "slot 3", "m0", "m1"]
        assert ids(thread.messages) == expected
        assert thread.state["calls"] == 4
        assert [(each.slot, each.result) for each in thread.steps()] == [
            (3, 3),
            (2, 2),
            (1, "again"),
            (0, 0),
        ]

    def test_what_fails_while_it_is_done_again_leaves_the_first(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        with thread.step("k") as step:
            _work(step, 1, "first")
            step.state["x"] = 1
        was, before = contents(thread), seqs(thread)
        with raises(LookupError), thread.step("k", redo=True) as step:
            _work(step, 2, "second")
            raise LookupError
        with thread.step("k", redo=True) as step:
            step.leave()
        assert not thread.dirty
        assert (contents(thread), contents(store.thread("a")), seqs(thread)) == (was, was, before)
        assert thread.step_result("k") == 1
        with thread.step("not recorded", redo=True) as step:
            _work(step, 3, "third")
        assert store.thread("a").step_result("not recorded") == 3
        fork = thread.fork("b")
        with fork.step("k", redo=True) as step:
            _work(step, 4, "fourth")
        assert ids(store.thread("b").messages) == ["fourth", "third"]
        assert ids(store.thread("a").messages) == ["first", "third"]
        with raises(InvalidValueError):
            _enter(thread, "k", redo=1)
