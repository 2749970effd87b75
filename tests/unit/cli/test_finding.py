"""``everthread search``."""

from __future__ import annotations

from tests.unit.cli.calling import Committer, Program


def test_search(program: Program, commits: Committer) -> None:
    thread = commits("bot", 1)
    thread.messages.append({"id": "m1", "role": "user", "content": "Pay the \x1b[31m March invoice"})
    thread.commit()
    text = program("search", "march", "pay").out
    assert "bot" in text
    assert "message m1" in text
    assert "\x1b" not in text
    (hit,) = program.json("search", "march")["hits"]
    assert (hit["thread"], hit["kind"], hit["id"], hit["index"]) == ("bot", "message", "m1", 1)
    headings, row = program("search", "march", "--format", "tsv").out.splitlines()
    assert headings.split("\t")[:3] == ["thread", "kind", "id"]
    assert row.split("\t")[:3] == ["bot", "message", "m1"]


def test_nothing_found_and_nothing_asked(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    answer = program("search", "nothing", code=3)
    assert (answer.out, answer.err) == ("", "nothing found\n")
    assert "one word" in program("search", "?!", code=2).err
    program("search", code=2)
    program("search", "x", "--kind", "nonsense", code=2)
