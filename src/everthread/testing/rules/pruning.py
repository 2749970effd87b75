"""Pruning takes the content of old versions, and nothing that anybody stands on."""

from __future__ import annotations

from typing import Any

from everthread.errors import InvalidValueError, VersionPrunedError
from everthread.history.retention import Retention
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


class PruningRules:
    def test_the_last_versions_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 30)
        was = contents(thread)
        assert store.gc(Retention(keep_last=5), dry_run=True).versions == 25
        assert seqs(thread) == list(range(30, 0, -1))
        report = store.gc(Retention(keep_last=5))
        assert (report.versions, report.threads, report.problems) == (25, 1, ())
        stores = [store, open_store()] if store.capabilities.durable else [store]
        for each in stores:
            read = each.thread("a")
            assert (read.head, contents(read)) == (versions[-1], was)
            assert seqs(read) == [30, 29, 28, 27, 26]
            assert contents(read.at(27)) == ({"count": 26}, {"messages": was[1]["messages"][:27]})
            for verb in (read.at, read.rewind, lambda version: read.fork("b", at=version)):  # noqa: B023
                with raises(VersionPrunedError):
                    verb(versions[3])
            with raises(VersionPrunedError):
                read.diff(3)
        assert store.gc(Retention(keep_last=5)).versions == 0
        assert [version.seq for version in talk(thread, 3, "on")] == [31, 32, 33], "numbers never repeat"

    def test_labels_and_age_keep(self, open_store: OpenStore) -> None:
        from everthread.threads.runtime import Runtime

        now = [1_800_000_000 * 1_000_000]
        store = open_store(runtime=Runtime(now_us=lambda: now[0]))
        needs(store, "prune")
        thread = store.thread("a")
        for number in range(20):
            thread.state["n"] = number
            commit(thread, label="kept" if number in (3, 4, 11) else None)
            now[0] += 1_000_000
        store.gc(Retention(keep_within=3.0))
        assert seqs(thread) == [20, 19, 18, 12, 5, 4]
        assert [thread.at(seq).state["n"] for seq in (4, 5, 12, 18)] == [3, 4, 11, 17]
        store.gc(Retention(keep_last=1, keep_labelled=False))
        assert seqs(thread) == [20]

    def test_forks_and_what_they_stand_on_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[8])
        talk(fork, 2, "fork")
        bare = thread.fork("bare", at=versions[4]).fork("barer")
        was = {name: contents(store.thread(name)) for name in ("a", "b", "bare", "barer")}
        store.gc(Retention(keep_last=4))
        assert seqs(fork) == [11, 10, 9, 8, 5, 4, 3, 2]
        assert seqs(bare) == [5, 4, 3, 2]
        thread.delete()
        store.gc(Retention(keep_last=1))
        del was["a"]
        for name, expected in was.items():
            assert contents(store.thread(name)) == expected
        assert seqs(fork) == [11, 9, 5]
        talk(fork, 4, "on")
        assert ids(store.thread("b").messages)[9:] == ["fork0", "fork1", "on0", "on1", "on2", "on3"]

    def test_rewinds_stay_what_they_are(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 12)
        thread.rewind(5)
        talk(thread, 3, "on")
        was = contents(thread)
        store.gc(Retention(keep_last=2))
        assert contents(store.thread("a")) == was
        assert seqs(thread) == [16, 15, 5], (
            "where a rewind went back to is where its thread parted from others"
        )
        thread.rewind(5)
        assert ids(thread.messages) == ["m0", "m1", "m2", "m3", "m4"]
        talk(thread, 4, "again")
        store.gc(Retention(keep_last=1))
        assert ids(store.thread("a").messages) == [
            *("m0", "m1", "m2", "m3", "m4"),
            *("again0", "again1", "again2", "again3"),
        ]

    def test_merging_goes_on_as_before(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 6)
        other = thread.fork("b", at=3)
        for number in range(4):
            other.state[f"theirs {number}"] = number
            thread.state[f"ours {number}"] = number
            commit(other)
            commit(thread)
            assert thread.merge(other).version is not None
            store.gc(Retention(keep_last=1))
            other.refresh()
            thread.refresh()
        assert thread.state.plain() == {
            "count": 5,
            **{f"{side} {number}": number for number in range(4) for side in ("theirs", "ours")},
        }

    def test_keys_and_results_of_steps_stay(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        for number in range(12):
            thread.state["n"] = number
            commit(thread, key=f"key {number}")
            with thread.step(f"step {number}") as step:
                step.messages.append({"content": number})
                step.result = number
        made = list(thread.history(limit=None))
        store.gc(Retention(keep_last=1))
        again = store.thread("a")
        for number in range(12):
            found = again.commit(key=f"key {number}")
            assert found is not None
            assert found.id == made[-1 - 2 * number].id
            with again.step(f"step {number}") as step:
                assert step.done
                assert step.result == number
        assert [item["content"] for item in again.messages] == list(range(12))

    def test_items_that_only_old_versions_held_go(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        text = [f"{number}-" * 40 for number in range(60)]
        for number, each in enumerate(text):
            thread.messages.append(message(f"m{number}", each))
            commit(thread)
        old = store.thread("a")
        assert old.head is not None
        thread.messages.truncate_from("m2")
        commit(thread)
        talk(thread, 3, "on")
        before = store.stats().threads["a"]
        store.gc(Retention(keep_last=1))
        after = store.stats().threads["a"]
        assert (
            after.chunks + after.records + after.packs < (before.chunks + before.records + before.packs) / 2
        )
        assert (after.versions, after.pruned) == (1, 63)
        assert ids(store.thread("a").messages) == ["m0", "m1", "on0", "on1", "on2"]
        again = store.thread("a")
        again.messages.append(message("m5", "anew"))
        commit(again)
        assert ids(store.thread("a").messages)[-1] == "m5"

    def test_a_pruned_gap_ends_a_watch(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        store.gc(Retention(keep_last=3))
        with raises(VersionPrunedError):
            list(thread.watch(5, timeout=0))
        assert list(thread.watch(17, timeout=0)) == versions[17:]

    def test_a_handle_that_stands_on_a_pruned_version_moves_on(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        talk(thread, 10)
        old = store.thread("a")
        old.state["mine"] = 1
        talk(thread, 20, "later")
        store.gc(Retention(keep_last=1))
        old.rebase()
        commit(old)
        assert store.thread("a").state.plain() == {"count": 19, "mine": 1}

    def test_the_tail_of_a_deleted_thread_goes(self, open_store: OpenStore) -> None:
        store = open_store()
        needs(store, "prune")
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[4])
        thread.delete()
        assert store.gc().versions == 15
        assert seqs(fork) == [5, 4, 3, 2, 1]
        assert ids(store.thread("b").messages) == ["m0", "m1", "m2", "m3", "m4"]
        assert store.gc().versions == 0

    def test_rules_that_make_no_sense(self, open_store: OpenStore) -> None:
        store = open_store()
        wrong: Any
        for wrong in (5, "all", {"keep_last": 1}):
            with raises(InvalidValueError):
                store.gc(wrong)

    def test_what_was_dropped_can_be_put_back(self, open_store: OpenStore) -> None:
        """Rows and chunks that gave way to a row of the cold tier come back as they were."""
        from everthread.stores.contract import COLD, PACK, Prune, Row

        store = open_store()
        needs(store, "cold")
        backend = store._core.backend
        talk(store.thread("a"), 150)
        found = backend.find("", "a")
        assert found is not None
        line = found.line
        rows = tuple(row for row in reversed(backend.scan(line.id, 149, 1000)) if row.kind == PACK)
        last = rows[-1].seq
        chunks = tuple(c for c in backend.chunks(line.id, "messages", 0, last) if c.end <= last)
        cold = Row(last, 1, COLD, rows[-1].hash, b"where it is", None, None)
        away = Prune(old=rows, rows=(cold,), dropped=(("messages", 0, last),))
        assert chunks
        assert backend.prune(line, away)
        assert not backend.prune(line, away), "these rows aren't there any more"
        assert backend.scan(line.id, last, 10) == [cold]
        assert all(chunk.pruned for chunk in backend.chunks(line.id, "messages", 0, last))
        back = Prune(old=(cold,), rows=rows, chunks=chunks)
        assert backend.prune(line, back)
        assert not backend.prune(line, back)
        assert tuple(reversed(backend.scan(line.id, last, 1000))) == rows
        assert tuple(c for c in backend.chunks(line.id, "messages", 0, last) if c.end <= last) == chunks
        assert len(contents(store.thread("a"))[1]["messages"]) == 150

    def test_what_is_put_back_leaves_other_gaps(self, open_store: OpenStore) -> None:
        from everthread.stores.contract import Prune

        store = open_store()
        needs(store, "cold")
        backend = store._core.backend
        talk(store.thread("a"), 200)
        found = backend.find("", "a")
        assert found is not None
        line = found.line
        chunks = backend.chunks(line.id, "messages", 0, 200)[:3]
        assert len(chunks) == 3, "fewer chunks than this test needs"
        first, middle, last = chunks
        assert backend.prune(line, Prune(dropped=(("messages", middle.position, middle.end),)))
        outer = tuple(("messages", chunk.position, chunk.end) for chunk in (first, last))
        assert backend.prune(line, Prune(dropped=outer, chunks=(first, last)))
        after = backend.chunks(line.id, "messages", 0, last.end)
        assert [(chunk.position, chunk.count) for chunk in after] == [(c.position, c.count) for c in chunks]
        assert [chunk.pruned for chunk in after] == [False, True, False]
        assert (after[0], after[2]) == (first, last)
        assert backend.prune(line, Prune(chunks=(middle,)))
        assert backend.chunks(line.id, "messages", 0, last.end) == [first, middle, last]

    def test_what_went_to_an_archive_may_have_been_a_rewind(self, open_store: OpenStore) -> None:
        """Whoever looked at a fork before can't know what it stands on by now."""
        from everthread.stores.contract import COLD, Prune, Row

        store = open_store()
        needs(store, "cold")
        backend = store._core.backend
        thread = store.thread("a")
        versions = talk(thread, 20)
        fork = thread.fork("b", at=versions[10])
        talk(fork, 3)
        source, child = backend.find("", "a"), backend.find("", "b")
        assert source is not None
        assert child is not None
        seen = ((source.line.id, 20), (child.line.id, 14))
        fork.rewind(versions[3])
        talk(fork, 1)
        rows = tuple(reversed(backend.scan(child.line.id, 15, 100)))
        assert rows[0].first == 12
        cold = Row(15, 12, COLD, rows[-1].hash, b"where it is", None, None)
        assert backend.prune(child.line, Prune(old=rows, rows=(cold,)))
        assert not backend.prune(source.line, Prune(seen=seen))
        assert backend.prune(child.line, Prune(old=(cold,), rows=rows))
        assert not backend.prune(source.line, Prune(seen=seen))
        assert backend.prune(source.line, Prune(seen=((source.line.id, 20), (child.line.id, 16))))
