"""Tasks against a naive model, and what stands in a document however it came there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidStateError, InvalidValueError, NotFoundError, Store
from everthread.sessions.tasks import TaskGraph, checked_map


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/t.db", durability="process") as store:
        yield store


class Model:
    """Edges as pairs (blocker, blocked); circles are found by brute force."""

    def __init__(self) -> None:
        self.status: dict[str, str] = {}
        self.edges: set[tuple[str, str]] = set()

    def circular(self, edges: set[tuple[str, str]]) -> bool:
        left = set(self.status)
        while free := {one for one in left if not any(b == one and a in left for a, b in edges)}:
            left -= free
        return bool(left)

    def waiting(self, id_: str) -> bool:
        return any(b == id_ and self.status[a] != "completed" for a, b in self.edges)


def test_random_changes_agree_with_a_naive_model(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    with store.session("s") as session:
        tasks = session.tasks
        for number in range(150):
            ids = list(model.status)
            some = rng.sample(ids, min(len(ids), rng.randint(0, 2)))
            verb = rng.choice(["add", "add", "block", "unblock", "status", "delete", "blocks"])
            if verb == "add" or not ids:
                before = rng.sample(ids, min(len(ids), rng.randint(0, 2)))
                model.status["new"] = "pending"
                edges = {(one, "new") for one in some} | {("new", one) for one in before}
                circular = model.circular(model.edges | edges)
                del model.status["new"]
                if circular:
                    with pytest.raises(InvalidStateError):
                        tasks.add(str(number), blocked_by=some, blocks=before)
                    continue
                new = tasks.add(str(number), blocked_by=some, blocks=before).id
                model.status[new] = "pending"
                model.edges |= {(one, new) for one in some} | {(new, one) for one in before}
            elif verb == "delete":
                gone = rng.choice(ids)
                tasks.delete(gone)
                del model.status[gone]
                model.edges = {edge for edge in model.edges if gone not in edge}
            elif verb == "status":
                _set_status(rng, model, tasks, rng.choice(ids))
            else:
                _set_edges(rng, model, tasks, verb, rng.choice(ids), some)
            _compare(model, tasks)
        session.rewind(session.thread.head)  # type: ignore[arg-type]
        _compare(model, session.tasks)
    with store.session("s") as session:
        _compare(model, session.tasks)


def _set_status(rng: random.Random, model: Model, tasks: Any, id_: str) -> None:
    status = rng.choice(["pending", "in_progress", "completed"])
    if status != "pending" and model.waiting(id_):
        with pytest.raises(InvalidStateError):
            tasks.update(id_, status=status)
    else:
        tasks.update(id_, status=status)
        model.status[id_] = status


def _set_edges(rng: random.Random, model: Model, tasks: Any, verb: str, id_: str, some: list[str]) -> None:
    if verb == "unblock":
        for one in some:
            tasks.unblock(id_, by=one)
            model.edges.discard((one, id_))
        return
    if verb == "blocks":
        edges = {edge for edge in model.edges if edge[0] != id_} | {(id_, one) for one in some}
        change = {"blocks": some}
    else:
        edges = {edge for edge in model.edges if edge[1] != id_} | {(one, id_) for one in some}
        change = {"blocked_by": some}
    if model.circular(edges):
        with pytest.raises(InvalidStateError):
            tasks.update(id_, **change)
    else:
        tasks.update(id_, **change)
        model.edges = edges


def _compare(model: Model, tasks: Any) -> None:
    found = {task.id: task for task in tasks}
    assert {id_: task.status for id_, task in found.items()} == model.status
    assert {(one, id_) for id_, task in found.items() for one in task.blocked_by} == model.edges
    assert {(id_, one) for id_, task in found.items() for one in task.blocks} == model.edges
    assert {task.id for task in tasks.ready()} == {
        id_ for id_, status in model.status.items() if status == "pending" and not model.waiting(id_)
    }


def test_a_refused_change_changes_nothing(store: Store) -> None:
    with store.session("s") as session:
        a = session.tasks.add("a")
        head = session.thread.head
        for wrong in (
            {"metadata": {"x": object()}},
            {"subject": 7},
            {"status": "odd"},
            {"blocked_by": "text"},
            {"blocked_by": ["unknown"]},
            {"metadata": {"ok": 1}, "blocked_by": [a.id]},
        ):
            with pytest.raises((InvalidValueError, NotFoundError, InvalidStateError)):
                session.tasks.update(a.id, **wrong)
        for refused in ({"metadata": {"x": object()}}, {"blocks": [a.id], "metadata": {"x": object()}}):
            with pytest.raises(InvalidValueError):
                session.tasks.add("b", **refused)
        assert session.thread.head is head
        assert not session.thread.dirty
        assert session.tasks.all() == [a]


def test_what_others_put_there_is_tolerated() -> None:
    for stored in (None, 7, [], {"x": 1}, {1: {}}, {"x": {}}, {"x": {"blocked_by": 7, "status": 9}}):
        graph = TaskGraph(stored)
        assert len(graph.all()) == len(graph)
    circle = TaskGraph({"a": {"blocked_by": ["b"]}, "b": {"blocked_by": ["a", "gone"]}})
    assert circle.ready() == []
    assert [task.id for task in circle.blocked()] == ["a", "b"]
    assert circle.task("b").blocked_by == ("a",)
    for wrong in (7, {"x": 1}, {1: {}}, {"a": {"subject": 7}}):
        with pytest.raises(InvalidValueError):
            checked_map(wrong)


def test_many_tasks_stay_quick(store: Store) -> None:
    """One more change of one among many writes as little as one among few."""
    with store.session("s") as session:
        session.merge_update(tasks={f"t{n}": {"subject": str(n)} for n in range(3_000)})
        for task in session.tasks.all()[:3]:
            session.tasks.start(task.id)
        head = session.thread.head
        assert head is not None
        sizes = [len(row.body) for row in store.core.backend.scan(1, head.seq, 3)]
        assert max(sizes) < 300, sizes


@pytest.mark.parametrize("value", [["mine"], "mine", 7])
def test_what_others_keep_in_the_place_of_tasks_is_left_alone(store: Store, value: Any) -> None:
    thread = store.thread("shared")
    thread.state["tasks"] = value
    thread.commit()
    with store.session("shared") as s:
        assert s.tasks.all() == []
        with pytest.raises(InvalidStateError, match="the place of the session's tasks"):
            s.tasks.add("x")
    assert store.thread("shared").state["tasks"] == value
