"""From a damaged store to a new one: all that is sound, nothing else, and a report of the rest."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Corrupt, Personal, Store, StoreUnavailableError, UsageError, salvage
from tests.migration.writing import fill, runtime


def opened(url: str, **options: Any) -> Store:
    return everthread.open(url, durability="process", **options)


def damage(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("foreign_keys", False)
    for statement in statements:
        connection.execute(statement)
        assert connection.changes() > 0, statement
    connection.close()


def describe(store: Store) -> dict[str, Any]:
    found = {}
    for info in store.threads():
        thread = store.thread(info.name)
        logs = {name: thread.log(name)[:] for name in thread.logs}
        found[info.name] = (thread.state.plain(), logs, list(thread.history(limit=None)))
    return found


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def page_of(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
    connection.close()
    assert isinstance(page, int)
    return page


def blank(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(bytes(4096))


@pytest.mark.parametrize("source", ["sqlite", "file"])
@pytest.mark.parametrize("destination", ["sqlite", "file"])
def test_a_sound_store_comes_over_as_it_is(tmp_path: Path, source: str, destination: str) -> None:
    place = {"sqlite": "sqlite:///{}/{}.db", "file": "file://{}/{}"}
    first = tmp_path / "first"
    first.mkdir()
    url, target = place[source].format(first, "a"), place[destination].format(tmp_path, "b")
    with opened(url, runtime=runtime()) as store:
        fill(store)
        wanted = describe(store)
        cells = len(store.core.backend.cells("", "", None, 100))
    before = digest(first)
    told: list[tuple[int, int]] = []
    report = salvage(url, target, lambda done, total: told.append((done, total)))
    assert report, report
    assert digest(first) == before, "the source is only read"
    assert told[-1][0] == told[-1][1] > 0
    assert (report.lost, report.remade, report.events, report.cells) == (0, 0, 43, cells)
    with opened(target) as store:
        assert describe(store) == wanted
        assert store.verify()
        thread = store.thread("main")
        assert [v.seq for v in [thread.commit(key="key 40", label="again")] if v] == [41]
        with thread.step(("turn", 1)) as step:
            assert (step.done, step.result) == (True, {"tokens": 7})
        assert store.events("tasks").append("on", {"n": 1}).seq == 44
        assert store.events("tasks").consumer("mailer").position() == 7
        assert store.thread("deleted").head is None


def numbered(path: Path, versions: int, name: str = "t", place: str = "sqlite:///{}") -> None:
    with opened(place.format(path)) as store:
        thread = store.thread(name)
        for number in range(versions):
            thread.state["n"] = number
            thread.state[f"k{number % 3}"] = number
            thread.messages.append({"id": f"m{number}"})
            thread.commit(label=f"v{number + 1}", key=f"k{number}", metadata={"run": number})


def test_after_a_lost_chunk_everything_else_is_there(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 300)
    damage(tmp_path / "a.db", "UPDATE chunk SET data = zeroblob(length(data)) WHERE position = 64")
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    (entry,) = report.threads
    assert (entry.kept, entry.remade, entry.items_lost, entry.lost) == (64, 236, 64, ())
    assert (entry.remade_as, entry.incomplete) == ("t (recovered)", 0)
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert store.verify()
        assert store.thread("t").head == store.thread("t (recovered)").at(64).version
        thread = store.thread("t (recovered)")
        assert thread.state.plain() == {"n": 299, "k0": 297, "k1": 298, "k2": 299}
        items = thread.messages[:]
        assert [isinstance(item, Corrupt) for item in items] == [64 <= n < 128 for n in range(300)]
        assert [item["id"] for item in items if item] == [f"m{n}" for n in range(300) if not 64 <= n < 128]
        for version in thread.history(limit=236):
            assert version.label == f"v{version.seq}"
            assert version.metadata["run"] == version.seq - 1
            assert version.metadata["salvaged_from"].startswith(f"{version.seq}-")
            assert thread.at(version).state["n"] == version.seq - 1
        assert [v.seq for v in [thread.commit(key="k250")] if v] == [251]


def test_after_a_lost_pack_a_keyframe_tells_how_to_go_on(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 700)
    damage(
        tmp_path / "a.db",
        "UPDATE record SET body = zeroblob(9), net = zeroblob(9) WHERE kind = 1 AND first = 129",
    )
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    (entry,) = report.threads
    assert (entry.kept, entry.lost) == (128, ((129, 192),))
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert store.verify()
        thread = store.thread("t (recovered)")
        assert (thread.state["n"], len(thread.messages)) == (699, 700)
        assert all(thread.messages[:]), "their chunk is sound"
        told = {
            v.metadata["salvaged_from"].split("-")[0]: v for v in thread.history(limit=None) if v.seq > 128
        }
        assert len(told) == 700 - 192
        incomplete = [int(seq) for seq, v in told.items() if "salvaged_without" in v.metadata]
        assert len(incomplete) == entry.incomplete
        assert min(incomplete) == 193
        assert all(told[str(seq)].metadata["salvaged_without"] == [[129, 192]] for seq in incomplete)
        assert max(incomplete) < 640, "from the keyframe on nothing is missing"


def test_after_a_lost_version_the_later_ones_are_made_without_it(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 20)
    damage(tmp_path / "a.db", "UPDATE record SET body = zeroblob(9) WHERE id & 0xffffffff = 10")
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    (entry,) = report.threads
    assert (entry.kept, entry.remade, entry.incomplete, entry.lost) == (9, 10, 10, ((10, 10),))
    assert entry.items_lost == 1
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        thread = store.thread("t (recovered)")
        items = thread.messages[:]
        assert len(items) == 20, "positions tell that one item is missing, and where"
        assert [item["id"] if item else None for item in items] == [
            None if n == 9 else f"m{n}" for n in range(20)
        ]
        assert thread.head is not None
        assert thread.head.metadata["salvaged_without"] == [[10, 10]]
        store.thread("t").merge(thread)
        assert store.thread("t").state["n"] == 19


def test_a_lost_rewind_is_not_passed_over(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 20)
    with opened(f"sqlite:///{tmp_path}/a.db") as store:
        thread = store.thread("t")
        thread.rewind(12)
        thread.messages.append({"id": "after"})
        thread.commit(label="after")
    damage(tmp_path / "a.db", "UPDATE record SET body = zeroblob(9) WHERE id & 0xffffffff = 21")
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    (entry,) = report.threads
    assert (entry.kept, entry.remade, entry.lost) == (20, 0, ((21, 22),))


def test_rewinds_behind_a_hole_go_back_to_what_was_made_anew(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 20)
    with opened(f"sqlite:///{tmp_path}/a.db") as store:
        thread = store.thread("t")
        thread.rewind(15)
        thread.messages.append({"id": "after"})
        thread.commit(label="after")
    damage(tmp_path / "a.db", "UPDATE record SET body = zeroblob(9) WHERE id & 0xffffffff = 5")
    salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        thread = store.thread("t (recovered)")
        ids = [item["id"] if item else None for item in thread.messages]
        assert ids == [None if n == 4 else f"m{n}" for n in range(15)] + ["after"]
        assert thread.state["n"] == 14


@pytest.mark.parametrize("table", ["line", "line_name", "sqlite_autoindex_line_1", "line_parent"])
def test_a_lost_page_of_the_table_of_threads_is_made_up_for_by_its_indexes(
    tmp_path: Path, table: str
) -> None:
    path = tmp_path / "a.db"
    numbered(path, 30)
    with opened(f"sqlite:///{path}") as store:
        fork = store.thread("t").fork("f", at=20)
        fork.state["own"] = 1
        fork.commit()
        wanted = describe(store)
    blank(path, page_of(path, table))
    report = salvage(path, f"sqlite:///{tmp_path}/b.db")
    assert report.problems
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert describe(store) == wanted


def test_pages_that_nothing_leads_to_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(f"sqlite:///{path}") as store:
        for number in range(400):
            thread = store.thread(f"thread {number}")
            thread.state["text"] = "x" * 300
            thread.commit()
        wanted = describe(store)
    blank(path, page_of(path, "record"))
    with opened(f"sqlite:///{path}") as store:
        assert not store.verify()
    report = salvage(path, f"sqlite:///{tmp_path}/b.db")
    assert (report.kept, report.lost) == (400, 0)
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert describe(store) == wanted


def test_a_file_without_its_first_page(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    numbered(path, 100)
    blank(path, 1)
    with pytest.raises(everthread.EverthreadError):
        opened(f"sqlite:///{path}")
    report = salvage(path, f"sqlite:///{tmp_path}/b.db")
    assert report.kept == 100
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert [item["id"] for item in store.thread("t").messages] == [f"m{n}" for n in range(100)]


def test_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(f"sqlite:///{path}") as store:
        for name in ("keeps forks", "gone", "alive"):
            thread = store.thread(name)
            thread.state["secret"] = name
            thread.commit()
        fork = store.thread("keeps forks").fork("fork")
        fork.state["own"] = 1
        fork.commit()
        store.thread("keeps forks").delete()
        store.thread("gone").delete()
        again = store.thread("keeps forks")
        again.state["anew"] = 1
        again.commit()
    for table in ("record", "line"):
        copy = tmp_path / f"{table}.db"
        shutil.copy(path, copy)
        blank(copy, page_of(copy, table) if table == "record" else page_of(copy, "tag"))
        salvage(copy, f"sqlite:///{tmp_path}/{table}-new.db")
        with opened(f"sqlite:///{tmp_path}/{table}-new.db") as store:
            names = [info.name for info in store.threads()]
            assert "gone" not in names
            if table == "line":
                assert names == ["alive", "fork", "keeps forks"]
                assert store.thread("fork").state.plain() == {"secret": "keeps forks", "own": 1}
                assert store.thread("keeps forks").state.plain() == {"anew": 1}


def test_commits_behind_a_damaged_part_of_the_log_come_over(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with opened(f"sqlite:///{path}?wal_autocheckpoint=0") as store:
        for number in range(30):
            thread = store.thread(f"t{number}")
            thread.state["n"] = number
            thread.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    raw = bytearray(Path(f"{copy}-wal").read_bytes())
    raw[len(raw) // 3] ^= 8
    Path(f"{copy}-wal").write_bytes(raw)
    report = salvage(copy, f"sqlite:///{tmp_path}/b.db")
    assert any("write-ahead log" in problem for problem in report.problems)
    with opened(f"sqlite:///{copy}") as store:
        cut = [info.name for info in store.threads()]
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        saved = [info.name for info in store.threads()]
    assert len(cut) < len(saved)
    assert "t29" in saved


def test_personal_values_come_along(tmp_path: Path) -> None:
    keyring = f"file://{tmp_path}/keys"
    with opened(f"sqlite:///{tmp_path}/a.db", keyring=keyring) as store:
        thread = store.thread("t")
        thread.state["p"] = Personal("ann", "secret")
        thread.messages.append({"id": "1", "p": Personal("ann", [1, 2])})
        thread.commit()
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert report.sealed == 2
    with opened(f"sqlite:///{tmp_path}/b.db", keyring=keyring) as store:
        thread = store.thread("t")
        assert (thread.state["p"].value, thread.messages[0]["p"].value) == ("secret", [1, 2])


def test_events_keep_their_numbers_around_a_gap(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/a.db") as store:
        stream = store.events("s")
        stream.extend([("kind", {"n": number}) for number in range(10)])
    damage(tmp_path / "a.db", "DELETE FROM event WHERE id & 0xfffffffff IN (4, 5)")
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert (report.events, report.events_lost, bool(report)) == (8, 2, False)
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        found = list(store.events("s").replay(type="kind"))
        assert [(event.seq, event.data["n"]) for event in found] == [
            (n + 1, n) for n in range(10) if n not in (3, 4)
        ]


@pytest.mark.parametrize("place", ["sqlite:///{}", "file://{}"])
def test_pruned_versions_come_over_as_what_is_left_of_them(place: str, tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 300, place=place)
    with opened(place.format(tmp_path / "a.db")) as store:
        store.gc(everthread.Retention(keep_last=20, keep_labelled=False))
        wanted = store.thread("t")
        kept = [version.id for version in wanted.history(limit=None)]
        assert len(kept) < 300
        state, items = wanted.state.plain(), wanted.messages[:]
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert report, [str(thread) for thread in report.threads]
    with opened(f"sqlite:///{tmp_path}/b.db") as store:
        assert store.verify()
        thread = store.thread("t")
        assert [version.id for version in thread.history(limit=None)] == kept
        assert (thread.state.plain(), thread.messages[:]) == (state, items)
        assert thread.messages.find("m299") == 299
        with pytest.raises(everthread.VersionPrunedError):
            thread.at(5)


def test_lines_of_a_journal_around_a_bad_one(tmp_path: Path) -> None:
    with opened(f"file://{tmp_path}/a") as store:
        thread = store.thread("t")
        for number in range(30):
            thread.state["n"] = number
            thread.messages.append({"id": f"m{number}"})
            thread.commit(label=f"v{number + 1}")
    (journal,) = (tmp_path / "a").rglob("journal-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"label":"v12"' in line)
    lines[at] = lines[at].replace(b"v12", b"v13")
    journal.write_bytes(b"".join(lines))
    report = salvage(tmp_path / "a", f"file://{tmp_path}/b")
    (entry,) = report.threads
    assert (entry.kept, entry.remade, entry.lost) == (11, 18, ((12, 12),))
    with opened(f"file://{tmp_path}/b") as store:
        assert store.verify()
        assert store.thread("t (recovered)").state["n"] == 29


def test_it_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    numbered(tmp_path / "a.db", 3)
    numbered(tmp_path / "b.db", 3, "other")
    with pytest.raises(UsageError, match="holds threads already"):
        salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    with pytest.raises(StoreUnavailableError):
        salvage(tmp_path / "none.db", f"sqlite:///{tmp_path}/c.db")
    assert not (tmp_path / "c.db").exists()
    (tmp_path / "noise").write_bytes(b"\x05" * 10_000)
    report = salvage(tmp_path / "noise", f"sqlite:///{tmp_path}/d.db")
    assert not report.threads
    assert not report


def test_a_file_that_was_cut_off_says_whose_newest_versions_may_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    with everthread.open(f"sqlite:///{path}", durability="process") as store:
        with store.session("payer") as session:
            for number in range(40):
                session.call(f"pay {number}", lambda number: {"paid": number, "slip": "x" * 2_000}, number)
        thread = store.thread("writer")
        for number in range(60):
            thread.state[f"page {number}"] = f"{number}" * 1_000
            thread.commit()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    report = everthread.salvage(path, f"sqlite:///{tmp_path}/saved.db")
    assert not report.ok
    words = str(report)
    assert f", at least {report.lost:,} lost" in words
    assert "effects in doubt in 2 threads: 'payer', 'writer'" in words
    told = {(thread.name, thread.beside): thread for thread in report.threads}
    assert told["writer", ""].open_ended
    assert "newer ones may be lost" in str(told["writer", ""]) or told["writer", ""].lost
    assert ("payer", "journal") in told
    assert str(told["payer", "journal"]).startswith("the journal of 'payer': ")
