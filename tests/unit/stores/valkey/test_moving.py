"""To a server and back: threads, forks, events and personal values keep their ids and hashes."""

from __future__ import annotations

from pathlib import Path

import everthread
from everthread import Personal


def test_everything_moves_to_valkey_and_back(valkey_url: str, tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/one.db") as one:
        thread = one.thread("a")
        for number in range(80):
            thread.messages.append({"id": f"m{number}", "content": f"word{number}"})
            thread.commit()
        fork = thread.fork("b", at=40)
        fork.state["mail"] = Personal("ann", "ann@example.org")
        fork.commit()
        fork.fork("c")
        one.events("tasks").extend([("made", {"n": 1}), ("done", {"n": 1})])
        heads = {info.name: one.thread(info.name).head.id for info in one.threads()}  # type: ignore[union-attr]
        one.export(tmp_path / "out")
    with everthread.open(valkey_url, durability="process") as server:
        server.import_from(tmp_path / "out")
        assert {info.name: server.thread(info.name).head.id for info in server.threads()} == heads  # type: ignore[union-attr]
        assert server.thread("c").state["mail"].value == "ann@example.org"
        assert [hit.thread for hit in server.search("word79")] == ["a"]
        assert len(server.events("tasks")) == 2
        assert server.verify()
        server.export(tmp_path / "back")
    with everthread.open(f"sqlite:///{tmp_path}/two.db") as two:
        two.import_from(tmp_path / "back")
        assert {info.name: two.thread(info.name).head.id for info in two.threads()} == heads  # type: ignore[union-attr]
        assert [item["content"] for item in two.thread("b").messages] == [f"word{n}" for n in range(40)]
        assert two.verify()
