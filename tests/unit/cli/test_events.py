"""``everthread events``."""

from __future__ import annotations

from datetime import timedelta

import everthread
from tests.unit.cli.calling import Program


def test_a_stream_is_printed_as_text_json_yaml_and_tsv(program: Program) -> None:
    with everthread.open(program.url) as store:
        tasks = store.events("tasks")
        tasks.append("made", {"title": "pay\x1b[31m"}, agent="planner")
        tasks.append("made", {"to": everthread.Personal("ann", "ann@example.org")})
        tasks.append("done", {"id": 1})
    text = program("events", "tasks").out
    assert [line.split()[0] for line in text.splitlines()] == ["1", "2", "3"]
    assert "made by planner" in text
    assert "\x1b" not in text
    found = program.json("events", "tasks")
    assert [event["type"] for event in found["events"]] == ["made", "made", "done"]
    assert found["events"][2]["data"] == {"id": 1}
    headings, *rows = program("events", "tasks", "--format", "tsv").out.splitlines()
    assert headings.split("\t") == ["seq", "at", "type", "agent", "data"]
    assert len(rows) == 3
    assert "- seq: 1" in program("events", "tasks", "--format", "yaml").out
    for form in ("text", "json", "yaml", "tsv"):
        assert "ann@" not in program("events", "tasks", "--format", form).out


def test_events_are_chosen(program: Program) -> None:
    with everthread.open(program.url) as store:
        store.events("tasks").extend([("made", {"n": n}, "a" if n % 2 else "b") for n in range(1, 7)])

    def seqs(*options: str, code: int = 0) -> list[int]:
        return [each["seq"] for each in program.json("events", "tasks", *options, code=code)["events"]]

    assert seqs("--agent", "a") == [1, 3, 5]
    assert seqs("--after", "4") == [5, 6]
    assert seqs("--limit", "2") == [1, 2]
    assert program.json("events", "tasks", "--limit", "2")["more"] is True
    assert "--after 2" in program("events", "tasks", "--limit", "2").err
    assert seqs("--since", "2020-01-01") == [1, 2, 3, 4, 5, 6]
    assert seqs("--until", "2020-01-01", code=3) == []
    assert seqs("--type", "other", code=3) == []
    assert program("events", "nothing", code=3).err == "no such events\n"


def test_without_a_stream_all_of_them_are_listed(program: Program) -> None:
    with everthread.open(program.url) as store:
        store.thread("bot").update(lambda draft: draft.state.update(n=1))
        assert program("events", code=3).err == "no streams\n"
        store.events("tasks").extend([("made", {"n": n}) for n in range(1, 4)])
        store.events("tasks").retain(ttl=timedelta(days=90), keep=1_000)
        newest = store.events("mails\x1b[31m").append("sent")
        store.events("tasks").trim(keep=2)
        store.events("gone").append("made")
        store.events("gone").delete()
    text = program("events").out
    assert "\x1b" not in text
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert rows["tasks"].endswith("kept 90 d, the newest 1,000")
    assert "gone" not in rows
    found = program.json("events")
    assert found["more"] is False
    streams = {each.pop("name"): each for each in found["streams"]}
    assert streams["tasks"]["events"] == 2
    assert streams["tasks"]["retention"] == {"ttl_s": 90 * 86_400, "keep": 1_000}
    mails = {"events": 1, "newest": newest.at.isoformat(), "retention": None}
    assert streams["mails\x1b[31m"] == mails
    assert program("events", "--format", "tsv").out.splitlines()[0] == "name\tevents\tnewest\tretention"
    assert program.json("events", "--limit", "1")["more"] is True
    assert "larger --limit" in program("events", "--limit", "1").err
    assert "say of which STREAM" in program("events", "--type", "made", code=2).err


def test_the_retention_of_a_stream_is_shown_beside_its_events(program: Program) -> None:
    with everthread.open(program.url) as store:
        tasks = store.events("tasks")
        tasks.append("made")
        assert program.json("events", "tasks")["retention"] is None
        assert program("events", "tasks").err == ""
        tasks.retain(keep=10)
    assert program.json("events", "tasks")["retention"] == {"ttl_s": None, "keep": 10}
    assert "kept: the newest 10" in program("events", "tasks").err
