"""``everthread hold`` and ``everthread users``."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import Program


def test_a_held_person_is_not_erased_until_the_hold_is_released(
    program: Program, store: everthread.Store
) -> None:
    store.users.set("bob", "mail", "bob@example.org")
    assert program("hold", "add", "bob", "--reason", "case 17").out == "held bob: case 17\n"
    program("erase", "--subject", "bob", "--yes", code=1)
    (held,) = program.json("hold", "list")["holds"]
    assert (held["reason"], held["refused"], held["threads"], held["keys"]) == ("case 17", 1, [], [])
    assert "case 17, 1 refused" in program("hold", "list", "bob").out
    assert program("hold", "release", "bob", "--reason", "closed").out == "released bob\n"
    assert store.holds() == []
    assert program.json("hold", "list")["holds"] == []
    program("erase", "--subject", "bob", "--yes")
    assert store.users.get("bob", "mail") is None


def test_a_hold_may_cover_threads_and_values(program: Program, store: everthread.Store) -> None:
    program("hold", "add", "carol", "--reason", "case 17", "--in", "case/", "--key", "mail")
    (held,) = store.holds("carol")
    assert (held.threads, held.keys) == (("case/",), ("mail",))


def test_a_hold_without_a_reason_or_none_to_release_is_refused(
    program: Program, store: everthread.Store
) -> None:
    program("hold", "add", "bob", code=2)
    program("hold", "add", "bob", "--reason", " ", code=2)
    assert "there is no legal hold" in program("hold", "release", "bob", code=2).err
    assert store.holds() == []


def test_a_value_of_a_person_is_set_read_listed_and_removed(program: Program) -> None:
    assert program("users", "set", "ann", "mail", "-", input="ann@example.org\n").out == "set mail of ann\n"
    program("users", "set", "ann", "newsletter", "true", "--parse")
    with everthread.open(program.url) as store:
        assert store.users.get("ann", "mail") == "ann@example.org"
        assert store.users.get("ann", "newsletter") is True
    assert program("users", "get", "ann", "mail").out == "ann@example.org\n"
    assert program.json("users", "get", "ann", "newsletter")["value"] is True
    assert program.json("users", "list", "ann")["keys"] == ["mail", "newsletter"]
    assert program("users", "remove", "ann", "mail").out == "removed mail of ann\n"
    assert program("users", "list", "ann").out == "newsletter\n"


def test_setting_a_value_does_not_print_it(program: Program) -> None:
    told = program("users", "set", "ann", "mail", "ann@example.org")
    assert "ann@example.org" not in told.out + told.err
    assert "value" not in program.json("users", "set", "ann", "mail", "ann@example.org")


@pytest.mark.parametrize("command", ["get", "remove"])
def test_a_value_that_is_not_there_ends_with_3(
    program: Program, store: everthread.Store, command: str
) -> None:
    assert "there is no value 'mail' of 'ann'" in program("users", command, "ann", "mail", code=3).err


def test_reading_creates_no_store(program: Program) -> None:
    program("users", "get", "ann", "mail", code=3)
    program("hold", "list", code=3)
    assert not Path(program.url.removeprefix("sqlite:///")).exists()
