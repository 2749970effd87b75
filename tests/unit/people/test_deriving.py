"""derive() and reveal(): what is made of people's values belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Erased, ErasedError, Personal, derive, reveal


def join(*texts: Any, **named: Any) -> str:
    return " ".join([*map(str, texts), *map(str, named.values())])


def test_reveal_opens_everything_and_changes_nothing() -> None:
    inner = Personal("ann", {"name": Personal("bob", "Bob"), "n": 1})
    value = {"a": [inner, (Personal("ann", 2), "x")], "e": Erased(), "b": b"bytes"}
    assert reveal(value) == {"a": [{"name": "Bob", "n": 1}, (2, "x")], "e": None, "b": b"bytes"}
    assert value["a"][0] is inner  # type: ignore[index]
    assert reveal("text") == "text"


def test_a_derived_value_belongs_to_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url) as store:
        thread = store.thread("t")
        thread.state["ann"] = Personal("ann", "Ann is tall")
        thread.messages.append({"content": Personal("bob", "Bob is small")})
        thread.commit()
    with everthread.open(url) as store:
        thread = store.thread("t")
        # Read back, subjects are known by their keys only; new ones by name; nested ones too.
        summary = derive(join, thread.state["ann"], thread.messages[:], also=Personal("cem", "Cem"))
        assert isinstance(summary, Personal)
        assert "tall" in summary.value
        assert "Cem" in summary.value
        assert "•" in repr(summary)
        thread.state["summary"] = summary
        thread.state["again"] = derive(str.upper, summary)
        thread.state["of nobody"] = derive(str.upper, "nobody's")
        thread.commit()
    for who in ("ann", "bob", "cem"):
        with everthread.open(url, keyring=str(tmp_path / who)) as store:
            assert store.thread("t").state["of nobody"] == "NOBODY'S"
    with everthread.open(url) as store:
        assert store.thread("t").state["again"].value.startswith("ANN")
        store.core.vault.keyring.destroy("bob")
        thread = store.thread("t")
        assert isinstance(thread.state["summary"], Erased)
        assert isinstance(thread.state["again"], Erased)
        assert thread.state["ann"].value == "Ann is tall"
        assert isinstance(derive(join, thread.state["summary"], "x"), Erased)
        # Made before the erasure, stored after it: no.
        with pytest.raises(ErasedError):
            thread.state["late"] = Personal.from_sources([summary], "late")


def test_one_inside_of_another_is_one_seal_of_both() -> None:
    with everthread.open("memory:", keyring="memory:") as store:
        thread = store.thread("t")
        thread.state["a"] = Personal("ann", {"friend": Personal("bob", "Bob"), "also": [Personal("ann", 1)]})
        thread.commit()
        assert store.thread("t").state["a"].value == {"friend": "Bob", "also": [1]}
        store.core.vault.keyring.destroy("bob")
        assert isinstance(store.thread("t").state["a"], Erased)


def test_what_a_function_returns_may_be_personal() -> None:
    made = derive(lambda text: {"x": Personal("bob", text)}, Personal("ann", "t"))
    assert made.value == {"x": "t"}
    assert made.subjects == ("ann", "bob")
    with pytest.raises(ZeroDivisionError):
        derive(lambda _: 1 / 0, Personal("ann", "t"))
