"""What the file store promises beyond the common suite: readable files, views, few reads, clones, copies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.errors import (
    InvalidValueError,
    NotAStoreError,
    SchemaVersionError,
    StateCorruptedError,
    StoreClosedError,
    StoreUnavailableError,
    UsageError,
)
from everthread.stores.files import disk, journal, layout, line_files, views

Opening = Callable[..., everthread.Store]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opening(path: Path) -> Iterator[Opening]:
    """Opens the store at ``path``; closes all of them at the end."""
    stores = []

    def open_(query: str = "", **options: Any) -> everthread.Store:
        store = everthread.open(f"file://{path}{query}", **{"durability": "process", **options})
        stores.append(store)
        return store

    yield open_
    for store in stores:
        store.close()


def say(thread: everthread.Thread, number: int, size: int = 200) -> None:
    """One commit with one message."""
    thread.state["count"] = number
    thread.state[f"key {number % 10}"] = number
    thread.messages.append({"id": f"m{number}", "role": "user", "content": "x" * size})
    thread.commit()


def ids(log: Any) -> list[str]:
    return [item["id"] for item in log]


def folder_of(path: Path, name: str = "") -> Path:
    """The folder of the one thread whose folder begins so."""
    (found,) = (path / "data" / "threads").glob(f"{name}*")
    return found


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for segment in sorted(folder.glob("journal-*.jsonl"))
        for line in segment.read_text().splitlines()
    ]


# ── for people ───────────────────────────────────────────────────────────────────────────────────


def test_the_change_of_each_commit_is_one_line_of_json(path: Path, opening: Opening) -> None:
    thread = opening().thread("invoice-bot")
    thread.state["phase"] = "reconcile"
    thread.commit(label="first", metadata={"run": "r1"})
    thread.messages.append({"id": "m1", "content": "Grüße"})
    thread.state["todos"] = [{"text": "pay"}]
    thread.commit(key="k")
    head, first, second = lines_of(folder_of(path))
    assert (head["everthread"], head["name"], head["first"]) == ("journal", "invoice-bot", 1)
    assert first["document"] == [["set", ["phase"], "reconcile"]]
    assert (first["label"], first["metadata"]) == ("first", {"run": "r1"})
    assert second["document"] == [["set", ["todos"], [{"text": "pay"}]]]
    assert second["logs"][0]["items"] == [{"id": "m1", "content": "Grüße"}]
    assert second["key"] == "k"
    (entry,) = (json.loads(line) for line in (path / "data" / "lines.jsonl").read_text().splitlines())
    assert entry["name"] == "invoice-bot"
    assert folder_of(path).name == entry["folder"] == f"invoice-bot-{entry['uid']}"


def test_names_never_become_paths(path: Path, opening: Opening, tmp_path: Path) -> None:
    names = [
        "../../x",
        "/etc/passwd",
        ".",
        "..",
        "a/b",
        "x" * 1024,
        "é" * 512,
        "\U0001f9f5",
        " ",
        "nul",
        "A",
        "a",
    ]
    store = opening(namespace="../out")
    for name in names:
        say(store.thread(name), 1)
        store.core.backend.swap("../s", name, 0, b"1", 1)
    assert os.listdir(tmp_path) == ["store"]
    folders = os.listdir(path / "data" / "threads")
    assert len(folders) == len(names)
    assert all(layout.check_folder_name(folder) for folder in folders)
    assert [info.name for info in opening(namespace="../out").threads()] == sorted(names)
    for written in path.rglob("*"):
        assert len(written.name.encode()) <= 110
    with pytest.raises(StateCorruptedError):
        layout.check_folder_name("../x")


def test_files_are_private(path: Path, opening: Opening) -> None:
    umask = os.umask(0)
    try:
        store = opening()
        thread = store.thread("a")
        for number in range(70):
            say(thread, number)
        thread.messages.extend([{"content": "x" * 1000}] * 400)
        thread.commit()
        store.core.backend.swap("", "cell", 0, b"1", 1)
        store.backup(path.with_name("backup"))
        modes = {
            (stat.S_IFMT(each.stat().st_mode), stat.S_IMODE(each.stat().st_mode))
            for each in [
                *path.rglob("*"),
                path,
                *path.with_name("backup").rglob("*"),
                path.with_name("backup"),
            ]
        }
    finally:
        os.umask(umask)
    assert modes == {(stat.S_IFREG, 0o600), (stat.S_IFDIR, 0o700)}


# ── views ────────────────────────────────────────────────────────────────────────────────────────


def view_of(path: Path, name: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder_of(path, name) / "view.json").read_text())
    return found


def test_the_view_shows_the_newest_version(path: Path, opening: Opening) -> None:
    store = opening()
    thread = store.thread("bot")
    for number in range(150):
        say(thread, number)
    with thread.step("s") as step:
        step.result = 1
    thread.log("notes").append("a note")
    thread.state["typed"] = {"when": b"bytes"}
    version = thread.commit(label="named", metadata={"run": 7})
    store.close()
    view = view_of(path)
    assert "edits made here are ignored" in view["view"]
    assert view["version"]["id"] == version.id
    assert (view["version"]["label"], view["version"]["metadata"]) == ("named", {"run": 7})
    assert view["document"]["count"] == 149
    assert view["document"]["typed"] == {"when": {"$bytes": "Ynl0ZXM="}}
    assert view["logs"]["messages"]["length"] == 150
    assert ids(view["logs"]["messages"]["last"]) == [f"m{n}" for n in range(145, 150)]
    assert view["logs"]["notes"] == {"length": 1, "last": ["a note"]}
    assert list(view["logs"]) == ["messages", "notes"], "the library's own logs aren't shown"


def test_views_follow_rewinds_forks_merges_and_others(path: Path, opening: Opening) -> None:
    store, other = opening(), opening()
    thread = store.thread("a")
    for number in range(100):
        say(thread, number)
    fork = thread.fork("b", at=30)
    thread.rewind(50)
    store.close()
    assert view_of(path, "a")["document"]["count"] == 49
    assert view_of(path, "b")["version"]["seq"] == 30
    assert ids(view_of(path, "b")["logs"]["messages"]["last"])[-1] == "m29"
    elsewhere = other.thread("b")
    say(elsewhere, 1000)
    other.thread("a").merge(elsewhere, resolve="ours")
    other.close()
    assert view_of(path, "a")["logs"]["messages"]["length"] == 51
    assert view_of(path, "a")["version"]["kind"] == "merge"
    assert view_of(path, "b")["document"]["count"] == 1000
    assert fork.name == "b"


def test_a_view_is_written_seldom_and_caught_up_with(
    path: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "PAUSE_S", 1000)
    written = []
    replace = disk.Disk.replace

    def counting(self: disk.Disk, path: str, data: bytes, *, durable: bool = True) -> None:
        written.append(path)
        replace(self, path, data, durable=durable)

    monkeypatch.setattr(disk.Disk, "replace", counting)
    store = opening()
    thread = store.thread("a")
    for number in range(200):
        say(thread, number)
    assert len([each for each in written if each.endswith("view.json")]) == 1
    # As if the process had been killed: nobody closes it.
    assert view_of(path)["version"]["seq"] == 1
    reader = opening()
    assert reader.thread("a").state["count"] == 199
    assert view_of(path)["version"]["seq"] == 200, "the next one to look catches up"


def test_an_edited_view_is_noticed_never_believed_and_kept(path: Path, opening: Opening) -> None:
    store = opening()
    thread = store.thread("a")
    say(thread, 1)
    store.close()
    view = folder_of(path) / "view.json"
    edited = view.read_text().replace('"count": 1', '"count": 777')
    view.write_text(edited)
    store = opening()
    assert store.thread("a").state["count"] == 1
    report = store.verify()
    assert not report
    assert "view.json was edited by hand" in str(report.damage[0])
    say(store.thread("a"), 2)
    store.close()
    aside = view.with_name("view.json.edited-1")
    assert aside.read_text() == edited
    assert view_of(path)["document"]["count"] == 2
    view.write_text("not even JSON")
    store = opening()
    say(store.thread("a"), 3)
    store.close()
    assert view.with_name("view.json.edited-2").read_text() == "not even JSON"
    problems = [str(damage) for damage in opening().verify().damage]
    assert len(problems) == 2
    assert all("put aside" in problem for problem in problems)
    for number in (1, 2):
        view.with_name(f"view.json.edited-{number}").unlink()
    assert opening().verify()


def test_a_view_that_was_restored_as_it_was_is_no_edit(path: Path, opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    store.close()
    view = folder_of(path) / "view.json"
    old = view.read_bytes()
    store = opening()
    say(store.thread("a"), 2)
    store.close()
    view.write_bytes(old)
    assert opening().verify()
    assert opening().thread("a").state["count"] == 2
    assert view_of(path)["document"]["count"] == 2
    view.unlink()
    store = opening()
    say(store.thread("a"), 3)
    store.close()
    assert view_of(path)["document"]["count"] == 3
    assert not list(folder_of(path).glob("*.edited-*"))


def test_personal_values_are_in_no_file_in_clear(path: Path, opening: Opening) -> None:
    store = opening(keyring="memory:")
    thread = store.thread("a")
    thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
    thread.messages.append({"content": everthread.Personal("ann", "a secret of hers")})
    thread.commit()
    assert thread.state["mail"].value == "ann@example.org"
    store.close()
    everything = b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())
    assert b"ann@" not in everything
    assert b"a secret" not in everything
    assert len(list((path / "data" / "sealed").rglob("*.json"))) == 2


# ── how much is read ─────────────────────────────────────────────────────────────────────────────


class Reads:
    """Counts the bytes that are read from files."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[Reads]:
        self.bytes = 0
        yield self


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counter = Reads()
    pread = os.pread

    def counting(file: int, length: int, offset: int) -> bytes:
        data = pread(file, length, offset)
        counter.bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    return counter


