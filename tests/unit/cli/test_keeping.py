"""init, gc, completion."""

from __future__ import annotations

import datetime
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import everthread
from everthread import process
from everthread.maintenance import unfinished
from everthread.redaction.redact import RedactionRequest
from everthread.stores.contract import ErasedKey
from tests.unit.cli.calling import Committer, Program, here

# ── init ─────────────────────────────────────────────────────────────────────────────────────────


def test_init_makes_a_private_place_that_programs_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVERTHREAD_URL")
    project = tmp_path / "project"
    answer = here("init", str(project))
    place = project / ".everthread"
    assert answer.out == f"{place} is the place for your agents' state; default thread: project\n"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert (place / ".gitignore").read_text() == "*\n"
    below = project / "src"
    below.mkdir()
    monkeypatch.chdir(below)
    with everthread.open() as store:
        thread = store.thread("bot")
        thread.state["n"] = 1
        thread.commit()
    assert (place / "everthread.db").exists()
    assert [row["name"] for row in here("status", "--json").data["threads"]] == ["bot"]


def test_init_again_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert here("init", "--json").data["made"] is True
    (tmp_path / ".everthread" / ".gitignore").write_text("mine\n")
    answer = here("init")
    assert answer.out.endswith(f"is there already; default thread: {tmp_path.name}\n")
    assert (tmp_path / ".everthread" / ".gitignore").read_text() == "mine\n"


def test_init_says_when_another_place_is_no_longer_found(tmp_path: Path) -> None:
    here("init", str(tmp_path))
    assert f"no longer {tmp_path}/.everthread" in here("init", str(tmp_path / "below")).err


def test_init_makes_a_store_where_a_url_says_so(tmp_path: Path) -> None:
    for url, made in ((f"sqlite:///{tmp_path}/a.db", "a.db"), (f"file://{tmp_path}/files", "files")):
        assert here("init", "--store", url, "--json").data["made"] is True
        assert (tmp_path / made).exists()
        assert here("init", "--store", url, "--json").data["made"] is False
        assert here("init", "--store", url).out.startswith("there is a store at ")
        assert here("status", "--store", url, "--json").data["threads"] == []
    assert "not both" in here("init", "x", "--store", "memory:", code=2).err


def test_init_where_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / ".everthread").write_text("a file")
    assert "can't make" in here("init", str(tmp_path), code=1).err
    assert "is a file" in here("init", str(tmp_path / ".everthread"), code=2).err


# ── gc ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def old(commits: Committer, store: everthread.Store) -> everthread.Thread:
    """A thread with forty versions without labels, and one that has expired."""
    thread = store.thread("bot")
    for number in range(40):
        thread.state["n"] = number
        thread.commit(label="kept" if number == 9 else None)
    short = store.thread("short\x1b")
    short.state["n"] = 1
    short.commit()
    short.expire(datetime.timedelta(milliseconds=1))
    time.sleep(0.01)
    return thread


def test_gc_shows_what_would_go(program: Program, old: everthread.Thread) -> None:
    for arguments in ([], ["--keep-last", "5"]):
        answer = program("gc", "--dry-run", *arguments)
        assert "1 expired thread" in answer.out
        assert "nothing was removed" in answer.err
    data = program.json("gc", "--dry-run", "--keep-last", "5")
    assert (data["dry_run"], data["report"]["versions"], data["report"]["expired"]) == (
        True,
        34,
        ["short\x1b"],
    )
    assert program.json("gc", "--dry-run", "--keep-last", "5", "--keep-days", "1")["report"]["versions"] == 0
    assert len(list(old.history(limit=None))) == 40


def test_gc_asks_and_takes_no_for_an_answer(program: Program, old: everthread.Thread) -> None:
    answer = program("gc", "--keep-last", "5", code=1, input="n\n")
    assert "this would go: " in answer.out
    assert "expired: short\\x1b" in answer.out
    assert "nothing was changed" in answer.err
    assert "--yes" in program("gc", "--json", code=2).err
    assert program.json("gc", "--dry-run", "--keep-last", "5")["report"]["versions"] == 34


def test_gc_removes(program: Program, old: everthread.Thread, store: everthread.Store) -> None:
    answer = program("gc", "--keep-last", "5", "--compact", input="y\n")
    assert "34 versions of 1 thread" in answer.out
    assert [v.seq for v in store.thread("bot").history(limit=None)] == [40, 39, 38, 37, 36, 10]
    assert program("gc", "--keep-last", "5").out == "nothing to remove\n"
    assert program.json("gc", "--yes")["report"]["expired_count"] == 0
    assert "was pruned" in program("show", "bot", "3", code=3).err
    assert program.json("show", "bot", "kept")["state"] == {"n": 9}
    assert "what came before was pruned" in program("log", "bot").err
    assert program("doctor").out


