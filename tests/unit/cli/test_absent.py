"""Looking makes nothing, anywhere; what isn't there, can't be looked at, or won't stay is said."""

from __future__ import annotations

import ctypes
import os
import pty
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import everthread
from tests.servers.postgres import free_port
from tests.servers.valkey import ValkeyServer
from tests.unit.cli.calling import Answer, Committer, Program, here

LOOKING = [["status"], ["show", "bot"], ["doctor"], ["gc", "--yes"], ["export", "never.archive"]]


# ── servers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arguments", LOOKING, ids=lambda each: each[0])
def test_looking_makes_nothing_in_postgres(
    arguments: list[str], postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"{postgres_url}?schema=notyet"
    answer = here(*arguments, "--store", url, code=3)
    assert "there is no store at" in answer.err + answer.out
    assert "✓ store" not in answer.out
    assert schemas(postgres_url) == set()
    assert os.listdir(tmp_path) == []


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'notyet%'").fetchall()
    return {name for (name,) in found}


def test_an_empty_schema_is_no_store_and_stays_empty(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA notyet_empty")
        try:
            here("status", "--store", f"{postgres_url}?schema=notyet_empty", code=3)
            found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'notyet_empty'")
            assert found.fetchone() == (0,)
        finally:
            connection.execute("DROP SCHEMA notyet_empty")


def test_a_store_in_postgres_is_looked_at(postgres_url: str) -> None:
    with everthread.open(postgres_url, durability="process") as store:
        store.thread("bot").update(lambda draft: draft.state.update(n=1))
    assert "bot" in here("status", "--store", postgres_url).out


@pytest.mark.parametrize("arguments", LOOKING, ids=lambda each: each[0])
def test_looking_makes_nothing_in_valkey(
    arguments: list[str], valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = here(*arguments, "--store", valkey_url, code=3)
    assert "there is no store at" in answer.err + answer.out
    assert keys_of(valkey_url) == []
    assert os.listdir(tmp_path) == []


def keys_of(url: str) -> list[bytes]:
    port, _, prefix = url.removeprefix("valkey://127.0.0.1:").partition("/0?prefix=")
    found = ValkeyServer(Path("/"), port=int(port)).ask("KEYS", f"{prefix}:*")
    assert not isinstance(found, Exception)
    keys: list[bytes] = found
    return keys


def test_a_store_in_valkey_is_looked_at(valkey_url: str) -> None:
    with everthread.open(valkey_url, durability="process") as store:
        store.thread("bot").update(lambda draft: draft.state.update(n=1))
    assert "bot" in here("status", "--store", valkey_url).out


def test_the_source_of_a_copy_is_never_made(postgres_url: str, valkey_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    for source in (f"{postgres_url}?schema=notyet", valkey_url, f"sqlite:///{tmp_path}/typo.db", "memory:"):
        assert "there is no store at" in here("copy", source, target, code=3).err
    assert schemas(postgres_url) == set()
    assert keys_of(valkey_url) == []
    assert os.listdir(tmp_path) == []


def test_a_server_that_does_not_answer_is_waited_for_with_a_word(program: Program) -> None:
    url = f"valkey://somebody:secret@127.0.0.1:{free_port()}/0?timeout_ms=2500"
    ours, theirs = pty.openpty()
    try:
        found = subprocess.run(
            program.command("status", "--store", url),
            env=program.environment(),
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
        )
        told = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert found.returncode == 1
    assert told.startswith("connecting to valkey://127.0.0.1:")
    assert "secret" not in told


# ── what wouldn't stay ───────────────────────────────────────────────────────────────────────────


def test_what_is_copied_must_stay(
    program: Program, commits: Committer, store: everthread.Store, valkey_url: str, tmp_path: Path
) -> None:
    commits("bot", 2)
    archive = str(tmp_path / "bot.archive")
    program("export", archive)
    # The server that tests share keeps nothing.
    for arguments in (["copy", program.url, valkey_url], ["import", archive, "--store", valkey_url]):
        refused = here(*arguments, code=2)
        assert "can't keep what --durability full promises" in refused.err
        assert "--durability process" in refused.err
    assert keys_of(valkey_url) == []
    for arguments in (
        ["copy", program.url, "memory:"],
        ["import", archive, "--store", "memory:"],
        ["init", "--store", "memory:"],
    ):
        refused = here(*arguments, code=2)
        assert "memory: is gone when this command ends" in refused.err
        assert refused.out == ""
    # Whoever knows what they do may.
    assert "1 thread" in here("copy", program.url, valkey_url, "--durability", "process").out


def test_a_server_that_may_lose_it_is_warned_of(
    program: Program, commits: Committer, postgres_url: str
) -> None:
    commits("bot", 2)
    # The server that tests share doesn't sync.
    told = here("copy", program.url, postgres_url).err
    assert told.startswith("careful: ")
    assert "can't keep what --durability full promises" in told
    assert here("copy", program.url, postgres_url, "--durability", "process").err == ""


def test_an_archive_is_looked_at_before_a_store_is_made(
    program: Program, commits: Committer, tmp_path: Path
) -> None:
    commits("bot", 30)
    whole, cut, garbage = (tmp_path / name for name in ("whole", "cut", "garbage"))
    program("export", str(whole))
    cut.write_bytes(whole.read_bytes()[:-10])
    garbage.write_bytes(b"not an archive at all" * 100)
    made = tmp_path / "made.db"
    for archive, code in ((tmp_path / "nope", 3), (garbage, 2), (cut, 6)):
        assert here("import", str(archive), "--store", f"sqlite:///{made}", code=code).err
        assert not made.exists()
    here("import", str(whole), "--store", f"sqlite:///{made}")
    assert made.exists()


# ── options that nobody knows ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [["status"], ["doctor"], ["show", "bot"]], ids=lambda each: each[0])
@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "file://{}/none"])
def test_a_wrong_option_is_told_though_there_is_no_store(
    tmp_path: Path, url: str, command: list[str]
) -> None:
    place = url.format(tmp_path)
    answer = here(*command, "--store", f"{place}?nonsense=1", code=2)
    told = answer.err + answer.out
    assert "unknown options" in told
    assert "nonsense; known" in told
    assert "busy_timeout_ms" in told
    assert "there is no store at" in told
    assert "must be whole" in here("status", "--store", f"{place}?busy_timeout_ms=soon", code=2).err
    # A question mark in a name is no option.
    assert "%3F" in here("status", "--store", f"{place}?.db", code=2).err
    assert "unknown options" not in here("status", "--store", f"{place}?busy_timeout_ms=5", code=3).err
    assert os.listdir(tmp_path) == []


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_doctor_finds_no_store(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for url in ("typo.db", "empty.db"):
        answer = here("doctor", "--store", f"sqlite:///{tmp_path}/{url}", code=3)
        assert "✗ store      there is no store at" in answer.out
        assert "an agent makes it" in answer.out
    for url in (f"sqlite:///{tmp_path}/none/typo.db", f"file://{tmp_path}/none/folder"):
        answer = here("doctor", "--store", url, code=3)
        assert f"there is no folder {tmp_path}/none either" in answer.out
        assert "an agent makes it" not in answer.out
    data = here("doctor", "--json", "--store", f"file://{tmp_path}/folder", code=3).data
    assert data["ok"] is False
    assert sorted(os.listdir(tmp_path)) == ["empty.db"]


@pytest.mark.parametrize("inside", [["letter.txt"], ["lock"], ["data/lines.jsonl"]], ids=lambda each: each[0])
def test_a_folder_of_something_else_is_no_store_to_come(tmp_path: Path, inside: list[str]) -> None:
    folder = tmp_path / "folder"
    for name in inside:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("something else")
    url = f"file://{folder}"
    before = sorted(folder.rglob("*"))
    with pytest.raises(everthread.NotAStoreError) as raised:
        everthread.open(url)
    for command in (["status"], ["log", "bot"], ["gc", "--yes"], ["doctor"]):
        answer = here(*command, "--store", url, code=2)
        assert str(raised.value) in answer.err + answer.out
        assert "an agent makes it" not in answer.err + answer.out
    assert sorted(folder.rglob("*")) == before


def test_a_folder_that_may_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "folder" / ".git").mkdir(parents=True)
    url = f"file://{tmp_path}/folder"
    assert "an agent makes it" in here("status", "--store", url, code=3).err
    assert os.listdir(tmp_path / "folder") == [".git"]
    # Somebody was interrupted while making one.
    with everthread.open(url) as store:
        assert store.capabilities.backup
    for made in ("everthread.json", "data/lines.jsonl"):
        (tmp_path / "folder" / made).unlink(missing_ok=True)
    assert "an agent makes it" in here("status", "--store", url, code=3).err


def test_an_empty_file_where_a_store_was(
    program: Program, commits: Committer, store: everthread.Store
) -> None:
    commits("bot", 1)
    store.close()
    os.truncate(program.folder / "agent.db", 0)
    before = sorted(os.listdir(program.folder))
    assert "agent.db-lock" in before
    answer = program("doctor", code=6)
    assert "✗ store" in answer.out
    assert "is empty, though a store was opened there" in answer.out
    assert "put a backup there" in answer.out
    assert "is empty" in program("status", code=6).err
    assert sorted(os.listdir(program.folder)) == before


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_a_log_whose_file_is_empty_or_gone(program: Program, how: str) -> None:
    path = program.folder / "agent.db"
    code = f"""if True:
        import os, signal, everthread
        everthread.open({program.url!r}).thread("bot").commit(label="x")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", code], check=False)
    os.truncate(path, 0) if how == "emptied" else path.unlink()
    before = sorted(os.listdir(program.folder))
    for command in (["doctor"], ["status"], ["show", "bot"]):
        answer = program(*command, code=6)
        assert "agent.db-wal beside it holds commits" in answer.out + answer.err
        assert "everthread salvage" in answer.out + answer.err
    assert sorted(os.listdir(program.folder)) == before
    if how == "emptied":
        program("salvage", f"sqlite:///{program.folder}/saved.db")


def without_rights(program: Program, *arguments: str) -> Answer:
    """The program as somebody for whom modes count: root without the rights to pass them over."""
    libc = ctypes.CDLL(None)

    def drop() -> None:
        if os.geteuid() == 0:
            for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
                libc.prctl(24, right, 0, 0, 0)  # PR_CAPBSET_DROP

    found = subprocess.run(
        program.command(*arguments),
        env=program.environment(),
        cwd=program.folder,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        preexec_fn=drop,
    )
    return Answer(found.returncode, found.stdout, found.stderr)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_what_can_not_be_looked_at_is_not_missing(kind: str, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    url = f"sqlite:///{closed}/agent.db" if kind == "sqlite" else f"file://{closed}/agent"
    program = Program(url, tmp_path)
    with everthread.open(url) as store:
        store.thread("bot").update(lambda draft: draft.state.update(n=1))
    closed.chmod(0)
    try:
        for command in ("status", "doctor"):
            answer = without_rights(program, command)
            assert answer.code == 1, answer
            assert "Permission denied" in answer.err + answer.out
            assert "there is no store" not in answer.err + answer.out
            assert "✓ store" not in answer.out
    finally:
        closed.chmod(0o700)
    assert without_rights(program, "status").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--store", "sqlite:///a%00b.db"],
        ["show", "bot", "--store", "file:///tmp/a%00b"],
        ["copy", "sqlite:///a%00b.db", "memory:"],
        ["salvage", "sqlite:///saved.db", "--store", "sqlite:///a%00b.db"],
    ],
    ids=lambda each: each[0],
)
def test_a_name_that_no_file_can_have_is_said(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "contains NUL" in here(*arguments, code=2).err
    assert os.listdir(tmp_path) == []


def test_a_backup_of_sqlite_has_a_name_in_utf_8(store: everthread.Store, tmp_path: Path) -> None:
    store.thread("bot").commit(label="once")
    with pytest.raises(everthread.UsageError, match="UTF-8 only"):
        store.backup(os.fsdecode(bytes(tmp_path) + b"/b\xff"))


def test_more_versions_than_can_be_counted_are_refused(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    assert "is not in the range" in program("log", "bot", "--limit", "9" * 25, code=2).err


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_is_not_copied_onto_itself(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else f"file://{tmp_path}/a.db"
    everthread.open(url).close()
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    for other in (url, url.replace("a.db", "link.db")):
        assert "are the same store" in here("copy", url, other, code=2).err
    assert here("copy", url, url.replace("a.db", "b.db")).out


def test_where_an_archive_can_not_be(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    everthread.open(url).close()
    said = here("export", f"{tmp_path}/none/x", "--store", url, code=1).err
    assert f"the folder {tmp_path}/none doesn't exist" in said
