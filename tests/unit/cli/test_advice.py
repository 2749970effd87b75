"""What is said when something is wrong leads on: in the words of who types commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import apsw
import pytest

import everthread
from tests.unit.cli.calling import Committer, Program, here


def spoil(program: Program, thread: str) -> None:
    """Let no version of a thread be readable."""
    db = apsw.Connection(program.url.removeprefix("sqlite:///"))
    (line,) = next(db.execute("SELECT id FROM line WHERE name = ?", (thread,)))
    db.execute("UPDATE record SET body = zeroblob(length(body)) WHERE id >> 32 = ?", (line,))
    assert db.changes()
    db.close()


def test_damage_leads_to_the_doctor(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 2)
    store.close()
    spoil(program, "bot")
    for command in (["show", "bot"], ["log", "bot"]):
        told = program(*command, code=6).err
        assert "fails its checksum" in told
        assert "everthread doctor says" in told


def test_a_scan_tells_what_it_found_beside_the_damage(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    for name in ("a", "b", "c"):
        thread = store.thread(name)
        thread.state["phone"] = "555-0199"
        thread.commit()
    store.close()
    spoil(program, "b")
    answer = program("scan", "555-0199", code=6)
    assert [line.split()[0] for line in answer.out.splitlines()] == ["'a'", "'c'"]
    assert "may not be all: 'b' is damaged" in answer.err
    assert "everthread doctor" in answer.err
    data = program.json("scan", "555-0199", code=6)
    assert (data["count"], data["complete"]) == (2, False)
    # Nothing is redacted where it isn't known what there is.
    assert "'b' is damaged" in program("scan", "555-0199", "--redact", "--yes", code=6).err
    assert program("scan", "555-0199", code=6).out == answer.out


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_is_restored_must_be_a_backup_of_that_kind(kind: str, tmp_path: Path) -> None:
    urls = {"sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/a"}
    for each, url in urls.items():
        with everthread.open(url) as store:
            store.thread("bot").commit(label="first")
            store.backup(tmp_path / f"{each}.backup")
            store.export(tmp_path / f"{each}.archive")
    (other,) = urls.keys() - {kind}
    for place in (urls[kind], urls[kind] + "-new"):
        told = here("restore", f"{tmp_path}/{other}.backup", "--store", place, "--yes", code=2).err
        assert "of another kind" in told
        assert "everthread copy" in told
        told = here("restore", f"{tmp_path}/sqlite.archive", "--store", place, "--yes", code=2).err
        assert f"everthread import {tmp_path}/sqlite.archive" in told
        here("restore", f"{tmp_path}/{kind}.backup", "--store", place, "--yes")


def test_a_short_passphrase(program: Program, commits: Committer, monkeypatch: pytest.MonkeyPatch) -> None:
    commits("bot", 1)
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "short")
    told = program("export", f"{program.folder}/x.archive", "--with-keys", code=2).err
    assert "--with-keys takes a passphrase of at least 12 characters" in told
    assert "keys=" not in told


def test_conflicts_name_the_option(program: Program, commits: Committer, tmp_path: Path) -> None:
    commits("bot", 1)
    other = f"sqlite:///{tmp_path}/other.db"
    with everthread.open(other) as store:
        store.thread("bot").commit(label="first")
    assert "--on-conflict skip leaves these out" in here("copy", program.url, other, code=2).err


def test_what_is_said_after_a_question_has_a_line_of_its_own(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    told = program("rewind", "bot", "1", code=1, input="").err
    assert told.splitlines()[-1] == "everthread: stopped; nothing is half done"


def test_a_resolved_open_loop_is_a_change(program: Program, store: everthread.Store) -> None:
    with store.session("bot") as session:
        loop = session.work.add_open_loop("Ann still owes us the March file")
        session.work.resolve_open_loop(loop.id)
    told = program("diff", "bot").out
    assert "+1 in open_loops" in told
    assert "open_loops “Ann still owes us the March file”.resolved_at" in told
    assert "updated_at" not in told
    assert "+1 in open_loops" in program("log", "bot", "--limit", "1").out


@pytest.mark.parametrize("name", ["bot", "-bot", "two words"])
def test_a_command_that_is_advised_works_as_it_is_typed(program: Program, name: str) -> None:
    with everthread.open(program.url, namespace="acme") as store, store.session(name) as session:
        for key in ("pay", "-pay"):
            with pytest.raises(ZeroDivisionError):
                session.call(key, lambda: 1 / 0)
    for _ in range(2):
        told = program("--namespace", "acme", "effects", "--", name, code=4).err
        advised = shlex.split(told.partition("then: everthread ")[2])
        advised.remove("or")
        advised.remove("--done")
        assert here(*advised).out.strip().endswith("not done")
