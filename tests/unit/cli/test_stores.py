"""Which store a command works on, and what it does about one that is missing, damaged, busy or newer."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

import everthread
from tests.unit.cli.calling import Committer, Program, here

READING = [
    ["status"],
    ["log", "bot"],
    ["show", "bot"],
    ["diff", "bot"],
    ["resume"],
    ["resume", "bot", "--briefing"],
    ["fork", "bot", "b"],
    ["rewind", "bot", "1", "--yes"],
    ["gc", "--yes"],
]


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# ── which one ────────────────────────────────────────────────────────────────────────────────────


def commit(url: str, name: str) -> None:
    with everthread.open(url) as store:
        thread = store.thread(name)
        thread.state["n"] = 1
        thread.commit()


def test_option_variable_nearest_folder_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*arguments: str) -> list[str]:
        return [row["name"] for row in here("status", "--json", *arguments).data["threads"]]

    home, project, below = tmp_path / "home", tmp_path / "project", tmp_path / "project" / "a" / "b"
    for folder in (home / ".everthread", project / ".everthread", below):
        folder.mkdir(parents=True)
    commit(f"sqlite:///{home}/.everthread/everthread.db", "of home")
    commit(f"sqlite:///{project}/.everthread/everthread.db", "of project")
    commit(f"sqlite:///{tmp_path}/variable.db", "of variable")
    commit(f"sqlite:///{tmp_path}/option.db", "of option")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("EVERTHREAD_URL")
    monkeypatch.chdir(tmp_path)
    assert found() == ["of home"]
    monkeypatch.chdir(below)
    assert found() == ["of project"]
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{tmp_path}/variable.db")
    assert found() == ["of variable"]
    assert found("--store", f"sqlite:///{tmp_path}/option.db") == ["of option"]
    monkeypatch.chdir(tmp_path)
    assert found("--store", "sqlite:///option.db") == ["of option"]


def test_options_may_stand_before_or_after_the_command(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    before = here("--store", program.url, "--json", "show", "bot").data
    after = here("show", "bot", "--json", "--store", program.url).data
    assert before == after


@pytest.mark.parametrize(
    "url", ["", "agent", "nosuch://x", "sqlite:", "sqlite://x", "memory", "file:relative"]
)
def test_what_is_no_url_is_wrong_usage(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert here("status", "--store", url, code=2).err
    assert listing(tmp_path) == set()


def test_a_path_is_a_store(
    program: Program, commits: Committer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits("bot", 1)
    assert "bot" in here("status", "--store", f"{program.folder}/agent.db").out
    monkeypatch.chdir(program.folder)
    monkeypatch.setenv("EVERTHREAD_URL", "agent.db")
    assert "bot" in here("status").out
    here("copy", "agent.db", f"file://{tmp_path}/folder")
    assert "bot" in here("status", "--store", "folder").out
    assert "sqlite:///nothing" in here("status", "--store", "nothing", code=2).err
    assert "no store at" in here("status", "--store", "none.db", code=3).err


def test_contradicting_formats_are_wrong_usage(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    assert "asked for too" in program("status", "--json", "--format", "yaml", code=2).err
    assert "asked for too" in here("--json", "--store", program.url, "status", "--format", "tsv", code=2).err
    assert program("status", "--json", "--format", "json").data


# ── missing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arguments", READING, ids=lambda each: "-".join(each[:1]))
def test_looking_never_makes_a_store(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here_ = tmp_path / "home", tmp_path / "here"
    (here_ / ".everthread").mkdir(parents=True)
    (here_ / "empty.db").touch()
    (here_ / "folder").mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("EVERTHREAD_URL")
    before = listing(tmp_path)
    monkeypatch.chdir(here_)
    for url in ("sqlite:///none.db", "sqlite:///empty.db", f"file://{here_}/none", f"file://{here_}/folder"):
        answer = here(*arguments, "--store", url, code=3)
        assert "there is no store at" in answer.err
    here(*arguments, code=3)
    monkeypatch.chdir(tmp_path)
    answer = here(*arguments, code=3)
    assert f"{home}/.everthread/everthread.db" in answer.err
    assert listing(tmp_path) == before


def test_the_folder_we_are_in_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.delenv("EVERTHREAD_URL")
    gone.rmdir()
    assert "No such file or directory" in here("status", code=1).err


# ── damaged, busy, newer, of others ──────────────────────────────────────────────────────────────


def corrupt(path: Path) -> None:
    """Overwrite the newest record's body with noise, as a failing disk may."""
    db = apsw.Connection(str(path))
    db.execute("UPDATE record SET body = zeroblob(length(body)) WHERE id = (SELECT max(id) FROM record)")
    db.close(True)


