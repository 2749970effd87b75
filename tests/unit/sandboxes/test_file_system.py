"""Files through fsspec, and without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

import everthread
from everthread.errors import MissingDependencyError, UsageError
from everthread.sandboxes import Files


@pytest.fixture
def files() -> Iterator[Files]:
    with everthread.open("memory:") as store:
        yield Files(store.thread("t"))


def test_files_are_read_and_written_through_fsspec(files: Files) -> None:
    system = files.file_system()
    with system.open("data/table.csv", "w") as file:
        file.write("a,b\n1,2\n")
    system.pipe("data/more.csv", b"x")
    system.makedirs("empty", exist_ok=True)
    first = files.save()
    assert system.ls("", detail=False) == ["data", "empty"]
    assert sorted(system.find("")) == ["data/more.csv", "data/table.csv"]
    assert system.cat("data/table.csv") == b"a,b\n1,2\n"
    assert system.glob("data/*.csv") == ["data/more.csv", "data/table.csv"]
    with system.open("data/table.csv") as file:
        assert file.readline() == b"a,b\n"
    with system.open("data/table.csv", "ab") as file:
        file.write(b"3,4\n")
    system.mv("data/more.csv", "moved.csv")
    system.rm("empty", recursive=True)
    assert system.isfile("moved.csv")
    assert not system.exists("empty")
    assert system.size("data/table.csv") == 12
    with pytest.raises(ZeroDivisionError), system.open("half", "wb") as file:
        file.write(bytes([1 // 0]))
    assert not system.exists("half")
    for call in (system.cat_file, system.ls, system.info, system.rm_file):
        with pytest.raises(FileNotFoundError):
            call("absent")
    past = files.at(first).file_system()
    assert past.cat("data/more.csv") == b"x"
    with pytest.raises(UsageError, match="read only"):
        past.pipe("a", b"x")


def test_without_fsspec_the_extra_is_named(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "everthread.sandboxes.file_system", raising=False)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match="'fsspec'"):
        files.file_system()
