"""What is refused names its place, in a few words."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import everthread
from everthread import Limits, Personal
from everthread.errors import (
    InvalidNameError,
    InvalidValueError,
    LimitError,
    ThreadNotFoundError,
)


@pytest.mark.parametrize("subject", [None, 5, 1.5, [], (), [[]], [None], {"": 1}, ["a", ""], b"ann"])
def test_subjects_that_are_no_names(subject: Any) -> None:
    with pytest.raises(InvalidNameError, match="subject"):
        Personal(subject, 1)


def test_subjects_count_once() -> None:
    assert Personal(["ann", "bob", "ann"], 1).subjects == ("ann", "bob")


def test_what_is_too_large_names_its_place() -> None:
    store = everthread.open("memory:", limits=Limits(payload_bytes_max=1000))
    thread = store.thread("a")
    thread.state["small"] = {"list": [1, 2]}
    thread.commit()
    thread.state["small"]["list"].append({"text": "x" * 2000, "other": 1})
    with pytest.raises(LimitError, match=r"state\.small") as refused:
        thread.commit()
    assert refused.value.path.startswith("state.small.list")
    assert refused.value.path.endswith(".text")
    thread.discard()
    thread.state["blob"] = "x" * 2000
    thread.state["small"]["n"] = 1
    with pytest.raises(LimitError) as refused:
        thread.commit()
    assert refused.value.path == "state.blob"
    thread.discard()
    with pytest.raises(LimitError, match="messages takes") as refused:
        thread.messages.append({"content": "x" * 2000})
    assert refused.value.path == "messages"
    assert not thread.dirty


def test_what_contains_itself_is_told_shortly() -> None:
    thread = everthread.open("memory:").thread("a")
    loop: dict[str, Any] = {"a_rather_long_name": {}}
    loop["a_rather_long_name"]["another_rather_long_name"] = loop
    with pytest.raises(LimitError, match="containing itself") as refused:
        thread.state["loop"] = loop
    assert refused.value.path.startswith("state.loop.a_rather_long_name")
    assert " … " in refused.value.path
    assert len(str(refused.value)) < 800


async def _coroutine() -> None:
    """Never run."""


@pytest.mark.parametrize(
    "value",
    [(n for n in range(3)), iter([1]), lambda: 1, len, [].append, int, os, zip([1], [2], strict=True)],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_data_isnt_to_be_registered(value: Any) -> None:
    thread = everthread.open("memory:").thread("a")
    with pytest.raises(
        InvalidValueError, match=r"state\.x: a .* can't be stored; store its result"
    ) as refused:
        thread.state["x"] = value
    assert "register" not in str(refused.value)


def test_a_coroutine_isnt_to_be_registered_either() -> None:
    made = _coroutine()
    thread = everthread.open("memory:").thread("a")
    with pytest.raises(InvalidValueError, match="store its result"):
        thread.state["x"] = made
    asyncio.run(made)


def test_classes_of_ones_own_are() -> None:
    class Mine:
        """Nobody has registered it."""

        def __call__(self) -> int:
            return 1

    thread = everthread.open("memory:").thread("a")
    with pytest.raises(InvalidValueError, match=r"everthread\.register\(Mine\)"):
        thread.state["x"] = Mine()


def test_merging_a_name_that_no_thread_has_is_refused() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("a")
        thread.commit(label="begin")
        with pytest.raises(ThreadNotFoundError, match="there is no thread 'b' to merge"):
            thread.merge("b")
