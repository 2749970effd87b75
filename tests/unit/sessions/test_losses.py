"""A journal that lost records: what it doesn't know is in doubt, until somebody accepts that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Done, InDoubtError, NotFoundError, SessionBusyError, Store, salvage
from everthread.sessions.journal import FORMAT, FORMAT_WHOLE, LOSSES
from everthread.sessions.sync.journal import Runs, read_journal
from everthread.threads.sync.journals import beside
from tests.unit.cli.calling import run


class Counter:
    """An effect that counts itself."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.calls


def opened(path: Path) -> Store:
    return everthread.open(f"sqlite:///{path}", durability="process", keyring="memory:")


def build(path: Path, effects: int = 6) -> str:
    """A session with some effects; the uid of its thread."""
    with opened(path) as store:
        for run_number in range(2):
            with store.session("bot") as session:
                for number in range(effects // 2):
                    key = run_number * (effects // 2) + number
                    session.call(f"pay {key}", lambda key: {"paid": key}, key)
        uid = store.thread("bot").uid
        store.thread("plain").commit(label="no session")
    assert uid is not None
    return uid


def execute(path: Path, statement: str, *values: Any) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("foreign_keys", False)
    connection.execute(statement, values)
    assert connection.changes(), statement
    connection.close()


def damage_newest(path: Path, count: int) -> None:
    """The newest records of the journal, the only line in its space."""
    execute(
        path,
        "UPDATE record SET body = zeroblob(20) WHERE id IN (SELECT id FROM record WHERE id >> 32 = "
        "(SELECT id FROM line WHERE instr(space, 'journal')) ORDER BY id DESC LIMIT ?)",
        count,
    )


def test_ids_of_messages_do_not_repeat_after_a_fall_back(tmp_path: Path) -> None:
    """The journal counts turns from an older version on; the messages of the turns since are still there."""
    seen = []
    with opened(tmp_path / "a.db") as store, store.session("bot") as session:
        for number in range(3):
            with session.turn() as turn:
                seen.append(turn.message_id("tool"))
                turn.messages.append({"id": seen[-1], "content": number})
    damage_newest(tmp_path / "a.db", 3)
    with opened(tmp_path / "a.db") as store, store.session("bot") as session:
        assert session.found.losses is not None
        with session.turn() as turn:
            assert turn.number <= 3, "else this proves nothing"
            assert turn.message_id("tool") not in seen
            turn.messages.append({"id": turn.message_id("tool"), "content": "another"})
        assert [message["content"] for message in session.messages] == [0, 1, 2, "another"]


@pytest.fixture
def salvaged(tmp_path: Path) -> Iterator[Store]:
    """Its last two effects are lost."""
    build(tmp_path / "a.db")
    damage_newest(tmp_path / "a.db", 5)
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert report.doubtful == ("bot",)
    assert "effects in doubt in 1 thread" in str(report)
    with opened(tmp_path / "b.db") as store:
        yield store
        assert store.verify().ok


def test_what_is_known_is_known_and_the_rest_is_in_doubt(salvaged: Store) -> None:
    pay = Counter()
    with salvaged.session("bot") as session:
        assert session.call("pay 0", pay, 0) == {"paid": 0}
        with pytest.raises(InDoubtError) as doubt:
            session.call("pay 5", pay, 5)
        text = str(doubt.value)
        assert "lost records" in text
        assert "salvaged" in text
        assert "session.settle('pay 5', True, Done(result) or False)" in text
        assert "session.accept_loss()" in text
        assert doubt.value.key == "pay 5"
        with pytest.raises(InDoubtError):
            session.call("never called", pay)
    with salvaged.session("bot") as session, pytest.raises(InDoubtError):
        session.call("pay 5", pay, 5)
    assert pay.calls == 0


def test_verify_settles_it(salvaged: Store) -> None:
    pay = Counter()
    with salvaged.session("bot") as session:
        assert session.call("pay 4", pay, 4, verify=lambda bill: Done("found")) == "found"
        assert session.call("pay 4", pay, 4) == "found"
        with pytest.raises(InDoubtError, match="verify could not tell"):
            session.call("pay 5", pay, 5, verify=lambda bill: None)
        assert pay.calls == 0
        assert session.call("pay 5", pay, 5, verify=lambda bill: False) == 1
        assert session.call("pay 5", pay, 5) == 1
    assert pay.calls == 1


def test_settling_by_hand(salvaged: Store) -> None:
    pay = Counter()
    with salvaged.session("bot") as session:
        session.settle("pay 4", Done({"paid": 4}))
        session.settle("pay 5", False)
        with pytest.raises(NotFoundError):
            session.settle("pay 0", True)
        assert session.call("pay 4", pay, 4) == {"paid": 4}
    with salvaged.session("bot") as session:
        assert session.call("pay 4", pay, 4) == {"paid": 4}
        assert session.call("pay 5", pay, 5) == 1, "somebody said that it has not happened"
    assert pay.calls == 1


def test_what_was_begun_since_is_as_ever(salvaged: Store) -> None:
    attempts = []

    def refused() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionRefusedError
        return "sent"

    with salvaged.session("bot") as session:
        with pytest.raises(ConnectionRefusedError):
            session.call("mail", refused, retry_on=ConnectionRefusedError, verify=lambda: False)
        assert session.call("mail", refused, retry_on=ConnectionRefusedError) == "sent"
        journal = read_journal(salvaged.core, str(session.thread.uid))
        assert journal.state[LOSSES]["cleared"].plain() == {}


def test_accepting(salvaged: Store) -> None:
    pay = Counter()
    with salvaged.session("bot") as session:
        assert session.accept_loss() is True
        assert session.accept_loss() is False
        assert session.call("pay 5", pay, 5) == 1
    assert salvaged.session_records("bot").losses is None
    assert read_journal(salvaged.core, str(salvaged.thread("bot").uid)).state["format"] == FORMAT_WHOLE
    with salvaged.session("bot") as session:
        assert session.call("pay 4", pay, 4) == 2


def test_accepting_without_a_run(salvaged: Store) -> None:
    with salvaged.session("bot"), pytest.raises(SessionBusyError):
        salvaged.accept_loss("bot")
    assert salvaged.accept_loss("bot") is True
    assert salvaged.accept_loss("bot") is False
    assert salvaged.session_records("bot").runs(1)[0].agent == "accept_loss"
    pay = Counter()
    with salvaged.session("bot") as session:
        assert session.call("pay 5", pay, 5) == 1


def test_accepting_on_the_command_line(salvaged: Store) -> None:
    told = run(["--store", salvaged.url, "resume", "bot"], code=6)
    assert "records of its effects were lost" in told.out
    assert "everthread settle bot --store" in told.err
    assert "--lost" in told.err
    said_no = run(["--store", salvaged.url, "settle", "bot", "--lost"], code=1, input="n\n")
    assert "nothing was changed" in said_no.err
    assert salvaged.session_records("bot").losses is not None
    run(["--store", salvaged.url, "settle", "bot", "--lost", "--json"], code=2)
    run(["--store", salvaged.url, "settle", "bot", "pay 5", "--lost"], code=2)
    run(["--store", salvaged.url, "settle", "bot", "--lost", "--yes"], code=0)
    assert salvaged.session_records("bot").losses is None
    again = run(["--store", salvaged.url, "settle", "bot", "--lost"], code=3)
    assert "no records of effects of 'bot' are known to be lost" in again.err


def test_forks_and_copies_take_it_along(salvaged: Store, tmp_path: Path) -> None:
    salvaged.thread("bot").fork("fork")
    salvaged.export(tmp_path / "archive")
    with opened(tmp_path / "c.db") as other:
        other.import_from(tmp_path / "archive")
        for store, name in ((salvaged, "fork"), (other, "bot"), (other, "fork")):
            with store.session(name) as session, pytest.raises(InDoubtError):
                session.call("pay 5", Counter(), 5)


def test_the_report_of_a_resume_says_so(salvaged: Store) -> None:
    problems = salvaged.resume("bot").problems
    assert any("an effect that isn't known here may have happened" in problem for problem in problems)
    assert salvaged.resume("plain").problems == ()


def test_older_code_refuses_such_a_journal(salvaged: Store) -> None:
    """It would take it for whole."""
    journal = read_journal(salvaged.core, str(salvaged.thread("bot").uid))
    assert journal.state["format"] == FORMAT > FORMAT_WHOLE
    with salvaged.session("bot"):
        journal.refresh()
        assert journal.state["format"] == FORMAT


# ── what is sound isn't doubted ──────────────────────────────────────────────────────────────────


def test_a_sound_store_is_salvaged_without_doubts(tmp_path: Path) -> None:
    build(tmp_path / "a.db")
    for source, target in (("a", f"sqlite:///{tmp_path}/b.db"), ("a", f"file://{tmp_path}/c")):
        assert salvage(tmp_path / f"{source}.db", target).doubtful == ()
        with everthread.open(target, durability="process", keyring="memory:") as store:
            pay = Counter()
            with store.session("bot") as session:
                assert session.call("pay 5", pay, 5) == {"paid": 5}
                assert session.call("new", pay) == 1


def test_nor_is_one_whose_process_died(tmp_path: Path) -> None:
    """Its write-ahead log is there, its lease is held, an effect is open."""
    store = opened(tmp_path / "a.db")
    with store.session("bot") as session:
        session.call("pay 0", lambda: "paid")
    session = store.session("bot")
    with pytest.raises(RuntimeError):
        session.call("pay 1", raising)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("a.db", "a.db-wal"):
        shutil.copyfile(tmp_path / name, copy / name)
    session.close()
    store.close()
    assert (copy / "a.db-wal").stat().st_size > 0
    assert salvage(copy / "a.db", f"sqlite:///{tmp_path}/b.db").doubtful == ()


def raising() -> None:
    raise RuntimeError


def test_damage_elsewhere_leaves_a_journal_that_is_proven_whole(tmp_path: Path) -> None:
    """Another thread's record is damaged; where the row itself is sound, no journal can have lost it."""
    build(tmp_path / "a.db")
    execute(
        tmp_path / "a.db",
        "UPDATE record SET body = zeroblob(20) WHERE id >> 32 = (SELECT id FROM line WHERE name = 'plain')",
    )
    report = salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert not report
    assert report.doubtful == ()


def test_the_lease_is_a_witness(tmp_path: Path) -> None:
    """Rows that can't be told whose they were: the journal of a session that ended is known to be whole, one
    of a session that didn't isn't."""
    build(tmp_path / "a.db")
    store = opened(tmp_path / "a.db")
    session = store.session("open end")
    session.call("pay", lambda: 1)
    shutil.copyfile(tmp_path / "a.db", tmp_path / "copy.db")
    shutil.copyfile(tmp_path / "a.db-wal", tmp_path / "copy.db-wal")
    session.close()
    store.close()
    execute(
        tmp_path / "copy.db",
        "UPDATE record SET id = id + (77 << 32) WHERE id >> 32 = (SELECT id FROM line WHERE name = 'plain')",
    )
    doubtful = salvage(tmp_path / "copy.db", f"sqlite:///{tmp_path}/b.db").doubtful
    assert "open end" in doubtful
    assert "bot" not in doubtful


# ── a store that is used as it is ────────────────────────────────────────────────────────────────


def test_a_journal_that_falls_back_is_in_doubt_at_once(tmp_path: Path) -> None:
    build(tmp_path / "a.db")
    damage_newest(tmp_path / "a.db", 3)
    pay = Counter()
    with opened(tmp_path / "a.db") as store:
        assert store.session_records("bot").losses is not None
        assert "records of its effects were lost" in store.resume("bot").summary()
        store.thread("bot").fork("fork")
        for name in ("fork", "bot", "bot"):
            with store.session(name) as session:
                assert session.call("pay 0", pay, 0) == {"paid": 0}
                with pytest.raises(InDoubtError, match="lost records"):
                    session.call("never called", pay)
        assert store.accept_loss("bot")
        with store.session("bot") as session:
            assert session.call("never called", pay) == 1
    with opened(tmp_path / "a.db") as store, store.session("bot") as session:
        assert session.call("never called", pay) == 1
    assert pay.calls == 1


def test_killed_between_going_on_and_saying_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "a.db")
    damage_newest(tmp_path / "a.db", 3)

    class Killed(BaseException):
        pass

    def killed(*args: Any) -> None:
        raise Killed

    with opened(tmp_path / "a.db") as store:
        with monkeypatch.context() as patched:
            patched.setattr(Runs, "begin_now", killed)
            with pytest.raises(Killed):
                store.session("bot")
        uid = str(store.thread("bot").uid)
        head = read_journal(store.core, uid).head
        assert head is not None
        assert head.kind == "rewind"
        with store.session("bot") as session, pytest.raises(InDoubtError):
            session.call("never called", Counter())


def test_a_journal_that_is_shorter_than_its_lease_knew(tmp_path: Path) -> None:
    uid = build(tmp_path / "a.db")
    with opened(tmp_path / "a.db") as store:
        core = beside(store.core)
        found = core.backend.find(core.space, uid)
        assert found is not None
        assert found.newest is not None
        number = (found.line.id << 32) + found.newest.seq
    execute(tmp_path / "a.db", "DELETE FROM record WHERE id >= ?", number - 2)
    pay = Counter()
    with opened(tmp_path / "a.db") as store:
        with store.session("bot") as session, pytest.raises(InDoubtError, match="and had"):
            session.call("pay 5", pay, 5)
        assert store.accept_loss("bot")
    with opened(tmp_path / "a.db") as store, store.session("bot") as session:
        assert session.call("pay 5", pay, 5) == 1


def test_a_lost_key_is_found_by_verify_and_made_anew_by_salvaging(tmp_path: Path) -> None:
    build(tmp_path / "a.db", 80)
    execute(tmp_path / "a.db", "DELETE FROM keyed")
    with opened(tmp_path / "a.db") as store:
        assert any("index of keys" in damage.problem for damage in store.verify().damage)
    assert salvage(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db").doubtful == ()
    pay = Counter()
    with opened(tmp_path / "b.db") as store, store.session("bot") as session:
        for number in range(80):
            assert session.call(f"pay {number}", pay, number) == {"paid": number}
    assert pay.calls == 0


def test_a_damaged_journal_is_told_by_the_name_of_its_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uid = build(tmp_path / "a.db")
    with opened(tmp_path / "a.db") as store:
        store.thread("bot").fork("fork")
    damage_newest(tmp_path / "a.db", 5)
    url = f"sqlite:///{tmp_path}/a.db"
    with opened(tmp_path / "a.db") as store:
        for name in ("bot", "fork"):
            assert store.session_records(name).losses is not None
        assert len(caplog.records) == 1, "a fork says the same, so it isn't said again"
        assert caplog.records[0].getMessage().startswith("the journal of 'bot' stands on version ")
        losses = store.session_records("bot").losses
        assert losses is not None
        assert uid not in losses.why
        assert "of the journal of 'bot'" in losses.why
        found = store.verify()
        assert {(damage.thread, damage.beside) for damage in found.damage} == {("bot", "journal")}
        assert any("the journal of 'fork'" in str(damage) for damage in found.damage)
    for command in ("verify", "doctor"):
        answer = run(["--store", url, command], code=6)
        assert uid not in answer.out + answer.err
        assert "the journal of 'bot', version" in answer.out


def test_how_a_run_ended_isnt_known_if_its_journal_is_damaged(tmp_path: Path) -> None:
    build(tmp_path / "a.db")
    damage_newest(tmp_path / "a.db", 5)
    url = f"sqlite:///{tmp_path}/a.db"
    with opened(tmp_path / "a.db") as store:
        assert store.session_records("bot").status == "unknown"
        report = store.resume("bot")
        assert (report.status, report.crashed) == ("unknown", False)
    listed = run(["--store", url, "status"], code=6)
    assert "crashed" not in listed.out
    assert "unknown" in listed.out
    assert "the journal of 'bot'" in listed.err
    shown = run(["--store", url, "show", "bot"], code=6)
    resumed = run(["--store", url, "resume", "bot"], code=6)
    for answer in (shown, resumed):
        assert "isn't known: its journal is damaged" in answer.out
        assert "crashed" not in answer.out
    assert "…" not in resumed.out, "what was lost is told to its end"
    with opened(tmp_path / "a.db") as store, store.session("bot"):
        pass
    assert "completed" in run(["--store", url, "status"], code=0).out, "the next run's end is known"
