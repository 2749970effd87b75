"""Handles: independent, pinned at their first read, moved only by what their owner does."""

from __future__ import annotations

from everthread.errors import InvalidStateError, StoreClosedError, ThreadNotFoundError
from everthread.testing.rules.expecting import OpenStore, commit, contents, ids, message, needs, raises, talk


class HandleRules:
    def test_handles_are_independent(self, open_store: OpenStore) -> None:
        store = open_store()
        one, two = store.thread("a"), store.thread("a")
        one.state["x"] = 1
        one.messages.append(message("1"))
        assert "x" not in two.state
        assert len(two.messages) == 0
        two.state["y"] = 2
        assert one.state.plain() == {"x": 1}

    def test_a_handle_is_pinned_at_its_first_read(self, open_store: OpenStore) -> None:
        store = open_store()
        reader, writer = store.thread("a"), store.thread("a")
        versions = talk(writer, 12)
        assert reader.head == versions[-1], "making a handle reads nothing yet"
        before = contents(reader)
        talk(writer, 30, "later")
        writer.rewind(versions[3])
        assert contents(reader) == before
        assert reader.head == versions[-1]
        assert ids(reader.messages[-3:]) == ["m9", "m10", "m11"]
        assert next(reader.history()) == versions[-1]
        assert contents(reader.at(versions[5]))[0] == {"count": 5}

    def test_a_handle_on_nothing_is_pinned_too(self, open_store: OpenStore) -> None:
        store = open_store()
        reader, writer = store.thread("a"), store.thread("a")
        assert reader.head is None
        talk(writer, 2)
        assert reader.head is None
        assert reader.state.plain() == {}
        reader.refresh()
        assert reader.head == writer.head

    def test_a_handle_moves_by_its_own_commit_rewind_rebase_and_refresh(self, open_store: OpenStore) -> None:
        store = open_store()
        thread, other = store.thread("a"), store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        assert thread.head == first
        other.state["y"] = 1
        second = commit(other)
        assert thread.head == first
        thread.refresh()
        assert thread.head == second
        back = thread.rewind(first)
        assert thread.head == back
        other.refresh()
        other.state["z"] = 1
        newest = commit(other)
        thread.state["w"] = 1
        thread.rebase()
        assert thread.head == newest
        assert thread.state.plain() == {"x": 1, "z": 1, "w": 1}

    def test_a_thread_exists_from_its_first_commit(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        assert list(store.threads()) == []
        assert thread.head is None
        assert list(thread.history()) == []
        thread.discard()
        for verb in (
            lambda: thread.at(1),
            lambda: thread.fork("b"),
            lambda: thread.rewind(1),
            lambda: thread.merge(store.thread("b")),
            thread.delete,
        ):
            with raises(ThreadNotFoundError):
                verb()
        assert thread.commit() is None, "nothing to commit makes no thread"
        assert list(store.threads()) == []
        thread.state["x"] = 1
        thread.commit()
        assert [found.name for found in store.threads()] == ["a"]

    def test_a_commit_with_no_change_label_or_metadata_returns_the_head(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        assert not thread.dirty
        assert thread.commit() == first
        thread.state["x"] = 1
        assert thread.commit() == first, "the same value again is no change"
        assert commit(thread, label="done").seq == 2
        assert commit(thread, metadata={"run": "r1"}).seq == 3
        assert contents(store.thread("a")) == ({"x": 1}, {})

    def test_fork_rewind_merge_and_refresh_refuse_uncommitted_changes(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        first = commit(thread)
        other = thread.fork("b")
        other.state["y"] = 1
        other.commit()
        for change in (lambda: thread.state.update(x=2), lambda: thread.messages.append(message("1"))):
            change()
            for verb in (
                lambda: thread.fork("c"),
                lambda: thread.rewind(first),
                lambda: thread.merge(other),
                lambda: other.merge(thread),
                thread.refresh,
                lambda: thread.update(lambda draft: None),
                lambda: thread.step("s").__enter__(),
            ):
                with raises(InvalidStateError):
                    verb()
            assert thread.dirty, "a refusal loses nothing"
            thread.discard()
        assert [found.name for found in store.threads()] == ["a", "b"]
        assert thread.head == first

    def test_discard_forgets_what_is_uncommitted(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 3)
        before = contents(thread)
        thread.state["x"] = 1
        thread.state["count"] = 99
        thread.messages.append(message("new"))
        thread.messages.truncate_from("m1")
        thread.discard()
        assert not thread.dirty
        assert contents(thread) == before
        assert thread.head == versions[-1]

    def test_document_and_logs_are_one_version(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        thread.messages.append(message("1"))
        thread.log("events").append({"id": "e", "what": "started"})
        first = commit(thread)
        assert (first.seq, first.parent) == (1, None)
        read = store.thread("a")
        assert contents(read) == (
            {"x": 1},
            {"messages": [message("1")], "events": [{"id": "e", "what": "started"}]},
        )
        assert read.head == first

    def test_what_is_committed_is_there_after_reopening(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "durable")
        thread = store.thread("a")
        versions = talk(thread, 25)
        thread.fork("b", at=versions[7])
        thread.rewind(versions[11])
        before = contents(thread)
        store.close()
        again = open_store()
        assert contents(again.thread("a")) == before
        assert again.thread("a").head == thread.head
        assert contents(again.thread("b")) == contents(again.thread("a").at(versions[7]))
        assert list(again.thread("a").history(limit=None))[1:] == versions[::-1]

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        versions = talk(thread, 10)
        fork = thread.fork("b")
        fork.state["x"] = 1
        fork.commit()
        store.close()
        store.close()
        fork.state["x"] = 2
        for verb in (
            lambda: store.thread("a"),
            lambda: list(store.threads()),
            store.verify,
            fork.commit,
            thread.refresh,
            lambda: thread.rewind(versions[0]),
            lambda: fork.at(versions[1]).state,
            lambda: fork.messages[:3],
        ):
            with raises(StoreClosedError):
                verb()
