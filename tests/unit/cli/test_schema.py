"""What programs rely on: the fields of every answer, and that every command and option is documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

import everthread
from everthread.cli.commands import COMMANDS, load, make_group
from everthread.cli.output import SCHEMA_VERSION
from everthread.sandboxes import Files
from tests.unit.cli.calling import Program, here

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "command-line.md"

#: The fields of schema version 1. A field that goes, or means something else, needs a new version.
FIELDS = {
    "status": "store threads total complete unopened doubts",
    "resume": "thread report",
    "log": "thread versions more forked_from forks forks_complete effects recovered",
    "show": "thread version state logs log session effects recovered",
    "diff": "thread with old new summary added removed changed logs files",
    "files": "thread version files",
    "runs": "thread runs",
    "effects": "thread effects settled losses",
    "settle": "thread effect",
    "doubt": "store doubts",
    "events": "stream events more retention",
    "constraint": "constraints",
    "search": "store hits skipped",
    "fork": "thread source version",
    "rewind": "thread dry_run from to left_behind summary version recovered",
    "scan": "count places report complete",
    "merge": "thread other version effects conflicts",
    "delete": "thread dry_run versions forks",
    "send": "thread id key",
    "stats": "store count others versions pruned bytes deleted beside kinds by_age threads totals summary",
    "export": "report summary",
    "import": "report summary",
    "copy": "report summary",
    "init": "place made thread",
    "todo": "thread todo",
    "note": "thread key value",
    "decide": "thread id text why rejected",
    "outcome": "thread id text outcome failed",
    "loop": "thread id text open",
    "intend": "thread intention",
    "append": "thread version role",
    "gc": "dry_run report summary elsewhere",
    "erase": "dry_run report summary",
    "hold": "subject holds",
    "users": "user key",
    "doctor": "ok checks",
    "verify": "ok damage summary needs",
    "salvage": "target report summary",
    "backup": "store path needs",
    "restore": "store path report unredacted",
    "keyring": "keyring exists keys destroyed stores problem store needs",
    "completion": "shell line file",
    "demo": "ok folder killed_by done in_doubt drifted payments duplicates forked_at payments_after_fork "
    "sound",
}
#: Commands that speak a protocol of their own on stdout and have no answer with fields.
SERVERS = {"mcp"}
INNER = {
    ("status", "threads"): "name version version_id updated_at session label metadata",
    ("log", "versions"): (
        "seq id parent at kind label key step slot source metadata expires_at forks summary files"
    ),
    ("log", "forks"): "thread seq",
    ("show", "version"): "seq id parent at kind label key step slot source metadata expires_at",
    ("show", "log"): "name items",
    ("show", "session"): "status text turns usage in_doubt",
    ("files", "files"): "path kind mode size target personal",
    ("runs", "runs"): "number id status reason agent host pid started_at ended_at turns usage error "
    "workflow execution skipped",
    ("effects", "effects"): "key name state run attempt at settled_at settled_by error result",
    ("settle", "effect"): "key name state run attempt at settled_at settled_by error result",
    ("events", "events"): "seq at type agent data",
    ("constraint", "constraints"): "id text author at",
    ("search", "hits"): "thread kind id log index excerpt score marks",
    ("doctor", "checks"): "check ok found advice",
    ("hold", "holds"): "key_id reason since refused elsewhere threads keys",
    ("diff", "changed"): "old new",
    ("stats", "threads"): "name bytes files versions pruned updated_at_us",
    ("verify", "needs"): "keyring values keys missing unopened problem complete",
}


@pytest.fixture
def answers(program: Program, store: everthread.Store, tmp_path: Path) -> dict[str, Any]:
    with store.session("bot") as s:
        s.work.add_todo("x")
        s.work.set_intention("y")
        s.call("k", lambda: 1)
        with pytest.raises(ZeroDivisionError):
            s.call("doubtful", lambda: 1 // 0)
    thread = store.thread("bot")
    thread.state["n"] = 1
    thread.commit()
    thread.state["n"] = 2
    thread.commit()
    thread.fork("other")
    store.events("tasks").append("made", {"n": 1})
    calls = {
        "status": [],
        "resume": ["bot"],
        "log": ["bot"],
        "show": ["bot"],
        "diff": ["bot"],
        "files": ["list", "tree"],
        "runs": ["bot"],
        "effects": ["bot"],
        "doubt": [],
        "events": ["tasks"],
        "constraint": ["list"],
        "search": ["x"],
        "fork": ["bot", "b"],
        "merge": ["b", "other"],
        "delete": ["other", "--yes"],
        "send": ["bot", "hello"],
        "todo": ["add", "look", "--thread", "shell"],
        "note": ["branch", "x", "--thread", "shell"],
        "decide": ["go", "--why", "x", "--thread", "shell"],
        "outcome": ["go", "gone", "--thread", "shell"],
        "loop": ["open", "wait", "--thread", "shell"],
        "intend": ["go", "--thread", "shell"],
        "append": ["user", "hello", "--thread", "shell"],
        "hold": ["add", "bob", "--reason", "case 17"],
        "users": ["set", "bob", "mail", "b@example.org"],
        "stats": [],
        "rewind": ["bot", "1", "--yes"],
        "gc": ["--yes"],
        "doctor": ["--quick"],
    }
    store.constraints.add("ask first", author="Eve")
    files = Files(store.thread("tree"))
    files.write("a", "x")
    files.save()
    found = {"settle": program.json("settle", "bot", "doubtful", "--done")}
    found |= {command: program.json(command, *rest) for command, rest in calls.items()}
    store.thread("bot").update(lambda draft: draft.state.update(found="look for this"))
    found["scan"] = program.json("scan", "look for", "--redact", "--yes")
    thread.refresh()
    thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
    thread.commit()
    found["erase"] = program.json("erase", "--subject", "ann", "--dry-run")
    archive, copied = str(tmp_path / "moved.archive"), f"sqlite:///{tmp_path}/copied.db"
    found["export"] = program.json("export", archive)
    found["import"] = here("import", archive, "--json", "--store", copied).data
    found["copy"] = here("copy", copied, f"sqlite:///{tmp_path}/again.db", "--json").data
    found["verify"] = program.json("verify")
    found["keyring"] = program.json("keyring", "status")
    found["backup"] = program.json("backup", str(tmp_path / "backup"))
    salvaged = f"sqlite:///{tmp_path}/salvaged.db"
    found["salvage"] = here("salvage", salvaged, "--store", copied, "--json").data
    found["restore"] = program.json("restore", str(tmp_path / "backup"), "--yes")
    found["init"] = here("init", str(tmp_path / "place"), "--json").data
    found["completion"] = here("completion", "bash", "--json").data
    return found


def test_every_answer_has_its_fields(answers: dict[str, Any]) -> None:
    assert SCHEMA_VERSION == 1
    # The demonstration has a test of its own.
    assert {*answers, "demo"} == set(COMMANDS) - SERVERS == set(FIELDS)
    for command, data in answers.items():
        assert list(data) == ["schema_version", "command", *FIELDS[command].split()], command
        assert (data["schema_version"], data["command"]) == (1, command)
    for (command, field), names in INNER.items():
        inner = answers[command][field]
        if isinstance(inner, list):
            inner = inner[0]
        elif field == "changed":
            inner = next(iter(inner.values()))
        assert list(inner) == names.split(), (command, field)


def test_the_guide_names_every_field() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_]+)`", text))
    for names in (*FIELDS.values(), *INNER.values()):
        assert set(names.split()) <= documented, sorted(set(names.split()) - documented)


def parameters_of(command: click.Command) -> list[click.Parameter]:
    """Those of a command, and of the commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for each in below for parameter in each.params)]


