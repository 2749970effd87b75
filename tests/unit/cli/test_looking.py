"""status, log, show, diff: what they say, to people and to programs."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

import everthread
from everthread.cli import family
from tests.unit.cli.calling import Committer, Program


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))


# ── status ───────────────────────────────────────────────────────────────────────────────────────


def test_status_lists_threads_those_saved_last_first(program: Program, commits: Committer) -> None:
    for name, count in (("b", 2), ("a", 1), ("c", 3)):
        commits(name, count)
    lines = program("status").out.splitlines()
    assert [line.split()[:2] for line in lines] == [["c", "v3"], ["a", "v1"], ["b", "v2"]]
    assert lines[0].endswith("step 3")
    data = program.json("status")
    assert [row["name"] for row in data["threads"]] == ["c", "a", "b"]
    assert (data["total"], data["store"]) == (3, program.url)
    assert program.json("status", "--limit", "1")["total"] == 3
    assert [row["name"] for row in program.json("status", "a")["threads"]] == ["a"]
    assert "2 more threads" in program("status", "--limit", "1").err


def test_status_says_how_sessions_stand(
    program: Program, store: everthread.Store, commits: Committer
) -> None:
    commits("plain", 1)
    with store.session("running"):
        store.session("ended").close()
        found = {row["name"]: row["session"] for row in program.json("status")["threads"]}
        assert found == {"plain": None, "running": "running", "ended": "completed"}
        assert re.search(r"running +v1 .* running", program("status").out)


def test_status_hides_what_belongs_to_object_checkpoints(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    commits("checkpoint:bot", 1)
    assert [row["name"] for row in program.json("status")["threads"]] == ["bot"]
    assert len(program.json("status", "--all")["threads"]) == 2


def test_status_of_an_empty_store(program: Program, store: everthread.Store) -> None:
    answer = program("status")
    assert (answer.out, answer.err.startswith("no threads yet in ")) == ("", True)
    assert program.json("status")["threads"] == []
    assert program("status", "--format", "tsv").out.count("\n") == 1


def test_namespaces_are_apart(program: Program, commits: Committer, tmp_path: Path) -> None:
    commits("here", 1)
    with everthread.open(program.url, namespace="tenant") as other:
        thread = other.thread("there")
        thread.state["n"] = 1
        thread.commit()
    assert [row["name"] for row in program.json("status")["threads"]] == ["here"]
    assert [row["name"] for row in program.json("status", "--namespace", "tenant")["threads"]] == ["there"]


# ── log ──────────────────────────────────────────────────────────────────────────────────────────


def test_log_draws_a_graph_with_changes_and_forks(program: Program, commits: Committer) -> None:
    thread = commits("bot", 4)
    thread.rewind(2)
    thread.fork("what-if", at=2)
    thread.state["n"] = 9
    thread.commit(metadata={"run": "r1"})
    lines = [line.rstrip() for line in program("log", "bot").out.splitlines()]
    marks = [line[:3].rstrip() for line in lines]
    assert marks == ["●", "↶", "│ ●", "│ ●", "├─╯", "●", "●"]
    assert lines[0].endswith('{run: "r1"}  ~1 in n')
    assert lines[1].endswith("back to 2")
    assert "step 2" in lines[5]
    assert lines[5].endswith("⑂ what-if")
    assert "messages +1" in lines[2]


def test_log_of_a_fork_says_from_what(program: Program, commits: Committer) -> None:
    thread = commits("bot", 3)
    other = thread.fork("what-if", at=2)
    other.state["n"] = 7
    other.commit()
    lines = program("log", "what-if").out.splitlines()
    assert lines[1].startswith("⑂ from bot, version 2")
    data = program.json("log", "what-if")
    assert data["forked_from"] == {"thread": "bot", "seq": 2}
    assert program.json("log", "bot")["forks"] == [{"thread": "what-if", "seq": 2}]
    thread.delete()
    assert program.json("log", "what-if")["forked_from"] == {"thread": "bot", "seq": 2}


def test_a_fork_that_denies_effects_says_so(program: Program, commits: Committer) -> None:
    commits("bot", 3).fork("what-if", effects="deny")
    for command in ("show", "log"):
        told = program(command, "what-if")
        assert "calls that have effects are refused" in told.out + told.err
        assert program.json(command, "what-if")["effects"] == "deny"
        told = program(command, "bot")
        assert "refused" not in told.out + told.err
        assert program.json(command, "bot")["effects"] == "inherit"


def test_log_as_data(program: Program, commits: Committer) -> None:
    thread = commits("bot", 5)
    data = program.json("log", "bot", "--limit", "2")
    assert [version["seq"] for version in data["versions"]] == [5, 4]
    assert data["versions"][0]["id"] == thread.head.id
    assert data["more"] is True
    assert data["versions"][0]["summary"] is None
    assert program.json("log", "bot", "--changes")["versions"][-1]["summary"] == "+1 in n; messages +1"
    assert [v["seq"] for v in program.json("log", "bot", "--before", "step 3")["versions"]] == [2, 1]
    rows = table(program("log", "bot", "--format", "tsv").out)
    assert [row["label"] for row in rows] == [f"step {n}" for n in (5, 4, 3, 2, 1)]


def test_log_looks_through_a_bounded_number_of_threads(
    program: Program, commits: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "_PAGE", 2)
    monkeypatch.setattr(family, "LOOKED_THROUGH_MAX", 4)
    thread = commits("bot", 1)
    for number in range(8):
        thread.fork(f"fork {number}")
    data = program.json("log", "bot")
    assert (data["forks_complete"], len(data["forks"])) == (False, 3)
    assert "--forks" in program("log", "bot").err
    data = program.json("log", "bot", "--forks")
    assert (data["forks_complete"], len(data["forks"])) == (True, 8)
    assert "and 5 more" in program("log", "bot", "--forks").out


# ── show ─────────────────────────────────────────────────────────────────────────────────────────


def test_show_draws_what_agents_work_by(program: Program, store: everthread.Store) -> None:
    with store.session("bot", agent="weaver") as s:
        s.work.set_intention("reconcile March")
        s.work.complete_todo(s.work.add_todo("fetch").id)
        s.work.add_todo("book", priority="high")
        s.decide("use FIFO", rationale="auditor asked")
        s.messages.append({"role": "user", "content": "hello"})
        s.merge_update({"region": {"name": "EU", "list": [1, 2]}})
    answer = program("show", "bot")
    shown = answer.out
    assert "run 1 completed by weaver" in shown.splitlines()[0]
    for words in ("➤ reconcile March", "todos: 1 pending, 1 completed", "○ book", "✓ fetch", "? use FIFO"):
        assert words in shown
    assert re.search(r"region  2 items\n.*name  \"EU\"", shown)
    assert "user      hello" in shown
    assert "the last of messages" in answer.err
    data = program.json("show", "bot")
    assert data["session"]["status"] == "completed"
    assert data["state"]["region"] == {"name": "EU", "list": [1, 2]}
    assert data["logs"]["messages"] == 1
    assert data["log"]["items"][0]["content"] == "hello"


@pytest.mark.parametrize(
    ("version", "seq"),
    [
        ("2", 2),
        ("v2", 2),
        ("step 3", 3),
        ("label:step 1", 1),
        ("head", 5),
        ("head~", 4),
        ("head~4", 1),
        ("label:7", 4),
    ],
)
def test_versions_by_number_label_and_distance(
    program: Program, commits: Committer, version: str, seq: int
) -> None:
    thread = commits("bot", 3)
    for label in ("7", "2024-01"):
        thread.state["n"] += 1
        thread.commit(label=label)
    assert program.json("show", "bot", version)["version"]["seq"] == seq
    assert program.json("show", "bot", thread.at(seq).version.id)["version"]["seq"] == seq
    assert program.json("show", "bot", "2024-01")["version"]["seq"] == 5


@pytest.mark.parametrize(
    "version",
    ["9", "v0", "0", "99999999999", "head~7", "no such label", "5-abc", "²", "label:", "-1", "head~x"],
)
def test_versions_that_are_not_there(program: Program, commits: Committer, version: str) -> None:
    commits("bot", 3)
    answer = program("show", "--", "bot", version, code=3)
    assert "version" in answer.err
    assert answer.out == ""


def test_show_other_logs_and_how_much_of_them(program: Program, commits: Committer) -> None:
    thread = commits("bot", 3)
    for name in ("tools", "state", "thread"):
        thread.log(name).append({"text": f"from {name}"})
    thread.commit()
    assert [i["content"] for i in program.json("show", "bot", "--messages", "2")["log"]["items"]] == [
        "message 2",
        "message 3",
    ]
    assert program.json("show", "bot", "--messages", "0")["log"]["items"] == []
    # A log may be called like a field of the answer.
    for name in ("state", "thread"):
        data = program.json("show", "bot", "--log", name)
        assert data["log"]["items"][0]["text"] == f"from {name}"
        assert (data["thread"], data["state"]) == ("bot", {"n": 3})
    assert "there is no log 'nope'" in program("show", "bot", "--log", "nope", code=3).err


def test_show_as_a_table(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["a"] = {"b": [1, {"odd key": "x\ty"}], "empty": {}}
    thread.commit()
    assert program("show", "bot", "--format", "tsv").out.splitlines() == [
        "path\tvalue",
        "a.b[0]\t1",
        'a.b[1]["odd key"]\tx\\ty',
        "a.empty\t{}",
    ]


def test_personal_values_stay_masked(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
    thread.messages.append({"role": "user", "content": everthread.Personal("ann", "call me")})
    thread.commit(metadata={"who": "somebody"})
    thread.state["mail"] = everthread.Personal("ann", "other@example.org")
    thread.commit()
    for command in (["show", "bot"], ["diff", "bot"], ["log", "bot"], ["resume", "bot"]):
        for form in ("text", "json", "yaml", "tsv"):
            answer = program(*command, "--format", form, code=3 if command[0] == "resume" else 0)
            assert "example.org" not in answer.out + answer.err
            assert "call me" not in answer.out + answer.err
    assert "•••" in program("show", "bot").out


def test_large_states_are_shown_in_part(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["many"] = {f"key {n}": n for n in range(1_000)}
    thread.state["deep"] = {}
    node = thread.state["deep"]
    for _ in range(60):
        node["in"] = {}
        node = node["in"]
    thread.state["text"] = "x" * 1_000_000
    thread.commit()
    shown = program("show", "bot").out
    assert len(shown) < 10_000
    assert "… 970 more" in shown
    data = program.json("show", "bot")
    assert len(data["state"]["many"]) == 1_000
    assert len(data["state"]["text"]) == 1_000_000


# ── diff ─────────────────────────────────────────────────────────────────────────────────────────


def test_diff_of_versions(program: Program, commits: Committer) -> None:
    commits("bot", 4)
    assert program("diff", "bot").out.splitlines()[0] == "bot 3 → 4  ~1 in n; messages +1"
    assert program("diff", "bot", "1").out.splitlines()[0].startswith("bot 1 → 4")
    shown = program("diff", "bot", "1", "3").out
    assert "~ n  1 → 3" in shown
    assert "user      message 3" in shown
    data = program.json("diff", "bot", "3", "1")
    assert data["changed"] == {"n": {"old": 3, "new": 1}}
    assert data["logs"]["messages"]["removed"] == 2
    assert (data["old"]["seq"], data["new"]["seq"]) == (3, 1)
    rows = table(program("diff", "bot", "1", "2", "--format", "tsv").out)
    assert tuple(rows[0].values()) == ("changed", "n", "1", "2")


def test_diff_of_the_first_version_is_with_nothing(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    assert program("diff", "bot").out.startswith("bot nothing → 1  +1 in n; messages +1")
    assert program.json("diff", "bot")["old"] is None


def test_diff_with_another_thread(program: Program, commits: Committer) -> None:
    thread = commits("bot", 3)
    other = thread.fork("what-if", at=2)
    other.state["only here"] = True
    other.commit()
    shown = program("diff", "bot", "--with", "what-if").out
    assert shown.startswith("bot 3 → what-if 3  ")
    assert '+ ["only here"]  True' in shown
    assert program.json("diff", "bot", "2", "--with", "what-if")["changed"] == {}
    assert "--with stands for NEW" in program("diff", "bot", "1", "2", "--with", "what-if", code=2).err


def test_diff_names_todos_by_their_words_and_leaves_out_bookkeeping(
    program: Program, store: everthread.Store
) -> None:
    with store.session("bot") as s:
        todo = s.work.add_todo("pay the invoice")
        before = s.thread.head.seq
        s.work.complete_todo(todo.id)
        s.work.add_todo("another one", priority="high")
    shown = program("diff", "bot", str(before)).out
    assert '~ todos “pay the invoice”.status  "pending" → "completed"' in shown
    assert "+ todos “another one”" in shown
    assert "updated_at  " not in shown
    assert "completed_at  " not in shown


def test_diff_of_long_texts_shows_where_they_differ(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    for end in ("left", "right"):
        thread.state["text"] = "x" * 2_000_000 + end
        thread.commit()
    line = program("diff", "bot").out.splitlines()[1]
    assert line == "~ text  …xxxxxxxxxxxxleft → …xxxxxxxxxxxxright"


def test_colours_mark_what_changed(
    program: Program, commits: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits("bot", 2)
    assert "\x1b" not in program("diff", "bot", colour=True).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    for command in ("diff", "log", "show"):
        assert "\x1b[3" in program(command, "bot", colour=True).out
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (
        ["diff", "bot"],
        ["log", "bot"],
        ["show", "bot"],
        ["status"],
        ["resume", "bot"],
        ["doctor"],
    ):
        code = 3 if command[0] == "resume" else 0
        assert "\x1b" not in program(*command, code=code, colour=True).out


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_thread_is_not_there_and_others_are_named(program: Program, commits: Committer) -> None:
    commits("invoice-bot", 1)
    for command in (["log"], ["show"], ["diff"], ["resume"]):
        assert program(*command, "nobody", code=3).out == ""
    assert "there is 'invoice-bot'" in program("show", "invoice-bt", code=3).err


def test_status_where_no_name_begins_so(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    answer = program("status", "zzz", code=3)
    assert (answer.out, answer.err.startswith("no thread begins with 'zzz' in ")) == ("", True)
    assert program.json("status", "zzz", code=3)["threads"] == []


def test_a_summary_counts_what_is_shown(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as session:
        todo = session.work.add_todo("reconcile March")
        session.work.complete_todo(todo.id)
        last = store.thread("bot").head
        assert last is not None
    told = program("diff", "bot", str(last.seq - 1), str(last.seq)).out
    assert "~1 in todos" in told.splitlines()[0]
    assert len(told.splitlines()) == 2, told
    versions = program.json("log", "bot", "--changes")["versions"]
    assert [each["summary"] for each in versions if each["seq"] == last.seq] == ["~1 in todos"]


def test_before_the_head_counts_as_the_log_does(program: Program, commits: Committer) -> None:
    """A rewind is a version like any other, and what it left behind is still counted."""
    thread = commits("bot", 5)
    thread.rewind(2)
    thread.state["n"] = 99
    thread.commit()
    listed = [each["seq"] for each in program.json("log", "bot")["versions"]]
    assert listed == [7, 6, 5, 4, 3, 2, 1]
    for back, seq in enumerate(listed):
        assert program.json("show", "bot", f"head~{back}")["version"]["seq"] == seq


def test_log_tells_which_step_and_slot_made_a_version(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    for slot in (0, 1):
        with thread.step("fetch", slot=slot) as step:
            step.messages.append({"content": f"page {slot}"})
    listed = program.json("log", "bot")["versions"]
    assert [(each["step"], each["slot"]) for each in listed if each["step"]] == [("fetch", 1), ("fetch", 0)]
