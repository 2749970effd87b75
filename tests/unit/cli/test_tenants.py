"""Stores with several namespaces, on the command line; and the archive of a cold tier there."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread.cli.options import namespaces_in_words
from tests.unit.cli.calling import Program, here


@pytest.fixture
def tenants(program: Program) -> Program:
    """A store with threads in two namespaces, and none in the one that is looked at by default."""
    for namespace, count in (("acme", 2), ("beta", 1)):
        with everthread.open(program.url, namespace=namespace) as store:
            for number in range(count):
                with store.session(f"bot-{number}") as session:
                    session.messages.append({"role": "user", "content": "hello"})
            gone = store.thread("gone")
            gone.commit(label="first")
            gone.delete()
    return program


def test_what_is_elsewhere_is_pointed_to(tenants: Program) -> None:
    words = "3 threads in other namespaces: 'acme', 'beta'"
    answer = tenants("status")
    assert "no threads yet" in answer.err
    assert f"{words} (--namespace)" in answer.err
    assert tenants.json("status")["threads"] == []
    assert f"{words} (--namespace)" in tenants("status", "bot", code=3).err
    assert f"there is none here, but {words}" in tenants("show", "bot-1", code=3).err
    (size,) = [each for each in tenants.json("doctor")["checks"] if each["check"] == "size"]
    assert size["found"].startswith("0 threads, ")
    assert words in size["found"]
    beside = tenants("status", "--namespace", "nobody").err
    assert words in beside
    assert "namespaces" not in tenants("status", "--namespace", "acme").err


def test_restore_shows_all_that_would_be_replaced(tenants: Program, tmp_path: Path) -> None:
    tenants("backup", str(tmp_path / "backup"))
    asked = tenants("restore", str(tmp_path / "backup"), code=1, input="n\n")
    assert "this would be replaced: 0 threads" in asked.out
    assert "3 threads in other namespaces" in asked.out
    # It has no --dry-run to point to.
    refused = tenants("restore", str(tmp_path / "backup"), "--json", code=2).err
    assert "--yes" in refused
    assert "--dry-run" not in refused


def test_other_namespaces_in_words() -> None:
    assert namespaces_in_words({}) == ""
    assert namespaces_in_words({"": 1}) == "1 thread in another namespace: the one without a name"
    many = {f"t{number}": number for number in range(1, 6)}
    assert namespaces_in_words(many) == "15 threads in other namespaces: 't5', 't4', 't3' and 2 more"


def test_copying_between_a_cold_store_and_files(program: Program, tmp_path: Path) -> None:
    """The archive is that of the one which can have one."""
    archive, files = str(tmp_path / "cold"), f"file://{tmp_path}/files"
    with everthread.open(program.url, cold=archive) as store:
        thread = store.thread("bot")
        for number in range(3):
            thread.state["n"] = number
            thread.commit()
        assert store.cool(0).versions == 2
    refused = here("copy", program.url, files, code=1).err
    assert "open it with the --cold FOLDER that it was moved to" in refused
    here("copy", program.url, files, "--cold", archive)
    with everthread.open(files) as copied:
        assert [version.seq for version in copied.thread("bot").history()] == [3, 2, 1]
    here("copy", files, f"sqlite:///{tmp_path}/back.db", "--cold", archive)
    assert "without --cold FOLDER" in here("status", "--store", files, "--cold", archive, code=2).err
