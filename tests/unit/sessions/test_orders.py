"""Standing orders: constraints of a whole namespace, in every briefing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidValueError, NotFoundError
from everthread.testing.driver import open_driven
from tests.unit.cli.calling import Program

LIMIT = "Never pay more than 500 EUR without asking."


@pytest.fixture(
    params=[
        (opener, scheme)
        for opener in (everthread.open, open_driven)
        for scheme in ("memory:", "sqlite", "file")
    ],
    ids=lambda param: f"{param[0].__name__} {param[1]}",
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    opener, scheme = request.param
    urls = {"memory:": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/a"}
    with opener(urls[scheme]) as opened:
        yield opened


def test_every_briefing_of_the_namespace_shows_standing_orders_first_word_for_word(store: Any) -> None:
    order = store.constraints.add(LIMIT, author="Eve")
    assert (order.text, order.author, str(order)) == (LIMIT, "Eve", LIMIT)
    assert order.at.tzinfo is not None
    for name in ("bot", "other"):
        with store.session(name) as run:
            run.work.add_constraint("be kind")
            text = str(run.briefing())
            assert f"standing order of Eve] {LIMIT}" in text
            assert text.index(LIMIT) < text.index("be kind")
            # However small the budget is: it is never shortened without a word.
            small = str(run.briefing(max_tokens=150))
            assert LIMIT in small or "constraints-not-shown" in small
    assert LIMIT in str(store.briefing("bot"))
    assert [info.name for info in store.threads()] == ["bot", "other"], "no thread that agents see"


def test_orders_are_listed_in_their_order_and_taken_back(store: Any) -> None:
    assert store.constraints.all() == []
    first = store.constraints.add("a", author="Eve")
    second = store.constraints.add("b", author="Ada")
    assert store.constraints.all() == [first, second]
    assert store.constraints.remove(first.id) == first
    with pytest.raises(NotFoundError, match="all\\(\\) lists them"):
        store.constraints.remove(first.id)
    assert store.constraints.all() == [second]
    with store.session("bot") as run:
        assert "standing order of Eve" not in str(run.briefing())


def test_what_is_no_order_is_refused(store: Any) -> None:
    with pytest.raises(NotFoundError, match="it has none"):
        store.constraints.remove("x")
    for text, author in (
        ("", "Eve"),
        (" ", "Eve"),
        ("x" * 5_000, "Eve"),
        ("x", ""),
        ("x", "E\nve"),
        (1, "Eve"),
    ):
        with pytest.raises(InvalidValueError):
            store.constraints.add(text, author=author)
    assert store.constraints.all() == []


def test_orders_are_a_namespaces_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url, namespace="one") as one, everthread.open(url, namespace="two") as two:
        one.constraints.add(LIMIT, author="Eve")
        assert two.constraints.all() == []
        with two.session("bot") as run:
            assert LIMIT not in str(run.briefing())


def test_exports_and_copies_take_them_along(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/a.db") as source:
        order = source.constraints.add(LIMIT, author="Eve")
        source.thread("bot").commit()
        source.export(tmp_path / "a.archive")
        with everthread.open(f"file://{tmp_path}/b") as target:
            source.copy_to(target)
            assert target.constraints.all() == [order]
    with everthread.open("memory:") as other:
        other.import_from(tmp_path / "a.archive")
        assert other.constraints.all() == [order]
        assert other.verify()


def test_the_command_line_gives_lists_and_takes_back(tmp_path: Path) -> None:
    program = Program(f"sqlite:///{tmp_path}/agent.db", tmp_path)
    program("constraint", "add", LIMIT, code=3)
    with everthread.open(program.url) as store:
        store.thread("bot").commit()
    assert program.json("constraint", "add", LIMIT, "--author", "Eve")["added"]["author"] == "Eve"
    id_ = program("constraint", "add", "b").out.strip()
    (first, second) = program.json("constraint", "list")["constraints"]
    assert (first["text"], second["id"]) == (LIMIT, id_)
    assert LIMIT in program("constraint", "list").out
    assert program("constraint", "remove", id_).out.strip() == "b"
    program("constraint", "remove", id_, code=3)
    with everthread.open(program.url) as store:
        assert [order.text for order in store.constraints.all()] == [LIMIT]
