"""file_hash: a file still has the content that it had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from everthread import Personal, verifiers
from everthread.verifiers import Status


def verdict(stored: dict[str, object], value: object = None) -> tuple[str, str]:
    found = verifiers.check(stored, value)
    return found.status.value, found.reason


def test_a_file_is_fresh_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: 1\n")
    stored = verifiers.capture(verifiers.file_hash(path), "settings")
    assert stored["name"] == "file_hash"
    assert stored["expected"]["size"] == 5
    assert verdict(stored)[0] == "fresh"

    # Touching it, or writing the same again, changes nothing.
    os.utime(path, (0, 0))
    path.write_text("a: 1\n")
    assert verdict(stored)[0] == "fresh"

    path.write_text("a: 2\n")
    assert verdict(stored) == ("contradicted", f"content changed: {path}")
    path.write_text("a: 12\n")
    assert verdict(stored) == ("contradicted", f"6 bytes, were 5: {path}")
    path.unlink()
    assert verdict(stored) == ("contradicted", f"gone: {path}")


def test_without_a_path_the_value_is_the_path(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("x")
    for value in (str(path), path):
        stored = verifiers.capture(verifiers.file_hash(), value)
        assert stored["expected"]["path"] == str(path)
        assert verdict(stored)[0] == "fresh"


def test_a_relative_path_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    monkeypatch.chdir(tmp_path / "a")
    stored = verifiers.capture(verifiers.file_hash("x"), None)
    monkeypatch.chdir(tmp_path)
    assert verdict(stored)[0] == "fresh"


def test_a_file_that_was_not_there_can_not_be_verified(tmp_path: Path) -> None:
    path = tmp_path / "later"
    stored = verifiers.capture(verifiers.file_hash(path), None)
    assert stored["expected"] is None
    path.write_text("now it is")
    status, reason = verdict(stored)
    assert status == "unverifiable"
    assert "when it was recorded" in reason
    assert "No such file" in reason


def test_pipes_devices_and_folders_are_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), tmp_path):
        stored = verifiers.capture(verifiers.file_hash(path), None)
        assert stored["problem"], path
        # Nor later, whatever is claimed about them.
        stored = {"name": "file_hash", "args": {}, "expected": {"path": str(path), "size": 0, "sha256": "0"}}
        status, reason = verdict(stored)
        assert (status, "regular" in reason or "directory" in reason) == ("unverifiable", True), reason


@pytest.mark.parametrize(
    "expected",
    [
        None,
        [],
        {},
        {"path": 1},
        {"path": "/etc/hostname", "size": "1", "sha256": "x"},
        {"path": "a\0b", "size": 1, "sha256": "x"},
        {"path": "\ud800", "size": 1, "sha256": "x"},
        {"path": "x" * 100_000, "size": 1, "sha256": "x"},
    ],
)
def test_what_was_recorded_is_not_believed(expected: object) -> None:
    found = verifiers.check({"name": "file_hash", "args": {}, "expected": expected}, None)
    assert found.status is Status.UNVERIFIABLE
    assert len(found.reason) <= 300


def test_a_personal_value_is_no_path(tmp_path: Path) -> None:
    path = tmp_path / "ann"
    path.write_text("x")
    stored = verifiers.capture(verifiers.file_hash(), Personal("ann", str(path)))
    assert str(path) not in repr(stored)
    assert verdict(stored)[0] == "unverifiable"
    # With the path named by itself the value isn't looked at.
    assert verdict(verifiers.capture(verifiers.file_hash(path), Personal("ann", "x")))[0] == "fresh"
