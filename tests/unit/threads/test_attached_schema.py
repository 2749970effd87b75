"""A schema that is attached to a thread is checked for every writer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import everthread

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Counter(BaseModel):
    n: int


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as store:
        thread = store.thread("t")
        thread.state["n"] = 1
        thread.commit()
        thread.attach_schema(SCHEMA)
    return url


def break_by_commit(store: everthread.Store) -> None:
    thread = store.thread("t")
    thread.state["n"] = "many"
    thread.commit()


def break_by_update(store: everthread.Store) -> None:
    store.thread("t").update(lambda draft: draft.pop("n"))


def break_by_lock(store: everthread.Store) -> None:
    with store.thread("t").lock() as draft:
        draft["n"] = None


def break_by_step(store: everthread.Store) -> None:
    with store.thread("t").step("s") as step:
        step.state["n"] = "many"


def break_by_session(store: everthread.Store) -> None:
    session = store.session("t")
    try:
        session.state["n"] = "many"
        session.save()
    finally:
        session.thread.discard()
        session.close()


def break_by_merge(store: everthread.Store) -> None:
    other = store.thread("other")
    other.state["n"] = "many"
    other.commit()
    store.thread("t").merge("other", unrelated=True, resolve="theirs")


def break_by_taking_the_schema_away(store: everthread.Store) -> None:
    thread = store.thread("t")
    thread.state.clear()
    thread.state["n"] = "many"
    thread.commit()


@pytest.mark.parametrize(
    "write",
    [
        break_by_commit,
        break_by_update,
        break_by_lock,
        break_by_step,
        break_by_session,
        break_by_merge,
        break_by_taking_the_schema_away,
    ],
)
def test_every_writer_is_checked(url: str, write: Any) -> None:
    with everthread.open(url) as store:
        with pytest.raises(everthread.ValidationError):
            write(store)
        assert store.thread("t").state["n"] == 1
        # What satisfies it is written as ever.
        store.thread("t").update(lambda draft: draft.increment("n"))
        assert store.thread("t").state["n"] == 2


def test_forks_have_the_schema_and_removing_it_ends_the_checks(url: str) -> None:
    with everthread.open(url) as store:
        fork = store.thread("t").fork("f")
        fork.state["n"] = "many"
        with pytest.raises(everthread.ValidationError, match="n"):
            fork.commit()
        fork.discard()
        fork.attach_schema(None)
        fork.state["n"] = "many"
        fork.commit()
        assert fork.state.plain() == {"n": "many"}


def test_a_schema_that_the_document_breaks_is_not_attached(url: str) -> None:
    with everthread.open(url) as store:
        thread = store.thread("other")
        thread.state["n"] = "many"
        head = thread.commit()
        with pytest.raises(everthread.ValidationError):
            thread.attach_schema(Counter)
        assert store.thread("other").head == head
        thread.state["n"] = 3
        thread.commit()
        thread.attach_schema(Counter)
        with pytest.raises(everthread.ValidationError):
            store.thread("other").update(lambda draft: draft.clear())


@pytest.mark.parametrize("schema", [lambda document: None, {"type": "nonsense"}, {"type": {1}}, "text"])
def test_what_can_not_be_recorded_is_refused(schema: Any) -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state["n"] = 1
        head = thread.commit()
        with pytest.raises(everthread.InvalidValueError):
            thread.attach_schema(schema)
        assert store.thread("t").head == head


def test_async_writers_are_checked(url: str) -> None:
    async def main() -> None:
        async with everthread.open_async(url) as store:
            with pytest.raises(everthread.ValidationError):
                await (await store.thread("t")).update(lambda draft: draft.pop("n"))
            fresh = await store.thread("fresh")
            fresh.state["n"] = 1
            await fresh.commit()
            await fresh.attach_schema(Counter)
            fresh.state["n"] = "many"
            with pytest.raises(everthread.ValidationError):
                await fresh.commit()

    asyncio.run(main())
