"""Logs: append-only, idempotent by id, read in slices, cut by truncation."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from everthread.errors import ConflictError, InvalidValueError, MergeConflictError
from everthread.testing.rules.expectations import OpenStore, commit, contents, ids, message, raises, talk
from everthread.threads.sync.thread import Thread


class LogRules:
    def test_items_get_an_id_if_they_have_none(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        given = thread.messages.append({"id": "mine", "content": 1})
        made = [thread.messages.append({"content": 2}) for _ in range(20)]
        assert given == "mine"
        assert len(set(made)) == 20
        thread.messages.extend([{"content": 3}, {"content": 3}])
        thread.commit()
        read = store.thread("a").messages[:]
        assert ids(read)[:21] == ["mine", *made]
        assert len(set(ids(read))) == 23
        assert read[0] == {"id": "mine", "content": 1}

    def test_slices_are_those_of_a_list(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 57)
        plain = [message(f"m{number}", number) for number in range(57)]
        pending = store.thread("a")
        pending.messages.append(message("pending"))
        for log, expected in (
            (store.thread("a").messages, plain),
            (pending.messages, [*plain, message("pending")]),
            (pending.at(57).messages, plain),
            (pending.at(40).messages, plain[:40]),
        ):
            assert len(log) == len(expected)
            assert list(log) == expected
            assert list(reversed(log)) == expected[::-1]
            for piece in _SLICES:
                assert log[piece] == expected[piece], piece
            for index in (0, 1, 20, 39, -1, -20, -40):
                assert log[index] == expected[index], index
            for index in (len(expected), -len(expected) - 1, 10**6):
                with raises(IndexError):
                    log[index]
        assert store.thread("a").log("other")[:] == []

    def test_a_large_batch_reads_like_a_small_one(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 5)
        batch = [message(f"b{number}", "x" * 600) for number in range(1000)]
        thread.messages.extend(batch)
        thread.commit()
        talk(thread, 7, "after")
        read = store.thread("a")
        assert read.messages[5:1005] == batch
        assert read.messages[400:405] == batch[395:400]
        assert ids(read.messages[-8:]) == ["b999", *(f"after{number}" for number in range(7))]
        read.messages.append(batch[500])
        assert not read.dirty

    def test_a_long_log_holds_each_item_once(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        expected = []
        for number in range(330):
            thread.messages.append(message(str(number), "x" * 1000))
            expected.append(str(number))
            thread.commit()
            if number % 30 == 29:
                assert ids(thread.messages[:]) == ids(store.thread("a").messages) == expected
                assert ids(thread.messages[5:]) == expected[5:]
                assert ids(thread.messages[-40:-10]) == expected[-40:-10]

    def test_items_read_out_are_plain_copies(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        given = {"id": "1", "parts": [{"text": "a"}]}
        thread.messages.append(given)
        given["parts"] = "changed by the caller"
        pending = thread.messages[0]
        pending["parts"][0]["text"] = "changed"
        thread.commit()
        thread.messages[0]["parts"].append("changed")
        assert type(thread.messages[0]) is dict
        for log in (thread.messages, store.thread("a").messages):
            assert log[:] == [{"id": "1", "parts": [{"text": "a"}]}]
        assert not thread.dirty

    def test_logs_are_told_apart_by_name(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        for number in range(30):
            thread.log(f"log {number % 3}").append({"id": str(number)})
            thread.commit()
        read = store.thread("a")
        assert read.logs == ["log 0", "log 1", "log 2"]
        for number in range(3):
            assert ids(read.log(f"log {number}")) == [str(n) for n in range(number, 30, 3)]
        assert thread.log("messages")[:] == thread.messages[:] == []

    # ── the same id again ────────────────────────────────────────────────────────────────────

    def test_the_same_id_with_the_same_content_is_no_op(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.messages.append(message("p"))
        thread.messages.append(message("p"))
        assert len(thread.messages) == 1, "before the commit"
        versions = talk(thread, 40)
        for handle in (thread, store.thread("a")):
            for number in (39, 38, 20, 3, 0):
                handle.messages.append(message(f"m{number}", number))
            handle.messages.extend([message(f"m{number}", number) for number in range(40)])
            assert not handle.dirty, "nothing to commit"
            assert handle.commit() == versions[-1]
        assert len(store.thread("a").messages) == 41

    def test_the_same_id_with_different_content_is_an_error(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 40)
        thread.messages.append(message("p"))
        for changed in (
            message("p", "other"),
            message("m0", 1),
            message("m1", True),
            message("m1", 1.0),
            message("m39", None),
            {"id": "m20"},
            {**message("m20", 20), "more": 1},
        ):
            with raises(InvalidValueError):
                thread.messages.append(changed)
        assert ids(thread.messages)[-1] == "p"
        assert len(thread.messages) == 41

    def test_an_id_may_be_any_value(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        for item_id in _IDS:
            thread.messages.append({"id": item_id, "content": repr(item_id)})
        thread.commit()
        talk(thread, 6)
        for handle in (thread, store.thread("a")):
            for index, item_id in enumerate(_IDS):
                assert handle.messages.find(item_id) == index, item_id
                handle.messages.append({"id": item_id, "content": repr(item_id)})
                with raises(InvalidValueError):
                    handle.messages.append({"id": item_id, "content": "other"})
            assert not handle.dirty
        assert thread.messages.truncate_from(_IDS[4]) == len(_IDS) - 4 + 6

    def test_an_item_of_the_past_is_found_by_its_id(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 9)
        with thread.step("k") as step:
            step.messages.append(message("m3", "replaced"))
        thread.messages.truncate_from("m5")
        thread.commit()
        fork = thread.fork("b", at=versions[6])
        talk(fork, 2, "fork")
        fork.log("other").append({"id": "o"})
        fork.commit()
        for handle in (thread, store.thread("a"), fork):
            past = handle.at(versions[4])
            assert [past.messages.find(f"m{n}") for n in range(7)] == [0, 1, 2, 3, 4, None, None]
            assert past.messages[past.messages.find("m3")]["content"] == 3  # type: ignore[index]
            assert past.log("other").find("o") is None
            assert past.messages.find("never") is None
        assert thread.at(10).messages.find("m5") == 5
        assert thread.at(11).messages.find("m5") is None
        assert fork.at(9).messages.find("fork1") == 8

    def test_a_refused_batch_adds_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 3)
        before = contents(thread)
        for bad in (message("m1", "other content"), {"id": "x", "content": object()}):
            with raises(InvalidValueError):
                thread.messages.extend([message("new"), bad, message("newer")])
            assert contents(thread) == before
            assert not thread.dirty

    def test_a_batch_overlapping_the_log_adds_what_is_new(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        batch = [message(str(number)) for number in range(10)]
        thread.messages.extend(batch[:6])
        thread.commit()
        thread.messages.extend(batch)
        thread.commit()
        again = store.thread("a")
        again.messages.extend([*batch, *batch])
        assert not again.dirty
        assert again.messages[:] == batch

    def test_an_id_truncated_away_appends_anew(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 20)
        thread.messages.truncate_from("m5")
        thread.messages.append(message("m7", "new content"))
        thread.commit()
        thread.messages.append(message("m5", 5))
        thread.commit()
        read = store.thread("a")
        assert ids(read.messages) == ["m0", "m1", "m2", "m3", "m4", "m7", "m5"]
        assert read.messages[5] == message("m7", "new content")
        with raises(InvalidValueError):
            read.messages.append(message("m7", 7))
        read.messages.append(message("m7", "new content"))
        assert not read.dirty

    def test_ids_count_at_the_head_not_in_the_past(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 10)
        thread.rewind(versions[3])
        thread.messages.append(message("m7", "new content"))
        thread.commit()
        assert ids(store.thread("a").messages) == ["m0", "m1", "m2", "m3", "m7"]
        fork = thread.fork("b", at=versions[2])
        fork.messages.append(message("m3", "other content"))
        fork.messages.append(message("m2", 2))
        fork.commit()
        assert ids(store.thread("b").messages) == ["m0", "m1", "m2", "m3"]

    def test_an_id_appends_anew_after_delete_and_re_create(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        talk(thread, 10)
        thread.delete()
        again = store.thread("a")
        again.messages.append(message("m3", "new content"))
        again.commit()
        assert store.thread("a").messages[:] == [message("m3", "new content")]

    def test_ids_are_those_of_one_log_of_one_thread(self, open_store: OpenStore) -> None:
        store = open_store()
        for name in ("a", "b"):
            thread = store.thread(name)
            thread.messages.append(message("1", name))
            thread.log("other").append(message("1", f"other {name}"))
            thread.commit()
        for name in ("a", "b"):
            assert store.thread(name).messages[:] == [message("1", name)]
            assert store.thread(name).log("other")[:] == [message("1", f"other {name}")]

    def test_no_system_prompt_is_lost_when_the_first_append_is_retried(self, open_store: OpenStore) -> None:
        store = open_store()
        prompt = {"id": "system", "role": "system", "content": "Be brief."}

        def first_append(thread: Thread) -> None:
            if not len(thread.messages):
                thread.messages.append(prompt)
            thread.messages.append(message("q"))

        crashed = store.thread("a")
        first_append(crashed)
        done, retried = store.thread("a"), store.thread("a")
        first_append(done)
        first_append(retried)
        done.commit()
        with raises(ConflictError):
            retried.commit()
        retried.rebase()
        assert not retried.dirty
        assert retried.commit() == done.head
        late = store.thread("a")
        late.messages.extend([prompt, message("q")])
        late.commit()
        assert store.thread("a").messages[:] == [prompt, message("q")]

    # ── truncation ───────────────────────────────────────────────────────────────────────────

    def test_truncate_from_removes_that_item_and_all_after_it(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 30)
        thread.messages.append(message("pending"))
        assert thread.messages.truncate_from("m20") == 11
        assert ids(thread.messages) == [f"m{number}" for number in range(20)]
        thread.messages.append(message("after"))
        thread.commit()
        for handle in (thread, store.thread("a")):
            assert ids(handle.messages[-2:]) == ["m19", "after"]
            assert len(handle.messages) == 21
            assert len(handle.at(versions[-1]).messages) == 30, "the past stays"
            assert handle.messages.find("m25") is None
            assert handle.messages.find("after") == 20
        assert thread.messages.truncate_from("m0") == 21
        thread.commit()
        assert store.thread("a").messages[:] == []

    def test_truncating_from_an_absent_id_removes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        version = talk(thread, 10)[-1]
        for absent in ("nobody", "", 5, None):
            assert thread.messages.truncate_from(absent) == 0
        assert thread.log("empty").truncate_from("m1") == 0
        assert not thread.dirty
        assert thread.commit() == version

    # ── two writers ──────────────────────────────────────────────────────────────────────────

    def test_concurrent_appends_conflict_and_rebase_as_base_theirs_ours(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 5)
        ours, theirs = store.thread("a"), store.thread("a")
        ours.messages.extend([message("both"), message("ours")])
        theirs.messages.extend([message("theirs"), message("both")])
        theirs.commit()
        with raises(ConflictError):
            ours.commit()
        ours.rebase()
        ours.commit()
        assert ids(store.thread("a").messages) == ["m0", "m1", "m2", "m3", "m4", "theirs", "both", "ours"]

    def test_the_same_id_with_different_content_is_a_conflict_of_a_rebase(
        self, open_store: OpenStore
    ) -> None:
        store = open_store()
        talk(store.thread("a"), 2)
        ours, theirs = store.thread("a"), store.thread("a")
        ours.messages.append(message("1", "ours"))
        theirs.messages.append(message("1", "theirs"))
        theirs.commit()
        with raises(MergeConflictError) as caught:
            ours.rebase()
        assert [conflict.path for conflict in caught[0].conflicts] == [("messages", "1")]
        assert ours.messages[-1] == message("1", "ours")

    def test_truncate_against_append_is_a_conflict(self, open_store: OpenStore) -> None:
        store = open_store()
        talk(store.thread("a"), 6)
        for refill in (0, 1, 3, 9):
            cut, added = store.thread("a"), store.thread("a")
            last = ids(cut.messages)[-2]
            added.messages.append(message(f"ours {refill}"))
            cut.messages.truncate_from(last)
            cut.messages.extend([message(f"theirs {refill}-{number}") for number in range(refill)])
            cut.commit()
            with raises(MergeConflictError) as caught:
                added.rebase()
            assert [conflict.path for conflict in caught[0].conflicts] == [("messages",)], refill
            assert ids(added.messages)[-1] == f"ours {refill}", "nothing is lost"

            grown, late = store.thread("a"), store.thread("a")
            late.messages.truncate_from(ids(late.messages)[-1])
            grown.messages.append(message(f"grown {refill}"))
            commit(grown)
            with raises(MergeConflictError):
                late.rebase()
            talk(store.thread("a"), 3, f"more {refill} ")


_IDS: list[Any] = [
    "1",
    1,
    True,
    1.0,
    b"1",
    0,
    -1,
    2**64 - 1,
    2**80,
    (1, "a"),
    UUID(int=1),
    Decimal("1.0"),
    datetime(2026, 1, 1, tzinfo=UTC),
    "é",
    "x" * 500,
]
_SLICES = [
    slice(None),
    slice(-20, None),
    slice(None, 20),
    slice(17, 23),
    slice(30, 31),
    slice(25, 25),
    slice(25, 10),
    slice(-30, -10),
    slice(None, None, 7),
    slice(None, None, -1),
    slice(50, 3, -5),
    slice(-(10**9), 10**9),
]
