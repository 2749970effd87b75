"""docs/internals/file-format.md is enough: a reader that follows it alone reads what the library writes."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread.stores.files import line_files
from examples import file_reader


def test_the_reader_imports_nothing_of_everthread() -> None:
    tree = ast.parse(Path(file_reader.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any(name.startswith("everthread") for name in names)


def _fill(store: everthread.Store, rng: random.Random) -> None:
    names = ["main"]
    for number in range(260):
        name = rng.choice(names)
        thread = store.thread(name)
        chance = rng.random()
        if chance < 0.05 and thread.head is not None:
            names.append(f"fork {number}")
            thread.fork(names[-1], at=thread.at(rng.choice(list(thread.history())).seq).version)
            continue
        if chance < 0.1 and thread.head is not None:
            thread.rewind(rng.choice(list(thread.history())))
            continue
        thread.state[f"key {rng.randrange(6)}"] = {"n": number, "list": [1, "é", None]}
        if rng.random() < 0.3 and "key 1" in thread.state:
            thread.state["key 1"]["list"].insert(0, number)
        if rng.random() < 0.2:
            thread.state.pop(f"key {rng.randrange(6)}", None)
        thread.messages.append({"id": f"m{number}", "text": "x" * rng.randrange(80)})
        if len(thread.messages) > 4 and rng.random() < 0.1:
            thread.messages.truncate_from(thread.messages[-2]["id"])
        thread.log("notes").append({"number": number})
        thread.commit(label="kept" if rng.random() < 0.1 else None)
    thread = store.thread("main")
    thread.messages.extend({"id": f"large {n}", "text": "y" * 3000} for n in range(100))
    thread.commit(label="large")


def _compare(store: everthread.Store, folder: Path) -> int:
    found = file_reader.Store(folder)
    infos = list(store.threads())
    assert sorted(found.threads) == [info.name for info in infos]
    compared = 0
    for info in infos:
        thread, line = store.thread(info.name), found.threads[info.name]
        assert found.newest(info.name) == _shown(thread), info.name
        for version in thread.history(limit=None):
            assert found.at(line, version.seq) == _shown(thread.at(version)), f"{info.name} {version}"
            compared += 1
    return compared


def _shown(view: Any) -> tuple[Any, dict[str, list[Any]]]:
    return view.state.plain(), {name: list(view.log(name)) for name in view.logs}


@pytest.mark.parametrize("segment_bytes", [3_000, line_files.SEGMENT_BYTES])
def test_whatever_is_written(
    tmp_path: Path, seed: int, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "SEGMENT_BYTES", segment_bytes)
    folder = tmp_path / "store"
    with everthread.open(f"file://{folder}", durability="process") as store:
        store.core.folder.records_max = 8
        _fill(store, random.Random(seed))
        store.thread("gone").commit(label="gone")
        store.thread("gone").delete()
        assert _compare(store, folder) > 100
        store.gc(everthread.Retention(keep_last=4))
        assert b'"kind":"pruned"' in b"".join(path.read_bytes() for path in folder.rglob("journal-*"))
        assert _compare(store, folder) > 10


def test_as_a_program(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with everthread.open(f"file://{folder}") as store:
        thread = store.thread("bot")
        thread.state["n"] = 1
        thread.messages.append({"id": "a"})
        thread.commit()
    command = [sys.executable, file_reader.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"bot": [{"n": 1}, {"messages": [{"id": "a"}]}]}


def test_a_wrong_byte_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with everthread.open(f"file://{folder}") as store:
        thread = store.thread("bot")
        for number in range(3):
            thread.state["n"] = number
            thread.commit()
    (journal,) = folder.rglob("journal-*.jsonl")
    text = journal.read_bytes()
    journal.write_bytes(text.replace(b'["n"],1]', b'["n"],7]'))
    with pytest.raises(ValueError, match="fit its sum"):
        file_reader.Store(folder)
    journal.write_bytes(text[:-5])
    assert file_reader.Store(folder).newest("bot")[0] == {"n": 1}