def test_every_command_and_option_is_in_the_guide() -> None:
    sections = dict(
        re.findall(
            r"^## everthread (\w+)\n(.*?)(?=^## )",
            GUIDE.read_text(encoding="utf-8") + "\n## ",
            re.MULTILINE | re.DOTALL,
        )
    )
    assert set(sections) == set(COMMANDS)
    shared = {name for option in make_group().params for name in option.opts}
    whole = GUIDE.read_text(encoding="utf-8")
    assert not [name for name in shared if f"`{name}" not in whole]
    for name, text in sections.items():
        for parameter in parameters_of(load(name)):
            if isinstance(parameter, click.Argument):
                assert str(parameter.name).upper() in text, (
                    name,
                    parameter,
                )
            elif not set(parameter.opts) & shared:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert f"`{option}" in text, (name, option)


def test_the_guide_names_no_option_that_is_not_there() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    known = {name for option in make_group().params for name in option.opts} | {"--help"}
    for name in COMMANDS:
        for parameter in parameters_of(load(name)):
            known |= {*parameter.opts, *parameter.secondary_opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known


def test_every_command_helps_with_examples() -> None:
    for name in COMMANDS:
        text = here(name, "--help").out
        assert f"Usage: everthread {name}" in text
        assert "Examples:" in text
        for example in re.findall(r"^ {4}everthread (.*)$", text, re.MULTILINE):
            check_example(example)
        for option in re.findall(r"^  (?:-\w, )?(--[a-z-]+)(.*)$", text, re.MULTILINE):
            assert option


def check_example(line: str) -> None:
    """An example must be a call that the command takes."""
    import shlex

    words = shlex.split(line.partition(" | ")[0].partition(" >> ")[0])
    name, rest = words[0], words[1:]
    command = load(name)
    if isinstance(command, click.Group):
        name, command = rest[0], command.commands[rest.pop(0)]
    with command.make_context(name, list(rest), resilient_parsing=False, obj=None) as context:
        assert context.params is not None


def test_help_names_every_command() -> None:
    text = here("--help").out
    assert set(COMMANDS) == set(re.findall(r"^  ([a-z]+)  +\S", text.split("Commands:")[1], re.MULTILINE))


def test_help_and_the_guide_name_the_same_exit_codes() -> None:
    text = " ".join(here("--help").out.split())
    codes = text[text.index("Exit codes: ") + len("Exit codes: ") :].partition(".")[0]
    from_help = [tuple(entry.split(" ", 1)) for entry in codes.split("; ")]
    from_guide = re.findall(r"^\| (\d+) \| (.+) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [code for code, _ in from_help] == [code for code, _ in from_guide]
    assert all(row.startswith(words) for (_, words), (_, row) in zip(from_help, from_guide, strict=True))
