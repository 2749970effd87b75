"""verify, salvage, backup and restore, as commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from tests.unit.cli.calling import Committer, Program, here, interrupted_apart
from tests.unit.cli.test_keeping import contents
from tests.unit.cli.test_stores import corrupt


def test_verify(program: Program, commits: Committer, store: everthread.Store) -> None:
    commits("bot", 3)
    assert program("verify").out == "1 thread, 3 versions: no damage\n"
    found = program.json("verify")
    assert found.pop("needs")["values"] == 0
    assert found == {
        "schema_version": 1,
        "command": "verify",
        "ok": True,
        "damage": [],
        "summary": "1 thread, 3 versions: no damage",
    }
    store.close()
    corrupt(program.folder / "agent.db")
    answer = program("verify", code=6)
    assert "damaged place" in answer.out
    assert "'bot', version 3" in answer.out
    (damage, *_) = program.json("verify", code=6)["damage"]
    assert (damage["thread"], damage["first"]) == ("bot", 3)
    assert here("verify", "--store", f"sqlite:///{program.folder}/none.db", code=3).err


def test_salvage(program: Program, commits: Committer, store: everthread.Store, tmp_path: Path) -> None:
    commits("bot", 3)
    commits("sound", 2)
    store.close()
    corrupt(program.folder / "agent.db")
    before = (program.folder / "agent.db").read_bytes()
    target = f"sqlite:///{tmp_path}/saved.db"
    answer = program("salvage", target, code=6)
    assert answer.out.startswith("2 threads: ")
    with everthread.open(target) as saved:
        assert {info.name for info in saved.threads()} >= {"bot", "sound"}
        assert saved.verify().ok
    assert (program.folder / "agent.db").read_bytes() == before
    # Never over something, least of all over what is to be saved.
    assert "holds threads already" in program("salvage", target, code=2).err
    assert "the damaged store itself" in program("salvage", program.url, code=2).err
    assert "memory: is gone" in program("salvage", "memory:", code=2).err
    assert here("salvage", target, "--store", f"sqlite:///{tmp_path}/none.db", code=3).err
    assert "can be salvaged" in here("salvage", target, "--store", "valkey://localhost/0", code=2).err
    sound = program("salvage", f"sqlite:///{tmp_path}/again.db", "--store", target)
    assert "0 lost" in sound.out


def test_what_is_salvaged_must_stay(
    program: Program, commits: Committer, store: everthread.Store, valkey_url: str
) -> None:
    commits("bot", 1)
    store.close()
    assert "can't keep" in program("salvage", valkey_url, code=2).err
    told = program("salvage", f"sqlite:///{program.folder}/saved.db").out
    assert told.startswith("1 thread: 1 version kept, 0 made anew, 0 lost; ")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_backup_and_restore(kind: str, tmp_path: Path) -> None:
    def url(name: str) -> str:
        return f"sqlite:///{tmp_path}/{name}" if kind == "sqlite" else f"file://{tmp_path}/{name}"

    program = Program(url("agent"), tmp_path)

    def put(number: int) -> None:
        with everthread.open(program.url) as store:
            store.thread("bot").update(lambda draft: draft.state.update(n=number))

    def number(where: str) -> int:
        found: int = here("show", "bot", "--json", "--store", where).data["state"]["n"]
        return found

    put(1)
    copy = str(tmp_path / "copy")
    assert copy in program("backup", copy).out
    assert "nothing is overwritten" in program("backup", copy, code=2).err
    put(2)
    # It asks, and says what goes; no is no.
    asked = program("restore", copy, code=1, input="n\n")
    assert "this would be replaced: 1 thread" in asked.out
    assert "nothing was changed" in asked.err
    assert "--yes" in program("restore", copy, "--json", code=2).err
    assert number(program.url) == 2
    assert "is as it was" in program("restore", copy, code=0, input="y\n").out
    assert number(program.url) == 1
    # Into a store that isn't there: nothing to ask, and nothing is made for what is no backup.
    (tmp_path / "garbage").write_bytes(b"no backup" * 1000)
    for wrong, code in (("nope", 3), ("garbage", None)):
        answer = here("restore", str(tmp_path / wrong), "--store", url("new"), code=code)
        assert answer.code != 0
        assert not os.path.exists(tmp_path / "new")
    here("restore", copy, "--store", url("new"), code=0, input="")
    assert number(url("new")) == 1


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_restore_looks_before_it_asks(kind: str, tmp_path: Path) -> None:
    itself = tmp_path / "agent"
    program = Program(f"sqlite:///{itself}" if kind == "sqlite" else f"file://{itself}", tmp_path)
    with everthread.open(program.url) as store:
        store.thread("bot").update(lambda draft: draft.state.update(n=1))
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no backup")
    (tmp_path / "empty").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "nothing").symlink_to("/dev/null")
    (tmp_path / "link").symlink_to(itself)
    os.mkfifo(tmp_path / "pipe")
    if kind == "sqlite":
        (tmp_path / "hard").hardlink_to(itself)
    wrong = {
        "none": (3, "there is no backup at"),
        "nowhere": (3, "a link that leads nowhere"),
        "folder": (2, "is a folder" if kind == "sqlite" else "isn't a backup"),
        "text": (2, "isn't a backup" if kind == "sqlite" else "is a file"),
        "empty": (2, "isn't a backup" if kind == "sqlite" else "is a file"),
        "nothing": (2, "neither a file nor a folder"),
        "pipe": (2, "neither a file nor a folder"),
        "agent": (2, "is the store itself"),
        "link": (2, "is the store itself"),
        **({"hard": (2, "is the store itself")} if kind == "sqlite" else {}),
    }
    for name, (code, words) in wrong.items():
        for call in ([], ["--yes"], ["--json", "--yes"]):
            answer = program("restore", str(tmp_path / name), *call, code=code, input="y\n")
            assert words in answer.err, name
            assert "Replace" not in answer.out + answer.err, name
    assert program.json("show", "bot")["state"] == {"n": 1}


def test_restore_leaves_what_is_unfinished_until_the_answer(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    copy = str(program.folder / "copy")
    with everthread.open(program.url) as store:
        store.thread("bot").update(lambda draft: draft.state.update(x=everthread.Personal("ann", "a@b")))
        store.backup(copy)
    interrupted_apart(program, "drop_sealed", 1, "erase", "--subject", "ann", "--yes")
    keys = Path.home() / ".everthread" / "keyring"
    before = contents(program.folder, keys)
    program("restore", copy, code=1, input="n\n")
    program("rewind", "bot", "1", code=1, input="n\n")
    assert contents(program.folder, keys) == before
    program("restore", copy, "--yes")
    with everthread.open(program.url) as store:
        assert isinstance(store.thread("bot").state["x"], everthread.Erased)


def test_restore_tells_of_effects_and_erasures_that_the_backup_does_not_know(
    program: Program, store: everthread.Store
) -> None:
    copy = str(program.folder / "copy")
    with store.session("invoice bot") as session:
        session.call("pay-1", lambda: "paid")
    store.users.set("anna", "email", "anna@example.org")
    store.backup(copy)
    assert "erasure" not in program("restore", copy, "--yes").out
    with store.session("invoice bot") as session:
        session.call("pay-2", lambda: "paid")
        # Not while a run is at work, whatever is answered.
        busy = program("restore", copy, "--yes", code=5)
        assert "a run is at work on 'invoice bot'" in busy.err
        assert session.call("pay-2", lambda: "paid") == "paid"
    store.erase("anna")
    told = program("restore", copy, "--yes")
    assert "but for 1 erasure since then: that stays erased" in told.out
    assert "the backup doesn't know all effects of this thread:\n  invoice bot\n" in told.out
    assert f"everthread settle 'invoice bot' --store {program.url} --lost" in told.err
    with store.session("invoice bot") as session, pytest.raises(everthread.InDoubtError):
        session.call("pay-2", pytest.fail, "paid twice")
    program("settle", "invoice bot", "--lost", "--yes")
    answer = program.json("restore", copy, "--yes")
    assert answer["report"].pop("needs")["unopened"] == 0
    assert answer["report"] == {"doubtful": ["invoice bot"], "since": None, "erased": 1}


def test_restore_where_a_store_was_lost(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 1)
    store.close()
    copy = str(program.folder / "copy")
    program("backup", copy)
    os.truncate(program.folder / "agent.db", 0)
    assert "is empty" in program("restore", copy, code=1, input="n\n").out
    assert os.path.getsize(program.folder / "agent.db") == 0
    program("restore", copy, "--yes")
    assert program.json("show", "bot")["state"] == {"n": 1}
    assert "memory: is gone" in here("restore", copy, "--store", "memory:", code=2).err


def test_valkey_is_backed_up_with_its_own_tools(valkey_lasting_url: str, tmp_path: Path) -> None:
    with everthread.open(valkey_lasting_url) as store:
        store.thread("bot").commit(label="x")
    answer = Program(valkey_lasting_url, tmp_path)("backup", str(tmp_path / "copy"), code=2)
    assert "export" in answer.err
    assert not list(tmp_path.iterdir())


def test_a_server_is_backed_up_by_its_own_tools(postgres_url: str, tmp_path: Path) -> None:
    with everthread.open(postgres_url, durability="process") as store:
        store.thread("bot").commit(label="x")
    program = Program(postgres_url, tmp_path)
    for command in (["backup", str(tmp_path / "copy")], ["restore", __file__, "--yes"]):
        answer = program(*command, code=2)
        assert "pg_dump" in answer.err
        assert "export" in answer.err
    assert not list(tmp_path.iterdir())
    assert program.json("show", "bot")["version"]["label"] == "x"


def test_an_overwritten_beginning_is_damage_and_leads_to_salvage(
    program: Program, commits: Committer, store: everthread.Store, tmp_path: Path
) -> None:
    commits("bot", 3)
    store.close()
    path = program.folder / "agent.db"
    path.write_bytes(b"\xff" * 20 + path.read_bytes()[20:])
    answer = program("status", code=6)
    assert "everthread salvage" in answer.err
    assert "everthread salvage" in program("doctor", code=6).out
    with pytest.raises(everthread.StateCorruptedError, match=r"everthread\.salvage\(\)"):
        everthread.open(program.url)
    program("salvage", f"sqlite:///{tmp_path}/saved.db")
    assert (
        here("--store", f"sqlite:///{tmp_path}/saved.db", "log", "bot", "--json").data["versions"][0]["seq"]
        == 3
    )
    path.write_bytes(b"some other file" * 9_999)
    assert "isn't an Everthread store" in program("status", code=2).err


def test_a_file_that_was_cut_leads_to_salvage(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 40)
    store.close()
    path = program.folder / "agent.db"
    path.write_bytes(path.read_bytes()[:20_000])
    assert "everthread salvage" in program("status", code=6).err


def test_what_stands_beside_threads_is_not_called_journals(program: Program, store: everthread.Store) -> None:
    store.thread("bot").update(lambda draft: draft.state.update(n="a secret"))
    store.users.set("ann", "city", "Paris")
    store.redact("a secret")
    told = program("verify").out
    assert told.startswith("1 thread and 2 companions (journals, users' data, the record of redactions), ")
    assert told.endswith(" versions, 1 of them redacted: no damage\n")
    assert program.json("verify")["summary"] + "\n" == told
    checks = {each["check"]: each["found"] for each in program.json("doctor")["checks"]}
    assert checks["records"] + "\n" == told


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_restore_says_which_redactions_it_undid(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/agent.db" if kind == "sqlite" else f"file://{tmp_path}/agent"
    copy = str(tmp_path / "copy")
    for namespace in ("", "acme"):
        with everthread.open(url, namespace=namespace) as store:
            store.thread("bot").update(lambda draft: draft.state.update(a="one secret", b="two secrets"))
    with everthread.open(url) as store:
        store.redact("one secret", reason="before")
    here("backup", copy, "--store", url)
    same = here("restore", copy, "--yes", "--store", url)
    assert "redaction" not in same.out + same.err
    with everthread.open(url) as store:
        store.redact("two secrets", reason="ticket 9")
    with everthread.open(url, namespace="acme") as store:
        store.redact("two secrets", reason="ticket 10")
    told = here("restore", copy, "--yes", "--store", url)
    assert "what 2 redactions took out since then is back:" in told.out
    assert "1 version of 1 thread: ticket 9\n" in told.out
    assert "1 version of 1 thread: ticket 10\n" in told.out
    assert "before" not in told.out
    assert "everthread scan TEXT --redact" in told.err
    with everthread.open(url) as store:
        assert store.thread("bot").state["b"] == "two secrets"
        store.redact("two secrets", reason="ticket 11")
    (undone,) = here("restore", copy, "--yes", "--json", "--store", url).data["unredacted"]
    assert (undone["reason"], undone["versions"]) == ("ticket 11", 1)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_a_killed_backup_left_is_named(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/agent.db" if kind == "sqlite" else f"file://{tmp_path}/agent"
    (tmp_path / "backups").mkdir()
    code = f"""if True:
        import os, signal, everthread
        from everthread.stores import backup_file
        from everthread.stores.files import backup
        kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        backup_file.put_in_place = backup.write_format = kill
        with everthread.open({url!r}) as store:
            store.thread("bot").commit(label="x")
            store.backup({str(tmp_path / "backups" / "one")!r})
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    (left,) = (tmp_path / "backups").iterdir()
    told = here("backup", str(tmp_path / "backups" / "two"), "--store", url).err
    assert f"beside it: {left}, a part of a backup that was cut short" in told
    assert left.exists(), "somebody may still be at it"
    shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert here("backup", str(tmp_path / "backups" / "three"), "--store", url).err == ""
