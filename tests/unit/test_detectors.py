"""Detectors: what looks like a secret is told of, masked or sealed before it is stored; off by default."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import InvalidValueError, Personal
from everthread.detectors import Detector, SecretWarning, api_keys, private_keys, secrets

KEY = "sk-" + "Ab3" * 12
TOKEN = "Bearer " + "x9Z." * 8
PEM = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"
OTHERS = [
    "AKIA" + "A1" * 8, "AIza" + "b" * 35, "ghp_" + "a1" * 18, "github_pat_" + "b" * 30,
    "xoxb-" + "1" * 20, "sk_live_" + "c" * 24, "hf_" + "d" * 34,
    "eyJ" + "a" * 20 + "." + "b" * 20 + "." + "c" * 20,
]  # fmt: skip


def plant(store: Any) -> None:
    thread = store.thread("t")
    thread.state["config"] = {"deep": [f"key={KEY};", ("t", TOKEN)], "n": 1}
    thread.messages.append({"role": "tool", "content": [{"text": PEM}]})
    thread.commit(metadata={"used": KEY})
    store.events("e").append("x", {"a": TOKEN})
    with thread.step("s") as step:
        step.result = KEY
    with store.session("session") as session:
        session.work.add_todo(f"use {KEY}")
        session.call("effect", lambda: {"got": KEY})


def test_masked_wherever_it_is_stored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url, detectors=secrets("mask")) as store:
        plant(store)
        thread = store.thread("t")
        assert thread.state.plain()["config"] == {"deep": ["key=[api key];", ("t", "[bearer token]")], "n": 1}
        assert thread.messages[0]["content"] == [{"text": "[private key]"}]
        assert thread.at(1).version.metadata == {"used": "[api key]"}
        assert [*store.scan(KEY), *store.scan(TOKEN), *store.scan("RSA PRIVATE")] == []


def test_sealed_under_a_subject() -> None:
    with everthread.open("memory:", detectors=secrets("seal", subject="leaks")) as store:
        plant(store)
        assert store.thread("t").state["config"]["deep"][0].value == f"key={KEY};"
        assert isinstance(store.thread("t").messages[0]["content"][0]["text"], Personal)
        assert list(store.scan(KEY)) == []
        store.core.vault.keyring.destroy("leaks")
        assert not store.thread("t").state["config"]["deep"][0]


def test_warned_of_and_stored_as_it_is() -> None:
    with everthread.open("memory:", detectors=[api_keys()]) as store:
        thread = store.thread("t")
        with pytest.warns(SecretWarning, match="api key") as caught:
            thread.state["a"] = KEY
        assert KEY not in str(caught[0].message)
        assert thread.state["a"] == KEY


def test_off_by_default() -> None:
    with everthread.open("memory:") as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        plant(store)
        assert store.core.screen is None
        assert len(list(store.scan(KEY))) > 4
        thread = store.thread("t")
        assert "_lower" not in vars(thread)
        assert "_prepare" not in vars(thread.messages)


@pytest.mark.parametrize("text", [KEY, TOKEN, PEM, *OTHERS])
def test_every_kind_is_found(text: str) -> None:
    with everthread.open("memory:", detectors=secrets("mask")) as store:
        thread = store.thread("t")
        thread.state["a"] = f"before {text} after"
        assert text not in thread.state["a"]
        assert thread.state["a"].startswith("before [")
        assert thread.state["a"].endswith("] after")


def test_harmless_text_stays_the_same_object() -> None:
    from everthread.detectors import Screen

    screen = Screen(secrets("mask"))
    for value in (
        "sk-short",
        "the bearer of news",
        {"a": ["x", ("y", 1)], "b": b"z"},
        None,
        3,
        "-----BEGIN X-----",
    ):
        assert screen(value, "") is value


def test_hostile_texts_take_a_few_passes() -> None:
    """Counted, not timed: the text is handed to the patterns in pieces of bounded size, each a few times."""
    from everthread.detectors import Screen

    texts = [
        "sk-" * 400_000,
        "eyJ" + "a" * 3_000_000,
        "bearer " * 300_000,
        "-----BEGIN PRIVATE KEY-----" * 40_000,
    ]
    for text in texts:
        assert isinstance(Screen(secrets("mask"))(text, ""), str)
    looked: list[int] = []
    counting = Detector("c", lambda text: looked.append(len(text)) or [], "mask")
    Screen([counting])("x" * 5_000_000, "")
    assert sum(looked) < 5_200_000 + 5 * (1 << 14)


def test_own_detectors_and_wrong_ones() -> None:
    mine = Detector(
        "badge", lambda text: [(i, i + 4) for i in range(len(text)) if text[i : i + 2] == "B-"], "mask"
    )
    with everthread.open("memory:", detectors=[mine, private_keys("mask")]) as store:
        thread = store.thread("t")
        thread.state["a"] = "x B-12 y B-34"
        assert thread.state["a"] == "x [badge] y [badge]"
    with pytest.raises(InvalidValueError, match="action"):
        Detector("x", lambda text: [], "burn")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="find"):
        Detector("x", "sk-.*")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="detectors"):
        everthread.open("memory:", detectors=["sk-"])  # type: ignore[list-item]


def test_async(tmp_path: Path) -> None:
    async def run() -> None:
        async with everthread.open_async("memory:", detectors=secrets("mask")) as store:
            thread = await store.thread("t")
            thread.state["a"] = KEY
            thread.messages.append({"content": TOKEN})
            await thread.commit()
            assert (await store.thread("t")).state["a"] == "[api key]"
            assert (await thread.messages.read())[0]["content"] == "[bearer token]"

    asyncio.run(run())


def test_sets_are_looked_into() -> None:
    values = {"set": {KEY, "a"}, "frozen": frozenset({("deep", frozenset({KEY})), 1}), "harmless": {"b"}}
    with everthread.open("memory:", detectors=secrets("mask")) as store:
        thread = store.thread("t")
        thread.state.update(values)
        thread.messages.append({"content": [{KEY}]})
        thread.commit()
        masked = {"[api key]"}
        assert thread.state.plain() == {
            "set": masked | {"a"},
            "frozen": frozenset({("deep", frozenset(masked)), 1}),
            "harmless": {"b"},
        }
        assert thread.messages[0]["content"] == [masked]
        assert list(store.scan(KEY)) == []
    both = [Detector("badge", lambda text: [(0, 5)] if text == "BADGE" else [], "mask"), *secrets("seal")]
    with everthread.open("memory:", detectors=both) as store:
        thread = store.thread("t")
        thread.state.update({**values, "both": {KEY, "BADGE"}})
        thread.commit()
        assert thread.state["set"].value == values["set"]
        assert thread.state["frozen"].value == values["frozen"]
        assert thread.state["both"].value == {KEY, "[badge]"}
        assert thread.state["harmless"] == {"b"}
        assert list(store.scan(KEY)) == []
    with everthread.open("memory:", detectors=secrets()) as store, pytest.warns(SecretWarning):
        store.thread("t").state["set"] = {KEY}