#: A process that has ended.
GONE = msgspec.structs.replace(process.here(), pid=2**22 + 1)


def contents(folder: Path, keys: Path) -> dict[Path, Any]:
    """What the files of a store and a keyring hold."""
    found: dict[Path, Any] = {path: path.read_bytes() for path in keys.iterdir()}
    for path in folder.glob("**/*.db"):
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found[path] = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        db.close()
    return found


@pytest.mark.parametrize("calls", [["--yes"], ["--yes", "--keep-last", "2"]])
@pytest.mark.parametrize("looks", [[], ["--dry-run"], ["--keep-last", "2"]])
def test_gc_says_whose_time_was_over(
    program: Program, tmp_path: Path, calls: list[str], looks: list[str]
) -> None:
    keys = str(tmp_path / "keys")
    with everthread.open(program.url, keyring=keys) as store:
        thread = store.thread("bot")
        for number in range(5):
            thread.state["city"] = everthread.Personal("dan", f"D{number}")
            thread.commit()
        store.users.set("dan", "city", "D")
        store.users.set("eve", "mail", "e@example.org")
        store.users.expire("dan", 0.3)
        store.users.expire("eve", 0.3, key="mail")
        time.sleep(0.35)
        looked = store.gc(dry_run=True)
        assert (looked.subjects, looked.expired_count) == (2, 0)
        assert "2 persons or values" in str(looked)
    before = contents(tmp_path, Path(keys))
    if looks:
        refused = "--dry-run" not in looks
        answer = program("gc", "--keyring", keys, *looks, input="n\n", code=int(refused))
        assert "2 persons or values" in answer.out
        program("erase", "--subject", "dan", "--keyring", keys, "--dry-run")
        assert contents(tmp_path, Path(keys)) == before, "who only looks changes nothing"
    answer = program("gc", "--keyring", keys, *calls)
    assert "2 persons or values" in answer.out
    assert contents(tmp_path, Path(keys)) != before
    assert program.json("gc", "--keyring", keys, "--yes")["report"]["subjects"] == 0
    with everthread.open(program.url, keyring=keys) as store:
        assert isinstance(store.thread("bot").state["city"], everthread.Erased)
        assert store.erasure_reports()[0]


@pytest.mark.parametrize("left", ["erasure", "redaction", "time"])
def test_who_only_looks_leaves_what_is_unfinished(program: Program, tmp_path: Path, left: str) -> None:
    keys = Path.home() / ".everthread" / "keyring"
    with everthread.open(program.url) as store:
        core = store.core
        for number in range(3):
            store.thread("bot").update(lambda draft, n=number: draft.state.update(n=n, word="sk-live"))
        store.thread("bot").update(lambda draft: draft.state.update(x=everthread.Personal("dan", "D")))
        (key_id,) = core.vault.keyring.key_ids("dan")
        if left == "erasure":
            core.backend.note_erasures([ErasedKey(key_id=key_id, phase=1, erasure=b"e" * 16)])
        elif left == "redaction":
            intention = RedactionRequest("0" * 16, "sk-live", "[redacted]", "")
            begun = msgspec.structs.replace(
                unfinished.work(core, unfinished.REDACTION, note=intention.pack()), who=GONE
            )
            unfinished.begin(core, intention.name, begun)
        else:
            store.users.expire("dan", 0.001)
            time.sleep(0.01)
    before = contents(tmp_path, keys)
    told = program("gc", "--dry-run")
    doctor = program("doctor", code=0 if left == "time" else 1).out
    if left == "time":
        assert "1 person or value" in told.out
    else:
        assert f"the {left} " in told.err
        assert f"the {left} " in doctor
    assert "nothing was removed" in told.err
    program("verify")
    program("scan", "nowhere", code=3)
    program("scan", "sk-live", "--redact", "--dry-run")
    program("rewind", "bot", "1", "--dry-run")
    program("erase", "--subject", "dan", "--dry-run")
    assert contents(tmp_path, keys) == before
    program("gc", "--yes")
    assert contents(tmp_path, keys) != before
    with everthread.open(program.url) as store:
        assert store._left_undone() == []
        state = store.thread("bot").state
        assert (state["word"], bool(state["x"])) == {
            "erasure": ("sk-live", False),
            "redaction": ("[redacted]", True),
            "time": ("sk-live", False),
        }[left]


