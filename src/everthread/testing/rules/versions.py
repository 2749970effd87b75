"""Versions: numbered without repeats, named for good, readable for ever."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

from everthread.errors import InvalidStateError, UsageError, VersionNotFoundError
from everthread.testing.rules.expecting import (
    OpenStore,
    commit,
    contents,
    message,
    raises,
    seqs,
    talk,
)
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
        store._core.runtime.now_us = lambda: next(clock)
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
        for wrong in (0, -1, 4, 2**63, 10**30):
            with raises(VersionNotFoundError):
                thread.at(wrong)
        for wrong in (None, True, 1.0, "", "1", "junk", "1-x", "1-" + "g" * 24, b"1", [1], object(), thread):
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
