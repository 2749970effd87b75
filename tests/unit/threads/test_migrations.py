"""Documents of an older form: read in the present one, stored so by the next write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import InvalidStateError, UsageError
from everthread.testing.driver import open_driven
from everthread.threads import migrations

OpenStore = Callable[[], Any]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_migrations", {})


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
        thread = opened.thread("bot")
        thread.state.update(schema="invoice", schema_version=1, customer="Ann", notes=["x"])
        thread.messages.append({"content": "hello"})
        thread.commit()
        yield opened


def register() -> None:
    @everthread.register_document_migration("invoice", 1)
    def nest(document: dict[str, Any]) -> None:
        document["customer"] = {"name": document["customer"]}

    @everthread.register_document_migration("invoice", 2)
    def total(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "total": 0}


NEW = {
    "schema": "invoice",
    "schema_version": 3,
    "customer": {"name": "Ann"},
    "notes": ["x"],
    "total": 0,
}


def test_a_document_is_read_in_its_present_form_and_nothing_is_written(store: Any) -> None:
    register()
    thread = store.thread("bot")
    assert thread.state.plain() == NEW
    assert not thread.dirty
    assert thread.commit().seq == 1, "nobody changed anything"
    thread.refresh()
    thread.discard()
    assert thread.state.plain() == NEW
    assert thread.fork("other").state.plain() == NEW
    assert store.thread("bot").head.seq == 1


def test_the_first_write_stores_it_and_history_says_so(store: Any) -> None:
    register()
    thread = store.thread("bot")
    thread.state["customer"]["name"] = "Bob"
    version = thread.commit(metadata={"run": "r1"})
    assert dict(version.metadata) == {"migrated": "invoice from 1 to 3", "run": "r1"}
    assert version.seq == 2
    migrations._migrations.clear()
    again = store.thread("bot")
    assert again.state.plain() == {**NEW, "customer": {"name": "Bob"}}
    assert again.head == version
    # All old versions can still be read, as they were.
    assert again.at(1).state.plain() == {
        "schema": "invoice",
        "schema_version": 1,
        "customer": "Ann",
        "notes": ["x"],
    }
    register()
    again.state["total"] = 5
    assert "migrated" not in again.commit().metadata, "it is in its present form already"
    assert store.verify()


@pytest.mark.parametrize("verb", ["append", "label", "update", "lock", "step"])
def test_every_way_to_write_stores_it(store: Any, verb: str) -> None:
    register()
    thread = store.thread("bot")
    if verb == "append":
        thread.messages.append({"content": "more"})
        thread.commit()
    elif verb == "label":
        assert thread.state["total"] == 0
        thread.commit(label="x")
    elif verb == "update":
        thread.update(lambda draft: draft.update(total=draft["total"] + 1))
    elif verb == "lock":
        with thread.lock(timeout_s=10) as draft:
            draft["total"] += 1
    else:
        with thread.step("k") as step:
            step.state["total"] += 1
    assert store.thread("bot").head.seq == 2
    assert store.thread("bot").head.metadata["migrated"] == "invoice from 1 to 3"
    assert store.thread("bot").at(2).state["schema_version"] == 3


def test_two_that_migrate_at_once_come_to_one_document(store: Any) -> None:
    register()
    first, second = store.thread("bot"), store.thread("bot")
    first.state["a"] = 1
    second.state["b"] = 2
    first.commit()
    with pytest.raises(everthread.ConflictError):
        second.commit()
    second.rebase()
    assert "migrated" not in second.commit().metadata
    assert store.thread("bot").state.plain() == {**NEW, "a": 1, "b": 2}


def test_a_change_that_leads_back_to_what_was_migrated_is_a_change(store: Any) -> None:
    register()
    thread = store.thread("bot")
    thread.state["total"] = 1
    thread.commit()
    thread.state["total"] = 0
    assert thread.dirty
    thread.commit()
    assert store.thread("bot").state["total"] == 0


def test_a_migration_that_fails_says_so_and_changes_nothing(store: Any) -> None:
    everthread.register_document_migration("invoice", 1, lambda document: document["absent"])
    with pytest.raises(InvalidStateError, match="'invoice' from version 1 failed on the document of 'bot'"):
        store.thread("bot").state.plain()
    everthread.register_document_migration("invoice", 1, lambda document: 7)
    with pytest.raises(InvalidStateError, match="must return a dictionary or None, not int"):
        store.thread("bot").state.plain()
    migrations._migrations.clear()
    assert store.thread("bot").state["customer"] == "Ann"


def test_other_documents_are_left_alone(store: Any) -> None:
    register()
    for name, state in {
        "newer": {"schema": "invoice", "schema_version": 9},
        "other": {"schema": "order", "schema_version": 1},
        "odd": {"schema": ["invoice"], "schema_version": "1"},
        "none": {"schema_version": 1},
    }.items():
        thread = store.thread(name)
        thread.state.update(state)
        assert "migrated" not in thread.commit().metadata
        assert store.thread(name).state.plain() == state


def test_what_is_personal_stays_sealed(store: Any) -> None:
    thread = store.thread("sealed")
    thread.state.update(schema="invoice", schema_version=1, customer=everthread.Personal("ann", "Ann"))
    thread.commit()
    register()
    again = store.thread("sealed")
    again.state["total"] = 3
    again.commit()
    assert store.scan("Ann") is not None
    assert again.state["customer"]["name"].value == "Ann"
    store.erase("ann")
    assert isinstance(store.thread("sealed").state["customer"]["name"], everthread.Erased)


def test_only_functions_names_and_numbers_are_registered() -> None:
    for wrong in (("", 1, print), ("invoice", "1", print), ("invoice", 1, "x")):
        with pytest.raises(UsageError):
            everthread.register_document_migration(*wrong)  # type: ignore[call-overload]