def test_gc_counts_what_is_due(store: everthread.Store) -> None:
    store.users.set("dan", "city", "D")
    store.users.expire("dan", 0.001)
    store.hold("dan", "case 17")
    time.sleep(0.01)
    assert (store.gc(dry_run=True).subjects, store.gc().subjects) == (0, 0), "held"
    store.release_hold("dan")
    assert store.gc(dry_run=True).subjects == 1
    report = store.gc()
    assert report.subjects == 1
    assert "1 person or value of one whose time was over" in str(report)
    assert store.gc().subjects == 0


def test_gc_tells_sizes_as_they_are(store: everthread.Store) -> None:
    thread = store.thread("bot")
    for number in range(300):
        thread.state["n"] = number
        thread.commit()
    report = store.gc(everthread.Retention(keep_last=2))
    assert report.versions
    assert report.size_after < 1_000_000, "not the room that the log is given ahead"
    assert report.size_after >= store.stats().bytes
    assert "; -" not in str(report), "of so small versions what stays is more"
    assert "grew by 48 bytes" in str(everthread.GcReport(bytes=-48))
    assert "48 bytes freed" in str(everthread.GcReport(bytes=48))


# ── completion ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_line(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = here("completion", shell)
    assert f"_EVERTHREAD_COMPLETE={shell}_source" in answer.out
    assert len(answer.out.splitlines()) == 1
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert here("completion", "--json").data["line"] + "\n" == answer.out


def test_completion_asks_which_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "which shell?" in here("completion", code=2).err


def test_the_line_for_bash_works(program: Program, commits: Committer) -> None:
    for name in ("invoice-bot", "invoice-mailer", "odd name", "in\nvoice"):
        commits(name, 1)
    bash = shutil.which("bash")
    assert bash is not None

    def complete(*words: str) -> list[str]:
        line = " ".join(words)
        answer = program.start(
            _EVERTHREAD_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
        )
        assert answer.code == 0, answer
        return [found.partition(",")[2] for found in answer.out.splitlines() if found]

    assert complete("everthread", "stat") == ["status", "stats"]
    assert set(complete("everthread", "re")) == {"restore", "resume", "rewind"}
    assert complete("everthread", "log", "--be") == ["--before"]
    assert complete("everthread", "log", "inv") == ["invoice-bot", "invoice-mailer"]
    assert complete("everthread", "--store", f"sqlite:///{program.folder}/none.db", "log", "inv") == []
    source = subprocess.run(
        [bash, "-c", 'eval "$(_EVERTHREAD_COMPLETE=bash_source $EVERTHREAD)" && complete -p everthread'],
        env=program.environment(EVERTHREAD=" ".join(program.command())),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "everthread" in source.stdout
    assert not os.path.exists(program.folder / "none.db")


@pytest.mark.parametrize("days", ["nan", "inf", "1e300", "-1", "many"])
def test_days_that_make_no_sense(program: Program, commits: Committer, days: str) -> None:
    commits("bot", 3)
    answer = program("gc", "--keep-days", days, "--yes", code=2)
    assert "--keep-days" in answer.err
    assert "timedelta" not in answer.err
    assert len(program.json("log", "bot")["versions"]) == 3


def test_errors_are_told_in_the_words_of_the_shell(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    answer = program("resume", "bot", "--briefing", "--max-tokens", "3", code=2)
    assert "--max-tokens is 3" in answer.err
    assert "there is 'bot'" in program("resume", "bott", code=3).err
    path = program.folder / "torn.db"
    with everthread.open(f"sqlite:///{path}") as other:
        other.thread("bot").commit(label="first")
    torn = bytearray(path.read_bytes())
    torn[8192::97] = bytes(byte ^ 0x5A for byte in torn[8192::97])
    path.write_bytes(torn)
    answer = here("--store", f"sqlite:///{path}", "status", code=6)
    assert "everthread doctor" in answer.err
    assert "store.verify()" not in answer.err


def test_doctor_counts_what_was_pruned(program: Program, old: everthread.Thread) -> None:
    program("gc", "--keep-last", "5", "--yes")
    found = {each["check"]: each["found"] for each in program.json("doctor")["checks"]}
    assert "6 versions and 34 that were pruned" in found["size"]
    assert "40 versions" in found["records"]
