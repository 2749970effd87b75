"""``store.cool()`` while others do the same, bring threads back, or redact them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Store
from everthread.maintenance import cold
from tests.unit.stores.cooling import place

NAME = "a"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """Two that are two processes to each other, with a thread that nobody writes to."""
    url = place(request, request.param, tmp_path)
    with ExitStack() as stack:
        one = stack.enter_context(everthread.open(url, cold=tmp_path / "cold"))
        two = one if url == "memory:" else stack.enter_context(everthread.open(url, cold=tmp_path / "cold"))
        thread = one.thread(NAME)
        for number in range(3):
            thread.messages.append({"id": str(number), "content": f"a secret {number}"})
            thread.commit()
        yield [one, two]


def read(store: Store) -> list[str]:
    return [message["content"] for message in store.thread(NAME).messages[:]]


def between(monkeypatch: pytest.MonkeyPatch, verb: str, work: Callable[[], Any]) -> list[str]:
    """Let something happen once, right before or after a part of moving a thread away."""
    done: list[str] = []
    real = getattr(cold.Cooling, verb)

    def meanwhile(self: Any, line: Any, *rest: Any) -> Any:
        found = real(self, line, *rest)
        if not done and line.name == NAME:
            done.append(verb)
            work()
        return found

    monkeypatch.setattr(cold.Cooling, verb, meanwhile)
    return done


def test_two_move_a_thread_that_is_brought_back_in_between(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has read the rows, the second moves all of it, it comes back: the rows are the same again."""
    one, two = stores
    before = read(one)
    one.cool(0)
    read(one)
    chunks = cold.Cooling._chunks

    def meanwhile(self: Any, line: Any, ends: Any) -> Any:
        monkeypatch.setattr(cold.Cooling, "_chunks", chunks)
        two.cool(0)
        found = chunks(self, line, ends)
        assert read(two) == before
        return found

    monkeypatch.setattr(cold.Cooling, "_chunks", meanwhile)
    one.cool(0)
    assert read(one) == read(two) == before
    assert one.verify()
    one.cool(0)
    assert read(two) == before


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_redacted_meanwhile_stays_so(
    times: int, stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the redacted rows, and chunks, are as long as before."""
    one, two = stores
    if times == 2:
        two.redact("secret", replacement="sauces")
    text = "secret" if times == 1 else "sauces"
    done = between(monkeypatch, "_chunks", lambda: two.redact(text, replacement="******"))
    one.cool(0)
    assert done
    # Not out of the memory of who has read it before.
    one.core.head_cache.clear()
    assert read(one) == [f"a ****** {number}" for number in range(3)]
    assert one.verify()
