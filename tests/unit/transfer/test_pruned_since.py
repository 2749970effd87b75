"""Versions that were pruned: of the source, while another store still has them, or before it was copied."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread.errors import ThreadExistsError


def test_what_helps_is_told(tmp_path: Path) -> None:
    def store(name: str) -> everthread.Store:
        return everthread.open(f"sqlite:///{tmp_path}/{name}.db", durability="process", keyring="memory:")

    with store("source") as source, store("target") as target, store("empty") as empty:
        thread = source.thread("bot")
        for number in range(60):
            thread.state["n"] = number
            thread.commit()
            if number == 29:
                source.copy_to(target)
        source.gc(everthread.Retention(keep_last=3))
        with pytest.raises(ThreadExistsError, match="an empty store takes all that is left"):
            source.copy_to(target)
        assert target.thread("bot").state["n"] == 29
        source.copy_to(empty)
        assert empty.thread("bot").state["n"] == 59
        assert empty.verify().ok


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_personal_values_in_items_of_pruned_versions_go_along(kind: str, tmp_path: Path) -> None:
    """No version that is left speaks of them, but the newest holds them."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "file": f"file://{tmp_path}/f"}
    keyring = f"{tmp_path}/keyring"

    def opened(url: str) -> everthread.Store:
        return everthread.open(url, durability="process", keyring=keyring)

    def look(store: everthread.Store) -> None:
        thread = store.thread("bot")
        assert thread.messages[3]["who"].value == "Ann"
        assert thread.messages[78]["who"].value == "late"
        assert thread.log("notes")[0].value == "note"
        with thread.step("a step") as step:
            assert step.done
            assert step.result["of"].value == "Bob"
        assert thread.state["doc"].value == "document"
        assert store.verify().ok

    with opened(urls[kind]) as source:
        thread = source.thread("bot")
        thread.state["doc"] = everthread.Personal("ann", "document")
        thread.log("notes").append(everthread.Personal("ann", "note"))
        for number in range(80):
            who = {3: "Ann", 78: "late"}.get(number)
            thread.messages.append(
                {"who": everthread.Personal("ann", who) if who else "nobody", "id": number}
            )
            thread.commit()
            if number == 10:
                with thread.step("a step") as step:
                    step.result = {"of": everthread.Personal("bob", "Bob")}
        source.gc(everthread.Retention(keep_last=3))
        look(source)
        exported = source.export(f"{tmp_path}/archive")
        with opened("memory:") as target:
            source.copy_to(target)
            look(target)
        with opened(f"sqlite:///{tmp_path}/new.db") as target:
            target.import_from(f"{tmp_path}/archive")
            look(target)
        assert exported.sealed == 5


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_a_fork_of_a_pruned_and_deleted_thread_goes_on_in_a_copy(kind: str, tmp_path: Path) -> None:
    """Ids of items that only pruned versions inserted are looked up at every append."""
    urls = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/b.db", "file": f"file://{tmp_path}/b"}
    with everthread.open("memory:", keyring="memory:") as source:
        thread = source.thread("p")
        for number in range(90):
            thread.messages.append({"id": f"m{number}"})
            thread.commit()
        source.gc(everthread.Retention(keep_last=1))
        thread.fork("f")
        thread.delete()
        with everthread.open(urls[kind], durability="process", keyring="memory:") as target:
            source.copy_to(target)
            for _ in range(1 + (kind != "memory")):
                fork = target.thread("f")
                assert [fork.messages.find(f"m{number}") for number in (0, 50, 89)] == [0, 50, 89]
                fork.messages.append({"id": "m3"})
                assert not fork.dirty, "it is there already"
                fork.messages.append({"id": "new"})
                fork.discard()
            fork.messages.append({"id": "new"})
            fork.commit()
            assert target.verify().ok


@pytest.mark.parametrize("target", ["memory:", "sqlite:///{}/b.db", "file://{}/b"])
def test_items_of_pruned_versions_are_found_by_id(target: str, tmp_path: Path) -> None:
    def prints(store: everthread.Store) -> bytes:
        backend = store.core.backend
        (line,) = [line.id for line in backend.every_line() if (line.space, line.name) == ("", "bot")]
        return b"".join(found for _, found in backend.fingerprints(line, "messages", 0))

    with everthread.open("memory:") as source, everthread.open(target.format(tmp_path)) as copy:
        thread = source.thread("bot")
        for number in range(4):
            thread.messages.append({"id": f"m{number}"})
            thread.commit(label="kept" if number == 0 else None)
        source.gc(everthread.Retention(keep_last=1))
        source.copy_to(copy)
        copied = copy.thread("bot")
        assert [copied.messages.find(f"m{number}") for number in range(4)] == [0, 1, 2, 3]
        assert prints(copy) == prints(source)
        assert copy.verify().ok
