"""erase: shows, asks, erases, and gives a receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everthread
from everthread import Erased, ErasureReport, Personal
from tests.unit.cli.calling import Program


@pytest.fixture
def thread(store: everthread.Store) -> everthread.Thread:
    found = store.thread("a")
    found.state["ann"] = Personal("user_ann", "ann@example.org")
    found.state["bob"] = Personal("user_bob", "bob@example.org")
    found.commit()
    return found


def test_a_preview_changes_nothing(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", "--dry-run")
    assert "would erase 1 sealed values" in answer.out
    assert "nothing was erased (--dry-run)" in answer.err
    assert thread.state["ann"].value == "ann@example.org"


def test_it_asks_first(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", code=1, input="n\n")
    assert "would erase" in answer.out
    assert "nothing was changed" in answer.err
    assert program("erase", "--subject", "user_ann", "--json", code=2).out == ""
    assert thread.state["ann"].value == "ann@example.org"
    answer = program("erase", "--subject", "user_ann", input="y\n")
    assert "erased 1 sealed values" in answer.out
    assert "not reached:" in answer.out
    assert isinstance(thread.state["ann"], Erased)
    assert thread.state["bob"].value == "bob@example.org"


def test_the_receipt_is_signed_and_names_no_one(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", "--yes", "--json")
    assert "user_ann" not in answer.out + answer.err
    report = ErasureReport.from_plain(json.loads(answer.out)["report"])
    assert report
    assert report.is_signed()
    assert report.sealed_values == 1
    forged = ErasureReport.from_plain({**report.plain(), "sealed_values": 2})
    assert not forged.is_signed()
    assert not report.is_signed("00" * 32), "another key than expected"
    table = program("erase", "--subject", "user_bob", "--yes", "--format", "tsv").out.splitlines()
    assert table[0].split("\t") == ["where", "what", "count", "outcome"]


def test_nobody_known_and_a_hold(
    program: Program, thread: everthread.Thread, store: everthread.Store
) -> None:
    assert "nothing to erase" in program("erase", "--subject", "nobody", code=3).out
    store.hold("user_ann", "case 17")
    assert program.json("erase", "--subject", "user_ann", "--dry-run")["report"]["held"] == "case 17"
    answer = program("erase", "--subject", "user_ann", "--yes", code=1)
    assert "case 17" in answer.err
    assert thread.state["ann"].value == "ann@example.org"


def test_another_keyring(program: Program, tmp_path: Path) -> None:
    keys = str(tmp_path / "elsewhere")
    with everthread.open(program.url, keyring=keys) as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("cat", "meow")))
    program("erase", "--subject", "cat", "--yes", code=3)
    assert program.json("erase", "--subject", "cat", "--yes", "--keyring", keys)["report"]["complete"]
