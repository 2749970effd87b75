"""A thread whose journal is damaged in the middle: what commands say of it, once, and what they end with."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import Answer, Program

VERSIONS = 8
HURT = 5


def damage(folder: Path, name: str, version: int) -> None:
    """Change a letter in the line of a version, as a failing disk may."""
    (journal,) = (folder / "data" / "threads").glob(f"{name}-*/journal-0000000001.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if b'"seq":%d,' % version in line.replace(b" ", b"")]
    line = bytearray(lines[at])
    line[len(line) // 2] ^= 1
    journal.write_bytes(b"".join([*lines[:at], bytes(line), *lines[at + 1 :]]))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    folder = tmp_path / "store"
    with everthread.open(f"file://{folder}") as store:
        for name in ("bot", "well"):
            thread = store.thread(name)
            for number in range(1, VERSIONS + 1):
                thread.state["n"] = number
                thread.commit(label="kept" if number == 2 else None)
    damage(folder, "bot", HURT)
    return Program(f"file://{folder}", tmp_path)


def told_once(answer: Answer) -> None:
    """Which line can't be read is said, and said once, in the words of those who type commands."""
    assert (answer.out + answer.err).count("doesn't fit its checksum") == 1, answer
    assert "store.verify()" not in answer.err
    assert "everthread doctor" in answer.out + answer.err


def test_what_looks_at_it_says_so_once_and_ends_with_6(program: Program) -> None:
    for command in (["show", "bot"], ["log", "bot"], ["diff", "bot"], ["diff", "bot", "2", "3"]):
        answer = program(*command, code=6)
        told_once(answer)
        assert "damaged: 'bot' stands on version 4" in answer.err
        # It comes last, where people look when it is over.
        assert "damaged" in answer.err.splitlines()[-1]
    assert program("show", "well").err == ""


def test_status(program: Program) -> None:
    answer = program("status", code=6)
    assert "the newest version of 'bot'" in answer.err
    assert "everthread doctor" in answer.err
    threads = {each["name"]: each for each in program.json("status", code=6)["threads"]}
    assert (threads["bot"]["session"], threads["bot"]["version"]) == ("damaged", HURT - 1)
    assert (threads["well"]["session"], threads["well"]["version"]) == (None, VERSIONS)
    assert program("status", "we").err == ""


def test_resume(program: Program) -> None:
    answer = program("resume", "bot", code=6)
    told_once(answer)
    assert "stands on version 4" in answer.out
    problems = program.json("resume", "bot", code=6)["report"]["problems"]
    assert len(problems) == 1
    assert problems[0].startswith("versions 5–8, the newest; it stands on version 4 ")
    assert "UNREADABLE: versions 5–8, the newest" in program("resume", "bot", "--briefing", code=6).out
    assert "damaged" not in program("resume", "well", code=3).err


def test_a_rewind_goes_on_from_what_can_be_read_and_ends_with_6_once(program: Program) -> None:
    data = program.json("rewind", "bot", "3", "--dry-run", code=6)
    assert data["recovered"]["lost"] == [HURT, VERSIONS]
    # Who says no has been told.
    told_once(program("rewind", "bot", "3", code=1, input="n\n"))
    answer = program("rewind", "bot", "3", "--yes", code=6)
    told_once(answer)
    assert "bot is at version 9, as it was at 3" in answer.out
    # From there on the newest version is sound; the damage stays where it is.
    for command in (["show", "bot"], ["status"], ["resume", "bot"], ["rewind", "bot", "2", "--yes"]):
        assert "damaged" not in program(*command, code=3 if command[0] == "resume" else 0).err
    assert program("verify", code=6)


def test_a_fork_is_the_way_out_and_ends_with_0(program: Program) -> None:
    told_once(program("fork", "bot", "saved"))
    assert program.json("show", "saved")["state"] == {"n": 4}


def test_gc_names_it_once(program: Program) -> None:
    answer = program("gc", "--keep-last", "2", "--dry-run", code=1)
    told_once(answer)
    assert answer.err.count("'bot' was left as it is") == 1
    report = program.json("gc", "--keep-last", "2", "--yes", code=1)["report"]
    assert len(report["problems"]) == 1
    assert report["versions"] > 0, "the other one was pruned"
    told_once(program("gc", "--keep-last", "2", "--yes", code=1))
