"""erase: shows, asks, erases, and gives a receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everthread
from everthread import Erased, ErasureReport, Personal
from tests.unit.cli.calling import Program, run


@pytest.fixture
def thread(store: everthread.Store) -> everthread.Thread:
    found = store.thread("a")
    found.state["ann"] = Personal("user_ann", "ann@example.org")
    found.state["bob"] = Personal("user_bob", "bob@example.org")
    found.commit()
    return found


def test_a_preview_changes_nothing(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", "--dry-run")
    assert "would erase 1 sealed value " in answer.out
    assert "nothing was erased (--dry-run)" in answer.err
    assert thread.state["ann"].value == "ann@example.org"


def test_it_asks_first(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", code=1, input="n\n")
    assert "would erase" in answer.out
    assert "nothing was changed" in answer.err
    assert program("erase", "--subject", "user_ann", "--json", code=2).out == ""
    assert thread.state["ann"].value == "ann@example.org"
    answer = program("erase", "--subject", "user_ann", input="y\n")
    assert "erased 1 sealed value " in answer.out
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
    for call in (["--yes"], ["--dry-run"]):
        answer = program("erase", "--subject", "cat", *call, code=1)
        assert "lacks the keys of 1 sealed value in this store" in answer.out
        assert "can't be told" in answer.out
        assert "signed with" not in answer.out
    assert not (Path.home() / ".everthread" / "keyring").exists(), "looking makes no keyring"
    report = ErasureReport.from_plain(program.json("erase", "--subject", "cat", "--yes", code=1)["report"])
    assert (bool(report), report.complete, report.is_signed(), report.unopened) == (False, False, False, 1)
    assert program.json("erase", "--subject", "cat", "--yes", "--keyring", keys)["report"]["complete"]


def test_keys_travel_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    with everthread.open(one) as store:
        thread = store.thread("a")
        thread.state["ann"] = Personal("ann", "ann's")
        thread.commit()
    secret = tmp_path / "secret.txt"
    secret.write_text("correct horse battery\n")
    archive = str(tmp_path / "a.archive")
    for wrong in (["--with-keys"], ["--passphrase-file", str(secret)]):
        run(["--store", one, "export", archive, *wrong], code=2)
    given = ["--with-keys", "--passphrase-file", str(secret)]
    assert run(["--store", one, "export", archive, *given, "--json"], code=0).data["report"]["keys"] == 1
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    missing = run(["--store", two, "import", archive, "--json"], code=0).data["report"]
    assert (missing["keys"], missing["keys_missing"]) == (0, 1)
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "not the right one")
    assert "Nothing was changed" in run(["--store", two, "import", archive, "--with-keys"], code=1).err
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "correct horse battery")
    assert (
        run(["--store", two, "import", archive, "--with-keys", "--json"], code=0).data["report"]["keys"] == 1
    )
    with everthread.open(two) as store:
        assert store.thread("a").state["ann"].value == "ann's"
