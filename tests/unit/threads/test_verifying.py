"""``store.verify()``: what is damaged, what that touches, and what only a signed head shows."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import everthread
from everthread import Personal, Store, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def opened(path: Path, **options: Any) -> Store:
    return everthread.open(f"sqlite:///{path}", durability="process", **options)


def damage(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
        assert connection.changes() > 0, statement
    connection.close()


def fill(store: Store, versions: int, name: str = "t") -> None:
    thread = store.thread(name)
    for number in range(versions):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}"})
        thread.commit(key=f"k{number}" if number % 10 == 0 else None)


def test_a_damaged_pack_touches_all_up_to_the_next_keyframe_and_the_forks_that_reach_it(path: Path) -> None:
    with opened(path) as store:
        fill(store, 700)
        thread = store.thread("t")
        for at in (60, 100, 300, 650):
            fork = thread.fork(f"at {at}", at=at)
            fork.state["own"] = 1
            fork.commit()
        thread.fork("empty", at=200)
        fill(store, 5, "untouched")
        connection = apsw.Connection(str(path))
        ((keyframe,),) = connection.execute(
            "SELECT min(id & 0xffffffff) FROM record WHERE keyframe IS NOT NULL"
        ).fetchall()
        connection.close()
        assert 300 < keyframe < 650, "the test needs one in between"
    damage(path, "UPDATE record SET body = zeroblob(99), net = zeroblob(9) WHERE first = 65 AND kind = 1")
    with opened(path) as store:
        found = store.verify()
        assert (found.threads, bool(found)) == (7, False)
        (entry,) = [entry for entry in found.damage if entry.what == "version"]
        assert (entry.thread, entry.first, entry.last) == ("t", 65, 128)
        touched = {(a.thread, a.first, a.last) for a in entry.affected}
        # The keyframe tells the state at the end of its pack; to show that version takes only its own pack.
        assert touched == {("t", 65, keyframe - 1), ("at 100", 101, 101), ("at 300", 301, 301)}
        for name, first, last in touched:
            thread = store.thread(name, partial=True)
            for seq in (first, last):
                assert not thread.at(seq).state, f"{name} {seq}"
        for name in ("t", "at 60", "at 650", "untouched"):
            assert store.thread(name).recovered is None


def test_damage_after_damage_is_found(path: Path) -> None:
    with opened(path, keyring="memory:") as store:
        fill(store, 300)
        fill(store, 90, "other")
        secret = store.thread("secret")
        secret.state["p"] = Personal("ann", "x" * 50)
        secret.messages.append({"id": "p", "in": ({"a": (Personal("ann", "y"),)},)})
        secret.commit()
    damage(
        path,
        "UPDATE record SET body = zeroblob(50) WHERE id >> 32 = 1 AND first IN (1, 129)",
        "UPDATE record SET hash = zeroblob(32) WHERE id >> 32 = 1 AND id & 0xffffffff = 290",
        "DELETE FROM record WHERE id >> 32 = 1 AND id & 0xffffffff = 295",
        "UPDATE chunk SET count = count + 1 WHERE line = 2",
        "DELETE FROM keyed WHERE line = 2 AND seq = 11",
        "UPDATE sealed SET data = zeroblob(length(data))",
    )
    with opened(path) as store:
        found = {(d.thread, d.first, d.last, d.what) for d in store.verify().damage}
    assert {
        ("t", 1, 64, "version"),
        ("t", 129, 192, "version"),
        ("t", 290, 290, "version"),
        ("t", 295, 295, "version"),
        ("other", 1, 64, "items"),
        ("other", 11, 11, "derived"),
        ("secret", 1, 1, "items"),
    } <= found


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE line SET name = 'other' WHERE id = 1",
        "UPDATE line SET space = 'tenant' WHERE id = 1",
        "UPDATE line SET deleted = 1 WHERE id = 1",
        "UPDATE line SET deleted = 0 WHERE id = 3",
        "UPDATE line SET root = 9 WHERE id = 2",
        "UPDATE line SET parent = 3 WHERE id = 2",
        "UPDATE line SET parent = 2 WHERE id = 2",
        "UPDATE line SET parent_seq = 4 WHERE id = 2",
        "UPDATE line SET counts = x'80' WHERE id = 2",
        "UPDATE line SET tagged = tagged + 1 WHERE id = 1",
        "UPDATE record SET kind = 0 WHERE kind = 2",
        "UPDATE record SET key = NULL WHERE key IS NOT NULL",
        "UPDATE record SET id = id + 1 WHERE id = (SELECT max(id) FROM record WHERE id >> 32 = 1)",
        "UPDATE record SET first = first + 1024 WHERE kind = 1",
        "UPDATE record SET id = id + (9 << 32) WHERE kind = 1",
        "UPDATE chunk SET count = count + 1",
        "UPDATE chunk SET position = position + 1",
        "UPDATE chunk SET log = 'other'",
        "UPDATE chunk SET line = 2",
        "UPDATE tag SET value = x'01'",
        "UPDATE tag SET line = 99 WHERE line = 1",
        "DELETE FROM chunk",
        "DROP INDEX tag_value",
    ],
)
def test_no_column_can_be_altered_unnoticed(path: Path, change: str) -> None:
    """Consistently, by SQL, so that no check of SQLite's own finds it."""
    with opened(path) as store:
        thread = store.thread("t")
        for number in range(80):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}"})
            thread.commit(key=f"k{number}", metadata={"run": number % 7})
        thread.fork("f", at=40)
        thread.rewind(70)
        thread.state["n"] = "on"
        thread.commit(key="on")
        gone = store.thread("gone")
        gone.state["x"] = 1
        gone.commit()
        gone.delete()
        assert [info.name for info in store.threads(metadata={"run": 6})] == []
        assert store.verify()
    connection = apsw.Connection(str(path))
    connection.pragma("foreign_keys", False)
    connection.execute(change)
    connection.close()
    with opened(path) as store:
        assert not store.verify(), change