def resume(opening: Opening, reads: Reads) -> int:
    """The bytes that a new process reads for the document and the last 20 messages."""
    with reads.counted():
        store = opening()
        thread = store.thread("a")
        thread.state.plain()
        assert len(thread.messages[-20:]) == 20
    store.close()
    return reads.bytes


def test_resuming_reads_a_bounded_number_of_bytes(opening: Opening, reads: Reads, path: Path) -> None:
    thread = opening().thread("a")
    done = 0
    measured = {}
    for size in (100, 640, 1000, 2000, 3777, 5000, 5220):
        for number in range(done, size):
            say(thread, number)
        done = size
        measured[size] = resume(opening, reads)
    # Up to 64 unfolded lines of about 460 bytes, read once, and an index of at most 64 packs.
    assert max(measured.values()) < 90_000, measured
    assert sum(each.stat().st_size for each in folder_of(path).glob("journal*")) > 2_000_000


def test_segments_and_volumes_keep_reads_small(
    opening: Opening, reads: Reads, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from everthread.stores.files import pack_files

    monkeypatch.setattr(line_files, "SEGMENT_BYTES", 40_000)
    monkeypatch.setattr(pack_files, "VOLUME_PACKS", 4)
    store = opening()
    thread = store.thread("a")
    for number in range(2000):
        say(thread, number)
        if number % 500 == 499:
            thread.rewind(thread.head.seq - 3)
            for again in range(3):
                say(thread, number - 2 + again)
    assert len(list(folder_of(path).glob("journal-*.jsonl"))) > 8
    assert len(list(folder_of(path).glob("folds-*.index"))) > 5
    assert resume(opening, reads) < 60_000
    fresh = opening().thread("a")
    assert len(fresh.messages) == 2000
    for start in (0, 63, 500, 1000, 1500):
        with reads.counted():
            assert ids(fresh.messages[start : start + 20]) == [f"m{n}" for n in range(start, start + 20)]
        assert reads.bytes < 40_000, start
    with reads.counted():
        assert ids(fresh.messages[700:720])[0] == "m700"
    assert reads.bytes < 5_000, "what was read of the index is kept in mind"
    versions = list(thread.history(limit=None))
    assert list(fresh.history(limit=None)) == versions
    for version in versions[::211]:
        assert fresh.at(version).state.plain() == thread.at(version).state.plain()
    assert store.verify()


def test_a_huge_commit_does_not_spoil_later_openings(opening: Opening, reads: Reads, path: Path) -> None:
    thread = opening().thread("a")
    for number in range(100):
        say(thread, number)
    noise = [os.urandom(150).hex() for _ in range(5000)]
    thread.messages.extend([{"id": f"b{n}", "content": text} for n, text in enumerate(noise)])
    thread.commit()
    (items,) = folder_of(path).glob("items-*.jsonl")
    assert noise[4999] in items.read_text(), "readable, in a file of its own"
    for number in range(100, 300):
        say(thread, number)
        if number in (100, 105, 150, 299):
            # The last 20 messages may lie in the chunk that ends the huge commit.
            assert resume(opening, reads) < (600_000 if number < 130 else 200_000), number
    read = opening().thread("a")
    assert [item["content"] for item in read.messages[100:5100]] == noise
    assert read.messages.find("b2600") == 2700
    assert opening().verify()


def test_a_save_reads_next_to_nothing(
    opening: Opening, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The view is written with the first save and then from time to time, which reads what is new.
    monkeypatch.setattr(views, "PAUSE_S", 3600.0)
    thread = opening().thread("a")
    for number in range(300):
        say(thread, number)
    with reads.counted():
        for number in range(300, 310):
            say(thread, number)
    assert reads.bytes <= 10 * 200


# ── derived files ────────────────────────────────────────────────────────────────────────────────


def derived(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.suffix in (".index", ".packs")]


def test_what_is_derived_can_be_removed_and_is_made_again(path: Path, opening: Opening, reads: Reads) -> None:
    store = opening()
    thread = store.thread("a")
    thread.commit(metadata={"run": "r1", "long": "x" * 100})
    for number in range(1000):
        thread.state["n"] = number
        thread.messages.append({"id": f"m{number}"})
        thread.commit(key=f"k{number}")
    history = [version.id for version in thread.history(limit=None)]
    store.close()
    removed = derived(path)
    assert removed
    for each in removed:
        each.unlink()
    store = opening()
    thread = store.thread("a")
    assert [version.id for version in thread.history(limit=None)] == history
    assert ids(thread.messages) == [f"m{n}" for n in range(1000)]
    assert derived(path), "made again, by whoever reads it first"
    assert [info.name for info in store.threads(metadata={"run": "r1", "long": "x" * 100})] == ["a"]
    thread.state["n"] = "again"
    assert thread.commit(key="k500").seq == 502
    assert store.verify()
    store.close()
    assert resume_bytes(opening, reads) < 200_000


def resume_bytes(opening: Opening, reads: Reads) -> int:
    with reads.counted():
        opening().thread("a").state.plain()
    return reads.bytes


def test_folds_of_another_history_are_not_believed(path: Path, opening: Opening) -> None:
    """As after `git checkout` of an older state: the journal went back, what is ignored by git stayed."""
    store = opening()
    thread = store.thread("a")
    for number in range(100):
        say(thread, number)
    store.close()
    older = path.with_name("older")
    shutil.copytree(path, older)
    store = opening()
    thread = store.thread("a")
    for number in range(100, 400):
        say(thread, number)
    thread.rewind(20)
    stale = opening()
    assert stale.thread("a").state["count"] == 19
    shutil.copytree(older, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.index", "*.packs"))
    for opened in (opening(), stale, store):
        fresh = opened.thread("a")
        assert ids(fresh.messages) == [f"m{n}" for n in range(100)]
        assert opened.verify()
    thread = opening().thread("a")
    for number in range(1000, 1200):
        say(thread, number)
    for opened in (opening(), stale, store):
        assert ids(opened.thread("a").messages)[-201:] == ["m99", *(f"m{n}" for n in range(1000, 1200))]
        assert opened.verify()


def test_a_file_that_was_replaced_is_not_written_to(path: Path, opening: Opening) -> None:
    """git puts another file in the place of the one that is open; a copy may overwrite it as it is."""
    store = opening()
    thread = store.thread("a")
    say(thread, 1)
    segment = folder_of(path) / journal.segment_name(1)
    before = segment.read_bytes()
    say(thread, 2)
    replaced = segment.with_name("other")
    replaced.write_bytes(before)
    replaced.rename(segment)
    # What people do shows after a few milliseconds.
    time.sleep(0.01)
    with pytest.raises(everthread.ConflictError):
        say(thread, 3)
    thread.discard()
    thread.refresh()
    say(thread, 4)
    assert thread.head.seq == 2
    after = segment.read_bytes()
    segment.write_bytes(before)
    with pytest.raises(everthread.ConflictError):
        say(thread, 5)
    other = bytes(after).replace(b'"count"],4', b'"count"],5')
    segment.write_bytes(other)
    assert opening().thread("a").head.seq == 1, "altered: its last line doesn't fit its checksum"


# ── clones ───────────────────────────────────────────────────────────────────────────────────────


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_clone_through_git_is_equal(path: Path, opening: Opening, tmp_path: Path) -> None:
    store = opening()
    thread = store.thread("a")
    for number in range(1000):
        say(thread, number)
        if number == 500:
            fork = thread.fork("b")
            say(fork, 9000)
        if number == 700:
            thread.rewind(600)
    store.core.backend.swap("", "cell", 0, b"1", 1)
    store.close()
    git(path, "init", "-q")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "one")
    tracked = git(path, "ls-files").splitlines()
    assert not [name for name in tracked if name.endswith((".index", ".packs")) or name == "lock"]
    clone = tmp_path / "elsewhere"
    git(tmp_path, "clone", "-q", str(path), str(clone))
    (clone / "data" / "lines.jsonl").chmod(0o644)
    with everthread.open(f"file://{clone}") as copy, everthread.open(f"file://{path}") as original:
        for name in ("a", "b"):
            ours, theirs = original.thread(name), copy.thread(name)
            assert list(ours.history(limit=None)) == list(theirs.history(limit=None))
            assert ours.state.plain() == theirs.state.plain()
            assert ours.messages[:] == theirs.messages[:]
        assert copy.verify()
        say(copy.thread("a"), 5000)
    changed = git(clone, "diff", "--stat")
    assert "journal-" in changed
    added = [line for line in git(clone, "diff", "--unified=0").splitlines() if line.startswith("+{")]
    assert len(added) == 1, "one version, one line"
    assert '["set",["count"],5000]' in added[0]


def test_a_store_may_be_made_in_a_repository(path: Path, opening: Opening) -> None:
    path.mkdir()
    git(path, "init", "-q")
    (path / ".gitignore").write_text("mine\n")
    say(opening().thread("a"), 1)
    assert (path / ".gitignore").read_text() == "mine\n"


# ── opening what can't be opened ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("file:", InvalidValueError),
        ("file:store", InvalidValueError),
        ("file://store", InvalidValueError),
        ("file:///", InvalidValueError),
        ("file:///a\0b", InvalidValueError),
        ("file:///tmp/x?busy=1", InvalidValueError),
        ("file:///tmp/x?busy_timeout_ms=soon", InvalidValueError),
        ("file:///no/such/folder/store", StoreUnavailableError),
    ],
)
def test_a_wrong_url_is_refused(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        everthread.open(url)


def test_the_url_names_the_place(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/my%20store%3F?busy_timeout_ms=5") as store:
        assert store.url == f"file://{tmp_path}/my%20store%3F"
        say(store.thread("a"), 1)
    assert (tmp_path / "my store?" / "everthread.json").exists()
    with everthread.open(store.url) as store:
        assert store.thread("a").state["count"] == 1


def unchanged(path: Path, error: type[Exception]) -> Exception:
    """Opening it raises, and leaves it as it was."""

    def everything() -> dict[str, bytes | None]:
        found = [path, *path.rglob("*")]
        return {str(each): each.read_bytes() if each.is_file() else None for each in found}

    before = everything()
    with pytest.raises(error) as caught:
        everthread.open(f"file://{path}")
    assert everything() == before
    return caught.value


def test_what_isnt_ours_is_left_alone(path: Path) -> None:
    path.write_text("a file")
    unchanged(path, StoreUnavailableError)
    path.unlink()
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    unchanged(path, NotAStoreError)
    (path / "lock").write_text("somebody else's lock")
    unchanged(path, NotAStoreError)
    (path / "everthread.json").mkdir()
    unchanged(path, NotAStoreError)
    (path / "everthread.json").rmdir()
    for text in ("", "{}", "[1]", '{"everthread": "something else", "format": 1, "content": "data"}', "\xff"):
        (path / "everthread.json").write_text(text)
        unchanged(path, NotAStoreError)
    for content in ("../../etc", "data/..", "elsewhere", ""):
        text = json.dumps({"everthread": "everthread file store", "format": 1, "content": content})
        (path / "everthread.json").write_text(text)
        unchanged(path, StateCorruptedError)


def test_a_newer_format_is_left_alone(path: Path, opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    store.close()
    format_file = path / "everthread.json"
    newer = layout.FORMAT + 1
    format_file.write_text(format_file.read_text().replace('"format": 1', f'"format": {newer}'))
    error = unchanged(path, SchemaVersionError)
    assert isinstance(error, SchemaVersionError)
    assert (error.found, error.supported) == (newer, layout.FORMAT)


def test_an_interrupted_set_up_is_finished(path: Path, opening: Opening) -> None:
    path.mkdir()
    (path / "lock").touch()
    say(opening().thread("a"), 1)
    for each in (path / "data" / "threads", path / "everthread.json"):
        assert each.exists()


def test_a_folder_that_may_not_be_read() -> None:
    # Not below pytest's folder, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "store")
        everthread.open(f"file://{path}").close()
        os.chmod(path, 0)
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(StoreUnavailableError):
                everthread.open(f"file://{path}")
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def test_a_closed_store_refuses(opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    backend = store.core.backend
    store.close()
    backend.close()
    for call in (
        lambda: backend.find("", "a"),
        lambda: backend.tail(1),
        lambda: list(backend.every_line()),
        backend.check,
        lambda: backend.tag(1, 1, {}),
    ):
        with pytest.raises(StoreClosedError):
            call()


# ── backup and restore ───────────────────────────────────────────────────────────────────────────


def test_a_backup_is_a_store_of_its_own(path: Path, opening: Opening) -> None:
    store = opening()
    thread = store.thread("a")
    for number in range(150):
        say(thread, number)
    backup = path.with_name("backup")
    store.backup(backup)
    say(thread, 150)
    assert sorted(each.name for each in path.parent.iterdir()) == ["backup", "store"]
    with everthread.open(f"file://{backup}") as copy:
        assert len(copy.thread("a").messages) == 150
        assert copy.verify()
        say(copy.thread("a"), 999)
    assert ids(thread.messages[-1:]) == ["m150"]


def test_a_backup_overwrites_nothing(path: Path, opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    taken = path.with_name("taken")
    taken.mkdir()
    for wrong, error in (
        (taken, UsageError),
        (path, UsageError),
        (path.parent / "no" / "x", StoreUnavailableError),
    ):
        with pytest.raises(error):
            store.backup(wrong)
    assert os.listdir(taken) == []
    assert sorted(each.name for each in path.parent.iterdir()) == ["store", "taken"]


def test_a_restored_backup_is_seen_by_everybody(path: Path, opening: Opening) -> None:
    store, other = opening(), opening()
    empty = path.with_name("empty")
    store.backup(empty)
    thread = store.thread("a")
    for number in range(80):
        say(thread, number)
    backup = path.with_name("backup")
    store.backup(backup)
    for number in range(80, 160):
        say(thread, number)
    say(store.thread("later"), 1)
    assert other.thread("a").state["count"] == 159
    stale = other.thread("a")
    stale.state["x"] = 1
    store.restore(backup)
    assert other.thread("a").state["count"] == 79
    assert [info.name for info in other.threads()] == ["a"]
    with pytest.raises(everthread.ConflictError):
        stale.commit()
    say(other.thread("new"), 1)
    lines = {line.name: line.id for line in store.core.backend.every_line()}
    assert lines["new"] > 2, "an id is never given twice"
    assert [name for name in os.listdir(path) if name.startswith("data")] == ["data-2"]
    assert store.verify()
    other.restore(empty)
    assert list(store.threads()) == []
    assert os.listdir(path / "data-3" / "threads") == [] if (path / "data-3" / "threads").exists() else True
    say(store.thread("a"), 1)
    assert other.thread("a").state["count"] == 1


def test_a_damaged_backup_changes_nothing(path: Path, opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    say(store.thread("a"), 2)
    backup = path.with_name("backup")
    store.backup(backup)
    segment = folder_of(backup) / journal.segment_name(1)
    segment.write_bytes(segment.read_bytes().replace(b'"count"],1', b'"count"],9'))
    with pytest.raises(StateCorruptedError):
        store.restore(backup)
    for wrong, error in ((path.with_name("no"), StoreUnavailableError), (path.parent, NotAStoreError)):
        with pytest.raises(error):
            store.restore(wrong)
    assert store.thread("a").state["count"] == 2
    assert [name for name in os.listdir(path) if name.startswith("data")] == ["data"]


def test_an_interrupted_restore_is_cleaned_up(path: Path, opening: Opening) -> None:
    store = opening()
    say(store.thread("a"), 1)
    store.close()
    shutil.copytree(path / "data", path / "data-2")
    shutil.copytree(path / "data", path / "data-notes")
    assert opening().thread("a").state["count"] == 1
    assert sorted(name for name in os.listdir(path) if name.startswith("data")) == ["data", "data-notes"]


# ── deletion ─────────────────────────────────────────────────────────────────────────────────────


def test_a_deleted_thread_is_gone_from_disk(path: Path, opening: Opening) -> None:
    store, other = opening(), opening()
    thread = store.thread("a")
    for number in range(100):
        say(thread, number)
    late = other.thread("a")
    late.state["late"] = 1
    fork = thread.fork("b", at=50)
    thread.delete()
    assert len(list((path / "data" / "threads").iterdir())) == 2, "the fork needs it"
    fork.delete()
    assert list((path / "data" / "threads").iterdir()) == []
    with pytest.raises(everthread.ThreadDeletedError):
        late.commit()
    entries = [json.loads(line) for line in (path / "data" / "lines.jsonl").read_text().splitlines()]
    assert [entry["deleted"] for entry in entries if "deleted" in entry] == [1, 2]
    assert {line.id: line.deleted for line in store.core.backend.every_line()} == {1: True, 2: True}
    say(store.thread("a"), 1)
    assert store.verify()


def test_an_interrupted_deletion_counts_and_is_finished(path: Path, opening: Opening) -> None:
    store = opening()
    for name in ("a", "b"):
        say(store.thread(name), 1)
    backend = store.core.backend
    line = backend.find("", "a").line
    # As far as it gets before a kill: sealed, but not in the list of lines.
    backend._access.write(lambda content: content.files(line.id).journal.seal())
    other = opening()
    assert [info.name for info in other.threads()] == ["b"]
    thread = other.thread("a")
    say(thread, 2)
    assert thread.head.seq == 1, "a new incarnation"
    assert other.verify()
    # Deleted in the list, but not yet removed.
    line = other.core.backend.find("", "b").line
    other.core.backend._access.write(lambda content: content.catalog.delete(line.id))
    third = opening()
    assert [info.name for info in third.threads()] == ["a"]
    say(third.thread("c"), 1)
    time.sleep(views.PAUSE_S)
    third.thread("c").state.plain()
    say(third.thread("c"), 2)
    third.close()
    assert sorted(each.name[0] for each in (path / "data" / "threads").iterdir()) == ["a", "c"]


def test_who_is_at_work_is_nothing_for_git(tmp_path: Path) -> None:
    """A lease is renewed all the time, and would keep a clone waiting for a process on another machine."""
    git(tmp_path, "init", "-q")
    with everthread.open(f"file://{tmp_path}/agent", namespace="tenant") as store:
        with store.session("bot") as session:
            session.work.add_todo("x")
            git(tmp_path, "add", ".")
            names = git(tmp_path, "ls-files").split()
            assert [name for name in names if "lease" in name] == []
            assert [name for name in names if name.endswith(".jsonl")]
            session.heartbeat()
            assert git(tmp_path, "status", "--porcelain", "--untracked-files=all", "agent/data/cells") == ""
        assert store.verify().ok
    assert list((tmp_path / "agent/data/cells").glob("*lease*/*.json"))


def test_a_folder_that_is_removed_under_an_open_store_takes_no_commits(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = everthread.open(f"file://{path}", durability="process", keyring="memory:")
    thread = store.thread("t")
    thread.state["n"] = 1
    thread.commit()
    for move in (lambda: path.rename(tmp_path / "elsewhere"), lambda: path.mkdir(mode=0o700)):
        move()
        # A look at the folder counts for a moment.
        time.sleep(0.02)
        thread.state["n"] += 1
        with pytest.raises(StoreUnavailableError, match="moved or removed"):
            thread.commit()
        with pytest.raises(StoreUnavailableError, match="moved or removed"):
            store.thread("t").state.plain()
    path.rmdir()
    (tmp_path / "elsewhere").rename(path)
    thread.commit()
    assert store.thread("t").state.plain() == {"n": 3}
    store.close()