def test_a_damaged_newest_version(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 3)
    store.close()
    corrupt(program.folder / "agent.db")
    answer = program("show", "bot", code=6)
    assert "bot  version 2" in answer.out
    assert "damaged: 'bot' stands on version 2" in answer.err
    data = program("show", "bot", "--json", code=6).data
    assert (data["version"]["seq"], data["recovered"]["lost"]) == (2, [3, 3])
    assert program("log", "bot", code=6).out
    assert program("diff", "bot", code=6).out
    answer = program("status", code=6)
    assert "damaged" in answer.out
    assert "the newest version of 'bot'" in answer.err
    answer = program("doctor", code=6)
    assert "✗ records" in answer.out
    assert f"everthread salvage sqlite:///salvaged.db --store {program.url} " in answer.out
    data = program("doctor", "--json", code=6).data
    assert data["ok"] is False
    assert [each["check"] for each in data["checks"] if not each["ok"]][:2] == ["records", "damage"]
    # What is sound can be forked.
    assert program("fork", "bot", "saved").out
    assert program.json("show", "saved")["state"] == {"n": 2}


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be one" * 100)
    apsw.Connection(str(tmp_path / "other.db")).execute("CREATE TABLE t (x)")
    for name in ("text.db", "other.db"):
        before = (tmp_path / name).read_bytes()
        for command in (["status"], ["doctor"]):
            answer = here(*command, "--store", f"sqlite:///{tmp_path}/{name}", code=2)
            assert "left as it is" in answer.err + answer.out
        assert (tmp_path / name).read_bytes() == before
    assert "is a folder" in here("status", "--store", f"sqlite:///{tmp_path}", code=1).err


def test_a_torn_file(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 30)
    store.close()
    path = program.folder / "agent.db"
    data = path.read_bytes()
    path.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
    for command in (["status"], ["show", "bot"], ["doctor"]):
        answer = program(*command, code=6)
        assert "Traceback" not in answer.err
    assert f"everthread salvage sqlite:///salvaged.db --store {program.url} " in program("doctor", code=6).out


def test_a_newer_store_is_left_alone(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 1)
    store.close()
    path = program.folder / "agent.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA user_version = 99")
    db.close(True)
    before = path.read_bytes()
    assert "newer Everthread" in program("status", code=1).err
    assert "newer Everthread" in program("doctor", code=1).out
    assert path.read_bytes() == before


def test_a_busy_store(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    program.url += "?busy_timeout_ms=50"
    blocker = apsw.Connection(str(program.folder / "agent.db"))
    blocker.execute("BEGIN IMMEDIATE")
    # Who only looks doesn't wait.
    assert program("status").out
    assert program("show", "bot").out
    for command in (["rewind", "bot", "1", "--yes"], ["fork", "bot", "b"]):
        answer = program(*command, code=5)
        assert answer.out == "" or command[0] == "rewind"
    blocker.close()
    assert program("fork", "bot", "b").out


# ── doctor ───────────────────────────────────────────────────────────────────────────────────────


def test_doctor_where_all_is_well(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    answer = program("doctor")
    assert "✗" not in answer.out
    assert "1 thread, 2 versions: no damage" in answer.out
    checks = [each["check"] for each in program("doctor", "--quick", "--json").data["checks"]]
    assert "records" not in checks
    assert {"everthread", "SQLite", "store", "private", "room"} <= set(checks)
    rows = program("doctor", "--format", "tsv").out.splitlines()
    assert rows[0] == "check\tok\tfound\tadvice"


def test_doctor_without_a_store(tmp_path: Path) -> None:
    answer = here("doctor", "--store", f"sqlite:///{tmp_path}/none.db", code=3)
    assert "there is no store at" in answer.out
    assert listing(tmp_path) == set()


def test_doctor_minds_who_may_read(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    os.chmod(program.folder / "agent.db", 0o644)
    answer = program("doctor", code=1)
    assert f"chmod 600 {program.folder}/agent.db" in answer.out
    assert "something needs you" in answer.err


def test_doctor_names_what_a_killed_backup_left(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    part = program.folder / "agent.backup.partial-0123456789abcdef"
    part.write_bytes(b"half")
    answer = program("doctor", "--quick")
    assert f"{part}: part of a backup" in answer.out
    assert part.exists()


def test_every_command_on_a_file_store(tmp_path: Path) -> None:
    program = Program(f"file://{tmp_path}/files", tmp_path)
    commit(program.url, "bot")
    with everthread.open(program.url) as store, store.session("agent") as s:
        s.work.add_todo("x")
    for command in (["status"], ["log", "bot"], ["show", "agent"], ["diff", "agent"], ["resume", "agent"]):
        assert program(*command).out
        assert program(*command, "--json").data["schema_version"] == 1
    program("fork", "bot", "b")
    program("rewind", "agent", "1", "--yes")
    program("doctor")


def test_what_is_kept_beside_threads_is_no_thread(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as session:
        session.call("pay", lambda: "the word to look for")
    assert "1 thread and 1 companion (a journal, " in program("doctor").out
    (place,) = program.json("scan", "the word to look for")["places"]
    assert (place["thread"], place["beside"]) == ("bot", "journal")
    assert program("scan", "the word to look for").out.startswith("'bot' journal v")
