"""N: what nobody else has (the rows that the core itself answers for)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Conflict, Store


class Counting:
    """A backend that counts the rows and chunks which pass through it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.read: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if name not in ("find", "replay", "scan", "tail", "chunks", "fingerprints", "keyed", "line"):
            return method

        def counted(*args: Any) -> Any:
            answer = method(*args)
            self.read[name] += len(answer) if isinstance(answer, list) else 1
            return answer

        return counted


def _count_open(path: Path, name: str) -> Counter[str]:
    with everthread.open(f"sqlite:///{path}") as store:
        counting = Counting(store._core.backend)
        store._core.backend = store._core.reader.backend = counting  # type: ignore[assignment]
        thread = store.thread(name)
        thread.state.plain()
        assert len(thread.messages[-20:]) == 20
        return counting.read


def test_N1_opening_reads_the_same_whatever_the_length(tmp_path: Path) -> None:
    path = tmp_path / "n1.db"
    totals = []
    with everthread.open(f"sqlite:///{path}", durability="process") as store:
        thread = store.thread("long")
        for i in range(3000):
            thread.state["n"] = i
            thread.messages.append({"content": f"message {i}"})
            thread.commit()
            if i + 1 in (100, 1000, 3000):
                totals.append(sum(_count_open(path, "long").values()))
    bound = 64 + 1 + 8 + 4
    assert all(total <= bound for total in totals), totals


def test_N1_a_large_commit_does_not_spoil_later_opens(tmp_path: Path) -> None:
    path = tmp_path / "n1.db"
    with everthread.open(f"sqlite:///{path}") as store:
        thread = store.thread("bulk")
        thread.messages.extend({"content": f"{i} " + "x" * 1000} for i in range(5000))
        thread.commit()
        thread.messages.append({"content": "after"})
        thread.commit()
    read = _count_open(path, "bulk")
    assert sum(read.values()) <= 8, read
    with everthread.open(f"sqlite:///{path}") as store:
        largest = max(len(row.body) for row in store._core.backend.scan(1, 2, 10))
        assert largest < 256 * 1024
        assert len(store.thread("bulk").messages) == 5001
        assert store.thread("bulk").messages[2500]["content"].startswith("2500 ")