def test_verify_tells_how_far_it_is(path: Path) -> None:
    with opened(path) as store:
        fill(store, 1000)
        fill(store, 3, "other")
        told: list[tuple[int, int]] = []
        assert store.verify(lambda done, total: told.append((done, total)))
        assert told[-1] == (1003, 1003)
        assert told == sorted(told)
        assert len(told) >= 4
        assert {total for _, total in told} == {1003}


def test_a_writer_at_work_is_no_damage(path: Path) -> None:
    with opened(path) as store, opened(path) as other:
        fill(store, 100)
        stop = threading.Event()

        def write() -> None:
            thread = other.thread("t")
            while not stop.is_set():
                thread.state["n"] = "busy"
                thread.messages.append({"text": "x"})
                thread.commit()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(12):
                found = store.verify()
                assert found, [str(entry) for entry in found.damage]
        finally:
            stop.set()
            writer.join()


class TestAnchors:
    """Only a head that was signed and kept elsewhere shows what the chain alone can't."""

    KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)

    def anchored(self, path: Path) -> list[Any]:
        with opened(path) as store:
            fill(store, 100)
            fork = store.thread("t").fork("f", at=50)
            anchors = [store.thread("t").sign(self.KEY), fork.sign(self.KEY)]
            fork.state["own"] = 1
            fork.commit()
            fill(store, 70)
            anchors.append(store.thread("t").sign(self.KEY))
        return anchors

    def problems(self, path: Path, anchors: list[Any], key: Any = None) -> list[str]:
        with opened(path) as store:
            found = store.verify(anchors=anchors, public_key=key or self.KEY.public_key())
        assert all(entry.what == "anchor" for entry in found.damage)
        return [str(entry) for entry in found.damage]

    def test_a_history_that_is_as_it_was_passes(self, path: Path) -> None:
        assert self.problems(path, self.anchored(path)) == []

    def test_a_cut_shows(self, path: Path) -> None:
        anchors = self.anchored(path)
        damage(path, "DELETE FROM record WHERE id >> 32 = 1 AND id & 0xffffffff > 160")
        (found,) = self.problems(path, anchors)
        assert f"cut off: version {anchors[-1].seq} was signed, version 160 is the newest" in found

    def test_a_rewritten_history_shows(self, path: Path, tmp_path: Path) -> None:
        anchors = self.anchored(path)
        forged = tmp_path / "forged.db"
        with opened(forged) as store:
            # Whoever can write the store can make any chain that is sound in itself.
            fill(store, 170)
            store.thread("t").fork("f", at=50)
        found = self.problems(forged, anchors)
        assert len(found) == 3
        assert all("rewritten" in text for text in found)

    def test_a_thread_that_is_gone_shows(self, path: Path) -> None:
        anchors = self.anchored(path)
        with opened(path) as store:
            store.thread("f").delete()
        (found,) = self.problems(path, anchors)
        assert "no such thread any more" in found

    def test_another_key_vouches_for_nothing(self, path: Path) -> None:
        anchors = self.anchored(path)
        other = Ed25519PrivateKey.from_private_bytes(b"o" * 32).public_key()
        assert len(self.problems(path, anchors, other)) == 3
        with opened(path) as store, pytest.raises(UsageError):
            store.verify(anchors=anchors)


