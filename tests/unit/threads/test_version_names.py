"""A version by its number, id, label or distance from the head, wherever one is taken."""

from __future__ import annotations

import asyncio

import pytest

import everthread
from everthread.versions import VersionName, parse_version_name

ID = "7-0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("7", VersionName(seq=7)),
        ("v7", VersionName(seq=7)),
        (ID, VersionName(seq=7, id=ID)),
        ("head", VersionName(back=0)),
        ("head~", VersionName(back=1)),
        ("head~2", VersionName(back=2)),
        ("label:7", VersionName(label="7")),
        ("label:head", VersionName(label="head")),
        ("label:", VersionName(label="")),
        ("7-abc", VersionName(label="7-abc")),
        ("\u00b2", VersionName(label="\u00b2")),
        ("before the end", VersionName(label="before the end")),
        ("head~x", VersionName(label="head~x")),
    ],
)
def test_what_a_text_names(text: str, named: VersionName) -> None:
    assert parse_version_name(text) == named


@pytest.fixture
def thread() -> everthread.Thread:
    thread = everthread.open("memory:", keyring="memory:").thread("bot")
    for number in range(1, 8):
        thread.state["n"] = number
        thread.commit(label={1: "first", 3: "twice", 5: "twice", 6: "7"}.get(number))
    return thread


def test_every_verb_takes_a_version_by_name(thread: everthread.Thread) -> None:
    third = thread.at(3).version
    for name, seq in [
        ("3", 3),
        ("v3", 3),
        (third.id, 3),
        ("head", 7),
        ("head~2", 5),
        ("first", 1),
        ("label:7", 6),
    ]:
        assert thread.at(name).version.seq == seq
        assert thread.at(name).state["n"] == seq
    assert thread.diff("first", "head~1").changed
    assert thread.fork("copy", at="first").state["n"] == 1
    assert [version.seq for version in thread.history(before="head~4")] == [2, 1]
    assert thread.rewind("first").source == thread.at(1).version.id
    assert thread.state["n"] == 1


def test_a_label_that_several_versions_have_says_so(thread: everthread.Thread) -> None:
    with pytest.raises(
        everthread.UsageError, match="several versions of 'bot' have the label 'twice': 5, 3;"
    ):
        thread.at("twice")
    with pytest.raises(everthread.UsageError, match="name the one you mean by its number"):
        thread.rewind("twice")
    assert thread.head is not None
    assert thread.head.seq == 7


@pytest.mark.parametrize(
    "name", ["8", "0", "head~7", "no such label", "", ID, "label:first one", "x" * 5_000]
)
def test_a_name_that_nothing_has_is_told_with_how_to_name_one(thread: everthread.Thread, name: str) -> None:
    with pytest.raises(everthread.VersionNotFoundError, match=r"its number .* its label") as caught:
        thread.at(name)
    assert len(str(caught.value)) < 300


def test_an_async_thread_takes_names_too() -> None:
    async def body() -> None:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("bot")
            for number in (1, 2):
                await thread.commit(label=f"step {number}")
            assert (await thread.at("step 1")).version.seq == 1
            assert (await thread.at("head~1")).version.seq == 1

    asyncio.run(body())
