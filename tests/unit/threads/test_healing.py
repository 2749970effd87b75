"""A damaged newest version: standing on the last good one, saying so, and going on by decision only."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Corrupt, InvalidStateError, StateCorruptedError, Store

NEWEST = "(SELECT max(id) FROM record WHERE id >> 32 = 1 AND kind <> 3)"


def fill(store: Store, versions: int = 12) -> None:
    thread = store.thread("t")
    for number in range(versions):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}", "text": "x" * 20})
        thread.commit(label=f"v{number + 1}", key=f"k{number}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path) -> Store:
    return everthread.open(f"sqlite:///{path}", durability="process")


def damage(path: Path, statement: str, *values: Any) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    assert connection.changes() > 0
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "body = zeroblob(length(body))",
        "body = substr(body, 1, 20)",
        "body = x''",
        "hash = zeroblob(32)",
        "kind = 2",
        "kind = 514",
        "first = 3",
        "key = zeroblob(16)",
        "sum = sum + 1",
        "id = id + 1",
        "id = id + 4096",
    ],
)
def test_a_damaged_newest_version_is_passed_over_and_told(
    path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        fill(store)
    # The change is one of the constants above.
    damage(path, f"UPDATE record SET {change} WHERE id = {NEWEST}")
    with opened(path) as store, caplog.at_level(logging.WARNING, "everthread"):
        thread = store.thread("t")
        assert thread.head is not None
        assert (thread.head.seq, thread.head.label) == (11, "v11")
        assert (thread.state.plain(), len(thread.messages)) == ({"n": 10}, 11)
        assert thread.recovered is not None
        assert (thread.recovered.version, thread.recovered.first) == (thread.head, 12)
        assert thread.recovered.last >= 12
        assert thread.recovered.reasons
        assert "version 11" in caplog.text
        found = store.verify()
        assert not found
        assert {entry.thread for entry in found.damage} <= {"t", "(the whole store)"}


def test_a_recovered_handle_does_not_write(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")
    with opened(path) as store:
        thread = store.thread("t")
        thread.state["n"] = "lost"
        with pytest.raises(StateCorruptedError, match=r"thread\.rewind\(thread\.head\)"):
            thread.commit()
        with pytest.raises(StateCorruptedError):
            thread.commit(key="other")
        thread.discard()
        with pytest.raises(StateCorruptedError):
            thread.update(lambda draft: draft.state.update(n=1))
        with pytest.raises(StateCorruptedError), thread.step("s") as step:
            step.result = 1
        assert thread.commit() == thread.head, "nothing to commit is no write"
        other = thread.fork("other")
        other.state["n"] = "on"
        assert other.commit() is not None
        assert store.thread("t").recovered is not None


def test_going_on_is_a_rewind_and_keeps_the_evidence(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")
    with opened(path) as store:
        thread = store.thread("t")
        version = thread.rewind(thread.head or 0)
        assert (version.seq, version.kind, thread.recovered) == (13, "rewind", None)
        for number in range(200):
            thread.state["after"] = number
            thread.messages.append({"id": f"a{number}"})
            thread.commit()
        assert store.core.background_error is None, "what is damaged doesn't stand in the way of folding"
    with opened(path) as store:
        thread = store.thread("t")
        assert thread.recovered is None
        assert (thread.state["after"], len(thread.messages)) == (199, 211)
        assert [item["id"] for item in thread.messages[9:13]] == ["m9", "m10", "a0", "a1"]
        assert thread.messages.find("m11") is None
        assert [(d.first, d.last) for d in store.verify().damage] == [(12, 12)]
        connection = apsw.Connection(str(path))
        kept = connection.execute("SELECT body FROM record WHERE id & 0xffffffff = 12").fetchall()
        connection.close()
        assert kept == [(bytes(40),)]


def test_rewinding_further_back_will_do_as_well(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    damage(path, "UPDATE record SET body = zeroblob(40) WHERE id & 0xffffffff IN (8, 12)")
    with opened(path) as store:
        thread = store.thread("t")
        assert thread.head is not None
        assert thread.head.seq == 7
        thread.rewind(5)
        thread.messages.append({"id": "new"})
        thread.commit()
        assert [item["id"] for item in store.thread("t").messages] == ["m0", "m1", "m2", "m3", "m4", "new"]


def test_a_handle_that_was_open_notices_when_it_refreshes(path: Path) -> None:
    with opened(path) as store, opened(path) as other:
        fill(store, 3)
        thread = store.thread("t")
        assert thread.head is not None
        late = other.thread("t")
        late.state["n"] = "late"
        late.commit()
        damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")
        thread.refresh()
        assert thread.recovered is not None
        assert thread.head.seq == 3


def test_strict_raises_at_once(path: Path) -> None:
    with opened(path) as store:
        fill(store)
        assert store.thread("t", strict=True).head is not None
    damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")
    with opened(path) as store:
        with pytest.raises(StateCorruptedError, match="version 12 of 't'"):
            store.thread("t", strict=True)
        assert store.thread("unheard of", strict=True).head is None


def test_if_no_version_is_left_every_handle_raises(path: Path) -> None:
    with opened(path) as store:
        fill(store, 3)
    damage(path, "UPDATE record SET body = zeroblob(40)")
    with opened(path) as store:
        with pytest.raises(StateCorruptedError):
            _ = store.thread("t").head
        partial = store.thread("t", partial=True)
        assert isinstance(partial.state, Corrupt)
        assert not partial.state
        assert partial.head is None
        assert [(info.name, info.damaged) for info in store.threads()] == [("t", True)]


def test_a_damaged_thread_does_not_hide_the_others(path: Path) -> None:
    with opened(path) as store:
        fill(store, 3)
        for name in ("a", "z"):
            thread = store.thread(name)
            thread.state["x"] = 1
            thread.commit(metadata={"run": name})
    damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")
    with opened(path) as store:
        listed = [(info.name, info.seq, info.damaged) for info in store.threads()]
        assert listed == [("a", 1, False), ("t", 2, True), ("z", 1, False)]
        assert [info.name for info in store.threads(metadata={"run": "z"})] == ["z"]


@pytest.mark.parametrize("column", ["keyframe", "net"])
def test_what_is_derived_is_worked_out_again(path: Path, column: str) -> None:
    with opened(path) as store:
        fill(store, 700)
        wanted = store.thread("t").at(600).state.plain()
    # The column is one of the two above.
    damage(path, f"UPDATE record SET {column} = zeroblob(30) WHERE {column} IS NOT NULL")
    with opened(path) as store:
        thread = store.thread("t")
        assert thread.recovered is None
        assert (thread.state["n"], len(thread.messages)) == (699, 700)
        assert thread.at(600).state.plain() == wanted
        found = store.verify()
        assert found.damage
        assert all(entry.derived and not entry.affected for entry in found.damage)


def test_ids_are_known_without_the_index_of_ids(path: Path) -> None:
    with opened(path) as store:
        fill(store, 200)
    damage(path, "UPDATE chunk SET fingerprints = zeroblob(length(fingerprints)) WHERE position = 64")
    with opened(path) as store:
        thread = store.thread("t")
        thread.messages.append({"id": "m70", "text": "x" * 20})
        assert not thread.dirty
        assert thread.messages.find("m100") == 100
        assert len(thread.messages[:]) == 200
        assert not store.verify()


def test_a_damaged_range_of_a_log_is_named_and_the_others_are_read(path: Path) -> None:
    with opened(path) as store:
        fill(store, 200)
    damage(path, "UPDATE chunk SET data = zeroblob(length(data)) WHERE position = 64")
    with opened(path) as store:
        thread = store.thread("t")
        assert thread.recovered is None
        with pytest.raises(StateCorruptedError, match="items 64 to 128 of log 'messages' of 't'") as caught:
            _ = thread.messages[:]
        assert caught.value.where == "t: messages[64:128]"
        assert thread.messages[63]["id"] == "m63"
        assert [item["id"] for item in thread.messages[128:131]] == ["m128", "m129", "m130"]
        thread.messages.append({"id": "new"})
        thread.commit()
        with pytest.raises(StateCorruptedError):
            thread.messages.append({"id": "m70", "text": "other"})
        (entry,) = store.verify().damage
        assert (entry.what, entry.first, entry.last) == ("items", 65, 128)
        assert [str(touched) for touched in entry.affected] == ["'t' versions 65–201"]


def test_partial_marks_what_cannot_be_read_and_refuses_to_write(path: Path) -> None:
    with opened(path) as store:
        fill(store, 200)
    damage(path, "UPDATE chunk SET data = zeroblob(length(data)) WHERE position = 64")
    damage(path, "UPDATE record SET body = zeroblob(30) WHERE kind = 1 AND first = 1")
    with opened(path) as store:
        thread = store.thread("t", partial=True)
        items = thread.messages[:]
        assert [isinstance(item, Corrupt) for item in items] == [64 <= n < 128 for n in range(200)]
        assert thread.state["n"] == 199
        assert isinstance(thread.at(10).state, Corrupt)
        assert "versions 1 to 64" in thread.at(10).state.reason
        assert thread.at(100).state["n"] == 99
        history = list(thread.history(limit=None))
        assert [version.seq for version in history if version] == list(range(200, 64, -1))
        assert sum(isinstance(version, Corrupt) for version in history) == 1
        for write in (
            lambda: thread.messages.append({"x": 1}),
            lambda: thread.state.update(x=1),
            thread.commit,
            lambda: thread.rewind(5),
            thread.rebase,
            lambda: thread.update(lambda draft: None),
            lambda: thread.step("s"),
            thread.delete,
        ):
            with pytest.raises(InvalidStateError):
                write()


def test_corrupt_is_false_frozen_and_can_be_stored() -> None:
    marker = Corrupt("why")
    assert not marker
    assert marker == Corrupt("why") != Corrupt("because")
    with pytest.raises(AttributeError):
        marker.reason = "other"  # type: ignore[misc]
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.messages.append(marker)
        thread.commit()
        assert store.thread("t").messages[0] == marker


def test_a_fork_falls_back_into_its_source(path: Path) -> None:
    with opened(path) as store:
        fill(store, 8)
        fork = store.thread("t").fork("f", at=5)
        fork.state["own"] = 1
        fork.commit()
    damage(path, "UPDATE record SET body = zeroblob(40) WHERE id & 0xffffffff = 4")
    with opened(path) as store:
        fork = store.thread("f")
        assert fork.head is not None
        assert (fork.head.seq, fork.state.plain()) == (3, {"n": 2})
        assert fork.recovered is not None
        assert (fork.recovered.first, fork.recovered.last) == (4, 6)
        assert fork.rewind(3).seq == 7
        assert store.thread("f").state.plain() == {"n": 2}
        touched = {(a.thread, a.first, a.last) for d in store.verify().damage for a in d.affected}
        assert touched == {("t", 4, 8), ("f", 6, 6)}


def test_a_name_that_the_index_misses_is_not_taken_for_a_new_thread(path: Path) -> None:
    with opened(path) as store:
        for name in ("alpha", "beta", "gamma"):
            thread = store.thread(name)
            thread.state["x"] = 1
            thread.commit()
    raw = path.read_bytes()
    # Once in the table of threads, once in the index of names.
    places = [at for at in range(len(raw)) if raw.startswith(b"beta", at)]
    for at in places:
        flipped = bytearray(raw)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        with opened(path) as store:
            try:
                assert store.thread("beta").head is not None
            except StateCorruptedError:
                continue
    assert len(places) >= 2


def test_async_handles_heal_alike(path: Path) -> None:
    with opened(path) as store:
        fill(store)
    damage(path, f"UPDATE record SET body = zeroblob(40) WHERE id = {NEWEST}")

    async def look() -> None:
        async with everthread.open_async(f"sqlite:///{path}") as store:
            thread = await store.thread("t")
            assert thread.recovered is not None
            with pytest.raises(StateCorruptedError):
                await store.thread("t", strict=True)
            thread.state["n"] = 1
            with pytest.raises(StateCorruptedError):
                await thread.commit()
            await thread.discard()
            partial = await store.thread("t", partial=True)
            assert len(await partial.messages.read()) == 11
            assert thread.head is not None
            assert (await thread.rewind(thread.head)).seq == 13
            told: list[tuple[int, int]] = []
            assert not await store.verify(lambda done, total: told.append((done, total)))
            assert told[-1][0] == told[-1][1] > 0

    asyncio.run(look())


def test_verify_finds_an_index_of_metadata_that_lies(path: Path) -> None:
    """It is exchanged for one of other values, as a flipped bit in it would."""
    with opened(path) as store:
        for number in range(3):
            thread = store.thread(f"t{number}")
            thread.state["n"] = number
            thread.commit(metadata={"run": number})
        assert [info.name for info in store.threads(metadata={"run": 1})] == ["t1"]
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE other AS SELECT * FROM tag")
    values: Any = db.execute("SELECT value FROM tag ORDER BY line").fetchall()
    db.execute("UPDATE other SET value = ?1 WHERE value = ?2", (values[1][0], values[2][0]))
    db.execute("CREATE INDEX other_value ON other (name, value, line)")
    db.pragma("writable_schema", True)
    db.execute(
        """UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'other_value')
           WHERE name = 'tag_value'"""
    )
    db.execute("DELETE FROM sqlite_schema WHERE name IN ('other', 'other_value')")
    db.close()
    with opened(path) as store:
        assert [info.name for info in store.threads(metadata={"run": 0})] == ["t0"]
        assert not store.verify()
        assert sorted(info.name for info in store.threads()) == ["t0", "t1", "t2"]