def test_N1_a_slice_from_the_middle_reads_only_its_chunks(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/n1.db", durability="process") as store:
        thread = store.thread("t")
        for i in range(1000):
            thread.messages.append({"i": i})
            thread.commit()
        counting = Counting(store._core.backend)
        store._core.backend = store._core.reader.backend = counting  # type: ignore[assignment]
        assert [m["i"] for m in thread.messages[500:520]] == list(range(500, 520))
        assert counting.read["chunks"] <= 2
        assert sum(counting.read.values()) <= 2


def test_N2_everything_is_rewound_together_and_the_rewind_is_undoable(store: Store) -> None:
    thread = store.thread("t")
    thread.state.update({"todos": ["a"], "tasks": {"1": "open"}})
    thread.messages.append({"id": "m1"})
    start = thread.commit()
    assert start is not None
    with thread.step("call model") as step:
        step.state["todos"].append("b")
        step.messages.append({"id": "m2"})
        step.result = "answer"
    later = thread.head
    assert later is not None
    back = thread.rewind(start)
    assert thread.state.plain() == {"todos": ["a"], "tasks": {"1": "open"}}
    assert [m["id"] for m in thread.messages] == ["m1"]
    with thread.step("call model") as again:
        assert not again.done, "a step result moves with the rewind"
        again.result = "second answer"
    thread.rewind(later)
    assert thread.state["todos"].plain() == ["a", "b"]
    assert [m["id"] for m in thread.messages] == ["m1", "m2"]
    with thread.step("call model") as undone:
        assert undone.done
        assert undone.result == "answer"
    assert back.kind == "rewind"
    assert back.source == start.id
    seqs = [version.seq for version in thread.history(limit=None)]
    assert seqs == sorted(set(seqs), reverse=True), "no sequence number repeats"


def test_N3_three_way_merge_with_conflicts_as_data(store: Store) -> None:
    ours = store.thread("ours")
    ours.state.update({"a": 1, "b": 1, "list": [{"id": "x", "v": 1}]})
    ours.messages.append({"id": "m1"})
    ours.commit()
    theirs = ours.fork("theirs")
    ours.state["a"] = 2
    ours.state["both"] = "ours"
    ours.messages.append({"id": "m2"})
    ours.commit()
    theirs.state["b"] = 2
    theirs.state["both"] = "theirs"
    theirs.state["list"].append({"id": "y", "v": 2})
    theirs.messages.append({"id": "m3"})
    theirs.commit()
    before = ours.head
    merge = ours.merge(theirs)
    assert not merge
    assert [(c.where, c.ours, c.theirs) for c in merge.conflicts] == [("both", "ours", "theirs")]
    assert ours.head == before

    def choose(conflict: Conflict) -> Any:
        return f"{conflict.ours} and {conflict.theirs}"

    done = ours.merge(theirs, resolve=choose)
    assert done
    assert done.version == ours.head
    assert ours.state.plain() == {
        "a": 2,
        "b": 2,
        "both": "ours and theirs",
        "list": [{"id": "x", "v": 1}, {"id": "y", "v": 2}],
    }
    assert [m["id"] for m in ours.messages] == ["m1", "m3", "m2"]
    # What was merged once is not merged again.
    theirs.state["c"] = 3
    theirs.commit()
    assert ours.merge(theirs)
    assert ours.state["c"] == 3
    assert len(ours.messages) == 3


def test_N9_tampering_is_found(tmp_path: Path) -> None:
    import apsw

    url = f"sqlite:///{tmp_path}/n9.db"
    with everthread.open(url) as store:
        thread = store.thread("ledger")
        for i in range(200):
            thread.state["paid"] = i
            thread.messages.append({"amount": i})
            thread.commit()
        assert store.verify().ok
        anchor = thread.sign(b"k" * 32)
        assert anchor.verify(anchor.public_key)
    connection = apsw.Connection(f"{tmp_path}/n9.db")
    # Not noise, which a checksum would find: a whole, well-formed record of another version.
    connection.execute(
        "UPDATE record SET body = (SELECT body FROM record ORDER BY id DESC LIMIT 1 OFFSET 1) "
        "WHERE id = (SELECT max(id) FROM record)"
    )
    connection.close()
    with everthread.open(url) as store:
        report = store.verify()
        assert not report.ok
        assert report.damage[0].thread == "ledger"


@pytest.mark.parametrize("table", ["keyframe", "net", "chunk", "line"])
def test_N9_forged_helpers_are_found(tmp_path: Path, table: str) -> None:
    import apsw

    from everthread.codec.records import compress
    from everthread.codec.values import encode

    url = f"sqlite:///{tmp_path}/n9.db"
    with everthread.open(url, durability="process") as store:
        thread = store.thread("ledger")
        for i in range(1300):
            thread.state["paid"] = i
            thread.messages.append({"amount": i})
            thread.commit()
    forged = {
        "keyframe": (
            "UPDATE record SET keyframe = ?1 WHERE keyframe IS NOT NULL",
            compress(encode([{"paid": 1_000_000}, {}, 0, {}])),
        ),
        "net": (
            "UPDATE record SET net = ?1 WHERE net IS NOT NULL",
            compress(encode([[[0, ["paid"], 9]], [], {}])),
        ),
        "chunk": ("UPDATE chunk SET data = ?1", compress(encode([{"amount": 0, "id": "x"}] * 64))),
        "line": ("UPDATE line SET uid = ?1 WHERE id > 0", b"0123456789abcdef"),
    }[table]
    connection = apsw.Connection(f"{tmp_path}/n9.db")
    connection.execute(forged[0], (forged[1],))
    assert connection.changes() > 0
    connection.close()
    with everthread.open(url) as store:
        assert not store.verify().ok