def test_a_table_of_threads_that_goes_in_circles_is_read_to_an_end(tmp_path: Path) -> None:
    """A damaged page gives its rows in any order, and again and again."""
    from everthread.stores.sqlite.store import every_line

    class Circling:
        """Answers every question with the same rows."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def execute(self, statement: str, bindings: Any = ()) -> Any:
            return self

        def fetchall(self) -> list[Any]:
            row = (b"u" * 16, "", "n", 1, 0, 0, 0, b"", b"", b"", 0, 0)
            return [(2, *row), (5, *row), (3, *row)]

    found = list(islice(every_line(Circling), 10))  # type: ignore[arg-type]
    assert found == [], "their sums don't fit"


def test_a_damaged_mark_of_unfinished_work_is_told_and_keeps_nobody_out(path: Path) -> None:
    with opened(path) as store:
        store.thread("t").commit(label="x")
        store.core.backend.swap("\0unfinished", "redaction", 0, b"\x95\xc1", 0)
    with opened(path) as store:
        assert store.thread("t").head is not None
        report = store.verify()
        assert not report
        assert "mark of work" in str(report.damage[0])


def test_personal_values_that_were_lost_are_told_and_erased_ones_are_not(path: Path, tmp_path: Path) -> None:
    keyring = f"{tmp_path}/keyring"
    with opened(path, keyring=keyring) as store:
        thread = store.thread("t")
        thread.state["ann"], thread.state["bob"] = Personal("ann", "x"), Personal("bob", "y")
        for number in range(80):
            thread.messages.append({"n": number, "who": Personal("ann", "z") if number == 3 else None})
            thread.commit(metadata={"by": Personal("eve", "m")} if number == 5 else None)
        assert store.verify().ok
        store.erase("bob")
        assert store.verify().ok, "what was erased isn't damage"
        store.gc(everthread.Retention(keep_last=2))
        assert store.verify().ok, "nor is what nobody refers to any more"
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM sealed")
    connection.close()
    with opened(path, keyring=keyring) as store:
        found = store.verify()
        assert len(found.damage) >= 2, found.damage
        assert {each.thread for each in found.damage} == {"t"}
        assert all("of a personal value are gone" in each.problem for each in found.damage)
        with pytest.raises(everthread.SealError):
            _ = store.thread("t").messages[3]["who"].value
    with opened(path, keyring="memory:") as store:
        assert store.verify().ok, "whose keys aren't here, of them nobody knows whether they were erased"


def test_personal_values_of_events_that_were_lost_are_told(path: Path, tmp_path: Path) -> None:
    with opened(path, keyring=f"{tmp_path}/keyring") as store:
        stream = store.events("s")
        stream.append("made", {"mail": Personal("ann", "x@y"), "other": Personal("bob", "z")})
        assert store.verify().ok
        store.erase("bob")
        assert store.verify().ok
    damage(path, "DELETE FROM sealed")
    with opened(path, keyring=f"{tmp_path}/keyring") as store:
        (found,) = store.verify().damage
        assert (found.thread, found.first, found.what) == ("events of s", 1, "items")
        assert "of a personal value are gone" in found.problem
