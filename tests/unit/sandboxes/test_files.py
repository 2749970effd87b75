"""Files on a thread: written, read, removed, versioned, without any directory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import everthread
from everthread import Erased, Personal, Retention, Store
from everthread.errors import (
    ErasedError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    NotFoundError,
    StateCorruptedError,
    UsageError,
)
from everthread.sandboxes import FileLimits, Files, SnapshotRef, contents
from everthread.sandboxes.contents import DEPTH_MAX, LOG
from everthread.sandboxes.edits import apply_edits, find_edits
from everthread.sandboxes.paths import bytes_text, path_text, text_bytes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as opened:
        yield opened


def test_what_is_written_is_read_by_everybody_once_it_is_saved(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("src/main.py", "print()", mode=0o755)
    files.write("empty", b"")
    files.link("latest", "src/main.py")
    files.make_folder("out")
    assert not Files(store.thread("t")).exists("src/main.py")
    saved = files.save("first")
    other = Files(store.thread("t"))
    assert other.read("src/main.py") == b"print()"
    assert other.read("./src//main.py") == b"print()"
    assert other.read("empty") == b""
    assert [(each.path, each.kind, each.mode) for each in other.list()] == [
        ("empty", "file", 0o644),
        ("latest", "link", 0),
        ("out", "folder", 0o755),
        ("src/main.py", "file", 0o755),
    ]
    assert [each.path for each in other.list(recursive=False)] == ["empty", "latest", "out", "src"]
    assert [each.path for each in other.list("src")] == ["src/main.py"]
    assert other.info("latest").target == "src/main.py"
    assert other.info("src").kind == "folder"
    assert saved == SnapshotRef("t", store.thread("t").head.id)  # type: ignore[union-attr]
    assert SnapshotRef.from_plain(saved.plain()) == saved


def test_a_snapshot_is_a_version_and_going_back_is_going_back(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("a", "one")
    first = files.save()
    files.write("a", "two")
    files.write("b", "new")
    second = files.save()
    assert files.at(first).read("a") == b"one"
    difference = files.diff(first)
    assert [each.path for each in difference.added] == ["b"]
    assert [old.path for old, _ in difference.changed] == ["a"]
    assert str(difference) == "1 added, 1 changed"
    fork = files.fork("u", at=first)
    assert [each.path for each in fork.list()] == ["a"]
    files.rewind(first)
    assert files.read("a") == b"one"
    files.rewind(second)
    assert files.read("b") == b"new"


def test_merging_threads_merges_trees(store: Store) -> None:
    files = Files(store.thread("t"))
    for name in ("a", "b"):
        files.write(name, "one")
    files.save()
    other = files.fork("u")
    other.write("b", "theirs")
    other.save()
    files.write("a", "ours")
    files.save()
    assert files.thread.merge(other.thread)
    merged = Files(store.thread("t"))
    assert (merged.read("a"), merged.read("b")) == (b"ours", b"theirs")
    other = merged.fork("v")
    for each, text in ((other, "x"), (merged, "y")):
        each.write("a", text)
        each.save()
    assert [str(conflict.path) for conflict in merged.thread.merge(other.thread).conflicts] == [
        "('files', 'a')"
    ]


def test_discarding_forgets_what_wasnt_saved(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("a", "one")
    files.save()
    files.write("a", "two")
    assert files.read("a") == b"two"
    files.discard()
    assert files.read("a") == b"one"
    files.write("a", "three")
    files.thread.discard()
    assert files.read("a") == b"one"


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", ".", "x/" * 300 + "y"]
)
def test_no_path_leads_out_of_the_tree(store: Store, path: str) -> None:
    with pytest.raises(InvalidValueError):
        Files(store.thread("t")).write(path, "x")


def test_a_file_is_no_folder(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("a", "x")
    files.write("d/e", "x")
    with pytest.raises(InvalidValueError, match="'a', which is no folder"):
        files.write("a/b", "y")
    with pytest.raises(InvalidValueError, match="'d' is a folder"):
        files.write("d", "y")
    with pytest.raises(UsageError, match="'d' is a folder"):
        files.read("d")
    with pytest.raises(NotFoundError):
        files.read("no")
    with pytest.raises(InvalidStateError, match="recursive=True"):
        files.remove("d")
    files.remove("d", recursive=True)
    files.move("a", "z/y")
    assert [each.path for each in files.list()] == ["z/y"]
    with pytest.raises(InvalidValueError, match="itself"):
        files.move("z", "z/inside")


def test_limits_name_the_path(store: Store) -> None:
    files = Files(store.thread("t"), limits=FileLimits(file_bytes_max=10, files_max=2))
    with pytest.raises(LimitError, match="'long'") as caught:
        files.write("long", b"x" * 11)
    assert caught.value.path == "long"
    files.write("a", "x")
    files.write("b", "x")
    with pytest.raises(LimitError, match="'c'"):
        files.write("c", "x")


def test_names_that_arent_utf8_have_one_text_each() -> None:
    for raw in (b"\xff", b"\\xff", b"a\\b", b"\\\\", "ü\n".encode(), b"\\x5cxff", b"\xc3"):
        text = bytes_text(raw)
        text.encode()
        assert text_bytes(text) == raw
    assert path_text(b"\xff") == path_text("\udcff") == "\\xff"
    with pytest.raises(InvalidValueError):
        text_bytes("\\y")


def test_a_content_is_stored_once_whatever_it_is_called(store: Store) -> None:
    files = Files(store.thread("t"))
    data = random.Random(1).randbytes(3_000_000)
    files.write("a", data)
    files.save()
    before = store.stats().bytes
    files.write("b", data)
    # In the middle of it something comes in: all pieces but one are the same.
    files.write("c", data[:1_500_000] + b"something" + data[1_500_000:])
    files.save()
    assert files.read("c") == data[:1_500_000] + b"something" + data[1_500_000:]
    assert store.stats().bytes - before < 1_300_000


def test_an_edit_takes_up_what_it_changed(store: Store) -> None:
    rng, files = random.Random(2), Files(store.thread("t"))
    lines = [rng.randbytes(40).hex() for _ in range(5_000)]
    files.write("a", "\n".join(lines))
    versions = [(files.save(), list(lines))]
    before = store.stats().bytes
    for turn in range(2 * DEPTH_MAX):
        lines[rng.randrange(len(lines))] = f"turn {turn}"
        files.write("a", "\n".join(lines))
        versions.append((files.save(), list(lines)))
    # The whole was written once more or twice: no content is made of more than so many others.
    assert store.stats().bytes - before < 3 * 400_000
    for snapshot, expected in versions:
        assert Files(store.thread("t")).at(snapshot).read("a") == "\n".join(expected).encode()


def test_edits_lead_from_any_content_to_any_other(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [b"", b"\n", b"a\n", b"b", b"\r\n", b"\xff"]
    for _ in range(500):
        old, new = (b"".join(rng.choices(pieces, k=rng.randrange(12))) for _ in range(2))
        assert apply_edits(old, find_edits(old, new)) == new
    with pytest.raises(StateCorruptedError):
        apply_edits(b"one line", [[3, 1, b"x"]])


def test_contents_dont_show_as_messages(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("a", "x")
    first = files.save()
    files.write("a", "y")
    files.save()
    thread = store.thread("t")
    assert thread.logs == []
    assert not thread.diff(first.version).logs


def test_a_thread_holds_other_state_beside_its_files(store: Store) -> None:
    thread = store.thread("t")
    files = Files(thread)
    thread.state["phase"] = 1
    files.write("a", "x")
    files.save()
    again = store.thread("t")
    assert again.state["phase"] == 1
    assert Files(again).read("a") == b"x"


def test_a_document_that_is_no_tree_is_told(store: Store) -> None:
    thread = store.thread("t")
    thread.state["files"] = ["a list"]
    thread.commit()
    with pytest.raises(StateCorruptedError, match="no tree of files"):
        Files(thread).list()


# ── persons ─────────────────────────────────────────────────────────────────────────────────────


def test_what_is_sealed_is_erased_with_its_person(store: Store) -> None:
    files = Files(store.thread("t"))
    files.write("cv.txt", Personal("ann", "Ann, born 1980"))
    files.write("notes", "nobody's")
    files.save()
    files = Files(store.thread("t"))
    assert files.read("cv.txt") == b"Ann, born 1980"
    assert files.info("cv.txt").personal
    # What takes its place is hers as well.
    files.write("cv.txt", "Ann, born 1981")
    first = files.save()
    assert list(store.scan("Ann, born")) == []
    assert store.erase("ann")
    files = Files(store.thread("t"))
    for view in (files, files.at(first)):
        with pytest.raises(ErasedError, match=r"'cv\.txt'"):
            view.read("cv.txt")
        assert view.read("notes") == b"nobody's"
    files.write("cv.txt", "a new one")
    files.save()
    assert Files(store.thread("t")).read("cv.txt") == b"a new one"


def test_everything_written_can_belong_to_one_person(store: Store) -> None:
    files = Files(store.thread("t"), subject="ann")
    files.write("a", b"secret" * 500_000)
    files.save()
    assert list(store.scan("secret")) == []
    assert Files(store.thread("t")).read("a") == b"secret" * 500_000
    item = store.thread("t").handle.log(LOG)[0]
    assert isinstance(item["data"], Personal)
    assert b"secret" not in item["id"]
    store.erase("ann")
    assert isinstance(store.thread("t").handle.log(LOG)[0]["data"], Erased)


# ── under everything that holds for threads ─────────────────────────────────────────────────────


def test_scanning_finds_a_text_in_every_version_and_redacting_takes_it_out(store: Store) -> None:
    files = Files(store.thread("t"))
    lines = [f"line {number} is long enough" for number in range(100)]
    files.write("a", "\n".join(lines))
    first = files.save()
    lines[50] = "password=hunter2 # here"
    files.write("a", "\n".join(lines))
    second = files.save()
    lines[3] = "another edit"
    files.write("a", "\n".join(lines))
    files.write("hunter2.txt", "by its name")
    files.save()
    places = list(store.scan("hunter2"))
    assert {place.what for place in places} >= {"item", "document"}
    assert store.redact("hunter2", replacement="[gone,\nand longer]")
    assert list(store.scan("hunter2")) == []
    files = Files(store.thread("t"))
    original = [f"line {number} is long enough" for number in range(100)]
    assert files.at(first).read("a") == "\n".join(original).encode()
    # Made from the one that was redacted, by line: nothing else has moved.
    expected = [line.replace("hunter2", "[gone, and longer]") for line in lines]
    assert files.read("a") == "\n".join(expected).encode()
    assert b"password=[gone, and longer] # here" in files.at(second).read("a")
    assert store.verify()
    # The same text again is stored again, and not what was made of it.
    files.write("again", "\n".join(lines))
    files.save()
    assert Files(store.thread("t")).read("again") == "\n".join(lines).encode()


def test_retention_keeps_what_kept_versions_hold(store: Store) -> None:
    files = Files(store.thread("t"))
    rng = random.Random(3)
    kept: dict[str, bytes] = {}
    for turn in range(30):
        data = rng.randbytes(2_000)
        files.write(f"f{turn % 7}", data)
        kept[f"f{turn % 7}"] = data
        files.save()
    store.gc(Retention(keep_last=2))
    files = Files(store.thread("t"))
    assert {each.path: files.read(each.path) for each in files.list()} == kept
    assert store.verify()


def test_superseded_contents_go_with_the_versions_that_held_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "RELEASE_FROM", 10)
    rng, files = random.Random(4), Files(store.thread("t"))
    files.write("stays", rng.randbytes(5_000))
    lines = [rng.randbytes(20).hex() for _ in range(100)]
    kept = []
    for turn in range(60):
        # More than a chunk of a log holds: a chunk goes when nothing in it is needed.
        files.write("f", rng.randbytes(90_000))
        lines[turn] = f"turn {turn}"
        files.write("edited", "\n".join(lines))
        kept.append((files.save(), files.read("f"), files.read("edited")))
    assert len(store.thread("t").handle.log(LOG)) < 60
    for snapshot, data, edited in kept:
        view = Files(store.thread("t")).at(snapshot)
        assert (view.read("f"), view.read("edited")) == (data, edited)
    before = store.stats().bytes
    store.gc(Retention(keep_last=1))
    assert store.stats().bytes < 0.6 * before
    files = Files(store.thread("t"))
    assert (files.read("f"), files.read("edited")) == kept[-1][1:]
    assert len(files.read("stays")) == 5_000
    # What was superseded may come back.
    files.write("f", kept[0][1])
    files.save()
    assert Files(store.thread("t")).read("f") == kept[0][1]
    assert store.verify()


def test_export_copy_and_forks_bring_files_along(store: Store, tmp_path: Path) -> None:
    files = Files(store.thread("t"))
    files.write("a", "one")
    first = files.save()
    files.fork("u")
    store.export(tmp_path / "x.archive")
    with everthread.open("memory:") as other:
        other.import_from(tmp_path / "x.archive")
        assert Files(other.thread("t")).at(first).read("a") == b"one"
        assert Files(other.thread("u")).read("a") == b"one"


def test_tenants_dont_see_each_others_files(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url, namespace="one") as one, everthread.open(url, namespace="two") as two:
        files = Files(one.thread("t"))
        files.write("a", "x")
        files.save()
        assert not Files(two.thread("t")).exists("a")
